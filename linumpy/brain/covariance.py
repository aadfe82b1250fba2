"""Covariance of a smooth displacement and of what windows measure of it; estimate it from these.

The covariance of the displacement is Matérn's (Rasmussen and Williams, Gaussian Processes for
Machine Learning, 2006, section 4.2.1).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

SMOOTHNESS = (0.5, 1.5, 2.5, math.inf)
"""Matérn's covariances that have a closed form; the last is a Gaussian."""

_HALF = {0.5: 0.693, 1.5: 0.969, 2.5: 1.042, math.inf: 1.177}
"""Distance, in lengths, at which a correlation of that smoothness is one half."""

_LENGTHS = 3
_NOISE_RATIOS = np.array([1e-3, 1e-2, 0.1, 1.0, 10.0])
_FINER = np.array([0.3, 1.0, 3.0])
_MAX_PLACES = 256
_LEAST_VARIANCE = 1e-12


@dataclass(frozen=True)
class Covariance:
    """How a displacement varies over the plane.

    Attributes
    ----------
    variance
        Of the smooth field, along one axis, px².
    length_px, smoothness
        Of Matérn's covariance; see `SMOOTHNESS`.
    noise
        Variance of a single measurement, px², in the mean.
    even_share
        Of the noise: how much is the same for all, whatever they state.
    window_px
        Side of the windows that were measured: those that share pixels share their noise.
    """

    variance: float
    length_px: float
    smoothness: float
    noise: float
    even_share: float
    window_px: float

    @property
    def usual_length_px(self) -> float:
        """Length of a covariance of smoothness 3/2 that falls to one half as far away."""
        return self.length_px * _HALF[self.smoothness] / _HALF[1.5]

    def between(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Return the covariance of the field at points (n, 2) and (m, 2), shape (n, m)."""
        return self.variance * _matern(_distance(one, other), self.length_px, self.smoothness)

    def of_measurements(self, places: np.ndarray, variances: np.ndarray) -> np.ndarray:
        """Return the covariance of what is measured at places (n, 2), shape (n, n).

        Parameters
        ----------
        variances
            What measurements state of their errors, (n,), relative to the mean.
        """
        relative = _mixed(variances, self.even_share)
        noise = self.noise * _shared(relative, _overlap(places, self.window_px))
        return self.between(places, places) + noise

    def independent_noise(self, places: np.ndarray) -> float:
        """Return the variance of measurements that, independent, are as informative in the mean."""
        return self.noise * float(_overlap(places, self.window_px).sum(axis=1).mean())


def likeliest_covariance(
    places: np.ndarray,
    shifts: np.ndarray,
    variances: np.ndarray,
    design: np.ndarray,
    window_px: float,
    smoothness: Sequence[float],
    even_shares: Sequence[float],
) -> Covariance:
    """Return the covariance under which measurements are likeliest, whatever their rigid part.

    Restricted maximum likelihood (Patterson and Thompson, Biometrika 58, 545, 1971) on a coarse
    grid, and on a finer one about its best; the variance follows from the rest.

    Parameters
    ----------
    places, shifts, variances
        Where was measured, what, both (n, 2), and what measurements state of their errors, (n,),
        relative to the mean.
    design
        What the rigid part does to the places, shape (2·n, k): first all of axis 1.
    window_px
        Side of the windows.
    smoothness, even_shares
        What is tried of `Covariance`.
    """
    # A subset estimates it as well as all, in a fraction of the time.
    some = slice(None, None, -(-len(places) // _MAX_PLACES))
    # Both axes have one covariance: side by side they are solved at once.
    each = zip(np.split(design, 2), shifts.T, strict=True)
    both = np.column_stack([part for pair in each for part in pair])[some]
    places = places[some]
    away, overlap = _distance(places, places), _overlap(places, window_px)
    noises = {share: _shared(_mixed(variances[some], share), overlap) for share in even_shares}

    def tried(
        smooth: float, length: float, share: float, ratios: np.ndarray
    ) -> list[tuple[float, Covariance]]:
        # All ratios of noise to signal in one call, in which other threads go on.
        tables = _matern(away, length, smooth) + np.multiply.outer(ratios, noises[share])
        found = [_likelihood(factor, both) for factor in np.linalg.cholesky(tables)]
        return [
            (likelihood, Covariance(variance, length, smooth, ratio * variance, share, window_px))
            for (likelihood, variance), ratio in zip(found, ratios.tolist(), strict=True)
        ]

    # The middles of as many intervals between half a window and the extent.
    extent = max(float(np.ptp(places, axis=0).max()), window_px)
    step = (2 * extent / window_px) ** (1 / _LENGTHS)
    lengths = [window_px / 2 * step ** (n + 0.5) for n in range(_LENGTHS)]
    middle = even_shares[len(even_shares) // 2]
    coarse = (tried(*at, middle, _NOISE_RATIOS) for at in itertools.product(smoothness, lengths))
    best = _likeliest(coarse)
    ratios = best.noise / best.variance * _FINER
    lengths = [best.length_px * step**n for n in (-0.5, 0.0, 0.5)]
    finer = (tried(best.smoothness, *at, ratios) for at in itertools.product(lengths, even_shares))
    return _likeliest(finer)


def _likeliest(tried: Iterable[list[tuple[float, Covariance]]]) -> Covariance:
    return max(itertools.chain.from_iterable(tried), key=lambda each: each[0])[1]


def _likelihood(factor: np.ndarray, both: np.ndarray) -> tuple[float, float]:
    """Return the restricted likelihood, its logarithm, and the likeliest variance.

    Parameters
    ----------
    factor
        Lower triangular factor of the covariance along one axis, relative to the variance, (n, n).
    both
        Rigid designs of both axes, each with what was measured in its last column, (n, …).
    """
    from scipy.linalg import solve_triangular

    white = solve_triangular(factor, both, lower=True, check_finite=False)
    white = np.concatenate(np.split(white, 2, axis=1))
    design, values = white[:, :-1], white[:, -1]
    normal = design.T @ design
    left = values - design @ np.linalg.solve(normal, design.T @ values)
    free = len(values) - design.shape[1]
    variance = max(float((left**2).sum()) / free, _LEAST_VARIANCE)
    determinants = 4 * np.log(factor.diagonal()).sum() + np.linalg.slogdet(normal)[1]
    return -0.5 * float(determinants + free * math.log(variance)), variance


def _distance(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return distances of points (n, 2) from points (m, 2), shape (n, m)."""
    # An axis at a time: as vectors of two they take twice as long.
    square = np.subtract.outer(one[:, 0], other[:, 0]) ** 2
    square += np.subtract.outer(one[:, 1], other[:, 1]) ** 2
    return np.sqrt(square, out=square)


def _matern(distance: np.ndarray, length: float, smoothness: float) -> np.ndarray:
    """Return Matérn's correlation (Rasmussen and Williams, Gaussian Processes, 2006, eq. 4.16)."""
    if smoothness == math.inf:
        return np.exp(-0.5 * (distance / length) ** 2)
    x = distance * (math.sqrt(2 * smoothness) / length)
    out = np.exp(-x)
    if smoothness == 1.5:
        out *= 1 + x
    elif smoothness == 2.5:
        out *= 1 + x + x * x / 3
    return out


def _overlap(places: np.ndarray, window_px: float) -> np.ndarray:
    """Return the share of pixels that windows have in common, shape (n, n)."""
    rows, columns = (np.maximum(0, 1 - abs(np.subtract.outer(p, p)) / window_px) for p in places.T)
    return np.asarray(rows * columns)


def _mixed(variances: np.ndarray, even_share: float) -> np.ndarray:
    return even_share + (1 - even_share) * variances


def _shared(variances: np.ndarray, overlap: np.ndarray) -> np.ndarray:
    """Return the covariance of errors of windows that share pixels, (n, n)."""
    sigmas = np.sqrt(variances)
    return np.multiply.outer(sigmas, sigmas) * overlap
