"""What a compressed chunk says about itself, read before anything decodes it.

A decoder on the device takes malformed input as a licence to do anything, and decoders on the
host allocate whatever a header declares. So every compressed chunk is walked here first: pure
Python over the few bytes that give the structure, no decoding, and no allocation whose size
comes from the data.

Formats: Zstandard frames (RFC 8878), the LZ4 layout of numcodecs (little-endian size, then one
raw block), gzip (RFC 1952) and zlib (RFC 1950). Blosc 1 has its own module,
`linumpy.store.blosc_frames`, and is reached from here as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from linumpy.errors import InputError
from linumpy.store.blosc_frames import (
    BloscHeader,
    BloscStreams,
    as_bytes_view,
    blosc_gpu_problem,
    blosc_streams,
    parse_blosc,
)

__all__ = [
    "KINDS",
    "ZSTD_HEADER_LIMIT",
    "BloscHeader",
    "BloscStreams",
    "Frame",
    "MalformedError",
    "Octets",
    "ZstdHeader",
    "blosc_streams",
    "check_declared",
    "check_frame",
    "first_overlap",
    "inspect_frame",
    "inspect_octets",
    "parse_blosc",
    "zstd_header",
]

ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SKIPPABLE = 0x184D2A50  # the low four bits are free
_ZSTD_BLOCK_LIMIT = 128 << 10
_ZSTD_WINDOW_LOG_LIMIT = 31  # what the reference decoder takes on a 64-bit machine
_ZSTD_ID_NBYTES = (0, 1, 2, 4)
_ZSTD_SIZE_NBYTES = (0, 2, 4, 8)
ZSTD_HEADER_LIMIT = 18
"""Bytes of the longest Zstandard frame header."""

# The most that one compressed byte can stand for.
_LZ4_RATIO = 255
_DEFLATE_RATIO = 1032

KINDS = ("zstd", "lz4", "gzip", "zlib", "blosc")


@dataclass(frozen=True)
class Frame:
    """What a compressed chunk declares, and whether it can be decoded.

    Attributes
    ----------
    content_nbytes
        Decoded size in bytes that is declared, summed over the frames; None where the format or
        one of the frames does not say, and for malformed data.
    n_frames
        Number of frames with content; skippable ones do not count. Members of a gzip stream
        cannot be counted without inflating it: 1.
    checksum
        Whether every frame carries a checksum of its content.
    problem
        Why the data are malformed, or cannot be decoded without something that a chunk does not
        carry; None if nothing is wrong with their structure.
    gpu
        Why a decoder on a GPU cannot take the data although the host can (or the problem, for
        malformed data); None if it can.
    content_range
        Fewest and most bytes that the data can decode to, from their blocks or from the best
        ratio of the format, whatever is declared. ``(0, 0)`` for malformed data.
    """

    content_nbytes: int | None
    n_frames: int
    checksum: bool
    problem: str | None
    gpu: str | None
    content_range: tuple[int, int]


class Octets(Protocol):
    """Bytes that can be counted and sliced: a memoryview, or a part of a file."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes | memoryview: ...


class MalformedError(Exception):
    """Raised while walking; becomes `Frame.problem`."""


@dataclass(frozen=True)
class ZstdHeader:
    """The header of one Zstandard frame.

    Attributes
    ----------
    nbytes
        Length of the header.
    content_nbytes
        Declared decoded size in bytes, or None.
    block_limit
        Most bytes that one block may take or decode to.
    checksum
        Whether four bytes of checksum follow the last block.
    dictionary
        Id of the dictionary that the frame needs; 0 for none.
    """

    nbytes: int
    content_nbytes: int | None
    block_limit: int
    checksum: bool
    dictionary: int


def _uint(view: Octets, start: int, nbytes: int, what: str) -> int:
    if start + nbytes > len(view):
        raise MalformedError(f"truncated: {what} needs {start + nbytes} bytes, {len(view)} there")
    return int.from_bytes(view[start : start + nbytes], "little")


