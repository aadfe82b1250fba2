"""Resampling on regular grids: anti-aliased, linear, voxel centres mapped onto voxel centres.

Each axis is one small matrix: a Gaussian that removes what the coarser grid cannot hold, then
linear interpolation. The same matrices serve tiles, previews and pyramids, on either device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from linumpy.device import Array, like, namespace

_TRUNCATE_SIGMA = 4.0


def resampled_length(n: int, source_um: float, target_um: float) -> int:
    """Return how many whole target voxels fit in `n` source voxels (at least one)."""
    return max(1, math.floor(n * source_um / target_um + 1e-6))


def axis_weights(n_in: int, n_out: int, step: float, start: int = 0) -> np.ndarray:
    """Return the matrix that resamples one axis.

    Output voxel ``o`` is centred at ``(o + 0.5)·step − 0.5`` in input voxels. When `step` is
    above 1, the input is first smoothed by a Gaussian of ``sigma = (step − 1) / 2``, cut at 4
    sigma. Beyond the ends the input is mirrored about its first and last voxel centre.

    Parameters
    ----------
    n_in, n_out
        Voxels before and after.
    step
        Target voxel size in source voxels.
    start
        Index of the first output voxel wanted.

    Returns
    -------
    float64 array of shape (n_out, n_in), rows for outputs ``start … start + n_out − 1``, each
    row summing to 1.
    """
    centre = (np.arange(start, start + n_out) + 0.5) * step - 0.5
    low = np.floor(centre).astype(int)
    fraction = centre - low
    sigma = max(0.0, (step - 1) / 2)
    radius = int(_TRUNCATE_SIGMA * sigma + 0.5)
    offsets = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 * (offsets / sigma) ** 2) if sigma > 0 else np.ones(1)
    kernel /= kernel.sum()
    weights = np.zeros((n_out, n_in))
    rows = np.repeat(np.arange(n_out), offsets.size)
    for corner, share in ((low, 1 - fraction), (low + 1, fraction)):
        # The interpolation reads the smoothed axis, itself mirrored at its ends.
        columns = _mirror(_mirror(corner, n_in)[:, None] + offsets[None, :], n_in)
        np.add.at(weights, (rows, columns.ravel()), (share[:, None] * kernel[None, :]).ravel())
    return weights


def _mirror(index: np.ndarray, n: int) -> np.ndarray:
    """Fold indices into 0 … n−1 by reflection about the first and last element."""
    if n == 1:
        return np.zeros_like(index)
    index = np.abs(index) % (2 * n - 2)
    return np.minimum(index, 2 * n - 2 - index)


def apply_axis_weights(array: Array, matrices: Sequence[np.ndarray | None]) -> Array:
    """Multiply each axis of `array` by its matrix; None leaves an axis as it is.

    Parameters
    ----------
    array
        Floating-point array of three axes, NumPy or CuPy.
    matrices
        One (n_out, n_in) matrix an axis.

    Returns
    -------
    C-contiguous array of the same kind and dtype.
    """
    xp = namespace(array)
    out = array
    for axis, matrix in enumerate(matrices):
        if matrix is None:
            continue
        weights = like(matrix.astype(array.dtype), array)
        if axis == 0:
            out = (weights @ out.reshape(out.shape[0], -1)).reshape(-1, *out.shape[1:])
        elif axis == 1:
            out = xp.matmul(weights, out)
        else:
            out = (out.reshape(-1, out.shape[2]) @ weights.T).reshape(*out.shape[:2], -1)
    return xp.ascontiguousarray(out)


def resize(array: Array, shape: Sequence[int]) -> Array:
    """Resize a 3D array to `shape`, anti-aliased and linear.

    Agrees with ``skimage.transform.resize(order=1, anti_aliasing=True)`` and its default
    borders.

    Parameters
    ----------
    array
        Floating-point array (z, axis 1, axis 2), NumPy or CuPy.
    shape
        Voxels wanted along each axis.
    """
    return apply_axis_weights(
        array,
        [
            None if n == m else axis_weights(n, m, n / m)
            for n, m in zip(array.shape, shape, strict=True)
        ],
    )


def resample_mosaic_grid(
    array: Array, source_um: Sequence[float], target_um: Sequence[float]
) -> Array:
    """Resample a tile to a voxel size, exactly: the step is the target, whatever the length.

    Parameters
    ----------
    array
        Floating-point tile (z, axis 1, axis 2), NumPy or CuPy.
    source_um, target_um
        Voxel sizes before and after, in micrometres. An axis where both agree is copied.

    Returns
    -------
    Tile of ``floor(n · source / target)`` voxels an axis, on the same device. The corner of its
    voxel 0 is the corner of the input's voxel 0; a last fraction of a voxel is cut off.
    """
    return apply_axis_weights(array, resampling_matrices(array.shape, source_um, target_um))


def resampling_matrices(
    shape: Sequence[int], source_um: Sequence[float], target_um: Sequence[float]
) -> list[np.ndarray | None]:
    """Return the matrices of `resample_mosaic_grid`, None for an axis that keeps its size."""
    return [
        None
        if source == target
        else axis_weights(n, resampled_length(n, source, target), target / source)
        for n, source, target in zip(shape, source_um, target_um, strict=True)
    ]


def resample_masked(
    array: Array, valid: Array, matrices: Sequence[np.ndarray | None]
) -> tuple[Array, Array]:
    """Resample an array with a mask, so that masked voxels lend nothing to their neighbours.

    Returns
    -------
    The resampled array, 0 where fewer than half of the weights fall on valid voxels, and the
    mask (uint8) of where that is not so.
    """
    xp = namespace(array)
    weight = valid.astype(array.dtype)
    share = apply_axis_weights(weight, matrices)
    out = apply_axis_weights(array * weight, matrices)
    keep = share >= 0.5
    out = xp.where(keep, out / xp.where(keep, share, 1), 0).astype(array.dtype)
    return out, keep.astype(xp.uint8)
