"""Fully developed speckle: circular complex Gaussian fields of unit mean power.

Real and imaginary part lie along a leading axis of 2 with variance 1/2 each. The other axes are
in storage order: (B-scan, A-line, depth).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from linumpy.phantom.lattice import generator, hann_taps, scattered_take, white_box

_HALF = np.float32(np.sqrt(0.5))


def gather_depth(values: np.ndarray, start: np.ndarray, count: int) -> np.ndarray:
    """Return `count` consecutive depth samples of each A-line from its own start.

    Parameters
    ----------
    values
        (..., n2, n1, depth)
    start
        First sample of each A-line, int (n2, n1).
    count
        Samples to take.
    """
    windows = sliding_window_view(values, count, axis=-1)
    rows, columns = np.ogrid[: start.shape[0], : start.shape[1]]
    return np.asarray(windows[..., rows, columns, start, :])


def _filter(values: np.ndarray, axis: int, weights: Sequence[float] | np.ndarray) -> np.ndarray:
    """Correlate along `axis` with a few weights, keeping whole overlaps only."""
    n_out = values.shape[axis] - len(weights) + 1
    index: list[slice] = [slice(None)] * values.ndim
    out: np.ndarray | None = None
    part: np.ndarray | None = None
    for tap, weight in enumerate(weights):
        if weight == 0 and (out is not None or tap < len(weights) - 1):
            continue
        index[axis] = slice(tap, tap + n_out)
        if out is None:
            out = values[tuple(index)] * np.float32(weight)
            part = np.empty_like(out)
        else:
            out += np.multiply(values[tuple(index)], np.float32(weight), out=part)
    assert out is not None
    return out


def fixed_speckle(
    key: np.ndarray,
    row: float,
    n_rows: int,
    column: float,
    n_columns: int,
    depth: np.ndarray,
    n_depth: int,
    radii: tuple[float, float],
) -> np.ndarray:
    """Return the speckle that is fixed in the tissue, at the samples of a tile.

    Positions are in lattice steps; samples are one step apart along each axis, so that one set
    of weights serves an axis. Depth starts where each A-line starts, with its own weights.

    Parameters
    ----------
    key
        Key of the field.
    row, n_rows
        Position of the first B-scan along axis 2, and their number.
    column, n_columns
        Position of the first A-line along axis 1, and their number.
    depth, n_depth
        Position of the first sample of each A-line (n_rows, n_columns), and their number.
    radii
        Half width of the kernel (lateral, axial), lattice steps, ≥ 1.

    Returns
    -------
    numpy.ndarray
        float32 (2, n_rows, n_columns, n_depth), mean power 1.
    """
    row_first, row_weights = hann_taps(np.array(row), radii[0])
    column_first, column_weights = hann_taps(np.array(column), radii[0])
    depth_first, depth_weights = hann_taps(depth, radii[1])
    n_taps = depth_weights.shape[-1]
    low = int(depth_first.min())
    field = white_box(
        key,
        (int(row_first), int(column_first), low),
        (
            n_rows + len(row_weights) - 1,
            n_columns + len(column_weights) - 1,
            int(depth_first.max()) - low + n_taps + n_depth - 1,
        ),
        components=2,
    )
    field = _filter(field, 1, row_weights * _HALF)
    field = _filter(field, 2, column_weights)
    return _read_depth(field, depth_first - low, depth_weights, n_depth)


def scattered_speckle(
    key: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    depth: np.ndarray,
    n_depth: int,
    radii: tuple[float, float],
) -> np.ndarray:
    """Return the speckle of `fixed_speckle` at A-lines that form no grid along the lattice.

    Parameters
    ----------
    key
        Key of the field.
    rows, columns
        Position of each A-line along axis 2 and axis 1, (n2, n1), lattice steps.
    depth, n_depth, radii
        See `fixed_speckle`.

    Returns
    -------
    numpy.ndarray
        float32 (2, n2, n1, n_depth), mean power 1.
    """
    lateral = [hann_taps(position, radii[0]) for position in (rows, columns)]
    depth_first, depth_weights = hann_taps(depth, radii[1])
    low = [int(first.min()) for first in (lateral[0][0], lateral[1][0], depth_first)]
    ends = [int(first.max()) + weights.shape[-1] for first, weights in lateral]
    ends.append(int(depth_first.max()) + depth_weights.shape[-1] + n_depth - 1)
    field = white_box(
        key,
        (low[0], low[1], low[2]),
        (ends[0] - low[0], ends[1] - low[1], ends[2] - low[2]),
        components=2,
    )
    (row_first, row_weights), (column_first, column_weights) = lateral
    along_rows = (row_first - low[0], row_weights * _HALF)
    along_columns = (column_first - low[1], column_weights)
    field = np.stack([scattered_take(part, along_rows, along_columns) for part in field])
    return _read_depth(field, depth_first - low[2], depth_weights, n_depth)


def _read_depth(
    field: np.ndarray, first: np.ndarray, depth_weights: np.ndarray, n_depth: int
) -> np.ndarray:
    """Return `n_depth` samples of each A-line from its own place in depth."""
    n_taps = depth_weights.shape[-1]
    field = gather_depth(field, first, n_depth + n_taps - 1)
    out = field[..., :n_depth] * depth_weights[..., :1]
    part = np.empty_like(out)
    for tap in range(1, n_taps):
        weight = depth_weights[..., tap : tap + 1]
        out += np.multiply(field[..., tap : tap + n_depth], weight, out=part)
    return out


def fresh_speckle(
    key: np.ndarray,
    first_row: int,
    n_rows: int,
    n_columns: int,
    n_depth: int,
    radii: tuple[float, float],
) -> np.ndarray:
    """Return the speckle of one visit, of the same grain as the fixed one.

    Every B-scan has its own stream, so that a tile comes out the same in one piece or in several.

    Parameters
    ----------
    key
        Key of the visit.
    first_row, n_rows, n_columns, n_depth
        First B-scan and the numbers of B-scans, A-lines and samples.
    radii
        Half width of the kernel (lateral, axial), samples, ≥ 1.

    Returns
    -------
    numpy.ndarray
        float32 (2, n_rows, n_columns, n_depth), mean power 1.
    """
    lateral_first, lateral = hann_taps(np.array(0.0), radii[0])
    _, axial = hann_taps(np.array(0.0), radii[1])
    lateral, axial = (np.trim_zeros(w) for w in (lateral, axial))
    shape = (n_columns + len(lateral) - 1, n_depth + len(axial) - 1)
    field = np.empty((2, n_rows + len(lateral) - 1, *shape), dtype=np.float32)
    draw = np.empty((2, *shape), dtype=np.float32)
    for index in range(field.shape[1]):
        row = first_row + index + int(lateral_first)
        generator(key, (row, 0, 0)).standard_normal(out=draw, dtype=np.float32)
        field[:, index] = draw
    field = _filter(field, 1, lateral * _HALF)
    field = _filter(field, 2, lateral)
    return _filter(field, 3, axial)


def detector_noise(
    key: np.ndarray, first_row: int, n_rows: int, n_columns: int, n_depth: int
) -> np.ndarray:
    """Return white circular noise of unit mean power, float32 (2, n_rows, n_columns, n_depth)."""
    out = np.empty((2, n_rows, n_columns, n_depth), dtype=np.float32)
    draw = np.empty((2, n_columns, n_depth), dtype=np.float32)
    for index in range(n_rows):
        # The second counter word keeps these numbers apart from those of `fresh_speckle`.
        generator(key, (first_row + index, 1, 0)).standard_normal(out=draw, dtype=np.float32)
        np.multiply(draw, _HALF, out=out[:, index])
    return out
