"""Read and validate the headers of compressed chunks: zstd, LZ4, gzip, zlib.

A decoder on the device takes malformed input as a licence to do anything, and decoders on the
host allocate whatever a header declares. So every compressed chunk is walked first, by the
function that `linumpy.store.codecs` names for its format, without decoding it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from linumpy.core.errors import InputError
from linumpy.store.blosc_frames import (
    BloscHeader,
    BloscStreams,
    as_bytes_view,
    blosc_streams,
    parse_blosc,
)
from linumpy.store.codecs import CODECS, KINDS
from linumpy.store.frame_walks import (
    ZSTD_HEADER_LIMIT,
    Frame,
    MalformedError,
    Octets,
    ZstdHeader,
    zstd_header,
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


def inspect_frame(kind: str, data: Any) -> Frame:
    """Inspect a compressed chunk without decoding it.

    For Zstandard and Blosc the walk reaches the end of the data, so every truncation and every
    trailing byte is seen. LZ4, gzip and zlib can only be checked at their ends: what is wrong
    inside is the decoder's to find.

    Parameters
    ----------
    kind
        One of `KINDS`, such as ``zstd``.
    data
        The bytes, bytes-like or a contiguous uint8 NumPy array.

    Raises
    ------
    InputError
        For another `kind`, or data that are not contiguous. Malformed data do not raise; see
        `Frame.problem`.
    """
    if kind not in CODECS:
        raise InputError(f"compressed chunks of kind {kind!r}; known are {', '.join(KINDS)}")
    return inspect_octets(kind, as_bytes_view(data))


def first_overlap(
    offset: np.ndarray, length: np.ndarray, first: int, stop: int
) -> tuple[int, int] | None:
    """Return the first part of a file that shares bytes with another, or leaves its range.

    A writer gives every inner chunk of a shard bytes of its own; a few shared by many are
    malicious.

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
        return CODECS[kind].inspect(view)
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
