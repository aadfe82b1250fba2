"""Process start-up and exit: background CUDA initialisation, signals, skipped teardown.

Starting CUDA takes a quarter of a second in which the driver alone is busy. Meanwhile Python can
import what the script needs; and while the device decodes, what its last stages need.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import inspect
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import NoReturn, Self

from linumpy.core.compiled_kernels import leave_kernels_loaded
from linumpy.core.errors import LinumpyError
from linumpy.core.leases.book import turn
from linumpy.core.leases.lease import Ask, hold, want
from linumpy.core.timeline import span
from linumpy.core.watchdog import watch

MOST_TURN_S = 20.0
"""How long to let other processes start CUDA first."""

CONNECTIONS = "2"
"""Queues to the device, of CUDA's usual eight: making them is half of what a context takes, and
with fewer a slice takes no longer (docs/benchmarks/2026-11-21-several-gpus.md)."""

_SLEEP_WHILE_WAITING = 4
"""CUDA's CU_CTX_SCHED_BLOCKING_SYNC. By default a thread that waits for the device keeps a core
busy that others could use (docs/benchmarks/2026-11-29-what-four-gpus-wait-for.md)."""

_starting: threading.Thread | None = None


def begin_cuda(ask: Ask, *, only_first: bool = False) -> None:
    """Take GPUs and start CUDA on them, or on the first, in a thread of its own; returns at once.

    No error is raised when there is none, or none was free: `linumpy.core.device.resolve` raises it
    where a GPU is needed.
    """

    def work() -> None:
        try:
            with span("start", "lease"):
                hold()
        except LinumpyError:
            return
        # The driver starts CUDA for one process after the other anyway, whatever their GPUs. All
        # at once would be ready when the last is, and go on in step, to wait for each other again.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", CONNECTIONS)
        with turn("start", MOST_TURN_S):
            for number in range(1 if only_first else ask.count):
                _retain_context(number)

    global _starting
    want(ask)
    _starting = _in_thread("start-cuda", work)


def wait_for_cuda() -> None:
    """Wait until what `begin_cuda` began is done; return at once where nothing was."""
    if _starting is not None:
        _starting.join()


def _in_thread(name: str, work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return thread


def _retain_context(number: int) -> None:
    with span("start", "CUDA"):
        try:
            driver = ctypes.CDLL("libcuda.so.1")
        except OSError:
            return
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if driver.cuInit(0) != 0 or driver.cuDeviceGet(ctypes.byref(device), number) != 0:
            return
        driver.cuDevicePrimaryCtxSetFlags_v2(device, _SLEEP_WHILE_WAITING)
        # The runtime, and so CuPy, works in this same context; it is held until the end.
        if driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) != 0:
            return

    def synchronize() -> bool:
        return bool(driver.cuCtxSetCurrent(context) == 0 and driver.cuCtxSynchronize() == 0)

    watch(synchronize, f"GPU {number}", end_now)


def import_first(package: str) -> None:
    """Import a package before threads import modules of it.

    Python 3.11, at least, lets a thread import one module of a package that another thread is just
    importing. Either then finds the other's modules half initialised, and one of the two fails.
    """
    with suppress(ImportError):
        importlib.import_module(package)


def begin_import(name: str) -> None:
    """Import a module in a thread of its own; another import of the same module waits for it.

    Not for what imports many modules of other packages, such as Zarr and Matplotlib: where another
    thread imports the same ones in another order, one of the two fails.
    """
    if package := name.rpartition(".")[0]:
        import_first(package)

    def work() -> None:
        with span("start", name), suppress(ImportError):
            importlib.import_module(name)

    _in_thread("start-imports", work)


class _ZarrWithoutCupy:
    """Import finder that refuses CuPy while Zarr is imported, which goes on without it."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "cupy":
            spec = getattr(sys.modules.get("zarr"), "__spec__", None)
            if getattr(spec, "_initializing", False):
                raise ModuleNotFoundError("No module named 'cupy'", name="cupy")