def zstd_header(view: Octets, start: int = 0) -> ZstdHeader:
    """Read the frame header at `start`; `ZSTD_HEADER_LIMIT` bytes from there always suffice.

    Raises
    ------
    MalformedError
        When it is truncated, or no header that a decoder takes.
    """
    magic = _uint(view, start, 4, "the frame's magic number")
    if magic != ZSTD_MAGIC:
        raise MalformedError(f"bad magic number 0x{magic:08x} at byte {start}, not Zstandard's")
    descriptor = _uint(view, start + 4, 1, "the frame header")
    if descriptor & 0x08:
        raise MalformedError("a reserved bit of the frame header is set")
    single_segment = bool(descriptor & 0x20)
    position = start + 5
    window = 0
    if not single_segment:
        window_byte = _uint(view, position, 1, "the frame header")
        log = 10 + (window_byte >> 3)
        if log > _ZSTD_WINDOW_LOG_LIMIT:
            raise MalformedError(f"the frame asks for a window of 2^{log} bytes")
        window = (1 << log) + (1 << log) // 8 * (window_byte & 7)
        position += 1
    id_nbytes = _ZSTD_ID_NBYTES[descriptor & 3]
    dictionary = _uint(view, position, id_nbytes, "the frame header")
    position += id_nbytes
    size_nbytes = _ZSTD_SIZE_NBYTES[descriptor >> 6] or int(single_segment)
    content: int | None = None
    if size_nbytes:
        content = _uint(view, position, size_nbytes, "the frame header")
        if size_nbytes == 2:
            content += 256
    if single_segment:
        window = content or 0
    return ZstdHeader(
        nbytes=position + size_nbytes - start,
        content_nbytes=content,
        block_limit=min(window, _ZSTD_BLOCK_LIMIT),
        checksum=bool(descriptor & 0x04),
        dictionary=dictionary,
    )


def _walk_zstd_blocks(view: Octets, start: int, limit: int) -> tuple[int, int, int]:
    """Walk the blocks of one frame.

    Returns the position behind the last, and the fewest and most bytes that they decode to.
    """
    fewest = most = 0
    last = False
    position = start
    while not last:
        header = _uint(view, position, 3, "a block header")
        last, kind, nbytes = bool(header & 1), (header >> 1) & 3, header >> 3
        position += 3
        if nbytes > limit:
            raise MalformedError(f"a block of {nbytes} bytes; the frame allows {limit}")
        if kind == 3:
            raise MalformedError("a block of the reserved type")
        if kind == 2:
            if nbytes < 2:
                raise MalformedError(f"a compressed block of {nbytes} bytes")
            most += limit
        else:
            fewest += nbytes
            most += nbytes
        position += 1 if kind == 1 else nbytes
        if position > len(view):
            raise MalformedError(
                f"truncated: a block runs to byte {position}, {len(view)} bytes there"
            )
    return position, fewest, most


def _inspect_zstd(view: Octets) -> Frame:
    if not len(view):
        raise MalformedError("truncated: no bytes at all")
    position = n_frames = fewest = most = 0
    content: int | None = 0
    checksum = True
    gpu = None
    while position < len(view):
        if position:
            gpu = gpu or "several frames"
        if _uint(view, position, 4, "a magic number") & ~0xF == _ZSTD_SKIPPABLE:
            gpu = "a skippable frame"
            position += 8 + _uint(view, position + 4, 4, "a skippable frame's length")
            if position > len(view):
                raise MalformedError(
                    f"truncated: a skippable frame runs to byte {position}, {len(view)} bytes there"
                )
            continue
        header = zstd_header(view, position)
        if header.dictionary:
            raise MalformedError(f"needs dictionary {header.dictionary}, and a chunk carries none")
        position, low, high = _walk_zstd_blocks(view, position + header.nbytes, header.block_limit)
        if header.checksum:
            _uint(view, position, 4, "the checksum")
            position += 4
        declared = header.content_nbytes
        if declared is None:
            gpu = gpu or "no content size"
            content = None
        elif not low <= declared <= high:
            raise MalformedError(
                f"declares {declared} bytes of content, its blocks hold {low} to {high}"
            )
        else:
            low = high = declared
            content = None if content is None else content + declared
        fewest += low
        most += high
        checksum = checksum and header.checksum
        n_frames += 1
    return Frame(content, n_frames, checksum and n_frames > 0, None, gpu, (fewest, most))


