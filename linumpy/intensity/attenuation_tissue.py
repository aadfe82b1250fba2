"""Segment tissue below the cut face from agarose, from the top of each A-line downwards."""

from __future__ import annotations

import numpy as np

from linumpy.core.device import Array, like, namespace, to_host
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
_FAINT = 0.2
"""Share of the noise's amplitude to which the mean of an A-line is known: the root of one over the
root of some 500 voxels, those of a bin in 30 planes."""


def find_tissue(
    total: Array,
    count: Array,
    sigma: float,
    noise: np.ndarray,
    axial_mm: float,
    *,
    agarose_mu_per_mm: float = 0.0,
    snr_threshold_db: float = 3.0,
) -> Array:
    """Separate tissue from agarose by power; all is tissue where the two cannot be separated.

    The upper third of the A-lines says which are agarose and which show tissue. Tissue begins where
    an A-line is clearly brighter than agarose at that depth. Below, agarose would have lost the
    light that the tissue above took, and so the limit falls with the slope of the tissue. Where
    agarose would drown in noise, the two cannot be separated, and tissue continues.

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
    Boolean of the shape of `total`.
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
    if not dark.any():
        return xp.ones(total.shape, bool)
    profile = _profile(signal, known, lines[dark])
    limit = like(_TISSUE_CONTRAST**2 * profile, signal)[xp.maximum(depth, 0)]
    audible = floor * np.float32(10 ** (snr_threshold_db / 10))
    slope = _slope_below(signal, known & (signal > limit), signal > audible, axial_mm)
    excess = xp.maximum(slope - np.float32(agarose_mu_per_mm), np.float32(0))
    loss = xp.exp(excess * np.float32(-2 * axial_mm))
    return _descend(signal, known, limit, loss, audible)


def _descend(signal: Array, known: Array, limit: Array, loss: Array, audible: Array) -> Array:
    """Go down plane by plane; the limit falls by `loss` with each plane of tissue."""
    xp = namespace(signal)
    tissue = xp.zeros(signal.shape, bool)
    inside = xp.zeros(signal.shape[1:], bool)
    factor = xp.ones(signal.shape[1:], np.float32)
    for z in range(len(signal)):
        faint = limit[z] * factor
        brighter = signal[z] > faint
        inside = known[z] & xp.where(inside & (faint <= audible[z]), inside, brighter)
        tissue[z] = inside
        factor = xp.where(inside, factor * loss, factor)
    return tissue


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
