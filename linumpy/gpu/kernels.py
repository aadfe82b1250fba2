"""CUDA kernels of device reads and writes: calls of ``kernels.cu``.

All of them take one table for a whole batch, so that a request of thousands of chunks costs a
handful of launches.
"""

from __future__ import annotations

import functools
from typing import Any

from linumpy.core.cuda_kernels import load_kernel

FIT, LEFT_TO_HOST, MALFORMED, BAD_CHECKSUM, OTHER_SIZE = range(5)
"""What is known of a chunk before it is decoded."""


_kernel = functools.partial(load_kernel, __package__, "kernels.cu")


def copy_bytes(source: Any, target: Any, nbytes: Any, stream: Any, *, blocks: int = 8) -> None:
    """Start copying chunks of bytes; arguments are uint64 CuPy arrays of addresses and sizes."""
    n = len(source)
    if n:
        grid = (blocks, min(n, 65535))
        _kernel("copy_bytes")(grid, (256,), (source, target, nbytes, _int32(n)), stream=stream)


def copy_boxes(
    source: Any,
    target: Any,
    count: Any,
    geometry: Any,
    width: int,
    fill: bytes,
    swap: int,
    stream: Any,
) -> None:
    """Start copying boxes of elements between chunks and an array.

    Parameters
    ----------
    source, target
        Addresses of each box's first element, uint64, shape (n,); source 0 means the fill value.
    count
        Elements along each axis, int64, shape (n, n_axes).
    geometry
        Byte strides of the source and of the target, int64, shape (2, n_axes).
    width
        Bytes of an element: 1, 2, 4, 8 or 16.
    fill
        Bytes of the fill value, `width` of them.
    swap
        Unit of bytes to reverse on the way, 0 for none.
    stream
        The CuPy stream on which the work is queued.
    """
    import numpy as np

    n, n_axes = count.shape
    if not n:
        return
    low, high = np.frombuffer(fill.ljust(16, b"\0"), np.uint64)
    arguments = (
        source,
        target,
        count,
        geometry,
        _int32(n_axes),
        low,
        high,
        _int32(swap),
        _int32(n),
    )
    _kernel(f"copy_boxes_{width}")((32, min(n, 65535)), (32, 8), arguments, stream=stream)


def differs_from_fill(
    chunks: Any,
    n_chunks: int,
    pitch: int,
    n_elements: int,
    itemsize: int,
    fill: bytes,
    out: Any,
    stream: Any,
) -> None:
    """Start finding which chunks hold anything but the fill value, bit for bit.

    `chunks` holds `n_chunks` times `n_elements` elements, each chunk `pitch` bytes after the one
    before; `out` is int32, shape (n_chunks,), zero before.
    """
    import numpy as np

    low, high = np.frombuffer(fill.ljust(16, b"\0"), np.uint64)
    _kernel("differs_from_fill")(
        (8, min(n_chunks, 65535)),
        (256,),
        (
            chunks,
            np.uint64(pitch),
            np.uint64(n_elements),
            _int32(itemsize),
            low,
            high,
            out,
            _int32(n_chunks),
        ),
        stream=stream,
    )


