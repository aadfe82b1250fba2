"""Match histograms of planes: the tissue of each gets the brightness distribution of all.

Distributions are kept as quantiles, made from the bit-pattern histograms of
`linumpy.intensity.quantiles`; a plane's mapping is a table with one factor a bin of the tissue's
range, so that it costs a look-up a voxel. Values above 1 are matched like all others.
"""

from __future__ import annotations

import numpy as np

from linumpy.core.device import Array, namespace, to_host
from linumpy.intensity.quantiles import EDGES, N_BINS, WEIGHT, row_quantiles

N_QUANTILES = 512
MIN_VOXELS = 500
"""A plane with less tissue keeps its values."""

_SHIFT = 16
_QUANTILES = (np.arange(N_QUANTILES) + 0.5) / N_QUANTILES
_CENTRES = (EDGES[:-1] + EDGES[1:]) / 2


def plane_quantiles(counts: Array, min_voxels: int = MIN_VOXELS) -> np.ndarray:
    """Return the quantiles of each plane's histogram.

    Parameters
    ----------
    counts
        Shape (planes, `N_BINS`), from `quantiles.float_histogram`, NumPy or CuPy; bin 0 does not
        count.
    min_voxels
        Planes with fewer voxels get NaN.

    Returns
    -------
    float64, shape (planes, `N_QUANTILES`), on the host: at (k + 0.5) / `N_QUANTILES`.
    """
    counts = to_host(counts)
    found = np.full((len(counts), N_QUANTILES), np.nan)
    for plane, row in enumerate(counts):
        positive = np.concatenate([[0], row[1:]])
        if positive.sum() >= WEIGHT * max(1, min_voxels):
            found[plane] = row_quantiles(positive, _QUANTILES)
    return found


def matching_factors(
    source: np.ndarray, reference: np.ndarray, threshold: float
) -> tuple[int, np.ndarray]:
    """Return what the values of each plane are to be multiplied by, one factor a bin.

    Values up to `threshold` keep their value and the mapping goes on from there without a step;
    beyond the last quantile the last factor holds.

    Parameters
    ----------
    source
        Quantiles of each plane, shape (planes, `N_QUANTILES`); NaN keeps the plane as it is.
    reference
        Quantiles to reach, shape (`N_QUANTILES`,).
    threshold
        Where tissue begins.

    Returns
    -------
    The first bin of a table, and the table, float32, shape (planes, bins): bins before it have the
    factor of its first, bins after it that of its last.
    """
    goal, known = np.maximum(reference, threshold), np.maximum(source, threshold)
    matched = np.isfinite(source).all(axis=1)
    above = int(np.searchsorted(_CENTRES, threshold, "right"))
    highest = known[matched, -1].max(initial=threshold)
    stop = min(N_BINS, int(np.searchsorted(_CENTRES, highest, "right")) + 1)
    first = max(0, above - 1)
    factors = np.ones((len(source), stop - first), np.float32)
    values = _CENTRES[above:stop]
    for plane in np.flatnonzero(matched):
        ends = np.append(threshold, known[plane])
        ratio = np.interp(values, ends, np.append(threshold, goal)) / values
        ratio[values > ends[-1]] = goal[-1] / ends[-1]
        factors[plane, above - first :] = ratio
    return first, factors


def mean_of_planes(counts: Array) -> tuple[np.ndarray, np.ndarray]:
    """Return mean value and number of voxels of each plane of histograms (planes, `N_BINS`)."""
    counts = to_host(counts)[:, 1:]
    total = counts.sum(axis=1)
    return counts @ _CENTRES[1:] / np.maximum(total, 1), total // WEIGHT


def smooth_gains(
    means: np.ndarray, numbers: np.ndarray, sigma_px: float, min_voxels: int
) -> np.ndarray:
    """Return the factor of each plane that makes the means follow a smooth course in depth.

    Parameters
    ----------
    means, numbers
        Mean tissue value of each plane, and how many voxels it was taken from.
    sigma_px
        Sigma of the Gaussian over planes; 0 changes nothing.
    min_voxels
        Planes with less tissue neither count nor change.
    """
    from scipy.ndimage import gaussian_filter1d

    good = (numbers >= min_voxels) & (means > 0)
    if sigma_px <= 0 or not good.any():
        return np.ones(len(means))
    total = gaussian_filter1d(np.where(good, means, 0), sigma_px, mode="constant")
    share = gaussian_filter1d(good.astype(float), sigma_px, mode="constant")
    return np.where(good, total / np.maximum(share, 1e-12) / np.where(good, means, 1), 1)


def apply_factors(volume: Array, first: int, factors: Array) -> Array:
    """Return the factor of every voxel.

    Parameters
    ----------
    volume
        Planes (z, axis 1, axis 2), float32, NumPy or CuPy.
    first, factors
        From `matching_factors`, a row a plane; the table on the same device.
    """
    xp = namespace(volume)
    patterns = xp.ascontiguousarray(volume).view(np.uint32) >> np.uint32(_SHIFT)
    # Patterns from N_BINS on have the sign bit: below zero, which is no tissue.
    patterns[patterns >= N_BINS] = 0
    xp.clip(patterns, first, first + factors.shape[1] - 1, out=patterns)
    patterns -= np.uint32(first)
    planes = xp.arange(len(volume))[:, None, None]
    return factors[planes, patterns]