def spare_cupy() -> None:
    """Have Zarr not import CuPy in this process, which uses no GPU: a quarter of its import."""
    sys.meta_path.insert(0, _ZarrWithoutCupy())


class _CupyxWithoutScipy:
    """Import finder that refuses SciPy to modules of CuPyX, which go on without it."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] != "scipy":
            return
        frame = inspect.currentframe()
        # Between the statement and here there is the import system, and this method.
        while frame and frame.f_globals.get("__name__", "").startswith(("importlib.", __name__)):
            frame = frame.f_back
        if frame and frame.f_globals.get("__name__", "").startswith("cupyx."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def spare_scipy() -> None:
    """Have CuPyX not import SciPy in this process: nine tenths of the import of CuPyX.

    CuPy imports CuPyX at the first operation of an array with a number. Of SciPy, CuPyX needs the
    sparse matrices that it converts, of which linumpy has none.
    """
    sys.meta_path.insert(0, _CupyxWithoutScipy())


PATIENCE_S = 10.0
"""How long threads may take to end after a signal; batch systems wait for half a minute."""

SAME_S = 0.5
"""Signals this close are one: `timeout`, schedulers and terminals send theirs to the process and to
its group."""


class Stopped(BaseException):
    """A signal asked the process to end; no `Exception`, so that no handler catches it."""


class Stopping:
    """Raise an exception in the main thread at the first signal that asks to end.

    So what was made aside is removed, and threads end with the item in hand. Where they do not
    within `PATIENCE_S`, be it that the exception came between the taking of a lock and its release,
    a thread of this object's removes it and ends the process. A second signal, `SAME_S` later or
    more, ends it at once.
    Ctrl-C raises KeyboardInterrupt as ever. What the caller ignores, as nohup does, stays ignored.

    Attributes
    ----------
    number
        The signal that came, also where the exception was lost on its way; None for none.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, object] = {}
        self._wakeup = (-1, -1)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                before = signal.getsignal(number)
                if before in (signal.SIG_DFL, signal.default_int_handler):
                    self._before[number] = before
                    signal.signal(number, self._stop)
            self._watch()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # After a signal, the way out can be cut short by another.
        if self.number is None and self._before:
            for number, before in self._before.items():
                signal.signal(number, before)  # type: ignore[arg-type]
            signal.set_wakeup_fd(self._wakeup[0])
            os.close(self._wakeup[1])

    def _watch(self) -> None:
        """Begin to wait for a signal, by a pipe that the system's own handler writes to."""
        if not self._before:
            return
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        self._wakeup = (signal.set_wakeup_fd(write_end, warn_on_full_buffer=False), write_end)
        wanted = set(self._before)

        def wait() -> None:
            while (found := os.read(read_end, 1)) and found[0] not in wanted:
                pass
            if not found:
                os.close(read_end)
                return
            came_s = time.monotonic()
            while (left_s := came_s + PATIENCE_S - time.monotonic()) > 0:
                # The pipe stays open from now on.
                if select.select([read_end], [], [], left_s)[0]:
                    again = os.read(read_end, 1)[0]
                    if again in wanted and time.monotonic() - came_s > SAME_S:
                        os._exit(128 + again)
            end_now(128 + found[0])

        threading.Thread(target=wait, name="stopping", daemon=True).start()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        for each in self._before:
            # One of Python's own, so that the pipe hears of it; the thread there does the rest.
            signal.signal(each, lambda number, frame: None)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise Stopped(signal.Signals(number).name)


def end_now(status: int) -> NoReturn:
    """End the process, even with waiting threads, and remove its unfinished outputs."""
    # No lock is taken here that another thread may never release.
    aside = sys.modules.get("linumpy.store.aside")
    if aside is not None:
        aside.remove_rest()
    os._exit(status)


def leave(status: int = 0) -> None:
    """End the process, if it used CUDA, without taking CUDA apart.

    All files are closed and all that was to happen at exit has happened. What is left is device
    memory, which the driver frees at once when the process is gone, and piece by piece before. No
    thread is waited for.
    """
    if "cupy" not in sys.modules:
        return
    leave_kernels_loaded()
    atexit._run_exitfuncs()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
