"""Places for copies of a lazy array: the host, a GPU, a scratch folder.

Each place allocates, moves bytes in and out, and hands out views that cannot be written. Which
copy is fresh is none of its business: `linumpy.gpu.array` keeps the counters.
"""

from __future__ import annotations

import functools
import itertools
import math
import shutil
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.device import CPU, Array, Device, is_device_array, to_host
from linumpy.core.errors import InputError
from linumpy.gpu.transfer import pinned_array

DISK = Device("disk")
"""The scratch folder of a pool; it can be evicted from, but not be entered."""


@dataclass(slots=True)
class Copy:
    """The copy of an array at one place.

    Attributes
    ----------
    array
        The memory, or the file of a copy on disk.
    state
        The array's state counter when this copy was last in step with it.
    streams
        What the place needs to order its users; see `CudaPlace`.
    """

    array: Any
    state: int = -1
    streams: Any = None


class Place:
    """Interface between a lazy array and a memory space; the base class is host memory.

    A place of another kind overrides the methods that differ. `fill` and `fetch` are complete
    when they return, and may raise MemoryError or OSError, or the errors of a driver.
    """

    device: Device = CPU

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """Return new memory, C-contiguous, its contents undefined."""
        return np.empty(shape, dtype)

    def host_memory(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return new host memory that `fetch` fills fast."""
        return np.empty(shape, dtype)

    def owns(self, array: Array) -> bool:
        """Whether `array` lives here."""
        return isinstance(array, np.ndarray)

    def is_read_only(self, array: Array) -> bool:
        """Whether `array`, which lives here, refuses to be written."""
        return not array.flags.writeable

    def guard(self, array: Array) -> Array:
        """Return a view of `array` that refuses to be written."""
        view = array.view()
        view.flags.writeable = False
        return view

    def fill(self, target: Any, source: Array) -> None:
        """Copy to `target`, which lives here, from the host or from a place of this kind."""
        np.copyto(target, to_host(source))

    def fetch(self, source: Any, target: np.ndarray) -> None:
        """Copy to the host from `source`, which lives here."""
        np.copyto(target, source)

    def order(self, copy: Copy, writing: bool) -> None:
        """Let the caller's stream wait for all earlier work that conflicts with its own."""

    def retire(self, copy: Copy) -> None:
        """Get ready for the copy to be dropped."""

    def trim(self) -> None:
        """Give memory that nothing uses back to the system."""


class DiskPlace(Place):
    """Files in a scratch folder, made when first needed and removed with this object.

    Parameters
    ----------
    parent
        Where to make the folder; the system's temporary folder when None.
    """

    device = DISK

    def __init__(self, parent: Path | None) -> None:
        self._parent = parent
        self._numbers = itertools.count()
        self._remove: weakref.finalize | None = None
        self.folder: Path | None = None

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Path:
        """Return the path of a file that `fill` will make."""
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="linumpy-", dir=self._parent))
            self._remove = weakref.finalize(self, shutil.rmtree, self.folder, True)
        return self.folder / f"{next(self._numbers)}.raw"

    def owns(self, array: Array) -> bool:
        """Whether `array` lives here: arrays never do, only their bytes."""
        return False

    def fill(self, target: Path, source: Array) -> None:
        """Write the bytes of a host array, in C order."""
        try:
            with target.open("wb", buffering=0) as file:
                view = _bytes_of(np.ascontiguousarray(to_host(source)))
                while view:
                    view = view[file.write(view) :]
        except OSError as error:
            raise OSError(
                error.errno, f"cannot spill {source.nbytes} bytes: {error.strerror}", str(target)
            ) from error

    def fetch(self, source: Path, target: np.ndarray) -> None:
        """Read the bytes of a file.

        Raises
        ------
        InputError
            When the file is not as long as it was written.
        """
        size = source.stat().st_size
        if size != target.nbytes:
            raise InputError(f"{source}: {size} bytes, expected {target.nbytes} as spilled")
        with source.open("rb") as file:
            file.readinto(_bytes_of(target))

    def retire(self, copy: Copy) -> None:
        """Remove the file."""
        copy.array.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder with all that is in it."""
        if self._remove is not None:
            self._remove()
            self._remove = self.folder = None


def _bytes_of(array: np.ndarray) -> memoryview:
    """Return the bytes of a C-contiguous array without a copy."""
    return array.reshape(-1).view(np.uint8).data


@dataclass(slots=True)
class _Streams:
    """Who uses a copy on a GPU: the stream it was made on, the last writer, readers since then."""

    home: Any
    writer: Any
    readers: dict[int, Any]


class CudaPlace(Place):
    """The memory of one GPU, through CuPy's pool.

    Copies run on the caller's current stream. An array may be used on several streams: at each
    hand-out the caller's stream is made to wait, on the device, for the work queued until then
    on the stream that wrote last (and, before a write, on those that read since), and memory
    goes back to its pool only behind its users.
    """

    def __init__(self, index: int) -> None:
        self.device = Device("cuda", index)
        self._index = index

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """Return new device memory; MemoryError when there is none."""
        import cupy

        with cupy.cuda.Device(self._index):
            return cupy.empty(shape, dtype)

    def host_memory(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return pinned memory from CuPy's pool, pageable memory where it cannot be had."""
        import cupy

        if 0 not in shape:
            try:
                # CuPyX has the like, but takes a fifth of a second to import.
                pinned = pinned_array(math.prod(shape) * dtype.itemsize)
                return pinned.view(dtype).reshape(shape)
            except (MemoryError, cupy.cuda.runtime.CUDARuntimeError):
                pass
        return np.empty(shape, dtype)

    def owns(self, array: Array) -> bool:
        """Whether `array` lives on this GPU."""
        return is_device_array(array) and array.device.id == self._index

    def is_read_only(self, array: Array) -> bool:
        """Whether it is a view that a lazy array handed out for reading."""
        return isinstance(array, read_only_type())

    def guard(self, array: Array) -> Array:
        """Return a view as `read_only_type` describes it."""
        return array.view(read_only_type())

    def fill(self, target: Any, source: Array) -> None:
        """Copy from the host or from another GPU."""
        import cupy

        if target.size == 0:
            return
        if is_device_array(source):
            # The caller's stream there is behind the writer; this one is of another device.
            with source.device:
                source = cupy.ascontiguousarray(source)
                cupy.cuda.get_current_stream().synchronize()
        with cupy.cuda.Device(self._index):
            stream = cupy.cuda.get_current_stream()
            if not target.flags.c_contiguous:
                target[...] = cupy.asarray(source)
            elif is_device_array(source):
                target.data.copy_from_device_async(source.data, source.nbytes, stream)
            else:
                target.set(np.ascontiguousarray(source).reshape(target.shape), stream)
            stream.synchronize()

    def fetch(self, source: Any, target: np.ndarray) -> None:
        """Copy to the host; at the speed of the bus when `target` is pinned."""
        import cupy

        if source.size == 0:
            return
        with cupy.cuda.Device(self._index):
            stream = cupy.cuda.get_current_stream()
            whole = target if target.flags.c_contiguous else np.empty(target.shape, target.dtype)
            # Made contiguous, a scalar has an axis.
            cupy.ascontiguousarray(source).reshape(whole.shape).get(stream=stream, out=whole)
            stream.synchronize()
        if whole is not target:
            np.copyto(target, whole)

    def order(self, copy: Copy, writing: bool) -> None:
        """Wait, on the device, for the last writer and, before a write, for its readers."""
        import cupy

        stream = cupy.cuda.get_current_stream(self._index)
        users = copy.streams
        if users is None:
            copy.streams = _Streams(stream, stream, {})
            return
        if users.writer.ptr != stream.ptr:
            self._wait(stream, users.writer)
        if not writing:
            users.readers[stream.ptr] = stream
            return
        for reader in users.readers.values():
            if reader.ptr != stream.ptr:
                self._wait(stream, reader)
        users.writer, users.readers = stream, {}

    def retire(self, copy: Copy) -> None:
        """Let the stream that the memory came from wait for all others that used it."""
        users = copy.streams
        if users is None:
            return
        for user in (users.writer, *users.readers.values()):
            if user.ptr != users.home.ptr:
                self._wait(users.home, user)

    def trim(self) -> None:
        """Return unused blocks of CuPy's pool to the driver."""
        import cupy

        with cupy.cuda.Device(self._index):
            cupy.get_default_memory_pool().free_all_blocks()

    def _wait(self, stream: Any, other: Any) -> None:
        import cupy

        with cupy.cuda.Device(self._index):
            event = cupy.cuda.Event(disable_timing=True)
            event.record(other)
            stream.wait_event(event)


