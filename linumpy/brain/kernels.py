"""CUDA kernels of stacking: calls of ``kernels.cu``."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from linumpy.brain.align_mosaics_3d_from_shifts import Placement
from linumpy.core.cuda_kernels import load_kernel
from linumpy.core.device import Array

_THREADS = (32, 8)
_MAX_PLANES = 64

_REACH = np.dtype(
    [
        ("shares", np.float32, 4),
        ("turned", np.int32),
        # The compiler aligns what follows to eight bytes.
        ("padding", np.int32),
        ("turn", np.float64, 6),
        ("window", np.int32, 6),
    ]
)
"""Layout of ``Reach`` in the kernels."""


_kernel = functools.partial(load_kernel, __package__, "kernels.cu")


def _reach(placement: Placement) -> Any:
    reach = np.zeros((), _REACH)
    reach["shares"] = [share for pair in placement.shares for share in pair]
    if placement.turn is not None:
        reach["turned"] = 1
        reach["turn"] = [
            *placement.turn.matrix[0],
            *placement.turn.matrix[1],
            *placement.turn.shift,
        ]
        reach["window"] = [
            *(part.start for part in placement.output),
            *(part.start for part in placement.source),
            *(part.stop - part.start for part in placement.source),
        ]
    return reach


def _bend(placement: Placement) -> Any:
    """Return a placement's bend on the device; a null pointer without."""
    import cupy

    bend = placement.bend
    return np.uint64(0) if bend is None else cupy.ascontiguousarray(cupy.asarray(bend))


def _grid(rows: int, columns: int, depth: int) -> tuple[int, int, int]:
    return -(-columns // _THREADS[0]), -(-rows // _THREADS[1]), max(1, min(depth, _MAX_PLANES))


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
    """Interpolate planes of a slice and blend them into a block in one launch.

    The device's side of `brain.laying.lay_slice`, to the same bits; it waits for nothing.
    """
    import cupy

    here = (slice(None), *placement.inner)
    out, mask = out[here], mask[here]
    data = cupy.ascontiguousarray(data, cupy.float32)
    if quality is not None and kept is not None:
        # Of the shapes of `data` and `out`, and so of their strides.
        quality, kept = cupy.ascontiguousarray(quality, cupy.float32), kept[here]
    else:
        quality = kept = None
    if valid is not None:
        valid = cupy.ascontiguousarray(valid, cupy.uint8)
    depth, rows, columns = out.shape
    arguments = (
        out,
        mask,
        *(np.int64(n // out.itemsize) for n in out.strides[:2]),
        data,
        np.uint64(0) if valid is None else valid,
        *(np.int64(n // data.itemsize) for n in data.strides[:2]),
        _reach(placement),
        _bend(placement),
        cupy.asarray(np.ascontiguousarray(weights, np.float32)),
        np.uint64(0) if faces is None else faces,
        np.int32(1 if faces is None else weights.shape[1]),
        *(np.uint64(0) if array is None else array for array in (quality, kept)),
        *(np.int32(n) for n in out.shape),
    )
    _kernel("lay_slice")(_grid(rows, columns, depth), _THREADS, arguments)


def add_faces(faces: Array, seen: int, valid: Array, placement: Placement) -> None:
    """Find at which plane of a slice each column begins; see `brain.laying.add_faces`."""
    import cupy

    valid = cupy.ascontiguousarray(valid, cupy.uint8)
    rows, columns = faces.shape
    arguments = (
        faces,
        np.int32(seen),
        valid,
        *(np.int64(n) for n in valid.strides[:2]),
        _reach(placement),
        _bend(placement),
        *(np.int32(n) for n in (len(valid), rows, columns)),
    )
    _kernel("add_faces")(_grid(rows, columns, 1), _THREADS, arguments)
