"""Sample GPU utilisation through NVML while a block runs."""

from __future__ import annotations

import ctypes
import statistics
import threading
from collections.abc import Sequence
from typing import Self

# Each question to the driver keeps others waiting, and it averages over as long itself.
SAMPLE_S = 0.25


class _Rates(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Utilisation:
    """Asks the driver, while a block runs, how busy each GPU is; empty without a driver."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._samples: dict[str, list[int]] = {name: [] for name in names}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def percent(self, name: str) -> float | None:
        """Return the mean of a GPU's samples."""
        samples = self._samples[name]
        return statistics.fmean(samples) if samples else None

    def _watch(self) -> None:
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        library.nvmlInit_v2()
        handles = {}
        for name in self._names:
            handle = ctypes.c_void_p()
            if library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle)) == 0:
                handles[name] = handle
        rates = _Rates()
        while not self._stop.wait(SAMPLE_S):
            for name, handle in handles.items():
                if library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)) == 0:
                    self._samples[name].append(int(rates.gpu))
