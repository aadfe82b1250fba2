"""Split the selection of an array into copies of boxes of chunks.

Everything is computed for all chunks of a request at once, with NumPy; a request of a thousand
chunks costs about a millisecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from linumpy.store.chunk_layout import ChunkLayout


@dataclass(frozen=True)
class Box:
    """A regular selection within one stored object, and where it goes.

    Attributes
    ----------
    start, step, count
        First index, step (at least 1) and number of elements along each axis of the object.
    out_start
        Where the first element goes, for each axis of the object; 0 along axes that the output
        lacks.
    """

    start: tuple[int, ...]
    step: tuple[int, ...]
    count: tuple[int, ...]
    out_start: tuple[int, ...]


@dataclass(frozen=True)
class Copies:
    """Copies from chunks of one stored object, one row a chunk.

    Attributes
    ----------
    chunk
        Place of each chunk in the shard's index (C order); 0 for an object that is one chunk.
    source, count, target
        First element within the chunk, number of elements, first element in the output; shape
        (n_chunks, n_axes). Along an axis every `Box.step`-th element of the chunk is taken.
    """

    chunk: np.ndarray
    source: np.ndarray
    count: np.ndarray
    target: np.ndarray


def box_of(
    chunk_selection: Sequence[Any], out_selection: Sequence[Any], drop_axes: Sequence[int]
) -> Box | None:
    """Read the selections that Zarr hands to a codec pipeline.

    Parameters
    ----------
    chunk_selection, out_selection
        Which elements of the stored object go where; the output has no axis for an integer, nor
        for an axis in `drop_axes`.

    Returns
    -------
    The selection, or None when it is no regular one (index arrays, masks).
    """
    start, step, count, out_start = [], [], [], []
    outs = iter(out_selection if isinstance(out_selection, tuple) else (out_selection,))
    for axis, selection in enumerate(chunk_selection):
        if isinstance(selection, slice):
            if selection.start is None or selection.stop is None:
                return None
            first, stop, stride = selection.start, selection.stop, selection.step or 1
            if stride < 1:
                return None
            n = max(0, -(-(stop - first) // stride))
        elif isinstance(selection, int | np.integer):
            first, stride, n = int(selection), 1, 1
        else:
            return None
        start.append(int(first))
        step.append(int(stride))
        count.append(int(n))
        if not isinstance(selection, slice) or axis in drop_axes:
            out_start.append(0)
            continue
        out = next(outs, None)
        if not isinstance(out, slice) or out.step not in (None, 1):
            return None
        out_start.append(int(out.start or 0))
    return Box(tuple(start), tuple(step), tuple(count), tuple(out_start))


def kept_axes(chunk_selection: Sequence[Any], drop_axes: Sequence[int]) -> tuple[int, ...]:
    """Name the axes of the stored object that the output has."""
    return tuple(
        axis
        for axis, selection in enumerate(chunk_selection)
        if isinstance(selection, slice) and axis not in drop_axes
    )


def copies_of(box: Box, layout: ChunkLayout) -> Copies:
    """Take a box apart into one copy for each chunk that it touches."""
    n_axes = len(box.start)
    columns: list[tuple[np.ndarray, ...]] = []
    for axis in range(n_axes):
        columns.append(
            _along_axis(
                box.start[axis],
                box.step[axis],
                box.count[axis],
                layout.chunk_shape[axis],
                box.out_start[axis],
            )
        )
    sizes = tuple(len(column[0]) for column in columns)
    n = int(np.prod(sizes, dtype=np.int64))
    grid = np.indices(sizes).reshape(n_axes, n)

    def table(which: int) -> np.ndarray:
        result = np.empty((n, n_axes), np.int64)
        for axis in range(n_axes):
            result[:, axis] = columns[axis][which][grid[axis]]
        return result

    index = table(0)
    shape = layout.shard.shape if layout.shard is not None else (1,) * n_axes
    chunk = np.zeros(n, np.int64)
    for axis in range(n_axes):
        chunk = chunk * shape[axis] + index[:, axis]
    return Copies(chunk, table(1), table(2), table(3))


def _along_axis(
    start: int, step: int, count: int, side: int, out_start: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Chunk index, first element in it, number of elements, place in the output; for one axis."""
    if count == 0:
        empty = np.empty(0, np.int64)
        return empty, empty, empty, empty
    last = start + (count - 1) * step
    chunk = np.arange(start // side, last // side + 1, dtype=np.int64)
    # Number of the first selected element that lies in each chunk, and in the chunk after it.
    low = np.maximum(-(-(chunk * side - start) // step), 0)
    high = np.minimum(-(-((chunk + 1) * side - start) // step), count)
    touched = high > low
    chunk, low, high = chunk[touched], low[touched], high[touched]
    return chunk, start + low * step - chunk * side, high - low, out_start + low
