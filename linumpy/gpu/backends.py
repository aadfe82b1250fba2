"""Choose the decoder of a read: the device, or the CPU's cores with a pinned copy.

A GPU decodes one chunk about eight times slower than one core does, and wins by decoding thousands
at once. Many chunks of a megabyte belong on the device, a few huge ones on the cores.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from linumpy.core.device import batch_share, free_gpu_bytes
from linumpy.core.errors import DeviceMemoryError
from linumpy.gpu.decode import Placement, ReadRecord, read_on_device, read_plan
from linumpy.gpu.fetch import n_threads
from linumpy.gpu.formats import device_format
from linumpy.gpu.plan import ReadItem, ReadPlan, batches
from linumpy.gpu.session import Session, current_session
from linumpy.gpu.stored_checks import checking_files
from linumpy.gpu.transfer import PIECE_NBYTES, allocate, copy_to_device, pinned_piece
from linumpy.store.chunk_layout import ChunkLayout, UnsupportedLayout
from linumpy.store.host_codec import decode_chunk

BACKENDS = ("auto", "kvikio", "nvcomp", "host", "zarr")

# Decoding rates in GB/s, as measured on a Hopper GPU and a server's cores (docs/benchmarks): only
# their ratio matters, and it is large on either side of where they cross.
DEVICE_RATE_PER_CHUNK = 0.05
DEVICE_RATE_MOST = 50.0
CORE_RATE = 0.27

HOST_SCRATCH_NBYTES = 8 << 30
HOST_BATCH_NBYTES = 1 << 28


def choose(
    layout: ChunkLayout, n_chunks: int, vouched: Callable[[], bool] = lambda: False
) -> tuple[str, str]:
    """Choose the backend for a request.

    Parameters
    ----------
    layout
        How the chunks are stored.
    n_chunks
        Chunks of the request.
    vouched
        Says whether their files were found to be what a manifest lists. Only asked for chunks
        without a CRC-32C: corrupt bytes are undefined behaviour in nvCOMP, and a flipped bit can
        end a process's use of the GPU, so that it is only given what something vouches for.

    Returns
    -------
    ``kvikio``, ``nvcomp`` or ``host``, and the reason.
    """
    if layout.compression is None:
        return "kvikio", "raw bytes"
    try:
        device_format(layout)
    except UnsupportedLayout as cause:
        return "host", str(cause)
    if not (layout.has_crc32c or vouched()):
        return "host", f"{layout.compression} without crc32c: a corrupt chunk could hang the device"
    on_device = min(DEVICE_RATE_MOST, DEVICE_RATE_PER_CHUNK * n_chunks)
    on_cores = CORE_RATE * min(n_threads(), n_chunks)
    if on_cores > on_device:
        return "host", f"{n_chunks} chunks of {layout.chunk_nbytes} bytes are few for a GPU"
    return "nvcomp", f"{n_chunks} chunks at once"


def read_items(
    items: Sequence[ReadItem], layout: ChunkLayout, out: Any, kept_axes: Sequence[int]
) -> ReadRecord:
    """Read selections of stored objects into a device array, as the session wants it.

    Arguments and errors are those of `read_on_device`; returns how the read went.
    """
    session = current_session()
    record = ReadRecord()
    plan = read_plan(items, layout, out, kept_axes)
    n_present = int(plan.present.sum())
    with checking_files(plan.objects) as vouched:
        backend = _checked_backend(session, layout, n_present, record, vouched)
        record.backend = backend
        if backend == "host":
            _read_on_cores(plan, layout, out, record)
        else:
            read_on_device(plan, layout, out, record, batch_nbytes=session.batch_nbytes)
    session.last_read = record
    return record


def _checked_backend(
    session: Session,
    layout: ChunkLayout,
    n_chunks: int,
    record: ReadRecord,
    vouched: Callable[[], bool],
) -> str:
    backend = session.backend
    if backend == "auto":
        backend, reason = choose(layout, n_chunks, vouched)
        if backend == "host":
            record.causes.append(reason)
    elif backend == "kvikio" and layout.compression is not None:
        raise NotImplementedError(
            f"backend kvikio reads raw chunks, these are {layout.compression}"
        )
    elif backend == "nvcomp" and layout.compression is None:
        raise NotImplementedError("backend nvcomp decodes, these chunks are raw")
    elif backend == "nvcomp" and not layout.has_crc32c:
        # Its name is the caller's word for files without a manifest; others are checked before.
        vouched()
    return backend


def _read_on_cores(plan: ReadPlan, layout: ChunkLayout, out: Any, record: ReadRecord) -> None:
    """Decode with all cores, each into page-locked memory and on to the device."""
    import cupy

    record.fetch = "threads"
    record.n_chunks = record.n_on_host = int(plan.present.sum())
    record.n_missing = len(plan.present) - record.n_chunks
    placement = Placement(plan, layout, out)
    placement.fill_missing()
    stream = cupy.cuda.Stream(non_blocking=True)
    room = max(16, -(-layout.chunk_nbytes // 16) * 16)
    # Two batches are held at once.
    usual = min(max(HOST_BATCH_NBYTES, n_threads() * room), free_gpu_bytes() // 4)
    batch_nbytes = int(batch_share() * usual)
    # What the caller queued on its stream may still use the memory that copies go to.
    placement.caller.synchronize()
    kept: list[Any] = []
    waiting: list[tuple[np.ndarray, Any, list[Future[None]]]] = []

    def finish() -> None:
        rows, scratch, futures = waiting[0]
        for future in futures:
            future.result()
        waiting.pop(0)
        sources = scratch.data.ptr + room * np.arange(len(rows))
        kept.append((scratch, placement.place(rows, plan.source[rows] + sources, stream)))

    with ThreadPoolExecutor(_workers(layout), thread_name_prefix="decode") as pool:
        try:
            for rows in batches(plan, layout, batch_nbytes):
                (scratch,) = allocate(placement.caller, stream, (len(rows) * room, np.uint8))
                placement.caller.synchronize()
                share = max(1, PIECE_NBYTES // room)
                futures = [
                    pool.submit(_decode_share, plan, layout, rows, first, share, room, scratch)
                    for first in range(0, len(rows), share)
                ]
                waiting.append((rows, scratch, futures))
                if len(waiting) == 2:
                    finish()
                if len(kept) > 2:
                    stream.synchronize()
                    kept.clear()
            while waiting:
                finish()
        except cupy.cuda.memory.OutOfMemoryError as error:
            raise DeviceMemoryError(
                f"{plan.objects[0].name}: device memory does not hold {batch_nbytes} bytes of "
                f"decoded chunks ({error})"
            ) from error
        finally:
            for _, _, futures in waiting:
                for future in futures:
                    future.cancel()
            wait([future for _, _, futures in waiting for future in futures])
            stream.synchronize()


def _workers(layout: ChunkLayout) -> int:
    """Return how many threads may each hold a decoded chunk."""
    return max(1, min(n_threads(), HOST_SCRATCH_NBYTES // max(1, layout.chunk_nbytes)))


_local = threading.local()


_idle: list[np.ndarray] = []
"""Ordinary memory for chunks, kept from one request to the next: touching new pages would cost as
much as decoding."""


@contextmanager
def _room_on_host(nbytes: int) -> Iterator[np.ndarray]:
    """Lend ordinary memory to decode into."""
    try:
        room = _idle.pop()
    except IndexError:
        room = None
    if room is None or room.nbytes != nbytes:
        room = np.empty(nbytes, np.uint8)
    yield room
    _idle.append(room)


def _decode_share(
    plan: ReadPlan,
    layout: ChunkLayout,
    rows: np.ndarray,
    first: int,
    share: int,
    room: int,
    scratch: Any,
) -> None:
    """Decode some chunks of a batch and copy them to their room in `scratch`, on the device."""
    import cupy

    with cupy.cuda.Device(scratch.device.id):
        stream = getattr(_local, "stream", None)
        if stream is None or _local.device_id != scratch.device.id:
            stream = _local.stream = cupy.cuda.Stream(non_blocking=True)
            _local.device_id = scratch.device.id
        mine = rows[first : first + share]
        pinned = pinned_piece(room * len(mine))
        place = scratch.data + first * room
        with _room_on_host(room * len(mine)) if pinned is None else nullcontext(pinned) as host:
            for number, row in enumerate(mine):
                stored = plan.objects[plan.which[row]]
                data = stored.read(int(plan.offset[row]), int(plan.nbytes[row]))
                target = host[number * room : number * room + layout.chunk_nbytes]
                decode_chunk(data, layout, plan.name(row), target)
            if pinned is None:
                copy_to_device(host, place, stream)
            else:
                place.copy_from_host_async(host.ctypes.data, host.nbytes, stream)
            stream.synchronize()
