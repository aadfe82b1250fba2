"""Decode and encode chunks on the CPU, where a device is slow or cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from linumpy.core.errors import InputError
from linumpy.store.chunk_layout import ChunkLayout
from linumpy.store.codecs import CODECS
from linumpy.store.frames import check_declared
from linumpy.store.shards import MISSING


def verified_payload(data: Any, layout: ChunkLayout, where: str) -> Any:
    """Check a stored chunk's checksum, if it has one, and return its bytes without it.

    Raises
    ------
    InputError
        When the checksum does not match; names `where`.
    """
    view = memoryview(data).cast("B")
    if not layout.has_crc32c:
        return view
    import google_crc32c

    payload, stored = view[:-4], bytes(view[-4:])
    # google_crc32c copies what is not `bytes`, unless it is an array.
    computed = google_crc32c.value(np.frombuffer(payload, np.uint8))
    if len(stored) < 4 or computed != int.from_bytes(stored, "little"):
        raise InputError(f"{where}: does not match its checksum (crc32c)")
    return payload


def decode_chunk(data: Any, layout: ChunkLayout, where: str, out: np.ndarray | None = None) -> Any:
    """Decode one stored chunk on the CPU.

    Parameters
    ----------
    data
        The chunk's stored bytes, with its checksum.
    layout
        How chunks are stored.
    where
        Name of the chunk for messages.
    out
        Room for the decoded bytes, uint8, contiguous, shape (layout.chunk_nbytes,).

    Returns
    -------
    The decoded bytes, uint8, shape (layout.chunk_nbytes,).

    Raises
    ------
    InputError
        When the chunk is corrupt or decodes to another size; nothing larger is ever allocated.
    """
    payload = verified_payload(data, layout, where)
    size = layout.chunk_nbytes
    if out is None:
        out = np.empty(size, np.uint8)
    if layout.compression is None:
        if len(payload) != size:
            raise InputError(f"{where}: {len(payload)} bytes, expected {size}")
        out[:] = np.frombuffer(payload, np.uint8)
        return out
    check_declared(layout.compression, payload, size, where)
    if size == 0:
        return out
    try:
        CODECS[layout.compression].decode(payload, out)
    except Exception as error:
        raise InputError(f"{where}: {layout.compression} cannot be decoded ({error})") from error
    return out


def encoder(layout: ChunkLayout) -> Any:
    """Return the numcodecs codec with the settings of a layout's compressor; None for raw bytes."""
    from numcodecs import get_codec

    compressor = layout.compressor
    if not hasattr(compressor, "to_dict"):
        return compressor
    description = compressor.to_dict()
    settings = dict(description.get("configuration") or {})
    if layout.compression == "blosc" and isinstance(settings.get("shuffle"), str):
        settings["shuffle"] = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}[settings["shuffle"]]
        # A codec that has not yet seen an array has no item size.
        settings["typesize"] = settings.get("typesize") or layout.dtype.itemsize
    return get_codec({"id": layout.compression, **settings})


def encode_chunk(data: np.ndarray, layout: ChunkLayout, codec: Any) -> bytes:
    """Encode one chunk on the CPU, as it is stored, with its checksum if it has one.

    Parameters
    ----------
    data
        The chunk's bytes in the order and byte order of the layout, uint8.
    layout
        How chunks are stored.
    codec
        Of `encoder`.
    """
    body = data.tobytes() if codec is None else bytes(codec.encode(data.view(layout.dtype)))
    if layout.compression == "gzip":
        # The header's time: none (RFC 1952), so that the same voxels make the same bytes.
        body = body[:4] + bytes(4) + body[8:]
    return with_crc32c(body) if layout.has_crc32c else body


def with_crc32c(data: bytes) -> bytes:
    """Return bytes with their CRC-32C behind them, as Zarr's codec puts it."""
    import google_crc32c

    return data + int(google_crc32c.value(data)).to_bytes(4, "little")


def join_chunks(bodies: Sequence[bytes | None], layout: ChunkLayout) -> bytes | None:
    """Return a stored object of its encoded chunks, one behind the other, with a shard's index.

    Parameters
    ----------
    bodies
        Each chunk as it is stored, in the order of the index; None for one that is not.
    layout
        How chunks are stored.

    Returns
    -------
    None when there is no chunk to store.
    """
    keep = np.array([body is not None for body in bodies])
    if not keep.any():
        return None
    stored = [body for body in bodies if body is not None]
    index = layout.shard
    if index is None:
        return stored[0]
    length = np.array([0 if body is None else len(body) for body in bodies])
    lead = 0 if index.at_end else index.nbytes
    entries = index_bytes(np.cumsum(length) - length + lead, length, keep, index.has_crc32c)
    return b"".join([*stored, entries] if index.at_end else [entries, *stored])


def index_bytes(offset: np.ndarray, length: np.ndarray, keep: np.ndarray, crc: bool) -> bytes:
    """Return a shard's index as it is stored.

    Parameters
    ----------
    offset, length
        Where each chunk lies in the shard, in bytes.
    keep
        Which chunks there are.
    crc
        Whether the index ends with its CRC-32C.
    """
    table = np.full((len(offset), 2), MISSING, "<u8")
    table[keep, 0] = offset[keep]
    table[keep, 1] = length[keep]
    data = table.tobytes()
    return with_crc32c(data) if crc else data
