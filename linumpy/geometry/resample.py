"""Resample on regular grids: anti-aliased, linear, voxel centres mapped onto voxel centres.

Each axis is one small matrix: a Gaussian that removes what the coarser grid cannot hold, then
linear interpolation. The same matrices serve tiles, previews and pyramids, on either device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from linumpy.core.device import Array, is_device_array, like, namespace, to_host
from linumpy.geometry.banded import ROWS, Band, bands, multiply

_TRUNCATE_SIGMA = 4.0

HALF = 0.5 - 1e-4
"""Share of the weights from which a voxel is valid. Edges of masks often run right through the
middle of a kernel; this is a little below a half, so that rounding does not decide then."""


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
    float64 array of shape (n_out, n_in), read-only, rows for outputs ``start … start + n_out − 1``,
    each row summing to 1.
    """
    first, band = axis_band(n_in, n_out, step, start)
    weights = np.zeros((n_out, n_in))
    weights[:, first : first + band.shape[1]] = band
    # So that what is derived from it may be kept.
    weights.setflags(write=False)
    return weights


def axis_band(n_in: int, n_out: int, step: float, start: int = 0) -> tuple[int, np.ndarray]:
    """Return the columns of `axis_weights` from the first to the last that is not 0 everywhere.

    Returns
    -------
    The number of the first, and a float64 array of shape (n_out, columns).
    """
    centre = (np.arange(start, start + n_out) + 0.5) * step - 0.5
    low = np.floor(centre).astype(int)
    fraction = centre - low
    sigma = max(0.0, (step - 1) / 2)
    radius = int(_TRUNCATE_SIGMA * sigma + 0.5)
    offsets = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 * (offsets / sigma) ** 2) if sigma > 0 else np.ones(1)
    kernel /= kernel.sum()
    rows = np.repeat(np.arange(n_out), offsets.size)
    # The interpolation reads the smoothed axis, itself mirrored at its ends.
    corners = np.stack([low, low + 1])
    columns = _mirror(_mirror(corners, n_in)[..., None] + offsets, n_in)
    first = int(columns.min())
    weights = np.zeros((n_out, int(columns.max()) + 1 - first))
    for places, share in zip(columns - first, (1 - fraction, fraction), strict=True):
        np.add.at(weights, (rows, places.ravel()), (share[:, None] * kernel[None, :]).ravel())
    return first, weights


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
    array = xp.ascontiguousarray(array)
    if all(matrix is None for matrix in matrices):
        return array
    if is_device_array(array):
        from linumpy.geometry.resample_kernels import resampled

        fast = resampled(array, matrices)
        return _dense(array, matrices) if fast is None else fast
    out = np.empty(_shape(array, matrices), array.dtype)
    slabs = _Slabs(array.shape, matrices, array.dtype)
    for depth in slabs.depth:
        slabs.resample(array[depth.low : depth.high], depth, out[depth.start : depth.stop])
    return out


def _shape(array: Array, matrices: Sequence[np.ndarray | None]) -> tuple[int, ...]:
    return tuple(
        n if matrix is None else len(matrix)
        for n, matrix in zip(array.shape, matrices, strict=True)
    )


def _dense(array: Array, matrices: Sequence[np.ndarray | None]) -> Array:
    """Multiply whole matrices: for device arrays that no kernel takes."""
    xp = namespace(array)
    out = array
    for axis, matrix in enumerate(matrices):
        if matrix is not None:
            weights = like(matrix.astype(array.dtype), array)
            out = xp.moveaxis(xp.tensordot(weights, out, axes=(1, axis)), 0, axis)
    return xp.ascontiguousarray(out)


class _Slabs:
    """Resamples a tile on the CPU, a few output planes at a time; its buffers are reused."""

    def __init__(
        self, shape: Sequence[int], matrices: Sequence[np.ndarray | None], dtype: np.dtype
    ) -> None:
        depth, rows, columns = matrices
        n_rows = shape[1] if rows is None else len(rows)
        if depth is None:
            self.depth = [
                Band(z, min(z + ROWS, shape[0]), z, min(z + ROWS, shape[0]), np.zeros(0))
                for z in range(0, shape[0], ROWS)
            ]
        else:
            self.depth = bands(depth, dtype)
        self._keeps_depth = depth is None
        self._rows = None if rows is None else bands(rows, dtype)
        self._columns = None if columns is None else bands(columns, dtype, 2 * ROWS)
        n_planes = self.depth[0].stop
        self._thin = np.empty((n_planes, *shape[1:]), dtype)
        self._low = np.empty((n_planes, n_rows, shape[2]), dtype)

    def resample(self, source: np.ndarray, depth: Band, out: np.ndarray) -> None:
        """Resample the input planes of `depth` into its output planes."""
        n = depth.stop - depth.start
        # Depth first: each axis leaves less to do for the next.
        if not self._keeps_depth:
            last = self._rows is None and self._columns is None
            thin = out if last else self._thin[:n]
            multiply(depth, source.transpose(1, 0, 2), thin.transpose(1, 0, 2))
            source = thin
        if self._rows is not None:
            low = out if self._columns is None else self._low[:n]
            for band in self._rows:
                multiply(band, source[:, band.low : band.high], low[:, band.start : band.stop])
            source = low
        if self._columns is not None:
            for band in self._columns:
                multiply(
                    band,
                    source[:, :, band.low : band.high].transpose(0, 2, 1),
                    out[:, :, band.start : band.stop].transpose(0, 2, 1),
                )


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
    array = xp.ascontiguousarray(array)
    if is_device_array(array):
        from linumpy.geometry.resample_kernels import resampled_masked

        fast = resampled_masked(array, valid, matrices, HALF)
        return _dense_masked(array, valid, matrices) if fast is None else fast
    shape = _shape(array, matrices)
    out, keep = np.empty(shape, array.dtype), np.empty(shape, np.uint8)
    if all(matrix is None for matrix in matrices):
        np.greater(to_host(valid), 0, out=keep, casting="unsafe")
        np.multiply(to_host(array), keep, out=out)
        return out, keep
    slabs = _Slabs(array.shape, matrices, array.dtype)
    n_planes = max(depth.high - depth.low for depth in slabs.depth)
    weight = np.empty((n_planes, *array.shape[1:]), array.dtype)
    share = np.empty((slabs.depth[0].stop, *shape[1:]), array.dtype)
    for depth in slabs.depth:
        planes, target = slice(depth.low, depth.high), slice(depth.start, depth.stop)
        if valid[planes].min() > 0:
            slabs.resample(array[planes], depth, out[target])
            keep[target] = 1
            continue
        weights, shares = weight[: depth.high - depth.low], share[: depth.stop - depth.start]
        np.greater(valid[planes], 0, out=weights, casting="unsafe")
        slabs.resample(weights, depth, shares)
        weights *= array[planes]
        slabs.resample(weights, depth, out[target])
        np.greater_equal(shares, HALF, out=keep[target], casting="unsafe")
        np.divide(out[target], shares, out=out[target], where=keep[target].view(bool))
        out[target] *= keep[target]
    return out, keep


def _dense_masked(
    array: Array, valid: Array, matrices: Sequence[np.ndarray | None]
) -> tuple[Array, Array]:
    xp = namespace(array)
    weight = (valid > 0).astype(array.dtype)
    share, out = _dense(weight, matrices), _dense(array * weight, matrices)
    keep = share >= HALF
    return xp.where(keep, out / xp.where(keep, share, 1), 0), keep.astype(xp.uint8)
