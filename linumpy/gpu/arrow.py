"""Exchange columns, tables and tiles with other libraries by Arrow and DLPack, without copies.

`ArrowColumn` and `ArrowBatch` hand arrays out through the Arrow C Device Data Interface (PyArrow,
nanoarrow, cuDF, Polars, …); `from_arrow` takes what these hand out. `from_dlpack` and the columns'
``__dlpack__`` are the same for libraries of plain arrays (PyTorch, JAX, …). Memory of the CPU
and of CUDA devices alike; neither CuPy nor an Arrow library is needed to import this module.
"""

from __future__ import annotations

import copy
import ctypes
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from linumpy.core.device import Array, cupy_for, is_device_array, namespace, to_host
from linumpy.core.errors import DeviceError, InputError
from linumpy.gpu import arrow_abi as abi
from linumpy.gpu.arrow_reader import from_arrow
from linumpy.gpu.arrow_stream import lend_stream

__all__ = ["ArrowBatch", "ArrowColumn", "from_arrow", "from_dlpack"]

FORMATS = {
    "bool": b"b",
    "int8": b"c",
    "uint8": b"C",
    "int16": b"s",
    "uint16": b"S",
    "int32": b"i",
    "uint32": b"I",
    "int64": b"l",
    "uint64": b"L",
    "float16": b"e",
    "float32": b"f",
    "float64": b"g",
}
_TEXT = b"u"
_LONGEST_TEXT = 2**31 - 1
_MOST_DEVICE_BOOLEANS = 2**31


