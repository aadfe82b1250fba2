"""Copies between host and device in stream order.

Device memory is always taken from the pool of the caller's stream, whichever stream works on it:
memory of short-lived streams would be lost to the pool. A stream therefore waits for the caller's
before it touches such memory, and the caller keeps it until that stream is through.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

PIECE_NBYTES = 8 << 20
"""Most bytes of a thread's page-locked buffer."""

COPY_NBYTES = 2 << 20
"""Bytes of each of the two that copies go through: to lock pages takes longer than to copy them,
and threads wait for each other there."""

_local = threading.local()


def pinned_array(nbytes: int) -> np.ndarray:
    """Return page-locked host memory, uint8, shape (nbytes,)."""
    import cupy

    memory = cupy.cuda.alloc_pinned_memory(nbytes)
    return np.frombuffer(memory, np.uint8, nbytes)


def allocate(caller: Any, stream: Any, *specs: tuple[Any, Any]) -> list[Any]:
    """Return uninitialised device arrays, one a (shape, dtype), that `stream` may use."""
    import cupy

    with caller:
        arrays = [cupy.empty(shape, dtype) for shape, dtype in specs]
    stream.wait_event(caller.record())
    return arrays


def upload(host: np.ndarray, caller: Any, stream: Any) -> Any:
    """Start copying a host array to the device on `stream`."""
    host = np.ascontiguousarray(host)
    (device,) = allocate(caller, stream, (host.shape, host.dtype))
    device.set(host, stream=stream)
    return device


class _Pieces:
    """Page-locked buffers of a thread for a device; copies go through two of them in turn.

    The driver copies ordinary memory under a lock, slowly, and holds up every other thread; page-
    locked memory it copies at full speed on the side, but making much of it takes long.
    """

    def __init__(self) -> None:
        import cupy

        self.pinned = [pinned_array(COPY_NBYTES) for _ in range(2)]
        self.free = [cupy.cuda.Event() for _ in range(2)]
        self.whole: np.ndarray | None = None


def _pieces() -> _Pieces:
    import cupy

    # Events are of one device.
    device = cupy.cuda.Device().id
    by_device: dict[int, _Pieces] = _local.__dict__.setdefault("pieces", {})
    if device not in by_device:
        by_device[device] = _Pieces()
    return by_device[device]


def pinned_piece(nbytes: int) -> np.ndarray | None:
    """Return this thread's page-locked buffer, or None if `nbytes` do not fit.

    It is the thread's only until the next call.
    """
    if nbytes > PIECE_NBYTES:
        return None
    pieces = _pieces()
    if pieces.whole is None:
        pieces.whole = pinned_array(PIECE_NBYTES)
    return pieces.whole[:nbytes]


def copy_to_device(host: np.ndarray, target: Any, stream: Any) -> None:
    """Copy bytes to the device through page-locked memory.

    Parameters
    ----------
    host
        Bytes, uint8, contiguous; free for other use on return.
    target
        The CuPy memory pointer to copy to.
    stream
        The CuPy stream on which the last copies are still queued on return.
    """
    pieces = _pieces()
    for number, first in enumerate(range(0, len(host), COPY_NBYTES)):
        piece = host[first : first + COPY_NBYTES]
        pinned, free = pieces.pinned[number % 2], pieces.free[number % 2]
        free.synchronize()
        pinned[: len(piece)] = piece
        (target + first).copy_from_host_async(pinned.ctypes.data, len(piece), stream)
        free.record(stream)


def copy_to_host(source: Any, out: np.ndarray, stream: Any) -> None:
    """Copy bytes from the device through page-locked memory; complete on return.

    Parameters
    ----------
    source
        The CuPy memory pointer to copy from.
    out
        Room for the bytes, uint8, contiguous.
    stream
        The CuPy stream to copy on.
    """
    pieces = _pieces()
    waiting: list[tuple[int, int]] = []

    def take() -> None:
        number, first = waiting.pop(0)
        pieces.free[number % 2].synchronize()
        part = out[first : first + COPY_NBYTES]
        part[:] = pieces.pinned[number % 2][: len(part)]

    for number, first in enumerate(range(0, len(out), COPY_NBYTES)):
        if len(waiting) == 2:
            take()
        nbytes = min(COPY_NBYTES, len(out) - first)
        pinned = pieces.pinned[number % 2]
        (source + first).copy_to_host_async(pinned.ctypes.data, nbytes, stream)
        pieces.free[number % 2].record(stream)
        waiting.append((number, first))
    while waiting:
        take()
