"""Figures on tiles: positions, confidence of pairs, stage axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from linumpy.core.style import (
    BLUE,
    FAINT,
    INK,
    MUTED,
    ORANGE,
    SKY,
    VERMILION,
    dress,
    legend,
    whole_ticks,
)
from linumpy.quality.run import PRIOR_ONLY, TileRegistration
from linumpy.report.plots import MOST_POINTS, Plot, panel
from linumpy.report.tile_map import TileMap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Rectangle

_ARROW_SHARE = 0.3
_MOST_LABELS = 12
"""Indices of tiles that can be read beside each other."""


def tile_plots(registration: TileRegistration) -> list[Plot]:
    """Draw one slice's tile positions and, beside them, the confidence of its tile pairs."""
    fov = np.asarray(registration.fov_um)
    stage = np.array([t.stage_corner_um for t in registration.tiles]).reshape(-1, 2) + fov / 2
    extent = np.ptp(stage, axis=0) + fov if len(stage) else fov
    height = float(np.clip(4.0 * extent[0] / extent[1], 2.2, 6.0)) + 0.7
    name = f"z{registration.slice_id:02d}"
    left = TileMap(stage, fov, height)
    said = _draw_positions(left, registration, stage, fov)
    right = TileMap(stage, fov, height, bar=True)
    pairs = _draw_pairs(right, registration, stage)
    tiles = [
        (*t.index, *t.stage_corner_um, *t.corner_um, int(t.component == PRIOR_ONLY))
        for t in registration.tiles
    ]
    columns = ("ix", "iy", "stage_axis1_um", "stage_axis2_um", "axis1_um", "axis2_um", "by_stage")
    return [
        Plot(f"{name}_tiles", f"{name}: {said}", left, columns, tiles),
        Plot(
            f"{name}_pairs",
            f"{name}: {pairs}",
            right,
            ("a_ix", "a_iy", "b_ix", "b_iy", "confidence", "accepted"),
            [(*p.a, *p.b, float(p.confidence), int(p.accepted)) for p in registration.pairs],
        ),
    ]


def arrow_factor(shift_um: np.ndarray, fov_um: np.ndarray) -> float:
    """Return the 1, 2 or 5 times a power of ten that makes shifts readable beside tiles.

    Parameters
    ----------
    shift_um
        Shape (n, 2).
    fov_um
        Tile extent along both axes.
    """
    lengths = np.hypot(*shift_um.T) if len(shift_um) else np.zeros(0)
    typical = float(np.percentile(lengths, 75)) if lengths.size else 0.0
    if typical <= 0:
        return 1.0
    wanted = _ARROW_SHARE * float(np.min(fov_um)) / typical
    if wanted <= 1:
        return 1.0
    power = 10.0 ** np.floor(np.log10(wanted))
    return float(max(step * power for step in (1, 2, 5) if step * power <= wanted * (1 + 1e-9)))


def _draw_positions(
    drawing: TileMap, registration: TileRegistration, stage: np.ndarray, fov: np.ndarray
) -> str:
    """Draw where tiles were moved to, and return what the plot is called."""
    solved = np.array([t.corner_um for t in registration.tiles]).reshape(-1, 2) + fov / 2
    alone = np.array([t.component == PRIOR_ONLY for t in registration.tiles], bool)
    shift = solved - stage
    factor = arrow_factor(shift[~alone], fov)
    entries = []
    for members, colour, mark, label in (
        (~alone, BLUE, "o", "held by its neighbours"),
        (alone, ORANGE, "s", "held by the stage alone"),
    ):
        if members.any():
            here = stage[members]
            drawing.arrows(here, here + factor * shift[members], colour)
            drawing.dots(here, 2.35, colour, square=mark == "s")
            entries.append((mark, colour, label))
    drawing.legend(entries)
    rms = np.sqrt(np.mean(shift**2)) if len(shift) else 0.0
    return f"from stage to solved position, arrows × {factor:g} (RMS {rms:.1f} µm an axis)"


def _draw_pairs(drawing: TileMap, registration: TileRegistration, stage: np.ndarray) -> str:
    """Draw how sure each pair is, and return what the plot is called."""
    place = {t.index: stage[n] for n, t in enumerate(registration.tiles)}
    pairs = [p for p in registration.pairs if p.a in place and p.b in place]
    accepted = np.array([p.accepted for p in pairs], bool)
    first, second = (
        np.array([place[i] for i in ids]).reshape(-1, 2)
        for ids in ([p.a for p in pairs], [p.b for p in pairs])
    )
    values = np.array([p.confidence for p in pairs])
    drawing.coloured_lines(first[accepted], second[accepted], values[accepted], "confidence")
    if not accepted.all():
        one, other = first[~accepted], second[~accepted]
        drawing.lines(one, other, VERMILION, 1.2, dash="4.4 1.9")
        drawing.crosses((one + other) / 2, 2.8, VERMILION)
        drawing.legend([("x", VERMILION, "rejected")])
    drawing.dots(stage, 1.9, INK, square=False)
    return f"{accepted.sum()} of {len(pairs)} tile pairs accepted"


