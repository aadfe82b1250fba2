"""Layout of stored chunks: Zarr codecs reduced to what device readers need.

A Zarr array's codecs are reduced to a few plain facts (`ChunkLayout`). Codecs outside of them are
not an error of the file: `UnsupportedLayout` says why the chunks must go through Zarr itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from linumpy.store.codecs import kind_of
from linumpy.store.shards import ShardIndex, parse_sharding

HOST_CODECS = ("cast_value", "scale_offset")
"""Codecs of Zarr (since 3.2) that compute on NumPy arrays alone."""

NUMERIC_KINDS = "biufc"
MAX_AXES = 16


class UnsupportedLayout(NotImplementedError):
    """The chunks cannot be decoded by a device reader; the message says why."""


@dataclass(frozen=True)
class ChunkLayout:
    """One chunk (of a shard: one inner chunk), from bytes to voxels.

    Attributes
    ----------
    chunk_shape
        Shape of the unit of decoding.
    dtype
        Data type of the decoded array, in the machine's byte order.
    byteswapped
        Whether the stored values have the other byte order.
    strides
        Bytes from one element to the next along each axis of the decoded chunk; other than C order
        for Fortran order and transposed chunks.
    compression
        A kind of `linumpy.store.codecs`, such as ``zstd``; None for raw bytes.
    compressor
        The codec object of Zarr (v3) or numcodecs (v2) that belongs to it.
    has_crc32c
        Whether a checksum follows each chunk's bytes.
    fill
        The bytes of one element of a chunk that was never written, in the machine's byte order.
    shard
        The shard's index, or None when every chunk is an object of its own.
    """

    chunk_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    byteswapped: bool
    strides: tuple[int, ...]
    compression: str | None
    compressor: Any
    has_crc32c: bool
    fill: bytes
    shard: ShardIndex | None

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of a decoded chunk."""
        return math.prod(self.chunk_shape) * self.dtype.itemsize

    @property
    def outer_shape(self) -> tuple[int, ...]:
        """Shape of what one stored object holds: a shard, or a chunk."""
        if self.shard is None:
            return self.chunk_shape
        return tuple(n * c for n, c in zip(self.shard.shape, self.chunk_shape, strict=True))


def layout_of(codecs: Iterable[Any], spec: Any) -> ChunkLayout:
    """Reduce Zarr codecs to a layout.

    Parameters
    ----------
    codecs
        The array's codecs, as a Zarr codec pipeline holds them.
    spec
        The ``ArraySpec`` of a stored object: shape, data type, fill value, memory order.

    Raises
    ------
    UnsupportedLayout
        When a codec, its place in the chain, or the data type is none that a device reader takes.
    """
    from zarr.codecs import ShardingCodec

    codecs = tuple(codecs)
    shape = tuple(spec.shape)
    if not any(isinstance(codec, ShardingCodec) for codec in codecs):
        return _chunk_layout(codecs, shape, spec, None)
    if len(codecs) > 1:
        raise UnsupportedLayout("codecs around a sharding codec")
    sharding = codecs[0]
    inner = tuple(sharding.chunk_shape)
    configuration = sharding.to_dict()["configuration"]
    index = parse_sharding(shape, configuration)
    if index is None:
        raise UnsupportedLayout(f"shard index stored with {_names(sharding.index_codecs)}")
    return _chunk_layout(tuple(sharding.codecs), inner, spec, index)


def _chunk_layout(
    codecs: tuple[Any, ...], shape: tuple[int, ...], spec: Any, shard: ShardIndex | None
) -> ChunkLayout:
    from zarr.codecs import BytesCodec, TransposeCodec

    from linumpy.store.zarr_adapter import V2Codec

    stored = spec.dtype.to_native_dtype()
    if stored.kind not in NUMERIC_KINDS or stored.itemsize > 16:
        raise UnsupportedLayout(f"data type {stored}")
    if len(shape) > MAX_AXES:
        raise UnsupportedLayout(f"{len(shape)} axes, more than {MAX_AXES}")
    dtype = stored.newbyteorder("=")
    order: Sequence[int] = range(len(shape))
    if len(codecs) == 1 and isinstance(codecs[0], V2Codec):
        if codecs[0].filters:
            raise UnsupportedLayout(f"filters {_names(codecs[0].filters)}")
        byteswapped = stored != dtype
        if spec.order == "F":
            order = range(len(shape))[::-1]
        compressor, has_crc32c = codecs[0].compressor, False
    else:
        rest = list(codecs)
        while isinstance(rest[0], TransposeCodec):
            order = [order[axis] for axis in rest.pop(0).order]
        if not isinstance(rest[0], BytesCodec):
            raise UnsupportedLayout(f"codec {_names(rest[:1])}")
        byteswapped = dtype.itemsize > 1 and _is_big_endian(rest[0]) == (dtype.str[0] == "<")
        compressor, has_crc32c = _compressor_of(rest[1:])
    return ChunkLayout(
        chunk_shape=shape,
        dtype=dtype,
        byteswapped=byteswapped,
        strides=_strides(shape, order, dtype.itemsize),
        compression=None if compressor is None else _compression_of(compressor),
        compressor=compressor,
        has_crc32c=has_crc32c,
        fill=_fill_bytes(spec, dtype),
        shard=shard,
    )


def _compressor_of(codecs: Sequence[Any]) -> tuple[Any, bool]:
    from zarr.codecs import Crc32cCodec

    has_crc32c = bool(codecs) and isinstance(codecs[-1], Crc32cCodec)
    rest = codecs[:-1] if has_crc32c else codecs
    if len(rest) > 1 or any(isinstance(codec, Crc32cCodec) for codec in rest):
        raise UnsupportedLayout(f"codecs {_names(codecs)} one after the other")
    return (rest[0] if rest else None), has_crc32c


def _compression_of(compressor: Any) -> str:
    """Name the format of a Zarr codec's or numcodecs codec's output."""
    if hasattr(compressor, "to_dict"):
        name = str(compressor.to_dict()["name"])
    else:
        name = str(compressor.codec_id)
    kind = kind_of(name)
    if kind is None:
        raise UnsupportedLayout(f"codec {name}")
    return kind


def _is_big_endian(codec: Any) -> bool:
    return bool(_name(codec.endian) == "big")


def _name(choice: Any) -> Any:
    """Return a codec's choice as a string: Zarr had enumerations for them up to 3.2."""
    return getattr(choice, "value", choice)


def _strides(shape: Sequence[int], order: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Strides of a chunk stored with its axes in `order`, slowest first."""
    strides = [0] * len(shape)
    step = itemsize
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def _fill_bytes(spec: Any, dtype: np.dtype[Any]) -> bytes:
    value = spec.fill_value
    if value is None:
        value = spec.dtype.default_scalar()
    return np.asarray(value).astype(dtype).tobytes()


def _names(codecs: Iterable[Any]) -> str:
    return ", ".join(
        str(codec.to_dict().get("name")) if hasattr(codec, "to_dict") else str(codec)
        for codec in codecs
    )
