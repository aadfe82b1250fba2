"""Lazy arrays: contents on disk, on the host or on GPUs, copied where they are used.

`LazyArray` keeps at most one copy a place, each with the state that it was last in step with.
`get_array` hands out the copy of the current place (`linumpy.core.device.device`) and copies only
what is stale; entering or leaving a device copies nothing. A `Pool` bounds the memory that many
arrays hold together. Works without CUDA; then there is no place but the host and the disk.
"""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from linumpy.core.device import (
    CPU,
    Array,
    Device,
    Scope,
    current,
    current_scope,
    device,
    locate,
    on_host,
)
from linumpy.core.errors import DeviceError, InputError
from linumpy.gpu.places import DISK, Copy, Place
from linumpy.gpu.pool import Pool

__all__ = ["DISK", "Intent", "LazyArray", "Pool", "current", "device", "on_host"]

Intent = Literal["ro", "rw", "wo"]
"""What an array is asked for: read only, read and write, write only."""

_INTENTS = get_args(Intent)

_NUMBERS = itertools.count()
_UNBOUNDED = Pool()


class LazyArray:
    """An array with at most one copy on each of disk, host and GPUs.

    Parameters
    ----------
    array
        NumPy or CuPy array (or another with a CUDA array interface), any shape, any dtype but
        object. It is taken over, not copied: writes may go to its memory. If it is read-only
        it stays so, on every place.
    name
        For error messages.
    pool
        Whose budgets the copies count towards; without one they are unbounded.
    load
        Returns the same contents again, so that they are dropped and loaded rather than spilled
        until they are first written; see `from_loader`.

    Notes
    -----
    A state counter rises at each `get_array` with ``rw`` or ``wo``; a copy is fresh while it
    has the state of the array. Copies stay, fresh or stale, until they are evicted.

    An array handed out for reading stays valid as long as it is held, also after eviction,
    and should be asked for anew after each write. An array handed out for writing may be written
    until the next `get_array` of the same `LazyArray`, `release`, or the end of the `device`
    block that it was handed out in; until then its copy is not evicted by the pool. What is
    written through it later may be lost.

    Threads may share an object: each array has a lock of its own, held while its bytes move.
    Two threads that write the same array need a lock of their own, as with NumPy.
    """

    def __init__(
        self,
        array: Array,
        *,
        name: str | None = None,
        pool: Pool | None = None,
        load: Callable[[], Array] | None = None,
    ) -> None:
        pool = _UNBOUNDED if pool is None else pool
        place, array = pool.find(array)
        self._set_up(array.shape, array.dtype, load, name, pool)
        self._read_only = place.is_read_only(array)
        with self._lock:
            self._pool.reserve(self, place.device)
            self._adopt(place, array)

    def _set_up(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        load: Callable[[], Array] | None,
        name: str | None,
        pool: Pool | None,
    ) -> None:
        self._pool = _UNBOUNDED if pool is None else pool
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self.number = next(_NUMBERS)
        self.name = name if name is not None else f"lazy array {self.number}"
        if self.dtype.hasobject:
            raise InputError(f"{self.name}: dtype {self.dtype} holds Python objects, not numbers")
        self.size = math.prod(self.shape)
        self.nbytes = self.size * self.dtype.itemsize
        self._load = load
        self._read_only = False
        self._state = 0
        self._copies: dict[Device, Copy] = {}
        # The block, and the place, in which a writable array is out.
        self._writer: tuple[Scope | None, Device] | None = None
        # Not re-entrant, so that an array which is being moved is never chosen as a victim.
        self._lock = threading.Lock()
        self._pool.register(self, self._copies)

    @classmethod
    def empty(
        cls,
        shape: tuple[int, ...],
        dtype: Any,
        *,
        name: str | None = None,
        pool: Pool | None = None,
    ) -> LazyArray:
        """Return an array whose contents are undefined until written; it takes no memory yet."""
        lazy = cls.__new__(cls)
        lazy._set_up(shape, dtype, None, name, pool)
        return lazy

    @classmethod
    def from_loader(
        cls,
        load: Callable[[], Array],
        shape: tuple[int, ...],
        dtype: Any,
        *,
        name: str | None = None,
        pool: Pool | None = None,
    ) -> LazyArray:
        """Return an array that is read when its contents are first needed.

        Parameters
        ----------
        load
            Returns the array, on any place: it runs in the `device` block that asked, so that it
            can read straight to a GPU. Called again only when all copies were evicted before
            the array was ever written; it must give the same bits then.
        shape, dtype
            What `load` returns; InputError is raised on reading if it does not.
        name, pool
            As for `LazyArray`.
        """
        lazy = cls.__new__(cls)
        lazy._set_up(shape, dtype, load, name, pool)
        return lazy

    @classmethod
    def open(cls, path: Path | str, *, pool: Pool | None = None) -> LazyArray:
        """Return the array of an ``.npy`` file or of a Zarr array, read when first needed.

        Inside `linumpy.gpu.zarr_io.gpu_zarr_context` a Zarr array is read straight to the GPU.
        The file is never written.

        Raises
        ------
        InputError
            When the file is neither.
        """
        path = Path(path)
        if path.suffix == ".npy":
            try:
                shape, dtype = _npy_header(path)
            except (OSError, ValueError) as error:
                raise InputError(f"{path}: not a readable .npy file: {error}") from error
            return cls.from_loader(
                lambda: np.load(path, allow_pickle=False),
                shape,
                dtype,
                name=str(path),
                pool=pool,
            )
        import zarr

        from linumpy.store.untrusted_zarr import check_array

        try:
            found = zarr.open_array(path, mode="r")
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{path}: not a readable Zarr array: {error}") from error
        check_array(found.metadata, path)

        # Opened anew for each read: Zarr binds codecs and buffers to the context it opened in.
        def load() -> Any:
            return zarr.open_array(path, mode="r")[...]

        return cls.from_loader(
            load,
            found.shape,
            found.dtype,
            name=str(path),
            pool=pool,
        )

    @property
    def read_only(self) -> bool:
        """Whether ``rw`` and ``wo`` are refused."""
        return self._read_only

    @property
    def copies(self) -> dict[Device, bool]:
        """Where there are copies, and whether each is fresh."""
        with self._lock:
            return {where: copy.state == self._state for where, copy in self._copies.items()}

    def get_array(self, intent: Intent = "ro") -> Array:
        """Return the array on the current device; bytes move only if its copy there is stale.

        Parameters
        ----------
        intent
            ``ro``: a view that cannot be written. ``rw``: a writable array; all other copies
            are stale from here on. ``wo``: the same with undefined contents, for which nothing
            is ever copied.

        Returns
        -------
        NumPy or CuPy array of `shape` and `dtype`.

        Raises
        ------
        ValueError
            When a read-only array is asked for with ``rw`` or ``wo``.
        DeviceError
            When there is no memory on the device even after others were evicted.

        Notes
        -----
        When a copy fails, the error is passed on, and counters and copies are as before.
        """
        if intent not in _INTENTS:
            raise ValueError(f"intent {intent!r}: expected one of {_INTENTS}")
        writing = intent != "ro"
        if writing and self._read_only:
            raise ValueError(f"{self.name} is read-only: it cannot be asked for as {intent!r}")
        scope = current_scope()
        where = CPU if scope is None else scope.device
        place = self._pool.place(where)
        if place is self._pool.disk:
            raise DeviceError(f"{self.name}: arrays are not handed out on {where}")
        with self._lock:
            copy = self._copies.get(where)
            if copy is None or (intent != "wo" and copy.state != self._state):
                copy = self._bring(place, intent != "wo")
            place.order(copy, writing)
            self._pool.touch(self, where)
            if not writing:
                self._writer = None
                return place.guard(copy.array)
            self._state += 1
            copy.state = self._state
            self._writer = (scope, where)
            if scope is not None:
                scope.leaving[self.number] = _leaver(weakref.ref(self))
            return copy.array.view()

    def duplicate(self, *, name: str | None = None) -> LazyArray:
        """Return a writable lazy array of the same contents, copied on the current device."""
        twin = LazyArray.empty(self.shape, self.dtype, name=name, pool=self._pool)
        # Allocated first: making room for it must not evict the copy that is read.
        target = twin.get_array("wo")
        target[...] = self.get_array()
        twin.release()
        return twin

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the array on the host, for ``np.asarray``: a view that cannot be written."""
        with device(CPU):
            return np.array(self.get_array(), dtype, copy=copy)

    def release(self) -> None:
        """End the time in which an array handed out for writing may be written."""
        with self._lock:
            self._writer = None

    def evict(self, where: Device) -> None:
        """Drop the copy at a place, keeping the contents.

        The last fresh copy is first copied elsewhere: from a GPU to the host, from the host to
        disk, from disk to the host. One that can be loaded again is simply dropped. An
        array handed out for writing there may not be written any more.
        """
        where = locate(where)
        with self._lock:
            self._drop(where)
            if self._writer is not None and self._writer[1] == where:
                self._writer = None

    def try_evict(self, where: Device) -> None:
        """Evict unless the array is in use by a thread or out for writing there."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._writer is None or self._writer[1] != where:
                self._drop(where)
        finally:
            self._lock.release()

    def _leave(self, scope: Scope) -> None:
        with self._lock:
            if self._writer is not None and self._writer[0] is scope:
                self._writer = None

    # All below is called with the lock held.

    def _bring(self, place: Place, contents: bool, partner: Place | None = None) -> Copy:
        """Make sure that there is a copy at a place, and that it is fresh if contents count.

        Host memory is allocated to suit `partner`, which it goes to, else where it comes from.
        """
        if contents and self._load is not None and self._state == 0 and not self._fresh():
            self._read()
        where = place.device
        copy = self._copies.get(where)
        if copy is not None and copy.state == self._state:
            return copy
        sources = self._fresh() if contents else []
        if sources and where != CPU and all(s.kind not in ("cpu", where.kind) for s in sources):
            # Between places of different kinds the way is through the host.
            self._bring(self._pool.place(CPU), True, place)
            sources = self._fresh()
        source = _choose(sources, where)
        if copy is None:
            if partner is None and source is not None:
                partner = self._pool.place(source)
            copy = Copy(self._pool.allocate(self, place, partner))
            try:
                self._refresh(place, copy, source)
            except BaseException:
                place.retire(copy)
                self._pool.give_back(self, where)
                raise
            self._copies[where] = copy
        else:
            self._refresh(place, copy, source)
        if contents:
            copy.state = self._state
        return copy

    def _refresh(self, place: Place, copy: Copy, source: Device | None) -> None:
        place.order(copy, True)
        if source is None:
            return
        origin = self._pool.place(source)
        origin.order(self._copies[source], False)
        if place.device == CPU:
            origin.fetch(self._copies[source].array, copy.array)
        else:
            place.fill(copy.array, self._copies[source].array)

    def _fresh(self) -> list[Device]:
        return [where for where, copy in self._copies.items() if copy.state == self._state]

    def _read(self) -> None:
        assert self._load is not None
        place, array = self._pool.find(self._load())
        if array.shape != self.shape or array.dtype != self.dtype:
            raise InputError(
                f"{self.name}: read {array.dtype} {array.shape}, expected {self.dtype} {self.shape}"
            )
        if place.is_read_only(array):
            array = array.copy()
        # Replaces a stale copy, whose share of the budget this one takes over.
        self._pool.reserve(self, place.device)
        self._adopt(place, array)

    def _adopt(self, place: Place, array: Array) -> None:
        copy = Copy(array, self._state)
        place.order(copy, True)
        self._copies[place.device] = copy

    def _drop(self, where: Device) -> None:
        copy = self._copies.get(where)
        if copy is None:
            return
        loadable = self._load is not None and self._state == 0
        last = self._fresh() == [where] and not loadable
        if last:
            self._bring(self._pool.place(DISK if where == CPU else CPU), True)
        self._pool.place(where).retire(copy)
        del self._copies[where]
        self._pool.give_back(self, where, spilled=last)


def _choose(sources: list[Device], where: Device) -> Device | None:
    """Return where to copy from: the same kind of place, else the host, the disk last."""
    order = sorted(sources, key=lambda s: (s.kind != where.kind, s != CPU, s == DISK))
    return order[0] if order else None


def _npy_header(path: Path) -> tuple[tuple[int, ...], np.dtype]:
    with path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        else:
            shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    return shape, dtype


def _leaver(reference: weakref.ref[LazyArray]) -> Callable[[Scope], None]:
    def leave(scope: Scope) -> None:
        lazy = reference()
        if lazy is not None:
            lazy._leave(scope)

    return leave
