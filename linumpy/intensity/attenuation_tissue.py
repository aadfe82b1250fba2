"""Segment tissue below the cut face from agarose, from the top of each A-line downwards."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from linumpy.core.device import Array, like, namespace, to_host
from linumpy.core.robust import MEDIAN_TO_SIGMA
from linumpy.intensity.compensate_attenuation_methods import box_sums, gaussian
from linumpy.intensity.quantiles import otsu_threshold

_MIN_CONTRAST = 2.0
_TISSUE_CONTRAST = 1.5
_MIN_SHARE = 0.005
_MAX_SAMPLES = 4096
_SLOPE_UM = 200.0
_SLOPE_BINS = 3
_STEEP_QUANTILE = 0.9
_MIN_SAMPLES = 5
_BELOW_UM = 100.0
_BELOW_BINS = 5
_BELOW_SHARE = 0.5
"""Depth and bins over which what lies below tissue is known for agarose, and its least power in
them as a share of the noise's: of the mean of some 2000 voxels that is known to 5 %."""
_FLAT_QUANTILE = 0.25
_FAINT = 0.2
"""Share of the noise's amplitude to which the mean of an A-line is known: the root of one over the
root of some 500 voxels, those of a bin in 30 planes."""


@dataclass(frozen=True)
class Tissue:
    """What of a slice is tissue, and what agarose below it tells.

    Attributes
    ----------
    mask
        Boolean (z, bins, bins), NumPy or CuPy.
    optical_depth
        ∫ µ dz through all tissue of an A-line, float32 over the bins; 0 where no agarose is seen
        below.
    optical_depth_error
        Standard error of those.
    """

    mask: Array
    optical_depth: Array
    optical_depth_error: float


def find_tissue(
    total: Array,
    count: Array,
    sigma: float,
    noise: np.ndarray,
    axial_mm: float,
    *,
    agarose_mu_per_mm: float = 0.0,
    snr_threshold_db: float = 3.0,
) -> Tissue:
    """Separate tissue from agarose by power; all is tissue where the two cannot be separated.

    The upper third of the A-lines says which are agarose and which show tissue. Tissue begins where
    an A-line is clearly brighter than agarose at that depth. Below, agarose would have lost the
    light that the tissue above took, and so the limit falls with the slope of the tissue. Tissue
    also ends where power is no more than that of agarose, and falls as slowly. Where
    agarose would drown in noise, the two cannot be separated, and tissue continues.

    Agarose seen through tissue is as much darker than agarose alone as the tissue takes light: a
    medium known on the far side tells optical depth without a law of tissue (lidar: Young, Appl.
    Opt. 34, 7019, 1995).

    Parameters
    ----------
    total, count
        Sum of squares and number of valid voxels a bin, (z, bins, bins), NumPy or CuPy.
    sigma
        Lateral smoothing, bins.
    noise
        Power of the noise in each plane, on the host; 0 where it is not known.
    axial_mm
        Voxel along depth.
    agarose_mu_per_mm
        What agarose attenuates.
    snr_threshold_db
        Lowest signal to noise at which power is used.

    """
    xp = namespace(total)
    sums, weight = (gaussian(part, (1, sigma, sigma)) for part in (total, count))
    floor = like(np.asarray(noise, np.float32), total)[:, None, None]
    signal = xp.maximum(sums / xp.maximum(weight, 1e-6) - floor, np.float32(0))
    known = count > 0
    # Depths count from each A-line's first voxel: faces may be tilted.
    depth = xp.cumsum(known, axis=0, dtype=np.int32) - 1
    faint = _FAINT * float(np.sqrt(np.median(noise)))
    lines, dark = _agarose_lines(xp.sqrt(signal), known, depth, faint)
    unknown = xp.zeros(total.shape[1:], np.float32)
    if not dark.any():
        return Tissue(xp.ones(total.shape, bool), unknown, 0.0)
    profile = like(_profile(signal, known, lines[dark]), signal)[xp.maximum(depth, 0)]
    limit = np.float32(_TISSUE_CONTRAST**2) * profile
    audible = floor * np.float32(10 ** (snr_threshold_db / 10))
    slope = _slope_below(signal, known & (signal > limit), signal > audible, axial_mm)
    excess = xp.maximum(slope - np.float32(agarose_mu_per_mm), np.float32(0))
    loss = xp.exp(excess * np.float32(-2 * axial_mm))
    # Relative to agarose: below tissue that does not change any more.
    bare = known & (profile > 0)
    scale = xp.where(bare, profile, np.float32(1))
    ratio = xp.where(bare, (sums / xp.maximum(weight, 1e-6) - floor) / scale, np.float32(0))
    least = np.float32(_BELOW_SHARE) * floor / scale
    half = max(_MIN_SAMPLES, round(_BELOW_UM / 2000 / axial_mm))
    steady = to_host(excess[excess > 0])
    usual = float(np.quantile(steady, _FLAT_QUANTILE)) if steady.size else 0.0
    level, flat = _flat(ratio, least, half, np.float32(usual * axial_mm * half))
    # Nothing above agarose makes it brighter.
    below = flat & (level <= 1)
    mask = _descend(signal, known, limit, loss, audible, below, level)
    taken, error = _taken(ratio, known & below, mask, lines[dark])
    thickness = mask.sum(axis=0).astype(np.float32) * np.float32(axial_mm)
    through = xp.where(taken > 0, taken + np.float32(agarose_mu_per_mm) * thickness, np.float32(0))
    return Tissue(mask, through, error)


