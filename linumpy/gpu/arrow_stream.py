"""Arrow C streams: lend a table as a stream of one chunk, and read the chunks of a producer."""

from __future__ import annotations

import ctypes
import errno
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from linumpy.core.errors import InputError
from linumpy.gpu import arrow_abi as abi

_Fill = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_Text = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_Stream = abi.ArrowArrayStream | abi.ArrowDeviceArrayStream
_CALLBACKS = ("get_schema", "get_next", "get_last_error", "release")


@dataclass
class _Lent:
    """State of a stream that was handed out."""

    exporter: Any
    chunks: list[Any]
    error: Any = field(default_factory=lambda: ctypes.create_string_buffer(b""))


_lent: dict[int, _Lent] = {}
_numbers = itertools.count(1)


def lend_stream(exporter: Any, chunk: Any, kind: type[Any]) -> Any:
    """Return a capsule with a stream of one chunk.

    Parameters
    ----------
    exporter
        Makes the schema.
    chunk
        Lent `ArrowArray`, or `ArrowDeviceArray` for a stream of these. Made before, because its
        event marks what was queued when the stream was handed out.
    kind
        `ArrowArrayStream` or `ArrowDeviceArrayStream`.
    """
    stream = kind()
    if isinstance(chunk, abi.ArrowDeviceArray):
        stream.device_type = chunk.device_type
    for name, callback in zip(_CALLBACKS, _OURS[kind], strict=True):
        setattr(stream, name, ctypes.cast(callback, ctypes.c_void_p).value)
    stream.private_data = next(_numbers)
    _lent[stream.private_data] = _Lent(exporter, [chunk])
    return abi.new_capsule(stream)


def _callbacks_of(kind: type[Any]) -> tuple[Any, ...]:
    def state_of(address: int) -> _Lent:
        return _lent[kind.from_address(address).private_data]

    def get_schema(address: int, out: int) -> int:
        state = state_of(address)
        try:
            abi.give(state.exporter._schema_struct(""), out)
        except Exception as error:
            state.error = ctypes.create_string_buffer(str(error).encode())
            return errno.EINVAL
        return 0

    def get_next(address: int, out: int) -> int:
        chunks = state_of(address).chunks
        # A cleared struct is the end of the stream.
        abi.give(chunks.pop() if chunks else kind.Item(), out)
        return 0

    def get_last_error(address: int) -> int:
        return ctypes.addressof(state_of(address).error)

    def drop(struct: Any) -> None:
        for chunk in _lent.pop(struct.private_data).chunks:
            abi.release(getattr(chunk, "array", chunk))

    return (
        *(abi.forever(_Fill(function)) for function in (get_schema, get_next)),
        abi.forever(_Text(get_last_error)),
        abi.callback_releasing(kind, drop),
    )


_OURS = {kind: _callbacks_of(kind) for kind in (abi.ArrowArrayStream, abi.ArrowDeviceArrayStream)}


class StreamReader:
    """The schema and the chunks of a stream, which is released when the block ends."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule
        self._stream: _Stream = abi.open_capsule(
            capsule, b"arrow_device_array_stream", b"arrow_array_stream"
        )
        self.schema = abi.ArrowSchema()

    def __enter__(self) -> StreamReader:
        if not self._stream.release:
            raise InputError("Arrow: the stream was consumed or released before")
        if not all(getattr(self._stream, name) for name in _CALLBACKS[:3]):
            raise InputError("Arrow: the stream lacks callbacks")
        try:
            self._call("get_schema", self.schema)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        abi.release(self.schema)
        abi.release(self._stream)

    def chunks(self) -> Iterator[abi.ArrowDeviceArray]:
        """Yield the chunks; who gets one releases it.

        Raises
        ------
        InputError
            When the producer fails, with what it says.
        """
        while True:
            struct = type(self._stream).Item()
            self._call("get_next", struct)
            chunk = abi.on_device(struct)
            if not chunk.array.release:
                return
            yield chunk

    def _call(self, name: str, out: ctypes.Structure) -> None:
        address = ctypes.addressof(self._stream)
        code = _Fill(getattr(self._stream, name))(address, ctypes.addressof(out))
        if not code:
            return
        said = _Text(self._stream.get_last_error)(address)
        text = ctypes.string_at(said).decode(errors="replace") if said else "no reason given"
        raise InputError(f"Arrow: the stream failed ({errno.errorcode.get(code, code)}): {text}")
