"""Measure the machine's limits on the files that the stages read and write."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.benchmark import limits as rows
from linumpy.benchmark.machine import describe_machine, describe_versions, gds_state
from linumpy.benchmark.readers import kvikio_modes
from linumpy.benchmark.rows import Row, best, timed
from linumpy.core import device as places
from linumpy.core.device import CPU, Device
from linumpy.core.errors import LinumpyError
from linumpy.gpu.fetch import n_threads
from linumpy.gpu.kvikio_zarr import kvikio_settings
from linumpy.io.omezarr import open_image
from linumpy.store.host_codec import encode_chunk, encoder

BLOCK_NBYTES = 1 << 24
MEMORY_NBYTES = 1 << 29
ENCODED_CHUNKS = 512
EXPECTED = (LinumpyError, ImportError, MemoryError, OSError, RuntimeError)


class _Limits:
    def __init__(self, grid: Path, folder: Path, repeats: int) -> None:
        self.array = open_image(grid).array
        self.files = rows.stored_files(self.array)
        self.stored_nbytes = sum(path.stat().st_size for path in self.files)
        self.layout, self.plan = rows.chunk_table(self.array)
        self.folder, self.repeats = folder, repeats
        self.rows: dict[str, list[Row]] = {}
        self.missing: list[dict[str, str]] = []

    @contextmanager
    def noted(self, name: str) -> Iterator[None]:
        """Note why the block could not be finished."""
        try:
            yield
        except EXPECTED as error:
            reason = f"{type(error).__name__}: {error}".replace(f"{self.folder}/", "")
            self.missing.append({"name": name, "reason": reason})

    def add(self, key: str, found: Row) -> None:
        """Keep a row as a candidate for a limit."""
        self.rows.setdefault(key, []).append(found)

    def by_cores(self, work: Callable[[Any], Any], items: list[Any]) -> list[float]:
        """Time a function over items in as many threads as there are cores."""
        with ThreadPoolExecutor(n_threads()) as pool:

            def everything() -> None:
                for _ in pool.map(work, items):
                    pass

            everything()
            return timed(everything, self.repeats)

    def host_read(self) -> None:
        """Measure reads of the grid's files into memory by all cores, warm."""
        rooms = np.ones((n_threads(), BLOCK_NBYTES), np.uint8)
        blocks = [
            (path, start)
            for path in self.files
            for start in range(0, path.stat().st_size, BLOCK_NBYTES)
        ]

        def read(item: tuple[int, tuple[Path, int]]) -> None:
            number, (path, start) = item
            descriptor = os.open(path, os.O_RDONLY)
            os.preadv(descriptor, [rooms[number % len(rooms)]], start)
            os.close(descriptor)

        name = f"read by {n_threads()} cores"
        seconds = self.by_cores(read, list(enumerate(blocks)))
        self.add("host read", Row(name, "warm", seconds, stored_nbytes=self.stored_nbytes))

    def host_write(self) -> None:
        """Measure writes of as many bytes by all cores, until they are on the disk."""
        target = self.folder / "limit-of-writes"
        sizes = [path.stat().st_size for path in self.files]
        content = os.urandom(max(sizes))

        def write(number: int, *, flush: bool) -> None:
            with (target / str(number)).open("wb", buffering=0) as file:
                at, view = 0, memoryview(content)[: sizes[number]]
                while at < len(view):
                    at += file.write(view[at:])
                if flush:
                    os.fsync(file.fileno())

        def fresh() -> None:
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()

        for flush in (False, True):
            with ThreadPoolExecutor(n_threads()) as pool:

                def everything(pool: Any = pool, flush: bool = flush) -> None:
                    list(pool.map(lambda n: write(n, flush=flush), range(len(sizes))))

                seconds = timed(everything, self.repeats, before=fresh)
            name = f"write by {n_threads()} cores" + (", flushed" if flush else "")
            key = "write" if flush else "write to the page cache"
            self.add(key, Row(name, "", seconds, stored_nbytes=self.stored_nbytes))
        shutil.rmtree(target)

    def host_codecs(self) -> None:
        """Measure decoding and encoding by cores."""
        for found in rows.core_rows(self.layout, self.plan, self.repeats):
            self.add("host decode", found)
        side = self.layout.chunk_shape
        tile = np.asarray(self.array[tuple(slice(0, n) for n in self.layout.outer_shape)])
        chunks = [
            np.ascontiguousarray(tile[z : z + side[0], y : y + side[1], x : x + side[2]]).ravel()
            for z in range(0, tile.shape[0], side[0])
            for y in range(0, tile.shape[1], side[1])
            for x in range(0, tile.shape[2], side[2])
        ][:ENCODED_CHUNKS]
        codec = encoder(self.layout)
        name = f"encode by {n_threads()} cores"
        seconds = self.by_cores(lambda c: encode_chunk(c, self.layout, codec), chunks)
        self.add("host encode", Row(name, "", seconds, sum(c.nbytes for c in chunks)))

    def host_memory(self) -> None:
        """Measure copies in host memory by all cores."""
        source = np.ones((n_threads(), MEMORY_NBYTES // n_threads()), np.uint8)
        target = np.ones_like(source)
        name = f"copy in memory by {n_threads()} cores"
        seconds = self.by_cores(lambda n: np.copyto(target[n], source[n]), list(range(len(source))))
        self.add("host memory", Row(name, "", seconds, 2 * source.nbytes, note="read + write"))

    def device_read(self) -> dict[str, Any]:
        """Measure reads of the grid's files into device memory by kvikio, warm."""
        native, reason = gds_state()
        modes = kvikio_modes(native)
        for mode in modes[-2:]:
            with kvikio_settings(**mode.settings):
                read = rows.ContiguousRead(self.files)
                read()
                name = f"kvikio read, {mode.name}"
                seconds = timed(read, self.repeats)
                self.add("device read", Row(name, "warm", seconds, stored_nbytes=read.nbytes))
        return {"native": native, "reason": reason}

    def device_codecs(self) -> None:
        """Measure nvCOMP's decoding and encoding of the grid's chunks."""
        chunks = rows.DeviceChunks(self.layout, self.plan)
        for found in rows.decode_rows(chunks, self.repeats):
            self.add("device decode", found)
        for found in rows.encode_rows(chunks, self.repeats):
            self.add("device encode", found)

    def device_copies(self) -> None:
        """Measure PCIe and device memory."""
        keys = {
            "host to device, pinned": "upload",
            "device to host, pinned": "download",
            "copy on the device": "device memory",
        }
        for found in rows.copy_rows(self.repeats):
            self.add(keys.get(found.name, "pageable"), found)


def measure_limits(grid: Path, folder: Path, use_gpu: bool, repeats: int) -> dict[str, Any]:
    """Measure what reading, decoding, computing, encoding and writing can reach at most.

    Parameters
    ----------
    grid
        Mosaic grid in our layout; its files are in the page cache.
    folder
        Where files may be written for a moment.
    use_gpu
        Measure the GPU as well.
    repeats
        How often each is timed; medians count.

    Returns
    -------
    ``machine`` and ``versions``; ``gds``; ``best``: by kind of work the highest rate in GB/s (of
    stored bytes for reads and writes, else of decoded ones) and its name; ``rows``: everything
    measured; ``missing``: what could not be, and why.
    """
    limits = _Limits(grid, folder, repeats)
    gds: dict[str, Any] = {}
    for name, work in {
        "reads by cores": limits.host_read,
        "writes by cores": limits.host_write,
        "codecs by cores": limits.host_codecs,
        "host memory": limits.host_memory,
    }.items():
        with limits.noted(name):
            work()
    if use_gpu:
        with places.device(Device("cuda")):
            _free()
            with limits.noted("copies"):
                limits.device_copies()
            _free()
            with limits.noted("kvikio"):
                gds = limits.device_read()
            _free()
            with limits.noted("nvCOMP"):
                limits.device_codecs()
    with places.device(Device("cuda") if use_gpu else CPU):
        machine = describe_machine(folder, use_gpu)
    found = {}
    for key, candidates in limits.rows.items():
        top = best(candidates)
        assert top is not None
        found[key] = {"name": top.name, "gb_per_s": top.gb_per_s or top.stored_gb_per_s}
    return {
        "machine": machine,
        "versions": describe_versions(),
        "gds": gds,
        "best": found,
        "rows": [row.to_json() for candidates in limits.rows.values() for row in candidates],
        "missing": limits.missing,
    }


def _free() -> None:
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()
    cupy.get_default_pinned_memory_pool().free_all_blocks()


def largest_difference(first: Path, second: Path) -> dict[str, Any]:
    """Compare two images of one shape, voxel by voxel.

    Returns
    -------
    ``same_bits``, and ``largest``: the largest difference over the first's largest value.
    """
    one, two = open_image(first).array, open_image(second).array
    if one.shape != two.shape:
        return {"same_bits": False, "largest": None}
    same, largest, top = True, 0.0, 0.0
    for z in range(0, one.shape[0], 64):
        a, b = np.asarray(one[z : z + 64]), np.asarray(two[z : z + 64])
        same &= bool(np.array_equal(a.view(np.uint32), b.view(np.uint32)))
        largest = max(largest, float(np.abs(a - b).max()))
        top = max(top, float(np.abs(a).max()))
    return {"same_bits": same, "largest": largest / top if top else largest}
