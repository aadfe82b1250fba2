"""Accuracy of tile and slice positions.

A run determines positions up to what no data constrain: one translation a connected
component of tiles, one translation and one rotation for the whole brain. Those are removed before
errors are counted. Tiles are compared in the frame of their slice, which may be rotated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from linumpy.quality.accuracy_metric import AccuracyMetric, make_metric, not_measured
from linumpy.quality.rotation import rotation_errors, slice_xy_errors
from linumpy.quality.run import PRIOR_ONLY, Run, TileRegistration
from linumpy.quality.truth import Truth, TruthSlice

TILE_TARGET_PX = 0.25
SLICE_XY_TARGET_PX = 0.5
SLICE_Z_TARGET_VOXEL = 1.0
SLICE_ROTATION_TARGET_DEG = 0.2
SLICE_DRIFT_TARGET_PX = 2.0


@dataclass(frozen=True)
class TileErrors:
    """Estimated minus true tile corners in a slice's frame, as they are: no translation removed.

    Attributes
    ----------
    error_um
        Shape (n, 2): axis 1 and axis 2.
    component
        Shape (n,): connected component of accepted pairs, -1 for tiles held by the prior alone.
    """

    index: tuple[tuple[int, int], ...]
    error_um: np.ndarray
    component: np.ndarray

    @property
    def joined(self) -> np.ndarray:
        """Which tiles belong to a component."""
        return self.component != PRIOR_ONLY

    def mean_um(self) -> np.ndarray:
        """Return the slice's own translation: the mean error of its joined tiles.

        Tiles held by the prior alone carry the stage's error, which registration of slices
        neither sees nor could mend; they count only when there are no others.
        """
        chosen = self.joined if self.joined.any() else np.ones(len(self.component), dtype=bool)
        return self.error_um[chosen].mean(axis=0)


def tile_errors(registration: TileRegistration, truth: TruthSlice) -> TileErrors:
    """Compare the tiles that a slice has in both the run and the truth."""
    known = [tile for tile in registration.tiles if tile.index in truth.corner_um]
    estimated = np.array([tile.corner_um for tile in known], dtype=float).reshape(-1, 2)
    true = np.array([truth.frame_corner_um(t.index) for t in known], dtype=float).reshape(-1, 2)
    return TileErrors(
        index=tuple(tile.index for tile in known),
        error_um=estimated - true,
        component=np.array([tile.component for tile in known], dtype=int),
    )


def remove_group_means(error: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Subtract from every row the mean over the rows of its group.

    Parameters
    ----------
    error
        Shape (n, k).
    group
        Shape (n,), any labels.
    """
    out = np.array(error, dtype=float)
    for label in np.unique(group):
        members = group == label
        out[members] -= out[members].mean(axis=0)
    return out


def tile_positions(run: Run, truth: Truth) -> dict[str, AccuracyMetric]:
    """Return ``tile_positions_px`` and, for tiles that no pair holds, ``prior_only_tiles_px``.

    Both are RMS errors an axis, the larger of the two axes. ``stated_px`` is what the run says that
    they stay below. ``fitted_px`` and ``stretch_percent`` are the parts that overlaps measure and
    do not measure, with their own bounds. Prior-only tiles are taken relative to the translation of
    the joined tiles of their slice.
    """
    joined, fitted, alone, per_slice = [], [], [], {}
    bounds: list[dict[str, float]] = []
    for slice_id, registration in run.tile_registrations.items():
        if slice_id not in truth.slices or slice_id in run.left_out:
            continue
        errors = tile_errors(registration, truth.slices[slice_id])
        if not len(errors.component):
            continue
        voxel = np.asarray(registration.voxel_um[1:])
        mask = errors.joined
        residual = remove_group_means(errors.error_um[mask], errors.component[mask]) / voxel
        joined.append(residual)
        alone.append((errors.error_um[~mask] - errors.mean_um()) / voxel)
        per_slice[slice_id] = _rms_an_axis(residual)
        corners = registration.corners_um()
        corner = np.array([corners[index] for index in errors.index])[mask]
        along = remove_group_means(corner, errors.component[mask])[:, 0] / voxel[0]
        stretch = float(along @ residual[:, 0]) / max(float(along @ along), 1.0)
        fitted.append(residual - stretch * np.column_stack([along, np.zeros(len(along))]))
        if registration.position_bound_um is not None and mask.any():
            own_px = registration.position_bound_um / voxel.min()
            share = registration.stretch_bound or 0.0
            bounds.append(
                {
                    "stated_px": float(np.hypot(own_px, share * along.std())),
                    "fitted_stated_px": float(own_px),
                    "stretch_percent": 100 * abs(stretch),
                    "stretch_stated_percent": 100 * share,
                    "fitted_of_stated": (_rms_an_axis(fitted[-1]) or 0.0) / float(own_px),
                    **({"stretch_of_stated": abs(stretch) / share} if share else {}),
                }
            )
    if not per_slice:
        reason = "no register_tiles.json of a slice in the truth"
        return {
            "tile_positions_px": not_measured(reason, "px", target=TILE_TARGET_PX),
            "prior_only_tiles_px": not_measured(reason, "px"),
        }
    return {
        "tile_positions_px": _rms_metric(
            np.concatenate(joined),
            TILE_TARGET_PX,
            per_slice,
            fitted_px=_rms_an_axis(np.concatenate(fitted)),
            # Of each the worst slice's, so that ratios are those of one slice.
            **{
                name: max(each[name] for each in bounds if name in each)
                for name in dict.fromkeys(name for each in bounds for name in each)
            },
        ),
        "prior_only_tiles_px": _rms_metric(np.concatenate(alone), None)
        if any(len(each) for each in alone)
        else not_measured("every tile is held by its neighbours", "px"),
    }


