"""Gaussian smoothing of maps without SciPy, whose import takes longer than the filter.

A GPU waits for the host meanwhile, as Python runs one thread at a time.
"""

from __future__ import annotations

import functools

import numpy as np

from linumpy.geometry.banded import row_blocks

_TRUNCATE_SIGMA = 4.0
_PIECE_NBYTES = 1 << 18


def gaussian_taps(sigma: float) -> np.ndarray:
    """Return the weights of a Gaussian cut at 4 sigma, float64, an odd number, of sum 1."""
    radius = int(_TRUNCATE_SIGMA * sigma + 0.5)
    if radius == 0:
        return np.ones(1)
    taps = np.exp(-0.5 / (sigma * sigma) * np.arange(-radius, radius + 1) ** 2)
    return np.asarray(taps / taps.sum())


@functools.lru_cache(maxsize=64)
def gaussian_matrix(n: int, sigma: float) -> np.ndarray:
    """Return the matrix (n, n) that smooths one axis; beyond the ends there is nothing.

    Read-only, so that what is derived from it may be kept.
    """
    return _banded(n, gaussian_taps(sigma))


@functools.lru_cache(maxsize=64)
def box_matrix(n: int, width: int) -> np.ndarray:
    """Return the matrix (n, n) that sums over a box; beyond the ends there is nothing.

    Parameters
    ----------
    width
        Of the box, an odd number.
    """
    return _banded(n, np.ones(width))


def _banded(n: int, taps: np.ndarray) -> np.ndarray:
    away = np.arange(n) - np.arange(n)[:, None] + len(taps) // 2
    inside = (away >= 0) & (away < len(taps))
    matrix = np.where(inside, taps[np.clip(away, 0, len(taps) - 1)], 0.0)
    matrix.setflags(write=False)
    return matrix


def smooth_map(values: np.ndarray, sigma: float) -> np.ndarray:
    """Smooth a map by a Gaussian; beyond its sides it is mirrored, the outermost pixel twice.

    Sums have the order of ``scipy.ndimage.gaussian_filter``, so that bits are the same.

    Parameters
    ----------
    values
        Map of two axes, floating-point, on the host.
    sigma
        Pixels.

    Returns
    -------
    Map of the same dtype; sums are float64, rounded after each axis.
    """
    out = np.array(values)
    if sigma <= 1e-15 or not out.size:
        return out
    taps = gaussian_taps(sigma)
    radius = len(taps) // 2
    for axis in (0, 1):
        padding = [(0, 0), (0, 0)]
        padding[axis] = (radius, radius)
        padded = np.pad(out.astype(np.float64), padding, mode="symmetric")
        for rows in row_blocks(out.shape[0], 8 * out.shape[1], _PIECE_NBYTES):
            _smooth_rows(padded, taps, axis, rows, out[rows])
    return out


def _smooth_rows(
    padded: np.ndarray, taps: np.ndarray, axis: int, rows: slice, out: np.ndarray
) -> None:
    """Smooth some rows of a map that is `len(taps) - 1` longer than `out` along an axis."""
    n_rows, n_columns = out.shape

    def shifted(by: int) -> np.ndarray:
        if axis == 0:
            return padded[rows.start + by : rows.start + by + n_rows]
        return padded[rows, by : by + n_columns]

    last = len(taps) - 1
    total = shifted(last // 2) * taps[last // 2]
    both = np.empty_like(total)
    for step in range(last // 2):
        np.add(shifted(step), shifted(last - step), out=both)
        both *= taps[step]
        total += both
    out[...] = total
