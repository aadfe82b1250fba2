"""Estimate µ of tissue well above noise, and its standard error."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from linumpy.core.device import Array, like, namespace, to_host
from linumpy.core.robust import MEDIAN_TO_SIGMA
from linumpy.intensity.attenuation_exponent import PRIOR_EXPONENT, Exponent, find_exponent
from linumpy.intensity.attenuation_tissue import Tissue, line_slope
from linumpy.intensity.compensate_attenuation_methods import (
    box_sums,
    depth_resolved,
    fit_end,
    tail_of,
    tail_smith,
    tail_through,
)
from linumpy.stage_params.intensity import AttenuationParams

_TAIL_UM = 200.0
_TINY = np.float32(1e-6)
_WINDOW_UM = 100.0
_LEAST_PLANES = 6
"""Of an A-line, whose slope says something in the mean of a region."""

_MOST_DEPARTURE = np.float32(2)
"""Largest share of µ that is stated: what classes of tissue differ by."""


@dataclass(frozen=True)
class MuEstimate:
    """µ of what is well above noise, in 1/mm, with its errors.

    Attributes
    ----------
    mu, model_error, law_error, own_error
        (z, bins, bins): what Klett's exponent, the light from below and the axial response leave
        open, the same all down an A-line; what tissue that departs from its law does; and what is a
        voxel's own, of speckle and texture.
    mu_end
        Of the line at the lower end, over the bins.
    exponent
        Klett's; 1 without an error of methods that hold it.
    """

    mu: Array
    model_error: Array
    law_error: Array
    own_error: Array
    mu_end: Array
    exponent: Exponent


def estimate_mu(
    power: Array,
    usable: Array,
    unlike: Array,
    tissue: Tissue,
    params: AttenuationParams,
    axial_mm: float,
    region: int,
    width: int,
    smith_sigma: float,
    response_errors: np.ndarray,
) -> MuEstimate:
    """Estimate µ where power is well above noise.

    Parameters
    ----------
    power
        Power without noise, float32 (z, bins, bins), NumPy or CuPy.
    usable
        Boolean of the same shape.
    unlike
        Of the same shape: by how much bins differ from the mean that `power` is, relatively
        (`log_moments`).
    tissue
        With the optical depths that agarose below tells. It takes no less than agarose.
    region
        Bins a side that slopes are averaged over.
    width
        Bins a side that `power` is averaged over.
    smith_sigma
        Smoothing of the map of C of ``smith``, bins.
    response_errors
        (errors, planes): independent standard errors of ln of the axial response.
    """
    xp = namespace(power)
    n_fit = max(5, round(_TAIL_UM / 1000 / axial_mm))
    told = tissue.optical_depth > 0
    # Tissue that ends within what is seen is steep at its end for another reason.
    goes_on = usable & ~told
    # The slope of ln P: the same whatever the exponent.
    fit = partial(fit_end, n_fit=n_fit, axial_mm=axial_mm, least_mu=tissue.agarose_mu_per_mm)
    mu_end, last = fit(power, goes_on, lateral_width=region)
    own_slope = fit(power, goes_on)[0] if region > 1 else mu_end

    def solve(
        exponent: float,
        slope: Array,
        power: Array = power,
        last: Array = last,
        depth: Array = tissue.optical_depth,
    ) -> Array:
        k = np.float32(exponent)
        scaled = power if exponent == 1 else power**k
        tail: Array = xp.zeros(power.shape[1:], np.float32)
        if params.method == "smith":
            tail = tail_smith(scaled, usable, params.tail_px, smith_sigma)
        elif params.method != "vermeer":
            tail = tail_of(slope * k, last**k, axial_mm)
            tail = xp.where(told, tail_through(scaled, usable, depth * k), tail)
        return depth_resolved(scaled, usable, tail, axial_mm) / k

    exponent = Exponent(1.0, 0.0)
    if params.method == "klett":
        optical = xp.cumsum(solve(PRIOR_EXPONENT, mu_end), axis=0) * np.float32(axial_mm)
        exponent = find_exponent(power, usable, optical, axial_mm)
    mu = solve(exponent.k, mu_end)
    law_error = mu * _departure(power, usable, mu, axial_mm, region, width)
    error = np.float32(tissue.optical_depth_error)
    ends = [
        solve(exponent.k, mu_end * np.float32(by), depth=xp.maximum(depth, error))
        for by, depth in zip(
            _slope_spread(own_slope, mu_end),
            (tissue.optical_depth - error, tissue.optical_depth + error),
            strict=True,
        )
    ]
    variance = (ends[0] - ends[1]) ** 2 / 4
    if exponent.error:
        other = [solve(max(0.1, exponent.k + sign * exponent.error), mu_end) for sign in (-1, 1)]
        variance = variance + (other[0] - other[1]) ** 2 / 4
    for error in response_errors:
        brighter = power * like(np.exp(error).astype(np.float32), power)[:, None, None]
        end = fit(brighter, goes_on, lateral_width=region)
        variance = variance + (solve(exponent.k, end[0], brighter, end[1]) - mu) ** 2
    grain = np.float32(_grain(power, usable))
    own = mu * np.float32(exponent.k) * xp.sqrt(unlike**2 + grain**2)
    return MuEstimate(mu, xp.sqrt(variance), law_error, own, mu_end, exponent)


def log_moments(
    total: Array, number: Array, noise: Array, power: Array, usable: Array, width: int
) -> tuple[Array, Array]:
    """Return mean and standard deviation of ln(power of a bin / mean power around that bin).

    Optical depths add up in logarithms. Of bins that attenuate unlike each other, the mean power
    is more and more that of the least: with it, µ of textured tissue came out 4 to 9 % too low.

    Parameters
    ----------
    total, number
        Sums of power and how many voxels are in them, float32 (z, bins, bins), NumPy or CuPy.
    noise
        Power of each plane.
    power
        Mean over `width` bins a side, without noise.
    usable
        Boolean, where both are wanted; other bins around count for nothing.
    width
        Bins a side that both are taken over, by the voxels in each.
    """
    xp = namespace(power)
    if width == 1:
        return xp.zeros_like(power), xp.zeros_like(power)
    own = total / xp.maximum(number, 1) - noise[:, None, None]
    used = usable & (number > 0) & (own > 0) & (power > 0)
    ratio = xp.log(xp.where(used, own, 1) / xp.where(used, power, 1)).astype(np.float32)
    weight = xp.where(used, number, 0).astype(np.float32)
    share = xp.maximum(box_sums(weight, width), np.float32(1))
    mean = box_sums(weight * ratio, width) / share
    # Filters that sum as they go leave less than 0 where there is nothing.
    square = xp.maximum(box_sums(weight * ratio**2, width) / share - mean**2, np.float32(0))
    return mean, xp.sqrt(square)


def _departure(
    power: Array, usable: Array, mu: Array, axial_mm: float, region: int, width: int
) -> Array:
    """Return by how much µ differs from the slopes of A-lines, in regions, as a share of µ.

    Inversion takes µ to go with what is scattered back, in all tissue by one law. A slope takes
    each A-line to be one tissue, which a border between layers contradicts. So slopes are those of
    overlapping windows, of which a border crosses two: of the four around a voxel the second
    smallest difference counts, as far as it exceeds how slopes scatter.

    Parameters
    ----------
    region
        Bins a side.
    width
        Bins a side that `power` is averaged over: so many have one error.
    """
    xp = namespace(mu)
    step = max(_LEAST_PLANES // 2, round(_WINDOW_UM / 2000 / axial_mm))
    starts = range(0, len(mu), step)
    apart = [
        _apart(power[w], usable[w], mu[w], axial_mm, region, width)
        for w in (slice(start, start + 2 * step) for start in starts)
    ]
    found, untold = xp.zeros_like(mu), np.full(mu.shape[1:], np.inf, np.float32)
    for n, start in enumerate(starts):
        # Sorting so few along the first axis takes twelve times as long.
        least = second = untold
        for values in apart[max(0, n - 2) : n + 2]:
            second = np.fmin(second, np.fmax(least, values))
            least = np.fmin(least, values)
        told = np.where(np.isfinite(second), second, least)
        found[start : start + step] = like(np.where(np.isfinite(told), told, np.float32(0)), mu)
    return found


def _apart(
    power: Array, usable: Array, mu: Array, axial_mm: float, region: int, width: int
) -> np.ndarray:
    """Return the difference of some planes over the bins, infinite where none is told.

    On the host: so few values are not worth kernels of their own.
    """
    xp = namespace(mu)
    slope, count = line_slope(power, usable, axial_mm)
    own = xp.where(usable, mu, np.float32(0)).sum(axis=0) / xp.maximum(count, 1)
    told = (count >= _LEAST_PLANES).astype(np.float32)
    parts = [told, told * slope, told * slope**2, told * own]
    found, *sums = to_host(box_sums(xp.stack(parts), region))
    number = np.maximum(found, 1)
    slope, square, own = (total / number for total in sums)
    scatter = np.maximum(square - slope**2, 0) * np.float32(width**2) / number
    apart = np.sqrt(np.maximum((slope - own) ** 2 - scatter, 0)) / np.maximum(own, _TINY)
    known = (found > 0.5) & (own > 0)
    return np.where(known, np.minimum(apart, _MOST_DEPARTURE), np.float32(np.inf))


def _slope_spread(own: Array, region: Array) -> tuple[float, float]:
    """Return factors, one standard error either way, by which slopes of bins and regions differ."""
    xp = namespace(own)
    known = (own > 0) & (region > 0)
    if not bool(known.any()):
        return 1.0, 1.0
    ratio = xp.abs(xp.log(own[known] / region[known]))
    spread = min(MEDIAN_TO_SIGMA * float(xp.median(ratio)), np.log(2.0))
    return float(np.exp(-spread)), float(np.exp(spread))


def _grain(power: Array, usable: Array) -> float:
    """Return the relative standard deviation of power from plane to plane: speckle and texture."""
    xp = namespace(power)
    used = usable & (power > 0)
    pairs = used[1:] & used[:-1]
    if not bool(pairs.any()):
        return 0.0
    logarithm = xp.log(xp.maximum(power, np.float32(1e-30)))
    step = (logarithm[1:] - logarithm[:-1])[pairs]
    step = xp.abs(step - xp.median(step))
    return MEDIAN_TO_SIGMA * float(xp.median(step)) / float(np.sqrt(2))
