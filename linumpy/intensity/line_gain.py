"""Correct gain by A-line and B-scan, which a smooth flat field cannot hold.

A mirror position that always returns less light darkens the same line of every tile. The model of
`fix_illumination_3d` gets one factor a line and axis, learned from what the polynomial leaves:

1. In each tile, ln brightness less its smooth course across the lines, as the median along the
   lines: tissue crosses a line in places, a gain is everywhere on it.
2. The mean over tiles of its cosine transform. The smoothing is a known factor of each coefficient
   (mirrored at the sides, a convolution is diagonal in the DCT-II) and is divided out again.
3. Shrinkage of each coefficient by its standard error (Wiener filter; James & Stein, Proc. 4th
   Berkeley Symp. 1, 361, 1961). Gains that are independent from line to line have a flat spectrum,
   tissue has one that falls: fine coefficients measure how strong gains are, which determines what
   the coarse ones deserve. Without gains that stand out from their error, the factor is exactly 1.

Of long waves tissue leaves little to be seen in this way, but overlaps do: neighbours that the
stage put a few lines off show the same tissue through other lines. Up to `LONG_WAVES`, the gain is
therefore left to the fit of the shared field, with its strength as the prior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linumpy.core.robust import tukey
from linumpy.geometry.least_squares import linear_combination
from linumpy.geometry.smoothing import gaussian_taps

_SMOOTH_SHARE = 1 / 20
"""Sigma of the smooth course, of a tile: half of it is gone at 8 half waves a tile, just above
what polynomials of degree 6 hold."""

LONG_WAVES = 16
"""Half waves a tile that the shared field's fit takes over, at most."""

_MIN_WHOLE_STRIPS = 0.25
_MIN_PLACES = 3
_POOL = 4
"""Coefficients to either side whose scatter is pooled: one alone has too few tiles."""

_MIN_LINES = 16
_SIGNIFICANT = 3.0
_ROUNDS = 5


@dataclass(frozen=True)
class LineMaps:
    """Ln brightness of a tile in strips: single pixels across, averages along; NaN where unknown.

    Attributes
    ----------
    across
        For axis 1 and axis 2: shape (pixels of that axis, strips of the other).
    """

    across: tuple[np.ndarray, np.ndarray]


def line_maps(brightness: np.ndarray, cell: int) -> LineMaps:
    """Average a brightness map over strips one pixel wide and `cell` pixels long.

    Parameters
    ----------
    brightness
        Map over axis 1 and axis 2 on the host, NaN where unknown; such a pixel makes its strip
        unknown.
    """
    return LineMaps((_strips(brightness, cell), _strips(brightness.T, cell)))


def _strips(values: np.ndarray, cell: int) -> np.ndarray:
    count = values.shape[1] // cell
    parts = values[:, : count * cell].reshape(len(values), count, cell)
    # Strips are kept for all tiles: float32 holds a logarithm to 1e-6.
    return np.log(parts.mean(axis=2)).astype(np.float32)


@dataclass(frozen=True)
class LineGain:
    """Gain of the lines of one axis.

    Attributes
    ----------
    short
        Logarithm of each line's gain without its long waves, mean 0; all 0 where none stands out.
    long_waves
        Half waves a tile up to which `short` holds nothing.
    long_sigma
        Standard deviation of the orthonormal cosine coefficients of those waves; 0 for none.
    rms
        Of the whole logarithm, estimated from tiles alone.
    error
        Standard error of `short`, RMS over lines.
    """

    short: np.ndarray
    long_waves: int
    long_sigma: float
    rms: float
    error: float = 0.0


