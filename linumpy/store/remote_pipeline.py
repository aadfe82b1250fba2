"""Codec pipeline of remote arrays: fetched in parts, decoded as local ones.

What a request needs of a stored object goes to a file in memory, at its place; the rest of that
file is a hole. So the same checks and the same decoder serve local and remote arrays, on all
cores, and give the same bits.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from zarr.abc.store import Store
from zarr.buffer.cpu import NDBuffer
from zarr.storage import LocalStore, StorePath

from linumpy.core.errors import InputError
from linumpy.store.chunk_guard import wanted_chunks
from linumpy.store.digests import shard_layout
from linumpy.store.guarded_pipeline import GuardedZarrsCodecPipeline, Item
from linumpy.store.remote_store import RemoteStore
from linumpy.store.shards import ShardIndex
from linumpy.store.zarr_adapter import read_results

_FILES = "/proc/self/fd"
_NO_FILE = "missing"
_IN_FLIGHT_BYTES = 1 << 29
_IN_FLIGHT = (4, 64)
_NEAR_BYTES = 1 << 20
"""Parts no further from each other than this are fetched as one: a request costs about as much."""


class RemoteCodecPipeline(GuardedZarrsCodecPipeline):
    """The pipeline of one array in a `RemoteStore`."""

    @classmethod
    def from_array_metadata_and_store(cls, array_metadata: Any, store: Store) -> Any:
        """Build the pipeline of one array."""
        # Files in memory that hold chunks, by their numbers.
        return super().from_array_metadata_and_store(
            array_metadata, LocalStore(_FILES, read_only=True)
        )

    async def read(
        self, batch_info: Iterable[Item], out: Any, drop_axes: tuple[int, ...] = ()
    ) -> Any:
        """Fetch the chunks of a request, many at a time, and decode each as it comes.

        Raises
        ------
        InputError
            Naming the object that cannot be fetched, is refused or cannot be decoded.
        """
        items = list(batch_info)
        if not items:
            return ()
        target = out.as_ndarray_like()
        room = out
        aside = None
        if not (target.dtype.isnative and target.flags.c_contiguous):
            # Chunks come one by one: each must leave the others' places alone.
            aside = np.empty(target.shape, target.dtype.newbyteorder("="))
            room = NDBuffer.from_numpy_array(aside)
        at_once = asyncio.Semaphore(_in_flight(items[0][1]))
        failed = asyncio.Event()

        async def serve(item: Item) -> None:
            async with at_once:
                if failed.is_set():
                    return
                try:
                    await self._serve(item, room, drop_axes)
                except BaseException:
                    failed.set()
                    raise

        await _all(serve(item) for item in items)
        if aside is not None:
            target[...] = aside
        return await read_results(items)

    async def write(
        self, batch_info: Iterable[Item], value: Any, drop_axes: tuple[int, ...] = ()
    ) -> None:
        """Refuse to write."""
        raise InputError("outputs must be local; an array on an object store is only read")

    def _check_files(self, items: list[Item]) -> None:
        """Leave files in memory alone: what they hold was compared when it was fetched."""

    async def _serve(self, item: Item, room: Any, drop_axes: tuple[int, ...]) -> None:
        key, spec, selection, outside, whole = item
        url = f"{key.store}/{key.path}"
        with _file_in_memory(url) as file:
            try:
                found = await self._fetch(key.store, key.path, file, selection)
                staged = StorePath(self.store, str(file) if found else _NO_FILE)
                await super().read([(staged, spec, selection, outside, whole)], room, drop_axes)
            except InputError as error:
                raise InputError(str(error).replace(f"{_FILES}/{file}", url)) from error

    async def _fetch(self, store: RemoteStore, key: str, file: int, selection: Any) -> bool:
        """Bring what a selection needs of an object to a file; False where there is no object."""
        plan = self.plan
        if plan is not None and plan.shard is not None and store.gives_parts:
            parts = selection if isinstance(selection, tuple) else (selection,)
            places = list(wanted_chunks(plan, parts))
            if len(places) < plan.shard.n_chunks:
                return await self._fetch_parts(store, key, file, plan.shard, places)
        found = await store.fetch(key)
        if found is None:
            return False
        _put(file, found[0], 0)
        if store.manifest is not None:
            copy = f"{_FILES}/{file}"
            await asyncio.to_thread(store.manifest.check_copy, key, copy, self._layout)
        return True

    @cached_property
    def _layout(self) -> ShardIndex | None:
        return shard_layout(self.metadata.to_dict())

    async def _fetch_parts(
        self,
        store: RemoteStore,
        key: str,
        file: int,
        shard: ShardIndex,
        places: list[tuple[int, ...]],
    ) -> bool:
        """Bring a shard's index and some inner chunks to a file, each to its place."""
        nbytes = shard.nbytes
        found = await store.fetch(key, {"suffix": nbytes} if shard.at_end else (0, nbytes))
        if found is None:
            return False
        index, size = bytes(found[0]), found[1]
        os.ftruncate(file, size)
        _put(file, index, size - len(index) if shard.at_end else 0)
        if len(index) < nbytes:
            # The guard names the defect, also of entries that lie outside.
            return True
        table = np.frombuffer(index[: 16 * shard.n_chunks], "<u8")
        table = table.reshape(*shard.shape, 2)
        wanted = [tuple(table[place].tolist()) for place in places]
        inside = [(first, first + n) for first, n in wanted if first + n <= size]

        async def bring(part: tuple[int, int]) -> None:
            got = await store.fetch(key, part)
            if got is None:
                raise InputError(f"{store}/{key}: vanished while it was read")
            _put(file, got[0], part[0])

        await _all(bring(part) for part in _joined(inside))
        return True


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait until all have ended, then raise the first error.

    None is left running, or ended before its time: its file in memory would be closed under it,
    and the file's number would by then be another's.
    """
    for error in await asyncio.gather(*work, return_exceptions=True):
        if error is not None:
            raise error


def _in_flight(spec: Any) -> int:
    """Return how many chunks to fetch at a time, by their size."""
    nbytes = int(prod(spec.shape) * spec.dtype.to_native_dtype().itemsize)
    least, most = _IN_FLIGHT
    return max(least, min(most, _IN_FLIGHT_BYTES // max(1, nbytes)))


def _joined(parts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join parts that lie near each other."""
    joined: list[tuple[int, int]] = []
    for first, stop in sorted(parts):
        if joined and first - joined[-1][1] <= _NEAR_BYTES:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((first, stop))
    return joined


@contextmanager
def _file_in_memory(name: str) -> Iterator[int]:
    # Has no name in any folder, so that nothing is left behind however the process ends.
    file = os.memfd_create(name[-200:], os.MFD_CLOEXEC)
    try:
        yield file
    finally:
        os.close(file)


def _put(file: int, data: Any, at: int) -> None:
    view = memoryview(data)
    # One write call takes at most 2 GiB.
    while len(view):
        done = os.pwrite(file, view, at)
        view, at = view[done:], at + done