def confidence_plot(registrations: Mapping[int, TileRegistration]) -> Plot:
    """Draw the confidence of every tile pair against the slice id, percentiles of many."""
    figure, axes = panel()
    spread = np.random.default_rng(0)
    table = [
        (slice_id, float(pair.confidence), int(pair.accepted))
        for slice_id, registration in sorted(registrations.items())
        for pair in registration.pairs
    ]
    if len(table) > MOST_POINTS:
        _draw_percentiles(axes, table)
    for accepted, colour, marker, size, label in (
        (True, BLUE, "o", 12, "accepted"),
        (False, VERMILION, "x", 18, "rejected"),
    ):
        points = [row[:2] for row in table if bool(row[2]) == accepted]
        if points and len(table) <= MOST_POINTS:
            x, y = np.array(points, dtype=float).T
            axes.scatter(
                x + spread.uniform(-0.22, 0.22, len(x)), y, s=size, color=colour, marker=marker,
                alpha=0.75, label=f"{label} ({len(x)})",
                linewidths=0 if marker == "o" else 1,
            )  # fmt: skip
    dress(axes, xlabel="slice", ylabel="confidence")
    axes.set_ylim(-0.03, 1.03)
    whole_ticks(axes)
    legend(axes, loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=2)
    return Plot(
        "tile_pair_confidence",
        "Confidence of tile pairs",
        figure,
        ("slice", "confidence", "accepted"),
        table,
        "Rejected are pairs without a clear match, as between tiles of bare agarose, and pairs "
        "that contradict the others.",
    )


def _draw_percentiles(axes: Axes, table: Sequence[tuple[int, float, int]]) -> None:
    ids: list[float] = sorted({row[0] for row in table})
    found = np.array(
        [np.percentile([r[1] for r in table if r[0] == i], [5, 25, 50, 75, 95]) for i in ids]
    ).T
    if len(ids) == 1:
        # An area has a width.
        ids, found = [ids[0] - 0.4, ids[0] + 0.4], np.repeat(found, 2, axis=1)
    axes.fill_between(ids, found[0], found[4], color=SKY, alpha=0.3, label="5 to 95 %", lw=0)
    axes.fill_between(ids, found[1], found[3], color=SKY, alpha=0.5, label="25 to 75 %", lw=0)
    axes.plot(ids, found[2], color=BLUE, linewidth=1.4, label="median")


def stage_axes_plots(
    registration: TileRegistration,
    stage_to_array: str,
    picture: np.ndarray | None,
    picture_extent_um: tuple[float, float, float, float] | None,
) -> list[Plot]:
    """Draw how stage axes and tile numbers run in the image, and whether the pairs agree.

    Parameters
    ----------
    stage_to_array
        Signed stage axes along axis 1 and axis 2, such as ``+x,+y``.
    picture
        Depth mean of the slice (axis 1, axis 2), or None.
    picture_extent_um
        Its edges: low and high along axis 2, then along axis 1.
    """
    figure, left = panel(4.6)
    fov = np.asarray(registration.fov_um)
    solved = np.array([t.corner_um for t in registration.tiles]).reshape(-1, 2) + fov / 2
    if picture is not None and picture_extent_um is not None:
        low2, high2, low1, high1 = (v / 1000 for v in picture_extent_um)
        top = float(np.percentile(picture, 99.5)) or 1.0
        left.imshow(
            picture, cmap="gray", vmin=0, vmax=top, extent=(low2, high2, high1, low1), alpha=0.85
        )
    _outline(left, solved, fov, "white" if picture is not None else FAINT)
    every = 1 + max((max(t.index) for t in registration.tiles), default=0) // _MOST_LABELS
    for tile, centre in zip(registration.tiles, solved, strict=True):
        if any(place % every for place in tile.index):
            continue
        left.text(
            centre[1] / 1000, centre[0] / 1000, f"{tile.index[0]},{tile.index[1]}", fontsize=7.5,
            color="white", ha="center", va="center",
            bbox={"facecolor": "#010101", "alpha": 0.5, "linewidth": 0, "pad": 1.2},
        )  # fmt: skip
    _stage_arrows(left, stage_to_array)
    _lay_like_pictures(left, solved, fov)
    dress(left, xlabel="axis 2 (mm)", ylabel="axis 1 (mm)")
    left.grid(False)
    other, right = panel(4.6)
    _draw_displacements(right, registration)
    name = f"z{registration.slice_id:02d}"
    tiles = [(*t.index, *t.corner_um) for t in registration.tiles]
    distances = [
        (*p.a, *p.b, *p.expected_um, *(p.displacement_um or (None, None)), int(p.accepted))
        for p in registration.pairs
    ]
    return [
        Plot(
            "stage_axes",
            f"{name}: tiles ix,iy as solved; stage_to_array = {stage_to_array}",
            figure,
            ("ix", "iy", "axis1_um", "axis2_um"),
            tiles,
            "Orange arrows show where the stage's axes point in the image.",
        ),
        Plot(
            "tile_distances",
            f"{name}: distance of neighbours, measured against the stage",
            other,
            (
                "a_ix",
                "a_iy",
                "b_ix",
                "b_iy",
                "stage_axis1_um",
                "stage_axis2_um",
                "axis1_um",
                "axis2_um",
                "accepted",
            ),
            distances,
        ),
    ]


