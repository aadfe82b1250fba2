"""Zarr on the device: a context for Zarr's own calls, and a reader with a choice of backends.

>>> with gpu_zarr_context():
...     tile = zarr.open(path)[:, :512, :512]   # a CuPy array, decoded on the device
>>> tile = read_zarr_to_gpu(path, np.s_[:, :512, :512])
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linumpy.core.errors import DeviceError, DeviceMemoryError, InputError
from linumpy.core.exit_status import is_lost
from linumpy.gpu.decode import BATCH_NBYTES, ReadRecord
from linumpy.gpu.session import Session, session
from linumpy.store import codecs
from linumpy.store.addresses import is_remote
from linumpy.store.chunk_layout import HOST_CODECS, ChunkLayout, UnsupportedLayout, layout_of
from linumpy.store.plain_arrays import PlainArray
from linumpy.store.remote import storage

if TYPE_CHECKING:
    from linumpy.gpu.objects import StoredObject

CODECS = {
    codec.zarr_class[0]: f"linumpy.gpu.codecs.{codec.zarr_class[1]}"
    for codec in codecs.CODECS.values()
    if codec.zarr_class
}
PIPELINE = "linumpy.gpu.codec_pipeline.GpuCodecPipeline"

NDBUFFER = "linumpy.gpu.buffers.DeviceNDBuffer"

PREFER = {"auto": "auto", "kvikio": "kvikio", "zarr-gpu": "zarr"}
"""Backends by the names that other pipelines give them in ``prefer``."""

_last = threading.local()


@contextmanager
def gpu_zarr_context(
    *,
    device: int | None = None,
    stream: Any = None,
    backend: str = "auto",
    batch_nbytes: int = BATCH_NBYTES,
) -> Iterator[Session]:
    """Let Zarr read into and write from device memory until the block ends.

    Arrays that are opened inside decode and encode on the device, all chunks of a request at once;
    ``array[...]`` gives CuPy arrays, and CuPy arrays can be assigned. Such an array may be used
    after the block too: it then reads and writes NumPy arrays by the CPU. New arrays without
    ``compressors`` get the codec that Zarr's configuration names for zstd: the device's.

    Parameters
    ----------
    device
        The CUDA device; None for the caller's current one.
    stream
        The CuPy stream in whose order memory is taken; None for the device's default stream. A
        read or write is complete when the call returns, whatever the stream.
    backend
        Who decodes, as in `read_zarr_to_gpu`.
    batch_nbytes
        Decoded bytes of a batch, of which two are in flight.

    Yields
    ------
    The session; its `last_read` says how the last read was served.

    Raises
    ------
    DeviceError
        When there is no usable GPU; says what is missing.

    Notes
    -----
    Zarr's configuration belongs to the process, not to a thread: while any thread is inside, arrays
    that other threads read through Zarr come as CuPy arrays as well. Contexts nest, and threads may
    overlap; the configuration of before comes back when the last of them leaves, also after an
    error. Device, stream, backend and batches are each context's own.
    """
    from linumpy.core.device import Device, locate

    backend = _backend(backend)
    device = locate(Device("cuda", device)).index
    import zarr

    from linumpy.gpu import buffers, codec_pipeline  # noqa: F401 - registers them
    from linumpy.gpu import codecs as device_codecs  # noqa: F401 - the same
    from linumpy.store.zarr_adapter import configured_default_codec
    from linumpy.store.zarr_settings import zarr_settings

    settings = {
        "codec_pipeline.path": PIPELINE,
        # Names of codecs hold dots, which a flat key of the configuration would split.
        "codecs": {**zarr.config.get("codecs"), **CODECS},
        "buffer": "zarr.buffer.gpu.Buffer",
        "ndbuffer": NDBUFFER,
    }
    chosen = Session(device, stream, backend, batch_nbytes)
    with zarr_settings(settings), configured_default_codec(), session(chosen):
        yield chosen


def _backend(backend: str | None, prefer: str | None = None) -> str:
    """Return the backend that a caller named, by our name or by that of other pipelines."""
    from linumpy.gpu.backends import BACKENDS

    if prefer is None:
        if backend is not None and backend not in BACKENDS:
            raise InputError(f"backend {backend!r}: expected one of {', '.join(BACKENDS)}")
        return backend or "auto"
    if backend is not None:
        raise InputError(f"backend {backend!r} and prefer {prefer!r}: expected one of the two")
    if prefer not in PREFER:
        raise InputError(f"prefer {prefer!r}: expected one of {', '.join(PREFER)}")
    return PREFER[prefer]


def last_read() -> ReadRecord | None:
    """Return how this thread's last `read_zarr_to_gpu` was served."""
    return getattr(_last, "record", None)