def _flat(ratio: Array, least: Array, half: int, limit: np.float32) -> tuple[Array, Array]:
    """Return means of the planes below each voxel, and whether they fall by less than a limit.

    Over twice `half` planes, and neighbouring A-lines; at the lower end over the last ones. What is
    less than `least` is not known.

    Returns
    -------
    Means over the first half, and booleans; the limit is one of logarithms.
    """
    xp = namespace(ratio)
    planes = len(ratio)
    if planes < 2 * half:
        return xp.zeros_like(ratio), xp.zeros(ratio.shape, bool)
    share = np.float32(1 / (half * _BELOW_BINS**2))
    sums = xp.zeros((planes + 1, *ratio.shape[1:]), np.float32)
    sums[1:] = xp.cumsum(box_sums(ratio, _BELOW_BINS), axis=0) * share
    starts = np.minimum(np.arange(planes), planes - 2 * half)
    upper = sums[starts + half] - sums[starts]
    lower = sums[starts + 2 * half] - sums[starts + half]
    return upper, (xp.minimum(upper, lower) > least) & (upper < lower * np.exp(limit))


def _descend(
    signal: Array,
    known: Array,
    limit: Array,
    loss: Array,
    audible: Array,
    below: Array,
    level: Array,
) -> Array:
    """Go down plane by plane; the limit falls by `loss` with each plane of tissue.

    Tissue ends where `below` says so. More of it would be brighter than agarose of that `level`.
    """
    xp = namespace(signal)
    tissue = xp.zeros(signal.shape, bool)
    inside = xp.zeros(signal.shape[1:], bool)
    factor = xp.ones(signal.shape[1:], np.float32)
    for z in range(len(signal)):
        faint = limit[z] * factor
        brighter = signal[z] > faint
        here = known[z] & xp.where(inside & (faint <= audible[z]), inside, brighter)
        ends = inside & below[z]
        factor = xp.where(ends, level[z], factor)
        inside = here & ~ends
        tissue[z] = inside
        factor = xp.where(inside, factor * loss, factor)
    return tissue


