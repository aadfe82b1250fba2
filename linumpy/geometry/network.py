"""Positions from measured differences: robust least squares over a network of pairs.

Every item (tile, slice) has a reported position that may err; pairs of items were measured
against each other, some wrongly. All deviations from the reported positions are solved at once,
so that errors neither add up along a chain nor spread from one bad pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from linumpy.core.robust import robust_spread
from linumpy.geometry.least_squares import (
    column_products,
    least_squares,
    linear_combination,
    solve_positive,
)
from linumpy.geometry.pair_graph import bridges, connected_components

_ITERATIONS = 5
_LEAST_DEVIATION_ROUNDS = 30
_HARDLY = 1e-10
"""Weight of reported positions where pairs speak alone, relative to that of the best pair. Of a
precise stage that loses its zero all items are off, and together they would outweigh the pairs
that say so; below it the equations are singular to double precision."""
_LEAST_RESIDUAL = 0.05
_MAX_DENSE_ITEMS = 128
_NOISE_ROUNDS = 30
_CLIP = 3.0
_AGREE_SIGMA = 5.0


@dataclass(frozen=True)
class NetworkSolution:
    """Solved deviations.

    Attributes
    ----------
    deviation
        Shape (n_items, k): solved minus reported positions.
    linear
        Shape (m, k): coefficients of the shared terms.
    residual
        Shape (n_pairs, k): measured minus solved differences.
    pair_sigma
        Robust spread of the residuals, over `scale`.
    prior
        Inverse variances of items and terms about 0 that the solution rests on.
    scale
        Shape (n_pairs,): standard errors of the pairs, relatively.
    """

    deviation: np.ndarray
    linear: np.ndarray
    residual: np.ndarray
    pair_sigma: float
    prior: np.ndarray
    scale: np.ndarray


def solve_network(
    n_items: int,
    pairs: Sequence[tuple[int, int]],
    errors: np.ndarray,
    *,
    prior_sigma: float,
    min_pair_sigma: float,
    terms: np.ndarray | None = None,
    term_sigma: float = 1.0,
    trust: np.ndarray | float = 1.0,
    start: np.ndarray | None = None,
    scale: np.ndarray | None = None,
) -> NetworkSolution:
    """Solve for the items' deviations from their reported positions.

    Parameters
    ----------
    n_items
        Number of items.
    pairs
        Items (a, b) of each measurement.
    errors
        Shape (n_pairs, k): measured minus reported difference, position of b minus that of a.
    prior_sigma
        How far reported positions are off, as a standard deviation.
    min_pair_sigma
        Lower bound of the pairs' errors.
    terms
        Shape (n_items, m): what deviations may be linear in besides, such as the reported
        position itself; None for nothing.
    term_sigma
        Standard deviation of the linear coefficients about 0.
    trust
        Shape (n_pairs,): relative weights while outliers are detected.
    start
        Shape (n_items, k): deviations to start from, such as those of one pair more; None for
        those of least absolute deviations.
    scale
        Shape (n_pairs,): standard errors of the pairs, relatively; None where they are equal.
    """
    k = errors.shape[1]
    scale = np.ones(len(pairs)) if scale is None else scale
    n_terms = 0 if terms is None else terms.shape[1]
    if not len(pairs):
        zeros, linear, none = (np.zeros((n, k)) for n in (n_items, n_terms, 0))
        return NetworkSolution(zeros, linear, none, min_pair_sigma, np.zeros(0), scale)
    prior = np.full(n_items, 1 / prior_sigma**2)
    if terms is not None:
        prior = np.concatenate([prior, np.full(n_terms, 1 / term_sigma**2)])
    network = Network(n_items, pairs, terms)
    if start is None:
        # What most pairs agree on, not what the reported positions make likely: backlash, scale
        # and rotation of a stage shift half of all pairs in the same way.
        free = prior.copy()
        free[:n_items] = hardly_held(min_pair_sigma)
        unknown = least_deviations(network, errors, free, min_pair_sigma, trust / scale)
        residual = errors - network.differences(unknown)
    else:
        residual = errors - (start[network.second] - start[network.first])
    unknown = np.zeros((n_items + n_terms, k))
    pair_sigma = min_pair_sigma
    for _ in range(_ITERATIONS):
        scaled = residual / scale[:, None]
        pair_sigma = max(robust_spread(scaled), min_pair_sigma)
        # Cauchy weights of pairs and items: an outlier of either loses its pull smoothly.
        prior[:n_items] = cauchy_weights(unknown[:n_items], prior_sigma) / prior_sigma**2
        weight = cauchy_weights(scaled, pair_sigma) / (pair_sigma * scale) ** 2
        unknown = network.solve(weight, prior, errors)
        residual = errors - network.differences(unknown)
    deviation = unknown[:n_items]
    if terms is not None:
        deviation = deviation + linear_combination(terms, unknown[n_items:])
    return NetworkSolution(deviation, unknown[n_items:], residual, pair_sigma, prior, scale)


def deviation_sigma(
    solution: NetworkSolution,
    pairs: Sequence[tuple[int, int]],
    expected_pair_sigma: float,
    terms: np.ndarray | None = None,
) -> float:
    """Return the standard error of deviations along one axis, RMS over the items that pairs join.

    It is that of the posterior covariance, less the common deviation of each group that pairs join,
    of which pairs tell nothing.

    Parameters
    ----------
    solution, pairs, terms
        From and for `solve_network`.
    expected_pair_sigma
        What pairs are expected to be off by, before residuals tell. It counts as much as one loop
        of pairs.

    Returns
    -------
    The standard error; 0 without pairs.
    """
    n_items = len(solution.deviation)
    group = connected_components(n_items, pairs)
    joined = np.flatnonzero(group >= 0)
    if not len(joined):
        return 0.0
    network = Network(n_items, pairs, terms)
    size = np.bincount(group[joined])
    scaled = solution.residual / solution.scale[:, None]
    noise = pair_noise(n_items, pairs, scaled, expected_pair_sigma)
    weight = cauchy_weights(scaled, noise) / (noise * solution.scale) ** 2
    some = joined[:: -(-len(joined) // _MAX_DENSE_ITEMS)]
    right = np.zeros((network.n_unknowns, len(some)))
    own = (group[:, None] == group[some]) / size[group[some]]
    right[:n_items] = (np.arange(n_items)[:, None] == some) - own
    if terms is not None:
        right[n_items:] = column_products(terms, right[:n_items])
    variance = (right * network.inverse(weight, solution.prior, right)).sum(axis=0)
    return float(np.sqrt(variance.mean()))


def _loops(group: np.ndarray, n_pairs: int) -> int:
    """Return how many pairs there are beyond those that join the items of each group."""
    return n_pairs - int((group >= 0).sum()) + int(group.max()) + 1


def pair_noise(
    n_items: int,
    pairs: Sequence[tuple[int, int]],
    residual: np.ndarray,
    expected: float,
    *,
    most_wrong: float = 1.0,
) -> float:
    """Return the standard deviation of pairs along one axis, by what a solution leaves of them.

    Items fit all residuals but as many as there are loops. Their sum of squares is that of loops
    however the solution shares it out; a median would be that of the pairs that it fits. Pairs
    beyond three standard deviations are left out with a loop each, from the median's on, so that
    many of them do not hide each other.

    Parameters
    ----------
    n_items, pairs
        Number of items, and the items of each pair.
    residual
        Shape (n_pairs, k): measured minus solved differences. Nothing but pairs may have pulled:
        what else pulls adds to them, and loops do not tell it.
    expected
        What pairs are expected to be off by, before residuals tell. It counts as much as one loop.
    most_wrong
        Share of the loops that may be left out.
    """
    loops = _loops(connected_components(n_items, pairs), len(pairs))
    squares = (residual**2).mean(axis=1)
    kept_anyway = 0.0
    if most_wrong < 1:
        kept_anyway = np.sort(squares)[-1 - int(most_wrong * loops)]
    variance = (len(residual) * robust_spread(residual) ** 2 + expected**2) / (1 + loops)
    for _ in range(_NOISE_ROUNDS):
        kept = squares <= max(_CLIP**2 * variance, kept_anyway)
        left = max(loops - int((~kept).sum()), 0)
        variance, before = (squares[kept].sum() + expected**2) / (1 + left), variance
        if variance == before:
            break
    return float(np.sqrt(variance))


class Equations(Protocol):
    """What measurements are of some unknowns, and what unknowns they make likely."""

    n_unknowns: int

    def differences(self, unknown: np.ndarray) -> np.ndarray:
        """Return what would be measured, shape (n_pairs, k), of unknowns (n_unknowns, k)."""

    def solve(self, weight: np.ndarray, prior: np.ndarray, errors: np.ndarray) -> np.ndarray:
        """Return the unknowns of least squares, with inverse variances about 0 as `prior`."""


class Design:
    """Equations given as a small dense matrix (n_pairs, n_unknowns)."""

    def __init__(self, matrix: np.ndarray) -> None:
        self._matrix = matrix
        self.n_unknowns = matrix.shape[1]

    def differences(self, unknown: np.ndarray) -> np.ndarray:
        """Return the matrix times the unknowns."""
        return linear_combination(self._matrix, unknown)

    def solve(self, weight: np.ndarray, prior: np.ndarray, errors: np.ndarray) -> np.ndarray:
        """Return the unknowns of least squares."""
        return least_squares(self._matrix, errors, weight, np.diag(prior))


class Network:
    """Equations of pairs: a measurement is the difference of two items, plus shared linear terms.

    Bits depend on the numbers alone, but for many items, where SciPy solves the sparse equations:
    to load that would take longer than all else for few.
    """

    def __init__(
        self, n_items: int, pairs: Sequence[tuple[int, int]], terms: np.ndarray | None = None
    ) -> None:
        self.first, self.second = np.array(pairs).T
        self.n_items = n_items
        self._steps = np.zeros((len(pairs), 0))
        if terms is not None:
            self._steps = terms[self.second] - terms[self.first]
        self.n_unknowns = n_items + self._steps.shape[1]

    def differences(self, unknown: np.ndarray) -> np.ndarray:
        """Return what would be measured."""
        shared = linear_combination(self._steps, unknown[self.n_items :])
        return unknown[self.second] - unknown[self.first] + shared

    def solve(self, weight: np.ndarray, prior: np.ndarray, errors: np.ndarray) -> np.ndarray:
        """Return the unknowns of least squares."""
        weighted = self._steps * weight[:, None]
        right = np.concatenate(
            [self._sums(errors * weight[:, None]), column_products(weighted, errors)]
        )
        return self.inverse(weight, prior, right)

    def inverse(self, weight: np.ndarray, prior: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Return the inverse of the normal equations, times columns (n_unknowns, k)."""
        weighted = self._steps * weight[:, None]
        items = slice(self.n_items)
        shared = slice(self.n_items, None)
        if self.n_items > _MAX_DENSE_ITEMS:
            return self._solve_sparse(weight, weighted, prior, right)
        normal = np.diag(prior)
        for one, other, sign in (
            (self.first, self.first, 1),
            (self.second, self.second, 1),
            (self.first, self.second, -1),
            (self.second, self.first, -1),
        ):
            np.add.at(normal, (one, other), sign * weight)
        normal[items, shared] = self._sums(weighted)
        normal[shared, items] = normal[items, shared].T
        normal[shared, shared] += column_products(weighted, self._steps)
        return solve_positive(normal, right)

    def _solve_sparse(
        self, weight: np.ndarray, weighted: np.ndarray, prior: np.ndarray, right: np.ndarray
    ) -> np.ndarray:
        import scipy.sparse
        import scipy.sparse.linalg

        items = (self.n_items, self.n_items)
        links = scipy.sparse.coo_array((weight, (self.first, self.second)), items)
        degree = np.asarray(links.sum(axis=0) + links.sum(axis=1)).ravel()
        between = self._sums(weighted)
        normal = scipy.sparse.block_array(
            [
                [scipy.sparse.diags_array(degree) - links - links.T, between],
                [between.T, column_products(weighted, self._steps)],
            ]
            if between.size
            else [[scipy.sparse.diags_array(degree) - links - links.T]]
        )
        full = (normal + scipy.sparse.diags_array(prior)).tocsc()
        return np.asarray(scipy.sparse.linalg.splu(full).solve(right))

    def _sums(self, values: np.ndarray) -> np.ndarray:
        """Return what pairs add to their second item, less what they add to their first."""
        out = np.zeros((self.n_items, values.shape[1]))
        np.add.at(out, self.second, values)
        np.subtract.at(out, self.first, values)
        return out


