"""Device policy: the only place that picks a device or moves an array between devices.

Nothing here touches CUDA at import. Library functions take NumPy or CuPy arrays and answer in
kind; they find their array module with `namespace` and SciPy's twin with `ndimage_of`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, ParamSpec, TypeGuard, TypeVar

import numpy as np

from linumpy.core import overlap
from linumpy.core.arrays import Array as Array
from linumpy.core.arrays import DeviceArray
from linumpy.core.compiled_kernels import use_compiled
from linumpy.core.errors import DeviceError
from linumpy.core.extras import extra_advice
from linumpy.core.host_memory import granted_host_bytes
from linumpy.core.leases import lease
from linumpy.core.start_up import wait_for_cuda

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Device:
    """A place where arrays live and are computed on.

    Attributes
    ----------
    kind
        ``cpu`` or ``cuda``.
    index
        Which of the visible GPUs; None for the one that is current in CuPy.
    count
        Of GPUs that work together, from the first visible one on. The slice engine divides tiles
        among them, `linumpy.brain.depth_parts` parts of depth, `linumpy.slices.evidence_lanes`
        slices; all else is done by the first.
    """

    kind: str
    index: int | None = None
    count: int = 1

    def __str__(self) -> str:
        if self.count > 1:
            return f"{self.kind} x {self.count}"
        return self.kind if self.index is None else f"{self.kind}:{self.index}"

    def each(self) -> tuple[Device, ...]:
        """Return the single devices."""
        if self.count == 1:
            return (self,)
        return tuple(Device(self.kind, number) for number in range(self.count))

    def first(self) -> Device:
        """Return the first of the single devices, which is the current one where no index says."""
        return self if self.count == 1 else Device(self.kind, self.index)

    @property
    def is_gpu(self) -> bool:
        """Whether arrays of this device are CuPy arrays."""
        return self.kind == "cuda"


CPU = Device("cpu")


def resolve(use_gpu: bool, gpu_memory_bytes: int | None = None) -> Device:
    """Choose the device of this process, once.

    Parameters
    ----------
    use_gpu
        Whether the user asked for a GPU. Of those that are visible (``CUDA_VISIBLE_DEVICES``) the
        process has what it leased: what its command line asked for
        (`linumpy.core.start_up.begin_cuda`), else its memory's share of one
        (`linumpy.core.leases.lease`).
    gpu_memory_bytes
        Most device memory to take, so that several processes can share a GPU; None for all that is
        free, or for the process's share. CuPy's pool gives unused memory back before it takes
        more than this.

    Raises
    ------
    DeviceError
        When a GPU is asked for and cannot be used, or none was free in time. There is no fallback.
    """
    if not use_gpu:
        return CPU
    held = lease.hold(lease.Ask(memory_bytes=gpu_memory_bytes))
    count = held.ask.count
    found = _visible_gpus("--use_gpu")
    if found < count:
        raise DeviceError(f"--gpu_count {count}: {found} GPUs are visible")
    limit = held.memory_limit() if gpu_memory_bytes is None else gpu_memory_bytes
    if limit is not None:
        import cupy

        for number in range(count):
            with cupy.cuda.Device(number if count > 1 else None):
                cupy.get_default_memory_pool().set_limit(size=limit)
    return Device("cuda", count=count)


def free_gpu_bytes() -> int:
    """Return the memory that can still be taken on the current GPU, that in CuPy's pool included.

    Not more than what the process was allowed to take (`resolve`), and only the share of a slice
    where several overlap (`linumpy.core.overlap`).

    Raises
    ------
    DeviceError
        When there is no usable GPU.
    """
    _visible_gpus("the memory of a GPU")
    import cupy

    pool = cupy.get_default_memory_pool()
    free = int(cupy.cuda.runtime.memGetInfo()[0]) + int(pool.free_bytes())
    limit = int(pool.get_limit())
    free = min(free, max(0, limit - int(pool.used_bytes()))) if limit else free
    return free // overlap.count()


@contextmanager
def share_of_gpu(processes: int) -> Iterator[int]:
    """Have this process take its share of what is free on the current GPU, so many sharing it.

    Yields
    ------
    The share, bytes. The other processes' contexts are left out of it.
    """
    import cupy

    pool = cupy.get_default_memory_pool()
    before = int(pool.get_limit())
    share = max(1, (free_gpu_bytes() - (processes - 1) * lease.CONTEXT_NBYTES) // processes)
    pool.set_limit(size=share)
    try:
        yield share
    finally:
        pool.free_all_blocks()
        pool.set_limit(size=before)


def gpu_failure() -> Exception | None:
    """Return CUDA's own error where the current GPU is of no more use to this process, else None.

    Libraries report such an error in their own words, or as something else.
    """
    import cupy

    try:
        cupy.cuda.runtime.memGetInfo()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        failure: Exception = error
        return failure
    return None


_batch_share = 1.0


def set_batch_share(share: float) -> None:
    """Have this process take so much of its usual batches on a GPU, 1 being all of them.

    A task that ran out of device memory is tried again like this. Results do not depend on it.
    """
    global _batch_share
    _batch_share = share


def batch_share() -> float:
    """Return the share of the usual batches, and of what rests on the device, to be taken."""
    return _batch_share


def locate(where: Device) -> Device:
    """Return `where` with its index: a GPU without one is the GPU that is current in CuPy.

    Raises
    ------
    DeviceError
        When it is a GPU that cannot be used.
    """
    if not where.is_gpu:
        return where
    count = _visible_gpus(f"device {where}")
    import cupy

    index = cupy.cuda.Device().id if where.index is None else where.index
    if not 0 <= index < count:
        raise DeviceError(f"device {where}: there are {count} visible GPUs, counted from 0")
    return Device("cuda", index)


def missing_library(asker: str, library: str, error: BaseException) -> DeviceError:
    """Return the error for a library of the GPU extra that is missing or does not load.

    Parameters
    ----------
    asker
        What needs the library: a flag or a function.
    library
        CuPy, kvikio or nvCOMP.
    error
        What importing or loading it raised.
    """
    return DeviceError(
        f"{asker} needs {library}, which cannot be imported here ({error}); {extra_advice('gpu')}"
    )


def cupy_for(asker: str) -> Any:
    """Return CuPy.

    Raises
    ------
    DeviceError
        When it cannot be imported; the message begins with `asker` and names the extra.
    """
    try:
        import cupy
    except ImportError as error:
        raise missing_library(asker, "CuPy", error) from error
    return cupy


def _visible_gpus(asker: str) -> int:
    """Return how many GPUs there are, at least one; the error begins with `asker`."""
    cupy = cupy_for(asker)
    wait_for_cuda()
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        raise DeviceError(
            f"{asker}: no usable GPU ({error}; CUDA_VISIBLE_DEVICES={visible!r})"
        ) from error
    if count == 0:
        raise DeviceError(f"{asker}: the CUDA driver reports no device")
    use_compiled()
    return int(count)


@dataclass(eq=False)
class Scope:
    """One entered `device` block.

    Attributes
    ----------
    device
        Where lazy arrays are handed out in it.
    leaving
        Called when the block is left, whatever the reason; keys avoid doubles.
    """

    device: Device
    leaving: dict[int, Callable[[Scope], None]] = field(default_factory=dict)


_ROOT = Scope(CPU)
_scope: ContextVar[Scope] = ContextVar("linumpy-device", default=_ROOT)


def current() -> Device:
    """Return the device of the innermost `device` block of this thread; the CPU outside of all."""
    return _scope.get().device


def current_scope() -> Scope | None:
    """Return the innermost `device` block, or None outside of all."""
    scope = _scope.get()
    return None if scope is _ROOT else scope


@contextmanager
def device(where: Device) -> Iterator[Device]:
    """Hand out lazy arrays on `where` inside the block; nothing is copied by entering or leaving.

    A GPU is made CuPy's current one as well. Blocks nest, and the device before is restored
    after an exception too. New threads begin on the CPU, with CuPy's own default device.

    Parameters
    ----------
    where
        `CPU`, ``Device("cuda")`` (the GPU that is current in CuPy) or ``Device("cuda", index)``.

    Yields
    ------
    Device
        `where`, with its index.

    Raises
    ------
    DeviceError
        When the GPU cannot be used.
    """
    scope = Scope(locate(where))
    token = _scope.set(scope)
    try:
        with _on(scope.device):
            yield scope.device
    finally:
        _scope.reset(token)
        for leave in scope.leaving.values():
            leave(scope)


def _on(where: Device) -> Any:
    """Return a context in which CuPy allocates on `where`."""
    if not where.is_gpu or where.index is None:
        return nullcontext()
    import cupy

    return cupy.cuda.Device(where.index)


def on_host(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function run with the host as its device: lazy arrays give NumPy arrays in it.

    Arrays that are passed as such are left where they are.
    """

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with device(CPU):
            return function(*args, **kwargs)

    return run


