"""Codec pipeline of the host: all cores decode, after every chunk is validated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from zarr.abc.store import Store
from zarr.buffer.cpu import Buffer, NDBuffer
from zarr.storage import LocalStore
from zarrs import ZarrsCodecPipeline

from linumpy.core.errors import InputError
from linumpy.store.chunk_guard import ChunkPlan, check_chunk, plan_chunks
from linumpy.store.chunk_layout import ChunkLayout
from linumpy.store.manifest import check_chunk_file
from linumpy.store.ordered_shards import encode_shards, ordered_layout, shards_together
from linumpy.store.remote_store import RemoteStore
from linumpy.store.untrusted_zarr import check_array, stay_inside
from linumpy.store.zarr_adapter import has_zarrs_decoder, read_results, zarr_fallback

Item = tuple[Any, Any, Any, Any, bool]
"""What zarr hands over for a chunk: its key, its spec, the selection in it and in the whole,
and whether the chunk is wanted completely."""


class GuardedZarrsCodecPipeline(ZarrsCodecPipeline):
    """Zarrs' pipeline behind `linumpy.store.chunk_guard`, for arrays in local folders.

    Where the store has a manifest, the file of each chunk is compared with it first.

    Where zarrs or the guard do not support a codec, zarr's own codecs do the work; so do they for
    other stores, but for object stores, which have a pipeline of their own.
    Zarrs does not compare the crc32c of a chunk that is wanted in part, nor of any in a shard that
    is: the guard does. Arrays in Fortran order or of foreign byte order, which zarrs refuses, are
    decoded aside and copied.
    """

    for_object_stores: ClassVar[type[GuardedZarrsCodecPipeline] | None] = None
    """Pipeline of arrays in object stores; `linumpy.store.host_zarr` names it."""

    _listed = True

    @classmethod
    def from_array_metadata_and_store(cls, array_metadata: Any, store: Store) -> Any:
        """Build the pipeline of one array; NotImplementedError sends zarr to its own."""
        where = store.root if isinstance(store, LocalStore) else str(store)
        check_array(array_metadata, where)
        if plan_chunks(array_metadata) is None:
            raise InputError(
                f"{where}: an array whose codecs cannot be checked before they decode; expected at "
                "most one compressor, and no shards within shards or within other codecs"
            )
        if isinstance(store, RemoteStore):
            if cls.for_object_stores is None:
                raise NotImplementedError("object stores are read in `host_context` alone")
            return cls.for_object_stores.from_array_metadata_and_store(array_metadata, store)
        if not isinstance(store, LocalStore):
            raise NotImplementedError("only local folders can be checked before they are decoded")
        return super().from_array_metadata_and_store(array_metadata, store)

    @cached_property
    def plan(self) -> ChunkPlan | None:
        """How the chunks of this array are stored; None for codecs unknown to the guard."""
        return plan_chunks(self.metadata)

    @property
    def uses_zarrs(self) -> bool:
        """Whether this array is decoded by zarrs, on all cores."""
        return has_zarrs_decoder(self) and self.plan is not None and not self.plan.loose

    async def read(
        self, batch_info: Iterable[Item], out: Any, drop_axes: tuple[int, ...] = ()
    ) -> Any:
        """Check the chunks of a request, then decode them into `out`.

        Returns
        -------
        The result that Zarr expects of a pipeline: which chunks were missing.

        Raises
        ------
        InputError
            Naming the file of the first chunk that is refused or cannot be decoded.
        """
        items = list(batch_info)
        await asyncio.to_thread(self._check, items)
        target = out.as_ndarray_like()
        boxes = _boxes(items, target.shape) if self.uses_zarrs else None
        if boxes is None or not isinstance(target, np.ndarray):
            fallback = self._zarrs_own_fallback()
            await _decode(partial(fallback.read, drop_axes=drop_axes), items, out)
            return await read_results(items)
        items, shape = boxes
        if target.dtype.isnative and target.flags.c_contiguous:
            await _decode(super().read, items, NDBuffer.from_numpy_array(target.reshape(shape)))
            return await read_results(items)
        aside = np.empty(shape, target.dtype.newbyteorder("="))
        await _decode(super().read, items, NDBuffer.from_numpy_array(aside))
        target[...] = aside.reshape(target.shape)
        return await read_results(items)

    async def write(
        self, batch_info: Iterable[Item], value: Any, drop_axes: tuple[int, ...] = ()
    ) -> None:
        """Encode and store chunks; those written in part are checked first, as they are read."""
        items = list(batch_info)
        await asyncio.to_thread(self._check, [item for item in items if not _whole(item)], True)
        source = value.as_ndarray_like()
        boxes = _boxes(items, source.shape) if self.uses_zarrs else None
        if boxes is None or not isinstance(source, np.ndarray):
            await self._zarrs_own_fallback().write(items, value, drop_axes)
            return
        items, shape = boxes
        source = source.reshape(shape)
        layout = ordered_layout(self.metadata, items[0][1]) if items else None
        if layout is not None:
            await _write_ordered([item for item in items if item[4]], source, layout)
            items = [item for item in items if not item[4]]
        if items:
            await super().write(items, NDBuffer.from_numpy_array(source))

    def _zarrs_own_fallback(self) -> Any:
        fallback = zarr_fallback(self)
        if fallback is None:
            raise InputError(f"{self.store}: codecs that cannot be decoded here")
        return fallback

    def _check_files(self, items: list[Item]) -> None:
        """Refuse files that are not those of the store; before anything of them is read."""
        for item in items:
            stay_inside(item[0].store.root, _file(item[0]))
            # an array that nothing lists when it is first touched is being written
            if self._listed:
                self._listed = check_chunk_file(_file(item[0]))

    def _check(self, items: list[Item], whole: bool = False) -> None:
        self._check_files(items)
        if self.plan is None:
            return
        for item in items:
            parts = item[2] if isinstance(item[2], tuple) else (item[2],)
            # zarrs leaves out the checksums of chunks and shards that it decodes in part
            check_chunk(
                _file(item[0]), self.plan, None if whole else parts, verify=not _whole(item)
            )


async def _write_ordered(items: list[Item], source: np.ndarray, layout: ChunkLayout) -> None:
    """Store whole shards, their chunks in order: zarrs puts them where its threads are ready."""
    together = shards_together(layout)
    for first in range(0, len(items), together):
        part = items[first : first + together]
        boxes = [np.asarray(source[item[3]], layout.dtype) for item in part]
        keep_empty = bool(part[0][1].config.write_empty_chunks)
        encoded = await asyncio.to_thread(encode_shards, boxes, layout, keep_empty=keep_empty)
        for (key, *_), data in zip(part, encoded, strict=True):
            await (key.delete() if data is None else key.set(Buffer.from_bytes(data)))


async def _decode(read: Callable[..., Awaitable[None]], items: list[Item], out: Any) -> None:
    """Decode a request with `read`; if that fails, chunk by chunk again, to say which one it is."""
    try:
        await read(items, out)
    except BaseException as error:
        if not _is_decoding_error(error):
            raise
        for item in items:
            try:
                await read([item], out)
            except BaseException as again:
                if not _is_decoding_error(again):
                    raise
                raise InputError(f"{_file(item[0])}: cannot be decoded ({again})") from again
        raise InputError(f"{_file(items[0][0])}: cannot be decoded ({error})") from error


def _boxes(items: list[Item], shape: tuple[int, ...]) -> tuple[list[Item], tuple[int, ...]] | None:
    """Turn a request into one of plain boxes, with an axis of length 1 for each integer.

    Zarrs works the dropped axes out again from the lengths of the selections, and goes wrong
    where a slice has length 1 too.

    Returns
    -------
    The changed items and the shape that the whole then has; None for steps, index arrays, and a
    constant written to a part.
    """
    boxes: list[Item] = []
    full = shape
    for key, spec, selection, whole_selection, complete in items:
        inside = selection if isinstance(selection, tuple) else (selection,)
        outside = whole_selection if isinstance(whole_selection, tuple) else (whole_selection,)
        slices = [part for part in inside if isinstance(part, slice)]
        integers = [part for part in inside if isinstance(part, int | np.integer)]
        if (
            len(slices) + len(integers) != len(inside)
            or len(inside) != len(spec.shape)
            or not all(isinstance(part, slice) for part in outside)
            or len(slices) != len(outside)
            or len(shape) != len(outside)
            or any(part.step not in (None, 1) for part in (*slices, *outside))
        ):
            return None
        sides, places = iter(shape), iter(outside)
        keep = [isinstance(part, slice) for part in inside]
        full = tuple(next(sides) if kept else 1 for kept in keep)
        wide = tuple(next(places) if kept else slice(0, 1) for kept in keep)
        box = tuple(p if isinstance(p, slice) else slice(int(p), int(p) + 1) for p in inside)
        boxes.append((key, spec, box, wide, complete))
    return boxes, full


def _is_decoding_error(error: BaseException) -> bool:
    # a panic of the decoder is no Exception, so that a plain handler would let it pass
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _file(key: Any) -> Path:
    return Path(key.store.root, key.path)


def _whole(item: Item) -> bool:
    """Whether all of a chunk is wanted, what lies outside the array included."""
    _, spec, selection, _, _ = item
    parts = selection if isinstance(selection, tuple) else (selection,)
    return len(parts) == len(spec.shape) and all(
        isinstance(part, slice) and part.indices(side) == (0, side, 1)
        for part, side in zip(parts, spec.shape, strict=True)
    )
