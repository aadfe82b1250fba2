"""Fit each tile alone, and take the robust mean of the fits and its covariance.

Each tile answers the shared field plus its own tissue (see `linumpy.geometry.shared_field`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from linumpy.core.robust import robust_spread, tukey
from linumpy.geometry.least_squares import (
    column_products,
    linear_combination,
    normal_equations,
    solve_each,
)

_ITERATIONS, _TILE_ITERATIONS = 12, 5
_TILES_AT_ONCE = 16
"""That are solved together; their designs are held, 2 MB each."""
_MIN_SIGMA = 1e-6


@dataclass(frozen=True)
class TileEvidence:
    """What tiles say of the coefficients of a field.

    Attributes
    ----------
    mean, covariance
        Robust mean of the tiles' coefficients, (k,), and its covariance by their scatter, (k, k).
    residual
        Robust spread of the maps about the mean.
    """

    mean: np.ndarray
    covariance: np.ndarray
    residual: float


def robust_sigma(values: np.ndarray) -> float:
    """Return the spread of `values` by their median absolute deviation."""
    values = values[np.isfinite(values)]
    if values.size == 0:
        return _MIN_SIGMA
    return max(robust_spread(values - np.median(values)), _MIN_SIGMA)


def fit_tiles(maps: Sequence[np.ndarray], terms: np.ndarray, *, n_groups: int) -> TileEvidence:
    """Fit each tile alone, and take the robust mean of the fits.

    Tissue makes tiles differ far more than noise does, and in a correlated way: so a tile, not a
    pixel, counts as one observation, weighted by the scatter of the fits.
    Tiles at one place of successive slices show much the same tissue: slices add no information.

    Parameters
    ----------
    maps
        Of each tile, shape (cells along axis 1, cells along axis 2), NaN where unknown.
    terms
        The terms of the field at the cells, shape (cells, cells, k).
    n_groups
        Slices that the tiles are of.
    """
    n_terms = terms.shape[-1]
    theta = np.array(list(_fit_each(maps, terms)))
    mean = np.median(theta, axis=0)
    for _ in range(_ITERATIONS):
        spread = np.array([robust_sigma(column) for column in theta.T])
        distance = np.sqrt((((theta - mean) / spread) ** 2).mean(axis=1))
        weight = tukey(distance, max(1.0, float(np.median(distance))))
        mean = (weight[:, None] * theta).sum(axis=0) / max(weight.sum(), 1e-9)
    deviation = theta - mean
    covariance = column_products(weight[:, None] * deviation, deviation) / max(weight.sum(), 1e-9)
    # Few places make a poor covariance: lean towards its diagonal.
    n_places = max(float(weight.sum()) / n_groups, 1.0)
    share = n_terms / (n_terms + n_places)
    covariance = (1 - share) * covariance + share * np.diag(np.diag(covariance))
    covariance += 1e-9 * np.eye(n_terms)
    fitted = linear_combination(terms, mean)
    left = np.concatenate([(values - fitted - np.nanmedian(values)).ravel() for values in maps])
    return TileEvidence(mean, covariance / n_places, robust_sigma(left))


class _TileFit:
    """One tile fitted alone: coefficients of the terms, and a constant, by weighted equations."""

    def __init__(self, values: np.ndarray, terms: np.ndarray) -> None:
        good = np.isfinite(values)
        self._design = np.column_stack([terms[good], np.ones(good.sum())])
        self._values = values[good] - np.median(values[good])
        self._weight = np.ones(len(self._values))
        self._ridge = 1e-3 * np.diag([*np.ones(terms.shape[-1]), 0.0])

    def equations(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the table and the right side of the system to solve."""
        total = self._weight.sum()
        if not total:
            # Every cell is an outlier: nothing is known, and all is 0.
            return np.eye(len(self._ridge)), np.zeros(len(self._ridge))
        normal, right = normal_equations(self._design, self._values, self._weight)
        return normal + self._ridge * total, right

    def equations_about(self, solution: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return those in which cells far from a solution count less."""
        residual = self._values - linear_combination(self._design, solution)
        self._weight = tukey(residual, robust_sigma(residual))
        return self.equations()


def _fit_each(maps: Sequence[np.ndarray], terms: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the coefficients of each tile alone.

    In one thread: on 16 cores as many take 1.3 times as long.
    """
    for start in range(0, len(maps), _TILES_AT_ONCE):
        fits = [_TileFit(values, terms) for values in maps[start : start + _TILES_AT_ONCE]]
        systems = [fit.equations() for fit in fits]
        for left in reversed(range(_TILE_ITERATIONS)):
            solutions = solve_each(*(np.stack(side) for side in zip(*systems, strict=True)))
            if left:
                systems = [f.equations_about(s) for f, s in zip(fits, solutions, strict=True)]
        yield from solutions[:, : terms.shape[-1]]
