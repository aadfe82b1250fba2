"""What a process can begin before it needs it, and what it can leave out at its end.

Starting CUDA takes a quarter of a second in which the driver alone is busy. Meanwhile Python can
import what the script needs; and while the device decodes, what its last stages need.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from linumpy.errors import LinumpyError
from linumpy.gpu.lease import Ask, hold, want
from linumpy.timeline import span


def begin_cuda(ask: Ask) -> None:
    """Take GPUs and start CUDA on them, in threads of its own; returns at once.

    Says nothing when there is none, or none was free: whoever needs one asks
    `linumpy.device.resolve`.
    """

    def work() -> None:
        with span("start", "lease"), suppress(LinumpyError):
            hold()
            for number in range(ask.count):
                _in_thread("start-cuda", _retain_context, number)

    want(ask)
    _in_thread("start-lease", work)


def _in_thread(name: str, work: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=work, args=arguments, name=name, daemon=True).start()


def _retain_context(number: int) -> None:
    with span("start", "CUDA"):
        try:
            driver = ctypes.CDLL("libcuda.so.1")
        except OSError:
            return
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), number) == 0:
            # The runtime, and so CuPy, works in this same context; it is held until the end.
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def begin_import(*names: str) -> None:
    """Import modules in a thread of its own; whoever imports one of them waits for it."""

    def work() -> None:
        with span("start", ", ".join(names)), suppress(ImportError):
            for name in names:
                importlib.import_module(name)

    _in_thread("start-imports", work)


def leave(status: int = 0) -> None:
    """End the process, if it used CUDA, without taking CUDA apart.

    All files are closed and all that was to happen at exit has happened. What is left is device
    memory, which the driver frees at once when the process is gone, and piece by piece before. No
    thread is waited for.
    """
    if "cupy" not in sys.modules:
        return
    atexit._run_exitfuncs()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
