"""Zarr codec pipeline that reads and writes whole requests on the device.

Zarr hands a pipeline all chunks (or shards) that a selection touches. With GPU buffers, all their
byte ranges are fetched together, decoded in large batches and placed by one kernel a batch; writing
is the mirror image. Whatever this cannot do goes through Zarr's own pipeline on the host, with a
warning that says why. With host buffers it is Zarr's own pipeline.
"""

from __future__ import annotations

import asyncio
import math
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from zarr.registry import register_pipeline

from linumpy.gpu.backends import read_items
from linumpy.gpu.encode import WriteItem, refuse_unwritable, write_on_device
from linumpy.gpu.objects import stored_object
from linumpy.gpu.plan import ReadItem
from linumpy.gpu.requests import Box, box_of, kept_axes
from linumpy.gpu.session import current_session
from linumpy.gpu.stored_checks import check_for_zarr, plan_of
from linumpy.store.chunk_layout import HOST_CODECS, ChunkLayout, UnsupportedLayout, layout_of
from linumpy.store.zarr_adapter import ArraySpec, BatchedCodecPipeline, read_results, stored_with
from linumpy.store.zarr_settings import zarr_settings

if TYPE_CHECKING:
    from zarr.abc.buffer import NDBuffer

BatchItem = tuple[Any, ArraySpec, tuple[Any, ...], tuple[Any, ...], bool]

FANCY_NBYTES = 1 << 29
"""Decoded bytes that an irregular selection holds at once."""


class GpuPathWarning(UserWarning):
    """A request was served the slow way; the message names the cause."""


class GpuCodecPipeline(BatchedCodecPipeline):
    """Zarr's pipeline, with requests on GPU buffers served by the device."""

    async def read(
        self,
        batch_info: Iterable[Any],
        out: NDBuffer,
        drop_axes: tuple[int, ...] = (),
    ) -> Any:
        """Read all chunks of a request into `out`; return what Zarr expects of a pipeline."""
        items = list(batch_info)
        if not items or not _on_device(items[0][1]):
            return await super().read(items, out, drop_axes)
        if current_session().backend == "zarr" and not stored_with(self, HOST_CODECS):
            await asyncio.to_thread(self._check_stored, items)
            return await super().read(items, out, drop_axes)
        try:
            layout = layout_of(self, items[0][1])
            _refuse_irregular(items)
        except UnsupportedLayout as cause:
            _warn_slow("read", cause)
            await self._read_by_host(items, out, drop_axes)
        else:
            await asyncio.to_thread(_read_on_device, layout, items, out, drop_axes)
        return await read_results(items)

    async def write(
        self,
        batch_info: Iterable[Any],
        value: NDBuffer,
        drop_axes: tuple[int, ...] = (),
    ) -> None:
        """Write all chunks of a request from `value`."""
        items = list(batch_info)
        if not items or not _on_device(items[0][1]):
            await super().write(items, value, drop_axes)
            return
        try:
            layout = layout_of(self, items[0][1])
            refuse_unwritable(layout)
            _refuse_irregular(items)
        except UnsupportedLayout as cause:
            _warn_slow("written", cause)
            await self._write_by_host(items, value, drop_axes)
            return
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(_write_on_device, layout, items, value, drop_axes, loop)

    def _check_stored(self, items: Sequence[BatchItem]) -> None:
        """Check the files of a request for Zarr's own pipeline, which decodes what it finds."""
        from zarr.storage import StorePath

        of_shape: dict[tuple[int, ...], list[BatchItem]] = {}
        for item in items:
            if isinstance(item[0], StorePath):
                of_shape.setdefault(tuple(item[1].shape), []).append(item)
        for files in of_shape.values():
            plan = None
            with suppress(UnsupportedLayout):
                plan = plan_of(layout_of(self, files[0][1]))
            check_for_zarr(((stored_object(item[0]), item[2]) for item in files), plan)

    async def _write_by_host(
        self, items: Sequence[BatchItem], value: NDBuffer, drop_axes: tuple[int, ...]
    ) -> None:
        from zarr.buffer.cpu import buffer_prototype

        host = buffer_prototype.nd_buffer.from_numpy_array(value.as_numpy_array())
        with zarr_settings(_HOST_BUFFERS):
            await super().write(_with_prototype(items, buffer_prototype), host, drop_axes)

    async def _read_by_host(
        self, items: Sequence[BatchItem], out: NDBuffer, drop_axes: tuple[int, ...]
    ) -> None:
        from zarr.buffer.cpu import buffer_prototype

        array = out.as_ndarray_like()
        host = buffer_prototype.nd_buffer.create(
            shape=array.shape, dtype=array.dtype, order="C", fill_value=0
        )
        await asyncio.to_thread(self._check_stored, items)
        with zarr_settings(_HOST_BUFFERS):
            await super().read(_with_prototype(items, buffer_prototype), host, drop_axes)
        _assign(array, host.as_numpy_array())


