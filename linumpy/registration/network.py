"""Positions from measured differences: robust least squares over a network of pairs.

Every item (tile, slice) has a reported position that may err; pairs of items were measured
against each other, some wrongly. All deviations from the reported positions are solved at once,
so that errors neither add up along a chain nor spread from one bad pair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_ITERATIONS = 5
_MAX_DENSE_ITEMS = 128


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
        Robust spread of the residuals.
    """

    deviation: np.ndarray
    linear: np.ndarray
    residual: np.ndarray
    pair_sigma: float


def solve_network(
    n_items: int,
    pairs: Sequence[tuple[int, int]],
    errors: np.ndarray,
    *,
    prior_sigma: float,
    min_pair_sigma: float,
    terms: np.ndarray | None = None,
    term_sigma: float = 1.0,
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
        Pairs are not believed more closely than this.
    terms
        Shape (n_items, m): what deviations may be linear in besides, such as the reported
        position itself; None for nothing.
    term_sigma
        Standard deviation of the linear coefficients about 0.
    """
    k = errors.shape[1]
    n_terms = 0 if terms is None else terms.shape[1]
    if not len(pairs):
        zeros = np.zeros((n_items, k))
        return NetworkSolution(zeros, np.zeros((n_terms, k)), np.zeros((0, k)), min_pair_sigma)
    prior = np.full(n_items, 1 / prior_sigma**2)
    if terms is not None:
        prior = np.concatenate([prior, np.full(n_terms, 1 / term_sigma**2)])
    design, solve = _design(n_items, pairs, terms)
    # Begin with what the reported positions make likely: an outlier that gets in first can push
    # good pairs out.
    centred = errors - np.median(errors, axis=0)
    weight = 1 / (1 + (np.linalg.norm(centred, axis=1) / (3 * prior_sigma)) ** 4)
    pair_sigma = 4 * min_pair_sigma
    unknown = np.zeros((n_items + n_terms, k))
    residual = errors
    for _ in range(_ITERATIONS):
        unknown = solve(weight / pair_sigma**2, prior, errors)
        residual = errors - design @ unknown
        pair_sigma = max(robust_spread(residual), min_pair_sigma)
        # Cauchy weights: an outlier loses its pull smoothly.
        weight = 1 / (1 + (np.linalg.norm(residual, axis=1) / (3 * pair_sigma)) ** 2)
    deviation = unknown[:n_items]
    if terms is not None:
        deviation = deviation + terms @ unknown[n_items:]
    return NetworkSolution(deviation, unknown[n_items:], residual, pair_sigma)


def _design(
    n_items: int, pairs: Sequence[tuple[int, int]], terms: np.ndarray | None
) -> tuple[Any, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]]:
    """Return what differences are of the unknowns, and the weighted least squares with priors.

    Few items have a dense matrix: to load SciPy's sparse ones would take longer than all else.
    """
    first, second = np.array(pairs).T
    rows = np.arange(len(pairs))
    if n_items <= _MAX_DENSE_ITEMS:
        dense = np.zeros((len(pairs), n_items))
        dense[rows, second] = 1
        dense[rows, first] = -1
        if terms is not None:
            dense = np.hstack([dense, dense @ terms])

        def solve_dense(weight: np.ndarray, prior: np.ndarray, errors: np.ndarray) -> np.ndarray:
            weighted = dense.T * weight
            return np.linalg.solve(weighted @ dense + np.diag(prior), weighted @ errors)

        return dense, solve_dense
    import scipy.sparse
    import scipy.sparse.linalg

    ones = np.ones(len(pairs))
    sparse = scipy.sparse.csr_matrix(
        (
            np.concatenate([ones, -ones]),
            (np.concatenate([rows, rows]), np.concatenate([second, first])),
        ),
        shape=(len(pairs), n_items),
    )
    if terms is not None:
        sparse = scipy.sparse.hstack([sparse, sparse @ terms]).tocsr()

    def solve_sparse(weight: np.ndarray, prior: np.ndarray, errors: np.ndarray) -> np.ndarray:
        weighted = sparse.multiply(weight[:, None]).tocsr()
        normal = (sparse.T @ weighted + scipy.sparse.diags(prior)).tocsc()
        return scipy.sparse.linalg.splu(normal).solve(weighted.T @ errors)

    return sparse, solve_sparse


def robust_spread(values: np.ndarray) -> float:
    """Return the spread of values about 0 by their median magnitude, 0 for none."""
    return 1.4826 * float(np.median(np.abs(values))) if values.size else 0.0


def connected_components(n_items: int, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return the number of each item's group, joined by pairs; −1 for a single item."""
    group = np.arange(n_items)

    def first_of(item: int) -> int:
        while group[item] != item:
            # Halve the way for those who come after.
            group[item] = group[group[item]]
            item = int(group[item])
        return item

    for a, b in pairs:
        one, other = sorted((first_of(a), first_of(b)))
        group[other] = one
    firsts = np.array([first_of(item) for item in range(n_items)], dtype=int)
    names, inverse, count = np.unique(firsts, return_inverse=True, return_counts=True)
    number = np.full(len(names), -1)
    joined = count > 1
    number[joined] = np.arange(int(joined.sum()))
    return number[inverse]
