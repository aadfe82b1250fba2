"""Arrow C Data Interface in ctypes: structs, capsules and release callbacks.

Structs that are lent to others are filled here. Each carries a release callback and a number;
under that number `_lent` holds the Python objects that own its memory, until the callback is
called. A struct is moved by copying its bytes and clearing the original's `release`.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from linumpy.core.errors import InputError

CPU = 1
CUDA = 2
CUDA_HOST = 3
CUDA_MANAGED = 13

NULLABLE = 2

_LONGEST_METADATA = 1 << 24


class ArrowSchema(ctypes.Structure):
    """Type of an array, as C lays it out; all pointers as addresses, None for null."""

    _fields_ = [
        ("format", ctypes.c_void_p),
        ("name", ctypes.c_void_p),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    ]


class ArrowArray(ctypes.Structure):
    """Buffers of an array, as C lays it out; all pointers as addresses, None for null."""

    _fields_ = [
        ("length", ctypes.c_int64),
        ("null_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("n_buffers", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("buffers", ctypes.c_void_p),
        ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    ]


class ArrowDeviceArray(ctypes.Structure):
    """An `ArrowArray` with its device and the event after which its memory may be read."""

    _fields_ = [
        ("array", ArrowArray),
        ("device_id", ctypes.c_int64),
        ("device_type", ctypes.c_int32),
        ("sync_event", ctypes.c_void_p),
        ("reserved", ctypes.c_int64 * 3),
    ]


class ArrowArrayStream(ctypes.Structure):
    """Arrays of one type, one after the other; callbacks as addresses."""

    Item = ArrowArray
    _fields_ = [
        ("get_schema", ctypes.c_void_p),
        ("get_next", ctypes.c_void_p),
        ("get_last_error", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    ]


class ArrowDeviceArrayStream(ctypes.Structure):
    """An `ArrowArrayStream` of arrays on one type of device."""

    Item = ArrowDeviceArray
    _fields_ = [("device_type", ctypes.c_int32), *ArrowArrayStream._fields_]


# The array is the first member of a device array, so that one address serves both.
assert ArrowDeviceArray.array.offset == 0

_KINDS: dict[bytes, type[ctypes.Structure]] = {
    b"arrow_schema": ArrowSchema,
    b"arrow_array": ArrowArray,
    b"arrow_device_array": ArrowDeviceArray,
    b"arrow_array_stream": ArrowArrayStream,
    b"arrow_device_array_stream": ArrowDeviceArrayStream,
}
_CAPSULE_NAMES = {name: ctypes.create_string_buffer(name) for name in _KINDS}

_api = ctypes.pythonapi
_new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)(("PyCapsule_New", _api))
# In a destructor the capsule is dead already: it may be passed as an address, never as an object.
_dying_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(
    ("PyCapsule_GetPointer", _api)
)
_dying_name = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(("PyCapsule_GetName", _api))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)
_any_call = ctypes.PYFUNCTYPE(ctypes.c_int)(("Py_IsInitialized", _api))

_Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
# Called with the interpreter's lock held: releases that drop Python objects need it.
_Release = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)

_numbers = itertools.count(1)
_lent: dict[int, tuple[Sequence[ctypes.Structure], object]] = {}
_in_capsules: dict[int, ctypes.Structure] = {}


def _take_pending() -> BaseException | None:
    """Take away the exception that is on its way while this callback runs, if any.

    An object may die, and call back, because an exception unwinds. Python code cannot run with
    an exception set, and ctypes cannot set it again afterwards. Callbacks raise it once more as
    their last act, which prints it with its traceback; the caller sees a SystemError instead.
    """
    try:
        _any_call()
    except BaseException as error:
        return error
    return None


def release(struct: ctypes.Structure) -> None:
    """Call a struct's release callback, unless it was moved or released before."""
    if struct.release:
        _Release(struct.release)(ctypes.addressof(struct))


def callback_releasing(kind: type[Any], drop: Callable[[Any], None]) -> Any:
    """Return a release callback for structs of a kind; `drop` lets go of what one holds."""

    def released(address: int) -> None:
        pending = _take_pending()
        struct = kind.from_address(address)
        drop(struct)
        struct.release = None
        if pending is not None:
            raise pending

    return forever(_Callback(released))


def _drop_lent(struct: Any) -> None:
    held = _lent.pop(struct.private_data, None)
    if held is not None:
        for child in held[0]:
            release(child)


def forever(callback: Any) -> Any:
    """Keep a callback beyond the end of this module: others may call it until the process ends."""
    _api.Py_IncRef(ctypes.py_object(callback))
    return callback


def _destroyed(capsule: int) -> None:
    pending = _take_pending()
    struct = _in_capsules.pop(_dying_pointer(capsule, _dying_name(capsule)), None)
    if struct is not None:
        release(struct.array if isinstance(struct, ArrowDeviceArray) else struct)
    if pending is not None:
        raise pending


