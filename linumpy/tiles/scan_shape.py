"""Shape of a scan along the fast axis, by strips of overlaps, and whether it is bent at all.

A strip about pixel x of tile a measures D + d(x − D) − d(x) of tiles that lie D apart
(`linumpy.tiles.scan_distortion`). How strips of one overlap differ gives the shape of d, whatever D
is: a linear regression for Legendre coefficients. The scan bends all slices alike, so that a bend
has to explain strips of slices that it was not fitted to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from linumpy.core.robust import robust_spread
from linumpy.geometry.least_squares import (
    linear_combination,
    normal_equations,
    solve_positive,
)

ORDERS = 8
LINEARITY = 0.02
"""Of the field, a standard deviation: "some percent"."""

_LIKELY_GAIN = 14.1
"""χ² of seven degrees of freedom (orders 2 to 8) that chance exceeds once in twenty times."""

_SIGNIFICANT_BEND = 29.9
"""The same, once in ten thousand times."""

_FOLDS = 4
_EVIDENT_BEND = 18.4
"""2·ln(10⁴). A likelihood ratio on held-out data exceeds 10⁴ by chance once in ten thousand at most
(Wasserman et al., Proc. Natl. Acad. Sci. 117, 16880, 2020); folds are summed: it is a guide."""

_MIN_STRIP_SIGMA_PX = 0.02
PEAK_BIAS_PX = 0.05 / np.sqrt(2)
"""RMS of the bias of correlation peaks: some hundredths of a pixel, by whole pixels and by what
windows cut off (Nogueira et al., Meas. Sci. Technol. 13, 963, 2002). Strips at one place share it,
so that many of them make it significant."""


@dataclass(frozen=True)
class Strip:
    """What a strip of a pair's overlap measures along the fast axis.

    Attributes
    ----------
    tiles
        Numbers of the pair's tiles: strips of one pair share its step.
    pixels
        First pixel of tile a, and the one after the last.
    step_px
        How far tile b lies from tile a, by the whole overlap.
    displacement_px
        The same by this strip.
    """

    tiles: tuple[int, int]
    pixels: tuple[int, int]
    step_px: float
    displacement_px: float


def scan_prior(n_pixels: int) -> np.ndarray:
    """Return the inverse covariance of the coefficients before anything was measured.

    A mirror has mass, so that its velocity is continuous: coefficients fall at least with the
    square of their order, from the second, the lowest that bends the scan, on.
    """
    fall = np.maximum(np.arange(1, ORDERS + 1) / 2, 1) ** 2
    return np.diag((fall / (LINEARITY * n_pixels)) ** 2)


def scan_basis(pixel: np.ndarray, n_pixels: int) -> np.ndarray:
    """Return the Legendre polynomials of orders 1 to `ORDERS` over the field, a row a pixel."""
    field = (2 * np.asarray(pixel, float) + 1) / n_pixels - 1
    return np.asarray(np.polynomial.legendre.legvander(field, ORDERS)[..., 1:])


def _difference(pixels: np.ndarray, step_px: float, n_pixels: int) -> np.ndarray:
    """Return the mean over pixels of tile a of what each coefficient adds to a displacement."""
    both = scan_basis(pixels - step_px, n_pixels) - scan_basis(pixels, n_pixels)
    return np.asarray(both.mean(axis=0))


def whole_difference(n_pixels: int, step_px: float) -> np.ndarray:
    """Return what each coefficient adds to what the whole overlap of two tiles measures."""
    return _difference(shared_pixels(n_pixels, step_px), step_px, n_pixels)


def shared_pixels(
    n_pixels: int, step_px: float, pixels: tuple[int, int] | None = None
) -> np.ndarray:
    """Return the pixels of tile a, or of a strip of it, that tile b shows too."""
    first, last = pixels or (0, n_pixels)
    step = round(step_px)
    return np.arange(max(first, step), min(last, n_pixels + step))


class _StripFit(NamedTuple):
    """Coefficients by strips alone, each pair's step free; strips less their pair's mean."""

    coefficients: np.ndarray
    normal: np.ndarray
    right: np.ndarray
    design: np.ndarray
    data: np.ndarray
    weight: np.ndarray
    sigma: float

    def gain(self, chosen: np.ndarray, coefficients: np.ndarray) -> float:
        """Return how much better coefficients explain some strips than none do, as χ²."""
        data = self.data[chosen]
        left = data - linear_combination(self.design[chosen], coefficients)
        return float(self.weight[chosen] @ (data**2 - left**2)) / self.sigma**2


def strip_equations(
    n_pixels: int, slices: Sequence[Sequence[Strip]]
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return normal equations of all slices' strips, and whether the scan is bent.

    Returns
    -------
    Left side (8, 8) and right side (8,) for the coefficients, weighted by inverse variances,
    without a prior; each pair's step is free.
    """
    strips = [s for part in slices for s in part]
    if not strips:
        return np.zeros((ORDERS, ORDERS)), np.zeros(ORDERS), False
    prior = scan_prior(n_pixels)
    rows = np.array(
        [
            _difference(shared_pixels(n_pixels, s.step_px, s.pixels), s.step_px, n_pixels)
            for s in strips
        ]
    )
    measured = np.array([s.displacement_px for s in strips])
    owners = [(n, s.tiles) for n, part in enumerate(slices) for s in part]
    names = {name: n for n, name in enumerate(dict.fromkeys(owners))}
    pair = np.array([names[name] for name in owners])
    fit = _fit_strips(rows, measured, pair, prior)
    enough = len(strips) - len(names) > ORDERS
    gain = fit.gain(np.ones(len(strips), bool), fit.coefficients)
    explained = float(np.sqrt(np.mean(linear_combination(fit.design, fit.coefficients) ** 2)))
    bent = enough and explained > PEAK_BIAS_PX and gain > _SIGNIFICANT_BEND
    if bent:
        owner = np.unique([n for n, _ in owners], return_inverse=True)[1]
        # Of a single slice, quarters of its pairs.
        group = owner % _FOLDS if owner.any() else pair * _FOLDS // len(names)
        bent = _held_out_gain(fit, group, rows, measured, pair, prior) > _EVIDENT_BEND
    variance = fit.sigma**2
    if enough and not bent:
        # What neither chance nor a bend explains are errors that strips share.
        variance *= max(1.0, gain / _LIKELY_GAIN)
    return fit.normal / variance, fit.right / variance, bent