def least_deviations(
    equations: Equations,
    errors: np.ndarray,
    prior: np.ndarray,
    sigma: float,
    trust: np.ndarray | float = 1.0,
) -> np.ndarray:
    """Minimise the weighted sum of the lengths of residuals by iteratively reweighted squares.

    A minority of wrong pairs cannot bend the solution.

    Parameters
    ----------
    equations
        What the measurements are of the unknowns.
    errors
        Shape (n_pairs, k).
    prior
        Shape (n_unknowns,): inverse variances of the unknowns about 0.
    sigma
        Scale of a good pair's residual.
    trust
        Shape (n_pairs,): relative weights.

    Returns
    -------
    Shape (n_unknowns, k).
    """
    length, floor = np.zeros(len(errors)), sigma
    unknown = np.zeros((equations.n_unknowns, errors.shape[1]))
    for _ in range(_LEAST_DEVIATION_ROUNDS):
        unknown = equations.solve(trust / (sigma * np.maximum(length, floor)), prior, errors)
        length = np.linalg.norm(errors - equations.differences(unknown), axis=1)
        # The floor falls round by round: a wrong pair ends with no pull, not with a bounded one.
        floor = max(_LEAST_RESIDUAL * sigma, 0.8 * floor)
    return unknown


def hardly_held(sigma: float) -> float:
    """Return the inverse variance of items that `least_deviations` is to leave to the pairs."""
    return _HARDLY / (_LEAST_RESIDUAL * sigma**2)


