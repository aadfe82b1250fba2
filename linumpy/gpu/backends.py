"""Who decodes: the device, or the CPU's cores with a pinned copy; chosen by format and number.

A GPU decodes one chunk about eight times slower than one core does, and wins by decoding thousands
at once. Many chunks of a megabyte belong on the device, a few huge ones on the cores.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from linumpy.errors import DeviceError
from linumpy.gpu.decode import Placement, ReadRecord, read_on_device, read_plan
from linumpy.gpu.fetch import n_threads
from linumpy.gpu.formats import device_format
from linumpy.gpu.host_decode import decode_chunk
from linumpy.gpu.layout import ChunkLayout, UnsupportedLayout
from linumpy.gpu.plan import ReadItem, ReadPlan
from linumpy.gpu.session import Session, current_session
from linumpy.gpu.transfer import allocate, copy_to_device

BACKENDS = ("auto", "kvikio", "nvcomp", "host", "zarr")

# Decoding rates in GB/s, as measured on a Hopper GPU and a server's cores (docs/benchmarks): only
# their ratio matters, and it is large on either side of where they cross.
DEVICE_RATE_PER_CHUNK = 0.05
DEVICE_RATE_MOST = 50.0
CORE_RATE = 0.27

HOST_SCRATCH_NBYTES = 8 << 30


def choose(layout: ChunkLayout, n_chunks: int) -> tuple[str, str]:
    """Choose the backend for a request.

    Parameters
    ----------
    layout
        How the chunks are stored.
    n_chunks
        Chunks of the request.

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
    backend = _checked_backend(session, layout, n_present, record)
    record.backend = backend
    if backend == "host":
        _read_on_cores(plan, layout, out, record)
    else:
        read_on_device(plan, layout, out, record, batch_nbytes=session.batch_nbytes)
    session.last_read = record
    return record


def _checked_backend(
    session: Session, layout: ChunkLayout, n_chunks: int, record: ReadRecord
) -> str:
    backend = session.backend
    if backend == "auto":
        backend, reason = choose(layout, n_chunks)
        if backend == "host":
            record.causes.append(reason)
    elif backend == "kvikio" and layout.compression is not None:
        raise NotImplementedError(
            f"backend kvikio reads raw chunks, these are {layout.compression}"
        )
    elif backend == "nvcomp" and layout.compression is None:
        raise NotImplementedError("backend nvcomp decodes, these chunks are raw")
    return backend


def _read_on_cores(plan: ReadPlan, layout: ChunkLayout, out: Any, record: ReadRecord) -> None:
    """Decode with all cores; each copies its chunk through pinned memory and places it."""
    import cupy

    rows = np.flatnonzero(plan.present)
    record.fetch = "threads"
    record.n_chunks = record.n_on_host = len(rows)
    record.n_missing = len(plan.present) - len(rows)
    placement = Placement(plan, layout, out)
    placement.fill_missing()
    workers = min(
        n_threads(), len(rows), max(1, HOST_SCRATCH_NBYTES // max(1, layout.chunk_nbytes))
    )
    if not workers:
        return
    local = threading.local()
    device_id = out.device.id
    caller = placement.caller
    # What the caller queued on its stream may still use the memory that copies go to.
    caller.synchronize()

    def serve(row: int) -> None:
        with cupy.cuda.Device(device_id):
            if not hasattr(local, "stream"):
                local.stream = cupy.cuda.Stream(non_blocking=True)
                local.scratch = np.empty(layout.chunk_nbytes, np.uint8)
            stored = plan.objects[plan.which[row]]
            data = stored.read(int(plan.offset[row]), int(plan.nbytes[row]))
            decoded = decode_chunk(data, layout, plan.name(row), local.scratch)
            (room,) = allocate(caller, local.stream, (max(1, layout.chunk_nbytes), np.uint8))
            copy_to_device(decoded, room.data, local.stream)
            which = np.array([row])
            kept = placement.place(which, plan.source[which] + room.data.ptr, local.stream)
            local.stream.synchronize()
            del kept

    with ThreadPoolExecutor(workers, thread_name_prefix="decode") as pool:
        futures = [pool.submit(serve, int(row)) for row in rows]
        try:
            for future in futures:
                future.result()
        except cupy.cuda.memory.OutOfMemoryError as error:
            raise DeviceError(
                f"{plan.objects[0].name}: device memory does not hold {workers} chunks of "
                f"{layout.chunk_nbytes} bytes ({error})"
            ) from error
        finally:
            for future in futures:
                future.cancel()
