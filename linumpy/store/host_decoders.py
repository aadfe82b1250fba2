"""Decoders of the host: each fills an array of the expected size, or raises."""

from __future__ import annotations

import os
import zlib
from typing import Any

import numpy as np

_PIECE_NBYTES = 1 << 20


def decode_zstd(payload: memoryview, out: np.ndarray) -> None:
    """Decode Zstandard."""
    from numcodecs.zstd import Zstd

    Zstd().decode(payload, out)


def decode_lz4(payload: memoryview, out: np.ndarray) -> None:
    """Decode LZ4 as numcodecs stores it."""
    from numcodecs.lz4 import LZ4

    LZ4().decode(payload, out)


def decode_blosc(payload: memoryview, out: np.ndarray) -> None:
    """Decode Blosc."""
    from numcodecs import blosc

    blosc.decompress(payload, out)


def _inflate(payload: memoryview, out: np.ndarray, window_bits: int) -> None:
    """Inflate into `out` and no further; gzip may have several members."""
    rest: Any = payload
    filled = 0
    while True:
        inflater = zlib.decompressobj(window_bits)
        part = inflater.decompress(rest, out.nbytes - filled + 1)
        if len(part) > out.nbytes - filled:
            raise ValueError(f"more than the {out.nbytes} bytes of a chunk")
        out[filled : filled + len(part)] = np.frombuffer(part, np.uint8)
        filled += len(part)
        if not inflater.eof:
            raise ValueError("the stream ends too early")
        rest = inflater.unused_data
        if not rest:
            break
    if filled != out.nbytes:
        raise ValueError(f"{filled} bytes, expected {out.nbytes}")


def decode_gzip(payload: memoryview, out: np.ndarray) -> None:
    """Decode gzip of one or several members."""
    _inflate(payload, out, 31)


def decode_zlib(payload: memoryview, out: np.ndarray) -> None:
    """Decode zlib."""
    _inflate(payload, out, 15)


def inflated(file: int, start: int, nbytes: int, window_bits: int, most: int) -> int:
    """Return how many bytes a stream inflates to, no further than a little beyond `most`.

    Parameters
    ----------
    file
        Descriptor of an open file.
    start, nbytes
        Where the stream lies.
    window_bits
        As in `zlib`: 15 for zlib, 31 for gzip.
    """
    inflater = zlib.decompressobj(window_bits)
    found = at = 0
    while at < nbytes and found <= most:
        piece = os.pread(file, min(_PIECE_NBYTES, nbytes - at), start + at)
        if not piece:
            break
        at += len(piece)
        while piece and found <= most:
            try:
                found += len(inflater.decompress(piece, _PIECE_NBYTES))
            except zlib.error:
                # the decoder says better what is wrong, and gets no further
                return found
            piece = inflater.unconsumed_tail
            if inflater.eof:
                # gzip may have several members
                piece = inflater.unused_data
                inflater = zlib.decompressobj(window_bits)
    return found
