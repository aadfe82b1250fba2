"""Measure the machine's limits: raw reads, decoding, encoding and copies.

Each function measures one limit and returns its rows. What cannot be measured raises, saying why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.benchmark.rows import Row, best, timed
from linumpy.core.errors import DeviceError
from linumpy.gpu import kernels, nvcomp
from linumpy.gpu.fetch import KvikioFetch, Run, n_threads, plan_runs
from linumpy.gpu.formats import EMPTY_ZSTD
from linumpy.gpu.objects import LocalObject
from linumpy.gpu.plan import ReadPlan, plan_read
from linumpy.gpu.transfer import pinned_array
from linumpy.gpu.zarr_io import array_layout, selection_items
from linumpy.store.chunk_layout import ChunkLayout, UnsupportedLayout
from linumpy.store.host_codec import decode_chunk

LAUNCHES = (256, 512, 1024, 2048, 4096, 8192)
COPY_NBYTES = 1 << 30
ONE_CORE_NBYTES = 1 << 28
ALL_CORES_NBYTES = 1 << 31


def stored_files(array: Any) -> list[Path]:
    """Return the files of an array's chunks or shards that exist and hold something."""
    paths = [Path(item.stored.name) for item in selection_items(array, None)[1]]
    return [path for path in paths if path.is_file() and path.stat().st_size]


def chunk_table(array: Any) -> tuple[ChunkLayout, ReadPlan]:
    """Return how an array's chunks are stored, and where each is.

    Raises
    ------
    UnsupportedLayout
        When its readers do not support its codecs.
    """
    layout = array_layout(array)
    _, items, _ = selection_items(array, None)
    # Nothing is placed: any strides of the target will do.
    return layout, plan_read(items, layout, layout.strides)


def read_limits(rows: Sequence[Row], decoder: str, nbytes: int) -> dict[str, dict[str, Any]]:
    """Return the slowest of what a read cannot do without: getting the bytes, and decoding them.

    Parameters
    ----------
    rows
        The limits: each way's best row counts.
    decoder
        What the names of rows of decoding begin with.
    nbytes
        Decoded bytes of the array whose files were read.

    Returns
    -------
    By page cache, ``warm`` and ``cold``: ``name`` of the row and ``gb_per_s``, decoded.
    """
    decoding = best(row for row in rows if row.name.startswith(decoder))
    found: dict[str, dict[str, Any]] = {}
    for cache in ("warm", "cold"):
        reading = best(r for r in rows if r.name.startswith("kvikio read") and r.cache == cache)
        candidates = []
        if reading is not None:
            candidates.append({"name": reading.name, "gb_per_s": nbytes / reading.median / 1e9})
        if decoding is not None:
            candidates.append({"name": decoding.name, "gb_per_s": decoding.gb_per_s})
        if candidates:
            found[cache] = min(candidates, key=lambda limit: limit["gb_per_s"])
    return found


