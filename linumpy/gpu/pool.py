"""Pool of lazy arrays: places, memory budgets and a scratch folder."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from linumpy.core.device import CPU, Array, Device, is_device_array
from linumpy.core.errors import DeviceError
from linumpy.gpu.places import DISK, Copy, CudaPlace, DiskPlace, Place

if TYPE_CHECKING:
    from linumpy.gpu.array import LazyArray


class Pool:
    """Memory budgets, one a device, and a scratch folder, shared by lazy arrays.

    Parameters
    ----------
    budgets
        Bytes of copies to keep on a device; ``Device("cuda")`` speaks for every GPU that is
        not named with its index. A device that is not named is unbounded.
    places
        Further kinds of places, such as stand-ins for a GPU in tests.
    scratch
        Parent of the scratch folder; the system's temporary folder when None.

    Notes
    -----
    Before memory is taken on a device, the least recently used copies there are evicted until
    it fits the budget. Passed over are arrays that a thread is moving at that moment and
    those out for writing there; if nothing else is left the budget is exceeded. Memory that
    a reader still holds counts no more once its copy is evicted.

    As a context manager it closes on exit.

    Attributes
    ----------
    spills
        How often an eviction had to save the contents elsewhere first.
    """

    def __init__(
        self,
        budgets: Mapping[Device, int] | None = None,
        *,
        places: Iterable[Place] = (),
        scratch: Path | None = None,
    ) -> None:
        self._budgets = dict(budgets or {})
        self.disk = DiskPlace(scratch)
        self._places: dict[Device, Place] = {place.device: place for place in places}
        self._places[CPU] = Place()
        self._places[DISK] = self.disk
        # A device's copies from the least to the most recently used, by number of the array.
        self._held: dict[Device, OrderedDict[int, weakref.ref[LazyArray]]] = {}
        self._sizes: dict[int, int] = {}
        self._bytes: dict[Device, int] = {}
        # Numbers of arrays that died: a finalizer may run at any line, so it takes no lock.
        self._dead: deque[int] = deque()
        self._lock = threading.Lock()
        self.spills = 0

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def held_bytes(self, where: Device) -> int:
        """Return the bytes of the copies on a device."""
        self._bury()
        return self._bytes.get(where, 0)

    def close(self) -> None:
        """Remove the scratch folder; arrays with no copy elsewhere are lost."""
        self.disk.close()

    def place(self, where: Device) -> Place:
        """Return the place of a device; a GPU needs its index."""
        found = self._places.get(where)
        if found is None:
            if not where.is_gpu or where.index is None:
                raise DeviceError(f"no lazy array can live on {where}")
            found = self._places.setdefault(where, CudaPlace(where.index))
        return found

    def find(self, array: Array) -> tuple[Place, Array]:
        """Return the place where an array lives, and the array as seen from that place."""
        for place in self._places.values():
            if place.device != CPU and place.owns(array):
                return place, array
        if is_device_array(array):
            import cupy

            there = cupy.asarray(array)
            return self.place(Device("cuda", there.device.id)), there
        return self.place(CPU), np.asarray(array)

    def register(self, lazy: LazyArray, copies: dict[Device, Copy]) -> None:
        """Take note of a new array, to clean up after it."""
        self._sizes[lazy.number] = lazy.nbytes
        weakref.finalize(lazy, self._died, lazy.number, copies).atexit = False

    def reserve(self, lazy: LazyArray, where: Device) -> None:
        """Count an array's copy on a device, having made room for it."""
        self._bury()
        with self._lock:
            held = self._held.setdefault(where, OrderedDict())
            added = lazy.number not in held
            if added:
                held[lazy.number] = weakref.ref(lazy)
                self._bytes[where] = self._bytes.get(where, 0) + lazy.nbytes
        limit = self._budgets.get(where, self._budgets.get(Device(where.kind)))
        if limit is not None:
            try:
                self._shrink(where, limit)
            except BaseException:
                if added:
                    self.give_back(lazy, where)
                raise

    def allocate(self, lazy: LazyArray, place: Place, partner: Place | None) -> Any:
        """Return memory for a copy, counted; on the host such as `partner` copies fast from or to.

        Raises
        ------
        DeviceError
            When there is none, even after all else in the pool was evicted from there.
        """
        where = place.device
        make = place.empty
        if where == CPU and partner is not None:
            make = partner.host_memory
        self.reserve(lazy, where)
        try:
            try:
                return make(lazy.shape, lazy.dtype)
            except MemoryError:
                self._shrink(where, 0)
                place.trim()
                return make(lazy.shape, lazy.dtype)
        except MemoryError as error:
            self.give_back(lazy, where)
            raise DeviceError(
                f"{lazy.name}: no room for {lazy.nbytes} bytes on {where} ({error})"
            ) from error
        except BaseException:
            self.give_back(lazy, where)
            raise

    def touch(self, lazy: LazyArray, where: Device) -> None:
        """Take note that a copy was used."""
        with self._lock:
            self._held[where].move_to_end(lazy.number)

    def give_back(self, lazy: LazyArray, where: Device, *, spilled: bool = False) -> None:
        """Stop counting an array's copy on a device."""
        with self._lock:
            self.spills += spilled
            self._uncount(lazy.number, where)

    def _uncount(self, number: int, where: Device) -> None:
        held = self._held.get(where)
        if held is not None and held.pop(number, None) is not None:
            self._bytes[where] -= self._sizes[number]

    def _shrink(self, where: Device, limit: int) -> None:
        """Evict least recently used copies until at most `limit` bytes are left, if possible."""
        if self._bytes[where] <= limit:
            return
        with self._lock:
            candidates = list(self._held[where].values())
        for reference in candidates:
            lazy = reference()
            if lazy is not None:
                lazy.try_evict(where)
            if self._bytes[where] <= limit:
                return

    def _died(self, number: int, copies: dict[Device, Copy]) -> None:
        for where, copy in copies.items():
            self.place(where).retire(copy)
        self._dead.append(number)

    def _bury(self) -> None:
        while self._dead:
            number = self._dead.popleft()
            with self._lock:
                for where in self._held:
                    self._uncount(number, where)
                self._sizes.pop(number, None)