def _draw_displacements(axes: Axes, registration: TileRegistration) -> None:
    for number, colour, marker in ((0, BLUE, "o"), (1, ORANGE, "^")):
        for accepted in (True, False):
            points = [
                (p.expected_um[number] / 1000, p.displacement_um[number] / 1000)
                for p in registration.pairs
                if p.accepted == accepted and p.displacement_um is not None
            ]
            if not points:
                continue
            x, y = np.array(points).T
            axes.scatter(
                x, y, s=26, marker=marker, linewidths=1, edgecolors=colour,
                facecolors=colour if accepted else "none",
                label=f"axis {number + 1}{'' if accepted else ', rejected'}",
            )  # fmt: skip
    limits = [*axes.get_xlim(), *axes.get_ylim()]
    axes.plot(
        [min(limits), max(limits)], [min(limits), max(limits)], color=MUTED, linewidth=1, zorder=0
    )
    dress(axes, xlabel="by the stage (mm)", ylabel="measured (mm)")
    legend(axes, loc="upper left")


def _stage_arrows(axes: Axes, stage_to_array: str) -> None:
    """Draw the stage's axes at the image's low left, where they point in the image."""
    parts = [part.strip() for part in stage_to_array.split(",")]
    directions = ((0.0, -1.0), (1.0, 0.0))
    for part, direction in zip(parts, directions, strict=True):
        sign = -1.0 if part.startswith("-") else 1.0
        start = np.array([0.14, 0.2])
        end = start + 0.13 * sign * np.asarray(direction)
        axes.annotate(
            "", xy=tuple(end), xytext=tuple(start), xycoords="axes fraction",
            arrowprops={"arrowstyle": "-|>", "color": ORANGE, "linewidth": 2.2},
        )  # fmt: skip
        axes.text(
            end[0] + 0.045 * sign * direction[0], end[1] + 0.045 * sign * direction[1],
            f"+{part[-1]}", color="#010101", fontsize=9,
            ha="center", va="center", transform=axes.transAxes, fontweight="bold",
            bbox={"facecolor": "white", "alpha": 0.85, "linewidth": 0, "pad": 1},
        )  # fmt: skip


def _outline(axes: Axes, centres: np.ndarray, fov: np.ndarray, colour: str = FAINT) -> None:
    """Draw the tiles' edges, as one path."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    paths = [_rectangle((c - fov / 2)[::-1] / 1000, fov[::-1] / 1000, colour) for c in centres]
    if paths:
        whole = Path.make_compound_path(
            *(patch.get_transform().transform_path(patch.get_path()) for patch in paths)
        )
        axes.add_patch(PathPatch(whole, fill=False, edgecolor=colour, linewidth=0.8, zorder=1))


def _rectangle(corner: np.ndarray, size: np.ndarray, colour: str) -> Rectangle:
    from matplotlib.patches import Rectangle

    return Rectangle(tuple(corner), *size, fill=False, edgecolor=colour, linewidth=0.8, zorder=1)


def _lay_like_pictures(axes: Axes, centres: np.ndarray, fov: np.ndarray) -> None:
    """Let axis 1 run down and axis 2 to the right, as in every figure of the report."""
    axes.set_aspect("equal")
    if len(centres):
        low, high = (
            (centres.min(axis=0) - 0.6 * fov) / 1000,
            (centres.max(axis=0) + 0.6 * fov) / 1000,
        )
        axes.set_xlim(low[1], high[1])
        axes.set_ylim(high[0], low[0])
