"""Read plan: which bytes of which objects become which elements of the output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from linumpy.core.errors import InputError
from linumpy.gpu.objects import StoredObject
from linumpy.gpu.requests import Box, copies_of
from linumpy.store.chunk_layout import ChunkLayout
from linumpy.store.shards import MISSING, read_index


@dataclass(frozen=True)
class ReadItem:
    """A regular selection of one stored object.

    Attributes
    ----------
    stored, box
        The object, and what of it is wanted.
    base
        Byte of the output from which `box.out_start` counts.
    """

    stored: StoredObject
    box: Box
    base: int = 0


@dataclass(frozen=True)
class ReadPlan:
    """All copies of a request, one row a chunk.

    Attributes
    ----------
    objects
        The stored objects.
    which, chunk
        Object of each row, and the chunk's place in it; shape (n,).
    offset, nbytes
        The chunk's stored bytes, shape (n,); both 0 for a chunk that was never written.
    present
        Whether the chunk was written.
    source, target
        First byte to take of the decoded chunk, and where it goes in the output; shape (n,).
    count
        Elements along each axis of the object, shape (n, n_axes).
    source_strides, target_strides
        Bytes from one taken element to the next, in the decoded chunk and in the output.
    """

    objects: Sequence[StoredObject]
    which: np.ndarray
    chunk: np.ndarray
    offset: np.ndarray
    nbytes: np.ndarray
    present: np.ndarray
    source: np.ndarray
    target: np.ndarray
    count: np.ndarray
    source_strides: tuple[int, ...]
    target_strides: tuple[int, ...]

    def name(self, row: int) -> str:
        """Name a chunk for messages."""
        name = self.objects[self.which[row]].name
        return f"{name}: inner chunk {self.chunk[row]}" if self.chunk[row] else f"{name}: chunk 0"


def plan_read(
    items: Sequence[ReadItem], layout: ChunkLayout, target_strides: Sequence[int]
) -> ReadPlan:
    """Look up what a request needs; reads sizes of objects and indexes of shards, no chunk.

    Parameters
    ----------
    items
        Selections, all with the same steps.
    layout
        How the objects' chunks are stored.
    target_strides
        Bytes from one element of the output to the next along each axis of an object; any number
        along axes that the output lacks.

    Raises
    ------
    InputError
        When a shard is truncated, its index is corrupt, or an entry is longer than any chunk.
    """
    n_axes = len(layout.chunk_shape)
    steps = np.array(items[0].box.step if items else (1,) * n_axes, np.int64)
    strides = np.array(layout.strides, np.int64)
    columns: dict[str, list[np.ndarray]] = {
        name: [] for name in ("which", "chunk", "offset", "nbytes", "source", "target", "count")
    }
    for number, item in enumerate(items):
        copies = copies_of(item.box, layout)
        offset, nbytes = _stored_ranges(item.stored, layout)
        columns["which"].append(np.full(len(copies.chunk), number, np.int64))
        columns["chunk"].append(copies.chunk)
        columns["offset"].append(offset[copies.chunk])
        columns["nbytes"].append(nbytes[copies.chunk])
        columns["source"].append(copies.source @ strides)
        columns["target"].append(item.base + copies.target @ np.array(target_strides, np.int64))
        columns["count"].append(copies.count)
    joined = {
        name: np.concatenate(parts) if parts else np.empty(0, np.int64)
        for name, parts in columns.items()
    }
    present = joined["nbytes"] >= 0
    return ReadPlan(
        objects=[item.stored for item in items],
        present=present,
        source_strides=tuple(int(s) for s in strides * steps),
        target_strides=tuple(int(s) for s in target_strides),
        **joined,
    )


def _stored_ranges(stored: StoredObject, layout: ChunkLayout) -> tuple[np.ndarray, np.ndarray]:
    """Offset and length of every chunk of an object, int64; length −1 if never written."""
    size = stored.size()
    n_chunks = 1 if layout.shard is None else layout.shard.n_chunks
    if size is None:
        return np.zeros(n_chunks, np.int64), np.full(n_chunks, -1, np.int64)
    if layout.shard is None:
        offset, length = np.zeros(1, np.int64), np.array([size], np.int64)
    else:
        _, table = read_index(stored.read, size, layout.shard, stored.name)
        raw_offset, raw_length = table.reshape(-1, 2).T
        missing = raw_offset == MISSING
        offset = np.where(missing, 0, raw_offset).astype(np.int64)
        length = np.where(missing, 0, raw_length).astype(np.int64)
        length[missing] = -1
    # No compressor makes a chunk this much longer; such an entry would cost memory for nothing.
    limit = 2 * layout.chunk_nbytes + 4096
    if (length > limit).any():
        chunk = int(np.flatnonzero(length > limit)[0])
        raise InputError(
            f"{stored.name}: chunk {chunk} has {length[chunk]} stored bytes, "
            f"expected at most {limit} for {layout.chunk_nbytes} decoded ones"
        )
    return offset, length


def batches(plan: ReadPlan, layout: ChunkLayout, batch_nbytes: int) -> Iterator[np.ndarray]:
    """Yield rows of the chunks to decode, in the order of the files, so many bytes at a time."""
    rows = np.flatnonzero(plan.present)
    rows = rows[np.lexsort((plan.offset[rows], plan.which[rows]))]
    per_batch = max(1, batch_nbytes // max(1, layout.chunk_nbytes))
    for first in range(0, len(rows), per_batch):
        yield rows[first : first + per_batch]


def element_width(
    itemsize: int, counts: np.ndarray, strides: np.ndarray, addresses: Sequence[np.ndarray]
) -> int:
    """Choose the widest element, up to 16 bytes, in which boxes can be copied.

    Rows that are contiguous on both sides may be copied in units of several elements, if all
    lengths, strides and addresses allow it.

    Parameters
    ----------
    itemsize
        Bytes of an element.
    counts
        Elements along each axis, shape (n, n_axes).
    strides
        Byte strides of both sides, shape (2, n_axes).
    addresses
        First bytes of all boxes.
    """
    if (strides[:, -1] != itemsize).any():
        return itemsize
    together = np.bitwise_or.reduce(counts[:, -1] * itemsize) if len(counts) else 0
    for numbers in (*addresses, strides[:, :-1].ravel()):
        together |= np.bitwise_or.reduce(numbers) if len(numbers) else 0
    width = 16
    while width > itemsize and int(together) % width:
        width //= 2
    return width