def borne_out(
    network: Network,
    pairs: Sequence[tuple[int, int]],
    errors: np.ndarray,
    prior: np.ndarray,
    sigma: float,
    trust: np.ndarray,
) -> np.ndarray:
    """Return which pairs close a loop with others to within their errors, shape (n_pairs,).

    Parameters
    ----------
    network, pairs
        The equations, and the items of each pair.
    errors, prior, sigma, trust
        As of `least_deviations`.
    """
    left = errors - network.differences(least_deviations(network, errors, prior, sigma, trust))
    # Fitted by least absolute deviations most residuals are nearly 0.
    limit = _AGREE_SIGMA * max(pair_noise(network.n_unknowns, pairs, left, sigma), sigma)
    agree = np.flatnonzero(np.linalg.norm(left, axis=1) <= limit)
    found = np.zeros(len(pairs), bool)
    found[agree] = ~bridges(network.n_unknowns, [pairs[n] for n in agree.tolist()])
    return found


def cauchy_weights(vectors: np.ndarray, sigma: float) -> np.ndarray:
    """Return the weight of each row of an array by its length: one half at 3 `sigma`."""
    weights: np.ndarray = 1 / (1 + (np.linalg.norm(vectors, axis=1) / (3 * sigma)) ** 2)
    return weights
