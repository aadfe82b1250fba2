"""Figures on slices: images, shifts, overlap in depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.style import (
    BLUE,
    GREEN,
    ORANGE,
    SKY,
    VERMILION,
    dress,
    legend,
    whole_ticks,
)
from linumpy.quality.run import SliceRegistration
from linumpy.report.plots import Plot, panel

_STRIP_PX = 256


def projection(
    path: Path, max_side_px: int
) -> tuple[np.ndarray, tuple[float, float], tuple[float, float]]:
    """Return a slice volume's mean over depth, from the pyramid level that fits.

    Returns
    -------
    The mean over valid voxels (axis 1, axis 2; 0 where there are none), the pixel size, and the
    position of the low corner, um.
    """
    from linumpy.io.omezarr import open_image
    from linumpy.io.previews import choose_level

    image = open_image(path)
    level = choose_level(image, max_side_px)
    array = image.arrays[level]
    valid = image.valid if level == 0 else None
    out = np.zeros(array.shape[1:], dtype=np.float32)
    for start in range(0, array.shape[1], _STRIP_PX):
        part = (slice(None), slice(start, start + _STRIP_PX))
        data = np.asarray(array[part], dtype=np.float32)
        if valid is None:
            out[part[1]] = data.mean(axis=0)
        else:
            mask = np.asarray(valid[part]) > 0
            total = np.where(mask, data, 0).sum(axis=0)
            out[part[1]] = total / np.maximum(mask.sum(axis=0), 1)
    voxel = image.level_scales_um[level][1:]
    corner = tuple(
        t - v / 2 for t, v in zip(image.level_translations_um[level][1:], voxel, strict=True)
    )
    return out, (voxel[0], voxel[1]), (corner[0], corner[1])


def shift_plots(
    motor: Sequence[Mapping[str, str]],
    registration: SliceRegistration | None,
    slices: Sequence[Mapping[str, Any]] = (),
) -> list[Plot]:
    """Draw what the motors say of every slice's place, and what registration adds.

    Parameters
    ----------
    motor
        Rows of ``shifts_xy.csv``.
    slices
        Those of ``register_slices.json``, for their ``rotation_deg``.
    """
    plots = []
    ids, x, y = motor_positions(motor)
    if len(ids):
        figure, axes = panel()
        axes.plot(ids, x, marker="o", markersize=3, color=BLUE, label="x", linewidth=1.2)
        axes.plot(ids, y, marker="^", markersize=3, color=ORANGE, label="y", linewidth=1.2)
        _by_slice(axes, "mm")
        rows = [(int(i), float(a), float(b)) for i, a, b in zip(ids, x, y, strict=True)]
        title = "Mosaic corner by the motors, relative to the first slice"
        plots.append(Plot("motor_positions", title, figure, ("slice", "x_mm", "y_mm"), rows))
    if registration is not None:
        plots.append(_offset_plot(registration))
    turned = [s for s in slices if s.get("rotation_deg") is not None]
    if turned:
        angles = [(int(s["slice_id"]), float(s["rotation_deg"])) for s in turned]
        figure, axes = panel(2.4)
        places, values = zip(*angles, strict=True)
        axes.plot(places, values, marker="o", markersize=3, color=BLUE, linewidth=1.2)
        _by_slice(axes, "degrees")
        title = "Registered rotation of slices"
        plots.append(Plot("slice_rotation", title, figure, ("slice", "rotation_deg"), angles))
    if registration is not None and registration.pairs:
        plots.append(_pair_plot(registration))
    return plots


def _by_slice(axes: Any, ylabel: str) -> None:
    dress(axes, xlabel="slice", ylabel=ylabel)
    legend(axes, loc="best", ncols=3)
    whole_ticks(axes)


def motor_positions(
    rows: Sequence[Mapping[str, str]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return slice ids and their mosaics' corners by the motors, mm, relative to the first.

    A row's shift is the fixed slice's position minus the moving one's, so that positions are the
    negated cumulative sums.
    """
    if not rows:
        return np.zeros(0, dtype=int), np.zeros(0), np.zeros(0)
    ids = [int(float(rows[0]["fixed_id"]))] + [int(float(row["moving_id"])) for row in rows]
    x, y = (
        np.concatenate([[0.0], -np.cumsum([float(row[name]) for row in rows])])
        for name in ("x_shift_mm", "y_shift_mm")
    )
    return np.array(ids), x, y


def _offset_plot(registration: SliceRegistration) -> Plot:
    ids = sorted(registration.offset_um)
    table = np.array([registration.offset_um[i] for i in ids])
    figure, axes = panel(3.6)
    _draw_chain(axes, registration)
    for column, label, colour, marker in (
        (1, "axis 1", BLUE, "o"),
        (2, "axis 2", ORANGE, "^"),
        (0, "z", GREEN, "s"),
    ):
        axes.plot(
            ids, table[:, column], marker=marker, markersize=3, color=colour, label=label,
            linewidth=1.2,
        )  # fmt: skip
    axes.axvline(registration.reference_id, color=SKY, linewidth=5, alpha=0.3, zorder=0)
    axes.annotate(
        "reference", (registration.reference_id, 1), xycoords=("data", "axes fraction"),
        xytext=(4, -3), textcoords="offset points", fontsize=7.5, va="top",
    )  # fmt: skip
    _by_slice(axes, "µm")
    return Plot(
        "slice_offsets",
        "Offset that registration adds to the motors'",
        figure,
        ("slice", "z_um", "axis1_um", "axis2_um"),
        [(i, *(float(v) for v in row)) for i, row in zip(ids, table, strict=True)],
        "Lines: all slices solved together. Dotted: neighbours summed, where their errors add up.",
    )


