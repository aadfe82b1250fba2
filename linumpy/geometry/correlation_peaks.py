"""Peaks of correlation surfaces, to a fraction of a pixel, and how far they stand out.

Surfaces of one size are searched together, where they are: NumPy or CuPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linumpy.core.device import Array, is_device_array, namespace, to_host
from linumpy.core.robust import MEDIAN_TO_SIGMA
from linumpy.geometry.correlation import CorrelationSurface, PendingSurface, start_correlation
from linumpy.geometry.least_squares import solve_each

ACCEPT_Z_SCORE = 5.0
"""Peaks this far above the rest of their surface are accepted."""

NOISE_RADIUS_PX = 24
"""Half width of a surface from which noise can be estimated: a smaller one holds little but the
peak's own flanks."""

_NOISE_Z_SCORE = 3.0
_SURROUNDINGS_PX = 7
_PEAK_REACH_PX = 4
_MIN_NOISE_SAMPLES = 16


@dataclass(frozen=True)
class Peak:
    """The best displacement of a surface.

    Attributes
    ----------
    displacement_px
        Along axis 1 and axis 2, to a fraction of a pixel.
    correlation
        Normalised cross-correlation at the peak.
    z_score
        Height of the peak above its surroundings, in robust standard deviations of the
        same excess elsewhere on the surface.
    has_top
        Whether the Gaussian through it and its neighbours has its maximum within a pixel. On a
        slope, and on some ridges, it has none: the place is that of the greatest sample.
    """

    displacement_px: tuple[float, float]
    correlation: float
    z_score: float
    has_top: bool = True

    @property
    def confidence(self) -> float:
        """Between 0, the height of noise, and 1; one half where peaks are accepted."""
        return confidence(self.z_score)


@dataclass(frozen=True)
class Peaks:
    """The best displacements of n surfaces, as `Peak` has one.

    Attributes
    ----------
    found
        Which surfaces have one, bool (n,); what else is said of the others means nothing.
    displacement_px
        From the middle of each surface, float64 (n, 2).
    correlation, z_score
        float64 (n,).
    has_top
        bool (n,).
    sigma_px
        How uncertain the displacements are, up to a common factor: width of the Gaussian through
        the peak, the geometric mean of both axes, over its z-score, float64 (n,).
    """

    found: np.ndarray
    displacement_px: np.ndarray
    correlation: np.ndarray
    z_score: np.ndarray
    has_top: np.ndarray
    sigma_px: np.ndarray


def confidence(z_score: float) -> float:
    """Map a z-score to 0–1: 0 at the height of noise, one half at `ACCEPT_Z_SCORE`."""
    excess = max(0.0, z_score - _NOISE_Z_SCORE)
    return excess / (excess + ACCEPT_Z_SCORE - _NOISE_Z_SCORE)


def find_peak(
    surface: CorrelationSurface,
    *,
    expected_px: tuple[float, float] | None = None,
    within_px: float | None = None,
) -> Peak | None:
    """Find the best displacement of a surface to a fraction of a pixel.

    Parameters
    ----------
    surface
        From `linumpy.geometry.correlation.fetch_surfaces`.
    expected_px, within_px
        Look only at displacements within `within_px` of `expected_px`; the whole surface still
        serves as the noise to compare with.

    Returns
    -------
    The peak, or None when no displacement in reach has a value, or the best lies at the border
    of what was searched: the true one may lie beyond.
    """
    return _only_peak(surface.values, surface.weight, surface.centre_px, expected_px, within_px)


def pending_peaks(
    pending: Sequence[PendingSurface], within_px: Sequence[float] | None = None
) -> list[Peak | None]:
    """Find the best displacement of each of many surfaces, those of one size together.

    Parameters
    ----------
    within_px
        How far from the middle of each surface to look; by default everywhere.
    """
    alike: dict[tuple[tuple[int, ...], float | None], list[int]] = {}
    for number, each in enumerate(pending):
        within = None if within_px is None else within_px[number]
        alike.setdefault((each.samples.shape, within), []).append(number)
    found: list[Peak | None] = [None] * len(pending)
    for (_, within), numbers in alike.items():
        samples = [pending[number].samples for number in numbers]
        values, weight = namespace(samples[0]).stack(samples, axis=1)
        peaks = find_peaks(values, weight, within_px=within)
        for place, number in enumerate(numbers):
            found[number] = _peak_at(peaks, place, pending[number].centre_px)
    return found


def correlation_peak(
    first: Array,
    second: Array,
    centre_px: tuple[int, int],
    radius_px: tuple[int, int],
    *,
    min_overlap_share: float = 0.05,
    expected_px: tuple[float, float] | None = None,
    within_px: float | None = None,
) -> Peak | None:
    """Find the best displacement of two flattened stacks; their surface stays where they are.

    Parameters
    ----------
    first, second, centre_px, radius_px, min_overlap_share
        As of `linumpy.geometry.correlation.start_correlation`.
    expected_px, within_px
        As of `find_peak`, with its answer.
    """
    found = start_correlation(
        first, second, centre_px, radius_px, min_overlap_share=min_overlap_share
    )
    values, weight = found.samples
    return _only_peak(values, weight, centre_px, expected_px, within_px)