def _taken(ratio: Array, below: Array, tissue: Array, dark: np.ndarray) -> tuple[Array, float]:
    """Return what tissue takes beyond agarose of its thickness, ½·ln of power, and its error.

    0 where too little is seen of the agarose below. The error is how unlike agarose is elsewhere.

    Parameters
    ----------
    dark
        A-lines of agarose alone.
    """
    xp = namespace(ratio)
    tissue_below = xp.cumsum(tissue[::-1], axis=0, dtype=np.int32)[::-1] > 0
    used = below & ~tissue_below & tissue.any(axis=0)
    parts = xp.stack([xp.where(used, ratio, np.float32(0)).sum(axis=0), used.sum(axis=0)])
    total, count = box_sums(parts.astype(np.float32), _SLOPE_BINS)
    seen = used.any(axis=0) & (count >= _MIN_SAMPLES) & (total > 0)
    taken = xp.where(seen, xp.log(xp.where(seen, count / xp.maximum(total, 1e-9), 1)) / 2, 0)
    lines = dark[:: max(1, len(dark) // _MAX_SAMPLES)]
    level = to_host(ratio.mean(axis=0).ravel()[like(lines, ratio)])
    error = MEDIAN_TO_SIGMA * float(np.median(np.abs(level - np.median(level)))) / 2
    return taken.astype(np.float32), error


def _agarose_lines(
    amplitude: Array, known: Array, depth: Array, faint: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return A-lines that are long enough to judge, and which of them are agarose.

    Below bubbles A-lines show nothing, whose logarithm would draw the threshold: less than `faint`
    counts as that.
    """
    xp = namespace(amplitude)
    nothing = np.zeros(0, int), np.zeros(0, bool)
    n_known = to_host(depth[-1]) + 1
    if not n_known.any():
        return nothing
    n_upper = max(1, int(np.median(n_known[n_known > 0])) // 3)
    upper = known & (depth < n_upper)
    lines = np.flatnonzero(n_known.ravel() >= n_upper)
    level = to_host(xp.where(upper, amplitude, 0).sum(axis=0)).ravel()[lines] / n_upper
    lines, level = lines[level > 0], level[level > 0]
    logarithm = np.log(np.maximum(level, faint))
    if not level.size or np.ptp(logarithm) == 0:
        return nothing
    dark = logarithm < otsu_threshold(logarithm)
    if not _MIN_SHARE < dark.mean() < 1 - _MIN_SHARE:
        return nothing
    if np.median(level[~dark]) < _MIN_CONTRAST * np.median(level[dark]):
        return nothing
    return lines, dark


def _profile(signal: Array, known: Array, lines: np.ndarray) -> np.ndarray:
    """Return the median of some A-lines by depth below their first voxels, held below the last."""
    planes = len(signal)
    lines = lines[:: max(1, len(lines) // _MAX_SAMPLES)]
    there = like(lines, signal)
    values, seen = (to_host(part.reshape(planes, -1)[:, there]) for part in (signal, known))
    rows = np.minimum(seen.argmax(axis=0) + np.arange(planes)[:, None], planes - 1)
    aligned = np.take_along_axis(values, rows, axis=0)
    reached = np.arange(planes)[:, None] < seen.sum(axis=0)
    enough = np.flatnonzero(2 * reached.sum(axis=1) >= len(lines))
    median = [np.median(aligned[z, reached[z]]) for z in enough]
    return np.interp(np.arange(planes), enough, median).astype(np.float32)


def _slope_below(signal: Array, bright: Array, loud: Array, axial_mm: float) -> Array:
    """Return µ of a straight line through ln P below the first bright voxel of each A-line, 1/mm.

    Slopes are averaged over neighbours and bounded by the steep ones of the slice: a line that ends
    in agarose is steep for another reason.
    """
    xp = namespace(signal)
    begun = xp.cumsum(bright, axis=0, dtype=np.int32) > 0
    rank = xp.cumsum(begun, axis=0, dtype=np.int32)
    used = begun & loud & (rank <= max(_MIN_SAMPLES, round(_SLOPE_UM / 1000 / axial_mm)))
    slope, count = line_slope(signal, used, axial_mm)
    fitted = count >= _MIN_SAMPLES
    weight = xp.where(fitted, count, np.float32(0))
    near, share = (box_sums(part[None], _SLOPE_BINS)[0] for part in (slope * weight, weight))
    slope = near / xp.maximum(share, np.float32(1e-6))
    if not bool(fitted.any()):
        return xp.zeros_like(slope)
    steep = float(np.quantile(to_host(slope[fitted]), _STEEP_QUANTILE))
    return xp.clip(slope, 0, max(steep, 0.0)).astype(np.float32)


def line_slope(power: Array, used: Array, axial_mm: float) -> tuple[Array, Array]:
    """Return µ of a straight line through the logarithm of the power, and the samples used.

    Parameters
    ----------
    power
        float32 (z, axis 1, axis 2), not negative.
    used
        Boolean of the same shape.
    axial_mm
        Voxel along depth.

    Returns
    -------
    −slope / 2 in 1/mm and counts, float32 over axis 1 and axis 2; 0 where nothing is used.
    """
    xp = namespace(power)
    used = used & (power > 0)
    planes = xp.arange(len(power), dtype=np.float32)[:, None, None] * np.float32(axial_mm)
    count = used.sum(axis=0).astype(np.float32)
    safe = xp.maximum(count, 1)
    logarithm = xp.where(used, xp.log(xp.maximum(power, np.float32(1e-30))), np.float32(0))
    centre = xp.where(used, planes, np.float32(0)).sum(axis=0) / safe
    away = xp.where(used, planes - centre, np.float32(0))
    square = (away * away).sum(axis=0)
    slope = (away * logarithm).sum(axis=0) / xp.maximum(square, np.float32(1e-12))
    return (slope * np.float32(-0.5)).astype(np.float32), count
