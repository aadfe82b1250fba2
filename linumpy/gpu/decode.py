"""Device reads: fetch, check, decode in batches, place on the device.

While batches are decoded the next are read; the host waits for each once. A chunk is checked before
it is decoded, checksum and frame, and kept from the decoder if it is not fit. What the device
cannot take is decoded by the CPU; what is corrupt is an error that names the chunk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from linumpy.core.device import batch_share, free_gpu_bytes
from linumpy.core.errors import DeviceMemoryError, InputError
from linumpy.core.timeline import span
from linumpy.gpu import kernels
from linumpy.gpu.fetch import make_fetch, plan_runs
from linumpy.gpu.formats import StoredBatch, device_format
from linumpy.gpu.plan import ReadItem, ReadPlan, batches, element_width, plan_read
from linumpy.gpu.transfer import allocate, upload
from linumpy.store.chunk_layout import ChunkLayout
from linumpy.store.host_codec import decode_chunk

BATCH_NBYTES = 1 << 31
"""Most decoded bytes of a batch."""

BATCH_CHUNKS = 2048
"""Chunks of a batch, if they are not tiny: nvCOMP decodes one of a megabyte in 20 ms whatever else
runs, so that only so many at once keep a device busy; more would only make the first ones wait."""

TINY_NBYTES = 1 << 28
"""Least decoded bytes of a batch, if the request has them."""

IN_FLIGHT = 2
"""Batches that are decoded at once."""

# nvCOMP's working memory, the chunks' bytes and what they decode to, in units of decoded bytes.
MEMORY_FACTOR = 5

FETCH_AHEAD = 2


@dataclass
class ReadRecord:
    """How a read was served.

    Attributes
    ----------
    backend
        ``kvikio``, ``nvcomp``, ``host`` or ``zarr``.
    fetch
        Who read the files: ``kvikio`` or ``pinned``.
    causes
        Why something slower than asked for was used; empty if nothing was.
    n_chunks, n_on_host, n_missing
        Chunks decoded, those of them decoded by the CPU, and chunks that were never written.
    """

    backend: str = ""
    fetch: str = ""
    causes: list[str] = field(default_factory=list)
    n_chunks: int = 0
    n_on_host: int = 0
    n_missing: int = 0


def read_plan(
    items: Sequence[ReadItem], layout: ChunkLayout, out: Any, kept_axes: Sequence[int]
) -> ReadPlan:
    """Plan a read into `out`.

    Parameters
    ----------
    items
        What to read; all selections have the same steps.
    layout
        How chunks are stored.
    out
        Array of the layout's data type; may have any strides.
    kept_axes
        The objects' axes that `out` has, in order.
    """
    strides = [0] * len(layout.chunk_shape)
    for axis, stride in zip(kept_axes, out.strides, strict=True):
        strides[axis] = stride
    return plan_read(items, layout, strides)


def read_on_device(
    plan: ReadPlan,
    layout: ChunkLayout,
    out: Any,
    record: ReadRecord,
    *,
    batch_nbytes: int = BATCH_NBYTES,
) -> None:
    """Read into a device array, decoding there.

    Parameters
    ----------
    plan
        What to read.
    layout
        How chunks are stored; its compression must be one that `device_format` supports.
    out
        The CuPy array that was planned for.
    record
        Is told how the read went.
    batch_nbytes
        Decoded bytes of a batch; made smaller when device memory is short.

    Raises
    ------
    InputError
        When a chunk is truncated, corrupt or not of the declared size.
    DeviceMemoryError
        When not even single chunks fit into device memory.
    """
    import cupy

    record.n_missing = int((~plan.present).sum())
    record.n_chunks = int(plan.present.sum())
    smallest = max(1, layout.chunk_nbytes)
    with cupy.cuda.Device(out.device.id):
        while True:
            record.n_on_host = 0
            short = _attempt(plan, layout, out, record, batch_nbytes)
            if short is None:
                return
            # Only now, with the attempt's frames gone, is its memory free.
            cupy.get_default_memory_pool().free_all_blocks()
            if batch_nbytes <= smallest:
                raise DeviceMemoryError(
                    f"{plan.objects[0].name}: device memory does not hold even one chunk "
                    f"({layout.chunk_nbytes} bytes decoded; {short})"
                )
            batch_nbytes = max(smallest, min(batch_nbytes, out.nbytes) // 2)


def _attempt(
    plan: ReadPlan, layout: ChunkLayout, out: Any, record: ReadRecord, batch_nbytes: int
) -> str | None:
    """Read with batches of a size; answers what memory was short, or None."""
    import cupy

    try:
        _Read(plan, layout, out, record).run(batch_nbytes)
    except cupy.cuda.memory.OutOfMemoryError as error:
        return str(error)
    return None


class Placement:
    """Copies of decoded chunks into the output of a plan."""

    def __init__(self, plan: ReadPlan, layout: ChunkLayout, out: Any) -> None:
        import cupy

        self.plan = plan
        self.layout = layout
        self.out = out
        self.caller = cupy.cuda.get_current_stream()
        strides = np.array([plan.source_strides, plan.target_strides], np.int64)
        # A scalar has no axis; the kernels want one.
        self._strides = strides if strides.shape[1] else np.zeros((2, 1), np.int64)
        self._count = plan.count if plan.count.shape[1] else np.ones((len(plan.count), 1), np.int64)

    def place(self, rows: np.ndarray, sources: np.ndarray, stream: Any) -> tuple[Any, ...]:
        """Start copying boxes of decoded chunks into the output; 0 as source means fill.

        Answers the device arrays that must outlive the copies.
        """
        targets = self.plan.target[rows] + self.out.data.ptr
        counts = self._count[rows]
        itemsize = self.layout.dtype.itemsize
        swap = 0
        if self.layout.byteswapped:
            swap = itemsize // 2 if self.layout.dtype.kind == "c" else itemsize
        width = itemsize
        if not swap:
            width = element_width(itemsize, counts, self._strides, (sources, targets))
        strides = self._strides.copy()
        if width != itemsize:
            counts = counts.copy()
            counts[:, -1] = counts[:, -1] * itemsize // width
            strides[:, -1] = width
        table = upload(np.column_stack([sources, targets]).T, self.caller, stream)
        counts, strides = (upload(a, self.caller, stream) for a in (counts, strides))
        source, target = table.view(np.uint64)
        fill = self.layout.fill * (16 // itemsize)
        kernels.copy_boxes(source, target, counts, strides, width, fill[:width], swap, stream)
        return table, counts, strides

    def fill_missing(self) -> None:
        """Write the fill value where chunks were never written."""
        rows = np.flatnonzero(~self.plan.present)
        if len(rows):
            kept = self.place(rows, np.zeros(len(rows), np.int64), self.caller)
            self.caller.synchronize()
            del kept


class _Read:
    """One read in progress."""

    def __init__(self, plan: ReadPlan, layout: ChunkLayout, out: Any, record: ReadRecord) -> None:
        self.plan = plan
        self.layout = layout
        self.record = record
        self.format = device_format(layout)
        self.placement = Placement(plan, layout, out)
        self.caller = self.placement.caller
        self.fetch, cause = make_fetch(plan.objects, out.device.id)
        record.fetch = self.fetch.name
        if cause is not None and plan.present.any():
            record.causes.append(cause)

    def run(self, batch_nbytes: int) -> None:
        """Read everything, with batches that take half of the free memory at most."""
        usual = min(
            batch_nbytes,
            max(TINY_NBYTES, BATCH_CHUNKS * self.layout.chunk_nbytes),
            free_gpu_bytes() // (2 * MEMORY_FACTOR * IN_FLIGHT),
        )
        batch_nbytes = int(batch_share() * usual)
        work = [_Batch(self, rows) for rows in batches(self.plan, self.layout, batch_nbytes)]
        in_flight: deque[_Batch] = deque()
        with ExitStack() as ending:
            # Memory goes back to the pool only when neither a read nor a kernel can touch it; each
            # batch is waited for, whatever the others' ends are like.
            ending.callback(self.fetch.close)
            for batch in work:
                ending.callback(batch.abandon)
            self.placement.fill_missing()
            for batch in work[:FETCH_AHEAD]:
                batch.start_fetch()
            for i, batch in enumerate(work):
                if len(in_flight) == IN_FLIGHT:
                    in_flight.popleft().finish()
                if i + FETCH_AHEAD < len(work):
                    work[i + FETCH_AHEAD].start_fetch()
                batch.decode()
                in_flight.append(batch)
            while in_flight:
                in_flight.popleft().finish()


class _Batch:
    """Chunks that are read, checked, decoded and placed together."""

    def __init__(self, read: _Read, rows: np.ndarray) -> None:
        self.read = read
        self.rows = rows
        self.stream: Any = None
        self.checks: Any = None
        self.nbytes = read.plan.nbytes[rows]
        self._wait: Any = None
        self._kept: list[Any] = []

    def start_fetch(self) -> None:
        """Start reading the chunks' bytes into device memory."""
        import cupy

        plan = self.read.plan
        self.stream = cupy.cuda.Stream(non_blocking=True)
        # What precedes decoding goes before other batches' decoding, which fills the device.
        self.checks = cupy.cuda.Stream(non_blocking=True, priority=-1)
        runs, self.place, size = plan_runs(
            plan.objects, plan.which[self.rows], plan.offset[self.rows], self.nbytes
        )
        with self.read.caller:
            self.staging = cupy.empty(size, np.uint8)
        # The reader's own copies are on no stream: what used this memory before must be over.
        self.read.caller.synchronize()
        self._wait = self.read.fetch.start(runs, self.staging)

    def decode(self) -> None:
        """Wait for the bytes, then start checking, decoding and placing them.

        Raises
        ------
        InputError
            When a chunk is too short for a checksum, or was cut short.
        """
        wait, self._wait = self._wait, None
        with span("fetch", f"{len(self.rows)} chunks"):
            wait()
        layout, plan = self.read.layout, self.read.plan
        trailer = 4 if layout.has_crc32c else 0
        if (self.nbytes < trailer).any():
            row = self.rows[int(np.argmax(self.nbytes < trailer))]
            raise InputError(f"{plan.name(row)}: {plan.nbytes[row]} bytes, shorter than a checksum")
        (verdict,) = allocate(self.read.caller, self.checks, (len(self.rows), np.int32))
        verdict.data.memset_async(0, verdict.nbytes, self.checks)
        batch = StoredBatch(
            layout,
            self.place + self.staging.data.ptr,
            self.nbytes - trailer,
            verdict,
            self.read.caller,
            self.stream,
            self.checks,
        )
        if trailer:
            self._start_checksum(batch)
        self.work = self.read.format(batch)
        self._place(np.arange(len(self.rows)), self.work.start())

    def _start_checksum(self, batch: StoredBatch) -> None:
        from linumpy.gpu import nvcomp

        (computed,) = allocate(batch.caller, batch.checks, (len(self.rows), np.uint32))
        table = upload(
            np.stack([batch.pointers, batch.nbytes, batch.pointers + batch.nbytes]),
            batch.caller,
            batch.checks,
        )
        pointers, sizes, trailers = table.view(np.uint64)
        nvcomp.crc(nvcomp.CRC32C, pointers, sizes, int(batch.nbytes.max()), computed, batch.checks)
        kernels.compare_crc(trailers, computed, batch.verdict, batch.checks)
        self._kept.append((table, computed))

    def _place(self, numbers: np.ndarray, sources: np.ndarray) -> None:
        rows = self.rows[numbers]
        at = sources + self.read.plan.source[rows]
        self._kept.append(self.read.placement.place(rows, at, self.stream))

    def finish(self) -> None:
        """Wait for the batch and see that all chunks were decoded.

        What the device left or failed is decoded by the CPU, which also says what is wrong.

        Raises
        ------
        InputError
            When a chunk is corrupt.
        """
        with span("decode", f"{len(self.rows)} chunks"):
            self.stream.synchronize()
        outcome = self.work.outcome()
        if outcome.problems:
            number, problem = min(outcome.problems.items())
            raise InputError(f"{self.read.plan.name(self.rows[number])}: {problem}")
        left = sorted([*outcome.left, *outcome.failed])
        if left:
            self._decode_on_host(np.array(left))
        if outcome.failed:
            self.read.record.causes.append(f"{len(outcome.failed)} chunks failed on the device")
        self._kept.clear()
        del self.work, self.staging

    def _decode_on_host(self, numbers: np.ndarray) -> None:
        sources = []
        for number in numbers:
            first = int(self.place[number])
            data = self.staging[first : first + int(self.nbytes[number])].get(stream=self.stream)
            name = self.read.plan.name(self.rows[number])
            decoded = decode_chunk(data, self.read.layout, name)
            room = upload(decoded, self.read.caller, self.stream)
            sources.append(room.data.ptr)
            self._kept.append((room, decoded))
        self._place(numbers, np.array(sources))
        self.stream.synchronize()
        self.read.record.n_on_host += len(numbers)

    def abandon(self) -> None:
        """Wait for reads still in flight, after an error elsewhere."""
        if self._wait is not None:
            wait, self._wait = self._wait, None
            # The first error is already on its way.
            with suppress(Exception):
                wait()
        for stream in (self.checks, self.stream):
            if stream is not None:
                stream.synchronize()
