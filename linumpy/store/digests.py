"""Checksums of the files of a Zarr store, from as few bytes as identify each file.

A shard whose inner chunks each end in their own crc32c is identified by those and by its index: few
short reads. The payload is behind the inner checksums, which the decoder compares. So is that of a
chunk which is a file of its own and ends in its crc32c: the crc32c of all its bytes would be the
same for all such files of one length. Any other file is identified by the crc32c of all its bytes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from linumpy.core.errors import InputError
from linumpy.store.shards import MISSING, ShardIndex, parse_sharding, read_index

_PIECE_NBYTES = 8 << 20
_CRC_NBYTES = 4


ONE_CHUNK = ShardIndex((0,), at_end=True, has_crc32c=False)
"""Of a file that is one chunk which ends in its crc32c: no index."""


def shard_layout(document: Mapping[str, Any]) -> ShardIndex | None:
    """Return whether a ``zarr.json`` describes shards whose chunks end in a crc32c.

    Returns
    -------
    `ONE_CHUNK` where each file is such a chunk itself; None for others, or where the document is
    no array's.
    """
    try:
        *_, last = document["codecs"]
        if last["name"] == "crc32c":
            return ONE_CHUNK
        (sharding,) = document["codecs"]
        configuration = sharding["configuration"]
        if (
            sharding["name"] != "sharding_indexed"
            or configuration["codecs"][-1]["name"] != "crc32c"
        ):
            return None
        return parse_sharding(document["chunk_grid"]["configuration"]["chunk_shape"], configuration)
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError, AttributeError):
        return None


def file_digest(path: Path | str, layout: ShardIndex | None = None) -> tuple[int, str]:
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
            index, inner = _inner(file, nbytes, layout, path)
            ends = [first + length for _, first, length in inner]
            tails = [os.pread(file, _CRC_NBYTES, end - _CRC_NBYTES) for end in ends]
            crc = google_crc32c.value(b"".join([*tails, index]))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    finally:
        os.close(file)
    return nbytes, f"{crc:08x}"


def check_inner_checksums(path: Path | str, layout: ShardIndex) -> None:
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
        for number, first, length in _inner(file, nbytes, layout, path)[1]:
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


def _inner(
    file: int, nbytes: int, layout: ShardIndex, path: Path | str
) -> tuple[bytes, list[tuple[int, int, int]]]:
    """Return the index as stored; and number, first byte and length of each inner chunk."""
    if not layout.n_chunks:
        if nbytes < _CRC_NBYTES:
            raise InputError(f"{path}: {nbytes} bytes, too few for a checksum (crc32c)")
        return b"", [(0, 0, nbytes)]
    index, table = read_index(lambda first, n: os.pread(file, n, first), nbytes, layout, path)
    found = []
    for number, (first, length) in enumerate(table.reshape(-1, 2).tolist()):
        if first == MISSING:
            continue
        if length < _CRC_NBYTES:
            raise InputError(
                f"{path}: inner chunk {number}: {length} bytes, too few for a checksum"
            )
        found.append((number, first, length))
    return index, found