def read_zarr_to_gpu(
    array_or_path: Any,
    selection: Any = None,
    *,
    backend: str | None = None,
    prefer: str | None = None,
    stream: Any = None,
    out: Any = None,
) -> Any:
    """Read a Zarr array, or a part of it, into device memory.

    Parameters
    ----------
    array_or_path
        A Zarr array (v2 or v3), or what ``zarr.open_array`` takes: a path, a store.
    selection
        Integers, slices (steps from 1) and ellipsis, as for Zarr's basic indexing; None for all.
    backend
        ``auto`` when None. ``kvikio`` reads raw chunks straight to the device. ``nvcomp`` decodes
        on the device, in batches. ``host`` decodes with the CPU's cores and copies through pinned
        memory. ``zarr`` is Zarr itself with its GPU buffers. ``auto`` takes the fastest of the
        first three for this format, chunk size and machine; when it fails for a reason that is not
        the data's, the next is tried with a warning that names the cause. Arrays on object stores
        are its ``host``.
    prefer
        The same under the names ``auto``, ``kvikio`` and ``zarr-gpu`` (the backend ``zarr``), which
        callers of other pipelines use. Give one of the two.
    stream
        The CuPy stream in whose order memory is taken; None for the current one. The array is
        complete when the call returns.
    out
        CuPy array to read into, of the selection's shape and the array's type; any strides.

    Returns
    -------
    CuPy array of the selection's shape, in the machine's byte order; `out` if given. `last_read`
    says which backend served.

    Raises
    ------
    InputError
        When the array or a chunk of it is corrupt, `out` does not fit, or there is no such backend.
    NotImplementedError
        When the named backend cannot take this array; says why.
    DeviceError
        When there is no usable GPU; a DeviceMemoryError when its memory does not suffice.
    """
    from linumpy.core.device import Device, locate

    backend = _backend(backend, prefer)
    locate(Device("cuda"))
    import cupy

    array = open_array(array_or_path)
    device = out.device.id if out is not None else cupy.cuda.Device().id
    with cupy.cuda.Device(device), stream if stream is not None else cupy.cuda.get_current_stream():
        if backend == "zarr":
            return _read_by_zarr(array, selection, out, ReadRecord("zarr"))
        return _read(array, selection, backend, out)


def open_array(array_or_path: Any) -> Any:
    """Return a Zarr array, opened for reading unless it is one already.

    Raises
    ------
    InputError
        When there is none.
    """
    if isinstance(array_or_path, PlainArray):
        return array_or_path
    import zarr

    if isinstance(array_or_path, zarr.Array):
        return array_or_path
    if isinstance(array_or_path, str | Path):
        array_or_path = storage(array_or_path)
    if isinstance(array_or_path, Path) and not array_or_path.exists():
        raise InputError(f"{array_or_path}: no such Zarr array")
    try:
        return zarr.open_array(array_or_path, mode="r")
    except (FileNotFoundError, ImportError, KeyError, ValueError, TypeError) as error:
        raise InputError(f"{array_or_path}: not a Zarr array ({error})") from error


def _read(array: Any, selection: Any, backend: str, out: Any) -> Any:
    why = _why_by_host(array) if backend in ("auto", "host") else None
    if why is not None:
        return _read_by_host(array, selection, out, f"{array.store_path}: {why}")
    causes = []
    try:
        return _read_by_core(array, selection, backend, out)
    except UnsupportedLayout as cause:
        if backend != "auto":
            raise
        causes.append(str(cause))
    except DeviceMemoryError:
        # Memory that does not suffice for one chunk will not suffice for Zarr either.
        raise
    except (DeviceError, RuntimeError, OSError) as error:
        if backend != "auto" or is_lost(error):
            raise
        causes.append(f"{type(error).__name__}: {error}")
    warnings.warn(
        f"{array.store_path}: read by Zarr on the host and copied to the device: {causes[0]}",
        RuntimeWarning,
        stacklevel=3,
    )
    return _read_by_zarr(array, selection, out, ReadRecord("zarr", causes=causes))


def _why_by_host(array: Any) -> str | None:
    """Return why the host must decode an array, None where the device can."""
    if isinstance(array, PlainArray):
        return None
    from linumpy.store.zarr_adapter import codecs_of, stored_with

    if is_remote(str(array.store_path)):
        return "on an object store, which the device cannot read"
    name = stored_with(codecs_of(array), HOST_CODECS)
    return None if name is None else f"stored with {name}, which only the host decodes"


def _read_by_host(array: Any, selection: Any, out: Any, cause: str) -> Any:
    """Read what the device cannot: decoded on the host, then copied."""
    import numpy as np

    from linumpy.store.host_zarr import read_on_host

    data = read_on_host(array, selection)
    result = _output(out, data.shape, data.dtype.newbyteorder("="), array)
    result.set(np.ascontiguousarray(data, result.dtype))
    _last.record = ReadRecord("host", causes=[cause])
    return result


