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
        given, out = out, np.empty_like(out)
        place = np.pad(np.arange(out.shape[axis]), radius, mode="symmetric")
        # Only what a core's cache holds is copied and converted at a time.
        for rows in row_blocks(len(out), 8 * out.shape[1], _PIECE_NBYTES):
            if axis == 0:
                padded = given[place[rows.start : rows.stop + 2 * radius]]
            else:
                padded = np.take(given[rows], place, axis=1)
            _smooth(padded.astype(np.float64), taps, axis, out[rows])
    return out


def _smooth(padded: np.ndarray, taps: np.ndarray, axis: int, out: np.ndarray) -> None:
    """Smooth a map that is `len(taps) - 1` longer than `out` along an axis."""
    n = out.shape[axis]

    def shifted(by: int) -> np.ndarray:
        return padded[by : by + n] if axis == 0 else padded[:, by : by + n]

    last = len(taps) - 1
    total = shifted(last // 2) * taps[last // 2]
    both = np.empty_like(total)
    for step in range(last // 2):
        np.add(shifted(step), shifted(last - step), out=both)
        both *= taps[step]
        total += both
    out[...] = total
