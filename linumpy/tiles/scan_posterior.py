"""Standard error of a linear function of coefficients whose prior scale is unknown.

Coefficients c are measured by normal equations, and lie about 0 with a covariance that is known but
for its scale. Strips of overlaps measure how large those coefficients are that bend the scan, and
so how large the one may be that looks like a scale of the stage. The scale is integrated out, each
value weighed by the evidence for it (MacKay, Neural Comput. 4, 415, 1992).
"""

from __future__ import annotations

import numpy as np

from linumpy.geometry.least_squares import solve_positive

_N_SCALES = 12


def standard_error(
    normal: np.ndarray,
    right: np.ndarray,
    prior: np.ndarray,
    scales: tuple[float, float],
    function: np.ndarray,
    value: float,
) -> float:
    """Return the standard error of an estimate of ``function @ c``.

    Parameters
    ----------
    normal, right
        Normal equations of the measurements, weighted by their inverse variances, without a prior.
    prior
        Inverse covariance of c for a scale of 1, diagonal (k, k).
    scales
        Least and greatest scale of the standard deviations; evenly likely on a logarithmic scale.
    function
        Shape (k,).
    value
        Estimate of the function's value, the most likely one or another.
    """
    square = 0.0
    for weight, both, mean in _weighed(normal, right, prior, scales):
        spread = function @ solve_positive(both, function)
        square += weight * float(spread + (function @ mean - value) ** 2)
    return float(np.sqrt(square))


def posterior_mean(
    normal: np.ndarray, right: np.ndarray, prior: np.ndarray, scales: tuple[float, float]
) -> np.ndarray:
    """Return the posterior mean of c, shape (k,); see `standard_error`."""
    parts = [weight * mean for weight, _, mean in _weighed(normal, right, prior, scales)]
    return np.asarray(np.sum(parts, axis=0))


def _weighed(
    normal: np.ndarray, right: np.ndarray, prior: np.ndarray, scales: tuple[float, float]
) -> list[tuple[float, np.ndarray, np.ndarray]]:
    """Return the probability of each scale, with inverse covariance and mean of c for it."""
    parts = []
    for scale in np.geomspace(*scales, _N_SCALES):
        inverse = prior / scale**2
        both = normal + inverse
        mean = solve_positive(both, right)
        gain = right @ mean - _log_determinant(both) + np.log(inverse.diagonal()).sum()
        parts.append((0.5 * float(gain), both, mean))
    most = max(evidence for evidence, _, _ in parts)
    total = sum(np.exp(evidence - most) for evidence, _, _ in parts)
    return [(float(np.exp(e - most) / total), both, mean) for e, both, mean in parts]


def _log_determinant(matrix: np.ndarray) -> float:
    """Return ln of the determinant of a positive definite matrix, by Gaussian elimination."""
    table, total = matrix.astype(float), 0.0
    for i in range(len(table)):
        total += float(np.log(table[i, i]))
        below = table[i + 1 :, i] / table[i, i]
        table[i + 1 :] -= below[:, None] * table[i]
    return total
