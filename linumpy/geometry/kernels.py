"""CUDA kernels of the tile stages: calls of ``kernels.cu``.

Nothing is copied to the host in between, and no temporary is larger than the tile. Everything runs
on CuPy's current stream. Masks are boolean or uint8.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from linumpy.core.cuda_kernels import load_kernel
from linumpy.core.device import Array

SHARED_NBYTES = 48 << 10
"""Shared memory that any block may take on any device."""

_THREADS = 256
_NO_ARRAY = np.uint64(0)
_STEPS = 16
_BOX = 32
_HISTOGRAM_THREADS = 1024
_HISTOGRAM_SHARE = 1 << 17
"""Values that a block counts: times the weight of one less than 2³², what its counters hold."""


@functools.cache
def _most_shared_nbytes(device_id: int) -> int:
    """Return how much shared memory a block may ask for."""
    import cupy

    return int(cupy.cuda.Device(device_id).attributes["MaxSharedMemoryPerBlockOptin"])


def launch(
    name: str, grid: tuple[int, ...], block: tuple[int, ...], *arguments: Any, shared: int = 0
) -> None:
    """Queue a kernel on the current stream.

    Parameters
    ----------
    name
        Of the kernel, compiled at its first use.
    grid, block
        Blocks, and threads of one.
    arguments
        CuPy arrays, None for no array, NumPy scalars, or integers for ``long long``.
    shared
        Bytes of shared memory beyond what the kernel declares.
    """
    values = [
        _NO_ARRAY if value is None else np.int64(value) if isinstance(value, int) else value
        for value in arguments
    ]
    kernel = load_kernel(__package__, "kernels.cu", name)
    if shared > SHARED_NBYTES:
        kernel.max_dynamic_shared_size_bytes = shared
    kernel(grid, block, tuple(values), shared_mem=shared)


def blocks_for(n: int, threads: int = _THREADS) -> int:
    """Return how many blocks of threads take `n` items."""
    return -(-n // threads)


def as_bytes(mask: Array | None) -> Any:
    """Return a mask as contiguous bytes, without a copy where it is that already; None stays."""
    import cupy

    if mask is None:
        return None
    if mask.dtype.itemsize != 1:
        mask = mask > 0
    return cupy.ascontiguousarray(mask).view(cupy.uint8)


def all_within(array: Array, largest: float) -> bool:
    """Whether all numbers of a float32 array are finite and of a magnitude up to `largest`."""
    import cupy

    array = cupy.ascontiguousarray(array, cupy.float32)
    found = cupy.zeros(1, cupy.int32)
    grid = (max(1, min(blocks_for(array.size, 16 * _THREADS), 2048)),)
    launch("find_beyond", grid, (_THREADS,), array, array.size, np.float32(largest), found)
    return int(found.get()[0]) == 0


def shifted_along_depth(array: Array, surface: Array, valid: Array | None) -> tuple[Array, Array]:
    """Move every A-line up; see `linumpy.geometry.detect_focal_curvature`."""
    import cupy

    array = cupy.ascontiguousarray(array, cupy.float32)
    surface = cupy.ascontiguousarray(cupy.asarray(surface), cupy.float32)
    out, inside = cupy.empty(array.shape, cupy.float32), cupy.empty(array.shape, cupy.uint8)
    n, plane = len(array), surface.size
    if array.size:
        grid = (blocks_for(plane), blocks_for(n, _STEPS))
        mask = as_bytes(valid)
        launch("shift_along_depth", grid, (_THREADS,), array, mask, surface, out, inside, n, plane)
    return out, inside


def first_tissue(
    volume: Array, valid: Array | None, s_xy: int, weights: np.ndarray, *, use_log: bool
) -> Array:
    """Find the interface; see `linumpy.geometry.interface`.

    Parameters
    ----------
    volume, valid
        Depth first.
    weights
        From `linumpy.geometry.interface.difference_weights`.
    """
    import cupy

    volume = cupy.ascontiguousarray(volume, cupy.float32)
    n, n1, n2 = volume.shape
    plane = n1 * n2
    first = cupy.empty((n1, n2), cupy.float32)
    if not volume.size:
        return first
    known = None
    if valid is not None:
        known = cupy.empty((n1, n2), cupy.uint8)
        filled = cupy.empty_like(volume)
        arguments = volume, as_bytes(valid), filled, known, n, plane, np.int32(use_log)
        launch("fill_a_lines", (blocks_for(plane),), (_THREADS,), *arguments)
        volume, use_log = filled, False
    if s_xy > 1 or use_log:
        volume = _box_sums(volume, s_xy, use_log)
    grid = (blocks_for(plane, 32),)
    taps = np.int32(len(weights))
    device_weights = cupy.asarray(weights, cupy.float32)
    launch("steepest_rise", grid, (32, 8), volume, known, device_weights, taps, first, n, plane)
    return first


def _box_sums(volume: Array, size: int, use_log: bool) -> Array:
    """Sum (of a wide box: average) each plane over a lateral box."""
    import cupy

    width = _BOX + size - 1
    shared = 4 * width * (width + _BOX)
    if shared > SHARED_NBYTES:
        from cupyx.scipy.ndimage import uniform_filter

        if use_log:
            volume = _box_sums(volume, 1, use_log)
        return uniform_filter(volume, size=(1, size, size), mode="reflect")
    n, n1, n2 = volume.shape
    out = cupy.empty_like(volume)
    grid = (blocks_for(n2, _BOX), blocks_for(n1, _BOX), min(n, 65535))
    sizes = [np.int32(value) for value in (n1, n2, size, use_log)]
    launch("sum_boxes", grid, (_BOX, 8), volume, out, n, *sizes, shared=shared)
    return out


def mean_along_depth(volume: Array, valid: Array | None) -> Array:
    """Average over depth; see `linumpy.intensity.normalize_intensities_per_slice.depth_mean`."""
    import cupy

    volume = cupy.ascontiguousarray(volume, cupy.float32)
    out = cupy.empty(volume.shape[1:], cupy.float32)
    if out.size:
        arguments = volume, as_bytes(valid), out, len(volume), out.size
        launch("mean_along_depth", (blocks_for(out.size),), (_THREADS,), *arguments)
    return out


def brightness(
    array: Array, valid: Array | None, weights: np.ndarray, margin: int, ratio: float
) -> Array:
    """Measure a tile's brightness; see `linumpy.intensity.fix_illumination_3d.brightness_map`.

    Parameters
    ----------
    weights
        From `linumpy.geometry.interface.difference_weights`, for the profile along depth.
    margin
        Planes kept away from the interface where the noise is measured.
    ratio
        What the signal must be of the noise's uncertainty.
    """
    import cupy

    array = cupy.ascontiguousarray(array, cupy.float32)
    n, plane = len(array), array[0].size
    grid = (blocks_for(plane),)
    warps = grid[0] * (_THREADS // 32)
    power, out = cupy.empty((2, *array.shape[1:]), cupy.float32)
    count = cupy.empty(power.shape, cupy.int32)
    warp_power = cupy.empty((n, warps), cupy.float32)
    warp_count = cupy.empty((n, warps), cupy.int32)
    plane_power, plane_count = cupy.empty((2, n), cupy.float64)
    profile, noise = cupy.empty(n, cupy.float32), cupy.empty(1, cupy.float32)
    sums = power, count, warp_power, warp_count
    mask = as_bytes(valid)
    launch("power_sums", grid, (_THREADS,), array, mask, *sums, n, plane)
    totals = plane_power, plane_count
    launch("plane_totals", (n,), (_THREADS,), warp_power, warp_count, warps, *totals)
    derivative = cupy.asarray(weights, cupy.float32), np.int32(len(weights)), np.int32(margin)
    launch("noise_floor", (1,), (_THREADS,), *totals, *derivative, profile, noise, n)
    arguments = power, count, noise, mask, profile, np.float32(ratio), out, n, plane
    launch("brightness", grid, (_THREADS,), *arguments)
    return out


def pattern_counts(
    values: Array, selected: Array | None, columns: Array | None, n_bins: int, weight: int
) -> Array:
    """Count bit patterns; see `linumpy.intensity.quantiles.float_histogram`."""
    import cupy

    values = cupy.ascontiguousarray(values, cupy.float32)
    rows, n = values.shape
    counts = cupy.zeros((rows, n_bins), cupy.int64)
    if values.size:
        parts = 1
        while 4 * n_bins // parts > _most_shared_nbytes(cupy.cuda.Device().id):
            parts *= 2
        bins = n_bins // parts
        grid = (rows, parts, blocks_for(n, _HISTOGRAM_SHARE))
        arguments = values, as_bytes(selected), as_bytes(columns), counts.view(cupy.uint64)
        sizes = n, _HISTOGRAM_SHARE, np.uint32(bins), np.uint32(n_bins), np.uint32(weight)
        threads = (_HISTOGRAM_THREADS,)
        launch("count_patterns", grid, threads, *arguments, *sizes, shared=4 * bins)
    return counts


def scaled_planes(
    volume: Array, valid: Array | None, floor: np.ndarray, cap: np.ndarray, scale: np.float32
) -> Array:
    """Clip and scale each plane; see `linumpy.intensity.normalize_intensities_per_slice`."""
    import cupy

    volume = cupy.ascontiguousarray(volume, cupy.float32)
    out = cupy.empty_like(volume)
    n = len(volume)
    if volume.size:
        plane = volume[0].size
        bounds = cupy.asarray(np.stack([floor, cap]))
        grid = (min(blocks_for(plane, 4 * _THREADS), 1 << 20), min(n, 65535))
        arguments = volume, as_bytes(valid), bounds[0], bounds[1], scale, out, n, plane
        launch("scale_planes", grid, (_THREADS,), *arguments)
    return out
