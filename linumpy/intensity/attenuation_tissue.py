"""Segment tissue below the cut face from agarose, from the top of each A-line downwards."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from linumpy.core.device import Array, like, namespace, to_host
from linumpy.core.robust import MEDIAN_TO_SIGMA
from linumpy.intensity.compensate_attenuation_methods import box_sums, gaussian
from linumpy.intensity.quantiles import otsu_threshold
from linumpy.intensity.tissue import TISSUE_CONTRAST, TISSUE_RANGE

_MIN_CONTRAST = 2.0
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
_LEAST_SHARE = 0.5
_STRUCTURE = float(np.log(TISSUE_RANGE))
"""Share of what the upper half of tissue says that all of it took, which agarose below confirms,
but for so much of ln power as structure, and the rim of what ends obliquely, may add to it: half of
what grey and white matter differ by."""
_FLAT_QUANTILE = 0.25
_TINY = np.float32(1e-30)
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
        Standard error of those: how unlike single blocks of agarose are.
    agarose_mu_per_mm
        What agarose attenuates.
    """

    mask: Array
    optical_depth: Array
    optical_depth_error: float
    agarose_mu_per_mm: float = 0.0


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

    Returns
    -------
    Its mask is all over the slice, and no optical depth is known, where no agarose is.
    """
    xp = namespace(total)
    sums, weight = (gaussian(part, (1, sigma, sigma)) for part in (total, count))
    floor = like(np.asarray(noise, np.float32), total)[:, None, None]
    signal = xp.maximum(sums / xp.maximum(weight, 1e-6) - floor, np.float32(0))
    known = count > 0
    # Depths count from each A-line's first voxel: faces may be tilted.
    depth = xp.cumsum(known, axis=0, dtype=np.int32) - 1
    faint = _FAINT * float(np.sqrt(np.median(noise)))
    lines = _agarose_lines(xp.sqrt(signal), known, depth, faint)
    unknown = xp.zeros(total.shape[1:], np.float32)
    if not len(lines):
        return Tissue(xp.ones(total.shape, bool), unknown, 0.0, agarose_mu_per_mm)
    profile = like(_profile(signal, known, lines), signal)[xp.maximum(depth, 0)]
    limit = profile * np.float32(TISSUE_CONTRAST**2)
    audible = floor * np.float32(10 ** (snr_threshold_db / 10))
    bright = known & (signal > limit)
    slope = _slope_below(signal, bright, signal > audible, axial_mm)
    excess = xp.maximum(slope - np.float32(agarose_mu_per_mm), np.float32(0))
    loss = xp.exp(excess * np.float32(-2 * axial_mm))
    steady = to_host(excess[excess > 0])
    usual = float(np.quantile(steady, _FLAT_QUANTILE)) if steady.size else 0.0
    step = max(1, -(-round(_BELOW_UM / axial_mm / 1000) // 4))
    level, far = _blocks(signal, profile, floor, known, step)
    first = -(-bright.argmax(axis=0) // step)
    below = _below(level, far, first, usual * axial_mm * 2 * step)
    mask = _descend(signal, known, limit, loss, audible, below, level, step)
    taken = _taken(level, below, mask, step)
    alone = to_host(level).reshape(len(level), unknown.size)[:, lines]
    alone = alone[alone > 0]
    apart = np.abs(alone - np.median(alone)) if alone.size else np.zeros(1)
    error = MEDIAN_TO_SIGMA * float(np.median(apart)) / 2
    thickness = mask.sum(axis=0).astype(np.float32) * np.float32(axial_mm)
    through = xp.where(taken > 0, taken + np.float32(agarose_mu_per_mm) * thickness, np.float32(0))
    return Tissue(mask, through, error, agarose_mu_per_mm)


def _blocks(
    signal: Array, profile: Array, floor: Array, known: Array, step: int
) -> tuple[Array, Array]:
    """Return power over that of agarose, and noise over it, as means of blocks of `step` planes.

    Power also over neighbouring A-lines. Below tissue its ratio to agarose changes no more.

    Returns
    -------
    float32 (blocks, bins, bins): planes that fill no block are left out. 0 where little is known.
    """
    xp = namespace(signal)
    n = len(signal) // step
    ratio, noise, count = (xp.zeros((n, *signal.shape[1:]), np.float32) for _ in range(3))
    # Block by block: temporary arrays of all planes take longer than the sums.
    for block in range(n):
        planes = slice(block * step, (block + 1) * step)
        used = known[planes] & (profile[planes] > 0)
        share = used / xp.where(used, profile[planes], np.float32(1))
        ratio[block] = (signal[planes] * share).sum(axis=0)
        count[block] = used.sum(axis=0)
        noise[block] = (floor[planes] * share).sum(axis=0) / xp.maximum(count[block], 1)
    ratio, count = box_sums(ratio, _BELOW_BINS), box_sums(count, _BELOW_BINS)
    enough = count > np.float32(0.5 * step * _BELOW_BINS**2)
    return xp.where(enough, ratio / xp.maximum(count, 1), np.float32(0)), noise


def _below(level: Array, noise: Array, first: Array, limit: float) -> Array:
    """Return which blocks have agarose below tissue: from there on it falls as slowly as alone.

    Tissue begins with the `first` block, int over the bins. Two blocks are compared with the two
    below them: tissue would fall by more than a limit of logarithms, but where it grows brighter
    downwards. Agarose is as much darker as the tissue above says. At the lower end, what the last
    blocks show goes on.
    """
    xp = namespace(level)
    found = xp.zeros(level.shape, bool)
    if len(level) < 4:
        return found
    pairs = level[1:] + level[:-1]
    upper, lower = pairs[:-2], pairs[2:]
    flat = upper < lower * np.float32(np.exp(limit))
    flat &= upper <= 2 * _most_below(level, first)[:-3]
    audible = xp.minimum(upper, lower) > noise[:-3] * np.float32(2 * _BELOW_SHARE)
    found[:-3] = flat & audible
    found[-3:] = found[-4]
    return found


def _most_below(level: Array, first: Array) -> Array:
    """Return how bright agarose may be at most, by what the upper half of the tissue took.

    Tissue that goes on has fallen evenly down to a block; where it ends, power falls from its
    own backscatter to that of agarose at once, and is then less by all that the tissue took.
    """
    xp = namespace(level)
    logarithm = xp.log(xp.maximum(level, _TINY))
    most = xp.ones_like(level)
    top = xp.take_along_axis(logarithm, xp.clip(first, 0, len(level) - 1)[None], axis=0)[0]
    for block in range(1, len(level)):
        half = xp.clip((first + block) // 2, 0, len(level) - 1)
        fall = top - xp.take_along_axis(logarithm, half[None], axis=0)[0]
        least = fall * np.float32(2 * _LEAST_SHARE) - np.float32(_STRUCTURE)
        most[block] = xp.exp(-xp.maximum(least, np.float32(0)))
    return most


def _descend(
    signal: Array,
    known: Array,
    limit: Array,
    loss: Array,
    audible: Array,
    below: Array,
    level: Array,
    step: int,
) -> Array:
    """Go down plane by plane; the limit falls by `loss` with each plane of tissue.

    Tissue ends where the block of planes that begins there is `below` it. More of it would be
    brighter than agarose of that `level`.
    """
    xp = namespace(signal)
    tissue = xp.zeros(signal.shape, bool)
    inside = xp.zeros(signal.shape[1:], bool)
    factor = xp.ones(signal.shape[1:], np.float32)
    for z in range(len(signal)):
        faint = limit[z] * factor
        brighter = signal[z] > faint
        here = known[z] & xp.where(inside & (faint <= audible[z]), inside, brighter)
        if z % step == 0 and z // step < len(below):
            ends = inside & below[z // step]
            factor = xp.where(ends, level[z // step], factor)
            here &= ~ends
        inside = here
        tissue[z] = inside
        factor = xp.where(inside, factor * loss, factor)
    return tissue


def _taken(level: Array, below: Array, tissue: Array, step: int) -> Array:
    """Return what tissue takes beyond agarose of its thickness, ½·ln of power; 0 where unknown."""
    xp = namespace(level)
    n = len(level)
    if not n:
        return xp.zeros(tissue.shape[1:], np.float32)
    there = tissue[: n * step].reshape(n, step, *tissue.shape[1:]).any(axis=1)
    deepest = xp.where(there, xp.arange(1, n + 1)[:, None, None], 0).max(axis=0)
    used = below & (xp.arange(n)[:, None, None] >= deepest) & (deepest > 0)
    count = used.sum(axis=0).astype(np.float32)
    total = xp.where(used, level, np.float32(0)).sum(axis=0)
    seen = total > 0
    taken = xp.log(xp.where(seen, count / xp.where(seen, total, 1), 1)) / 2
    return xp.where(seen, taken, 0).astype(np.float32)


def _agarose_lines(amplitude: Array, known: Array, depth: Array, faint: float) -> np.ndarray:
    """Return which A-lines, of those that are long enough to judge, show agarose alone.

    Below bubbles A-lines show nothing, whose logarithm would draw the threshold: less than `faint`
    counts as that.
    """
    xp = namespace(amplitude)
    nothing = np.zeros(0, int)
    n_known = to_host(depth[-1]) + 1
    if not n_known.any():
        return nothing
    n_upper = max(1, int(np.median(n_known[n_known > 0])) // 3)

    def mean_between(first: int, stop: int) -> np.ndarray:
        # No plane above shows that depth.
        there, below = known[first:], depth[first:]
        part = there & (below >= first) & (below < stop)
        return to_host(xp.where(part, amplitude[first:], 0).sum(axis=0)).ravel() / (stop - first)

    level = mean_between(0, n_upper)
    lines = np.flatnonzero((n_known.ravel() >= n_upper) & (level > 0))
    level = level[lines]
    logarithm = np.log(np.maximum(level, faint))
    if not level.size or np.ptp(logarithm) == 0:
        return nothing
    dark = logarithm < otsu_threshold(logarithm)
    if not _MIN_SHARE < dark.mean() < 1 - _MIN_SHARE:
        return nothing
    usual = np.median(level[dark])
    if np.median(level[~dark]) < _MIN_CONTRAST * usual:
        return nothing
    # Above a dome there is agarose, and tissue below, which is brighter: agarose never becomes so.
    alone = lines[dark]
    half = max(1, n_upper // 2)
    for first in range(n_upper, int(n_known.max()), half):
        alone = alone[mean_between(first, first + half)[alone] < _MIN_CONTRAST * usual]
    return alone if len(alone) > _MIN_SHARE * len(lines) else lines[dark]


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
    logarithm = xp.where(used, xp.log(xp.maximum(power, _TINY)), np.float32(0))
    centre = xp.where(used, planes, np.float32(0)).sum(axis=0) / safe
    away = xp.where(used, planes - centre, np.float32(0))
    square = (away * away).sum(axis=0)
    slope = (away * logarithm).sum(axis=0) / xp.maximum(square, np.float32(1e-12))
    return (slope * np.float32(-0.5)).astype(np.float32), count
