"""Quantiles and thresholds of volumes too large to sort, from additive histograms.

A bin is the upper half of a float32's bit pattern, so bins are about 0.8 % wide at any magnitude
and need no range given beforehand. Counts are integers: blocks may be added in any order, on any
device, with the same result.
"""

from __future__ import annotations

import numpy as np

from linumpy.core.device import Array, is_device_array, to_host

N_BINS = 1 << 15
_SHIFT = 16
_LARGEST_PATTERN = np.float32(np.finfo(np.float32).max).view(np.uint32)


def float_histogram(
    values: Array, selected: Array | None = None, columns: Array | None = None
) -> Array:
    """Count the positive values of each plane in bit-pattern bins; others count as zero.

    Parameters
    ----------
    values
        float32, shape (planes, n), NumPy or CuPy.
    selected
        Mask of the same shape, boolean or uint8: what to count. None counts everything.
    columns
        Boolean of shape (n,): which columns to count at all; None for all of them.

    Returns
    -------
    int64 array of shape (planes, `N_BINS`), where `values` lies; bin 0 holds zeros and negatives.
    """
    if is_device_array(values):
        from linumpy.geometry.kernels import pattern_counts

        return pattern_counts(values, selected, columns, N_BINS)
    counts = np.zeros((len(values), N_BINS), np.int64)
    for plane, row in enumerate(values):
        chosen = None if columns is None else to_host(columns)
        if selected is not None:
            mask = selected[plane] > 0
            chosen = mask if chosen is None else chosen & mask
        row = np.ascontiguousarray(row, np.float32)
        if chosen is not None and not chosen.all():
            row = row[chosen]
        patterns = row.view(np.uint32) >> np.uint32(_SHIFT)
        found = np.bincount(patterns, minlength=N_BINS)
        counts[plane] = found[:N_BINS]
        # The sign bit is on top: all that follows is below zero, or minus zero.
        counts[plane, 0] += found[N_BINS:].sum()
    return counts


def histogram_quantile(counts: Array, fraction: float) -> np.ndarray:
    """Return a quantile of each plane from `float_histogram` counts, interpolated in its bin.

    Parameters
    ----------
    counts
        Shape (planes, `N_BINS`), NumPy or CuPy.
    fraction
        Between 0 and 1.

    Returns
    -------
    float64 per plane, on the host; NaN where a plane has no count.
    """
    counts = to_host(counts)
    edges = np.arange(N_BINS + 1, dtype=np.uint32) << np.uint32(_SHIFT)
    # The patterns from infinity on are no numbers; nothing finite is counted there.
    value = edges.clip(max=_LARGEST_PATTERN).view(np.float32).astype(float)
    total = counts.sum(axis=1)
    rank = fraction * np.maximum(total - 1, 0) + 0.5
    cumulative = counts.cumsum(axis=1)
    bins = (cumulative < rank[:, None]).sum(axis=1).clip(0, N_BINS - 1)
    inside = np.take_along_axis(counts, bins[:, None], axis=1)[:, 0]
    before = np.take_along_axis(cumulative, bins[:, None], axis=1)[:, 0] - inside
    share = np.clip((rank - before) / np.maximum(inside, 1), 0, 1)
    low, high = value[bins], value[bins + 1]
    answer = np.where(bins == 0, 0.0, low + share * (high - low))
    return np.where(total > 0, answer, np.nan)


OUTER = 0.001
"""Share of the values at either end that may lie anywhere: they are clipped before a threshold is
sought between the ends. Small beside every class (thresholds split shares of 5 % and more), large
beside single bad voxels."""


def clip_outer(values: np.ndarray, share: float = OUTER) -> np.ndarray:
    """Return values clipped to their quantiles `share` and 1 − `share` (winsorised).

    Parameters
    ----------
    values
        Any shape; NaN stays NaN and does not count.
    """
    known = values[np.isfinite(values)]
    if not known.size:
        return values
    last = known.size - 1
    # At least one value at either end, as long as most remain.
    n_outer = min(int(np.ceil(share * last)), last // 4)
    ends = [n_outer, last - n_outer]
    low, high = np.partition(known, ends)[ends]
    return np.clip(values, low, high)


def otsu_threshold(values: np.ndarray, n_bins: int = 256) -> float:
    """Return the threshold that separates `values` best into two classes (Otsu, 1979).

    Bins span the values without the outermost `OUTER` at either end, which count in the first and
    last bin. So no single value decides how wide bins are, nor pulls a class's mean.

    Parameters
    ----------
    values
        Any shape; at least one finite value.
    n_bins
        Bins between the smallest and the largest value that count.

    Returns
    -------
    The threshold; just below the smallest value when all are the same but for rounding.
    """
    smallest = float(np.min(values))
    values = clip_outer(values)
    low, high = float(np.min(values)), float(np.max(values))
    if high - low <= 1e-6 * max(abs(low), abs(high)):
        return float(np.nextafter(smallest, -np.inf))
    counts, edges = np.histogram(values, bins=n_bins)
    centres = (edges[:-1] + edges[1:]) / 2
    below = counts.cumsum()
    above = below[-1] - below
    sums = (counts * centres).cumsum()
    mean_below = sums / np.maximum(below, 1)
    mean_above = (sums[-1] - sums) / np.maximum(above, 1)
    between = below * above * (mean_below - mean_above) ** 2
    return float(centres[int(between.argmax())])
