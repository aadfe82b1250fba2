"""How far measurements of pairs of slices are trusted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from linumpy.brain.pair_shift import PairShift
from linumpy.geometry.pair_graph import bridges

LONE_CONFIDENCE = 0.6
"""From here on a pair is believed that no other confirms."""


def relative_trust(
    shifts: Sequence[PairShift], sigmas: Sequence[float], least: float
) -> np.ndarray:
    """Return the relative weight of pairs by their confidence and their standard errors."""
    variance = _variances(sigmas, least)
    peak = np.array([shift.confidence * shift.agreement for shift in shifts])
    return np.asarray(peak * variance.min(initial=np.inf) / variance)


def usual_sigma(sigmas: Sequence[float], least: float) -> float:
    """Return the standard error of a usual pair, by what pairs state; `least` where none does."""
    return float(np.sqrt(np.median(_variances(sigmas, least)))) if len(sigmas) else least


def _variances(sigmas: Sequence[float], least: float) -> np.ndarray:
    """Return what pairs state; one that states nothing counts as one as good as the others."""
    sigma = np.array(sigmas, float)
    sigma[sigma == 0] = np.median(sigma[sigma > 0]) if sigma.any() else 0.0
    return np.asarray(least**2 + sigma**2)


def clear_alone(
    n_slices: int, links: Sequence[tuple[int, int]], shifts: Sequence[PairShift]
) -> np.ndarray:
    """Return which pairs are clear and in no loop with others, which could contradict them."""
    clear = [shift.confidence * shift.agreement >= LONE_CONFIDENCE for shift in shifts]
    return bridges(n_slices, links) & np.array(clear, bool)
