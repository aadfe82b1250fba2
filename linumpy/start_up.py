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
from contextlib import suppress

from linumpy.timeline import span


def begin_cuda() -> None:
    """Start CUDA on the first visible GPU, in a thread of its own; returns at once.

    Says nothing when there is no GPU: whoever needs one asks `linumpy.device.resolve`.
    """
    threading.Thread(target=_retain_context, name="start-cuda", daemon=True).start()


def _retain_context() -> None:
    with span("start", "CUDA"):
        try:
            driver = ctypes.CDLL("libcuda.so.1")
        except OSError:
            return
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
            # The runtime, and so CuPy, works in this same context; it is held until the end.
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def begin_import(*names: str) -> None:
    """Import modules in a thread of its own; whoever imports one of them waits for it."""

    def work() -> None:
        with span("start", ", ".join(names)), suppress(ImportError):
            for name in names:
                importlib.import_module(name)

    threading.Thread(target=work, name="start-imports", daemon=True).start()


def leave() -> None:
    """End the process, if it used CUDA, without taking CUDA apart.

    All files are closed and all that was to happen at exit has happened. What is left is device
    memory, which the driver frees at once when the process is gone, and piece by piece before.
    """
    if "cupy" not in sys.modules:
        return
    atexit._run_exitfuncs()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
