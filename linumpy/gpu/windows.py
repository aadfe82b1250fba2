"""Read or write many windows of one Zarr array in one batch of chunks.

A GPU needs a thousand chunks at a time to be busy. A tile has a few hundred, so tiles are read and
written several in one call, each from or to an array of its own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from linumpy.core.device import Device, locate
from linumpy.core.errors import DeviceError, DeviceMemoryError
from linumpy.core.exit_status import is_lost
from linumpy.gpu.encode import WriteItem, refuse_unwritable, write_on_device
from linumpy.gpu.requests import box_of, kept_axes
from linumpy.gpu.session import Session, session
from linumpy.gpu.zarr_io import (
    array_layout,
    object_at,
    read_zarr_to_gpu,
    selection_items,
    stored_parts,
)
from linumpy.store.addresses import is_remote
from linumpy.store.chunk_layout import UnsupportedLayout
from linumpy.store.plain_arrays import PlainArray

Window = tuple[slice, ...]


def read_windows(array: Any, windows: Sequence[Window]) -> list[Any]:
    """Read windows of a Zarr array into device memory.

    Parameters
    ----------
    array
        A Zarr array (v2 or v3).
    windows
        One slice an axis each, steps of 1.

    Returns
    -------
    A CuPy array a window, C-contiguous, of the array's type in the machine's byte order, each with
    memory of its own. They are complete when the call returns.

    Raises
    ------
    InputError
        When a chunk is corrupt.
    DeviceError
        When there is no usable GPU; a DeviceMemoryError when its memory does not suffice.
    """
    locate(Device("cuda"))
    import cupy

    if is_remote(str(array.store_path)):
        return [read_zarr_to_gpu(array, window) for window in windows]
    try:
        layout = array_layout(array)
    except UnsupportedLayout:
        # The reader of single selections says why, and reads by the CPU.
        return [read_zarr_to_gpu(array, window) for window in windows]
    shapes = [
        tuple(len(range(*s.indices(n))) for s, n in zip(window, array.shape, strict=True))
        for window in windows
    ]
    results = [cupy.empty(shape, layout.dtype) for shape in shapes]
    for shape in dict.fromkeys(shapes):
        numbers = [n for n, other in enumerate(shapes) if other == shape]
        if math.prod(shape):
            _read_equal(array, layout, [windows[n] for n in numbers], [results[n] for n in numbers])
    return results


def _read_equal(array: Any, layout: Any, windows: Sequence[Window], results: Sequence[Any]) -> None:
    """Read windows of one shape."""
    import cupy

    from linumpy.gpu.backends import read_items

    first = results[0]
    items: list[Any] = []
    for window, result in zip(windows, results, strict=True):
        # The plan counts bytes from the first array, wherever the others lie.
        _, part, axes = selection_items(array, window, result.data.ptr - first.data.ptr)
        items += part
    try:
        with session(Session(first.device.id, cupy.cuda.get_current_stream())):
            read_items(items, layout, first, axes)
    except DeviceMemoryError:
        raise
    except (DeviceError, RuntimeError, OSError) as error:
        if is_lost(error):
            raise
        for window, result in zip(windows, results, strict=True):
            read_zarr_to_gpu(array, window, out=result)


def write_windows(array: Any, windows: Sequence[Window], values: Sequence[Any]) -> None:
    """Write windows of a Zarr array from device memory.

    Parameters
    ----------
    array
        A Zarr array (v2 or v3).
    windows
        One slice an axis each; each covers whole stored objects (shards), up to the array's end.
    values
        A CuPy array a window, of its shape; cast to the array's type.

    Raises
    ------
    ValueError
        When a window cuts a stored object, or a value has another shape.
    DeviceError
        When there is no usable GPU; a DeviceMemoryError when its memory does not hold one object
        while it is encoded.
    """
    locate(Device("cuda"))
    import cupy

    layout = array_layout(array)
    refuse_unwritable(layout)
    places: list[tuple[int, ...]] = []
    items: list[WriteItem] = []
    for window, value in zip(windows, values, strict=True):
        shape, parts = stored_parts(array, window)
        if shape != tuple(value.shape):
            raise ValueError(f"{array.store_path}: {value.shape} written to {shape}")
        data = cupy.ascontiguousarray(value, layout.dtype)
        for coordinates, chunk_selection, out_selection in parts:
            box = box_of(chunk_selection, out_selection, ())
            ends = [
                min(side, n - k * side)
                for k, side, n in zip(coordinates, layout.outer_shape, array.shape, strict=True)
            ]
            if box is None or any(box.start) or list(box.count) != ends:
                raise ValueError(f"{array.store_path}: window {window} cuts a stored object")
            places.append(coordinates)
            items.append(WriteItem(data, box, kept_axes(chunk_selection, ())))

    def store(number: int, data: np.ndarray | None) -> Future[None]:
        _store(array, places[number], data)
        _begin_flush(object_at(array, places[number]).path)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    plain = isinstance(array, PlainArray)
    keep_empty = not plain and bool(array.config.write_empty_chunks)
    with cupy.cuda.Device(cupy.cuda.Device().id):
        write_on_device(items, layout, store, keep_empty=keep_empty)


def _store(array: Any, place: tuple[int, ...], data: np.ndarray | None) -> None:
    """Write a stored object of an array; None removes it."""
    if isinstance(array, PlainArray):
        array.store(place, data)
        return
    from zarr.buffer.cpu import Buffer

    from linumpy.store.zarr_adapter import sync

    key = array.store_path / array.metadata.encode_chunk_key(place)
    sync(key.delete() if data is None else key.set(Buffer(data)))


def _begin_flush(path: str | None) -> None:
    """Let the system begin to bring a file to the disk, if it is one, while more is encoded."""
    if path is None or not os.path.exists(path):  # noqa: PTH110 - a chunk of fill value has none
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # Advice that starts writing; pages not yet on the disk stay in memory.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
