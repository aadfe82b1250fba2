"""Levels of single tiles in the equations of a field that all tiles share.

See `linumpy.geometry.shared_field`.
"""

from __future__ import annotations

import numpy as np

from linumpy.core.robust import MEDIAN_TO_SIGMA
from linumpy.geometry.least_squares import column_products, invert_positive, linear_combination

_LEAST_VARIANCE, _LEAST_TOLD = 1e-12, 1e-6
_MOST_FACTOR = 4.0
_SMALL_CHANGE = 0.003
"""Of the share of a pair's variance that levels leave."""


class TileLevels:
    """A level that each tile adds: a light that changes with time, a stage that jitters in depth.

    Levels are random, of one variance, which is found with them by the fixed point of restricted
    likelihood (Schall, Biometrika 78, 719, 1991); of the tiles the median counts, for some may be
    bad. They are eliminated from the equations of the field (Schur's complement).

    Attributes
    ----------
    of_pairs
        Differences of levels between the tiles of each pair.
    left
        Share of the variance of a pair's mean that levels leave.
    settled
        Whether no pair's `left` has changed by `_SMALL_CHANGE` or more.
    variance
        Of the levels.
    """

    def __init__(self, pairs: np.ndarray) -> None:
        # Of tiles without a pair nothing is told.
        tiles, ends = np.unique(pairs, return_inverse=True)
        self._first, self._second = ends.reshape(pairs.shape).T
        self._n = len(tiles)
        self.variance, self.settled = 0.0, False
        self.of_pairs, self.left = np.zeros(len(pairs)), np.ones(len(pairs))

    def eliminate(self, sums: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what the levels take from the normal matrix and the right side of the field.

        Parameters
        ----------
        sums
            Weighted sums over each pair of the terms and, last, of the differences, (pairs, k + 1).
        weights
            Sums of the weights, (pairs,).
        """
        if not self.variance:
            mean = sums[:, -1] / np.maximum(weights, 1e-300)
            # What the field adds to it falls away with the first steps.
            square = MEDIAN_TO_SIGMA**2 * float(np.median(mean**2)) / 2
            self.variance = max(square, _LEAST_VARIANCE)
        own, shared = np.eye(self._n) / self.variance, np.zeros((self._n, sums.shape[1]))
        for one, other in ((self._first, self._second), (self._second, self._first)):
            np.add.at(own, (one, one), weights)
            np.subtract.at(own, (one, other), weights)
        np.add.at(shared, self._first, sums)
        np.subtract.at(shared, self._second, sums)
        self._covariance = invert_positive(own)
        self._solved = linear_combination(self._covariance, shared)
        a, b, c = self._first, self._second, self._covariance
        before, self.left = self.left, 1 - weights * (c[a, a] + c[b, b] - 2 * c[a, b])
        self.settled = bool(np.abs(self.left - before).max() < _SMALL_CHANGE)
        taken = column_products(shared[:, :-1], self._solved)
        return taken[:, :-1], taken[:, -1]

    def solve(self, theta: np.ndarray, covariance: np.ndarray) -> None:
        """Take the levels, and their variance, that go with a field's coefficients."""
        by_field = self._solved[:, :-1]
        level = self._solved[:, -1] - linear_combination(by_field, theta)
        of_field = (linear_combination(by_field, covariance) * by_field).sum(axis=1)
        told = 1 - (self._covariance.diagonal() + of_field) / self.variance
        known = told > _LEAST_TOLD
        square = np.median(level[known] ** 2 / told[known]) if known.any() else 0.0
        # Single steps would take dozens towards a variance that is nearly 0.
        factor = (MEDIAN_TO_SIGMA**2 * float(square) / self.variance) ** 2
        self.variance = max(self.variance * min(factor, _MOST_FACTOR), _LEAST_VARIANCE)
        self.of_pairs = level[self._first] - level[self._second]
