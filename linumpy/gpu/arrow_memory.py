"""Lifetime of an Arrow producer's memory, and arrays over it."""

from __future__ import annotations

import contextlib
import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from linumpy.core.device import Array, cupy_for
from linumpy.core.errors import DeviceError, InputError
from linumpy.gpu import arrow_abi as abi

MOST_BYTES = 1 << 47
"""What a process can address; larger arrays do not exist."""


class Owner:
    """Owner of a producer's memory until no view is left."""

    def __init__(self, capsules: Any) -> None:
        self._capsules = capsules
        self._array: abi.ArrowArray | None = None
        self._stream: Any = None

    def take(self, array: abi.ArrowArray, stream: Any) -> None:
        """Move the struct here, to release it at the end."""
        self._array, self._stream = abi.move(array), stream

    def __del__(self) -> None:
        if self._array is None:
            return
        try:
            # The producer may reuse the memory at once, and our queue may still be reading it.
            if self._stream is not None:
                with contextlib.suppress(Exception):
                    self._stream.synchronize()
        finally:
            abi.release(self._array)


@dataclass(frozen=True)
class _Memory:
    """Host memory as NumPy wants it presented."""

    __array_interface__: dict[str, Any]
    owner: Owner


@dataclass(frozen=True)
class Place:
    """Where a struct's buffers live, and how arrays are laid over them."""

    xp: Any
    owner: Owner
    device_id: int = -1
    stream: Any = None

    @classmethod
    def of(cls, struct: abi.ArrowDeviceArray, owner: Owner) -> Place:
        """Find the device, and wait there for the producer."""
        kind, number, event = struct.device_type, struct.device_id, struct.sync_event
        if kind == abi.CPU:
            if event:
                raise InputError("Arrow: an array of the CPU comes with an event to wait for")
            return cls(np, owner)
        if kind not in (abi.CUDA, abi.CUDA_HOST, abi.CUDA_MANAGED):
            raise DeviceError(f"Arrow: device type {kind} is neither the CPU nor CUDA")
        if kind == abi.CUDA_HOST and not event:
            return cls(np, owner)
        cupy = cupy_for("Arrow memory of a GPU")
        handle = ctypes.c_void_p.from_address(event).value if event else None
        if kind == abi.CUDA_HOST:
            cupy.cuda.runtime.eventSynchronize(handle)
            return cls(np, owner)
        count = cupy.cuda.runtime.getDeviceCount()
        if not 0 <= number < count:
            raise DeviceError(f"Arrow: the array lives on GPU {number}, of {count} visible here")
        with cupy.cuda.Device(number):
            stream = cupy.cuda.get_current_stream()
            if handle:
                cupy.cuda.runtime.streamWaitEvent(stream.ptr, handle)
        return cls(cupy, owner, number, stream)

    def view(self, what: str, address: int | None, dtype: str, first: int, count: int) -> Array:
        """Return `count` numbers of a buffer from number `first` on."""
        kind = np.dtype(dtype)
        if not count:
            return self.xp.empty(0, kind)
        if not address:
            raise InputError(f"Arrow {what}: has {count} values, and no buffer that holds them")
        address += first * kind.itemsize
        if address + count * kind.itemsize > 1 << 64 or count * kind.itemsize > MOST_BYTES:
            raise InputError(f"Arrow {what}: {count} values from {first} on cannot exist")
        if self.xp is np:
            interface = {
                "version": 3,
                "shape": (count,),
                "typestr": kind.str,
                "data": (address, True),
            }
            return np.asarray(_Memory(interface, self.owner))
        if address % kind.itemsize:
            raise InputError(f"Arrow {what}: its buffer is not aligned to {kind.itemsize} bytes")
        cuda = self.xp.cuda
        memory = cuda.UnownedMemory(address, count * kind.itemsize, self.owner, self.device_id)
        return self.xp.ndarray((count,), kind, cuda.MemoryPointer(memory, 0))

    def flags(self, what: str, address: int | None, first: int, count: int) -> Array:
        """Return `count` bits of a bitmap from bit `first` on, as booleans."""
        if not count:
            return self.xp.empty(0, bool)
        start = first // 8
        packed = self.view(what, address, "uint8", start, -(-(first + count) // 8) - start)
        bits = self.xp.unpackbits(packed, bitorder="little")
        return bits[first - 8 * start :][:count].astype(bool)
