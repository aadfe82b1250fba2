"""Blosc 1 containers: their header, their blocks, and the streams within the blocks.

A container is a header of 16 bytes, the start of each block, and the blocks in any order. A
block is one compressed stream, or as many as an item has bytes: after the byte shuffle, each
byte plane is compressed alone. Listing the streams of many chunks lets all of them be decoded
in one batch on the device; the shuffle is undone afterwards, block by block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from linumpy.core.errors import InputError

HEADER_NBYTES = 16
_VERSION = 2
_CODECS = {0: "blosclz", 1: "lz4", 2: "snappy", 3: "zlib", 4: "zstd"}
_BYTE_SHUFFLE, _MEMCPYED, _BIT_SHUFFLE, _RESERVED, _DO_NOT_SPLIT = 0x01, 0x02, 0x04, 0x08, 0x10
_MAX_SPLITS = 16
_MIN_SPLIT_ITEMS = 128
_GPU_CODECS = ("lz4", "zstd")
_GPU_ITEM_NBYTES = 8


@dataclass(frozen=True)
class BloscHeader:
    """The header of a Blosc 1 container, checked against the bytes that it describes.

    Attributes
    ----------
    codec
        ``blosclz``, ``lz4``, ``snappy``, ``zlib`` or ``zstd``.
    shuffle
        ``none``, ``byte`` or ``bit``: what was done to each block before compression. With
        items of one byte, a byte shuffle changes nothing; a bit shuffle leaves a block alone
        whose number of items is no multiple of eight.
    typesize
        Bytes of an item.
    nbytes
        Decoded size in bytes.
    blocksize
        Decoded bytes of a block; the last may be shorter.
    cbytes
        Bytes of the whole container.
    memcpyed
        Whether the content follows the header as it is: neither compressed nor shuffled.
    split
        Whether blocks may be split into one stream a byte of the item.
    bstarts
        Offset of each block from the start of the container, int64; empty if `memcpyed`.
    """

    codec: str
    shuffle: str
    typesize: int
    nbytes: int
    blocksize: int
    cbytes: int
    memcpyed: bool
    split: bool
    bstarts: np.ndarray

    @property
    def streams_a_block(self) -> int:
        """Number of streams in each block but a shorter last one, which always has one."""
        if not self.split or self.typesize > _MAX_SPLITS:
            return 1
        return self.typesize if self.blocksize // self.typesize >= _MIN_SPLIT_ITEMS else 1


@dataclass(frozen=True)
class BloscStreams:
    """The compressed streams of one container, in the order of its content.

    All are 1-d arrays of equal length: `block` (index of the block), `src_offset` and
    `src_nbytes` (bytes in the container, without the length before them), `dst_offset` and
    `dst_nbytes` (bytes in the content, still shuffled), int64; `stored_raw`, bool: the bytes
    are not compressed.
    """

    block: np.ndarray
    src_offset: np.ndarray
    src_nbytes: np.ndarray
    dst_offset: np.ndarray
    dst_nbytes: np.ndarray
    stored_raw: np.ndarray


def as_bytes_view(data: Any) -> memoryview:
    """Return `data` (bytes-like, or a contiguous NumPy array) as a flat view of bytes."""
    view = memoryview(data)
    if not view.c_contiguous:
        raise InputError("a compressed chunk must be contiguous in memory")
    # a view with a zero in its shape cannot be cast
    return view.cast("B") if view.nbytes else memoryview(b"")


def _int32_at(octets: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return the little-endian int32 numbers at `offsets`, as int64."""
    rows = octets[offsets[:, None] + np.arange(4)]
    return rows.view("<i4")[:, 0].astype(np.int64)