def _read_by_core(array: Any, selection: Any, backend: str, out: Any) -> Any:
    import cupy

    from linumpy.gpu.backends import read_items

    layout = array_layout(array)
    shape, items, axes = selection_items(array, selection)
    result = _output(out, shape, layout.dtype, array)
    chosen = Session(cupy.cuda.Device().id, cupy.cuda.get_current_stream(), backend)
    if items and result.size:
        with session(chosen):
            _last.record = read_items(items, layout, result, axes)
    else:
        _last.record = ReadRecord(backend)
    return result


def selection_items(
    array: Any, selection: Any, base: int = 0
) -> tuple[tuple[int, ...], list[Any], tuple[int, ...]]:
    """Take a basic selection of an array apart into reads of its stored objects.

    Parameters
    ----------
    array
        The Zarr array.
    selection
        As for `read_zarr_to_gpu`.
    base
        Byte of the output where the selection goes.

    Returns
    -------
    The selection's shape, a `linumpy.gpu.plan.ReadItem` for each object, and the objects' axes that
    the selection keeps.

    Raises
    ------
    UnsupportedLayout
        When the selection is no regular one.
    """
    from linumpy.gpu.plan import ReadItem
    from linumpy.gpu.requests import box_of, kept_axes

    shape, parts = stored_parts(array, selection)
    items = []
    axes: tuple[int, ...] = ()
    for coordinates, chunk_selection, out_selection in parts:
        box = box_of(chunk_selection, out_selection, ())
        if box is None:
            raise UnsupportedLayout(f"selection {selection!r}")
        axes = kept_axes(chunk_selection, ())
        items.append(ReadItem(object_at(array, coordinates), box, base))
    return shape, items, axes


def stored_parts(
    array: Any, selection: Any
) -> tuple[tuple[int, ...], list[tuple[tuple[int, ...], Any, Any]]]:
    """Take a selection apart into stored objects; see `linumpy.store.zarr_adapter.array_parts`."""
    if isinstance(array, PlainArray):
        found = array.parts(selection)
        if found is not None:
            return found
        array = array.zarr
    from linumpy.store.zarr_adapter import array_parts

    return array_parts(array, selection)


def object_at(array: Any, place: tuple[int, ...]) -> StoredObject:
    """Return the stored object at a place of an array's grid of them."""
    from linumpy.gpu.objects import local_object, stored_object

    if isinstance(array, PlainArray):
        return local_object(array.root, array.file(place))
    return stored_object(array.store_path / array.metadata.encode_chunk_key(place))


def array_layout(array: Any) -> ChunkLayout:
    """Return how an array's chunks are stored.

    Raises
    ------
    UnsupportedLayout
        When a device reader cannot take them; says why.
    """
    if isinstance(array, PlainArray):
        return array.layout
    from linumpy.store.zarr_adapter import chunk_spec, codecs_of, has_regular_chunks

    if not has_regular_chunks(array):
        raise UnsupportedLayout("a rectilinear chunk grid")
    return layout_of(codecs_of(array), chunk_spec(array))


def _check_stored(array: Any, selection: Any) -> None:
    """Check the files of a selection for Zarr, which decodes without checks."""
    from linumpy.gpu.stored_checks import check_for_zarr
    from linumpy.store.chunk_guard import plan_chunks

    _, parts = stored_parts(array, selection)
    wanted = ((object_at(array, part[0]), part[1]) for part in parts)
    check_for_zarr(wanted, plan_chunks(array.metadata))


def _output(out: Any, shape: tuple[int, ...], dtype: Any, array: Any) -> Any:
    import cupy

    if out is None:
        return cupy.empty(shape, dtype)
    if not hasattr(out, "__cuda_array_interface__"):
        raise InputError(f"{array.store_path}: `out` is {type(out).__name__}, expected CuPy")
    if tuple(out.shape) != tuple(shape) or out.dtype != dtype:
        raise InputError(
            f"{array.store_path}: `out` is {out.dtype} {tuple(out.shape)}, "
            f"expected {dtype} {tuple(shape)}"
        )
    return out


def _read_by_zarr(array: Any, selection: Any, out: Any, record: ReadRecord) -> Any:
    import cupy
    import zarr

    from linumpy.store.zarr_adapter import BATCHED_PIPELINE, codecs_of, stored_with

    if isinstance(array, PlainArray):
        array = array.zarr
    if name := stored_with(codecs_of(array), HOST_CODECS):
        raise UnsupportedLayout(f"{array.store_path}: codec {name} is only decoded on the host")
    _check_stored(array, selection)
    with zarr.config.enable_gpu(), zarr.config.set({"codec_pipeline.path": BATCHED_PIPELINE}):
        again = zarr.Array.from_dict(array.store_path, array.metadata.to_dict())
        result = cupy.asarray(again[Ellipsis if selection is None else selection])
    _last.record = record
    if out is None:
        return result
    _output(out, result.shape, result.dtype, array)[...] = result
    return out