class _Exporter:
    """The protocol's methods, over `_schema_struct`, `_array_struct` and `device`."""

    device: tuple[int, int]
    """Arrow device type and number; CPU memory has the number −1."""

    # Capsules that die while an exception unwinds would spoil it (see `arrow_abi`). The last
    # ones are therefore held here, and die with the exporter, whose `__del__` shields exceptions.
    _handed_out: tuple[Any, ...] = ()

    def _schema_struct(self, name: str) -> abi.ArrowSchema:
        raise NotImplementedError

    def _array_struct(self) -> abi.ArrowArray:
        raise NotImplementedError

    def __arrow_c_schema__(self) -> Any:
        """Return the type as a capsule ``arrow_schema``."""
        return abi.new_capsule(self._schema_struct(""))

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]:
        """Return the capsules ``arrow_schema`` and ``arrow_array``, of CPU memory only.

        Parameters
        ----------
        requested_schema
            Ignored: nothing is converted.

        Raises
        ------
        DeviceError
            When the arrays live on a GPU.
        """
        return self._hand_out(self._host_struct())

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return a capsule ``arrow_array_stream`` with all rows as one chunk, of CPU memory only.

        Parameters and errors are those of `__arrow_c_array__`.
        """
        return self._hand_out_stream(self._host_struct(), abi.ArrowArrayStream)

    def __arrow_c_device_stream__(self, requested_schema: Any = None, **kwargs: Any) -> Any:
        """Return a capsule ``arrow_device_array_stream`` with all rows as one chunk.

        Parameters, errors and order of work are those of `__arrow_c_device_array__`.
        """
        return self._hand_out_stream(self._device_struct(kwargs), abi.ArrowDeviceArrayStream)

    def __arrow_c_device_array__(
        self, requested_schema: Any = None, **kwargs: Any
    ) -> tuple[Any, Any]:
        """Return the capsules ``arrow_schema`` and ``arrow_device_array``.

        On a GPU an event is recorded on the current stream of the calling thread, and goes along:
        consumers wait for what was queued on it up to now.

        Parameters
        ----------
        requested_schema
            Ignored: nothing is converted.
        kwargs
            Extensions of the protocol; none is known, so that only None is accepted.

        Raises
        ------
        NotImplementedError
            When an extension is asked for.
        """
        return self._hand_out(self._device_struct(kwargs))

    def _host_struct(self) -> abi.ArrowArray:
        if self.device[0] != abi.CPU:
            raise DeviceError(
                "Arrow: the arrays live on a GPU; consume them through __arrow_c_device_array__, "
                "or bring them to the CPU with linumpy.core.device.to_host first"
            )
        return self._array_struct()

    def _device_struct(self, kwargs: Mapping[str, Any]) -> abi.ArrowDeviceArray:
        unknown = sorted(name for name, value in kwargs.items() if value is not None)
        if unknown:
            raise NotImplementedError(f"Arrow: unknown argument {', '.join(unknown)}")
        struct = abi.ArrowDeviceArray()
        struct.device_type, struct.device_id = self.device
        if struct.device_type == abi.CPU:
            struct.array = self._array_struct()
            return struct
        import cupy

        with cupy.cuda.Device(struct.device_id):
            array = self._array_struct()
            event = cupy.cuda.Event(disable_timing=True)
            event.record(cupy.cuda.get_current_stream())
        handle = ctypes.c_void_p(event.ptr)
        struct.sync_event = ctypes.addressof(handle)
        abi.keep_with(array, (event, handle))
        struct.array = array
        return struct

    def _hand_out(self, struct: ctypes.Structure) -> tuple[Any, Any]:
        self._handed_out = (self.__arrow_c_schema__(), abi.new_capsule(struct))
        return cast(tuple[Any, Any], self._handed_out)

    def _hand_out_stream(self, struct: ctypes.Structure, kind: type[Any]) -> Any:
        # A stream that held the exporter, which holds the stream, would never be released.
        twin = copy.copy(self)
        twin._handed_out = ()
        self._handed_out = (lend_stream(twin, struct, kind),)
        return self._handed_out[0]

    def __del__(self) -> None:
        self._handed_out = ()


class ArrowColumn(_Exporter):
    """One column: numbers, tiles, or text.

    Parameters
    ----------
    values
        A NumPy or CuPy array of booleans, integers or floats, C-contiguous and in the machine's
        byte order; or a sequence of strings, None for missing ones (CPU only). The first axis
        counts rows. Further axes make each row a tile: the column's type is then
        ``arrow.fixed_shape_tensor``. Numbers are lent, not copied, and must not be written to
        while others read them; booleans are packed to bits, which copies them.
    valid
        Which rows have a value, bool, shape (rows,), on the same device; None: all.

    Raises
    ------
    InputError
        When Arrow has no such type or the memory is not laid out as it wants.
    """

    def __init__(self, values: Any, valid: Array | None = None) -> None:
        text = _as_text(values)
        if text is not None:
            if valid is not None:
                raise InputError("Arrow: mark missing text with None, not with `valid`")
            self.values: Any = text
            self.device = (abi.CPU, -1)
            self._valid: Any = np.array([t is not None for t in text], bool)
            self._buffers: tuple[Any, ...] = _encode(text)
            self._format, self._tile = _TEXT, ()
            return
        _check_layout(values)
        self.values = values
        self.device = device_of(values)
        self._buffers = ()
        self._format, self._tile = FORMATS[values.dtype.name], tuple(values.shape[1:])
        if valid is not None and (valid.dtype != bool or valid.shape != values.shape[:1]):
            raise InputError(
                f"Arrow: valid is {valid.dtype} of shape {valid.shape}, "
                f"expected bool of shape {values.shape[:1]}"
            )
        if valid is not None and device_of(valid) != self.device:
            raise InputError("Arrow: valid lives on another device than the values")
        self._valid = valid

    def __len__(self) -> int:
        return len(self.values)

    def _schema_struct(self, name: str) -> abi.ArrowSchema:
        if not self._tile:
            return _schema(self._format, name)
        metadata = {
            "ARROW:extension:name": "arrow.fixed_shape_tensor",
            "ARROW:extension:metadata": json.dumps({"shape": self._tile}),
        }
        size = b"+w:%d" % math.prod(self._tile)
        return _schema(size, name, metadata, [_schema(self._format, "item")])

    def _array_struct(self) -> abi.ArrowArray:
        bitmap, nulls = None, 0
        if self._valid is not None:
            bitmap = _pack(self._valid)
            # Counting on a GPU would wait for it; −1 leaves it to the consumer.
            nulls = -1 if is_device_array(bitmap) else int(len(self) - self._valid.sum())
            if not nulls:
                bitmap = None
        buffers = self._buffers
        if self._format != _TEXT:
            buffers = (_pack(self.values) if self._format == b"b" else self.values,)
        if not self._tile:
            return _array(len(self), nulls, [bitmap, *buffers])
        numbers = _array(len(self) * math.prod(self._tile), 0, [None, *buffers])
        return _array(len(self), nulls, [bitmap], [numbers])

    def __dlpack__(self, **kwargs: Any) -> Any:
        """Return the array's DLPack capsule; text and missing values have none."""
        self._check_plain()
        return self.values.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the array's DLPack device type and number."""
        self._check_plain()
        return self.values.__dlpack_device__()

    def _check_plain(self) -> None:
        if self._format == _TEXT or self._valid is not None:
            raise BufferError("DLPack carries neither text nor missing values")