def is_device_array(array: object) -> TypeGuard[DeviceArray]:
    """Whether `array` lives on a GPU."""
    return hasattr(array, "__cuda_array_interface__")


def namespace(*arrays: object) -> Any:
    """Return the module, numpy or cupy, that the arrays belong to."""
    if any(is_device_array(a) for a in arrays):
        import cupy

        return cupy
    return np


def ndimage_of(array: object) -> Any:
    """Return ``scipy.ndimage`` or its CuPy twin, by where `array` lives."""
    if is_device_array(array):
        import cupyx.scipy.ndimage

        return cupyx.scipy.ndimage
    import scipy.ndimage

    return scipy.ndimage


_TILE_COPIES = 3
"""Tiles in memory for one that a thread reads, prepares and hands on."""


def default_workers(device: Device) -> int:
    """Return how many threads work on tiles: one a core on the CPU, one on a GPU.

    ``OMP_NUM_THREADS``, by which batch systems and the pipeline say how many cores a task has,
    is kept to.
    """
    if device.is_gpu:
        return 1
    cores = len(os.sched_getaffinity(0))
    granted = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(granted)) if granted.isdigit() and int(granted) > 0 else cores


def tile_workers(tile_nbytes: int, device: Device = CPU) -> int:
    """Return how many threads work on tiles of that size: `default_workers`, as memory allows.

    Half of what is granted is for them; the rest is for tiles that wait, and for what is made.
    """
    if device.is_gpu:
        return default_workers(device)
    room = granted_host_bytes() // (2 * _TILE_COPIES * max(1, tile_nbytes))
    return max(1, min(default_workers(device), room))


