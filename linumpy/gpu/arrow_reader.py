"""Read third-party Arrow arrays as NumPy and CuPy arrays over the same memory.

A struct comes from code that may be wrong, so that everything in it that can be checked is
checked before its buffers are touched: counts, lengths, offsets, types. Only the sizes of the
buffers themselves are nowhere to be found; there the producer must be trusted.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from linumpy.core.device import Array, namespace, to_host
from linumpy.core.errors import InputError
from linumpy.gpu import arrow_abi as abi
from linumpy.gpu.arrow_memory import MOST_BYTES, Owner, Place
from linumpy.gpu.arrow_stream import StreamReader

_NUMBERS = {
    "c": "int8",
    "C": "uint8",
    "s": "int16",
    "S": "uint16",
    "i": "int32",
    "I": "uint32",
    "l": "int64",
    "L": "uint64",
    "e": "float16",
    "f": "float32",
    "g": "float64",
}
_TEXT_OFFSETS = {"u": "int32", "U": "int64"}
_TENSOR = "arrow.fixed_shape_tensor"
_MOST_COLUMNS = 1 << 16
_MOST_AXES = 32


def from_arrow(source: Any, *, borrow: bool = False) -> Array | dict[str, Array]:
    """Return what an Arrow producer holds, as arrays over its own memory where that is possible.

    Numbers are views, read-only on the CPU (CuPy cannot mark its arrays so; do not write to
    them). Booleans are unpacked, text becomes an object array of str and None, and floats with
    missing values become a copy with NaN in their places.

    Parameters
    ----------
    source
        An object with ``__arrow_c_device_array__``, ``__arrow_c_array__``,
        ``__arrow_c_device_stream__`` or ``__arrow_c_stream__`` (a table, a chunked array, a
        reader), or the capsules from one of these. A stream is read to its end; several chunks
        are joined, which copies them.
    borrow
        False: the array's struct is taken over, its capsule is used up, and the producer's memory
        is released when the last view dies. True: the struct stays in the capsule, which the
        views keep alive; should another consumer take that capsule, the views must not be used
        any more. Not for streams, which can be read once.

    Returns
    -------
    A record batch: arrays by column name. Anything else: one array. The first axis counts rows;
    fixed-size lists and tensors add theirs. CUDA memory comes as CuPy arrays, in order behind
    the producer's event on this thread's current stream; memory of the CPU as NumPy arrays.

    Raises
    ------
    InputError
        When the source is no Arrow array, was consumed or released before, contradicts itself,
        is of a type that is not read, or misses values that are not floats or text. The producer
        keeps its array then.
    DeviceError
        When its memory is on a device that cannot be reached.
    """
    capsules = _capsules(source)
    if len(capsules) == 1:
        if borrow:
            raise InputError("Arrow: a stream is read once and cannot be borrowed")
        return _read_stream(capsules[0])
    schema_capsule, array_capsule = capsules
    schema = abi.open_capsule(schema_capsule, b"arrow_schema")
    struct = abi.open_capsule(array_capsule, b"arrow_device_array", b"arrow_array")
    if isinstance(struct, abi.ArrowDeviceArray):
        array = struct.array
    else:
        # Without a device around it, an array is one of the CPU.
        array, struct = struct, abi.ArrowDeviceArray(device_id=-1, device_type=abi.CPU)
    for part, what in ((schema, "schema"), (array, "array")):
        if not part.release:
            raise InputError(f"Arrow: the {what} was consumed or released before")
    field = _read_field(schema, 0)
    owner = Owner((schema_capsule, array_capsule) if borrow else None)
    return _read_whole(field, array, struct, owner, keep=borrow)


def _read_whole(
    field: _Field,
    array: abi.ArrowArray,
    struct: abi.ArrowDeviceArray,
    owner: Owner,
    *,
    keep: bool = False,
) -> Any:
    place = Place.of(struct, owner)
    if field.format == "+s":
        values: Any = _read_batch(field, array, place)
    else:
        values = _read(field, array, place, 0, array.length)
    if not keep:
        owner.take(array, place.stream)
    return values


def _read_stream(capsule: Any) -> Array | dict[str, Array]:
    with StreamReader(capsule) as stream:
        field = _read_field(stream.schema, 0)
        parts: list[Any] = []
        for chunk in itertools.chain(stream.chunks(), [None]):
            if chunk is None and parts:
                break
            # A stream without chunks still has a type.
            struct = abi.on_device(_no_rows(field)) if chunk is None else chunk
            try:
                parts.append(_read_whole(field, struct.array, struct, Owner(None)))
            finally:
                abi.release(struct.array)
    if len(parts) == 1:
        return parts[0]
    if field.format != "+s":
        return namespace(*parts).concatenate(parts)
    return {
        name: namespace(*columns).concatenate(columns)
        for name in parts[0]
        for columns in [[part[name] for part in parts]]
    }


def _no_rows(field: _Field) -> abi.ArrowArray:
    buffers = (ctypes.c_void_p * field.n_buffers)()
    struct = abi.ArrowArray(n_buffers=field.n_buffers, buffers=ctypes.addressof(buffers))
    abi.lend(struct, [_no_rows(child) for child in field.children], buffers)
    return struct


@dataclass(frozen=True)
class _Field:
    """A schema, read."""

    name: str
    format: str
    children: tuple[_Field, ...]
    tensor: dict[str, Any] | None

    @property
    def list_size(self) -> int:
        """Length of the lists of a fixed-size list type."""
        try:
            size = int(self.format.removeprefix("+w:"))
        except ValueError:
            size = -1
        if not 0 <= size <= MOST_BYTES:
            raise InputError(f"Arrow {self.what}: format {self.format!r} has no list size")
        return size

    @property
    def what(self) -> str:
        """How messages call it."""
        return f"column {self.name!r}" if self.name else "array"

    @property
    def n_buffers(self) -> int:
        """How many buffers the format has.

        Raises
        ------
        InputError
            When the format is not one that is read.
        """
        if self.format == "+s" or self.format.startswith("+w:"):
            return 1
        if self.format in _TEXT_OFFSETS:
            return 3
        if self.format in _NUMBERS or self.format == "b":
            return 2
        raise InputError(
            f"Arrow {self.what}: format {self.format!r} is not read; expected numbers, booleans, "
            "text (utf8), fixed-size lists of these, or a record batch"
        )


def _capsules(source: Any) -> tuple[Any, ...]:
    """Return the capsules of a schema and an array, or that of a stream."""
    for kind in ("device_array", "array", "device_stream", "stream"):
        if hasattr(source, f"__arrow_c_{kind}__"):
            source = getattr(source, f"__arrow_c_{kind}__")()
            break
    if type(source).__name__ == "PyCapsule":
        return (source,)
    if not isinstance(source, tuple | list) or len(source) != 2:
        raise InputError(
            "expected an object with __arrow_c_device_array__, __arrow_c_array__, "
            "__arrow_c_device_stream__ or __arrow_c_stream__, or the capsules that these return, "
            f"got {type(source).__name__}"
        )
    return source[0], source[1]


def _read_field(schema: abi.ArrowSchema, depth: int) -> _Field:
    if depth > _MOST_AXES:
        raise InputError(f"Arrow schema: nested more than {_MOST_AXES} deep")
    if not schema.format:
        raise InputError("Arrow schema: has no format")
    form = ctypes.string_at(schema.format).decode(errors="replace")
    name = ctypes.string_at(schema.name).decode(errors="replace") if schema.name else ""
    what = f"schema of {name!r}"
    if schema.dictionary:
        raise InputError(f"Arrow {what}: dictionary-encoded values are not read; decode them first")
    if not 0 <= schema.n_children <= _MOST_COLUMNS:
        raise InputError(f"Arrow {what}: claims {schema.n_children} children")
    parts = abi.children_of(schema, abi.ArrowSchema, what)
    metadata = dict(abi.decode_metadata(schema.metadata))
    tensor = None
    if metadata.get("ARROW:extension:name") == _TENSOR:
        try:
            tensor = dict(json.loads(metadata["ARROW:extension:metadata"]))
        except (KeyError, ValueError, TypeError, RecursionError) as error:
            raise InputError(f"Arrow {what}: a tensor whose shape cannot be read") from error
    return _Field(name, form, tuple(_read_field(part, depth + 1) for part in parts), tensor)


def _check(field: _Field, array: abi.ArrowArray, first: int, count: int) -> list[int | None]:
    """Check an array against its type and the rows asked for; return its buffers' addresses."""
    what = field.what
    for name in ("length", "offset"):
        if not 0 <= getattr(array, name) <= MOST_BYTES:
            raise InputError(f"Arrow {what}: its {name} is {getattr(array, name)}")
    if first + count > array.length:
        raise InputError(f"Arrow {what}: has {array.length} values, expected {first + count}")
    if not -1 <= array.null_count <= array.length:
        raise InputError(f"Arrow {what}: {array.null_count} of {array.length} values are missing")
    if array.n_buffers != field.n_buffers:
        raise InputError(
            f"Arrow {what}: {array.n_buffers} buffers, expected {field.n_buffers} for format "
            f"{field.format!r}"
        )
    if array.dictionary:
        raise InputError(f"Arrow {what}: has a dictionary, which its schema lacks")
    nested = len(field.children)
    expected = 1 if field.format.startswith("+w:") else nested if field.format == "+s" else 0
    if array.n_children != nested or nested != expected:
        raise InputError(
            f"Arrow {what}: {array.n_children} children in the array and {nested} in the schema, "
            f"expected {expected} for format {field.format!r}"
        )
    if not array.buffers:
        raise InputError(f"Arrow {what}: its list of buffers is missing")
    return list((ctypes.c_void_p * array.n_buffers).from_address(array.buffers))