_REFUSED = (
    *(
        f"__i{operation}__"
        for operation in (
            *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
            *("lshift", "rshift", "and", "or", "xor"),
        )
    ),
    *("__setitem__", "fill", "put", "set", "sort", "partition"),
    *("scatter_add", "scatter_max", "scatter_min", "_scatter_op"),
)


@functools.cache
def read_only_type() -> Any:
    """Return the class of CuPy arrays that refuse to be written.

    Its instances are views: item assignment, in-place operators, methods that change the data
    and use as an output raise ValueError, as a read-only NumPy array does. All reads work; views
    of it are read-only, results are plain CuPy arrays.

    Notes
    -----
    CuPy offers no hook for ``out=`` of a call none of whose inputs is such a view, nor for raw
    kernels and DLPack, which see an address. The CUDA array interface says that it is read-only.
    """
    import cupy

    def refuse(*_: object, **__: object) -> None:
        raise ValueError("assignment destination is read-only")

    def plain(value: Any) -> Any:
        return cupy.ndarray.view(value, cupy.ndarray) if isinstance(value, ReadOnly) else value

    def refuse_outputs(outputs: Any) -> None:
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        if any(isinstance(output, ReadOnly) for output in outputs):
            raise ValueError("output array is read-only")

    class ReadOnly(cupy.ndarray):
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            described = dict(plain(self).__cuda_array_interface__)
            described["data"] = (described["data"][0], True)
            return described

        def __cupy_override_elementwise_kernel__(
            self, kernel: Any, *args: Any, **kwargs: Any
        ) -> Any:
            refuse_outputs(args[kernel.nin :])
            refuse_outputs(kwargs.get("out"))
            return kernel(*map(plain, args), **kwargs)

        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
            refuse_outputs(kwargs.get("out"))
            return super().__array_ufunc__(ufunc, method, *map(plain, inputs), **kwargs)

        def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
            refuse_outputs(kwargs.get("out"))
            plain_types = {cupy.ndarray if t is ReadOnly else t for t in types}
            return super().__array_function__(func, tuple(plain_types), args, kwargs)

        def view(self, dtype: Any = None, type: Any = None) -> Any:
            return cupy.ndarray.view(cupy.ndarray.view(self, dtype), ReadOnly)

        def copy(self, order: str = "C") -> Any:
            return plain(self).copy(order)

        def flatten(self, *args: Any, **kwargs: Any) -> Any:
            return plain(self).flatten(*args, **kwargs)

        def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> Any:
            before = plain(self)
            after = before.astype(dtype, *args, **kwargs)
            return self if after is before else after

        real = property(lambda self: plain(self).real.view(ReadOnly), refuse)
        imag = property(lambda self: plain(self).imag.view(ReadOnly), refuse)

    for name in _REFUSED:
        setattr(ReadOnly, name, refuse)
    return ReadOnly
