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
WEIGHT = 4096
"""What a value counts: it is divided between two bins."""

_SHIFT = 16
_HALF = np.uint32(1 << (_SHIFT - 1))
_WEIGHT_SHIFT = np.uint32(_SHIFT - WEIGHT.bit_length() + 1)
_AT_ONCE = 1 << 14
"""Values whose bins and shares stay in a core's cache."""

_INFINITY = np.float32(np.inf).view(np.uint32)
EDGES = (
    (np.arange(N_BINS + 1, dtype=np.uint32) << np.uint32(_SHIFT))
    .clip(max=np.float32(np.finfo(np.float32).max).view(np.uint32))
    .view(np.float32)
    .astype(float)
)
"""Edges of the bins, float64, `N_BINS` + 1."""


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
    int64 array of shape (planes, `N_BINS`), where `values` lies: `WEIGHT` a value. Bin 0 holds
    zeros, negatives, NaN and what lies below its centre.
    """
    if is_device_array(values):
        from linumpy.geometry.kernels import pattern_counts

        return pattern_counts(values, selected, columns, N_BINS, WEIGHT)
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
    for start in range(0, row.size, _AT_ONCE):
        # From the centre of bin 0 on; below it and with a sign, the difference wraps around.
        places = row[start : start + _AT_ONCE].view(np.uint32) - _HALF
        counted = places <= _INFINITY - _HALF
        n_counted = int(np.count_nonzero(counted))
        counts[0] += WEIGHT * (places.size - n_counted)
        if not n_counted:
            continue
        if n_counted < places.size:
            places = places[counted]
        bins = (places >> np.uint32(_SHIFT)).astype(np.intp)
        first = int(bins.min())
        bins -= first
        found = np.bincount(bins)
        shares = (places & np.uint32((1 << _SHIFT) - 1)) >> _WEIGHT_SHIFT
        beyond = np.bincount(bins, shares).astype(np.int64)
        counts[first : first + len(found)] += WEIGHT * found - beyond
        counts[first + 1 : first + 1 + len(found)] += beyond


def histogram_quantile(counts: Array, fraction: float) -> np.ndarray:
    """Return a quantile of each plane from `float_histogram` counts.

    Parameters
    ----------
    counts
        Shape (planes, `N_BINS`), NumPy or CuPy.
    fraction
        Between 0 and 1.

    Returns
    -------
    float64 per plane, on the host, within one and a half bins; NaN where a plane has no count.
    """
    return np.array([row_quantiles(row, np.array([fraction]))[0] for row in to_host(counts)])


def row_quantiles(row: np.ndarray, fractions: np.ndarray) -> np.ndarray:
    """Return quantiles of one plane's counts (`N_BINS`,), float64; NaN where it has none.

    Values lie evenly within their bin. A quantile is their average over the weight of one value
    around its rank, which is continuous in the values, as NumPy's quantile is, to
    1 / `WEIGHT` of a bin.
    """
    bins = np.flatnonzero(row)
    if not bins.size:
        return np.full(len(fractions), np.nan)
    count, low = row[bins], EDGES[bins]
    # Bin 0 holds zeros.
    width = np.where(bins > 0, EDGES[bins + 1] - low, 0.0)
    stop = count.cumsum()
    start = stop - count
    # The integral of the value over the rank, up to each bin.
    before = np.concatenate([[0.0], np.cumsum(count * (low + width / 2))])

    def bin_of(rank: np.ndarray) -> np.ndarray:
        return np.searchsorted(stop, rank).clip(max=len(bins) - 1)

    def integral(rank: np.ndarray, at: np.ndarray) -> np.ndarray:
        inside = rank - start[at]
        return before[at] + inside * (low[at] + width[at] * inside / (2 * count[at]))

    first = fractions * (stop[-1] - WEIGHT)
    last = first + WEIGHT
    a, b = bin_of(first), bin_of(last)
    # Within one bin without a difference of integrals, which cancel where voxels are many.
    within = low[a] + width[a] * (first - start[a] + WEIGHT / 2) / count[a]
    return np.where(a == b, within, (integral(last, b) - integral(first, a)) / WEIGHT)


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
