"""Write shards with chunks in order, so that equal voxels make equal files.

zarrs puts the chunks of a shard where its threads are ready with them, each time elsewhere. Here as
many threads encode them, and they are joined in the order of the shard's index.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from linumpy.store.chunk_layout import ChunkLayout, UnsupportedLayout, layout_of
from linumpy.store.host_codec import encode_chunk, encoder, join_chunks

_JOBS_A_THREAD = 8
"""At least so many are encoded at once, so that threads end together."""

_SMALL_CHUNK_NBYTES = 1 << 15
_THREAD_NBYTES = 1 << 23
"""Decoded bytes that one more thread is worth where chunks are smaller than that: sixteen threads
that share a few MB of them wait for each other's interpreter longer than one takes for all."""

_JOB_NBYTES = 1 << 18
"""Least decoded bytes of a job: to hand one to a thread takes as long as to encode some kB."""


def ordered_layout(metadata: Any, spec: Any) -> ChunkLayout | None:
    """Return how an array's shards are stored; None for what `encode_shards` does not make.

    Parameters
    ----------
    metadata
        Zarr's, of the array.
    spec
        Zarr's ``ArraySpec`` of a shard.
    """
    if metadata.zarr_format == 2:
        return None
    try:
        layout = layout_of(metadata.codecs, spec)
    except UnsupportedLayout:
        return None
    if layout.shard is None or layout.byteswapped:
        return None
    in_c_order = np.empty(layout.chunk_shape, layout.dtype).strides
    return layout if layout.strides == in_c_order else None


def shards_together(layout: ChunkLayout) -> int:
    """Return how many shards keep all threads busy when they are encoded at once."""
    assert layout.shard is not None
    return -(-_JOBS_A_THREAD * n_threads() * _chunks_a_job(layout) // layout.shard.n_chunks)


def _chunks_a_job(layout: ChunkLayout) -> int:
    return max(1, _JOB_NBYTES // layout.chunk_nbytes)


def encode_shards(
    boxes: Sequence[np.ndarray], layout: ChunkLayout, *, keep_empty: bool
) -> list[bytes | None]:
    """Encode shards on all cores.

    Parameters
    ----------
    boxes
        What each shard holds from its first voxel on, of the layout's data type; where a box is
        smaller than the shard, at the array's end, the rest is fill value.
    layout
        Of `ordered_layout`.
    keep_empty
        Whether chunks that hold the fill value alone are stored.

    Returns
    -------
    The bytes of each shard, index included; None for one of which nothing is stored.
    """
    assert layout.shard is not None
    shape = layout.shard.shape
    codec = encoder(layout)
    fill = np.frombuffer(layout.fill, layout.dtype)[0]
    empty = _bytes_of(np.full(layout.chunk_shape, fill))

    def encode(box: np.ndarray, place: tuple[int, ...]) -> bytes | None:
        sides = zip(place, layout.chunk_shape, strict=True)
        part = box[tuple(slice(k * side, (k + 1) * side) for k, side in sides)]
        if part.shape != layout.chunk_shape:
            whole = np.full(layout.chunk_shape, fill)
            whole[tuple(map(slice, part.shape))] = part
            part = whole
        data = _bytes_of(part)
        if not keep_empty and np.array_equal(data, empty):
            return None
        return encode_chunk(data, layout, codec)

    def encode_some(box: np.ndarray, some: list[tuple[int, ...]]) -> list[bytes | None]:
        return [encode(box, place) for place in some]

    places, share = list(np.ndindex(shape)), _chunks_a_job(layout)
    jobs = [places[first : first + share] for first in range(0, len(places), share)]
    threads = min(n_threads(), len(jobs) * len(boxes))
    if layout.chunk_nbytes < _SMALL_CHUNK_NBYTES:
        threads = min(threads, 1 + sum(box.nbytes for box in boxes) // _THREAD_NBYTES)
    if threads <= 1:
        return [join_chunks(encode_some(box, places), layout) for box in boxes]
    with ThreadPoolExecutor(threads, "encode") as pool:
        shards = [[pool.submit(encode_some, box, some) for some in jobs] for box in boxes]
        return [
            join_chunks([chunk for job in shard for chunk in job.result()], layout)
            for shard in shards
        ]


def n_threads() -> int:
    """Return the cores that this process may use, or the number that zarrs is configured with."""
    told = os.environ.get("RAYON_NUM_THREADS", "")
    return (int(told) if told.isdecimal() else 0) or len(os.sched_getaffinity(0))


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """Return an array's bytes in C order, uint8."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