def _inspect_lz4(view: Octets) -> Frame:
    content = _uint(view, 0, 4, "the size before the block")
    if content >= 1 << 31:
        raise MalformedError(f"declares a negative size ({content - (1 << 32)} bytes)")
    if len(view) == 4:
        raise MalformedError("truncated: no block behind the size")
    most = _LZ4_RATIO * (len(view) - 4)
    if content > most:
        raise MalformedError(
            f"declares {content} bytes of content, {len(view) - 4} bytes of LZ4 hold {most} at most"
        )
    return Frame(content, 1, False, None, None, (content, content))


def _inspect_gzip(view: Octets) -> Frame:
    if _uint(view, 0, 3, "the header") != 0x088B1F:
        raise MalformedError("bad magic number, not gzip's")
    flags = _uint(view, 3, 1, "the header")
    if flags & 0xE0:
        raise MalformedError("a reserved bit of the header's flags is set")
    position = 10
    if flags & 0x04:
        position += 2 + _uint(view, position, 2, "the extra field")
    for flag, what in ((0x08, "file name"), (0x10, "comment")):
        if flags & flag:
            while _uint(view, position, 1, f"the header's {what}"):
                position += 1
            position += 1
    if flags & 0x02:
        position += 2
    # an empty deflate stream takes two bytes; crc32 and size modulo 2^32 follow
    _uint(view, position + 2, 8, "the trailer")
    most = _DEFLATE_RATIO * (len(view) - position - 8)
    # the size of the last member modulo 2^32: the whole cannot be less
    last = _uint(view, len(view) - 4, 4, "the trailer")
    if last > most:
        raise MalformedError(f"the trailer says {last} bytes of content, the data hold {most}")
    return Frame(None, 1, True, None, None, (last, most))


def _inspect_zlib(view: Octets) -> Frame:
    method = _uint(view, 0, 1, "the header")
    flags = _uint(view, 1, 1, "the header")
    if method & 0x0F != 8 or method >> 4 > 7 or (method << 8 | flags) % 31:
        raise MalformedError(f"bad header 0x{method:02x}{flags:02x}, not zlib's")
    if flags & 0x20:
        raise MalformedError("needs a preset dictionary, and a chunk carries none")
    _uint(view, 4, 4, "the checksum")
    return Frame(None, 1, True, None, None, (0, _DEFLATE_RATIO * (len(view) - 6)))


def _inspect_blosc(view: Any) -> Frame:
    try:
        header = parse_blosc(view)
        streams = blosc_streams(view, header)
    except InputError as error:
        raise MalformedError(str(error)) from error
    if header.codec in ("zstd", "lz4"):
        inner = zip(
            streams.src_offset.tolist(),
            streams.src_nbytes.tolist(),
            streams.dst_nbytes.tolist(),
            streams.stored_raw.tolist(),
            strict=True,
        )
        for start, nbytes, content, raw in inner:
            if raw:
                continue
            if header.codec == "lz4" and content > _LZ4_RATIO * nbytes:
                raise MalformedError(f"{nbytes} bytes of LZ4 for {content} bytes of a block")
            if header.codec == "zstd":
                stream = inspect_frame("zstd", view[start : start + nbytes])
                if stream.problem:
                    raise MalformedError(f"the stream at byte {start}: {stream.problem}")
                if not stream.content_range[0] <= content <= stream.content_range[1]:
                    raise MalformedError(
                        f"the stream at byte {start} holds {stream.content_range[0]} bytes, "
                        f"its block needs {content}"
                    )
    gpu = blosc_gpu_problem(header)
    return Frame(header.nbytes, 1, False, None, gpu, (header.nbytes, header.nbytes))


