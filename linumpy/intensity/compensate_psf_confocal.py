"""Fit the confocal response, roll-off and the attenuation of agarose to its profile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from linumpy.core.robust import robust_spread
from linumpy.geometry.least_squares import column_products, solve_positive
from linumpy.intensity.compensate_psf_profile import AxialProfile

_MAX_MU_PER_MM = 8.0
_KNOWN_MU = {"agarose": (0.3, 0.2), "tissue": (2.0, 1.0)}
"""Attenuation to be expected, and how surely, 1/mm."""

_LN_4 = float(np.log(4))
ROLLOFF_UM = 1000.0
"""Depth of 6 dB of the strongest roll-off to be expected: Leitgeb et al. measure and compute 1 to
3 mm for spectrometers; swept sources lose less."""

_MAX_ROLLOFF = 16.0
"""In units of that at `ROLLOFF_UM`: 6 dB in a quarter of it."""

_SIGNIFICANT = 9.0
"""By how much roll-off must lower chi², of which misfit explains none: three standard errors."""

_NO_ROLLOFF = 1e-9
"""Of a fit without: bounds must differ."""

_OUTLIER = 4.0
"""Standard deviations above what other planes say: one of 30 000 of noise."""

_MOST_OUTLIERS = 0.25
"""Share of the planes; where more stand out, the model is wrong rather than they."""

_MISFIT_SIGMA = 3.0
"""Planes that the misfit is averaged over, against the noise of single ones."""

_N_STARTS = 5
_N_ERRORS = 2
_LN_2 = float(np.log(2))


@dataclass(frozen=True)
class Confocal:
    """A fitted response.

    Attributes
    ----------
    level
        ln power at the top of the volume, in focus.
    rolloff
        In units of that whose 6 dB lie at `ROLLOFF_UM`; 0 where it is not clearly seen.
    log_errors
        (errors, planes): the largest independent standard errors of ln response without its level,
        what the fit leaves of the profile among them.
    counts
        Whether each plane of the profile counted.
    """

    focus_um: float
    rayleigh_um: float
    mu_per_mm: float
    level: float
    rolloff: float
    log_errors: np.ndarray
    counts: np.ndarray

    def log_response(self, depth: np.ndarray) -> np.ndarray:
        """Return ln of the power response."""
        return _log_response(
            np.array([self.focus_um, np.log(self.rayleigh_um), 0, 0, self.rolloff]), depth
        )


def fit_confocal(depth: np.ndarray, found: AxialProfile, zr_initial_um: float) -> Confocal:
    """Fit focus, Rayleigh length, attenuation, level and, in agarose, roll-off.

    Planes of agarose that stand out between others do not count (`standing_out`); a bright layer of
    tissue is anatomy, to which the others belong as well.

    Parameters
    ----------
    depth
        Of all planes of a tile.
    """
    from scipy.ndimage import gaussian_filter1d
    from scipy.optimize import least_squares

    mu_known = _KNOWN_MU[found.medium]
    seed = np.log(zr_initial_um)
    # Infinitely uncertain where faces carry no information.
    mu_seen = (found.mu_per_mm, found.mu_error)
    seen = slice(found.start, found.stop)
    inside = depth[seen]
    counts = np.ones(len(inside), bool)

    def deviations(values: np.ndarray) -> np.ndarray:
        fitted = values[3] + _log_response(values, inside) - 2e-3 * values[2] * inside
        priors = [
            (values[1] - seed) / _LN_2,
            (values[2] - mu_known[0]) / mu_known[1],
            (values[2] - mu_seen[0]) / mu_seen[1],
            values[4],
        ]
        return np.append(counts * (fitted - found.log_power) / found.error, priors)

    span = inside[-1] - inside[0]
    low = [inside[0] - 2 * span, np.log(0.05 * span), 0.0, -np.inf]
    high = [inside[-1] + 2 * span, np.log(100 * span), _MAX_MU_PER_MM, np.inf]
    level = float(found.log_power.mean())
    start = float(np.clip(seed, low[1] + 0.1, high[1] - 0.1))

    def best(most: float, loss: str = "linear") -> Any:
        fits = [
            least_squares(
                deviations,
                [focus, start, mu_known[0], level, min(0.1, most / 2)],
                bounds=([*low, 0.0], [*high, most]),
                x_scale=[0.2 * span, 0.3, 0.3, 1.0, 0.5],
                loss=loss,
            )
            for focus in np.linspace(inside[0], inside[-1], _N_STARTS)
        ]
        return min(fits, key=lambda fit: float(fit.cost))

    agarose = found.medium == "agarose"
    if agarose:
        # Beyond a standard error deviations count by their size alone: few planes move it little.
        robust = best(_MAX_ROLLOFF, "soft_l1").x
        counts = ~standing_out(-deviations(robust)[: len(inside)])
    plain, falling = best(_NO_ROLLOFF), best(_MAX_ROLLOFF)
    # Errors of planes are seen between tiles; what all share shows in the misfit.
    misfit = max(1.0, 2 * float(falling.cost) / max(1, counts.sum() - 5))
    # The anatomy of tissue is curved, too.
    clear = agarose and 2 * (plain.cost - falling.cost) > _SIGNIFICANT * misfit
    chosen = falling.x if clear else plain.x * [1, 1, 1, 1, 0]
    errors = _slopes(depth, falling.x) * np.sqrt(misfit)
    covariance = solve_positive(column_products(falling.jac, falling.jac), np.eye(5))
    # What roll-off may do that is not taken for seen is an error, too.
    other = (_log_response(chosen, depth) - _log_response(falling.x, depth))[:, None]
    # So is what the profile shows and no such response describes, whatever the fit's own errors.
    fitted = chosen[3] + _log_response(chosen, inside) - 2e-3 * chosen[2] * inside
    residual = np.interp(inside, inside[counts], (found.log_power - fitted)[counts])
    smooth = gaussian_filter1d(residual, _MISFIT_SIGMA, mode="nearest")
    shape = np.interp(depth, inside, smooth)[:, None]
    focus, log_rayleigh, mu, level, rolloff = (float(value) for value in chosen)
    return Confocal(
        focus,
        float(np.exp(log_rayleigh)),
        mu,
        level,
        rolloff,
        _principal(errors @ covariance @ errors.T + other @ other.T + shape @ shape.T, seen),
        counts,
    )


def standing_out(above: np.ndarray) -> np.ndarray:
    """Say which planes are brighter than a fit, beyond noise, between planes that are not.

    The optics reflect at a fixed depth; what the model of a response lacks shows at the ends.

    Parameters
    ----------
    above
        ln power over that of the fit, in standard errors.
    """
    deviation = above - np.median(above)
    out = deviation > _OUTLIER * max(1.0, robust_spread(deviation))
    within = np.flatnonzero(~out)
    out[: within[0]] = out[within[-1] :] = False
    return np.asarray(out) if out.mean() <= _MOST_OUTLIERS else np.zeros_like(out)


def _log_response(values: np.ndarray, depth: np.ndarray) -> np.ndarray:
    """Return ln of the power response of a focus, ln Rayleigh length, …, and roll-off."""
    log_h = -np.log1p(((depth - values[0]) / np.exp(values[1])) ** 2)
    return np.asarray(log_h - values[4] * _LN_4 * (depth / ROLLOFF_UM) ** 2)


def _slopes(depth: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the derivatives of ln response, (planes, values)."""
    out = np.empty((len(depth), len(values)))
    for n, step in enumerate([1.0, 1e-3, 1e-3, 1e-3, 1e-3]):
        by = step * (np.arange(len(values)) == n)
        out[:, n] = _log_response(values + by, depth) - _log_response(values - by, depth)
        out[:, n] /= 2 * step
    return out


def _principal(covariance: np.ndarray, seen: slice) -> np.ndarray:
    """Return the largest independent errors of a covariance, without their mean over `seen`."""
    keep = np.eye(len(covariance))
    keep[:, seen] -= 1 / (seen.stop - seen.start)
    variances, vectors = np.linalg.eigh(keep @ covariance @ keep.T)
    errors = (vectors * np.sqrt(np.maximum(variances, 0)))[:, : -_N_ERRORS - 1 : -1].T
    # The sign of an eigenvector is arbitrary.
    return np.asarray(errors * np.where(errors[:, -1:] < 0, -1, 1))
