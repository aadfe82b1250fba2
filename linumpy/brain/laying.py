"""Add slices to the blocks of a brain, weighted where they overlap."""

from __future__ import annotations

import numpy as np

from linumpy.brain.align_mosaics_3d_from_shifts import Placement, interpolate, interpolate_mask
from linumpy.core.device import Array, is_device_array, to_host


def add_faces(faces: Array, seen: int, valid: Array, placement: Placement) -> None:
    """Find at which plane of a slice each column begins, in place.

    Parameters
    ----------
    faces
        Shape of the placement's `inner`, int16: the column's first valid plane; `seen` where
        there was none yet.
    seen
        Planes that were tried before.
    valid
        Mask of the planes that follow; the placement's `source`.
    """
    if is_device_array(faces):
        from linumpy.brain import kernels

        kernels.add_faces(faces, seen, valid, placement)
        return
    for n in range(len(valid)):
        waiting = faces == seen + n
        if not waiting.any():
            break
        waiting &= ~interpolate_mask(valid[n : n + 1], placement)[0]
        faces += waiting


def lay_slice(
    out: Array,
    mask: Array,
    data: Array,
    valid: Array | None,
    placement: Placement,
    weights: np.ndarray,
    faces: Array | None = None,
    quality: Array | None = None,
    kept: Array | None = None,
) -> None:
    """Lay planes of a slice over what a block of the brain holds, in place.

    Without `quality`, the weights are the slice's share. With it, a voxel is the mean of all slices
    laid there, weighted by taper times quality, whatever their order.

    Parameters
    ----------
    out, mask
        The block's planes (z, axis 1, axis 2), float32, 0 where there is no data yet, and where
        there are data (uint8, 0 or 1).
    data, valid
        The same planes of the slice, float32, and their mask or None; the placement's `source`.
    placement
        Where the slice lies in the block.
    weights
        A plane: weight of the slice where the block holds data already. With `faces`, shape
        (planes, n): that of columns by their faces, below 0 where the plane is not used.
    faces
        From `add_faces`: at which plane of the slice each column begins.
    quality
        Weights of the slice's voxels, like `data`; `weights` are then its tapers.
    kept
        Sum of the weights that the block holds already, like `out`; goes with `quality`.
    """
    if is_device_array(out):
        from linumpy.brain import kernels

        kernels.lay_slice(out, mask, data, valid, placement, weights, faces, quality, kept)
        return
    moved, known = interpolate(data, valid, placement)
    planes, good = to_host(moved), None if known is None else to_host(known)
    here = (slice(None), *placement.inner)
    if quality is not None and kept is not None:
        moved_quality = to_host(interpolate(quality, None, placement)[0])
        taper = weights[:, None, None]
        if faces is not None:
            taper = np.take(weights, to_host(faces), axis=1, mode="clip")
        used = np.broadcast_to(taper >= 0, planes.shape)
        if good is not None:
            used = used & good
        _lay_by_quality(out[here], mask[here], kept[here], planes, used, taper * moved_quality)
        return
    if faces is None:
        _lay_over(out[here], mask[here], planes, good, weights[:, None, None])
        return
    share = np.take(weights, to_host(faces), axis=1, mode="clip")
    used = share >= 0
    _lay_over(out[here], mask[here], planes, used if good is None else good & used, share)


def _lay_by_quality(
    out: np.ndarray,
    mask: np.ndarray,
    kept: np.ndarray,
    data: np.ndarray,
    used: np.ndarray,
    weight: np.ndarray,
) -> None:
    total = weight + np.where(mask > 0, kept, np.float32(0))
    share = np.where(total > 0, weight / np.where(total > 0, total, np.float32(1)), np.float32(0))
    share = np.where(mask > 0, share, np.float32(1))
    mixed = (1 - share) * out + share * data
    np.copyto(out, mixed, where=used)
    np.copyto(kept, total, where=used)
    mask |= used


def _lay_over(
    out: np.ndarray,
    mask: np.ndarray,
    data: np.ndarray,
    good: np.ndarray | None,
    share: np.ndarray,
) -> None:
    if good is None and ((share == 1).all() or not mask.any()):
        out[...] = data
    elif good is None and mask.all():
        out *= 1 - share
        out += share * data
    else:
        share = np.where(mask > 0, share, np.float32(1))
        mixed = (1 - share) * out + share * data
        np.copyto(out, mixed, where=True if good is None else good)
    mask |= True if good is None else good
