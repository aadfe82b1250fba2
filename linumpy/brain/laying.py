"""Add slices to the blocks of a brain, weighted where they overlap."""

from __future__ import annotations

import numpy as np

from linumpy.brain.align_mosaics_3d_from_shifts import Placement, interpolate, interpolate_mask
from linumpy.core.device import Array, is_device_array, to_host
from linumpy.geometry.banded import row_blocks

_TINY = np.finfo(np.float32).tiny
"""Added to sums of weights, so that none is 0. It changes no bit of a sum from 2⁻¹⁰² on; smaller
ones come of no weights but products of several that are next to nothing."""

_PIECE_NBYTES = 1 << 17
"""Of each of the five arrays that are laid at a time: with four times as much stacking takes 6 %
longer (docs/benchmarks/2026-11-28-whole-planes.md)."""


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
        The same planes of the slice, float32, finite also where they are masked, and their mask or
        None; the placement's `source`.
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
    out, mask = out[here], mask[here]
    begins = None if faces is None else to_host(faces)
    moved_quality = None
    if quality is not None and kept is not None:
        moved_quality, kept = to_host(interpolate(quality, None, placement)[0]), kept[here]
    for rows in row_blocks(planes.shape[1], planes[:, 0].nbytes, _PIECE_NBYTES):
        part = slice(None), rows
        share = weights[:, None, None]
        if begins is not None:
            share = np.take(weights, begins[rows], axis=1, mode="clip")
        used = None if good is None else good[part]
        if (share < 0).any():
            used = share >= 0 if used is None else used & (share >= 0)
        if moved_quality is None or kept is None:
            _lay_over(out[part], mask[part], planes[part], used, share)
        else:
            weight = share * moved_quality[part]
            _lay_by_quality(out[part], mask[part], kept[part], planes[part], used, weight)


def _lay_by_quality(
    out: np.ndarray,
    mask: np.ndarray,
    kept: np.ndarray,
    data: np.ndarray,
    used: np.ndarray | None,
    weight: np.ndarray,
) -> None:
    """Mix by products alone: to choose voxel by voxel takes several times as long."""
    there = mask.astype(np.float32)
    taken: np.ndarray | np.float32 = np.float32(1)
    if used is not None:
        taken = used.astype(np.float32)
        weight *= taken
    kept *= there
    kept += weight
    # A sum of 0 has a weight of 0.
    weight /= kept + _TINY
    weight *= there
    weight += (1 - there) * taken
    out *= 1 - weight
    weight *= data
    out += weight
    mask |= np.True_ if used is None else used


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
