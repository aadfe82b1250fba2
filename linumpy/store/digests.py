"""Checksums of the files of a Zarr store, by as few bytes as tell all of them apart.

A shard whose inner chunks each end in their own crc32c is told by those and by its index: a few
short reads. The payload is behind the inner checksums, which the decoder compares. So is that of a
chunk which is a file of its own and ends in its crc32c: the crc32c of all its bytes would be the
same for all such files of one length. Any other file is told by the crc32c of all its bytes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from linumpy.errors import InputError

_MISSING = 2**64 - 1
_PIECE_NBYTES = 8 << 20
_CRC_NBYTES = 4


@dataclass(frozen=True)
class ShardLayout:
    """Where a shard keeps its index, for shards whose inner chunks end in a crc32c.

    Attributes
    ----------
    n_chunks
        Inner chunks a shard; 0 for a file that is one chunk, without an index.
    index_crc
        Whether four bytes of crc32c follow the index.
    index_at_end
        Whether the index ends the shard; it begins it otherwise.
    """

    n_chunks: int
    index_crc: bool
    index_at_end: bool

    @property
    def index_nbytes(self) -> int:
        """Length of the index with its checksum."""
        return 16 * self.n_chunks + _CRC_NBYTES * self.index_crc


def shard_layout(document: Mapping[str, Any]) -> ShardLayout | None:
    """Tell from a ``zarr.json`` whether the chunk files of the array are such shards.

    Returns
    -------
    None where they are not, or where the document is no array's.
    """
    try:
        *_, last = document["codecs"]
        if last["name"] == "crc32c":
            return ShardLayout(0, index_crc=False, index_at_end=True)
        (sharding,) = document["codecs"]
        if sharding["name"] != "sharding_indexed":
            return None
        configuration = sharding["configuration"]
        shape = document["chunk_grid"]["configuration"]["chunk_shape"]
        sides = zip(shape, configuration["chunk_shape"], strict=True)
        index, *rest = configuration["index_codecs"]
        names = [codec["name"] for codec in (index, *rest)]
        if names not in (["bytes"], ["bytes", "crc32c"]):
            return None
        if index.get("configuration", {}).get("endian", "little") != "little":
            return None
        if configuration["codecs"][-1]["name"] != "crc32c":
            return None
        n_chunks = prod(side // inner for side, inner in sides)
        at_end = configuration.get("index_location", "end") == "end"
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError, AttributeError):
        return None
    return ShardLayout(n_chunks, len(names) == 2, at_end)


def file_digest(path: Path | str, layout: ShardLayout | None = None) -> tuple[int, str]:
    """Return the size of a file and its digest.

    Parameters
    ----------
    path
        The file.
    layout
        That of the shard; None for all other files, which are read whole.

    Returns
    -------
    Bytes, and eight hexadecimal digits: the crc32c of the inner chunks' own (as stored, in the
    order of the index, missing ones left out) and of the index; or that of the whole file.

    Raises
    ------
    InputError
        Naming the file: it cannot be read, is shorter than its index, or its index has a wrong
        checksum or points outside.
    """
    import google_crc32c

    file = _open(path)
    try:
        nbytes = os.fstat(file).st_size
        if layout is None:
            crc = 0
            for piece in _pieces(file, 0, nbytes, path):
                crc = google_crc32c.extend(crc, piece)
        else:
            index = _read_index(file, nbytes, layout, path)
            ends = [first + length for _, first, length in _inner(index, nbytes, layout, path)]
            tails = [os.pread(file, _CRC_NBYTES, end - _CRC_NBYTES) for end in ends]
            crc = google_crc32c.value(b"".join([*tails, index]))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    finally:
        os.close(file)
    return nbytes, f"{crc:08x}"


def check_inner_checksums(path: Path | str, layout: ShardLayout) -> None:
    """Compare the payload of every inner chunk of a shard with its own checksum.

    Raises
    ------
    InputError
        Naming the file and the inner chunk, by its number in the index.
    """
    import google_crc32c

    file = _open(path)
    try:
        nbytes = os.fstat(file).st_size
        index = _read_index(file, nbytes, layout, path)
        for number, first, length in _inner(index, nbytes, layout, path):
            crc = 0
            payload = length - _CRC_NBYTES
            for piece in _pieces(file, first, payload, path):
                crc = google_crc32c.extend(crc, piece)
            if os.pread(file, _CRC_NBYTES, first + payload) != struct.pack("<I", crc):
                raise InputError(f"{path}: inner chunk {number}: wrong checksum (crc32c)")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    finally:
        os.close(file)


def _open(path: Path | str) -> int:
    try:
        # a fifo or a device in a chunk's place must not hold us up
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise InputError(f"{path}: cannot be opened ({error.strerror})") from error


def _pieces(file: int, start: int, nbytes: int, path: Path | str) -> Iterator[bytes]:
    stop = start + nbytes
    while start < stop:
        piece = os.pread(file, min(_PIECE_NBYTES, stop - start), start)
        if not piece:
            raise InputError(f"{path}: shrank while it was read")
        start += len(piece)
        yield piece


def _read_index(file: int, nbytes: int, layout: ShardLayout, path: Path | str) -> bytes:
    import google_crc32c

    length = layout.index_nbytes
    # before reading: its length comes from the metadata
    if nbytes < length:
        raise InputError(f"{path}: shard of {nbytes} bytes, its index alone takes {length}")
    index = os.pread(file, length, nbytes - length if layout.index_at_end else 0)
    if len(index) != length:
        raise InputError(f"{path}: shrank while it was read")
    if layout.index_crc:
        crc = struct.pack("<I", google_crc32c.value(index[:-_CRC_NBYTES]))
        if crc != index[-_CRC_NBYTES:]:
            raise InputError(f"{path}: wrong checksum (crc32c) of the shard's index")
    return index


def _inner(
    index: bytes, nbytes: int, layout: ShardLayout, path: Path | str
) -> Iterator[tuple[int, int, int]]:
    """Yield number, first byte and length of each inner chunk that is there."""
    if not layout.n_chunks:
        if nbytes < _CRC_NBYTES:
            raise InputError(f"{path}: {nbytes} bytes, too few for a checksum (crc32c)")
        yield 0, 0, nbytes
        return
    entries = struct.iter_unpack("<QQ", index[: 16 * layout.n_chunks])
    for number, (first, length) in enumerate(entries):
        if first == length == _MISSING:
            continue
        if length < _CRC_NBYTES or first + length > nbytes:
            raise InputError(
                f"{path}: inner chunk {number} at byte {first}, {length} long, "
                f"lies outside the shard of {nbytes} bytes"
            )
        yield number, first, length