class ContiguousRead:
    """Whole files, read by kvikio one after the other into one buffer of device memory."""

    def __init__(self, files: Sequence[Path]) -> None:
        import cupy

        self._runs = []
        at = 0
        for path in files:
            nbytes = path.stat().st_size
            self._runs.append(Run(LocalObject(str(path)), 0, nbytes, at))
            at += -(-nbytes // 4096) * 4096
        self._room = cupy.empty(max(1, at), np.uint8)
        self.nbytes = sum(run.nbytes for run in self._runs)

    def __call__(self) -> None:
        """Read everything, opening and closing the files."""
        fetch = KvikioFetch()
        try:
            fetch.start(self._runs, self._room)()
        finally:
            fetch.close()


class DeviceChunks:
    """An array's chunks on the device: compressed as they are stored, and room for them decoded.

    Attributes
    ----------
    n, nbytes
        Number of chunks that were ever written, and decoded bytes of one.
    stored_nbytes
        Compressed bytes of all.

    Raises
    ------
    UnsupportedLayout
        When nvCOMP cannot decode all of them.
    """

    def __init__(self, layout: ChunkLayout, plan: ReadPlan) -> None:
        import cupy

        if layout.compression not in (None, "zstd"):
            raise UnsupportedLayout(f"{layout.compression} is not decoded on the device")
        if layout.compression and layout.chunk_nbytes > nvcomp.MAX_CHUNK_NBYTES:
            raise UnsupportedLayout(f"chunks of {layout.chunk_nbytes} bytes")
        rows = np.flatnonzero(plan.present)
        if not len(rows):
            raise UnsupportedLayout("no chunk was ever written")
        self.n, self.nbytes = len(rows), layout.chunk_nbytes
        self.is_compressed = layout.compression is not None
        sizes = plan.nbytes[rows] - (4 if layout.has_crc32c else 0)
        self.stored_nbytes = int(sizes.sum())
        runs, place, total = plan_runs(
            plan.objects, plan.which[rows], plan.offset[rows], plan.nbytes[rows]
        )
        staging = cupy.empty(total, np.uint8)
        cupy.cuda.get_current_stream().synchronize()
        fetch = KvikioFetch()
        try:
            fetch.start(runs, staging)()
        finally:
            fetch.close()
        self._pitch = max(16, -(-self.nbytes // 16) * 16)
        self.decoded = cupy.empty(self.n * self._pitch, np.uint8)
        self.pointers = _on_device(self.decoded.data.ptr + self._pitch * np.arange(self.n))
        self.room = cupy.full(self.n, self.nbytes, np.uint64)
        if self.is_compressed:
            self._align(place + staging.data.ptr, sizes)
        else:
            nbytes = _on_device(np.minimum(sizes, self.nbytes))
            source = _on_device(place + staging.data.ptr)
            kernels.copy_bytes(source, self.pointers, nbytes, cupy.cuda.get_current_stream())
        cupy.cuda.get_current_stream().synchronize()

    def _align(self, source: np.ndarray, sizes: np.ndarray) -> None:
        """Copy the frames to multiples of 16 bytes, and see that all are fit for nvCOMP."""
        import cupy

        stream = cupy.cuda.get_current_stream()
        ends = np.cumsum(-(-sizes // 16) * 16)
        self._frames = cupy.empty(int(ends[-1]) + 16, np.uint8)
        self._source = _on_device(self._frames.data.ptr + np.concatenate([[0], ends[:-1]]))
        self._sizes = _on_device(sizes)
        unaligned = _on_device(source)
        kernels.copy_bytes(unaligned, self._source, self._sizes, stream)
        harmless = cupy.asarray(np.frombuffer(EMPTY_ZSTD, np.uint8))
        content = cupy.empty(self.n, np.uint64)
        verdict = cupy.zeros(self.n, np.int32)
        kernels.judge_zstd(
            self._source, self._sizes, self.nbytes, harmless, content, verdict, stream
        )
        unfit = int((verdict.get() != kernels.FIT).sum())
        if unfit:
            raise UnsupportedLayout(f"{unfit} of {self.n} frames are not fit for nvCOMP")

    def decoder(self, per_launch: int, n_streams: int) -> Callable[[], None]:
        """Return a function that decodes all chunks, so many a launch, over so many streams."""
        import cupy

        algorithm = nvcomp.ALGORITHMS["zstd"]
        nbytes = nvcomp.decompress_temp_nbytes(
            algorithm, per_launch, self.nbytes, per_launch * self.nbytes
        )
        streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(n_streams)]
        temps = [cupy.empty(max(1, nbytes), np.uint8) for _ in streams]
        actual, statuses = cupy.zeros(self.n, np.uint64), cupy.full(self.n, -1, np.int32)
        cupy.cuda.Device().synchronize()

        def decode() -> None:
            for number, first in enumerate(range(0, self.n, per_launch)):
                part = slice(first, first + per_launch)
                nvcomp.decompress(
                    algorithm,
                    self._source[part],
                    self._sizes[part],
                    self.pointers[part],
                    self.room[part],
                    actual[part],
                    statuses[part],
                    temps[number % n_streams],
                    streams[number % n_streams],
                )
            for stream in streams:
                stream.synchronize()

        decode()
        bad = int(((statuses != nvcomp.SUCCESS) | (actual != self.nbytes)).sum())
        if bad:
            raise DeviceError(f"nvCOMP could not decode {bad} of {self.n} chunks")
        return decode

    def encoder(self, n: int) -> Callable[[], None]:
        """Return a function that encodes the first `n` decoded chunks in one launch."""
        import cupy

        algorithm = nvcomp.ALGORITHMS["zstd"]
        if self.nbytes > algorithm.max_compress_nbytes:
            raise UnsupportedLayout(f"chunks of {self.nbytes} bytes are too large to encode")
        bound = -(-nvcomp.compress_bound(algorithm, self.nbytes) // 16) * 16
        nbytes = nvcomp.compress_temp_nbytes(algorithm, n, self.nbytes, n * self.nbytes)
        temp = cupy.empty(max(1, nbytes), np.uint8)
        target = cupy.empty(n * bound, np.uint8)
        targets = _on_device(target.data.ptr + bound * np.arange(n))
        sizes, statuses = cupy.empty(n, np.uint64), cupy.full(n, -1, np.int32)
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()

        # nvCOMP is given addresses only: the memory that they are of must outlive the calls.
        def encode(_held: Any = target) -> None:
            nvcomp.compress(
                algorithm,
                self.pointers[:n],
                self.room[:n],
                self.nbytes,
                targets,
                sizes,
                statuses,
                temp,
                stream,
            )
            stream.synchronize()

        encode()
        bad = int((statuses != nvcomp.SUCCESS).sum())
        if bad:
            raise DeviceError(f"nvCOMP could not encode {bad} of {n} chunks")
        return encode


def _on_device(addresses: np.ndarray) -> Any:
    import cupy

    return cupy.asarray(np.asarray(addresses).astype(np.uint64))


def launch_sizes(n_chunks: int) -> list[int]:
    """Return the numbers of chunks a launch to try: powers of two from 256, and all at once."""
    return [*(size for size in LAUNCHES if size < n_chunks), n_chunks]


def decode_rows(chunks: DeviceChunks, repeats: int) -> list[Row]:
    """Measure nvCOMP's decoding of chunks that lie on the device, in several batch sizes."""
    rows = []
    for per_launch in launch_sizes(chunks.n):
        n_launches = -(-chunks.n // per_launch)
        orders = {"one after the other": 1, "at once": n_launches}
        for order, n_streams in (orders if n_launches > 1 else {"one launch": 1}).items():
            seconds = _times(partial(chunks.decoder, per_launch, n_streams), repeats)
            if seconds is not None:
                name = f"nvCOMP decode, {per_launch} chunks a launch"
                nbytes = chunks.n * chunks.nbytes
                rows.append(Row(name, "", seconds, nbytes, chunks.stored_nbytes, note=order))
    return rows


def encode_rows(chunks: DeviceChunks, repeats: int) -> list[Row]:
    """Measure nvCOMP's zstd encoding of an array's decoded chunks, in several batch sizes."""
    rows = []
    for n in launch_sizes(chunks.n):
        seconds = _times(partial(chunks.encoder, n), repeats)
        if seconds is not None:
            rows.append(Row(f"nvCOMP encode, {n} chunks a launch", "", seconds, n * chunks.nbytes))
    return rows


def _times(prepare: Callable[[], Callable[[], None]], repeats: int) -> list[float] | None:
    """Time what `prepare` returns; None where device memory does not hold its buffers."""
    import cupy

    try:
        return timed(prepare(), repeats)
    except cupy.cuda.memory.OutOfMemoryError:
        return None
    finally:
        cupy.get_default_memory_pool().free_all_blocks()


def copy_rows(repeats: int, nbytes: int = COPY_NBYTES) -> list[Row]:
    """Measure copies between host and device, and on the device."""
    import cupy

    device = cupy.ones(nbytes, np.uint8)
    other = cupy.empty_like(device)
    stream = cupy.cuda.get_current_stream()
    pinned = pinned_array(nbytes)
    # Pages are the process's only once they were written to.
    pinned[:] = 1
    pageable = np.ones(nbytes, np.uint8)

    def copies(host: np.ndarray) -> tuple[Callable[[], None], Callable[[], None]]:
        def up() -> None:
            device.data.copy_from_host_async(host.ctypes.data, nbytes, stream)
            stream.synchronize()

        def down() -> None:
            device.data.copy_to_host_async(host.ctypes.data, nbytes, stream)
            stream.synchronize()

        return up, down

    def across() -> None:
        other.data.copy_from_device_async(device.data, nbytes, stream)
        stream.synchronize()

    rows = []
    for name, host in (("pinned", pinned), ("pageable", pageable)):
        for way, work in zip(("host to device", "device to host"), copies(host), strict=True):
            work()
            rows.append(Row(f"{way}, {name}", "", timed(work, repeats), nbytes))
    across()
    seconds = timed(across, repeats)
    rows.append(Row("copy on the device", "", seconds, 2 * nbytes, note="read + write"))
    return rows


def core_rows(layout: ChunkLayout, plan: ReadPlan, repeats: int) -> list[Row]:
    """Measure decoding by one core and by all, checksums checked, of chunks in host memory.

    Raises
    ------
    UnsupportedLayout
        When there is nothing to decode.
    """
    present = np.flatnonzero(plan.present)
    if layout.compression is None or not len(present):
        raise UnsupportedLayout("the chunks are raw, or none was ever written")
    cores = n_threads()
    rows = []
    for n_workers, nbytes in {1: ONE_CORE_NBYTES, cores: ALL_CORES_NBYTES}.items():
        wanted = max(n_workers, nbytes // max(1, layout.chunk_nbytes))
        chosen = [int(row) for row in present[:wanted]]
        stored = [
            plan.objects[plan.which[row]].read(int(plan.offset[row]), int(plan.nbytes[row]))
            for row in chosen
        ]
        rooms = np.ones((len(chosen), layout.chunk_nbytes), np.uint8)

        def decode(number: int, stored: Any = stored, rooms: Any = rooms) -> None:
            decode_chunk(stored[number], layout, "chunk", rooms[number])

        with ThreadPoolExecutor(n_workers) as pool:

            def everything(pool: Any = pool, decode: Any = decode, n: int = len(chosen)) -> None:
                for _ in pool.map(decode, range(n)):
                    pass

            everything()
            rows.append(
                Row(
                    f"decode by {n_workers} core{'s' if n_workers > 1 else ''}",
                    "",
                    timed(everything, repeats),
                    len(chosen) * layout.chunk_nbytes,
                    sum(map(len, stored)),
                    note=f"{len(chosen)} chunks",
                )
            )
    return rows
