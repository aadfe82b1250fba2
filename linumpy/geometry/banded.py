"""Products with banded matrices on the CPU, in pieces that stay in a core's cache.

Resampling and differentiating an axis are matrices with a narrow band. A few neighbouring rows
at a time they are small dense products of the part of the input that they touch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

ROWS = 8
"""Output rows that share one product: enough to fill the vector units, few enough to waste
little of it on zeros."""

PIECE_NBYTES = 1 << 19
"""What a pass over data should take at once: it stays in a core's cache, and is long enough
that threads do not queue for the interpreter between passes."""

# Above this many multiplications BLAS wakes threads of its own. The tiles are in threads already,
# and those of BLAS are one team that all callers would queue for.
_SINGLE_THREADED = 1 << 18


@dataclass(frozen=True)
class Band:
    """Some rows of a banded matrix: outputs ``start … stop − 1`` from inputs ``low … high − 1``."""

    start: int
    stop: int
    low: int
    high: int
    weights: np.ndarray


def bands(matrix: np.ndarray, dtype: np.dtype, rows: int = ROWS) -> list[Band]:
    """Cut a matrix of shape (n_out, n_in) into bands of `rows` rows, with weights of `dtype`."""
    out = []
    for start in range(0, len(matrix), rows):
        part = matrix[start : start + rows]
        used = np.flatnonzero(part.any(axis=0))
        low, high = (int(used[0]), int(used[-1]) + 1) if used.size else (0, 0)
        weights = np.ascontiguousarray(part[:, low:high], dtype=dtype)
        out.append(Band(start, start + len(part), low, high, weights))
    return out


def multiply(band: Band, source: np.ndarray, target: np.ndarray) -> None:
    """Set ``target[s] = band @ source[s]`` for each s.

    Parameters
    ----------
    band
        Only its weights count, shape (rows, k).
    source, target
        Shape (stack, k, n) and (stack, rows, n); one of the last two axes of each is contiguous.
    """
    if not band.weights.size:
        target[...] = 0
        return
    width = max(16, _SINGLE_THREADED // band.weights.size)
    for first in range(0, source.shape[2], width):
        columns = slice(first, first + width)
        np.matmul(band.weights, source[:, :, columns], out=target[:, :, columns])


def row_blocks(n_rows: int, row_nbytes: int, nbytes: int = PIECE_NBYTES) -> Iterator[slice]:
    """Cut rows into blocks of about `nbytes`, at least one row each."""
    step = max(1, nbytes // max(1, row_nbytes))
    for first in range(0, n_rows, step):
        yield slice(first, min(first + step, n_rows))