def cores_a_gpu(*, whole: bool = False) -> int:
    """Return the cores for this process's share of a GPU, those of the machine divided evenly.

    Those of a `whole` GPU are for a task whose kind it has once, whatever its share.
    """
    held = lease.hold()
    return len(os.sched_getaffinity(0)) // (held.offered * (1 if whole else held.tasks))


def to_host(array: Array) -> np.ndarray:
    """Return `array` as a NumPy array, copied from the device only if it lives there."""
    if is_device_array(array):
        return np.asarray(array.get())
    return np.asarray(array)


def to_device(array: Array, device: Device) -> Array:
    """Return `array` on `device`, copied only if it is not there yet.

    What made an array on another GPU must be over; the copy is, when this returns.

    Raises
    ------
    DeviceError
        When `device` is a GPU that cannot be used.
    """
    if device.is_gpu:
        if not is_device_array(array):
            device = locate(device)
        import cupy

        with _on(device):
            if is_device_array(array) and array.device != cupy.cuda.Device():
                # Only contiguous memory is copied between devices.
                with array.device:
                    array = cupy.ascontiguousarray(array)
                    cupy.cuda.get_current_stream().synchronize()
                copy: Array = cupy.asarray(array)
                cupy.cuda.get_current_stream().synchronize()
                return copy
            here: Array = cupy.asarray(array)
            return here
    return to_host(array)


def with_arrays_on(value: Any, device: Device) -> Any:
    """Return an array, or a tuple or dataclass with arrays in it, on a device.

    Arrays on the host stay there.
    """
    if is_device_array(value):
        return to_device(value, device)
    if isinstance(value, tuple):
        return tuple(with_arrays_on(part, device) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: getattr(value, f.name) for f in fields(value)}
        return replace(value, **{name: with_arrays_on(p, device) for name, p in parts.items()})
    return value


def like(array: Array, reference: Array) -> Array:
    """Return `array` on the device where `reference` lives."""
    return to_device(array, Device("cuda") if is_device_array(reference) else CPU)
