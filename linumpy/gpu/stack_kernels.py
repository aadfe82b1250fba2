"""Stacking on a GPU: calls of the CUDA kernel in ``stack_kernels.cu``."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

import numpy as np

from linumpy.device import Array
from linumpy.registration.align_mosaics_3d_from_shifts import Placement

_THREADS = (32, 8)
_MAX_PLANES = 64


@functools.cache
def _kernel(device_id: int) -> Any:
    import cupy

    source = (resources.files(__package__) / "stack_kernels.cu").read_text()
    module = cupy.RawModule(code=source, options=("--std=c++17",), backend="nvrtc")
    return module.get_function("lay_slice")


def lay_slice(
    out: Array,
    mask: Array,
    data: Array,
    valid: Array | None,
    placement: Placement,
    weights: np.ndarray,
) -> None:
    """Interpolate planes of a slice and blend them into a block in one launch.

    The device's side of `mosaic.stacking.lay_slice`, to the same bits; it waits for nothing.
    """
    import cupy

    here = (slice(None), *placement.inner)
    out, mask = out[here], mask[here]
    data = cupy.ascontiguousarray(data, cupy.float32)
    if valid is not None:
        valid = cupy.ascontiguousarray(valid, cupy.uint8)
    depth, rows, columns = out.shape
    grid = (
        -(-columns // _THREADS[0]),
        -(-rows // _THREADS[1]),
        min(depth, _MAX_PLANES),
    )
    arguments = (
        out,
        mask,
        *(np.int64(n // out.itemsize) for n in out.strides[:2]),
        data,
        np.uint64(0) if valid is None else valid,
        *(np.int64(n // data.itemsize) for n in data.strides[:2]),
        *(np.float32(share) for pair in placement.shares for share in pair),
        cupy.asarray(weights, cupy.float32),
        *(np.int32(n) for n in out.shape),
    )
    _kernel(cupy.cuda.Device().id)(grid, _THREADS, arguments)