_INSPECTORS: dict[str, Callable[[Any], Frame]] = {
    "zstd": _inspect_zstd,
    "lz4": _inspect_lz4,
    "gzip": _inspect_gzip,
    "zlib": _inspect_zlib,
    "blosc": _inspect_blosc,
}


def inspect_frame(kind: str, data: Any) -> Frame:
    """Look at a compressed chunk without decoding it.

    For Zstandard and Blosc the walk reaches the end of the data, so every truncation and every
    trailing byte is seen. LZ4, gzip and zlib can only be checked at their ends: what is wrong
    inside is the decoder's to find.

    Parameters
    ----------
    kind
        One of `KINDS`: ``zstd``, ``lz4``, ``gzip``, ``zlib``, ``blosc``.
    data
        The bytes, bytes-like or a contiguous uint8 NumPy array.

    Raises
    ------
    InputError
        For another `kind`, or data that are not contiguous. Malformed data do not raise; see
        `Frame.problem`.
    """
    if kind not in _INSPECTORS:
        raise InputError(f"compressed chunks of kind {kind!r}; known are {', '.join(KINDS)}")
    return inspect_octets(kind, as_bytes_view(data))


def first_overlap(
    offset: np.ndarray, length: np.ndarray, first: int, stop: int
) -> tuple[int, int] | None:
    """Return the first part of a file that shares bytes with another, or leaves its range.

    A writer gives every inner chunk of a shard bytes of its own; a few that stand for many were
    made to do harm.

    Parameters
    ----------
    offset, length
        Of the parts, uint64, shape (n,), each within the file.
    first, stop
        Where parts may lie.

    Returns
    -------
    Two numbers of parts, the same one twice where it leaves the range; None if all is well.
    """
    outside = np.flatnonzero((offset < first) | (offset + length > stop))
    if outside.size:
        return int(outside[0]), int(outside[0])
    order = np.argsort(offset, kind="stable")
    shared = np.flatnonzero((offset + length)[order][:-1] > offset[order][1:])
    if shared.size:
        return int(order[shared[0]]), int(order[shared[0] + 1])
    return None


def inspect_octets(kind: str, view: Octets) -> Frame:
    """Do the work of `inspect_frame` on anything that can be sliced into bytes.

    All kinds but Blosc take a few short slices only, so that `view` may be a part of a file.
    """
    try:
        return _INSPECTORS[kind](view)
    except MalformedError as error:
        return Frame(None, 0, False, str(error), str(error), (0, 0))


def check_declared(kind: str, data: Any, expected_nbytes: int, where: str) -> Frame:
    """Refuse a chunk that is malformed, or that does not decode to the expected size.

    Parameters
    ----------
    kind, data
        As for `inspect_frame`.
    expected_nbytes
        Size in bytes of the decoded chunk.
    where
        File and chunk, for the message.

    Returns
    -------
    Frame
        What `inspect_frame` found.

    Raises
    ------
    InputError
        Naming `where`, when the data are malformed or declare, or can only hold, another size.
    """
    frame = inspect_frame(kind, data)
    check_frame(frame, kind, expected_nbytes, where)
    return frame


def check_frame(frame: Frame, kind: str, expected_nbytes: int, where: str) -> None:
    """Do the refusing of `check_declared` for a frame that was inspected before."""
    if frame.problem:
        raise InputError(f"{where}: malformed {kind} data: {frame.problem}")
    if frame.content_nbytes is not None and frame.content_nbytes != expected_nbytes:
        raise InputError(
            f"{where}: {kind} data declare {frame.content_nbytes} bytes, "
            f"the chunk has {expected_nbytes}"
        )
    fewest, most = frame.content_range
    if not fewest <= expected_nbytes <= most:
        raise InputError(
            f"{where}: {kind} data hold {fewest} to {most} bytes, the chunk has {expected_nbytes}"
        )
