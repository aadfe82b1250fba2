"""A process that works on slices of a group, one after the other.

On a GPU the interpreter, which runs one thread at a time, is the limit of slices in one process:
a third thread gains nothing, while a second process with as many threads makes 1.4 times as many
(docs/benchmarks/2026-11-25-slice-groups.md). A lane of a group is therefore a process there.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Generic, Self, TypeVar

from linumpy.core.device import Device, batch_share, resolve, set_batch_share
from linumpy.core.errors import DeviceStuckError, LinumpyError
from linumpy.core.exit_status import DEVICE_LOST, exit_status, message
from linumpy.core.leases.lease import Ask
from linumpy.core.log import configure_logging, logger
from linumpy.core.start_up import Stopped, Stopping, begin_cuda, leave

Result = TypeVar("Result")

_PR_SET_PDEATHSIG = 1
_LEAVE_S = 20.0


@dataclass(frozen=True)
class Setting:
    """What a process takes over from the one that starts it.

    Attributes
    ----------
    device
        Where to compute.
    memory_bytes
        Device memory that it may take; None for no bound of its own.
    batch_share, verbose
        As of the starting process.
    """

    device: Device
    memory_bytes: int | None
    batch_share: float
    verbose: bool

    @classmethod
    def like_here(cls, device: Device, memory_bytes: int | None) -> Setting:
        """Return that of this process."""
        return cls(device, memory_bytes, batch_share(), logger.level == logging.DEBUG)


class SliceProcess(Generic[Result]):
    """A process that calls a function of a slice id; it ends with this object's process.

    Parameters
    ----------
    setting
        Of the process.
    begin
        Called there once, when the device is there; returns the function. To be pickled, as what
        the function returns and raises is.
    """

    def __init__(self, setting: Setting, begin: Callable[[], Callable[[int], Result]]) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(there, setting, begin), name="linumpy-lane", daemon=True
        )
        self._process.start()
        there.close()

    def __call__(self, slice_id: int) -> Result:
        """Return what the function returns.

        Raises
        ------
        MemoryError
            When the process was killed, as the kernel does when memory is short.
        DeviceStuckError
            When the device is lost.
        LinumpyError
            When the process ended otherwise.
        """
        try:
            self._here.send(slice_id)
            result, error = self._here.recv()
        except (EOFError, OSError):
            raise self._ended(f"z{slice_id:02d}: its process") from None
        if error is not None:
            raise error
        return result

    def _ended(self, name: str) -> Exception:
        self._process.join(_LEAVE_S)
        status = self._process.exitcode
        if status == -signal.SIGKILL:
            return MemoryError(f"{name} was killed, as happens when memory is short")
        if status == DEVICE_LOST:
            return DeviceStuckError(f"{name} lost the GPU")
        return LinumpyError(f"{name} ended with status {status}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # It has no slice in hand, or nobody wants the result.
        self._here.close()
        self._process.join(_LEAVE_S)
        if self._process.is_alive():
            self._process.kill()


def _serve(
    there: Connection, setting: Setting, begin: Callable[[], Callable[[int], object]]
) -> None:
    _end_with_parent()
    stopping = Stopping()
    with suppress(KeyboardInterrupt, Stopped), stopping:
        configure_logging(setting.verbose)
        set_batch_share(setting.batch_share)
        if setting.device.is_gpu:
            begin_cuda(Ask())
        work = _begun(setting, begin)
        # The other side closes it when no slice is left, and the system when that process ends.
        with suppress(EOFError, BrokenPipeError):
            while True:
                there.send(_outcome(work, there.recv()))
    leave(128 + stopping.number if stopping.number else 0)


def _begun(
    setting: Setting, begin: Callable[[], Callable[[int], object]]
) -> Callable[[int], object]:
    """Return the function to call; one that raises what went wrong where it could not begin."""
    try:
        # Modules are imported while CUDA starts.
        work = begin()
        resolve(setting.device.is_gpu, setting.memory_bytes)
        return work
    except Exception as error:
        failure = error

    def fail(_: int) -> object:
        raise failure

    return fail


def _outcome(work: Callable[[int], object], slice_id: int) -> tuple[object, Exception | None]:
    try:
        return work(slice_id), None
    except Exception as error:
        logger.debug("where it happened", exc_info=error)
        status = exit_status(error)
        # The errors of libraries may not survive the way to another process.
        kind = DeviceStuckError if status == DEVICE_LOST else LinumpyError
        return None, kind(message(error, status))


def _end_with_parent() -> None:
    """Have the kernel send SIGTERM when the thread that started this process ends (Linux)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