class ArrowBatch(_Exporter):
    """A table: columns of equal length on one device, exported as a record batch.

    Parameters
    ----------
    columns
        Arrays, sequences of strings, or `ArrowColumn`, by name.

    Raises
    ------
    InputError
        When lengths or devices differ, or a column cannot be exported; names the column.
    """

    def __init__(self, columns: Mapping[str, ArrowColumn | Array | Sequence[str | None]]) -> None:
        self.columns: dict[str, ArrowColumn] = {}
        for name, values in columns.items():
            if isinstance(values, ArrowColumn):
                self.columns[name] = values
                continue
            try:
                self.columns[name] = ArrowColumn(values)
            except InputError as error:
                raise InputError(f"column {name!r}: {error}") from None
        for what, found in (
            ("length", {name: len(c) for name, c in self.columns.items()}),
            ("device", {name: c.device for name, c in self.columns.items()}),
        ):
            if len(set(found.values())) > 1:
                raise InputError(f"Arrow: columns differ in {what}: {found}")
        self._rows = next((len(c) for c in self.columns.values()), 0)
        self.device = next((c.device for c in self.columns.values()), (abi.CPU, -1))

    def __len__(self) -> int:
        return self._rows

    def _schema_struct(self, name: str) -> abi.ArrowSchema:
        fields = [column._schema_struct(key) for key, column in self.columns.items()]
        return _schema(b"+s", name, {}, fields, flags=0)

    def _array_struct(self) -> abi.ArrowArray:
        columns = [column._array_struct() for column in self.columns.values()]
        return _array(self._rows, 0, [None], columns)


def from_dlpack(source: Any) -> Array:
    """Return the array that a DLPack object holds, without a copy.

    Parameters
    ----------
    source
        An object with ``__dlpack__`` and ``__dlpack_device__``: a tensor or array of PyTorch,
        JAX, CuPy, NumPy, …, or an `ArrowColumn`.

    Returns
    -------
    A CuPy array for CUDA memory, ordered behind the producer's work on the current stream;
    a NumPy array for CPU and pinned memory.

    Raises
    ------
    DeviceError
        When the memory is neither, or CuPy is missing.
    """
    try:
        kind, _ = source.__dlpack_device__()
    except AttributeError:
        raise InputError(f"expected an object with __dlpack__, got {type(source)}") from None
    if kind in (abi.CPU, abi.CUDA_HOST):
        return np.from_dlpack(source)
    if kind in (abi.CUDA, abi.CUDA_MANAGED):
        return cupy_for("DLPack of a GPU").from_dlpack(source)
    raise DeviceError(f"DLPack: device type {int(kind)} is neither the CPU nor CUDA")