def _draw_chain(axes: Any, registration: SliceRegistration) -> None:
    """Draw where a chain of neighbours alone would lead: how far their errors add up."""
    ids = sorted(registration.offset_um)
    shift = {
        (int(p["fixed_id"]), int(p["moving_id"])): p.get("shift_um") for p in registration.pairs
    }
    steps = [shift.get(pair) or (0.0, 0.0, 0.0) for pair in zip(ids, ids[1:], strict=False)]
    sums = np.vstack([np.zeros((1, 3)), np.cumsum(np.reshape(steps, (-1, 3)), axis=0)])
    if registration.reference_id in ids:
        here = ids.index(registration.reference_id)
        sums[:, 1:] += np.asarray(registration.offset_um[ids[here]])[1:] - sums[here, 1:]
    for column, colour in ((1, BLUE), (2, ORANGE)):
        axes.plot(ids, sums[:, column], color=colour, linewidth=1, linestyle=":")


def _pair_plot(registration: SliceRegistration) -> Plot:
    figure, axes = panel()
    for accepted, colour, marker, label in (
        (True, BLUE, "o", "accepted"),
        (False, VERMILION, "x", "rejected"),
    ):
        points = [
            ((p["fixed_id"] + p["moving_id"]) / 2, p.get("confidence") or 0.0)
            for p in registration.pairs
            if bool(p.get("accepted", True)) == accepted
        ]
        if points:
            x, y = zip(*points, strict=True)
            axes.scatter(x, y, s=18, color=colour, marker=marker, label=label)
    axes.set_ylim(-0.03, 1.05)
    _by_slice(axes, "confidence")
    columns = ("fixed_id", "moving_id", "confidence", "correlation", "accepted")
    rows = [[_plain(pair.get(name)) for name in columns] for pair in registration.pairs]
    return Plot("slice_pairs", "Confidence of slice pairs", figure, columns, rows)


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value


def overlap_plots(stack: Mapping[str, Any], matches: Sequence[Mapping[str, str]]) -> list[Plot]:
    """Draw which depth of the brain every slice fills, and how much it shares with the last.

    Parameters
    ----------
    stack
        ``stack_slices_motor.json``.
    matches
        Rows of ``z_matches.csv``.
    """
    axial_um, slices = stack["voxel_um"][0], stack["slices"]
    ids = np.array([s["slice_id"] for s in slices])
    begin = np.array([s["z_start_px"] + s["first_plane_px"] for s in slices])
    end = np.array([s["z_start_px"] + s["n_planes"] for s in slices])
    overlap = np.array([s["overlap_px"] for s in slices])
    scale = axial_um / 1000
    figure, left = panel()
    left.bar(ids, (end - begin) * scale, bottom=begin * scale, width=0.7, color=SKY, label="slice")
    left.bar(
        ids, overlap * scale, bottom=begin * scale, width=0.7, color=BLUE,
        label="shared with the slice above",
    )  # fmt: skip
    left.invert_yaxis()
    _by_slice(left, "z in the brain (mm)")
    rows = [
        (int(i), float(a * scale), float(b * scale), int(n))
        for i, a, b, n in zip(ids, begin, end, overlap, strict=True)
    ]
    columns = ("slice", "begin_mm", "end_mm", "shared_planes")
    plots = [Plot("slice_depths", "Depth that each slice fills", figure, columns, rows)]
    figure, right = panel()
    right.plot(ids[1:], overlap[1:], marker="o", markersize=3, color=BLUE, linewidth=1.2)
    right.set_ylim(0, max(1.0, 1.15 * float(overlap.max(initial=0))))
    _by_slice(right, "planes shared")
    correlations = [
        (int(float(row["moving_id"])), float(row["correlation"]))
        for row in matches
        if row.get("correlation") not in (None, "")
    ]
    if correlations:
        twin = right.twinx()
        x, y = zip(*correlations, strict=True)
        twin.scatter(x, y, marker="^", s=18, color=ORANGE)
        twin.set_ylim(0, 1.05)
        dress(twin, ylabel="correlation (triangles)")
        twin.grid(False)
    found = dict(correlations)
    rows_shared = [(int(i), int(n), found.get(int(i))) for i, n in zip(ids, overlap, strict=True)]
    title = "Overlap with the slice above"
    plots.append(
        Plot("slice_overlap", title, figure, ("slice", "planes", "correlation"), rows_shared[1:])
    )
    return plots