def fit_line_gain(maps: Sequence[np.ndarray], places: np.ndarray) -> LineGain:
    """Fit the gain of the lines of one axis.

    Parameters
    ----------
    maps
        Of each tile, shape (lines, strips): ln brightness less the smooth field.
    places
        Shape (n_tiles,): number of the place in the mosaic. Tiles at one place of several slices
        show similar tissue, so that errors are separated from how places differ.
    """
    n = len(maps[0])
    long_waves = min(LONG_WAVES, n // 4)
    taps = gaussian_taps(n * _SMOOTH_SHARE)
    found = [_profile(values.astype(float), taps) for values in maps]
    used = [number for number, profile in enumerate(found) if profile is not None]
    if n < _MIN_LINES or len(np.unique(places[used])) < _MIN_PLACES:
        return LineGain(np.zeros(n), long_waves, 0.0, 0.0)
    profiles = np.array([found[number] for number in used])
    cosines = _cosines(n)
    mean, error = _mean_and_error(linear_combination(cosines, profiles.T).T, places[used])
    # What the subtraction of the smooth course left of each coefficient.
    left = 1 - linear_combination(
        np.cos(np.outer(np.arange(1, n), np.arange(len(taps)) - len(taps) // 2) * np.pi / n), taps
    )
    shrunk, unknown, long_sigma = _shrink(mean / left, error / left)
    rms = float(np.sqrt(np.square(shrunk).sum() / n))
    shrunk[:long_waves] = 0
    return LineGain(
        short=linear_combination(cosines.T, shrunk),
        long_waves=long_waves,
        long_sigma=long_sigma,
        rms=rms,
        error=float(np.sqrt(unknown[long_waves:].sum() / n)),
    )


def places_of(corners_px: np.ndarray, tile_shape: tuple[int, int]) -> np.ndarray:
    """Return the number of each tile's place, shared within half a tile of the first there.

    Parameters
    ----------
    corners_px
        Shape (n_tiles, 2), of all slices.
    """
    firsts: list[np.ndarray] = []
    numbers = np.zeros(len(corners_px), int)
    half = np.asarray(tile_shape) / 2
    for tile, corner in enumerate(corners_px):
        near = [n for n, first in enumerate(firsts) if (np.abs(corner - first) < half).all()]
        numbers[tile] = near[0] if near else len(firsts)
        if not near:
            firsts.append(corner)
    return numbers


def _profile(values: np.ndarray, taps: np.ndarray) -> np.ndarray | None:
    """Return the median over whole strips, less the smooth course; None of a tile with few."""
    whole = np.isfinite(values).all(axis=0)
    if whole.mean() < _MIN_WHOLE_STRIPS:
        return None
    values = values[:, whole]
    radius = len(taps) // 2
    padded = np.pad(values, [(radius, radius), (0, 0)], mode="symmetric")
    smooth = np.zeros_like(values)
    for place, tap in enumerate(taps):
        smooth += tap * padded[place : place + len(values)]
    return np.asarray(np.median(values - smooth, axis=1))


def _cosines(n: int) -> np.ndarray:
    """Return the orthonormal DCT-II without its constant, shape (n − 1, n)."""
    angles = np.outer(np.arange(1, n), np.arange(n) + 0.5) * np.pi / n
    return np.asarray(np.cos(angles) * np.sqrt(2 / n))


def _mean_and_error(coefficients: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the robust mean over tiles of each coefficient, and its standard error.

    A tile has one weight. The error is that of independent places (Liang & Zeger, Biometrika 73,
    13, 1986), pooled over neighbouring coefficients.

    Parameters
    ----------
    coefficients
        Shape (n_tiles, k).
    """
    mean = np.median(coefficients, axis=0)
    weight = np.ones(len(coefficients))
    for _ in range(_ROUNDS):
        length = np.sqrt(np.square(coefficients - mean).mean(axis=1))
        usual = max(float(np.median(length)), 1e-12)
        weight = tukey(length, usual)
        mean = (weight[:, None] * coefficients).sum(axis=0) / weight.sum()
    _, member = np.unique(places, return_inverse=True)
    sums = np.zeros((member.max() + 1, coefficients.shape[1]))
    np.add.at(sums, member, weight[:, None] * (coefficients - mean))
    variance = np.square(sums).sum(axis=0) / weight.sum() ** 2 * len(sums) / (len(sums) - 1)
    padded = np.pad(variance, _POOL, mode="reflect")
    pooled = np.lib.stride_tricks.sliding_window_view(padded, 2 * _POOL + 1).mean(axis=1)
    return mean, np.sqrt(pooled)


def _shrink(mean: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Shrink coefficients by how strong those of their octave are against their errors.

    Returns
    -------
    The coefficients, their variances, and the standard deviation that was found for those of the
    longest waves.
    """
    n = len(mean) + 1
    edges = [n // 8, n // 4, n // 2, n]
    variance = np.zeros(len(mean))
    for octave, (low, high) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
        part = slice(low - 1, high - 1)
        weight = error[part] ** -4
        excess = float((weight * (mean[part] ** 2 - error[part] ** 2)).sum() / weight.sum())
        # The variance of a squared normal number is 2σ⁴.
        by_chance = float(np.sqrt(2 / weight.sum()))
        strength = excess if excess > _SIGNIFICANT * by_chance else 0.0
        # Gains that resampling did not smooth are as strong at longer waves.
        variance[0 if octave == 0 else low - 1 : high - 1] = strength
    share = variance / (variance + error**2)
    return mean * share, error**2 * share, float(np.sqrt(variance[0]))
