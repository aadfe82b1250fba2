"""Device writes: gather, encode in batches, pack, hand over to the store.

While the CPU fetches and stores what one group of objects became, the device encodes the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from linumpy.core.errors import DeviceError, DeviceMemoryError
from linumpy.core.timeline import span
from linumpy.gpu import kernels, nvcomp
from linumpy.gpu.fetch import n_threads
from linumpy.gpu.plan import element_width
from linumpy.gpu.requests import Box, copies_of
from linumpy.gpu.transfer import allocate, copy_to_host, upload
from linumpy.store.chunk_layout import ChunkLayout, UnsupportedLayout
from linumpy.store.codecs import CODECS
from linumpy.store.host_codec import encode_chunk, encoder, index_bytes, join_chunks

GROUP_NBYTES = 1 << 30
"""Decoded bytes that are encoded at once: about a thousand chunks, for which nvCOMP takes three
times as much working memory."""

BACKLOG = 2
"""Groups that are fetched and stored while another is encoded; they hold only what they became."""

Store = Callable[[int, "np.ndarray | None"], "Future[None]"]
"""Begins to store what an object became; None for an object that holds the fill value alone."""


@dataclass(frozen=True)
class WriteItem:
    """A stored object to be written whole.

    Attributes
    ----------
    array
        CuPy array, in which `box` names the object's elements: `box.start` and `box.count` in the
        object, `box.out_start` in the array. Elements outside of the box get the fill value.
    kept_axes
        The object's axes that the array has, in order; along the others it is repeated.
    """

    array: Any
    box: Box
    kept_axes: tuple[int, ...]


def refuse_unwritable(layout: ChunkLayout) -> None:
    """Raise unless `write_on_device` can write the layout.

    Raises
    ------
    UnsupportedLayout
        Names what it cannot do.
    """
    if layout.chunk_nbytes >= 1 << 31:
        raise UnsupportedLayout(f"chunks of {layout.chunk_nbytes} bytes")


def encoded_by_device(layout: ChunkLayout) -> bool:
    """Whether nvCOMP compresses a layout's chunks; else the CPU's cores do.

    zstd and LZ4 of up to 16 MiB a chunk. Its gzip and deflate take six times a chunk's memory, and
    it has no Blosc.
    """
    if layout.compression is None:
        return True
    algorithm = nvcomp.ALGORITHMS.get(layout.compression)
    return (
        CODECS[layout.compression].encodes
        and algorithm is not None
        and 0 < layout.chunk_nbytes <= algorithm.max_compress_nbytes
    )


def write_on_device(
    items: Sequence[WriteItem],
    layout: ChunkLayout,
    store: Store,
    *,
    keep_empty: bool,
    group_nbytes: int = GROUP_NBYTES,
) -> None:
    """Encode stored objects on the device and store them.

    Parameters
    ----------
    items
        The objects.
    layout
        How chunks are stored.
    store
        Is handed each object's number and bytes (uint8, on the host).
    keep_empty
        Whether chunks that hold the fill value alone are stored.
    group_nbytes
        Decoded bytes to encode at once, one object at least; made smaller when device memory is
        short.

    Raises
    ------
    DeviceMemoryError
        When device memory does not hold one object, which the CPU's cores would encode if nvCOMP's
        working memory is all that is missing.
    DeviceError
        When nvCOMP fails.
    """
    import cupy

    object_nbytes = int(np.prod(layout.outer_shape, dtype=np.int64)) * layout.dtype.itemsize
    per_group = max(1, group_nbytes // max(1, object_nbytes))
    kind = _Group if encoded_by_device(layout) else _HostGroup
    caller = cupy.cuda.get_current_stream()
    device = cupy.cuda.Device()

    def hand_over(group: _Group, number: int, first: int) -> None:
        """Fetch what an object became, and see it stored."""
        with device, span("store", first + number):
            store(first + number, group.fetch(number)).result()

    def attempt(first: int) -> _Group | str:
        """Encode a group; answers it, or what memory was short."""
        group = kind(items[first : first + per_group], layout, keep_empty, caller)
        try:
            group.encode()
        except cupy.cuda.memory.OutOfMemoryError as error:
            return str(error)
        return group

    first = 0
    pending: deque[list[Future[None]]] = deque()

    def drain(left: int) -> None:
        """Wait until no more than `left` groups are being stored."""
        while len(pending) > left:
            for future in pending.popleft():
                future.result()

    with ThreadPoolExecutor(n_threads(), thread_name_prefix="store") as pool, ExitStack() as ending:
        # After an error nothing more is stored; at the end of all nothing is left to cancel.
        ending.callback(lambda: [future.cancel() for group in pending for future in group])
        while first < len(items):
            drain(BACKLOG)
            with span("encode", f"{min(per_group, len(items) - first)} objects"):
                group = attempt(first)
            if isinstance(group, str):
                # Groups on their way to the store may hold what was missing.
                was_alone = not pending
                drain(0)
                cupy.get_default_memory_pool().free_all_blocks()
                if was_alone and per_group == 1 and kind is _Group and layout.compression:
                    # nvCOMP wants a gigabyte for the first chunk; the cores want none.
                    kind = _HostGroup
                    continue
                if was_alone and per_group == 1:
                    raise DeviceMemoryError(
                        f"device memory does not hold one object of {object_nbytes} bytes "
                        f"while it is encoded ({group})"
                    )
                per_group = -(-per_group // 2) if was_alone else per_group
                continue
            pending.append(
                [pool.submit(hand_over, group, number, first) for number in range(len(group.items))]
            )
            first += len(group.items)
        drain(0)


class _Group:
    """Objects that are encoded together on the device."""

    def __init__(
        self, items: Sequence[WriteItem], layout: ChunkLayout, keep_empty: bool, caller: Any
    ) -> None:
        import cupy

        self.items = items
        self.layout = layout
        self.keep_empty = keep_empty
        self.caller = caller
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.n_chunks = 1 if layout.shard is None else layout.shard.n_chunks
        self.n = len(items) * self.n_chunks
        self.room = max(16, -(-layout.chunk_nbytes // 16) * 16)
        self._kept: list[Any] = []

    def encode(self) -> None:
        """Encode, and put each object's chunks one after the other in device memory."""
        try:
            self._gather()
            differs = self._start_comparison()
            self._start_compression()
            checksums = self._start_checksums()
            self.stream.synchronize()
            self._check_compression()
            self.sizes = self.device_sizes.get(stream=self.stream).astype(np.int64)
            self.keep = np.ones(self.n, bool)
            if differs is not None:
                self.keep = differs.get(stream=self.stream) != 0
            self._pack(checksums)
        finally:
            # Memory goes back to the pool only when no kernel can touch it.
            self.stream.synchronize()
            self._kept.clear()
        del self.chunks, self.encoded, self.device_sizes

    def _gather(self) -> None:
        """Copy every chunk's elements into scratch memory, one chunk after the other."""
        layout = self.layout
        n_axes = len(layout.chunk_shape)
        (self.chunks,) = allocate(self.caller, self.stream, (self.n * self.room, np.uint8))
        self.pointers = self.chunks.data.ptr + self.room * np.arange(self.n, dtype=np.int64)
        full = np.array(layout.chunk_shape, np.int64)
        whole = np.zeros(self.n, bool)
        groups: dict[tuple[int, ...], list[tuple[np.ndarray, ...]]] = {}
        for number, item in enumerate(self.items):
            strides = [0] * n_axes
            for axis, stride in zip(item.kept_axes, item.array.strides, strict=True):
                strides[axis] = stride
            copies = copies_of(item.box, layout)
            slots = number * self.n_chunks + copies.chunk
            whole[slots] = (copies.count == full).all(axis=1)
            source = item.array.data.ptr + copies.target @ np.array(strides, np.int64)
            target = self.pointers[slots] + copies.source @ np.array(layout.strides, np.int64)
            groups.setdefault(tuple(strides), []).append((source, target, copies.count))
        partial = self.pointers[~whole]
        if len(partial):
            counts = np.broadcast_to(full, (len(partial), n_axes))
            self._copy(np.zeros_like(partial), partial, counts, (0,) * n_axes)
        for strides_of_group, parts in groups.items():
            sources, targets, counts = (
                np.concatenate(column) for column in zip(*parts, strict=True)
            )
            self._copy(sources, targets, counts, strides_of_group)

    def _copy(
        self,
        source: np.ndarray,
        target: np.ndarray,
        counts: np.ndarray,
        strides: tuple[int, ...],
    ) -> None:
        layout = self.layout
        itemsize = layout.dtype.itemsize
        both = np.array([strides, layout.strides], np.int64)
        if not both.shape[1]:
            both, counts = np.zeros((2, 1), np.int64), np.ones((len(source), 1), np.int64)
        swap = 0
        if layout.byteswapped:
            swap = itemsize // 2 if layout.dtype.kind == "c" else itemsize
        filling = not source.any()
        fill = layout.fill
        if filling and swap:
            # The kernel's fill value is written as it is.
            fill = np.frombuffer(fill, layout.dtype).byteswap().tobytes()
        width = itemsize
        if not filling and not swap:
            width = element_width(itemsize, counts, both, (source, target))
        if width != itemsize:
            counts, both = counts.copy(), both.copy()
            counts[:, -1] = counts[:, -1] * itemsize // width
            both[:, -1] = width
        table = upload(np.stack([source, target]), self.caller, self.stream)
        counts, both = (upload(a, self.caller, self.stream) for a in (counts, both))
        sources, targets = table.view(np.uint64)
        kernels.copy_boxes(sources, targets, counts, both, width, fill, swap, self.stream)
        self._kept.append((table, counts, both))

    def _start_comparison(self) -> Any:
        if self.keep_empty or not self.layout.chunk_nbytes:
            return None
        layout = self.layout
        itemsize = layout.dtype.itemsize
        fill = layout.fill
        if layout.byteswapped:
            fill = np.frombuffer(fill, layout.dtype).byteswap().tobytes()
        (differs,) = allocate(self.caller, self.stream, (self.n, np.int32))
        differs.data.memset_async(0, differs.nbytes, self.stream)
        kernels.differs_from_fill(
            self.chunks,
            self.n,
            self.room,
            layout.chunk_nbytes // itemsize,
            itemsize,
            fill,
            differs,
            self.stream,
        )
        return differs

    def _start_compression(self) -> None:
        layout = self.layout
        nbytes = np.full(self.n, layout.chunk_nbytes, np.int64)
        self.statuses = None
        if layout.compression is None:
            self.device_sizes = upload(nbytes, self.caller, self.stream).view(np.uint64)
            self.encoded = self.chunks
            self.encoded_pointers = self.pointers
            return
        algorithm = nvcomp.ALGORITHMS[layout.compression]
        # LZ4 blocks follow their decoded size; a zstd frame may get a checksum behind it.
        lead, trail = (16, 0) if layout.compression == "lz4" else (0, 4)
        bound = nvcomp.compress_bound(algorithm, layout.chunk_nbytes)
        bound = -(-(lead + bound + trail) // 16) * 16
        temp = nvcomp.compress_temp_nbytes(
            algorithm, self.n, layout.chunk_nbytes, self.n * layout.chunk_nbytes
        )
        self.encoded, scratch, self.device_sizes, self.statuses = allocate(
            self.caller,
            self.stream,
            (self.n * bound, np.uint8),
            (max(1, temp), np.uint8),
            (self.n, np.uint64),
            (self.n, np.int32),
        )
        self.encoded_pointers = self.encoded.data.ptr + bound * np.arange(self.n, dtype=np.int64)
        table = upload(
            np.stack([self.pointers, nbytes, self.encoded_pointers + lead]),
            self.caller,
            self.stream,
        )
        source, source_nbytes, target = table.view(np.uint64)
        nvcomp.compress(
            algorithm,
            source,
            source_nbytes,
            layout.chunk_nbytes,
            target,
            self.device_sizes,
            self.statuses,
            scratch,
            self.stream,
        )
        if getattr(layout.compressor, "checksum", False):
            kernels.zstd_checksum(
                target, self.device_sizes, source, layout.chunk_nbytes, None, self.stream
            )
        if lead:
            self.encoded_pointers += lead - 4
            size = upload(np.array([layout.chunk_nbytes], "<u4"), self.caller, self.stream)
            self._copy_bytes(
                np.full(self.n, size.data.ptr), self.encoded_pointers, np.full(self.n, 4)
            )
            with self.stream:
                self.device_sizes += 4
            self._kept.append(size)
        self._kept.append((scratch, table))

    def _check_compression(self) -> None:
        if self.statuses is None:
            return
        bad = np.flatnonzero(self.statuses.get(stream=self.stream) != nvcomp.SUCCESS)
        if len(bad):
            raise DeviceError(f"nvCOMP could not compress {len(bad)} of {self.n} chunks")

    def _start_checksums(self) -> Any:
        if not self.layout.has_crc32c:
            return None
        pointers = upload(self.encoded_pointers, self.caller, self.stream).view(np.uint64)
        (result,) = allocate(self.caller, self.stream, (self.n, np.uint32))
        nvcomp.crc(
            nvcomp.CRC32C,
            pointers,
            self.device_sizes,
            self.layout.chunk_nbytes,
            result,
            self.stream,
        )
        self._kept.append(pointers)
        return result

    def _pack(self, checksums: Any) -> None:
        trailer = 0 if checksums is None else 4
        sizes, keep = self.sizes, self.keep
        stored = np.where(keep, sizes + trailer, 0).reshape(len(self.items), self.n_chunks)
        self.stored = stored
        self.within = np.cumsum(stored, axis=1) - stored
        self.lengths = stored.sum(axis=1)
        starts = np.concatenate([[0], np.cumsum(-(-self.lengths // 16) * 16)])
        self.starts = starts[:-1]
        (self.packed,) = allocate(self.caller, self.stream, (int(starts[-1]) + 16, np.uint8))
        chosen = np.flatnonzero(keep)
        if not len(chosen):
            return
        source = self.encoded_pointers[chosen]
        target = self.packed.data.ptr + (self.starts[:, None] + self.within).ravel()[chosen]
        self._copy_bytes(source, target, sizes[chosen])
        if checksums is not None:
            fours = np.full(len(chosen), 4)
            self._copy_bytes(checksums.data.ptr + 4 * chosen, target + sizes[chosen], fours)

    def _copy_bytes(self, source: np.ndarray, target: np.ndarray, nbytes: np.ndarray) -> None:
        table = upload(np.stack([source, target, nbytes]), self.caller, self.stream)
        sources, targets, sizes = table.view(np.uint64)
        kernels.copy_bytes(sources, targets, sizes, self.stream)
        self._kept.append(table)

    def fetch(self, number: int) -> np.ndarray | None:
        """Return an object's bytes, with the index of a shard; None if nothing is stored of it."""
        import cupy

        index = self.layout.shard
        keep = self.keep[number * self.n_chunks : (number + 1) * self.n_chunks]
        if not keep.any():
            return None
        start, length = int(self.starts[number]), int(self.lengths[number])
        lead = index.nbytes if index is not None and not index.at_end else 0
        data = np.empty(length + (0 if index is None else index.nbytes), np.uint8)
        body = self.packed[start : start + length]
        stream = cupy.cuda.Stream(non_blocking=True)
        copy_to_host(body.data, data[lead : lead + length], stream)
        if index is not None:
            entries = index_bytes(
                self.within[number] + lead, self.stored[number], keep, index.has_crc32c
            )
            at = 0 if lead else length
            data[at : at + index.nbytes] = np.frombuffer(entries, np.uint8)
        return data


class _HostGroup(_Group):
    """Objects that are gathered on the device and compressed by the CPU's cores."""

    def encode(self) -> None:
        """Gather on the device, fetch, and compress chunk by chunk."""
        import cupy

        layout = self.layout
        device, codec = cupy.cuda.Device(), encoder(layout)
        fill = layout.fill * (layout.chunk_nbytes // layout.dtype.itemsize)
        if layout.byteswapped:
            fill = np.frombuffer(fill, layout.dtype).byteswap().tobytes()

        def compress(chunk: int) -> bytes | None:
            with device:
                data = np.empty(layout.chunk_nbytes, np.uint8)
                stream = cupy.cuda.Stream(non_blocking=True)
                copy_to_host((self.chunks[chunk * self.room :]).data, data, stream)
            if not self.keep_empty and data.tobytes() == fill:
                return None
            return encode_chunk(data, layout, codec)

        try:
            self._gather()
        finally:
            self.stream.synchronize()
            self._kept.clear()
        with ThreadPoolExecutor(n_threads(), thread_name_prefix="encode") as pool:
            self._bodies = list(pool.map(compress, range(self.n)))
        del self.chunks

    def fetch(self, number: int) -> np.ndarray | None:
        """Return an object's bytes, with the index of a shard; None if nothing is stored of it."""
        bodies = self._bodies[number * self.n_chunks : (number + 1) * self.n_chunks]
        joined = join_chunks(bodies, self.layout)
        return None if joined is None else np.frombuffer(joined, np.uint8)