def slice_positions(run: Run, truth: Truth) -> dict[str, AccuracyMetric]:
    """Return ``slice_xy_px``, ``slice_z_voxel``, ``slice_rotation_deg`` and ``slice_drift_px``.

    The first two are the worst slice's, relative to the reference. The rotation is an RMS over
    slices, relative to the reference; drift the RMS of positions over slices after removing
    their mean. Slices that the run left out of the brain do not count.
    """
    registration = run.slice_registration
    if registration is None:
        reason = "no models/register_slices.json"
        return _unmeasured_slices(reason)
    reference = registration.reference_id
    counted = {reference, *registration.offset_um} - (run.left_out - {reference})
    xy = {i: e for i, e in slice_xy_errors(run, truth).items() if i in counted}
    z = {i: e for i, e in slice_z_errors(run, truth).items() if i in counted}
    turns = {i: e for i, e in rotation_errors(run, truth).items() if i in counted}
    if reference not in xy:
        return _unmeasured_slices(f"nothing known of the reference slice z{reference:02d}")
    voxel = np.asarray(run.tile_registrations[reference].voxel_um)
    relative_xy = {i: e / voxel[1:] for i, e in xy.items() if i != reference}
    metrics = {
        "slice_xy_px": _worst_metric(
            relative_xy,
            "px",
            SLICE_XY_TARGET_PX,
            sigma_px=(registration.shift_sigma_um or 0.0) / float(voxel[1:].min()),
        ),
        "slice_rotation_deg": _rotation_metric(turns, registration.turn_sigma_deg),
        "slice_drift_px": _drift_metric({i: e / voxel[1:] for i, e in xy.items()}),
    }
    if reference in z:
        relative_z, stacked = (
            {i: np.array([(e - each[reference]) / voxel[0]]) for i, e in each.items()}
            if reference in each
            else {}
            for each in (z, stacked_z_errors(run, truth))
        )
        relative_z.pop(reference)
        metrics["slice_z_voxel"] = _worst_metric(
            relative_z,
            "voxel",
            SLICE_Z_TARGET_VOXEL,
            largest_as_stacked=max((float(abs(e[0])) for e in stacked.values()), default=None),
        )
    else:
        metrics["slice_z_voxel"] = not_measured(
            f"no crop model of the reference slice z{reference:02d}",
            "voxel",
            target=SLICE_Z_TARGET_VOXEL,
        )
    return metrics


def slice_z_errors(run: Run, truth: Truth) -> dict[int, float]:
    """Return, by slice id, brain z minus block depth of what the slice shows, um.

    Compared is the top of the slice's first kept plane: where registration puts it in the brain,
    and how deep in the block it really lies. An interface found too deep is thus no error by
    itself (the interface has its own metric), but tissue at a wrong depth is.
    """
    return {
        slice_id: plane_z_um(run, truth, slice_id) - plane_depth_um(run, truth, slice_id)
        for slice_id in _placed_slices(run, truth)
    }