# Zarr's codecs ask its configuration for buffers instead of using those that they are given. A call
# that another thread begins meanwhile gets NumPy arrays: a price of the slow path alone.
_HOST_BUFFERS = {"buffer": "zarr.buffer.cpu.Buffer", "ndbuffer": "zarr.buffer.cpu.NDBuffer"}


def _assign(target: Any, host: np.ndarray) -> None:
    import cupy

    target[...] = cupy.asarray(host)


def _with_prototype(items: Sequence[BatchItem], prototype: Any) -> list[BatchItem]:
    from dataclasses import replace

    return [(item[0], replace(item[1], prototype=prototype), *item[2:]) for item in items]


def _on_device(spec: ArraySpec) -> bool:
    from zarr.buffer import gpu

    return issubclass(spec.prototype.nd_buffer, gpu.NDBuffer)


def _refuse_irregular(items: Sequence[BatchItem]) -> None:
    """Refuse chunks that are no objects of a store, or not of one shape."""
    from zarr.storage import StorePath

    if len({tuple(item[1].shape) for item in items}) > 1:
        raise UnsupportedLayout("a rectilinear chunk grid")
    if not all(isinstance(item[0], StorePath) for item in items):
        raise UnsupportedLayout("chunks within a chunk")


def _warn_slow(what: str, cause: object) -> None:
    warnings.warn(
        f"{what} by Zarr on the host and copied to the device: {cause}",
        GpuPathWarning,
        stacklevel=3,
    )


def _read_on_device(
    layout: ChunkLayout, items: Sequence[BatchItem], out: NDBuffer, drop_axes: tuple[int, ...]
) -> None:
    with current_session().on_device():
        array: Any = out.as_ndarray_like()
        boxes = [box_of(chunk, target, drop_axes) for _, _, chunk, target, _ in items]
        regular = [box for box in boxes if box is not None]
        if len(regular) == len(boxes) and len({box.step for box in regular}) == 1:
            read_items(
                [
                    ReadItem(stored_object(item[0]), box)
                    for item, box in zip(items, regular, strict=True)
                ],
                layout,
                array,
                kept_axes(items[0][2], drop_axes),
            )
        else:
            _read_irregular(layout, items, array, drop_axes)


