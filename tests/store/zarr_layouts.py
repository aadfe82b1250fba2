"""Small Zarr arrays in every layout that the host reads, for several test files."""

import warnings
from contextlib import contextmanager

import numcodecs
import numpy as np
import zarr
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
)

SHAPE = (20, 30, 10)
MAGIC = bytes.fromhex("28b52ffd")


def raw_block(content, last=True):
    return (len(content) << 3 | last).to_bytes(3, "little") + content


def declaring(nbytes):
    """A frame of 16 bytes that declares `nbytes` and holds nothing."""
    return MAGIC + bytes([0xE0]) + nbytes.to_bytes(8, "little") + raw_block(b"")


def sizeless(content):
    pieces = [content[at : at + 100_000] for at in range(0, len(content), 100_000)]
    blocks = [raw_block(piece, i == len(pieces) - 1) for i, piece in enumerate(pieces)]
    return MAGIC + bytes([0x00, 10 << 3]) + b"".join(blocks)


LAYOUTS = {
    "zstd": dict(chunks=(7, 8, 10), compressors=[ZstdCodec(level=1)]),
    "zstd-checksum": dict(chunks=(7, 8, 10), compressors=[ZstdCodec(level=1, checksum=True)]),
    "ours": dict(
        chunks=(5, 8, 5), shards=(10, 16, 10), compressors=[ZstdCodec(level=1), Crc32cCodec()]
    ),
    "zstd-crc": dict(chunks=(7, 8, 10), compressors=[ZstdCodec(), Crc32cCodec()]),
    "raw": dict(chunks=(7, 8, 10), compressors=[]),
    "raw-crc": dict(chunks=(5, 8, 5), shards=(10, 16, 10), compressors=[Crc32cCodec()]),
    "blosc": dict(chunks=(7, 8, 10), compressors=[BloscCodec(cname="zstd")]),
    "gzip": dict(chunks=(7, 8, 10), compressors=[GzipCodec()]),
    "transpose": dict(chunks=(7, 8, 10), filters=[TransposeCodec(order=(2, 0, 1))]),
    "big-endian": dict(chunks=(7, 8, 10), serializer=BytesCodec(endian="big")),
    "index-first": dict(
        chunks=(10, 16, 10),
        compressors=[],
        serializer=ShardingCodec(chunk_shape=(5, 8, 5), index_location="start"),
    ),
    "v2": dict(chunks=(7, 8, 10), zarr_format=2),
    "v2-fortran": dict(chunks=(7, 8, 10), zarr_format=2, order="F"),
    "v2-blosc": dict(chunks=(7, 8, 10), zarr_format=2, compressors=numcodecs.Blosc("lz4")),
    "v2-zlib": dict(chunks=(7, 8, 10), zarr_format=2, compressors=numcodecs.Zlib()),
}
ZARR_ONLY = {
    "crc-inside": dict(chunks=(7, 8, 10), compressors=[Crc32cCodec(), ZstdCodec(), Crc32cCodec()]),
    "v2-lz4": dict(chunks=(7, 8, 10), zarr_format=2, compressors=numcodecs.LZ4()),
    "v2-delta": dict(chunks=(7, 8, 10), zarr_format=2, filters=[numcodecs.Delta("f4")]),
}
REFUSED = {
    "two-compressors": dict(chunks=(7, 8, 10), compressors=[ZstdCodec(), GzipCodec()]),
    "nested-shards": dict(
        chunks=(10, 16, 10),
        compressors=[],
        serializer=ShardingCodec(
            chunk_shape=(5, 8, 5), codecs=[ShardingCodec(chunk_shape=(5, 4, 5))]
        ),
    ),
}


def values(dtype="f4", shape=SHAPE):
    return (np.arange(np.prod(shape)) % 1000).reshape(shape).astype(dtype)


def make(path, layout, dtype="f4", shape=SHAPE):
    """Write an array with zarr's own pipeline."""
    keywords = {**LAYOUTS, **ZARR_ONLY, **REFUSED}[layout]
    array = zarr.create_array(path, shape=shape, dtype=dtype, **keywords)
    array[...] = values(dtype, shape)
    return array


@contextmanager
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
