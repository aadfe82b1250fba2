"""Settings of a `gpu_zarr_context`, as its worker threads see them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from linumpy.gpu.decode import BATCH_NBYTES, ReadRecord


@dataclass
class Session:
    """Device, stream and backend of reads and writes.

    Attributes
    ----------
    device_id
        The device, or None for the current one.
    stream
        The CuPy stream in whose order memory is taken and results are given, or None for the
        device's default stream.
    backend
        As in `read_zarr_to_gpu`.
    batch_nbytes
        Decoded bytes of a batch.
    last_read
        How the last read of the session was served.
    """

    device_id: int | None = None
    stream: Any = None
    backend: str = "auto"
    batch_nbytes: int = BATCH_NBYTES
    last_read: ReadRecord | None = None

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Make the session's device and stream current in this thread."""
        import cupy

        device = cupy.cuda.Device(self.device_id)
        with device, self.stream if self.stream is not None else cupy.cuda.Stream.null:
            yield


# A context variable and not a thread's: Zarr runs its coroutines in a thread of its own, with the
# context of the caller.
_session: ContextVar[Session | None] = ContextVar("linumpy_gpu_session", default=None)


def current_session() -> Session:
    """Return the session of the innermost context, or the defaults."""
    return _session.get() or Session()


@contextmanager
def session(chosen: Session) -> Iterator[None]:
    """Make `chosen` the session until the block ends."""
    token = _session.set(chosen)
    try:
        yield
    finally:
        _session.reset(token)