def _read_irregular(
    layout: ChunkLayout, items: Sequence[BatchItem], array: Any, drop_axes: tuple[int, ...]
) -> None:
    """Read the whole of every object that is touched, some at a time, and index on the device."""
    import cupy

    nbytes = math.prod(layout.outer_shape) * layout.dtype.itemsize
    at_once = max(1, FANCY_NBYTES // max(1, nbytes))
    for first in range(0, len(items), at_once):
        group = items[first : first + at_once]
        whole = _read_whole([item[0] for item in group], layout)
        for chunk, (_, _, chunk_selection, out_selection, _) in zip(whole, group, strict=True):
            part = chunk[_device_selection(chunk_selection)]
            if drop_axes:
                part = part.squeeze(axis=drop_axes)
            array[_device_selection(out_selection)] = part
        cupy.cuda.get_current_stream().synchronize()


def _read_whole(store_paths: Sequence[Any], layout: ChunkLayout) -> Any:
    """Read whole stored objects on the device; shape (n, *layout.outer_shape)."""
    import cupy

    shape = layout.outer_shape
    whole = cupy.empty((len(store_paths), *shape), layout.dtype)
    zero, one = (0,) * len(shape), (1,) * len(shape)
    for store_path, target in zip(store_paths, whole, strict=True):
        item = ReadItem(stored_object(store_path), Box(zero, one, shape, zero))
        read_items([item], layout, target, range(len(shape)))
    return whole


def _write_on_device(
    layout: ChunkLayout,
    items: Sequence[BatchItem],
    value: NDBuffer,
    drop_axes: tuple[int, ...],
    loop: asyncio.AbstractEventLoop,
) -> None:
    import cupy

    with current_session().on_device():
        array = cupy.asarray(value.as_ndarray_like())
        if array.dtype != layout.dtype:
            array = array.astype(layout.dtype)
        complete: list[tuple[Any, WriteItem]] = []
        partial: list[BatchItem] = []
        for item in items:
            box = box_of(item[2], item[3], drop_axes)
            if item[4] and box is not None and set(box.step) <= {1}:
                axes = kept_axes(item[2], drop_axes) if array.ndim else ()
                complete.append((item[0], WriteItem(array, box, axes)))
            else:
                partial.append(item)
        keep_empty = bool(items[0][1].config.write_empty_chunks)
        _encode(complete, layout, keep_empty, loop)
        nbytes = math.prod(layout.outer_shape) * layout.dtype.itemsize
        at_once = max(1, FANCY_NBYTES // max(1, nbytes))
        for first in range(0, len(partial), at_once):
            group = partial[first : first + at_once]
            merged = _merged(group, layout, array, drop_axes)
            _encode(merged, layout, keep_empty, loop)


def _merged(
    items: Sequence[BatchItem], layout: ChunkLayout, array: Any, drop_axes: tuple[int, ...]
) -> list[tuple[Any, WriteItem]]:
    """Read objects of which only a part is written, and put that part in."""
    shape = layout.outer_shape
    zero, one = (0,) * len(shape), (1,) * len(shape)
    whole = _read_whole([item[0] for item in items], layout)
    merged = []
    for chunk, (store_path, _, chunk_selection, out_selection, _) in zip(whole, items, strict=True):
        part = array[_device_selection(out_selection)] if array.ndim else array
        if drop_axes and array.ndim:
            # The value lacks the axes that the selection drops: they come back with length 1.
            part = part[
                tuple(None if axis in drop_axes else slice(None) for axis in range(len(shape)))
            ]
        chunk[_device_selection(chunk_selection)] = part
        merged.append(
            (store_path, WriteItem(chunk, Box(zero, one, shape, zero), tuple(range(len(shape)))))
        )
    return merged


def _encode(
    items: Sequence[tuple[Any, WriteItem]],
    layout: ChunkLayout,
    keep_empty: bool,
    loop: asyncio.AbstractEventLoop,
) -> None:
    from zarr.buffer.cpu import Buffer

    def store(number: int, data: np.ndarray | None) -> Any:
        store_path = items[number][0]
        work = store_path.delete() if data is None else store_path.set(Buffer(data))
        return asyncio.run_coroutine_threadsafe(work, loop)

    write_on_device([item for _, item in items], layout, store, keep_empty=keep_empty)


def _device_selection(selection: Any) -> Any:
    """Return a selection whose index arrays CuPy takes."""
    import cupy

    if not isinstance(selection, tuple):
        selection = (selection,)
    return tuple(cupy.asarray(part) if isinstance(part, np.ndarray) else part for part in selection)


register_pipeline(GpuCodecPipeline)
