"""CUDA kernel that resamples all three axes at once: calls of ``kernels.cu``.

A block of threads makes 4 planes by 8 rows of output, some columns wide. What it has to read, and
with which weights, is worked out here from the axis matrices, once for all tiles.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from linumpy.core.device import Array
from linumpy.geometry.kernels import SHARED_NBYTES, as_bytes, blocks_for, launch

Matrices = Sequence[np.ndarray | None]

_PLANES, _ROWS, _AHEAD = 4, 8, 12
_MOST_THREADS = 256


def resampled(array: Array, matrices: Matrices) -> Array | None:
    """Multiply each axis by its matrix; None when the kernel does not fit.

    Arguments are those of `linumpy.geometry.resample.apply_axis_weights`.
    """
    plan = _plan(array, matrices)
    return None if plan is None else plan.run("resample", array, None, None)


def resampled_masked(
    array: Array, valid: Array, matrices: Matrices, half: float
) -> tuple[Array, Array] | None:
    """Resample with a mask; None when the kernel does not fit.

    Arguments are those of `linumpy.geometry.resample.resample_masked`; `half` is the share of the
    weights from which a voxel is valid. The kernels find out for themselves when all is valid, and
    do no more than `resampled` then.
    """
    import cupy

    plan = _plan(array, matrices)
    if plan is None:
        return None
    mask = as_bytes(valid)
    invalid = cupy.zeros(1, cupy.int32)
    grid = (min(blocks_for(mask.size, 16 * 256), 2048),)
    launch("find_invalid", grid, (256,), mask, mask.size, invalid)
    out = plan.run("resample_voxels", array, mask, invalid)
    share = plan.run("resample_mask", None, mask, invalid)
    keep = cupy.empty(out.shape, cupy.uint8)
    grid = (min(blocks_for(out.size), 1 << 20),)
    arguments = out, share, keep, out.size, np.float32(half), invalid
    launch("divide_by_share", grid, (256,), *arguments)
    return out, keep


class _Groups:
    """Groups of outputs along depth or axis 1: what each reads, and with which weights.

    `weights` has the shape (groups, inputs, outputs of a group), zeros behind the last input.
    """

    def __init__(self, matrix: np.ndarray | None, n: int, size: int, multiple: int) -> None:
        n_groups = blocks_for(n if matrix is None else len(matrix), size)
        start = size * np.arange(n_groups)
        if matrix is None:
            self.n_out = n
            first, stop = start, np.minimum(start + size, n)
            room = -(-size // multiple) * multiple
            weights = np.broadcast_to(np.eye(room, size), (n_groups, room, size))
        else:
            self.n_out = len(matrix)
            low, high = _used(matrix)
            first, stop = np.minimum.reduceat(low, start), np.maximum.reduceat(high, start)
            room = -(-int((stop - first).max()) // multiple) * multiple
            padded = np.zeros((n_groups * size, n + room))
            padded[: len(matrix), :n] = matrix
            inputs = first[:, None, None] + np.arange(room)[:, None]
            outputs = start[:, None, None] + np.arange(size)
            weights = padded[outputs, inputs]
        self.first, self.many = first.astype(np.int32), (stop - first).astype(np.int32)
        self.weights = np.ascontiguousarray(weights, np.float32)


class _Columns:
    """Groups of output columns that read at most as many columns as a block has threads."""

    def __init__(self, matrix: np.ndarray | None, n: int) -> None:
        low, high = np.arange(n), np.arange(1, n + 1)
        if matrix is not None:
            low, high = _used(matrix)
        taps = high - low
        self.n_out = len(low)
        self.fits = int(taps.max()) <= _MOST_THREADS
        if not self.fits:
            return
        n_groups = 0
        while True:
            n_groups += 1
            self.size = blocks_for(self.n_out, n_groups)
            start = np.arange(0, self.n_out, self.size)
            first, stop = np.minimum.reduceat(low, start), np.maximum.reduceat(high, start)
            if (stop - first).max() <= _MOST_THREADS:
                break
        self.first, self.many = first.astype(np.int32), (stop - first).astype(np.int32)
        self.low, self.taps = low.astype(np.int32), taps.astype(np.int32)
        if matrix is None:
            self.weights = np.ones((1, n), np.float32)
        else:
            # An output's weights are as far apart as there are outputs: threads read side by side.
            at = np.minimum(low + np.arange(taps.max())[:, None], n - 1)
            self.weights = matrix[np.arange(self.n_out), at].astype(np.float32)


def _used(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each row of a matrix where its first weight is, and behind its last."""
    used = matrix != 0
    return used.argmax(axis=1), matrix.shape[1] - used[:, ::-1].argmax(axis=1)


