"""Attenuation from power along depth: depth-resolved estimators.

All start from the same sum. When what is scattered back is a fixed share of what is lost, the
light that arrives at a depth is what comes back from there and from all below (Vermeer et al.,
Biomed. Opt. Express 5, 322, 2014):

    µ[i] = ln(1 + I[i] / (Σ_{j>i} I[j] + C)) / (2·Δ)

They differ in C, the light that comes back from below the last sample:

- ``vermeer``: none. µ rises without bound towards the last sample.
- ``smith`` (Smith et al., IEEE Trans. Med. Imaging 34, 2592, 2015): I_end / (2·m), with m the mean
  slope of ln √I over the A-line's tissue, a voxel.
- ``liu`` (Liu et al., J. Biomed. Opt. 24, 085002, 2019): I_last / (exp(2·µ_E·Δ) − 1), with µ_E from
  a straight line through ln I over the lowest part of the tissue.
- ``li`` (Li et al., Biomed. Opt. Express 11, 672, 2020): the same, after the noise floor was taken
  off and the tissue was cut where it comes near it.
- ``klett``: ``li`` on I^k, with µ/k as the answer (Klett, Appl. Opt. 20, 211, 1981). The share that
  is scattered back need not be fixed: µ goes with the k-th power of what comes back. k is found
  from the slice (`attenuation_exponent`).

One A-line's slope is as much anatomy as attenuation: where tissue grows brighter downwards there is
none. So µ_E is averaged over neighbours, and limited to within a factor of two of the slice's
median: a factor that parts grey from white matter (Wang et al., NeuroImage 165, 56, 2018).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from linumpy.core.device import Array, is_device_array, namespace, ndimage_of, to_host
from linumpy.geometry.resample import apply_axis_weights
from linumpy.geometry.smoothing import box_matrix, gaussian_matrix

MAX_MU_PER_MM = 50.0
_SMITH_AXIAL_SIGMA = 5.0
_INNER_SHARE = 0.97
_SLOPE_BOUND = 2.0
_MIN_SAMPLES = 5
_TINY = np.float32(1e-30)


def depth_resolved(power: Array, tissue: Array, tail: Array, axial_mm: float) -> Array:
    """Return µ from power and the light from below the tissue.

    Parameters
    ----------
    power
        float32 (z, axis 1, axis 2), not negative, NumPy or CuPy.
    tissue
        Boolean of the same shape: where µ is wanted, and what is summed.
    tail
        C, over axis 1 and axis 2.
    axial_mm
        Voxel along depth.

    Returns
    -------
    float32 µ in 1/mm, 0 outside the tissue. Where nothing comes from below, the value above is
    repeated.
    """
    xp = namespace(power)
    inside = xp.where(tissue, power, np.float32(0))
    from_below = xp.cumsum(inside[::-1], axis=0, dtype=np.float32)[::-1]
    below = xp.empty_like(inside)
    below[:-1] = from_below[1:]
    below[-1] = 0
    below += tail[None].astype(np.float32)
    known = tissue & (below > 0)
    ratio = xp.where(known, inside / xp.where(known, below, np.float32(1)), np.float32(0))
    mu = xp.log1p(ratio) / np.float32(2 * axial_mm)
    xp.minimum(mu, np.float32(MAX_MU_PER_MM), out=mu)
    last = tissue & ~known & (inside > 0)
    if bool(last.any()):
        mu[1:] = xp.where(last[1:], mu[:-1], mu[1:])
    return mu


def tail_smith(power: Array, tissue: Array, n_end: int, lateral_sigma: float) -> Array:
    """Return C of ``smith``.

    Parameters
    ----------
    power, tissue
        As in `depth_resolved`.
    n_end
        Voxels above the lower end of the tissue that are averaged for I_end.
    lateral_sigma
        Smoothing of the map of C.
    """
    xp, ndimage = namespace(power), ndimage_of(power)
    inside = xp.where(tissue, power, np.float32(0))
    smooth = ndimage.gaussian_filter1d(inside, _SMITH_AXIAL_SIGMA, axis=0, mode="constant")
    share = ndimage.gaussian_filter1d(
        tissue.astype(np.float32), _SMITH_AXIAL_SIGMA, axis=0, mode="constant"
    )
    logarithm = xp.log(xp.maximum(smooth / xp.maximum(share, np.float32(1e-6)), _TINY))
    slope = xp.maximum(-0.5 * xp.gradient(logarithm, axis=0), 0)
    # Near the tissue's ends smoothing sees one side only, which flattens the slope.
    inner = tissue & (share > _INNER_SHARE)
    inner = xp.where(inner.any(axis=0), inner, tissue)
    m = xp.where(inner, slope, 0).sum(axis=0) / xp.maximum(inner.sum(axis=0), 1)
    count = tissue.sum(axis=0)
    end = tissue & (_rank_from_below(tissue) < n_end)
    last = xp.where(end, power, np.float32(0)).sum(axis=0) / xp.maximum(end.sum(axis=0), 1)
    known = (count > 0) & (m > 0)
    tail = xp.where(known, last / xp.where(known, 2 * m, 1), 0).astype(np.float32)
    if lateral_sigma > 0:
        weight = ndimage.gaussian_filter(known.astype(np.float32), lateral_sigma)
        tail = ndimage.gaussian_filter(tail, lateral_sigma) / xp.maximum(weight, 1e-6)
    return xp.where(count > 0, tail, np.float32(0))


def fit_end(
    power: Array,
    tissue: Array,
    n_fit: int,
    axial_mm: float,
    lateral_width: int = 1,
    least_mu: float = 0.0,
) -> tuple[Array, Array]:
    """Fit a straight line through ln I over the lowest part of the tissue.

    Tissue that grows brighter downwards hides what it takes. Where the median line falls by no
    more than `least_mu`, lines go through all of the tissue.

    Parameters
    ----------
    power, tissue, axial_mm
        As in `depth_resolved`.
    n_fit
        Voxels above the lower end of the tissue that the straight line goes through.
    lateral_width
        Side of the box that the slopes are averaged over, an odd number.
    least_mu
        What tissue takes at least, 1/mm: as much as the medium around it.

    Returns
    -------
    µ_E in 1/mm and the line's power at the last voxel, over axis 1 and axis 2; 0 where there is no
    tissue, or no line anywhere, or none that falls and no `least_mu`.
    """
    xp = namespace(power)
    lit = tissue & (power > 0)
    rank = _rank_from_below(tissue)
    planes = xp.arange(power.shape[0], dtype=np.float32)[:, None, None]
    nothing = xp.zeros(power.shape[1:], np.float32)
    for n_voxels in (n_fit, len(power)):
        used = lit & (rank < n_voxels)
        count = used.sum(axis=0).astype(np.float32)
        safe = xp.maximum(count, 1)
        logarithm = xp.where(used, xp.log(xp.maximum(power, _TINY)), np.float32(0))
        centre = xp.where(used, planes, np.float32(0)).sum(axis=0) / safe
        level = logarithm.sum(axis=0) / safe
        away = xp.where(used, planes - centre, np.float32(0))
        square = (away * away).sum(axis=0)
        slope = (away * logarithm).sum(axis=0) / xp.maximum(square, 1e-6)
        mu = -slope / np.float32(2 * axial_mm)
        fitted = count >= _MIN_SAMPLES
        if not bool(fitted.any()):
            return nothing, nothing
        # The error of a slope is that of one sample over √Σ(z − mean)²: short lines say little.
        values, weights = (to_host(part[fitted]) for part in (mu, square))
        typical = float(np.quantile(values, 0.5, weights=weights, method="inverted_cdf"))
        if typical > least_mu:
            break
    typical = max(typical, least_mu)
    if not typical > 0:
        return nothing, nothing
    if lateral_width > 1:
        weight = xp.where(fitted, count, np.float32(0))
        near, share = (_box_means(part[None], lateral_width)[0] for part in (mu * weight, weight))
        mu = near / xp.maximum(share, 1e-6)
    least, most = max(least_mu, typical / _SLOPE_BOUND), typical * _SLOPE_BOUND
    mu = xp.where(fitted, mu, np.float32(typical))
    mu = xp.clip(mu, np.float32(least), np.float32(most))
    # The line at the last voxel, not its power: that is one sample of speckle.
    last_plane = xp.where(used, planes, np.float32(0)).max(axis=0)
    last = xp.exp(level - 2 * axial_mm * mu * (last_plane - centre))
    there = count > 0
    return (
        xp.where(there, mu, 0).astype(np.float32),
        xp.where(there, last, 0).astype(np.float32),
    )


def tail_of(mu_end: Array, last: Array, axial_mm: float) -> Array:
    """Return C of ``liu`` from what `fit_end` returns."""
    xp = namespace(last)
    known = mu_end > 0
    below = xp.expm1(xp.where(known, mu_end, np.float32(1)) * np.float32(2 * axial_mm))
    return xp.where(known, last / below, np.float32(0)).astype(np.float32)


def tail_through(power: Array, tissue: Array, optical_depth: Array) -> Array:
    """Return C by which µ adds up to a known optical depth.

    Parameters
    ----------
    power, tissue
        As in `depth_resolved`.
    optical_depth
        ∫ µ dz through the tissue, over axis 1 and axis 2; C is 0 where it is 0.
    """
    xp = namespace(power)
    known = optical_depth > 0
    back = xp.expm1(2 * xp.where(known, optical_depth, np.float32(1)))
    total = xp.where(tissue, power, np.float32(0)).sum(axis=0)
    return xp.where(known, total / back, np.float32(0)).astype(np.float32)


def cut_at_noise(power: Array, tissue: Array, noise: Array, snr_threshold_db: float) -> Array:
    """Return the tissue down to the deepest voxel that is well above noise (``li``).

    Parameters
    ----------
    power, tissue
        As in `depth_resolved`; the noise is subtracted already.
    noise
        Power of the noise in each plane.
    """
    xp = namespace(power)
    limit = noise * np.float32(10 ** (snr_threshold_db / 10))
    loud = tissue & (power > limit[:, None, None])
    planes = xp.arange(power.shape[0])[:, None, None]
    deepest = xp.where(loud, planes, -1).max(axis=0)
    return tissue & (planes <= deepest)


def median_by_plane(values: Array, chosen: Array) -> list[float]:
    """Return the median of what is chosen of each plane, 0 where that is nothing.

    Parameters
    ----------
    values
        float32 (z, axis 1, axis 2), NumPy or CuPy.
    chosen
        Boolean of the same shape.
    """
    if is_device_array(values):
        return median_by_plane_at_once(values, chosen)
    return [
        float(np.median(plane[mask])) if mask.any() else 0.0
        for plane, mask in zip(values, chosen, strict=True)
    ]


def median_by_plane_at_once(values: Array, chosen: Array) -> list[float]:
    """Do what `median_by_plane` does, to the bit, for all planes together.

    One plane after the other a GPU would wait for the host several times a plane.
    """
    xp = namespace(values)
    planes = len(values)
    count = chosen.reshape(planes, -1).sum(axis=1)
    ordered = xp.sort(xp.where(chosen, values, np.float32(np.inf)).reshape(planes, -1), axis=1)
    middle = xp.maximum(xp.stack([count - 1, count], axis=1) // 2, 0)
    middle = xp.minimum(middle, ordered.shape[1] - 1)
    pairs = to_host(xp.take_along_axis(ordered, middle, axis=1))
    means = (pairs[:, 0] + pairs[:, 1]) * np.float32(0.5)
    return [float(m) for m in np.where(to_host(count) > 0, means, np.float32(0))]


def box_sums(values: Array, width: int) -> Array:
    """Sum over a lateral box, as far as there is anything.

    Parameters
    ----------
    values
        float32 (z, axis 1, axis 2), NumPy or CuPy.
    width
        Side of the box, an odd number.
    """
    if width == 1:
        return values
    if is_device_array(values):
        return box_sums_by_matrices(values, width)
    return _box_means(values, width) * np.float32(width * width)


def _box_means(values: Array, width: int) -> Array:
    if is_device_array(values):
        return box_sums_by_matrices(values, width) * np.float32(1 / width**2)
    ndimage = ndimage_of(values)
    for axis in (1, 2):
        values = ndimage.uniform_filter1d(values, width, axis=axis, mode="constant")
    return values


def box_sums_by_matrices(values: Array, width: int) -> Array:
    """Do what `box_sums` does by the kernel that resamples tiles.

    That one is loaded already; CuPy's filters take longer to be imported than all else takes.
    """
    sides = values.shape[1:]
    return apply_axis_weights(values, [None, *(box_matrix(n, width) for n in sides)])


def gaussian(values: Array, sigmas: Sequence[float]) -> Array:
    """Smooth by a Gaussian of these sigmas, in voxels; beyond the borders there is nothing.

    Parameters
    ----------
    values
        float32 of three axes, NumPy or CuPy.
    """
    if is_device_array(values):
        return gaussian_by_matrices(values, sigmas)
    return ndimage_of(values).gaussian_filter(values, sigmas, mode="constant")


def gaussian_by_matrices(values: Array, sigmas: Sequence[float]) -> Array:
    """Do what `gaussian` does by the kernel that resamples tiles."""
    pairs = zip(values.shape, sigmas, strict=True)
    return apply_axis_weights(
        values, [gaussian_matrix(n, sigma) if sigma > 0 else None for n, sigma in pairs]
    )


def _rank_from_below(tissue: Array) -> Array:
    """Return how many tissue voxels of its A-line lie below each; −1 at most below the last."""
    xp = namespace(tissue)
    return xp.cumsum(tissue[::-1], axis=0, dtype=np.int32)[::-1] - 1