def device_of(array: Array) -> tuple[int, int]:
    """Return the Arrow device type and number of an array's memory."""
    if is_device_array(array):
        return abi.CUDA, int(array.device.id)
    return abi.CPU, -1


def _check_layout(values: Any) -> None:
    dtype, shape = getattr(values, "dtype", None), getattr(values, "shape", None)
    if dtype is None or shape is None:
        raise InputError(
            f"Arrow: expected a NumPy or CuPy array or strings, got {type(values).__name__}"
        )
    if dtype.name not in FORMATS:
        raise InputError(f"Arrow: no type for {dtype}; expected one of {', '.join(FORMATS)}")
    if not dtype.isnative:
        raise InputError(f"Arrow: {dtype.str} is not in this machine's byte order")
    if not shape:
        raise InputError("Arrow: expected at least one axis, which counts rows, got a scalar")
    # A plain NumPy array of odd addresses is legal in NumPy only.
    if not values.flags.c_contiguous or not getattr(values.flags, "aligned", True):
        raise InputError(
            f"Arrow: the array of shape {tuple(shape)} is not aligned and C-contiguous, and "
            "exporting does not copy; pass ascontiguousarray(array), or a copy"
        )
    packed = dtype.kind == "b" and is_device_array(values)
    if packed and values.size >= _MOST_DEVICE_BOOLEANS:
        raise InputError(f"Arrow: {values.size} booleans are more than CuPy can pack at once")


def _as_text(values: Any) -> tuple[str | None, ...] | None:
    """Return strings as a tuple, None for anything that is not a sequence of strings."""
    if isinstance(values, np.ndarray):
        if values.dtype.kind not in "UTO" or values.ndim != 1:
            return None
        values = values.tolist()
    elif not isinstance(values, list | tuple):
        return None
    if not all(value is None or isinstance(value, str) for value in values):
        return None
    return tuple(values)


def _encode(text: Sequence[str | None]) -> tuple[np.ndarray, np.ndarray]:
    try:
        parts = [(value or "").encode() for value in text]
    except UnicodeEncodeError as error:
        raise InputError(f"Arrow: text that is not Unicode ({error})") from None
    ends = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    if ends[-1] > _LONGEST_TEXT:
        raise InputError(f"Arrow: {ends[-1]} bytes of text in one column, expected at most 2 GiB")
    return ends.astype(np.int32), np.frombuffer(b"".join(parts) or b"\0", np.uint8)


def _pack(flags: Array) -> Array:
    return namespace(flags).packbits(flags.ravel(), bitorder="little")


def _address(array: Array | None) -> int | None:
    if array is None:
        return None
    return int(array.data.ptr) if is_device_array(array) else to_host(array).ctypes.data


def _schema(
    format: bytes,
    name: str,
    metadata: Mapping[str, str] = {},  # noqa: B006
    children: Sequence[abi.ArrowSchema] = (),
    flags: int = abi.NULLABLE,
) -> abi.ArrowSchema:
    kept = [ctypes.create_string_buffer(text) for text in (format, name.encode())]
    if metadata:
        kept.append(ctypes.create_string_buffer(abi.encode_metadata(dict(metadata))))
    struct = abi.ArrowSchema(flags=flags)
    for field, text in zip(("format", "name", "metadata"), kept, strict=False):
        setattr(struct, field, ctypes.addressof(text))
    abi.lend(struct, children, kept)
    return struct


def _array(
    length: int,
    nulls: int,
    buffers: Sequence[Array | None],
    children: Sequence[abi.ArrowArray] = (),
) -> abi.ArrowArray:
    pointers = (ctypes.c_void_p * len(buffers))(*map(_address, buffers))
    struct = abi.ArrowArray(length=length, null_count=nulls, n_buffers=len(buffers))
    struct.buffers = ctypes.addressof(pointers)
    abi.lend(struct, children, (pointers, buffers))
    return struct
