"""Figures on slices: pictures, shifts, overlap in depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from linumpy.core.style import (
    BLUE,
    GREEN,
    ORANGE,
    SKY,
    VERMILION,
    dress,
    legend,
    new_figure,
    whole_ticks,
)
from linumpy.quality.run import SliceRegistration

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


def shift_figure(
    motor: Sequence[Mapping[str, str]],
    registration: SliceRegistration | None,
    slices: Sequence[Mapping[str, Any]] = (),
) -> Figure:
    """Draw what the motors say of every slice's place, and what registration adds.

    Parameters
    ----------
    motor
        Rows of ``shifts_xy.csv``.
    slices
        Those of ``register_slices.json``, for their ``rotation_deg``.
    """
    turned = [s for s in slices if s.get("rotation_deg") is not None]
    figure = new_figure(10.4, 8.0 if turned else 6.4)
    heights = (3, 3, 2, 2) if turned else (3, 3, 2)
    panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    top, middle, bottom = panels[0], panels[1], panels[-1]
    if turned:
        numbers = [int(s["slice_id"]) for s in turned]
        angles = [float(s["rotation_deg"]) for s in turned]
        panels[2].plot(numbers, angles, marker="o", markersize=4, color=BLUE, linewidth=1.2)
        dress(panels[2], title="Registered turn", ylabel="degrees")
    ids, x, y = motor_positions(motor)
    if len(ids):
        top.plot(ids, x, marker="o", markersize=4, color=BLUE, label="x", linewidth=1.2)
        top.plot(ids, y, marker="^", markersize=4, color=ORANGE, label="y", linewidth=1.2)
    else:
        _absent(top, "no shifts_xy.csv")
    dress(top, title="Mosaic corner by the motors, relative to the first slice", ylabel="mm")
    legend(top, loc="best", ncols=2)
    if registration is None:
        _absent(middle, "slices were not registered")
        _absent(bottom, "slices were not registered")
    else:
        _draw_chain(middle, registration)
        _draw_offsets(middle, registration)
        _draw_pair_confidence(bottom, registration)
    dress(
        middle,
        title="Offset added to the motors': solved together (lines), neighbours summed (dotted)",
        ylabel="µm",
    )
    legend(middle, loc="best", ncols=3)
    dress(bottom, title="Confidence of slice pairs", xlabel="slice", ylabel="confidence")
    bottom.set_ylim(-0.03, 1.05)
    legend(bottom, loc="best", ncols=2)
    whole_ticks(bottom)
    return figure


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


def _draw_offsets(axes: Any, registration: SliceRegistration) -> None:
    ids = sorted(registration.offset_um)
    table = np.array([registration.offset_um[i] for i in ids])
    for column, label, colour, marker in (
        (1, "axis 1", BLUE, "o"),
        (2, "axis 2", ORANGE, "^"),
        (0, "z", GREEN, "s"),
    ):
        axes.plot(
            ids, table[:, column], marker=marker, markersize=4, color=colour, label=label,
            linewidth=1.2,
        )  # fmt: skip
    axes.axvline(registration.reference_id, color=SKY, linewidth=5, alpha=0.3, zorder=0)
    axes.annotate(
        "reference", (registration.reference_id, 1), xycoords=("data", "axes fraction"),
        xytext=(4, -3), textcoords="offset points", fontsize=7.5, va="top",
    )  # fmt: skip


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


def _draw_pair_confidence(axes: Any, registration: SliceRegistration) -> None:
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
            axes.scatter(*np.array(points).T, s=24, color=colour, marker=marker, label=label)


def overlap_figure(stack: Mapping[str, Any], matches: Sequence[Mapping[str, str]]) -> Figure:
    """Draw which depth of the brain every slice fills, and how much it shares with the last.

    Parameters
    ----------
    stack
        ``stack_slices_motor.json``.
    matches
        Rows of ``z_matches.csv``.
    """
    figure = new_figure(10.4, 3.6)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    axial_um, slices = stack["voxel_um"][0], stack["slices"]
    ids = np.array([s["slice_id"] for s in slices])
    begin = np.array([s["z_start_px"] + s["first_plane_px"] for s in slices])
    end = np.array([s["z_start_px"] + s["n_planes"] for s in slices])
    overlap = np.array([s["overlap_px"] for s in slices])
    scale = axial_um / 1000
    left.bar(ids, (end - begin) * scale, bottom=begin * scale, width=0.7, color=SKY, label="slice")
    left.bar(
        ids, overlap * scale, bottom=begin * scale, width=0.7, color=BLUE, hatch="///",
        edgecolor="white", linewidth=0, label="shared with the slice above",
    )  # fmt: skip
    left.invert_yaxis()
    dress(left, title="Depth that each slice fills", xlabel="slice", ylabel="z in the brain (mm)")
    legend(left, loc="lower left")
    right.plot(
        ids[1:], overlap[1:], marker="o", markersize=4, color=BLUE, label="planes shared",
        linewidth=1.2,
    )  # fmt: skip
    right.set_ylim(0, max(1.0, 1.15 * float(overlap.max(initial=0))))
    dress(right, title="Overlap with the slice above", xlabel="slice", ylabel="planes")
    correlations = [
        (int(float(row["moving_id"])), float(row["correlation"]))
        for row in matches
        if row.get("correlation") not in (None, "")
    ]
    if correlations:
        twin = right.twinx()
        twin.scatter(*np.array(correlations).T, marker="^", s=24, color=ORANGE, label="correlation")
        twin.set_ylim(0, 1.05)
        dress(twin, ylabel="correlation")
        twin.grid(False)
    for axes in (left, right):
        whole_ticks(axes)
    return figure


def _absent(axes: Any, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", fontsize=9)