def _read_batch(field: _Field, array: abi.ArrowArray, place: Place) -> dict[str, Array]:
    (bitmap,) = _check(field, array, 0, array.length)
    if _missing(field, array, place, bitmap, array.offset, array.length) is not None:
        raise InputError("Arrow: rows of the record batch are missing as a whole")
    names = [child.name for child in field.children]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"Arrow: column {', '.join(repeated)} appears twice in the record batch")
    parts = abi.children_of(array, abi.ArrowArray, field.what)
    return {
        child.name: _read(child, part, place, array.offset, array.length)
        for child, part in zip(field.children, parts, strict=True)
    }


def _read(field: _Field, array: abi.ArrowArray, place: Place, first: int, count: int) -> Array:
    """Return rows `first` … of an array, numbered without its own offset."""
    what = field.what
    bitmap, *buffers = _check(field, array, first, count)
    first += array.offset
    if field.format in _NUMBERS:
        values = place.view(what, buffers[0], _NUMBERS[field.format], first, count)
    elif field.format == "b":
        values = place.flags(what, buffers[0], first, count)
    elif field.format in _TEXT_OFFSETS:
        return _read_text(field, array, place, [bitmap, *buffers], first, count)
    elif field.format.startswith("+w:"):
        values = _read_lists(field, array, place, first, count)
    else:
        raise InputError(f"Arrow {what}: a record batch inside another is not read")
    missing = _missing(field, array, place, bitmap, first, count)
    if missing is None:
        return values
    if values.dtype.kind != "f":
        raise InputError(
            f"Arrow {what}: {int(missing.sum())} values are missing, which {values.dtype} cannot "
            "say; fill them, or cast to a float type to get NaN"
        )
    values = values.copy()
    values[missing] = math.nan
    return values


