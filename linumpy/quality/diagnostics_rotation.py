"""Diagnostics of rotation and drift through a brain, and of the stage's squareness.

Both are read from the registration; no image is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from linumpy.core.errors import InputError
from linumpy.core.robust import MEDIAN_TO_SIGMA
from linumpy.io.models import read_json
from linumpy.metrics.pooled import median_slopes
from linumpy.quality.run import TileRegistration

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class RegistrationDrift:
    """Rotation and drift of registered slices.

    Attributes
    ----------
    rotation_threshold_deg
        Rotation, whatever its sign, from which a slice is named.
    slices
        ``slice_id, rotation_deg, offset_um (z, axis 1, axis 2)``.
    rotation_deg_per_slice, offset_um_per_slice
        Drift: median slope over all pairs of slices, which single odd slices do not bend.
    rotation_rms_deg, offset_rms_um
        What is left of the rotations, and of the offsets along z, axis 1 and axis 2, after it.
    turned_slices
        Slices beyond the threshold.
    rejected_pairs
        ``fixed_id, moving_id`` of pairs that registration did not accept.
    """

    rotation_threshold_deg: float
    slices: list[dict[str, Any]]
    rotation_deg_per_slice: float
    offset_um_per_slice: tuple[float, float, float]
    rotation_rms_deg: float
    offset_rms_um: tuple[float, float, float]
    turned_slices: list[int]
    rejected_pairs: list[tuple[int, int]]


def analyze_registration_transforms(
    registration: Mapping[str, Any], rotation_threshold_deg: float = 2.0
) -> RegistrationDrift:
    """Sum up the transforms of a registration.

    Parameters
    ----------
    registration
        Content of ``register_slices.json``.
    rotation_threshold_deg
        Rotation from which a slice is named.

    Raises
    ------
    InputError
        When there is no slice.
    """
    slices = sorted(registration["slices"], key=lambda s: int(s["slice_id"]))
    if not slices:
        raise InputError("the registration holds no slice, expected one at least")
    ids = np.array([int(s["slice_id"]) for s in slices])
    values = np.array([[s.get("rotation_deg") or 0.0, *s["offset_um"]] for s in slices], float)
    drift = median_slopes(ids, values)
    rest = values - ids[:, None] * drift
    rest -= np.median(rest, axis=0)
    rms = np.sqrt(np.mean(rest**2, axis=0))
    turned = ids[np.abs(values[:, 0]) >= rotation_threshold_deg]
    return RegistrationDrift(
        rotation_threshold_deg=rotation_threshold_deg,
        slices=[
            {"slice_id": int(k), "rotation_deg": float(v[0]), "offset_um": v[1:].tolist()}
            for k, v in zip(ids, values, strict=True)
        ],
        rotation_deg_per_slice=float(drift[0]),
        offset_um_per_slice=(float(drift[1]), float(drift[2]), float(drift[3])),
        rotation_rms_deg=float(rms[0]),
        offset_rms_um=(float(rms[1]), float(rms[2]), float(rms[3])),
        turned_slices=[int(k) for k in turned],
        rejected_pairs=[
            (int(p["fixed_id"]), int(p["moving_id"]))
            for p in registration.get("pairs", ())
            if not p.get("accepted", True)
        ],
    )


def read_registration(path: Path) -> dict[str, Any]:
    """Read ``register_slices.json``.

    Raises
    ------
    InputError
        When it is no registration of slices.
    """
    record = read_json(path)
    entries = record.get("slices")
    if not isinstance(entries, list) or not all(
        isinstance(s, dict) and {"slice_id", "offset_um"} <= set(s) for s in entries
    ):
        raise InputError(f"{path}: expected slices with slice_id and offset_um, of register_slices")
    return record


@dataclass(frozen=True)
class StageGeometry:
    """How the stage's axes lie in the images.

    Attributes
    ----------
    slices
        ``slice_id, rotation_deg, shear_deg, scale (axis 1, axis 2), n_pairs`` (accepted ones).
    rotation_deg, shear_deg, scale
        Median over the slices. Positive from axis 1 towards axis 2; the shear is what
        the axes' angle lacks of 90°; a scale above 1 means that the stage moves further than it
        says.
    rotation_spread_deg, shear_spread_deg
        Robust spread over the slices.
    """

    slices: list[dict[str, Any]]
    rotation_deg: float
    shear_deg: float
    scale: tuple[float, float]
    rotation_spread_deg: float
    shear_spread_deg: float


def stage_angles(affine: Sequence[Sequence[float]]) -> tuple[float, float, float, float]:
    """Split the stage's linear correction (2 × 2) into rotation, shear and scales.

    Returns
    -------
    Rotation and shear in degrees, scale along axis 1 and axis 2.
    """
    (a, b), (c, d) = np.asarray(affine, float)
    first, second = np.degrees(np.arctan2(c, a)), np.degrees(np.arctan2(-b, d))
    return (
        float((first + second) / 2),
        float(first - second),
        float(np.hypot(a, c)),
        float(np.hypot(b, d)),
    )


def analyze_acquisition_rotation(
    registrations: Mapping[int, TileRegistration],
) -> StageGeometry:
    """Sum up the stage's linear corrections of all slices.

    Parameters
    ----------
    registrations
        ``register_tiles.json`` by slice id.

    Raises
    ------
    InputError
        When no slice has one.
    """
    records, angles = [], []
    for slice_id, registration in sorted(registrations.items()):
        if registration.stage_affine is None:
            continue
        rotation, shear, *scale = stage_angles(registration.stage_affine)
        angles.append((rotation, shear, *scale))
        records.append(
            {
                "slice_id": slice_id,
                "rotation_deg": rotation,
                "shear_deg": shear,
                "scale": scale,
                "n_pairs": sum(pair.accepted for pair in registration.pairs),
            }
        )
    if not records:
        raise InputError("no register_tiles.json with a stage_affine; register tiles first")
    table = np.array(angles)
    middle = np.median(table, axis=0)
    spread = MEDIAN_TO_SIGMA * np.median(np.abs(table - middle), axis=0)
    return StageGeometry(
        slices=records,
        rotation_deg=float(middle[0]),
        shear_deg=float(middle[1]),
        scale=(float(middle[2]), float(middle[3])),
        rotation_spread_deg=float(spread[0]),
        shear_spread_deg=float(spread[1]),
    )


def drift_figure(drift: RegistrationDrift) -> Figure:
    """Draw rotation and offset of every slice, and the drift in them."""
    from linumpy.core.style import (
        BLUE,
        GREEN,
        MUTED,
        ORANGE,
        VERMILION,
        dress,
        legend,
        new_figure,
        whole_ticks,
    )

    figure = new_figure(9.0, 5.6)
    top, bottom = figure.subplots(2, 1, sharex=True)
    ids = np.array([s["slice_id"] for s in drift.slices])
    turns = np.array([s["rotation_deg"] for s in drift.slices])
    offsets = np.array([s["offset_um"] for s in drift.slices])
    limit = drift.rotation_threshold_deg
    top.plot(ids, turns, marker="o", markersize=4, color=BLUE, label="slice", linewidth=1.2)
    _draw_trend(top, ids, turns, drift.rotation_deg_per_slice, MUTED)
    if np.abs(turns).max() > 0.5 * limit:
        for sign in (-1, 1):
            top.axhline(sign * limit, color=VERMILION, linewidth=0.8, linestyle=":")
    dress(
        top,
        title=f"Rotation of slices: drift {drift.rotation_deg_per_slice:+.3f}° a slice, "
        f"RMS {drift.rotation_rms_deg:.2f}° about it",
        ylabel="degrees",
    )
    legend(top, loc="best", ncols=2)
    for column, name, colour, marker in (
        (1, "axis 1", BLUE, "o"),
        (2, "axis 2", ORANGE, "^"),
        (0, "z", GREEN, "s"),
    ):
        bottom.plot(
            ids, offsets[:, column], marker=marker, markersize=4, color=colour, label=name,
            linewidth=1.2,
        )  # fmt: skip
    slopes = ", ".join(f"{v:+.1f}" for v in drift.offset_um_per_slice)
    dress(
        bottom,
        title=f"Offset from the motors: drift (z, axis 1, axis 2) {slopes} µm a slice",
        xlabel="slice",
        ylabel="µm",
    )
    legend(bottom, loc="best", ncols=3)
    whole_ticks(bottom)
    return figure


def _draw_trend(axes: Any, ids: np.ndarray, values: np.ndarray, slope: float, colour: str) -> None:
    level = np.median(values - slope * ids)
    ends = np.array([ids[0], ids[-1]])
    axes.plot(ends, level + slope * ends, color=colour, linestyle="--", linewidth=1, label="drift")


def stage_figure(stage: StageGeometry) -> Figure:
    """Draw rotation and shear of the stage, and its scales, over the slices."""
    from linumpy.core.style import BLUE, GREEN, ORANGE, dress, legend, new_figure, whole_ticks

    figure = new_figure(9.0, 5.0)
    top, bottom = figure.subplots(2, 1, sharex=True)
    ids = [s["slice_id"] for s in stage.slices]
    for name, colour, marker in (("rotation_deg", BLUE, "o"), ("shear_deg", ORANGE, "^")):
        top.plot(
            ids, [s[name] for s in stage.slices], marker=marker, markersize=4, color=colour,
            label=name.removesuffix("_deg"), linewidth=1.2,
        )  # fmt: skip
    dress(
        top,
        title=f"Stage against images: rotated by {stage.rotation_deg:+.3f}°, axes "
        f"{stage.shear_deg:+.3f}° off square",
        ylabel="degrees",
    )
    legend(top, loc="best", ncols=2)
    for axis, colour, marker in ((0, BLUE, "o"), (1, GREEN, "s")):
        bottom.plot(
            ids, [100 * (s["scale"][axis] - 1) for s in stage.slices], marker=marker, markersize=4,
            color=colour, label=f"axis {axis + 1}", linewidth=1.2,
        )  # fmt: skip
    dress(bottom, title="How much further than it says it moves", xlabel="slice", ylabel="%")
    legend(bottom, loc="best", ncols=2)
    whole_ticks(bottom)
    return figure
