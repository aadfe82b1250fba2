"""Smooth deformation of slices: the knife compresses tissue, which relaxes after the cut."""

from __future__ import annotations

import numpy as np

from linumpy.phantom.cutting import FACE_STEP_UM, face_grid
from linumpy.phantom.lattice import Stream, make_key, smooth_field
from linumpy.phantom.params import PhantomParams

_RADIUS = 2.0


def deformation_um(params: PhantomParams, seed: int, slice_id: int) -> np.ndarray | None:
    """Return how far the tissue seen at each point of a slice lies from there in the block.

    Two independent smooth fields, one an axis. Over the mosaic they hold no shift and no rotation:
    `offset_um` and `rotation_deg` remain the rigid part of the slice's place.

    Returns
    -------
    numpy.ndarray
        float64 (2, n1, n2) on `face_grid`, µm; None when slices are not deformed.
    """
    if not params.deformation_rms_um:
        return None
    grid = face_grid(params)
    step = params.deformation_scale_um / _RADIUS
    first, second = (
        origin + FACE_STEP_UM * np.arange(n)
        for origin, n in zip(grid.origin_um, grid.shape, strict=True)
    )
    field = np.stack(
        [
            smooth_field(
                make_key(seed, Stream.DEFORMATION, slice_id, axis),
                (second / step, first / step, np.zeros(1)),
                _RADIUS,
            )[..., 0].T
            for axis in range(2)
        ]
    ).astype(np.float64)
    # Points that tiles can show, about the pivot of rotations.
    middle = np.divide(params.mosaic_um, 2)
    at1, at2 = first[:, None] - middle[0], second[None, :] - middle[1]
    seen = (np.abs(at1) <= middle[0]) & (np.abs(at2) <= middle[1])
    turn = np.stack(np.broadcast_arrays(-at2, at1))
    # The shift first: the rotation is about the pivot, and `turn` has mean 0 over the mosaic.
    field -= field[:, seen].mean(axis=1)[:, None, None]
    direction = turn - turn[:, seen].mean(axis=1)[:, None, None]
    share = (field[:, seen] * direction[:, seen]).sum() / np.square(direction[:, seen]).sum()
    field -= share * direction
    # The stated strength is that of each slice, not of their ensemble: small mosaics hold
    # but a few grains of the field.
    return np.asarray(field * (params.deformation_rms_um / np.sqrt(np.mean(field[:, seen] ** 2))))