def _fit_strips(
    rows: np.ndarray, measured: np.ndarray, pair: np.ndarray, prior: np.ndarray
) -> _StripFit:
    n_strips, n_pairs = len(rows), len(np.unique(pair))
    weight = np.ones(n_strips)
    sigma = 1.0
    for _ in range(10):
        design, data = (_centred(values, weight, pair) for values in (rows, measured[:, None]))
        normal, right = normal_equations(design, data[:, 0], weight)
        found = solve_positive(normal / sigma**2 + prior, right / sigma**2)
        residual = data[:, 0] - linear_combination(design, found)
        # Of n strips, pairs and coefficients fit some by themselves.
        free = max(n_strips - n_pairs - ORDERS, 1)
        sigma = max(robust_spread(residual) * np.sqrt(n_strips / free), _MIN_STRIP_SIGMA_PX)
        # Cauchy weights at three standard deviations, as of pairs of tiles.
        weight = 1 / (1 + (residual / (3 * sigma)) ** 2)
    return _StripFit(found, normal, right, design, data[:, 0], weight, sigma)


def _held_out_gain(
    fit: _StripFit,
    group: np.ndarray,
    rows: np.ndarray,
    measured: np.ndarray,
    pair: np.ndarray,
    prior: np.ndarray,
) -> float:
    """Return how much better strips are explained by coefficients of the other groups' strips.

    The scan bends all slices alike. What anatomy does to the peaks of neighbouring tiles is of one
    slice, and is no noise of each strip by itself.
    """
    total = 0.0
    for number in np.unique(group):
        others = group != number
        names = np.unique(pair[others], return_inverse=True)[1]
        without = _fit_strips(rows[others], measured[others], names, prior)
        total += fit.gain(~others, without.coefficients)
    return total


def _centred(values: np.ndarray, weight: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return values (rows, columns) less the weighted mean of their group."""
    total = np.bincount(group, weight)
    means = np.stack([np.bincount(group, weight * column) / total for column in values.T], axis=1)
    return np.asarray(values - means[group])