def parse_blosc(data: Any) -> BloscHeader:
    """Read and check the header of a Blosc 1 container and the starts of its blocks.

    Parameters
    ----------
    data
        The container, bytes-like or a contiguous uint8 NumPy array.

    Raises
    ------
    InputError
        Saying which field is wrong: Blosc 2, an unknown codec, impossible or too large sizes,
        more or fewer bytes than the header says, blocks that start outside.
    """
    octets = np.frombuffer(as_bytes_view(data), np.uint8)
    if octets.size < HEADER_NBYTES:
        raise InputError(f"truncated: a Blosc header needs {HEADER_NBYTES} bytes, {octets.size}")
    version, _, flags, typesize = octets[:4].tolist()
    # the sizes are unsigned in the file; decoders keep them in int32
    nbytes, blocksize, cbytes = octets[4:HEADER_NBYTES].view("<i4").tolist()
    if version != _VERSION:
        raise InputError(f"Blosc format version {version}; {_VERSION} (Blosc 1) is expected")
    if flags >> 5 not in _CODECS:
        raise InputError(f"Blosc codec number {flags >> 5} is unknown")
    if flags & _RESERVED or flags & _BYTE_SHUFFLE and flags & _BIT_SHUFFLE:
        raise InputError(f"Blosc flags 0x{flags:02x} contradict each other")
    if typesize == 0:
        raise InputError("Blosc items of 0 bytes")
    if nbytes < 0:
        raise InputError(f"Blosc declares a negative size ({nbytes} bytes)")
    if cbytes != octets.size:
        raise InputError(f"Blosc declares {cbytes} compressed bytes, {octets.size} there")
    memcpyed = bool(flags & _MEMCPYED)
    if memcpyed and cbytes != HEADER_NBYTES + nbytes:
        raise InputError(f"Blosc stores {cbytes - HEADER_NBYTES} bytes as they are, not {nbytes}")
    bstarts = np.empty(0, np.int64)
    if nbytes and not memcpyed:
        if not 0 < blocksize <= nbytes:
            raise InputError(f"Blosc blocks of {blocksize} bytes for {nbytes} bytes of content")
        n_blocks = -(-nbytes // blocksize)
        # before the list is made: its length comes from the data
        first = HEADER_NBYTES + 4 * n_blocks
        if first > cbytes:
            raise InputError(f"Blosc lists {n_blocks} blocks, the data end within the list")
        bstarts = octets[HEADER_NBYTES:first].view("<i4").astype(np.int64)
        outside = np.flatnonzero((bstarts < first) | (bstarts + 4 > cbytes))
        if outside.size:
            block = int(outside[0])
            raise InputError(f"Blosc block {block} starts at byte {bstarts[block]} of {cbytes}")
    elif not memcpyed and cbytes != HEADER_NBYTES:
        raise InputError(f"{cbytes - HEADER_NBYTES} bytes behind an empty Blosc container")
    shuffle = "byte" if flags & _BYTE_SHUFFLE else "bit" if flags & _BIT_SHUFFLE else "none"
    header = BloscHeader(
        codec=_CODECS[flags >> 5],
        shuffle=shuffle,
        typesize=typesize,
        nbytes=nbytes,
        blocksize=blocksize,
        cbytes=cbytes,
        memcpyed=memcpyed,
        split=not flags & _DO_NOT_SPLIT,
        bstarts=bstarts,
    )
    if bstarts.size and blocksize % header.streams_a_block:
        raise InputError(f"Blosc blocks of {blocksize} bytes split into {typesize} streams")
    return header


def blosc_streams(data: Any, header: BloscHeader) -> BloscStreams:
    """List the streams of a Blosc 1 container.

    A container whose content is stored as it is (`BloscHeader.memcpyed`) is one raw stream.

    Parameters
    ----------
    data
        The container, as for `parse_blosc`.
    header
        What `parse_blosc` made of it.

    Raises
    ------
    InputError
        Naming the first block with a stream that is empty or runs past the end.
    """
    octets = np.frombuffer(as_bytes_view(data), np.uint8)
    if header.memcpyed or not header.nbytes:
        present = int(header.nbytes > 0)
        zero = np.zeros(present, np.int64)
        size = zero + header.nbytes
        return BloscStreams(
            zero, zero + HEADER_NBYTES, size, zero, size, np.ones(present, np.bool_)
        )
    n_blocks = header.bstarts.size
    splits = header.streams_a_block
    leftover = header.nbytes % header.blocksize
    counts = np.full(n_blocks, splits)
    sizes = np.full(n_blocks, header.blocksize // splits)
    if leftover:
        counts[-1], sizes[-1] = 1, leftover
    position = header.bstarts.copy()
    rows = []
    # streams of a block are chained by their lengths, blocks are independent: all blocks at once
    for split in range(splits):
        block = np.flatnonzero(counts > split)
        short = position[block] + 4 > header.cbytes
        if not short.any():
            length = _int32_at(octets, position[block])
            start = position[block] + 4
            short = (length <= 0) | (start + length > header.cbytes)
        if short.any():
            raise InputError(
                f"Blosc block {block[short][0]}: stream {split} is empty or runs past the end"
            )
        target = block * header.blocksize + split * sizes[block]
        rows.append(np.stack([block, start, length, target, sizes[block]]))
        position[block] = start + length
    table = np.concatenate(rows, axis=1)
    table = table[:, np.argsort(table[3], kind="stable")]
    block, start, length, target, size = table
    return BloscStreams(block, start, length, target, size, stored_raw=length == size)


def blosc_gpu_problem(header: BloscHeader) -> str | None:
    """Return why a container cannot be decoded on a GPU; None if it can."""
    if header.memcpyed or not header.nbytes:
        return None
    if header.codec not in _GPU_CODECS:
        return f"Blosc codec {header.codec}"
    if header.shuffle != "none" and header.typesize > _GPU_ITEM_NBYTES:
        return f"Blosc items of {header.typesize} bytes"
    return None