class _Plan:
    """What the kernel needs to know of three matrices, on the device."""

    def __init__(
        self, shape: tuple[int, ...], depth: _Groups, rows: _Groups, columns: _Columns
    ) -> None:
        import cupy

        self._shape_in = shape
        self._shape_out = depth.n_out, rows.n_out, columns.n_out
        self._threads = 32 * blocks_for(int(columns.many.max()), 32)
        rooms = [groups.weights.shape[1] for groups in (depth, rows)]
        sums = _PLANES * _ROWS * self._threads
        self._shared = 4 * (_PLANES * rooms[0] + _ROWS * rooms[1] + sums)
        self.fits = self._shared <= SHARED_NBYTES
        if not self.fits:
            return
        self._grid = len(depth.first) * len(rows.first) * len(columns.first)
        tables = [
            *(depth.first, depth.many, depth.weights),
            *(rows.first, rows.many, rows.weights),
            *(columns.first, columns.many, columns.low, columns.taps, columns.weights),
        ]
        # One copy for all of them, each on a multiple of 16 bytes.
        starts = np.cumsum([0, *(-(-table.nbytes // 16) * 16 for table in tables)])
        packed = np.zeros(starts[-1], np.uint8)
        for table, start in zip(tables, starts, strict=False):
            packed[start : start + table.nbytes] = table.reshape(-1).view(np.uint8)
        self._packed = cupy.asarray(packed)
        at = [np.uint64(self._packed.data.ptr + int(start)) for start in starts]
        room0, room1, group2 = (np.int32(value) for value in (*rooms, columns.size))
        self._tables = (*at[:3], room0, *at[3:6], room1, *at[6:11], group2)
        # Tiles on other streams will use them.
        cupy.cuda.get_current_stream().synchronize()

    def run(
        self, name: str, array: Array | None, mask: Array | None, invalid: Array | None
    ) -> Array:
        """Queue one of the kernels; returns its output."""
        import cupy

        out = cupy.empty(self._shape_out, cupy.float32)
        sizes = self._shape_in[1:] + self._shape_out
        arguments = array, mask, invalid, out, *sizes, *self._tables
        launch(name, (self._grid,), (self._threads,), *arguments, shared=self._shared)
        return out


# Plans of matrices that cannot change, newest last: device, shape, matrices, plan.
_plans: deque[tuple[int, tuple[int, ...], list[Any], _Plan | None]] = deque(maxlen=16)
_lock = threading.Lock()


def _plan(array: Array, matrices: Matrices) -> _Plan | None:
    """Return the plan for an array, None when the kernel does not fit it."""
    import cupy

    if array.dtype != np.float32 or not array.size:
        return None
    device_id = cupy.cuda.Device().id
    with _lock:
        for known_id, shape, references, plan in _plans:
            same = known_id == device_id and shape == array.shape
            if same and all(map(_refers_to, references, matrices)):
                return plan
    plan = _new_plan(array.shape, matrices)
    if all(matrix is None or not matrix.flags.writeable for matrix in matrices):
        references = [None if matrix is None else weakref.ref(matrix) for matrix in matrices]
        with _lock:
            _plans.append((device_id, array.shape, references, plan))
    return plan


def _refers_to(reference: Any, matrix: np.ndarray | None) -> bool:
    """Whether a reference, None for no matrix, is to this matrix; one to a dead matrix is not."""
    if reference is None or matrix is None:
        return reference is matrix
    return reference() is matrix


def _new_plan(shape: tuple[int, ...], matrices: Matrices) -> _Plan | None:
    columns = _Columns(matrices[2], shape[2])
    if not columns.fits:
        return None
    depth = _Groups(matrices[0], shape[0], _PLANES, _AHEAD)
    rows = _Groups(matrices[1], shape[1], _ROWS, 1)
    plan = _Plan(shape, depth, rows, columns)
    return plan if plan.fits else None
