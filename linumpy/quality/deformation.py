"""Accuracy of deformation: local error between neighbouring slices."""

from __future__ import annotations

import numpy as np

from linumpy.geometry.turned import rotation_matrix
from linumpy.quality.accuracy_metric import AccuracyMetric, make_metric, not_measured
from linumpy.quality.positions import plane_depth_um
from linumpy.quality.rotation import slice_tiles
from linumpy.quality.run import Run, SliceRegistration
from linumpy.quality.truth import TISSUE_CLASS, Truth

LOCAL_TARGET_UM = 4.0
_STEP_UM = 100.0
_MIN_POINTS = 20


def local_error(run: Run, truth: Truth) -> dict[str, AccuracyMetric]:
    """Return ``slice_local_um``: what neighbouring slices are off locally, RMS an axis.

    At points of the tissue that both show, the tissue that each slice puts there; the difference
    less its own shift and rotation, which are metrics of their own. The target holds for runs that
    undo deformation.
    """
    registration = run.slice_registration
    if registration is None:
        return {"slice_local_um": not_measured("no models/register_slices.json", "um")}
    ids = sorted(i for i in registration.offset_um if i in truth.slices and i not in run.left_out)
    ids = [i for i in ids if not truth.slices[i].bad and i in run.crops]
    errors = {
        f"z{one:02d}-z{other:02d}": error
        for one, other in zip(ids, ids[1:], strict=False)
        if (error := _pair_error(run, truth, registration, one, other)) is not None
    }
    table = np.array(list(errors.values())).reshape(-1, 2)
    metric = make_metric(
        float(np.sqrt(np.mean(table[:, 0] ** 2))) if len(table) else None,
        "um",
        len(table),
        target=LOCAL_TARGET_UM if registration.fields_um else None,
        with_rigid_part=float(np.sqrt(np.mean(table[:, 1] ** 2))) if len(table) else None,
        pairs={name: error[0] for name, error in errors.items()},
    )
    return {"slice_local_um": metric}


def _pair_error(
    run: Run, truth: Truth, registration: SliceRegistration, one: int, other: int
) -> tuple[float, float] | None:
    """Return the error of two slices without and with shift and rotation, RMS an axis, um."""
    tiles = slice_tiles(run, truth, other)
    if tiles is None or slice_tiles(run, truth, one) is None:
        return None
    half = np.asarray(truth.tile_fov_um) / 2
    low, high = tiles.found_um.min(axis=0) - half, tiles.found_um.max(axis=0) + half
    sides = [np.arange(a + _STEP_UM / 2, b, _STEP_UM) for a, b in zip(low, high, strict=True)]
    points = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 2)
    found = [_tissue_at(run, truth, registration, k, points) for k in (one, other)]
    shown = _is_tissue(truth, plane_depth_um(run, truth, other), found[1])
    if shown.sum() < _MIN_POINTS:
        return None
    error, points = (found[1] - found[0])[shown], points[shown]
    away = points - points.mean(axis=0)
    local = error - error.mean(axis=0)
    turn = np.stack([-away[:, 1], away[:, 0]], axis=1)
    local = local - turn * (local * turn).sum() / (turn**2).sum()
    return float(np.sqrt(np.mean(local**2))), float(np.sqrt(np.mean(error**2)))


def _tissue_at(
    run: Run, truth: Truth, registration: SliceRegistration, slice_id: int, common_um: np.ndarray
) -> np.ndarray:
    """Return which tissue of the block a slice shows at common positions (n, 2), um."""
    tiles = slice_tiles(run, truth, slice_id)
    assert tiles is not None
    field = registration.fields_um.get(slice_id)
    placed = common_um if field is None else common_um + field.at(common_um)
    pivot = np.asarray(registration.pivot_um)
    back = rotation_matrix(-registration.rotation_deg.get(slice_id, 0.0))
    own = (placed - pivot - registration.offset_um[slice_id][1:]) @ back.T + pivot
    own = own - np.asarray(registration.moved_um.get(slice_id, (0.0, 0.0)))
    known = truth.slices[slice_id]
    return known.tissue_um(known.to_block_um(own + tiles.shift_um))


def _is_tissue(truth: Truth, depth_um: float, points_um: np.ndarray) -> np.ndarray:
    """Return at which block positions (n, 2) there is tissue at a depth."""
    from linumpy.io.omezarr import open_image

    image = open_image(truth.classes_path)
    voxel = np.asarray(image.voxel_um, float)
    corner = np.asarray(image.translation_um, float) - voxel / 2
    plane = int(np.clip((depth_um - corner[0]) / voxel[0], 0, image.array.shape[0] - 1))
    labels = np.asarray(image.array[plane])
    index = np.floor((points_um - corner[1:]) / voxel[1:]).astype(int)
    inside = ((index >= 0) & (index < labels.shape)).all(axis=1)
    index = np.clip(index, 0, np.subtract(labels.shape, 1))
    return np.asarray(inside & (labels[index[:, 0], index[:, 1]] >= TISSUE_CLASS))
