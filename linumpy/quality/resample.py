"""Average onto another grid by exact overlap: the resampling of all comparisons."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def overlap_weights(
    n_in: int, in_um: float, in_corner_um: float, n_out: int, out_um: float, out_corner_um: float
) -> np.ndarray:
    """Return how much of each output voxel each input voxel covers.

    Parameters
    ----------
    n_in, n_out
        Voxels along the axis.
    in_um, out_um
        Voxel sizes.
    in_corner_um, out_corner_um
        Positions of the low edge of voxel 0.

    Returns
    -------
    float64 array (n_out, n_in); a row sums to 1 where the input covers the output voxel whole,
    and to 0 where it does not reach.
    """
    in_low = in_corner_um + in_um * np.arange(n_in)
    out_low = out_corner_um + out_um * np.arange(n_out)
    low = np.maximum(in_low[None, :], out_low[:, None])
    high = np.minimum(in_low[None, :] + in_um, out_low[:, None] + out_um)
    return np.clip(high - low, 0, None) / out_um


def average_plane(
    plane: np.ndarray,
    in_um: Sequence[float],
    shape: tuple[int, int],
    out_um: Sequence[float],
) -> np.ndarray:
    """Average a 2D map of one grid over the pixels of another with the same corner.

    Output pixels that reach beyond the input are averages of what there is.
    """
    rows, columns = (
        overlap_weights(plane.shape[axis], in_um[axis], 0.0, shape[axis], out_um[axis], 0.0)
        for axis in range(2)
    )
    covered = rows.sum(axis=1)[:, None] * columns.sum(axis=1)[None, :]
    return (rows @ np.asarray(plane, dtype=float) @ columns.T) / covered


def average_volume(
    volume: np.ndarray, valid: np.ndarray | None, weights: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Average a volume onto another grid.

    Parameters
    ----------
    volume
        Axes (z, 1, 2).
    valid
        Mask of the same shape, or None when all voxels count.
    weights
        One matrix of `overlap_weights` an axis.

    Returns
    -------
    The averages over valid voxels (float32, 0 where there are none) and the share of each
    output voxel that valid input covers (float32, 0 to 1).
    """
    volume = np.asarray(volume, dtype=np.float32)
    if valid is None:
        per_axis = [w.sum(axis=1).astype(np.float32) for w in weights]
        share = per_axis[0][:, None, None] * per_axis[1][:, None] * per_axis[2]
    else:
        mask = (np.asarray(valid) > 0).astype(np.float32)
        volume = volume * mask
        share = _contract(mask, weights)
    total = _contract(volume, weights)
    return np.divide(total, share, out=np.zeros_like(total), where=share > 1e-6), share


def _contract(volume: np.ndarray, weights: Sequence[np.ndarray]) -> np.ndarray:
    for axis, matrix in enumerate(weights):
        moved = np.tensordot(matrix.astype(np.float32), volume, axes=(1, axis))
        volume = np.moveaxis(moved, 0, axis)
    return np.ascontiguousarray(volume)
