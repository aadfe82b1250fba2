"""Split a displacement measured at points into a rigid part and a smooth residual (kriging).

The displacement is a shift, a rotation and a random field of zero mean; its covariance is estimated
from the measurements (universal kriging: Matheron, Adv. Appl. Probab. 5, 439, 1973; the covariance
is Matérn's of smoothness 3/2). Places near each other then count less than lone ones, and what
was not seen is interpolated from its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from linumpy.geometry.least_squares import (
    column_products,
    invert_positive,
    least_squares,
    linear_combination,
    solve_positive,
)

_OUTLIER_SIGMA = 3.0
_SHARE_AT_ONCE = 20
_MIN_PLACES = 4
_LENGTHS = 6
_NOISE_RATIOS = (1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 10.0)
_MEAN_POINTS = 400
_MAX_EXACT = 256


@dataclass(frozen=True)
class Covariance:
    """How a displacement varies over the plane.

    Attributes
    ----------
    variance
        Of the smooth field, along one axis, px².
    length_px
        Scale of Matérn's covariance.
    noise
        Variance of a single measurement, px².
    window_px
        Side of the windows that were measured: those that share pixels share their noise.
    """

    variance: float
    length_px: float
    noise: float
    window_px: float

    def between(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Return the covariance of the field at points (n, 2) and (m, 2), shape (n, m)."""
        return self.variance * _matern(_distance(one, other), self.length_px)

    def of_measurements(self, places: np.ndarray) -> np.ndarray:
        """Return the covariance of what is measured at places (n, 2), shape (n, n)."""
        return self.between(places, places) + self.noise * _overlap(places, self.window_px)

    def independent_noise(self, places: np.ndarray) -> float:
        """Return the variance of measurements that, independent, are as informative in the mean."""
        return self.noise * float(_overlap(places, self.window_px).sum(axis=1).mean())


@dataclass(frozen=True)
class SmoothDisplacement:
    """What was found of a displacement.

    Attributes
    ----------
    shift_px, turn_rad
        Rigid part over the whole area: at a point p it is ``shift + turn · J(p − centre)``, J
        rotating axis 1 to axis 2.
    shift_sigma_px, turn_sigma_rad
        Standard errors of both, of the shift along one axis.
    field_px
        The rest at the points of the area, (m, 2).
    used
        Which measurements agree with the others.
    residual_px
        What is left of those at their places, root mean square along one axis.
    """

    shift_px: np.ndarray
    turn_rad: float
    shift_sigma_px: float
    turn_sigma_rad: float
    field_px: np.ndarray
    used: np.ndarray
    covariance: Covariance
    residual_px: float


