"""Spread of values that outliers do not move."""

from __future__ import annotations

import numpy as np

MEDIAN_TO_SIGMA = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation (Rousseeuw and
Croux, J. Am. Stat. Assoc. 88, 1273, 1993)."""


def robust_spread(deviations: np.ndarray) -> float:
    """Return the standard deviation by the median of absolute deviations; 0 of an empty array."""
    return MEDIAN_TO_SIGMA * float(np.median(np.abs(deviations))) if deviations.size else 0.0
