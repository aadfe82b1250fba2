"""Pool of host memory for tiles: fresh pages cost as much as decoding their contents.

The C library gives large blocks back to the system as soon as they are free, and the system clears
every page that it hands out. `empty` takes what an earlier tile left behind.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

KEEP_NBYTES = 1 << 30
"""Most bytes that are kept for later."""


class HostPool:
    """Blocks of memory that come back when the last array on them is gone.

    They are kept only within `reusing`: what comes after has blocks of other sizes.
    """

    def __init__(self, keep_nbytes: int = KEEP_NBYTES) -> None:
        self._keep_nbytes = keep_nbytes
        self._free: dict[int, list[np.ndarray]] = {}
        # A finalizer may run at any line of the thread that holds the lock.
        self._lock = threading.RLock()
        self._users = 0
        self.free_nbytes = 0

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an uninitialised C-contiguous array, as ``numpy.empty``."""
        dtype = np.dtype(dtype)
        nbytes = max(1, math.prod(shape) * dtype.itemsize)
        with self._lock:
            left = self._free.get(nbytes)
            block = left.pop() if left else None
            self.free_nbytes -= nbytes if left is not None and block is not None else 0
        if block is None:
            block = np.empty(nbytes, np.uint8)
        return np.asarray(_Lease(self, block, shape, dtype))

    def give_back(self, block: np.ndarray) -> None:
        """Keep a block for later, unless enough is kept."""
        with self._lock:
            if self._users and self.free_nbytes + block.nbytes <= self._keep_nbytes:
                self._free.setdefault(block.nbytes, []).append(block)
                self.free_nbytes += block.nbytes

    @contextmanager
    def reusing(self) -> Iterator[None]:
        """Keep blocks for later until the block of code ends; such blocks may overlap."""
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._free.clear()
                    self.free_nbytes = 0


class _Lease:
    """What the arrays on a block hold on to."""

    def __init__(
        self, pool: HostPool, block: np.ndarray, shape: tuple[int, ...], dtype: np.dtype
    ) -> None:
        self.__array_interface__ = {
            **block.__array_interface__,
            "shape": shape,
            "typestr": dtype.str,
            "descr": dtype.descr,
            "strides": None,
        }
        weakref.finalize(self, pool.give_back, block).atexit = False


_pool = HostPool()


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an uninitialised array from the process's pool; see `HostPool.empty`."""
    return _pool.empty(shape, dtype)


def reusing() -> AbstractContextManager[None]:
    """Let the process's pool keep blocks for later; see `HostPool.reusing`."""
    return _pool.reusing()
