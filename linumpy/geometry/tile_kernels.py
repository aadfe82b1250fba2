"""CUDA kernels of stitching and tile registration: calls of ``tile_kernels.cu``.

The functions are the device's side of those in `mosaic` and `registration` that name them, with
the same meaning. They queue work on the current stream and wait for nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from linumpy.core.cuda_kernels import load_kernel
from linumpy.core.device import Array, like
from linumpy.geometry.tile_on_block import TileOnBlock

_THREADS = 256
_PLANES_A_THREAD = 4
_MAX_GRID = 65535
_STACK_NBYTES = 128 << 20
"""Bytes of padded planes that a correlation transforms at a time."""


_kernel = functools.partial(load_kernel, __package__, "tile_kernels.cu")


def _grid(n: int, rows: int = 1) -> tuple[int, int]:
    """Return blocks for `n` threads and for `rows` things that are looped over."""
    return max(1, min(-(-n // _THREADS), 1 << 16)), max(1, min(rows, _MAX_GRID))


def _floats(array: Array) -> Array:
    import cupy

    return cupy.ascontiguousarray(array, dtype=cupy.float32)


def _bytes(mask: Array | None) -> Array | None:
    """Return a mask as contiguous bytes, without a copy where it is some already."""
    import cupy

    if mask is None:
        return None
    if mask.dtype.itemsize != 1:
        mask = mask > 0
    return cupy.ascontiguousarray(mask).view(cupy.uint8)


def _pointer(array: Array | None) -> Any:
    return np.uint64(0) if array is None else array


def stitch_block(
    parts: Sequence[TileOnBlock],
    weights: tuple[Array, Array],
    shape: tuple[int, int, int],
    like_array: Array,
) -> tuple[Array, Array]:
    """Blend tiles into one block in one launch; see `tiles.stitch_3d_refined`."""
    import cupy

    depth, rows, columns = shape
    out, mask = cupy.empty(shape, cupy.float32), cupy.empty(shape, cupy.uint8)
    if not out.size:
        return out, mask
    # The arrays are held here until the launch: the table has only their addresses.
    held = [(_floats(part.data), _bytes(part.valid)) for part in parts]
    table = np.zeros((max(len(parts), 1), 10), np.int64)
    for row, part, (data, valid) in zip(table, parts, held, strict=False):
        fractions = np.asarray(part.fraction, np.float32).view(np.int32)
        table_row = (
            data.data.ptr,
            0 if valid is None else valid.data.ptr,
            *(part.low[0], part.high[0], part.low[1], part.high[1]),
            *part.shift,
            *fractions,
        )
        row[:] = table_row
    tile_rows, tile_columns = (len(profile) for profile in weights)
    blocks = (
        -(-columns // 32),
        -(-rows // 8),
        min(-(-depth // _PLANES_A_THREAD), _MAX_GRID),
    )
    arguments = (
        cupy.asarray(table),
        np.int32(len(parts)),
        _floats(like(weights[0], like_array)),
        _floats(like(weights[1], like_array)),
        *(np.int32(n) for n in (tile_rows, tile_columns, depth, rows, columns)),
        out,
        mask,
    )
    _kernel("stitch_block")(blocks, (32, 8), arguments)
    return out, mask


def slab_means(array: Array, valid: Array | None, thickness: int) -> tuple[Array, Array | None]:
    """Return means over slabs of `thickness` planes, and where a slab has data (None: all over).

    Planes left at the end are not used.
    """
    import cupy

    n_slabs = array.shape[0] // thickness
    shape = (n_slabs, *array.shape[1:])
    plane = array.shape[1] * array.shape[2]
    slabs = cupy.empty(shape, cupy.float32)
    there = None if valid is None else cupy.empty(shape, cupy.uint8)
    arguments = (
        _floats(array),
        _pointer(_bytes(valid)),
        np.int32(thickness),
        np.int32(n_slabs),
        np.int64(plane),
        slabs,
        _pointer(there),
    )
    _kernel("slab_means")(_grid(plane, n_slabs), (_THREADS,), arguments)
    return slabs, there


@functools.cache
def _taps(device_id: int, taps: tuple[float, ...]) -> Array:
    import cupy

    array = cupy.asarray(np.asarray(taps, np.float32))
    # Other streams will read it.
    cupy.cuda.get_current_stream().synchronize()
    return array


def flatten_planes(
    planes: Array, valid: Array | None, wide: Sequence[float], narrow: Sequence[float]
) -> Array:
    """Take the local mean and brightness out of images; see `geometry.correlation.flatten`.

    Parameters
    ----------
    planes, valid
        Shape (planes, axis 1, axis 2).
    wide, narrow
        Taps of the two symmetric windows from the middle on, the first at least as long.
    """
    import cupy

    n, rows, columns = planes.shape
    out = cupy.empty(planes.shape, cupy.float32)
    if not out.size:
        return out
    planes, valid = _floats(planes), _bytes(valid)
    count = 2 if valid is None else 4
    blurred: list[Array | None] = [cupy.empty(planes.shape, cupy.float32) for _ in range(count)]
    blurred += [None] * (4 - count)
    device = cupy.cuda.Device().id
    windows: list[Any] = []
    for taps in (wide, narrow):
        windows += [_taps(device, tuple(map(float, taps))), np.int32(len(taps) - 1)]
    sizes = tuple(np.int32(k) for k in (n, rows, columns))
    pointers = [_pointer(array) for array in blurred]
    grid = _grid(rows * columns, n)
    arguments = (planes, _pointer(valid), *sizes, *windows, *pointers)
    _kernel("blur_rows")(grid, (_THREADS,), arguments)
    arguments = (*pointers, _pointer(valid), *sizes, *windows, out)
    _kernel("flatten_columns")(grid, (_THREADS,), arguments)
    return out


def choose_slabs(first: Array, second: Array, signal_over_noise: float, least: int) -> Array:
    """Choose slabs by the means of two tiles: 1 or 0 for each, and behind them their number."""
    import cupy

    chosen = cupy.empty(len(first) + 1, cupy.float32)
    arguments = (
        _floats(first),
        _floats(second),
        np.int32(len(first)),
        np.float32(signal_over_noise),
        np.int32(least),
        chosen,
    )
    _kernel("choose_slabs")((1,), (1,), arguments)
    return chosen


def choose_all(n: int) -> Array:
    """Choose all of `n` planes, as `choose_slabs` does."""
    import cupy

    chosen = cupy.ones(n + 1, cupy.float32)
    chosen[n:] = n
    return chosen


def correlate(
    first: Array,
    second: Array,
    chosen: Array,
    windows: np.ndarray,
    side: tuple[int, int],
    size: tuple[int, int],
    min_overlap_share: float,
) -> Array:
    """Correlate windows of two stacks; see `geometry.correlation.start_correlation`.

    Parameters
    ----------
    first, second
        Shape (planes, n1, n2) each, float32; rows must be contiguous.
    chosen
        From `choose_slabs`: the planes to use.
    windows
        A row each, int (n, 10): first displacement, then first pixel and sides of the window in
        the first stack, and in the second, each along axis 1 and axis 2.
    side
        Samples along axis 1 and axis 2.
    size
        Padded lengths for the transforms.
    min_overlap_share
        As there.

    Returns
    -------
    float32, shape (n, 2, *side): values and weights of the surfaces.
    """
    import cupy

    table = cupy.asarray(windows, cupy.int32)
    out = cupy.empty((len(windows), 2, *side), cupy.float32)
    sides = tuple(np.int32(n) for n in side)
    at_once = max(1, _STACK_NBYTES // (24 * size[0] * size[1] * len(first)))
    for start in range(0, len(windows), at_once):
        part = slice(start, start + at_once)
        n = len(table[part])
        maps = cupy.fft.irfft2(_cross_spectra(first, second, chosen, table[part], size), s=size)
        cut = cupy.empty((n, 4, *side), cupy.float32)
        arguments = (_floats(maps), table[part], np.int32(n), *map(np.int32, size), *sides, cut)
        grid = _grid(side[0] * side[1], n)
        _kernel("cut_windows")(grid, (_THREADS,), arguments)
        arguments = (
            cut,
            table[part],
            np.int32(n),
            *sides,
            cut[:, 3].max(axis=(1, 2)),
            chosen[len(first) :],
            np.float64(min_overlap_share),
            out[part],
        )
        _kernel("normalise_windows")(grid, (_THREADS,), arguments)
    return out


def _cross_spectra(
    first: Array, second: Array, chosen: Array, table: Array, size: tuple[int, int]
) -> Array:
    """Transform windows, and return their cross spectra summed over planes, (n, 4, …)."""
    import cupy

    n_windows, frequencies = len(table), size[0] * (size[1] // 2 + 1)
    total = cupy.zeros((n_windows, 4, size[0], size[1] // 2 + 1), cupy.complex64)
    at_once = max(1, _STACK_NBYTES // (24 * size[0] * size[1] * n_windows))
    for start in range(0, len(first), at_once):
        planes = slice(start, start + at_once)
        n = len(first[planes])
        stack = cupy.empty((6, n_windows * n, *size), cupy.float32)
        images: list[Any] = []
        for array in (first[planes], second[planes]):
            images += [array, *(np.int64(step // 4) for step in array.strides[:2])]
        counts = (np.int32(n_windows), np.int32(n))
        arguments = (*images, chosen[planes], table, *counts, *map(np.int32, size), stack)
        grid = _grid(size[0] * size[1], n_windows * n)
        _kernel("correlation_inputs")(grid, (_THREADS,), arguments)
        spectra = cupy.fft.rfft2(stack)
        del stack
        arguments = (spectra, *counts, np.int64(frequencies), total)
        _kernel("cross_spectra")(_grid(frequencies, n_windows), (_THREADS,), arguments)
    return total