def _missing(
    field: _Field,
    array: abi.ArrowArray,
    place: Place,
    bitmap: int | None,
    first: int,
    count: int,
) -> Array | None:
    """Return which rows are missing, None if none is."""
    if not array.null_count or not count:
        return None
    if not bitmap:
        if array.null_count > 0:
            raise InputError(
                f"Arrow {field.what}: {array.null_count} values are missing, and no bitmap says "
                "which"
            )
        return None
    missing = ~place.flags(field.what, bitmap, first, count)
    return missing if bool(missing.any()) else None


def _read_lists(
    field: _Field, array: abi.ArrowArray, place: Place, first: int, count: int
) -> Array:
    size = field.list_size
    (part,) = abi.children_of(array, abi.ArrowArray, field.what)
    if (first + count) * size > MOST_BYTES:
        raise InputError(f"Arrow {field.what}: {first + count} lists of {size} cannot exist")
    inner = field.children[0]
    if inner.format in _TEXT_OFFSETS:
        raise InputError(f"Arrow {field.what}: lists of text are not read")
    values = _read(inner, part, place, first * size, count * size)
    values = values.reshape(count, size, *values.shape[1:])
    if field.tensor is None:
        return values
    shape = _counts(field.tensor.get("shape"))
    axes = _counts(field.tensor.get("permutation", list(range(len(shape or ())))))
    if (
        shape is None
        or axes is None
        or values.ndim != 2
        or math.prod(shape) != size
        or sorted(axes) != list(range(len(shape)))
    ):
        raise InputError(
            f"Arrow {field.what}: {field.tensor} does not describe lists of {size} values"
        )
    return values.reshape(count, *shape).transpose(0, *(axis + 1 for axis in axes))


def _counts(value: Any) -> list[int] | None:
    """Return a list of whole numbers from 0, None for anything else."""
    fits = isinstance(value, list) and all(isinstance(n, int) and n >= 0 for n in value)
    return value if fits else None


def _read_text(
    field: _Field,
    array: abi.ArrowArray,
    place: Place,
    buffers: list[int | None],
    first: int,
    count: int,
) -> np.ndarray:
    what = field.what
    bitmap, ends_address, text_address = buffers
    if place.xp is not np:
        raise InputError(f"Arrow {what}: text in GPU memory is not read; bring it to the CPU first")
    values = np.empty(count, object)
    if not count:
        return values
    ends = to_host(place.view(what, ends_address, _TEXT_OFFSETS[field.format], first, count + 1))
    if ends[0] < 0 or (np.diff(ends) < 0).any():
        raise InputError(f"Arrow {what}: its text offsets are negative or fall")
    start = int(ends[0])
    text = place.view(what, text_address, "uint8", start, int(ends[-1]) - start).tobytes()
    missing = _missing(field, array, place, bitmap, first, count)
    for row in range(count):
        if missing is None or not missing[row]:
            try:
                values[row] = text[int(ends[row]) - start : int(ends[row + 1]) - start].decode()
            except UnicodeDecodeError as error:
                raise InputError(f"Arrow {what}: row {row} is not UTF-8 ({error})") from None
    return values
