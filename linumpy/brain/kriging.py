"""Split a displacement measured at points into a rigid part and a smooth residual (kriging).

The displacement is a shift, a rotation and a random field of zero mean; its covariance is estimated
from the measurements (universal kriging: Matheron, Adv. Appl. Probab. 5, 439, 1973; the covariance
is Matérn's, its smoothness among what is estimated). Places near each other then count less than
lone ones, uncertain ones less than clear ones, and what was not seen is interpolated from its
neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from linumpy.brain.covariance import Covariance, likeliest_covariance
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
_EVEN_SHARES = (0.0, 0.5, 1.0)
_MEAN_POINTS = 400
_MAX_EXACT = 256


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
    sigma_px: np.ndarray | None = None,
    smoothness: Sequence[float] = (1.5,),
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
        Lower bound of the measurements' error, root mean square along one axis.
    sigma_px
        Standard errors of the measurements, (n,), up to a common factor. The factor is estimated,
        and how much of the error is the same for all; by default all of it is.
    smoothness
        Of the rest, as many as are tried, of `SMOOTHNESS`.
    turn
        Whether there may be a rotation.
    """
    centre = area.mean(axis=0)
    used = np.ones(len(places), bool)
    stated = np.ones(len(places)) if sigma_px is None else sigma_px**2
    even_shares = (1.0,) if sigma_px is None else _EVEN_SHARES
    while True:
        seen = places[used], shifts[used], stated[used] / stated[used].mean()
        design = _design(seen[0], centre, turn)
        model = likeliest_covariance(*seen, design, window_px, smoothness, even_shares)
        model = replace(model, noise=max(model.noise, least_noise_px**2))
        inverse = _inverse(model.of_measurements(seen[0], seen[2]))
        kriging = _Kriging(seen[0], seen[1], inverse, centre, model, turn)
        while len(worst := kriging.worst()):
            used[np.flatnonzero(used)[worst]] = False
            kriging = kriging.without(worst)
        # Without the wrong ones the likeliest covariance is another, by which others are wrong.
        if used.sum() == len(seen[0]):
            break
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


class _Kriging:
    """Generalised least squares of measurements with the covariance of a field."""

    def __init__(
        self,
        places: np.ndarray,
        shifts: np.ndarray,
        inverse: np.ndarray,
        centre: np.ndarray,
        model: Covariance,
        turn: bool,
    ) -> None:
        self._places, self._shifts, self._inverse = places, shifts, inverse
        self._centre, self._model, self._turn = centre, model, turn
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

    def worst(self) -> np.ndarray:
        """Return which measurements all others contradict most, if any do, as numbers."""
        off = np.abs(self._weights / np.sqrt(self._inverse.diagonal())[:, None]).max(axis=1)
        # The worst first: those beside it look wrong for its sake.
        some = np.argsort(off)[-max(1, len(off) // _SHARE_AT_ONCE) :]
        some = some[off[some] > _OUTLIER_SIGMA]
        return some if len(off) - len(some) >= _MIN_PLACES else some[:0]

    def without(self, wrong: np.ndarray) -> _Kriging:
        """Leave measurements out; the inverse of a part of the covariance follows from that of all.

        It is a Schur complement.
        """
        keep = np.delete(np.arange(len(self._places)), wrong)
        both = self._inverse[np.ix_(wrong, keep)]
        known = solve_positive(self._inverse[np.ix_(wrong, wrong)], both)
        exact = len(self._places) <= _MAX_EXACT
        share = column_products(both, known) if exact else both.T @ known
        return _Kriging(
            self._places[keep],
            self._shifts[keep],
            self._inverse[np.ix_(keep, keep)] - share,
            self._centre,
            self._model,
            self._turn,
        )

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
