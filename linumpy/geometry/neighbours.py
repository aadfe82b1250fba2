"""Neighbours in the plane: which there are, without comparing all pairs, and what two share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np


def close_pairs(points: np.ndarray, reach: Sequence[float]) -> np.ndarray:
    """List the pairs of points that are less than `reach` apart along both axes.

    Parameters
    ----------
    points
        Shape (n, 2), finite.
    reach
        Along axis 1 and axis 2, in the unit of the points, above 0.

    Returns
    -------
    Shape (pairs, 2): numbers of points, the lower one first, sorted.
    """
    found = [
        np.column_stack([np.full(len(near), number), near])
        for number, near in _neighbours(np.asarray(points, float), np.asarray(reach, float))
        if len(near)
    ]
    if not found:
        return np.zeros((0, 2), int)
    pairs = np.concatenate(found)
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


def _neighbours(points: np.ndarray, reach: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each point with those of higher number near it: they lie in cells that touch its."""
    cells: dict[tuple[int, int], list[int]] = {}
    for number, (i, j) in enumerate(np.floor(points / reach).astype(np.int64).tolist()):
        cells.setdefault((i, j), []).append(number)
    for (i, j), members in cells.items():
        around = np.array(
            [n for k in (i - 1, i, i + 1) for m in (j - 1, j, j + 1) for n in cells.get((k, m), ())]
        )
        for number in members:
            later = around[around > number]
            away = np.abs(points[later] - points[number])
            yield number, later[(away < reach).all(axis=1)]


def boxes_by_block(
    corners: np.ndarray, sides: Sequence[int], block: int
) -> dict[tuple[int, int], list[int]]:
    """Return the numbers of the boxes that touch each square of a lattice, by its indices.

    Parameters
    ----------
    corners
        Low corners of the boxes, shape (n, 2).
    sides
        Of all boxes, along axis 1 and axis 2.
    block
        Side of a square.
    """
    first = np.floor(corners / block).astype(int)
    stop = np.ceil((corners + np.asarray(sides)) / block).astype(int)
    found: dict[tuple[int, int], list[int]] = {}
    for number, (low, high) in enumerate(zip(first.tolist(), stop.tolist(), strict=True)):
        for i in range(low[0], high[0]):
            for j in range(low[1], high[1]):
                found.setdefault((i, j), []).append(number)
    return found


def shared_windows(
    shape: Sequence[int], shift: Sequence[int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return where two equal arrays overlap when the second is moved by a shift.

    Parameters
    ----------
    shape, shift
        Samples along each axis; a shift may be of either sign, and beyond the array.

    Returns
    -------
    Slices of the first array and of the second, of equal lengths; of length 0 without an overlap.
    """
    moves = list(zip(shape, shift, strict=True))
    here = tuple(slice(max(0, d), max(0, n + min(0, d))) for n, d in moves)
    there = tuple(slice(max(0, -d), max(0, n - max(0, d))) for n, d in moves)
    return here, there