def stacked_z_errors(run: Run, truth: Truth) -> dict[int, float]:
    """Return what `slice_z_errors` does for the whole planes that slices were stacked at, um."""
    if run.stack is None:
        return {}
    axial_um, top_um = run.stack["voxel_um"][0], run.stack["origin_um"][0]
    known = _placed_slices(run, truth)
    return {
        entry["slice_id"]: top_um
        + entry["z_start_px"] * axial_um
        - plane_depth_um(run, truth, entry["slice_id"])
        for entry in run.stack["slices"]
        if entry["slice_id"] in known
    }


def plane_z_um(run: Run, truth: Truth, slice_id: int) -> float:
    """Return where registration puts the top of a slice's first kept plane in the brain, um.

    A slice's face lies at its number of steps times the interval plus its offset; the first
    plane begins a fraction of a voxel from the face that the crop found.
    """
    registration = run.slice_registration
    assert registration is not None
    steps = slice_id - registration.first_id
    face_um = steps * registration.slice_interval_um + registration.offset_um[slice_id][0]
    return face_um + face_to_plane_um(run, slice_id)


def face_to_plane_um(run: Run, slice_id: int) -> float:
    """Return how far below the interface that the crop found its first plane begins, um."""
    crop = run.crops[slice_id]
    axial_um = run.tile_registrations[slice_id].voxel_um[0]
    return float(crop["first_plane"] * axial_um - crop["interface_um"])


def plane_depth_um(run: Run, truth: Truth, slice_id: int) -> float:
    """Return the block depth of the top of a slice's first kept plane, um."""
    axial_um = run.tile_registrations[slice_id].voxel_um[0]
    depth_um = run.crops[slice_id]["first_plane"] * axial_um
    return float(truth.slices[slice_id].face_um + depth_um - truth.interface_um(slice_id, 0.0))


def _placed_slices(run: Run, truth: Truth) -> set[int]:
    if run.slice_registration is None:
        return set()
    known = set(run.slice_registration.offset_um) & set(truth.slices)
    return known & set(run.crops) & set(run.tile_registrations)


def _rms_an_axis(residual: np.ndarray) -> float | None:
    if len(residual) == 0:
        return None
    return float(np.sqrt(np.mean(residual**2, axis=0)).max())


def _rms_metric(
    residual: np.ndarray,
    target: float | None,
    per_slice: Mapping[int, float | None] | None = None,
    **more: Any,
) -> AccuracyMetric:
    if len(residual) == 0:
        return make_metric(None, "px", 0, target=target)
    details = {
        "rms_axis_1": np.sqrt(np.mean(residual[:, 0] ** 2)),
        "rms_axis_2": np.sqrt(np.mean(residual[:, 1] ** 2)),
        "largest": np.abs(residual).max(),
    }
    if per_slice is not None:
        details["slices"] = dict(per_slice)
    details |= more
    return make_metric(_rms_an_axis(residual), "px", len(residual), target=target, **details)


def _worst_metric(
    errors: Mapping[int, np.ndarray], unit: str, target: float, **details: Any
) -> AccuracyMetric:
    if not errors:
        return make_metric(None, unit, 0, target=target, reason="only the reference slice is known")
    table = np.stack(list(errors.values()))
    return make_metric(
        float(np.abs(table).max()),
        unit,
        len(table),
        target=target,
        rms=float(np.sqrt(np.mean(table**2, axis=0)).max()),
        slices=dict(errors),
        **details,
    )


def _rotation_metric(errors: Mapping[int, float], sigma_deg: float | None) -> AccuracyMetric:
    values = np.array(list(errors.values()))
    return make_metric(
        float(np.sqrt(np.mean(values**2))) if len(values) else None,
        "deg",
        len(values),
        target=SLICE_ROTATION_TARGET_DEG,
        sigma_deg=sigma_deg,
        slices=dict(errors),
    )


def _drift_metric(errors: Mapping[int, np.ndarray]) -> AccuracyMetric:
    table = np.stack(list(errors.values()))
    return make_metric(
        _rms_an_axis(table - table.mean(axis=0)) if len(table) > 1 else None,
        "px",
        len(table),
        target=SLICE_DRIFT_TARGET_PX,
    )


def _unmeasured_slices(reason: str) -> dict[str, AccuracyMetric]:
    return {
        "slice_xy_px": not_measured(reason, "px", target=SLICE_XY_TARGET_PX),
        "slice_z_voxel": not_measured(reason, "voxel", target=SLICE_Z_TARGET_VOXEL),
        "slice_rotation_deg": not_measured(reason, "deg", target=SLICE_ROTATION_TARGET_DEG),
        "slice_drift_px": not_measured(reason, "px", target=SLICE_DRIFT_TARGET_PX),
    }
