"""Spread of values that outliers do not move, and weights of residuals."""

from __future__ import annotations

import numpy as np

MEDIAN_TO_SIGMA = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation (Rousseeuw and
Croux, J. Am. Stat. Assoc. 88, 1273, 1993)."""

TUKEY = 4.685
"""Residuals beyond so many spreads have no weight: 95 % efficient for normal ones (Holland and
Welsch, Commun. Stat. A 6, 813, 1977)."""


def robust_spread(deviations: np.ndarray) -> float:
    """Return the standard deviation by the median of absolute deviations; 0 of an empty array."""
    return MEDIAN_TO_SIGMA * float(np.median(np.abs(deviations))) if deviations.size else 0.0


def tukey(residual: np.ndarray, sigma: float) -> np.ndarray:
    """Return Tukey's biweights of residuals: 1 at 0, 0 beyond `TUKEY` times their spread."""
    return np.asarray(np.clip(1 - (residual / (TUKEY * sigma)) ** 2, 0, 1) ** 2)
