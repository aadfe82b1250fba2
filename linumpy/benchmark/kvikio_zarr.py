"""Benchmark all ways to read a Zarr array into device memory, beside the machine's limits.

Each result is compared with the reference, bit for bit, before it is timed. Limits, reads and
writes are measured in one run, so that their ratios mean something whatever the machine.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.benchmark import limits
from linumpy.benchmark.array import (
    CHUNK_SIDE,
    CODECS,
    create_array,
    sample,
    sample_shape,
)
from linumpy.benchmark.machine import (
    cold_state,
    describe_machine,
    describe_versions,
    drop_page_cache,
    gds_state,
)
from linumpy.benchmark.readers import Mode, Reader, device_readers, host_readers, kvikio_modes
from linumpy.benchmark.rows import Row, best, format_table, same_bits, timed
from linumpy.core import device as places
from linumpy.core.device import CPU, Device, to_host
from linumpy.core.errors import DeviceError, InputError
from linumpy.core.log import progress
from linumpy.gpu.array import LazyArray
from linumpy.gpu.encode import refuse_unwritable
from linumpy.gpu.kvikio_zarr import kvikio_settings, raw_layout
from linumpy.gpu.plan import ReadPlan
from linumpy.gpu.zarr_io import array_layout, gpu_zarr_context, open_array
from linumpy.io.zarr_io import read_zarr, zarr_context
from linumpy.store.chunk_layout import ChunkLayout
from linumpy.store.manifest import check_files

SLOW_NBYTES = 1 << 28
ACCESSES = 20_000

EXPECTED = (DeviceError, ImportError, MemoryError, OSError, RuntimeError)
"""Why something may not be measurable on a machine, or for an array (NotImplementedError is a
RuntimeError)."""


def benchmark_kvikio_zarr(
    array_path: Path | None,
    *,
    size_gib: float = 4.0,
    codec: str = "zstd",
    folder: Path | None = None,
    repeats: int = 3,
    device: Device = CPU,
) -> dict[str, Any]:
    """Measure reads and writes of one Zarr array, and the machine's limits for them.

    Parameters
    ----------
    array_path
        Folder of the array; None to make one.
    size_gib, codec
        Size (GiB) and codec, ``zstd`` or ``raw``, of the array that is made.
    folder
        Where arrays are made, in a folder of their own that is removed; None for the system's
        place for such.
    repeats
        How often each is timed; medians count.
    device
        The CPU, where only what it can do is measured, or a GPU.

    Returns
    -------
    The record, as plain values: see `format_record`.

    Raises
    ------
    InputError
        When there is no such array, the disk is too small, or a result is wrong.
    """
    if codec not in CODECS:
        raise InputError(f"codec {codec!r}: expected one of {', '.join(CODECS)}")
    if repeats < 1 or not size_gib > 0:
        raise InputError(f"repeats {repeats}, size_gib {size_gib}: expected positive numbers")
    if folder is not None and not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    with tempfile.TemporaryDirectory(prefix="linum-benchmark-", dir=folder) as work:
        benchmark = _Benchmark(Path(work), repeats, device)
        if array_path is None:
            benchmark.make_array(size_gib, codec)
        else:
            benchmark.take_array(array_path)
        return benchmark.run()


def format_record(record: dict[str, Any]) -> str:
    """Return a record of `benchmark_kvikio_zarr` as text: tables, and what was not measured."""
    array, machine = record["array"], record["machine"]
    lines = [
        f"{machine.get('gpu', 'no GPU')}, {machine['cores']} cores ({machine['cpu']}), "
        f"files on {machine['filesystem']}",
        f"{array['dtype']} {tuple(array['shape'])}, {array['decoded_nbytes'] / 1e9:.2f} GB "
        f"decoded, {array['stored_nbytes'] / 1e9:.2f} GB stored in {array['n_files']} files",
    ]
    if record["gds"]["reason"]:
        lines.append(f"GPUDirect Storage: {record['gds']['reason']}")
    if record["cold"]["note"]:
        lines.append(f"cold: {record['cold']['note']}")
    for cache, limit in record["limit"].items():
        lines.append(f"limit of reads, {cache}: {limit['gb_per_s']:.2f} GB/s ({limit['name']})")
    headings = {"limits": "limits", "reads": "reads", "writes": "writes", "lazy": "lazy arrays"}
    lines += ["", format_table({title: record[key] for key, title in headings.items()})]
    if record["missing"]:
        lines += ["", "not measured"]
        lines += [f"{row['name']}: {row['reason']}" for row in record["missing"]]
    return "\n".join(lines)


class _Benchmark:
    def __init__(self, work: Path, repeats: int, device: Device) -> None:
        self.work = work
        self.repeats = repeats
        self.device = device
        self.limits: list[Row] = []
        self.reads: list[Row] = []
        self.writes: list[Row] = []
        self.lazy: list[Row] = []
        self.missing: list[dict[str, str]] = []
        self.modes: list[Mode] = []
        self.gds: dict[str, Any] = {"native": False, "reason": ""}

    # The array

    def make_array(self, size_gib: float, codec: str) -> None:
        """Write an array of made-up values, by the CPU."""
        shape, tile = sample_shape(size_gib)
        self._need_disk(math.prod(shape) * 4)
        self.reference = sample(shape, tile)
        self.path = self.work / "array.zarr"
        with zarr_context(CPU):
            written = create_array(self.path, self.reference, (CHUNK_SIDE,) * 3, tile, codec)
            written[...] = self.reference
        self._open()

    def take_array(self, path: Path) -> None:
        """Use an array that is there; what Zarr itself reads from it is the reference."""
        self.path = path
        check_files(path)
        array = open_array(path)
        if not array.size:
            raise InputError(f"{path}: an array of shape {array.shape} holds nothing to measure")
        if self.device.is_gpu:
            self._need_disk(array.nbytes)
        values = np.asarray(array[...])
        self.reference = values.astype(values.dtype.newbyteorder("="), copy=False)
        self._open()

    def _open(self) -> None:
        self.array = open_array(self.path)
        self.files = limits.stored_files(self.array)
        self.stored_nbytes = sum(path.stat().st_size for path in self.files)
        self.layout: ChunkLayout | None = None
        self.plan: ReadPlan | None = None
        with self._noted("limits of decoding, and writes"):
            self.layout, self.plan = limits.chunk_table(self.array)

    def _need_disk(self, nbytes: int) -> None:
        # The array itself, and one written with each codec.
        needed, free = 3 * nbytes, shutil.disk_usage(self.work).free
        if free < needed:
            raise InputError(
                f"{self.work.parent}: {free / 1e9:.1f} GB are free, {needed / 1e9:.1f} GB are "
                "needed; name another folder or a smaller size"
            )

    # The run

    def run(self) -> dict[str, Any]:
        """Measure everything; what cannot be measured is noted with its cause."""
        self.cold = cold_state(self.files)
        steps: list[tuple[str, Callable[[], None]]] = [("decode by cores", self._limit_of_cores)]
        if self.device.is_gpu:
            self._look_for_kvikio()
            steps += [
                ("copies", self._limits_of_copies),
                *(
                    (f"kvikio read, {m.name}", partial(self._limit_of_kvikio, m))
                    for m in self.modes
                ),
                ("nvCOMP", self._limits_of_nvcomp),
            ]
        else:
            self._miss("all rows of the GPU", "the GPU is not used (--use_gpu)")
        steps += [(reader.name, partial(self._read, reader)) for reader in self._readers()]
        if self.device.is_gpu:
            steps += [(f"write, {c}", partial(self._write, c)) for c in CODECS]
        steps.append(("lazy arrays", self._keep_books))
        with places.device(self.device):
            for name, step in progress(steps, len(steps), "benchmark"):
                with self._noted(name):
                    step()
                self._free_memory()
        return self._record()

    @contextmanager
    def _noted(self, name: str) -> Iterator[None]:
        """Note why the block could not be finished, unless it is an error of the input."""
        try:
            yield
        except EXPECTED as error:
            self._miss(name, f"{type(error).__name__}: {error}")

    def _miss(self, name: str, reason: str) -> None:
        # A record is read elsewhere, where folders of this machine mean nothing.
        folder = f"{self.path.parent}/"
        short = reason.replace(f"file://{folder}", "").replace(folder, "")
        self.missing.append({"name": name, "reason": short})

    def _free_memory(self) -> None:
        if self.device.is_gpu:
            import cupy

            cupy.get_default_memory_pool().free_all_blocks()
            cupy.get_default_pinned_memory_pool().free_all_blocks()

    def _synchronize(self) -> None:
        if self.device.is_gpu:
            import cupy

            cupy.cuda.Device().synchronize()

    def _by_cache(self, name: str, work: Callable[[], Any], **facts: Any) -> list[Row]:
        """Time with files in the page cache, where they are by now, and dropped from it."""
        rows = []
        befores: dict[str, Callable[[], Any] | None] = {
            "warm": None,
            "cold": lambda: drop_page_cache(self.files),
        }
        for cache, before in befores.items():
            seconds = timed(work, self.repeats, before=before, synchronize=self._synchronize)
            rows.append(Row(name, cache, seconds, **facts))
        return rows

    # Limits

    def _limit_of_cores(self) -> None:
        if self.layout is not None and self.plan is not None:
            self.limits += limits.core_rows(self.layout, self.plan, self.repeats)

    def _limits_of_copies(self) -> None:
        self.limits += limits.copy_rows(self.repeats)

    def _look_for_kvikio(self) -> None:
        with self._noted("kvikio"):
            native, reason = gds_state()
            self.gds = {"native": native, "reason": reason}
            self.modes = kvikio_modes(native)
            if not native:
                self._miss("kvikio native", reason)

    def _limit_of_kvikio(self, mode: Mode) -> None:
        with kvikio_settings(**mode.settings):
            read = limits.ContiguousRead(self.files)
            read()
            name = f"kvikio read, {mode.name}"
            self.limits += self._by_cache(name, read, stored_nbytes=read.nbytes)

    def _limits_of_nvcomp(self) -> None:
        if self.layout is None or self.plan is None:
            return
        chunks = limits.DeviceChunks(self.layout, self.plan)
        if chunks.is_compressed:
            self.limits += limits.decode_rows(chunks, self.repeats)
        self.limits += limits.encode_rows(chunks, self.repeats)

    # Reads

    def _readers(self) -> Iterator[Reader]:
        if not self.device.is_gpu:
            return host_readers(self.path)
        try:
            raw_layout(self.array)
        except NotImplementedError as reason:
            self._miss("read_raw_zarr", f"{reason}; limits hold kvikio's reads of the files alone")
            return device_readers(self.path, [])
        return device_readers(self.path, self.modes)

    def _read(self, reader: Reader) -> None:
        selection = self._part() if reader.slow else ...
        expected = self.reference[selection]
        with reader.enter() as read:
            if not same_bits(to_host(read(selection)), expected):
                raise InputError(f"{self.path}: {reader.name} differs from the reference")
            share = expected.nbytes / self.reference.nbytes
            notes = [reader.note(), f"of {100 * share:.0f} % of the array" if share < 1 else ""]
            self.reads += self._by_cache(
                reader.name,
                lambda: read(selection),
                decoded_nbytes=expected.nbytes,
                stored_nbytes=round(share * self.stored_nbytes),
                verified=True,
                note=", ".join(filter(None, notes)),
            )

    def _part(self) -> Any:
        """Select what slow readers read: a quarter of a row of stored objects, of a large array."""
        if self.reference.nbytes <= SLOW_NBYTES:
            return ...
        sides = self.array.shards or self.array.chunks
        last = sides[-1] * max(1, math.ceil(self.array.shape[-1] / sides[-1] / 4))
        return tuple(slice(0, side) for side in (*sides[:-1], last))

    # Writes and lazy arrays

    def _write(self, codec: str) -> None:
        import cupy

        if self.layout is None:
            return
        path = self.work / f"written-{codec}.zarr"
        pool = cupy.get_default_memory_pool()
        value = cupy.asarray(self.reference)
        with gpu_zarr_context():
            outer = self.layout.outer_shape if self.layout.shard is not None else None
            written = create_array(path, self.reference, self.layout.chunk_shape, outer, codec)
            layout = array_layout(written)
            refuse_unwritable(layout)
            write = partial(written.__setitem__, ..., value)
            write()
            pool.free_all_blocks()
            held = pool.total_bytes()

            def forget() -> None:
                """Remove what was written: new files are written, none replaced."""
                shutil.rmtree(path / "c")

            seconds = timed(write, self.repeats, before=forget, synchronize=self._synchronize)
            # The pool gives nothing back on its own: what it grew to is the most that was held.
            peak = pool.total_bytes() - held
        if not same_bits(read_zarr(path), self.reference):
            raise InputError(f"{path}: what was written on the device differs from the reference")
        files = limits.stored_files(open_array(path))
        object_nbytes = math.prod(layout.outer_shape) * layout.dtype.itemsize
        self.writes.append(
            Row(
                f"zarr.create_array(...)[...] = cupy, {codec}",
                "",
                seconds,
                self.reference.nbytes,
                sum(file.stat().st_size for file in files),
                verified=True,
                note=f"to the page cache; {peak / 1e9:.2f} GB of device memory at most",
                extra={"peak_device_nbytes": peak, "object_nbytes": object_nbytes},
            )
        )
        shutil.rmtree(path)

    def _keep_books(self) -> None:
        """Time accesses of a lazy array that move nothing."""
        for where in [CPU] if not self.device.is_gpu else [CPU, self.device]:
            lazy = LazyArray(np.zeros(8, np.float32))
            for intent in ("ro", "rw"):
                with places.device(where):
                    lazy.get_array("rw")

                    def access(lazy: LazyArray = lazy, intent: Any = intent) -> None:
                        for _ in range(ACCESSES):
                            lazy.get_array(intent)

                    seconds = [t / ACCESSES for t in timed(access, self.repeats)]
                self.lazy.append(Row(f"get_array({intent!r}) on {where}", "", seconds))

    # The record

    def _record(self) -> dict[str, Any]:
        decoder = "nvCOMP decode" if self.device.is_gpu else "decode by"
        bounds = limits.read_limits(self.limits, decoder, self.reference.nbytes)
        for row in self.reads:
            if row.cache in bounds and row.gb_per_s is not None:
                row.of_limit = row.gb_per_s / bounds[row.cache]["gb_per_s"]
        encode = best(row for row in self.limits if row.name.startswith("nvCOMP encode"))
        for row in self.writes:
            if row.name.endswith("zstd") and encode is not None:
                assert row.gb_per_s is not None and encode.gb_per_s is not None
                row.of_limit = row.gb_per_s / encode.gb_per_s
        array = self.array
        return {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": describe_machine(self.path.parent, self.device.is_gpu),
            "versions": describe_versions(),
            "repeats": self.repeats,
            "array": {
                "name": self.path.name,
                "zarr_format": array.metadata.zarr_format,
                "shape": list(array.shape),
                "dtype": str(array.dtype),
                "chunks": list(array.chunks),
                "shards": list(array.shards) if array.shards else None,
                "compression": self.layout.compression if self.layout else None,
                "has_crc32c": self.layout.has_crc32c if self.layout else None,
                "n_files": len(self.files),
                "decoded_nbytes": self.reference.nbytes,
                "stored_nbytes": self.stored_nbytes,
            },
            "gds": self.gds,
            "cold": self.cold,
            "limit": bounds,
            "limits": [row.to_json() for row in self.limits],
            "reads": [row.to_json() for row in self.reads],
            "writes": [row.to_json() for row in self.writes],
            "lazy": [row.to_json() for row in self.lazy],
            "missing": self.missing,
        }
