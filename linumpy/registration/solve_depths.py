"""Depth of each slice from measured pairs, where cuts vary in thickness.

A cut that is too thick moves all later slices, so the prior is on the thickness of each cut, not on
the depth of each slice. Cuts are alike but for a few, such as double ones: their deviations have
Cauchy weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from linumpy.registration.network import Design, cauchy_weights, least_deviations, robust_spread

_ROUNDS = 12
_FREE = 1000.0
"""Spreads that a cut may be off while wrong pairs are told."""


def solve_depths(
    n_slices: int,
    pairs: Sequence[tuple[int, int]],
    errors: np.ndarray,
    trust: np.ndarray,
    *,
    min_pair_sigma: float,
    min_cut_sigma: float,
) -> np.ndarray:
    """Solve for how much deeper each slice lies than its number says.

    Parameters
    ----------
    n_slices
        Number of slices, in the order in which they were cut.
    pairs
        Slices (a, b) of each measurement, a < b.
    errors
        Shape (n_pairs,): measured minus nominal depth of b below a.
    trust
        Shape (n_pairs,): relative weight of each measurement.
    min_pair_sigma, min_cut_sigma
        Neither pairs nor nominal cuts are believed more closely than this.

    Returns
    -------
    Shape (n_slices,): relative to the first slice, in the unit of `errors`. Cuts that no pair
    spans have their nominal thickness.
    """
    if not len(pairs):
        return np.zeros(n_slices)
    # A pair measures the sum of the cuts between its slices.
    spans = np.zeros((len(pairs), n_slices - 1))
    for row, (a, b) in zip(spans, pairs, strict=True):
        row[a:b] = 1
    column = np.asarray(errors, float)[:, None]
    free = np.full(n_slices - 1, 1 / (_FREE * max(robust_spread(column), min_cut_sigma)) ** 2)
    equations = Design(spans)
    cuts = least_deviations(equations, column, free, min_pair_sigma, trust)
    measured = spans.any(axis=0)
    for _ in range(_ROUNDS):
        residual = column - equations.differences(cuts)
        pair_sigma = max(robust_spread(residual), min_pair_sigma)
        cut_sigma = max(robust_spread(cuts[measured]), min_cut_sigma)
        weight = trust * cauchy_weights(residual, pair_sigma) / pair_sigma**2
        prior = cauchy_weights(cuts, cut_sigma) / cut_sigma**2
        cuts = equations.solve(weight, prior, column)
    return np.concatenate([[0.0], np.cumsum(cuts[:, 0])])
