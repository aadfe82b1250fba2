"""Walk the structure of compressed chunks of each format before decoding.

A decoder on the device takes malformed input as a licence to do anything, and decoders on the
host allocate whatever a header declares. So every compressed chunk is walked here first: pure
Python over the few bytes that give the structure, no decoding, and no allocation whose size
comes from the data.

Formats: Zstandard frames (RFC 8878), the LZ4 layout of numcodecs (little-endian size, then one
raw block), gzip (RFC 1952) and zlib (RFC 1950). Blosc 1 has its own module,
`linumpy.store.blosc_frames`, and is reached from here as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from linumpy.core.errors import InputError
from linumpy.store.blosc_frames import (
    blosc_gpu_problem,
    blosc_streams,
    parse_blosc,
)

ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SKIPPABLE = 0x184D2A50  # the low four bits are free
_ZSTD_BLOCK_LIMIT = 128 << 10
_ZSTD_WINDOW_LOG_LIMIT = 31  # what the reference decoder takes on a 64-bit machine
_ZSTD_ID_NBYTES = (0, 1, 2, 4)
_ZSTD_SIZE_NBYTES = (0, 2, 4, 8)
ZSTD_HEADER_LIMIT = 18
"""Bytes of the longest Zstandard frame header."""

# The most bytes that one compressed byte can hold.
_LZ4_RATIO = 255
_DEFLATE_RATIO = 1032


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


def inspect_zstd(view: Octets) -> Frame:
    """Walk all frames of a Zstandard chunk."""
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


def inspect_lz4(view: Octets) -> Frame:
    """Check the size before the only block of an LZ4 chunk of numcodecs."""
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


def inspect_gzip(view: Octets) -> Frame:
    """Check the header and trailer of a gzip chunk."""
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


def inspect_zlib(view: Octets) -> Frame:
    """Check the header of a zlib chunk."""
    method = _uint(view, 0, 1, "the header")
    flags = _uint(view, 1, 1, "the header")
    if method & 0x0F != 8 or method >> 4 > 7 or (method << 8 | flags) % 31:
        raise MalformedError(f"bad header 0x{method:02x}{flags:02x}, not zlib's")
    if flags & 0x20:
        raise MalformedError("needs a preset dictionary, and a chunk carries none")
    _uint(view, 4, 4, "the checksum")
    return Frame(None, 1, True, None, None, (0, _DEFLATE_RATIO * (len(view) - 6)))


def inspect_blosc(view: Any) -> Frame:
    """Check the header and all streams of a Blosc chunk."""
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
                try:
                    stream = inspect_zstd(view[start : start + nbytes])
                except MalformedError as error:
                    raise MalformedError(f"the stream at byte {start}: {error}") from error
                if not stream.content_range[0] <= content <= stream.content_range[1]:
                    raise MalformedError(
                        f"the stream at byte {start} holds {stream.content_range[0]} bytes, "
                        f"its block needs {content}"
                    )
    gpu = blosc_gpu_problem(header)
    return Frame(header.nbytes, 1, False, None, gpu, (header.nbytes, header.nbytes))