def fit_displacement(
    places: np.ndarray,
    shifts: np.ndarray,
    area: np.ndarray,
    *,
    window_px: float,
    least_noise_px: float,
    turn: bool = True,
) -> SmoothDisplacement:
    """Separate the rigid part of a displacement over an area from a smooth rest.

    Parameters
    ----------
    places, shifts
        Measurements, shape (n, 2); n up to some thousands, at least 3.
    area
        Points that cover the area evenly, (m, 2). The rest has no shift and no rotation over them.
    window_px
        Measurements so far apart share no pixels.
    least_noise_px
        Lower bound of the measurements' error.
    turn
        Whether there may be a rotation.
    """
    centre = area.mean(axis=0)
    used = np.ones(len(places), bool)
    model, fresh = None, False
    while True:
        if model is None:
            model, fresh = (
                _covariance(places[used], shifts[used], centre, window_px, least_noise_px**2, turn),
                True,
            )
        kriging = _Kriging(places[used], shifts[used], centre, model, turn)
        sigmas = kriging.left_out_sigmas()
        # The worst first: those beside it look wrong for its sake.
        worst = np.argsort(sigmas)[-max(1, len(sigmas) // _SHARE_AT_ONCE) :]
        worst = worst[sigmas[worst] > _OUTLIER_SIGMA]
        wrong = len(worst) > 0 and len(sigmas) - len(worst) >= _MIN_PLACES
        if wrong:
            used[np.flatnonzero(used)[worst]] = False
        elif fresh:
            break
        # Without the wrong ones the likeliest covariance is another, by which others are wrong.
        model, fresh = (model, False) if wrong else (None, False)
    total = kriging.at(area)
    rigid = least_squares(_design(area, centre, turn), _stacked(total))
    field = total - _unstacked(linear_combination(_design(area, centre, turn), rigid))
    sigma = kriging.sigma(area)
    left = shifts[used] - kriging.at(places[used])
    return SmoothDisplacement(
        rigid[:2],
        float(rigid[2]) if turn else 0.0,
        sigma[0],
        sigma[1] if turn else 0.0,
        field,
        used,
        model,
        float(np.sqrt(np.mean(left**2))),
    )


def _distance(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return distances of points (n, 2) from points (m, 2), shape (n, m)."""
    # An axis at a time: as vectors of two they take twice as long.
    square = np.subtract.outer(one[:, 0], other[:, 0]) ** 2
    square += np.subtract.outer(one[:, 1], other[:, 1]) ** 2
    return np.sqrt(square, out=square)


def _matern(distance: np.ndarray, length: float) -> np.ndarray:
    x = distance * (np.sqrt(3) / length)
    out = np.exp(-x)
    out *= 1 + x
    return out


def _overlap(places: np.ndarray, window_px: float) -> np.ndarray:
    """Return the share of pixels that windows have in common, shape (n, n)."""
    rows, columns = (np.maximum(0, 1 - abs(np.subtract.outer(p, p)) / window_px) for p in places.T)
    return np.asarray(rows * columns)


def _covariance(
    places: np.ndarray,
    shifts: np.ndarray,
    centre: np.ndarray,
    window_px: float,
    least_noise: float,
    turn: bool,
) -> Covariance:
    """Return the covariance under which the measurements are likeliest, whatever the rigid part.

    Restricted maximum likelihood (Patterson and Thompson, Biometrika 58, 545, 1971) on a grid of
    lengths and ratios of noise to signal; the variance follows from both.
    """
    from scipy.linalg import solve_triangular

    # A subset estimates it as well as all, in a fraction of the time.
    some = slice(None, None, -(-len(places) // _MAX_EXACT))
    places, shifts = places[some], shifts[some]
    rows = np.column_stack([_design(places, centre, turn), _stacked(shifts)])
    both = np.concatenate(np.split(rows, 2), axis=1)
    away = _distance(places, places)
    overlap = _overlap(places, window_px)
    extent = max(float(np.ptp(places, axis=0).max()), window_px)
    free = len(rows) - (rows.shape[1] - 1)
    noises = np.multiply.outer(_NOISE_RATIOS, overlap)
    best, found = -np.inf, Covariance(0.0, window_px, least_noise, window_px)
    for length in np.geomspace(window_px / 2, extent, _LENGTHS).tolist():
        # All ratios in one call, in which other threads go on.
        tables = _matern(away, length) + noises
        for ratio, factor in zip(_NOISE_RATIOS, np.linalg.cholesky(tables), strict=True):
            # Both axes have one covariance: side by side they are solved at once.
            white = solve_triangular(factor, both, lower=True, check_finite=False)
            white = np.concatenate(np.split(white, 2, axis=1))
            white_design, white_values = white[:, :-1], white[:, -1]
            normal = white_design.T @ white_design
            known = np.linalg.solve(normal, white_design.T @ white_values)
            left = white_values - white_design @ known
            variance = float((left**2).sum()) / free
            likelihood = -0.5 * (
                4 * np.log(factor.diagonal()).sum()
                + np.linalg.slogdet(normal)[1]
                + free * np.log(max(variance, 1e-12))
            )
            if likelihood > best:
                best = float(likelihood)
                found = Covariance(variance, length, max(ratio * variance, least_noise), window_px)
    return found


class _Kriging:
    """Generalised least squares of measurements with the covariance of a field."""

    def __init__(
        self,
        places: np.ndarray,
        shifts: np.ndarray,
        centre: np.ndarray,
        model: Covariance,
        turn: bool,
    ) -> None:
        self._places, self._centre, self._model, self._turn = places, centre, model, turn
        self._inverse = _inverse(model.of_measurements(places))
        design = _design(places, centre, turn)
        self._weighted = np.concatenate([self._apply(part) for part in np.split(design, 2)])
        self._normal = column_products(design, self._weighted)
        self._rigid = solve_positive(
            self._normal, column_products(self._weighted, _stacked(shifts))
        )
        left = shifts - _unstacked(linear_combination(design, self._rigid))
        self._weights = self._apply(left)

    def _apply(self, values: np.ndarray) -> np.ndarray:
        return column_products(self._inverse, values)

    def left_out_sigmas(self) -> np.ndarray:
        """Return how far each measurement is from what all others predict, in its own sigmas."""
        spread = self._inverse.diagonal()
        return np.asarray(np.abs(self._weights / np.sqrt(spread)[:, None]).max(axis=1))

    def at(self, points: np.ndarray) -> np.ndarray:
        """Return the displacement at points (m, 2)."""
        rigid = _unstacked(
            linear_combination(_design(points, self._centre, self._turn), self._rigid)
        )
        # Contiguous for each place, as columns are added up.
        between = self._model.between(self._places, points).T
        return np.asarray(rigid + linear_combination(between, self._weights))

    def sigma(self, area: np.ndarray) -> tuple[float, float]:
        """Return standard errors of the shift along one axis, and of the rotation, over an area."""
        # A few hundred points determine the mean of so smooth a field.
        some = area[:: max(1, len(area) // _MEAN_POINTS)]
        away = some - self._centre
        even = np.full(len(some), 1 / len(some))
        lever = np.stack([-away[:, 1], away[:, 0]]) / (away**2).sum()
        means = np.stack([even, np.zeros(len(some))]), lever
        first, second = (float(np.sqrt(max(self._variance(some, w), 0.0))) for w in means)
        return first, second

    def _variance(self, points: np.ndarray, weight: np.ndarray) -> float:
        """Return the variance of a weighted sum (2, m) of the displacement at points (m, 2)."""
        between = self._model.between(points, self._places)
        within = self._model.between(points, points)
        seen = column_products(between, weight.T)
        known = self._apply(seen)
        total = float((weight.T * column_products(within, weight.T)).sum() - (seen * known).sum())
        # What the uncertain rigid part adds.
        rest = column_products(_design(points, self._centre, self._turn), weight.ravel())
        rest -= column_products(_design(self._places, self._centre, self._turn), known.T.ravel())
        return total + float((rest * solve_positive(self._normal, rest)).sum())


def _inverse(table: np.ndarray) -> np.ndarray:
    """Invert a covariance; bits depend on the numbers alone, but for many measurements."""
    if len(table) <= _MAX_EXACT:
        return invert_positive(table)
    return np.linalg.inv(table)


def _design(points: np.ndarray, centre: np.ndarray, turn: bool) -> np.ndarray:
    """Return what shift and rotation do to points, shape (2·n, 2 or 3): first all of axis 1."""
    n, away = len(points), points - centre
    out = np.zeros((2 * n, 3 if turn else 2))
    out[:n, 0] = out[n:, 1] = 1
    if turn:
        out[:n, 2], out[n:, 2] = -away[:, 1], away[:, 0]
    return out


def _stacked(vectors: np.ndarray) -> np.ndarray:
    return vectors.T.ravel()


def _unstacked(values: np.ndarray) -> np.ndarray:
    return values.reshape(2, -1).T