def _only_peak(
    values: Array,
    weight: Array,
    centre_px: tuple[int, int],
    expected_px: tuple[float, float] | None,
    within_px: float | None,
) -> Peak | None:
    about = centre_px if expected_px is None else expected_px
    peaks = find_peaks(
        values[None],
        weight[None],
        about_px=np.subtract(about, centre_px),
        within_px=None if expected_px is None else within_px,
    )
    return _peak_at(peaks, 0, centre_px)


def _peak_at(peaks: Peaks, n: int, centre_px: tuple[int, int]) -> Peak | None:
    if not peaks.found[n]:
        return None
    row, column = (centre_px + peaks.displacement_px[n]).tolist()
    correlation, z_score = float(peaks.correlation[n]), float(peaks.z_score[n])
    return Peak((row, column), correlation, z_score, bool(peaks.has_top[n]))


def find_peaks(
    values: Array,
    weight: Array,
    *,
    about_px: np.ndarray | None = None,
    within_px: float | None = None,
    highest: bool = False,
) -> Peaks:
    """Find the best displacement of each of n surfaces, as `find_peak` does that of one.

    Parameters
    ----------
    values, weight
        As those of `linumpy.geometry.correlation.CorrelationSurface`, shape (n, …).
    about_px, within_px
        Look only at displacements within `within_px` of `about_px`, from the middles of the
        surfaces; by default everywhere.
    highest
        Take the highest sample, not that which stands out most from its surroundings: for matches
        that are wide, of images that are distorted, on surfaces without slopes.
    """
    xp = namespace(values)
    n, *sides = values.shape
    if not n or min(sides) < 3:
        none = np.zeros(n, bool)
        return Peaks(none, np.zeros((n, 2)), np.zeros(n), np.zeros(n), none, np.ones(n))
    values = values.astype(xp.float64)
    heights = values * weight
    excess, floor, known = _excess(heights)
    # One-sided means would let slopes stand out at borders, means of few samples noise.
    centred = excess if highest else _excess(heights, centred=True)[0]
    chosen = heights if highest else centred
    searched = xp.where(known, chosen, -xp.inf)
    if within_px is not None:
        about = np.zeros(2) if about_px is None else np.asarray(about_px, float)
        d1, d2 = (np.arange(m) - (m - 1) // 2 - at for m, at in zip(sides, about, strict=True))
        near = xp.asarray(np.hypot(d1[:, None], d2) <= within_px)
        searched = xp.where(near, searched, -xp.inf)
    best = searched.reshape(n, -1).argmax(axis=1)
    i, j = best // sides[1], best % sides[1]
    # Of a peak at the border the samples beside it stand for those around.
    inner = [xp.clip(at, 1, m - 2) for at, m in zip((i, j), sides, strict=True)]
    around = _around(searched, *inner)
    found = (inner[0] == i) & (inner[1] == j) & xp.isfinite(around).all(axis=1)
    at = (xp.arange(n), i, j)
    height = xp.where(centred[at] < excess[at], centred[at], excess[at])
    z_score = _z_score(height, excess, known, i, j)
    floor = floor[at]
    *offset, width, has_top = _subpixel(_around(values, *inner), floor)
    middle = [(m - 1) // 2 for m in sides]
    answer = xp.stack(
        [
            found,
            i - middle[0] + offset[0],
            j - middle[1] + offset[1],
            values[at],
            z_score,
            has_top,
            width,
        ]
    )
    found, row, column, correlation, z_score, has_top, width = to_host(answer)
    where = np.stack([row, column], axis=1)
    sigma = width / np.maximum(z_score, _NOISE_Z_SCORE)
    return Peaks(found > 0, where, correlation, z_score, has_top > 0, sigma)


def _around(values: Array, i: Array, j: Array) -> Array:
    """Return the 3×3 samples about a place on each surface, shape (n, 9)."""
    xp = namespace(values)
    step = xp.arange(-1, 2)
    each = xp.arange(len(values))[:, None, None]
    found = values[each, (i[:, None] + step)[:, :, None], (j[:, None] + step)[:, None, :]]
    return found.reshape(len(values), 9)


def _excess(heights: Array, centred: bool = False) -> tuple[Array, Array, Array]:
    """Return heights above their surroundings, these surroundings, and where heights are known.

    Coarse structure, such as the brain's border, makes a surface slope and bulge widely; a true
    match shows as a peak a few pixels wide. So every sample is compared with the mean of its
    surroundings.
    """
    xp = namespace(heights)
    known = xp.isfinite(heights)
    filled = xp.where(known, heights, 0)
    surroundings = _window_mean(filled, known, _SURROUNDINGS_PX, centred)
    return xp.where(known, heights - surroundings, 0), surroundings, known


def _z_score(height: Array, excess: Array, known: Array, i: Array, j: Array) -> Array:
    """Return heights of peaks in units of the spread of the excesses elsewhere."""
    xp = namespace(excess)
    away = [abs(xp.arange(m) - at[:, None]) for m, at in zip(excess.shape[1:], (i, j), strict=True)]
    elsewhere = xp.maximum(away[0][:, :, None], away[1][:, None, :]) > _PEAK_REACH_PX
    elsewhere &= known
    spread = MEDIAN_TO_SIGMA * _median(abs(excess), elsewhere)
    enough = elsewhere.sum(axis=(1, 2)) >= _MIN_NOISE_SAMPLES
    return xp.where(enough, height / xp.maximum(spread, 1e-6), 0.0)


def _median(values: Array, counts: Array) -> Array:
    """Return the median of the samples of each surface that count; 0 where there are none."""
    if not is_device_array(values):
        # Only what counts is looked at, and it is not sorted.
        each = zip(to_host(values), to_host(counts), strict=True)
        return np.array([np.median(v[c]) if c.any() else 0.0 for v, c in each])
    xp = namespace(values)
    n = len(values)
    ordered = xp.sort(xp.where(counts, values, xp.inf).reshape(n, -1), axis=1)
    count = counts.sum(axis=(1, 2))
    each = xp.arange(n)
    middle = ordered[each, xp.maximum(count - 1, 0) // 2], ordered[each, count // 2]
    return xp.where(count > 0, 0.5 * (middle[0] + middle[1]), 0.0)


def _window_mean(values: Array, known: Array, size: int, centred: bool = False) -> Array:
    """Return the mean of the known samples in a square around each; unknown `values` are 0.

    Beyond a border there is nothing. Where `centred`, squares shrink towards it, so that each
    sample stays in the middle of its own.
    """
    xp = namespace(values)
    count = _window_sum(known.astype(xp.float64), size, centred)
    return _window_sum(values, size, centred) / xp.maximum(count, 1)


def _window_sum(values: Array, size: int, centred: bool) -> Array:
    """Sum over squares of an odd side, along the last two axes, as `_window_mean` wants them."""
    xp = namespace(values)
    half = size // 2
    for axis in (1, 2):
        n = values.shape[axis]
        border = [(0, 0)] * 3
        border[axis] = (half + 1, half)
        sums = xp.moveaxis(xp.cumsum(xp.pad(values, border), axis=axis), axis, 0)
        found = sums[size:] - sums[:-size]
        for at in range(min(half, -(-n // 2)) if centred else 0):
            found[at] = sums[half + 1 + 2 * at] - sums[half]
            found[n - 1 - at] = sums[half + n] - sums[half + n - 1 - 2 * at]
        values = xp.moveaxis(found, 0, axis)
    return values


def _subpixel(around: Array, floor: Array) -> tuple[Array, Array, Array, Array]:
    """Refine peaks by a Gaussian through 3×3 samples, whose logarithm is a quadratic form.

    A correlation peak is close to a Gaussian: its logarithm is fitted without the bias towards
    whole pixels that a parabola has.

    Parameters
    ----------
    around
        Shape (n, 9), the peaks in the middle.
    floor
        What lies below the peaks, (n,).

    Returns
    -------
    How far the Gaussian's maximum lies from the middle along both axes, 0 where there is none
    within a pixel; its standard deviation, the geometric mean of both axes, which is the reach of a
    peak at most and where there is no maximum; and whether there is one, (n,) each.
    """
    xp = namespace(around)
    known = xp.isfinite(around).all(axis=1)
    height = xp.where(known[:, None], around - floor[:, None], 1.0)
    height = xp.maximum(height, 0.02 * height[:, 4:5] + 1e-12)
    good = known & (height > 0).all(axis=1)
    height = xp.where(good[:, None], height, 1.0)
    d1, d2 = np.mgrid[-1:2, -1:2].reshape(2, 9).astype(float)
    design = np.stack([d1**2, d2**2, d1 * d2, d1, d2, np.ones(9)], axis=1)
    # Weigh by height: the logarithm magnifies the noise of low samples.
    weight, level = height**2, xp.log(height)
    normal = xp.zeros((len(around), 6, 6))
    right = xp.zeros((len(around), 6))
    for n, row in enumerate(design):
        normal += weight[:, n, None, None] * xp.asarray(np.outer(row, row))
        right += (weight[:, n] * level[:, n])[:, None] * xp.asarray(row)
    a, b, c, d, e, _ = solve_each(normal, right).T
    determinant = 4 * a * b - c * c
    good &= (a < 0) & (b < 0) & (determinant > 0)
    determinant = xp.where(good, determinant, 1.0)
    offset = ((c * e - 2 * b * d) / determinant, (c * d - 2 * a * e) / determinant)
    good &= xp.maximum(abs(offset[0]), abs(offset[1])) <= 1
    # The determinant is that of the Gaussian's inverse covariance, whose axes may lie obliquely.
    width = xp.minimum(1 / xp.sqrt(xp.sqrt(determinant)), _PEAK_REACH_PX)
    width = xp.where(good, width, _PEAK_REACH_PX)
    return xp.where(good, offset[0], 0.0), xp.where(good, offset[1], 0.0), width, good