_RELEASE: dict[type[ctypes.Structure], Any] = {
    kind: callback_releasing(kind, _drop_lent) for kind in (ArrowSchema, ArrowArray)
}
_DESTROY = forever(_Callback(_destroyed))


def lend(
    struct: ArrowSchema | ArrowArray,
    children: Sequence[ArrowSchema] | Sequence[ArrowArray],
    kept: object,
) -> None:
    """Give a filled struct its children and its release callback.

    Parameters
    ----------
    struct
        Its pointers but those to children are set.
    children
        Lent structs. Their release callbacks are called by the parent's, unless a consumer has
        moved them out.
    kept
        Whatever owns the memory that the struct points to; dropped on release.
    """
    if children:
        pointers = (ctypes.c_void_p * len(children))(*map(ctypes.addressof, children))
        struct.n_children = len(children)
        struct.children = ctypes.addressof(pointers)
        kept = (kept, pointers)
    struct.private_data = next(_numbers)
    struct.release = ctypes.cast(_RELEASE[type(struct)], ctypes.c_void_p).value
    _lent[struct.private_data] = (children, kept)


def keep_with(struct: ArrowArray, owner: object) -> None:
    """Keep one more object alive until a lent struct is released."""
    children, kept = _lent[struct.private_data]
    _lent[struct.private_data] = (children, (kept, owner))


def new_capsule(struct: ctypes.Structure) -> Any:
    """Return a capsule that owns a lent struct, and releases it if nobody took it over."""
    name = next(name for name, kind in _KINDS.items() if kind is type(struct))
    address = ctypes.addressof(struct)
    _in_capsules[address] = struct
    return _new_capsule(
        address, ctypes.addressof(_CAPSULE_NAMES[name]), ctypes.cast(_DESTROY, ctypes.c_void_p)
    )


def open_capsule(capsule: Any, *names: bytes) -> Any:
    """Return the struct inside a capsule, in place.

    Raises
    ------
    InputError
        When it is no capsule of one of these names.
    """
    for name in names:
        if _is_valid(capsule, name):
            return _KINDS[name].from_address(_pointer(capsule, name))
    wanted = " or ".join(name.decode() for name in names)
    raise InputError(f"Arrow: expected a capsule {wanted!r}, got {capsule!r}")


def move(source: ArrowArray) -> ArrowArray:
    """Take over a struct: the original counts as released from now on."""
    taken = ArrowArray.from_buffer_copy(source)
    source.release = None
    return taken


def give(struct: ctypes.Structure, out: int) -> None:
    """Move a lent struct to an address."""
    ctypes.memmove(out, ctypes.addressof(struct), ctypes.sizeof(struct))


def on_device(struct: ArrowArray | ArrowDeviceArray) -> ArrowDeviceArray:
    """Return a struct with its device; without one around it, an array is one of the CPU."""
    if isinstance(struct, ArrowDeviceArray):
        return struct
    return ArrowDeviceArray(array=struct, device_id=-1, device_type=CPU)


def children_of(struct: Any, kind: type[Any], what: str) -> list[Any]:
    """Return the child structs, in place.

    Raises
    ------
    InputError
        When a pointer is missing where the struct says that there is a child.
    """
    count = struct.n_children
    if not count:
        return []
    pointers = (ctypes.c_void_p * count).from_address(struct.children) if struct.children else None
    if pointers is None or not all(pointers):
        raise InputError(f"Arrow {what}: says that it has {count} children, and lacks pointers")
    return [kind.from_address(pointer) for pointer in pointers]


def encode_metadata(pairs: dict[str, str]) -> bytes:
    """Return metadata as C wants it: counts and lengths as int32, machine order."""
    parts = [_int32(len(pairs))]
    for text in itertools.chain.from_iterable(pairs.items()):
        encoded = text.encode()
        parts += [_int32(len(encoded)), encoded]
    return b"".join(parts)


def decode_metadata(address: int | None) -> Iterator[tuple[str, str]]:
    """Yield the pairs that `encode_metadata` wrote.

    Raises
    ------
    InputError
        When a length is negative or absurd.
    """
    if address is None:
        return

    def number() -> int:
        nonlocal address
        value = ctypes.c_int32.from_address(address).value
        if not 0 <= value <= _LONGEST_METADATA:
            raise InputError(f"Arrow schema: its metadata claims a length of {value}")
        address += 4
        return value

    def text() -> str:
        nonlocal address
        size = number()
        value = ctypes.string_at(address, size)
        address += size
        return value.decode(errors="replace")

    for _ in range(number()):
        yield text(), text()


def _int32(value: int) -> bytes:
    return bytes(ctypes.c_int32(value))
