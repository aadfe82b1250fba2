"""Quantiles and thresholds of volumes too large to sort, from additive histograms.

A bin is the upper half of a float32's bit pattern, so bins are about 0.8 % wide at any magnitude
and need no range given beforehand. A value is shared by the two bins whose centres it lies between
(linear binning, Jones and Lotwick, Appl. Stat. 33, 120, 1984): where only a few values lie around a
quantile, one that rounding takes across a border would move it by a good part of a bin. Counts are
integers: blocks may be added in any order, on any device, with the same result.
"""

from __future__ import annotations

import numpy as np

from linumpy.core.device import Array, is_device_array, to_host

N_BINS = 1 << 15
PARTS = 128
"""What a value counts; its two bins share it."""

_SHIFT = 16
_HALF = np.uint32(1 << (_SHIFT - 1))
_PART_SHIFT = np.uint32(_SHIFT - PARTS.bit_length() + 1)
_INFINITY = np.float32(np.inf).view(np.uint32)
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
    int64 array of shape (planes, `N_BINS`), where `values` lies: `PARTS` a value. Bin 0 holds zeros
    and negatives.
    """
    if is_device_array(values):
        from linumpy.geometry.kernels import pattern_counts

        return pattern_counts(values, selected, columns, N_BINS, PARTS)
    counts = np.zeros((len(values), N_BINS), np.int64)
    for plane, row in enumerate(values):
        chosen = None if columns is None else to_host(columns)
        if selected is not None:
            mask = selected[plane] > 0
            chosen = mask if chosen is None else chosen & mask
        row = np.ascontiguousarray(row, np.float32)
        if chosen is not None and not chosen.all():
            row = row[chosen]
        _count(row, counts[plane])
    return counts


def _count(row: np.ndarray, counts: np.ndarray) -> None:
    """Count the values of one plane into its bins."""
    # From the centre of bin 0 on; below it and with a sign, the difference wraps around.
    places = row.view(np.uint32) - _HALF
    positive = places <= _INFINITY - _HALF
    n_positive = int(np.count_nonzero(positive))
    counts[0] = PARTS * (row.size - n_positive)
    if not n_positive:
        return
    if n_positive < row.size:
        places = places[positive]
    places >>= _PART_SHIFT
    first = int(places.min()) // PARTS
    places -= np.uint32(first * PARTS)
    n_bins = int(places.max()) // PARTS + 1
    found = np.bincount(places, minlength=n_bins * PARTS).reshape(n_bins, PARTS)
    beyond = found @ np.arange(PARTS)
    counts[first : first + n_bins] += PARTS * found.sum(axis=1) - beyond
    counts[first + 1 : first + 1 + n_bins] += beyond


def histogram_quantile(counts: Array, fraction: float) -> np.ndarray:
    """Return a quantile of each plane from `float_histogram` counts, within about a bin.

    Values lie evenly within their bin. The answer is the mean of the one value around the rank, so
    that it goes on without a jump from one value to the next, as NumPy's does.

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
    value[1] = 0.0  # Bin 0 holds zeros.
    answer = np.full(len(counts), np.nan)
    for plane, row in enumerate(counts):
        bins = np.flatnonzero(row)
        if not bins.size:
            continue
        stop = row[bins].cumsum()
        start = stop - row[bins]
        first = fraction * (stop[-1] - PARTS)
        low, high = (ends.clip(first, first + PARTS) for ends in (start, stop))
        share = ((low + high) / 2 - start) / row[bins]
        inside = value[bins] + share * (value[bins + 1] - value[bins])
        answer[plane] = (high - low) @ inside / PARTS
    return answer


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
