"""Headers of compressed chunks, and the host's decoders behind them.

The first byte chooses the format, the second the size that the chunk is to have; the rest is the
chunk. What is found without decoding must hold for what a decoder makes of it.
"""

import zlib

import numpy as np

from linumpy.store.blosc_frames import blosc_streams, parse_blosc
from linumpy.store.chunk_layout import ChunkLayout
from linumpy.store.frames import KINDS, inspect_frame
from linumpy.store.host_codec import decode_chunk
from tests.faults.fuzz.common import survive

SIZES = (0, 1, 4, 64, 300, 4096, 65536, 1 << 20)
MOST = 1 << 22


def layout(kind: str, nbytes: int, *, has_crc32c: bool = False) -> ChunkLayout:
    return ChunkLayout((nbytes,), np.dtype("u1"), False, (1,), kind, None, has_crc32c, b"\0", None)


def one(data: bytes) -> None:
    if len(data) < 2:
        return
    kind, size, chunk = KINDS[data[0] % len(KINDS)], SIZES[data[1] % len(SIZES)], data[2:]
    frame = inspect_frame(kind, chunk)
    fewest, most = frame.content_range
    assert fewest >= 0 and (fewest <= most or kind == "gzip")
    if frame.problem is None:
        content = frame.content_nbytes
        assert content is None or fewest <= content <= most
    if kind == "blosc":
        header = survive(lambda: parse_blosc(chunk))
        if header is not None:
            survive(lambda: blosc_streams(chunk, header))
    decoded = survive(lambda: decode_chunk(chunk, layout(kind, size), "a chunk"))
    assert decoded is None or decoded.nbytes == size
    # A decoder that needs no such check is asked for any size.
    if kind == "zlib" and frame.problem is None:
        try:
            content = len(zlib.decompressobj().decompress(chunk, MOST))
        except zlib.error:
            return
        assert content <= most
