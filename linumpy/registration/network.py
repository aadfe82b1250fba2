"""Positions from measured differences: robust least squares over a network of pairs.

Every item (tile, slice) has a reported position that may err; pairs of items were measured
against each other, some wrongly. All deviations from the reported positions are solved at once,
so that errors neither add up along a chain nor spread from one bad pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_ITERATIONS = 5


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
    import scipy.sparse
    import scipy.sparse.linalg

    k = errors.shape[1]
    n_terms = 0 if terms is None else terms.shape[1]
    if not len(pairs):
        zeros = np.zeros((n_items, k))
        return NetworkSolution(zeros, np.zeros((n_terms, k)), np.zeros((0, k)), min_pair_sigma)
    first, second = np.array(pairs).T
    rows = np.arange(len(pairs))
    design = scipy.sparse.csr_matrix(
        (
            np.concatenate([np.ones(len(pairs)), -np.ones(len(pairs))]),
            (np.concatenate([rows, rows]), np.concatenate([second, first])),
        ),
        shape=(len(pairs), n_items),
    )
    prior = np.full(n_items, 1 / prior_sigma**2)
    if terms is not None:
        design = scipy.sparse.hstack([design, design @ terms]).tocsr()
        prior = np.concatenate([prior, np.full(n_terms, 1 / term_sigma**2)])
    # Begin with what the reported positions make likely: an outlier that gets in first can push
    # good pairs out.
    centred = errors - np.median(errors, axis=0)
    weight = 1 / (1 + (np.linalg.norm(centred, axis=1) / (3 * prior_sigma)) ** 4)
    pair_sigma = 4 * min_pair_sigma
    unknown = np.zeros((n_items + n_terms, k))
    residual = errors
    for _ in range(_ITERATIONS):
        weighted = design.multiply((weight / pair_sigma**2)[:, None]).tocsr()
        normal = (design.T @ weighted + scipy.sparse.diags(prior)).tocsc()
        unknown = scipy.sparse.linalg.splu(normal).solve(weighted.T @ errors)
        residual = errors - design @ unknown
        pair_sigma = max(robust_spread(residual), min_pair_sigma)
        # Cauchy weights: an outlier loses its pull smoothly.
        weight = 1 / (1 + (np.linalg.norm(residual, axis=1) / (3 * pair_sigma)) ** 2)
    deviation = unknown[:n_items]
    if terms is not None:
        deviation = deviation + terms @ unknown[n_items:]
    return NetworkSolution(deviation, unknown[n_items:], residual, pair_sigma)


def robust_spread(values: np.ndarray) -> float:
    """Return the spread of values about 0 by their median magnitude, 0 for none."""
    return 1.4826 * float(np.median(np.abs(values))) if values.size else 0.0


def connected_components(n_items: int, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return the number of each item's group, joined by pairs; −1 for a single item."""
    import scipy.sparse
    import scipy.sparse.csgraph

    first, second = np.array(pairs, dtype=int).reshape(-1, 2).T
    graph = scipy.sparse.coo_matrix(
        (np.ones(len(pairs)), (first, second)), shape=(n_items, n_items)
    )
    _, label = scipy.sparse.csgraph.connected_components(graph, directed=False)
    names, inverse, count = np.unique(label, return_inverse=True, return_counts=True)
    number = np.full(len(names), -1)
    joined = count > 1
    number[joined] = np.arange(int(joined.sum()))
    return number[inverse]
