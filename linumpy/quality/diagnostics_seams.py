"""Diagnostics of seams: tile offsets at stage positions and at registered ones.

Registration measured for every pair how tiles lie against each other. What the stage says of the
pair, and what was solved for it, are compared with that: nothing is stitched again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from linumpy.core.errors import InputError
from linumpy.quality.run import TileRegistration
from linumpy.tiles.positions import MeasuredPair

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STRIP_PX = 96
_ALONG_PX = 400


@dataclass(frozen=True)
class SeamComparison:
    """Errors at seams before and after registration of tiles.

    Attributes
    ----------
    slices
        ``slice_id, n_pairs, stage_rms_px, solved_rms_px, stage_p90_px, solved_p90_px``: RMS an
        axis and 90th percentile of the lengths, over accepted pairs.
    stage_rms_px, solved_rms_px
        RMS an axis over all accepted pairs.
    improved_share
        Share of the pairs that lie better after registration than before.
    """

    slices: list[dict[str, Any]]
    n_pairs: int
    stage_rms_px: float
    solved_rms_px: float
    improved_share: float


def compare_stitching(registrations: Mapping[int, TileRegistration]) -> SeamComparison:
    """Compare seams at stage positions and at solved positions.

    Parameters
    ----------
    registrations
        ``register_tiles.json`` by slice id.

    Raises
    ------
    InputError
        When no slice has an accepted pair.
    """
    records, stage, solved = [], [], []
    for slice_id, registration in sorted(registrations.items()):
        before, after = seam_errors_px(registration)
        if not len(before):
            continue
        stage.append(before)
        solved.append(after)
        records.append(
            {
                "slice_id": slice_id,
                "n_pairs": len(before),
                "stage_rms_px": _rms(before),
                "solved_rms_px": _rms(after),
                "stage_p90_px": _p90(before),
                "solved_p90_px": _p90(after),
            }
        )
    if not records:
        raise InputError("no accepted pair of tiles in any register_tiles.json, expected some")
    before, after = np.concatenate(stage), np.concatenate(solved)
    return SeamComparison(
        slices=records,
        n_pairs=len(before),
        stage_rms_px=_rms(before),
        solved_rms_px=_rms(after),
        improved_share=float(np.mean(np.hypot(*after.T) < np.hypot(*before.T))),
    )


def seam_errors_px(registration: TileRegistration) -> tuple[np.ndarray, np.ndarray]:
    """Return measured less expected and measured less solved displacements, (pairs, 2) each."""
    pixel = np.asarray(registration.voxel_um[1:])
    corner = {tile.index: np.asarray(tile.corner_um) for tile in registration.tiles}
    before, after = [], []
    for pair in registration.pairs:
        if pair.accepted and pair.displacement_um is not None:
            measured = np.asarray(pair.displacement_um)
            before.append((measured - pair.expected_um) / pixel)
            after.append((measured - (corner[pair.b] - corner[pair.a])) / pixel)
    return np.array(before).reshape(-1, 2), np.array(after).reshape(-1, 2)


def _rms(errors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(errors**2)))


def _p90(errors: np.ndarray) -> float:
    return float(np.percentile(np.hypot(*errors.T), 90))


def seam_figure(comparison: SeamComparison) -> Figure:
    """Draw the errors of every slice before and after."""
    from linumpy.core.style import BLUE, ORANGE, dress, legend, new_figure, whole_ticks

    figure = new_figure(9.0, 3.6)
    axes = figure.subplots()
    ids = [s["slice_id"] for s in comparison.slices]
    for name, label, colour, marker in (
        ("stage", "stage positions", ORANGE, "^"),
        ("solved", "registered positions", BLUE, "o"),
    ):
        rms = [s[f"{name}_rms_px"] for s in comparison.slices]
        p90 = [s[f"{name}_p90_px"] for s in comparison.slices]
        axes.plot(ids, rms, marker=marker, markersize=5, color=colour, label=label, linewidth=1.2)
        axes.plot(ids, p90, color=colour, linewidth=0.8, linestyle=":", label="90th percentile")
    axes.set_yscale("log")
    dress(
        axes,
        title=f"Error at seams, RMS an axis over {comparison.n_pairs} pairs: "
        f"{comparison.stage_rms_px:.2f} px by the stage, {comparison.solved_rms_px:.2f} px "
        "registered",
        xlabel="slice",
        ylabel="pixels",
    )
    legend(axes, loc="best", ncols=2)
    whole_ticks(axes)
    return figure


def worst_pair(registration: TileRegistration) -> MeasuredPair:
    """Return the pair over tissue that the stage puts furthest from where it lies.

    Raises
    ------
    InputError
        When the slice has no accepted pair.
    """
    pairs = [p for p in registration.pairs if p.accepted and p.displacement_um is not None]
    if not pairs:
        raise InputError(
            f"slice z{registration.slice_id:02d}: no accepted pair of tiles, expected one to show"
        )
    bright = np.median([p.overlap_mean_a or 0.0 for p in pairs])
    shown = [p for p in pairs if (p.overlap_mean_a or 0.0) >= bright]
    return max(
        shown, key=lambda p: float(np.hypot(*np.subtract(p.displacement_um or 0, p.expected_um)))
    )


def seam_picture(grid_path: Path, registration: TileRegistration) -> Figure:
    """Draw one seam of a corrected grid at the stage's and at the registered positions.

    Tiles meet without blending, in the middle of what they share.

    Parameters
    ----------
    grid_path
        Corrected mosaic grid of the slice, at the voxel size of its registration.

    Raises
    ------
    InputError
        When grid and registration are not of one slice or voxel size.
    """
    from linumpy.core.style import VERMILION, dress, new_figure
    from linumpy.io.grid import open_grid
    from linumpy.io.previews import positive_window

    grid = open_grid(grid_path)
    if grid.info.slice_id != registration.slice_id:
        raise InputError(
            f"{grid_path}: slice z{grid.info.slice_id:02d}, expected z{registration.slice_id:02d}"
        )
    if not np.allclose(grid.info.voxel_um, registration.voxel_um, rtol=1e-6):
        raise InputError(
            f"{grid_path}: voxels of {grid.info.voxel_um} um, expected the corrected grid with "
            f"{registration.voxel_um} um"
        )
    pair = worst_pair(registration)
    first, second = (grid.read_tile(*index).mean(axis=0) for index in (pair.a, pair.b))
    corner = {tile.index: np.asarray(tile.corner_um) for tile in registration.tiles}
    pixel = np.asarray(registration.voxel_um[1:])
    ways = {
        "stage positions": np.asarray(pair.expected_um) / pixel,
        "registered positions": (corner[pair.b] - corner[pair.a]) / pixel,
    }
    figure = new_figure(9.0, 4.6)
    pictures = [join(first, second, shift) for shift in ways.values()]
    top = max(positive_window(picture, 99.5) for picture, _, _ in pictures)
    for axes, name, (picture, axis, seam) in zip(
        figure.subplots(1, 2), ways, pictures, strict=True
    ):
        axes.imshow(picture, cmap="gray", vmin=0, vmax=top, interpolation="nearest")
        # Marks outside the image: a line on the seam would hide what is to be seen.
        mark = axes.axhline if axis == 0 else axes.axvline
        for low, high in ((-0.03, 0.0), (1.0, 1.03)):
            mark(seam, low, high, color=VERMILION, linewidth=2, clip_on=False)
        dress(axes, title=name)
        axes.grid(False)
        axes.set_xticks([])
        axes.set_yticks([])
    move = np.hypot(*(ways["registered positions"] - ways["stage positions"]))
    figure.suptitle(
        f"z{registration.slice_id:02d}, tiles {pair.a} and {pair.b}: {move:.1f} px apart",
        fontsize=10,
    )
    return figure


def grid_seam(grid_path: Path, registrations: Mapping[int, TileRegistration]) -> Figure:
    """Draw `seam_picture` for the slice that a grid holds.

    Raises
    ------
    InputError
        When that slice has no registration of tiles.
    """
    from linumpy.io.grid import open_grid

    slice_id = open_grid(grid_path).info.slice_id
    if slice_id not in registrations:
        raise InputError(f"{grid_path}: no register_tiles.json for its slice z{slice_id:02d}")
    return seam_picture(grid_path, registrations[slice_id])


def join(
    first: np.ndarray, second: np.ndarray, shift_px: np.ndarray
) -> tuple[np.ndarray, int, float]:
    """Put two tiles side by side, the second at a displacement, cut in the middle of the overlap.

    Returns
    -------
    The image around the seam, the axis that the tiles lie along, and the seam's place on it.
    """
    shift = np.rint(shift_px).astype(int)
    axis = int(np.abs(shift_px).argmax())
    if shift[axis] < 0:
        return join(second, first, -np.asarray(shift_px))
    n = first.shape[axis]
    seam = (int(shift[axis]) + n) // 2
    side, across = shift[1 - axis], first.shape[1 - axis]
    low, high = max(0, side), min(across, across + side)
    middle, half = (low + high) // 2, min(high - low, _ALONG_PX) // 2
    along = slice(middle - half, middle + half)
    before = slice(max(0, seam - _STRIP_PX), seam)
    after = slice(seam - shift[axis], min(n, seam - shift[axis] + _STRIP_PX))
    moved = slice(along.start - side, along.stop - side)
    one, two = np.moveaxis(first, axis, 0), np.moveaxis(second, axis, 0)
    picture = np.concatenate([one[before, along], two[after, moved]])
    return np.moveaxis(picture, 0, axis), axis, before.stop - before.start - 0.5
