"""A process that works on items of a task, one after the other.

On a GPU the interpreter, which runs one thread at a time, is the limit of slices in one process:
a third thread gains nothing, while a second process with as many threads makes 1.4 times as many
(docs/benchmarks/2026-11-25-slice-groups.md).
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Generic, Self, TypeVar

from linumpy.core.device import (
    Device,
    batch_share,
    cores_a_gpu,
    free_gpu_bytes,
    resolve,
    set_batch_share,
)
from linumpy.core.errors import DeviceMemoryError, DeviceStuckError, InputError, LinumpyError
from linumpy.core.exit_status import (
    DEVICE_LOST,
    DEVICE_MEMORY,
    HOST_MEMORY,
    exit_status,
    message,
)
from linumpy.core.host_memory import granted_host_bytes
from linumpy.core.leases.lease import Ask, keep_one
from linumpy.core.log import configure_logging, logger
from linumpy.core.start_up import Stopped, Stopping, begin_cuda, leave, spare_scipy
from linumpy.core.timeline import record_beside

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST_PROCESSES = 3
"""Of a GPU; a fourth is not sure to gain (docs/benchmarks/2026-11-25-slice-groups.md)."""

CORES_A_PROCESS = 2
"""One that works on a GPU takes 1.5; one without keeps two busy with its threads."""

HOST_NBYTES = 2 << 30
"""Host memory of one that works on a GPU."""

LEAST_SHARE_NBYTES = 8 << 30
"""Of a GPU's memory, for a process: batches of full size, and room for what waits."""

_PR_SET_PDEATHSIG = 1
_LEAVE_S = 20.0
_KINDS: dict[int | None, type[Exception]] = {
    HOST_MEMORY: MemoryError,
    DEVICE_MEMORY: DeviceMemoryError,
    DEVICE_LOST: DeviceStuckError,
}


def processes_a_gpu(*, whole: bool = False) -> int:
    """Return how many processes to have on the current GPU, by cores and memory; 0 or more.

    Tasks that share it divide its memory among them, and cores as of `cores_a_gpu`.
    """
    cores = cores_a_gpu(whole=whole)
    return min(MOST_PROCESSES, cores // CORES_A_PROCESS, free_gpu_bytes() // LEAST_SHARE_NBYTES)


def processes_on(device: Device, *, beside: int = 0, whole: bool = False) -> int:
    """Return how many processes to have on all GPUs of a device, one on each at least.

    Parameters
    ----------
    beside
        Processes more that share the task's host memory.
    whole
        As of `processes_a_gpu`.
    """
    room = granted_host_bytes() // HOST_NBYTES - beside
    # A retry begins with fewer; no GPU is without one.
    each = min(int(processes_a_gpu(whole=whole) * batch_share()), room // device.count)
    return device.count * max(1, each)


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
    gpu
        Which of the starting process's GPUs is the only one of this; None for all of them.
    threads
        That work on the host; None for as many as in the starting process.
    """

    device: Device
    memory_bytes: int | None
    batch_share: float
    verbose: bool
    gpu: int | None = None
    threads: int | None = None

    @classmethod
    def like_here(
        cls,
        device: Device,
        memory_bytes: int | None,
        *,
        gpu: int | None = None,
        threads: int | None = None,
    ) -> Setting:
        """Return that of this process."""
        verbose = logger.level == logging.DEBUG
        return cls(device, memory_bytes, batch_share(), verbose, gpu, threads)


class WorkerProcess(Generic[Item, Result]):
    """A process that calls a function of items; it ends with this object's process.

    Parameters
    ----------
    setting
        Of the process.
    begin
        Called there once, when the device is there; returns the function. To be pickled, as items
        and what the function returns and raises are.
    """

    def __init__(self, setting: Setting, begin: Callable[[], Callable[[Item], Result]]) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, there = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(there, setting, begin), name="linumpy-worker", daemon=True
        )
        self._busy = False
        self._process.start()
        there.close()

    def __call__(self, item: Item, name: str) -> Result:
        """Return what the function returns; errors are those of `receive`."""
        self.send(item)
        return self.receive(name)

    def send(self, item: Item) -> None:
        """Have the function called; `connection` can be read when it has returned."""
        self._busy = True
        # What has ended is found when its answer is awaited.
        with suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(item)

    def receive(self, name: str) -> Result:
        """Wait for what the function returns.

        Parameters
        ----------
        name
            Of the item, for messages about the end of its process.

        Raises
        ------
        MemoryError
            When memory was short, or the process was killed, as the kernel does then.
        DeviceMemoryError, DeviceStuckError
            When the device's memory was short, or the device is lost.
        LinumpyError
            When the function failed or the process ended otherwise.
        """
        try:
            result, error = self.connection.recv()
        except (EOFError, OSError):
            raise self._ended(f"{name}: its process") from None
        self._busy = False
        if error is not None:
            raise error
        answer: Result = result
        return answer

    def _ended(self, name: str) -> Exception:
        self._process.join(_LEAVE_S)
        status = self._process.exitcode
        if status == -signal.SIGKILL:
            return MemoryError(f"{name} was killed, as happens when memory is short")
        if status == DEVICE_LOST:
            return DeviceStuckError(f"{name} lost the GPU")
        return LinumpyError(f"{name} ended with status {status}")

    def stop(self) -> None:
        """Have the process end, also while it works; nothing can be sent or received any more."""
        if self._busy:
            self._process.terminate()
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Stop the process, and wait until it is gone."""
        self.stop()
        self._process.join(_LEAVE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def end_all(workers: Iterable[WorkerProcess[Any, Any]]) -> None:
    """End processes, all together before one is waited for after the other."""
    workers = list(workers)
    for worker in workers:
        worker.stop()
    for worker in workers:
        worker.end()


def _serve(
    there: Connection, setting: Setting, begin: Callable[[], Callable[[Any], object]]
) -> None:
    _end_with_parent()
    record_beside()
    stopping = Stopping()
    with suppress(KeyboardInterrupt, Stopped), stopping:
        configure_logging(setting.verbose)
        set_batch_share(setting.batch_share)
        if setting.threads is not None:
            os.environ["OMP_NUM_THREADS"] = str(setting.threads)
        if setting.gpu is not None:
            keep_one(setting.gpu)
        if setting.device.is_gpu:
            begin_cuda(Ask())
            spare_scipy()
        work = _begun(setting, begin)
        # The other side closes it when no item is left, and the system when that process ends.
        with suppress(EOFError, BrokenPipeError):
            while True:
                there.send(_outcome(work, there.recv()))
    leave(128 + stopping.number if stopping.number else 0)


def _begun(
    setting: Setting, begin: Callable[[], Callable[[Any], object]]
) -> Callable[[Any], object]:
    """Return the function to call; one that raises what went wrong where it could not begin."""
    try:
        # Modules are imported while CUDA starts.
        work = begin()
        resolve(setting.device.is_gpu, setting.memory_bytes)
        return work
    except Exception as error:
        failure = error

    def fail(_: object) -> object:
        raise failure

    return fail


def _outcome(work: Callable[[Any], object], item: object) -> tuple[object, Exception | None]:
    try:
        return work(item), None
    except Exception as error:
        logger.debug("where it happened", exc_info=error)
        status = exit_status(error)
        # The errors of libraries may not survive the way to another process.
        text = str(error) if status == HOST_MEMORY else message(error, status)
        known = InputError if isinstance(error, InputError) else LinumpyError
        return None, _KINDS.get(status, known)(text)


def _end_with_parent() -> None:
    """Have the kernel send SIGTERM when the thread that started this process ends (Linux)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
