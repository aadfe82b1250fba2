"""Slices as planar maps from stage positions to common positions, um.

A slice's point p lies at R(rotation)·(p − pivot) + pivot + offset; the pivot is one point for the
whole brain. Maps are 3 × 3 matrices that act on (axis 1, axis 2, 1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from linumpy.brain.slice_registration import SliceRegistration
from linumpy.core.errors import InputError
from linumpy.geometry.shift_field import ShiftField
from linumpy.geometry.zmorph import planar, turn_about

_NODE_PX = 16


def stage_to_common(model: SliceRegistration, slice_id: int) -> np.ndarray:
    """Return where a registration puts a slice's points.

    Raises
    ------
    InputError
        When the registration lacks the slice.
    """
    entry = entry_of(model, slice_id)
    turned = turn_about(entry.get("rotation_deg", 0.0), pivot_of(model))
    return planar(np.eye(2), entry["offset_um"][1:]) @ turned


def field_over(
    model: SliceRegistration,
    slice_id: int,
    corner_um: Sequence[float] | np.ndarray,
    shape_px: Sequence[int],
    displacement: Callable[[np.ndarray], np.ndarray],
) -> ShiftField:
    """Return a displacement of common positions over the pixels of a slice, px.

    Parameters
    ----------
    corner_um
        Low corner of the slice's pixel (0, 0), stage um.
    shape_px
        Lateral pixels of the slice.
    displacement
        Gives the displacement at common positions, both (n, 2), um.
    """
    place, lateral_um = stage_to_common(model, slice_id), np.asarray(model.voxel_um[1:])
    rows, columns = (_NODE_PX * np.arange(-(-n // _NODE_PX) + 1.0) for n in shape_px)
    nodes = np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1).reshape(-1, 2)
    common = (corner_um + (nodes + 0.5) * lateral_um) @ place[:2, :2].T + place[:2, 2]
    moved = displacement(common) @ np.linalg.inv(place[:2, :2]).T / lateral_um
    step = float(_NODE_PX)
    return ShiftField((0.0, 0.0), (step, step), moved.T.reshape(2, len(rows), len(columns)))


def entry_of(model: SliceRegistration, slice_id: int) -> Mapping[str, Any]:
    """Return what a registration says of a slice.

    Raises
    ------
    InputError
        When it does not have it.
    """
    for entry in model.slices:
        if entry["slice_id"] == slice_id:
            return entry
    ids = sorted(e["slice_id"] for e in model.slices)
    raise InputError(f"the registration lacks slice z{slice_id:02d}; it has {ids}")


def pivot_of(model: SliceRegistration) -> np.ndarray:
    """Return the point about which slices are rotated, um."""
    return np.asarray(model.pivot_um, float)


def pose_of(matrix: np.ndarray, pivot: np.ndarray) -> tuple[float, np.ndarray]:
    """Return a rigid map as its rotation (degrees) and the offset of the pivot, um."""
    rotation = float(np.degrees(np.arctan2(matrix[1, 0], matrix[0, 0])))
    return rotation, matrix[:2, :2] @ pivot + matrix[:2, 2] - pivot


def map_of(rotation_deg: float, offset_um: np.ndarray, pivot: np.ndarray) -> np.ndarray:
    """Return the rigid map of a rotation about the pivot and an offset; undoes `pose_of`."""
    return planar(np.eye(2), offset_um) @ turn_about(rotation_deg, pivot)