def compare_crc(trailer: Any, computed: Any, verdict: Any, stream: Any) -> None:
    """Start comparing stored checksums, at the addresses `trailer`, with computed ones."""
    n = len(trailer)
    arguments = (trailer, computed, verdict, _int32(n))
    _kernel("compare_crc")((-(-n // 128),), (128,), arguments, stream=stream)


def judge_zstd(
    source: Any,
    nbytes: Any,
    expected: int,
    harmless: Any,
    content: Any,
    verdict: Any,
    stream: Any,
) -> None:
    """Start judging zstd frames; those that are not fit are replaced by `harmless`.

    Parameters
    ----------
    source, nbytes
        Addresses and sizes of the frames, uint64; changed for frames that are not fit.
    expected
        Bytes that each frame must declare.
    harmless
        Bytes of a frame that decodes to nothing, uint8, on a multiple of 16.
    content
        Filled with the declared sizes, uint64.
    verdict
        Filled with what is known of each frame, int32; `FIT` before where no checksum failed.
    stream
        The CuPy stream on which the work is queued.
    """
    import numpy as np

    n = len(source)
    arguments = (
        source,
        nbytes,
        np.uint64(expected),
        np.uint64(harmless.data.ptr),
        np.uint64(harmless.nbytes),
        content,
        verdict,
        _int32(n),
    )
    _kernel("judge_zstd")((-(-n // 64),), (64,), arguments, stream=stream)


def zstd_checksum(
    frame: Any, nbytes: Any, content: Any, content_nbytes: int, good: Any, stream: Any
) -> None:
    """Start checking zstd frames' content checksums, or appending them if `good` is None.

    `frame`, `nbytes` and `content` are uint64 arrays: addresses and sizes of the frames, and
    addresses of what they decode to, multiples of 8. `good` (int32) becomes 1 where a frame has no
    checksum or one that fits.
    """
    import numpy as np

    n = len(frame)
    seal = good is None
    _kernel("zstd_checksum")(
        (-(-4 * n // 128),),
        (128,),
        (
            frame,
            nbytes,
            content,
            np.uint64(content_nbytes),
            _int32(seal),
            nbytes if seal else good,
            _int32(n),
        ),
        stream=stream,
    )


JUDGED_HEADS = {"lz4": 1, "gzip": 2, "zlib": 3}


def judge_head(
    kind: str,
    source: Any,
    nbytes: Any,
    expected: int,
    harmless: Any,
    body: Any,
    body_nbytes: Any,
    content: Any,
    verdict: Any,
    stream: Any,
) -> None:
    """Start judging chunks of a format in `JUDGED_HEADS` by their first bytes.

    Parameters
    ----------
    kind
        The format.
    source, nbytes
        Addresses and sizes of the chunks, uint64.
    expected
        Decoded bytes of a chunk.
    harmless
        Bytes that decode to nothing, uint8, on a multiple of 16.
    body, body_nbytes
        What the decoder is to get of each chunk, uint64; changed for chunks that are not fit.
    content, verdict, stream
        As in `judge_zstd`.
    """
    import numpy as np

    n = len(source)
    arguments = (
        _int32(JUDGED_HEADS[kind]),
        source,
        nbytes,
        np.uint64(expected),
        np.uint64(harmless.data.ptr),
        np.uint64(harmless.nbytes),
        body,
        body_nbytes,
        content,
        verdict,
        _int32(n),
    )
    _kernel("judge_head")((-(-n // 128),), (128,), arguments, stream=stream)


def judge_lz4(
    source: Any,
    nbytes: Any,
    wanted: Any,
    harmless: Any,
    chunk: Any,
    verdict: Any,
    stream: Any,
) -> None:
    """Start judging LZ4 blocks; those that are not fit are replaced by `harmless`.

    `wanted` (uint64) is what each must decode to, 0 for a block that is not judged; `chunk` (int64)
    is the chunk whose verdict a malformed block becomes. The others are as in `judge_zstd`.
    """
    import numpy as np

    n = len(source)
    arguments = (
        source,
        nbytes,
        wanted,
        np.uint64(harmless.data.ptr),
        np.uint64(harmless.nbytes),
        chunk,
        verdict,
        _int32(n),
    )
    _kernel("judge_lz4")((-(-n // 32),), (32,), arguments, stream=stream)


def check_gzip(
    source: Any, nbytes: Any, computed: Any, content_nbytes: int, good: Any, stream: Any
) -> None:
    """Start comparing gzip members' CRC-32 and size with those of their content; see the kernel."""
    import numpy as np

    n = len(source)
    arguments = (source, nbytes, computed, np.uint64(content_nbytes), good, _int32(n))
    _kernel("check_gzip")((-(-n // 128),), (128,), arguments, stream=stream)


def check_adler(
    source: Any, nbytes: Any, content: Any, content_nbytes: int, good: Any, stream: Any
) -> None:
    """Start comparing zlib streams' Adler-32 with that of their content; see the kernel."""
    import numpy as np

    n = len(source)
    arguments = (source, nbytes, content, np.uint64(content_nbytes), good, _int32(n))
    _kernel("check_adler")((min(n, 65535),), (256,), arguments, stream=stream)


def blosc_streams(
    blocks: Any, slots: Any, harmless: Any, found: Any, verdict: Any, stream: Any
) -> None:
    """Start finding the streams of Blosc blocks; see the kernel for the columns.

    Parameters
    ----------
    blocks
        Address and size of the block's chunk, the chunk's number, the block's, first slot, splits
        and number of blocks; int64, shape (7, n_blocks).
    slots
        Target, its size, and room for compressed bytes of each stream; int64, shape (3, n_slots).
    harmless
        Bytes that decode to nothing, uint8.
    found
        Filled: from, to, bytes to copy, source and size for nvCOMP, and what it must make of it;
        uint64, shape (6, n_slots).
    verdict
        What is known of each chunk; `MALFORMED` where a stream runs out of it.
    stream
        The CuPy stream on which the work is queued.
    """
    import numpy as np

    n = blocks.shape[1]
    arguments = (
        *blocks,
        *slots,
        np.uint64(harmless.data.ptr),
        np.uint64(harmless.nbytes),
        *found,
        verdict,
        _int32(n),
    )
    _kernel("blosc_streams")((-(-n // 64),), (64,), arguments, stream=stream)


def unshuffle(source: Any, target: Any, nbytes: Any, mode: Any, item: int, stream: Any) -> None:
    """Start undoing the shuffle of Blosc blocks: mode 0 none, 1 bytes, 2 bits; int64."""
    import numpy as np

    n = len(source)
    arguments = (source, target, nbytes, mode, np.uint32(item), _int32(n))
    _kernel("unshuffle")((8, min(n, 65535)), (256,), arguments, stream=stream)


def _int32(value: int) -> Any:
    import numpy as np

    return np.int32(value)
