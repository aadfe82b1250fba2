"""Fit the cut face of a whole slice as a smooth surface.

The slice is reduced to one logarithmic depth profile a lateral cell: the mean over so many A-lines
shows even the faint rise from water into agarose. The face of a cell is the first clear rise, not
the steepest, which under thin agarose would be the tissue below. What disagrees with the surface
of the others (dark tiles, a cavity open to the water, a reflection) is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linumpy.core.device import Array, namespace
from linumpy.core.robust import TUKEY, robust_spread, tukey
from linumpy.geometry.interface import difference_weights, extend_downwards
from linumpy.geometry.least_squares import least_squares, linear_combination
from linumpy.geometry.smoothing import gaussian_matrix

CELL_UM = 160.0
"""Wanted side of a cell."""

MAX_CELL_PX = 256

PARTS = 4
"""A side of a cell: of about 40 um, as small as debris, in which reflections are sought."""

_MIN_STEP = 0.25
_STEP_SHARE = 0.3
_REACH = 2
_MIN_KNOWN_SHARE = 0.125
_MIN_FACE_SHARE = 0.1
_MIN_CELLS_CURVED = 30
_MIN_SPREAD_PX = 0.3
_FAR_UM = 80.0
_LONE_PX = 1.5
_ROUNDS = 3
_SMOOTH_UM = 240.0
_EMPTY_SHARE = 0.05
_PASSES = 3


@dataclass(frozen=True)
class FaceSurface:
    """The face of a slice.

    Attributes
    ----------
    depth_px
        Depth of the face at the cells' centres, in voxels from the top edge of voxel 0;
        float64 (cells along axis 1, along axis 2).
    has_data
        Which cells hold any data.
    used
        Which cells the surface rests on.
    """

    depth_px: np.ndarray
    has_data: np.ndarray
    used: np.ndarray


def cell_size_px(pixel_um: Sequence[float]) -> int:
    """Return the side of a cell in pixels: the power of two that is nearest to `CELL_UM`."""
    power = round(np.log2(CELL_UM / float(np.mean(pixel_um))))
    return int(np.clip(2.0**power, 1, MAX_CELL_PX))


def log_profiles(volume: Array, valid: Array | None, cell_px: int) -> Array:
    """Sum the logarithm of the positive, valid voxels over lateral cells.

    Parameters
    ----------
    volume
        Slice or part of one (z, axis 1, axis 2), amplitude, NumPy or CuPy.
    valid
        Its mask, or None.
    cell_px
        Side of a cell; the cells at the far ends may be smaller.

    Returns
    -------
    float32 array (2, z, cells along axis 1, cells along axis 2): sums and numbers of voxels.
    """
    xp = namespace(volume)
    good = volume > 0
    if valid is not None:
        good &= valid > 0
    logs = xp.log(xp.where(good, volume, xp.float32(1)))
    n1, n2 = (-(-n // cell_px) for n in volume.shape[1:])
    out = xp.empty((2, len(volume), n1, n2), xp.float32)
    padding = [(0, 0), *((0, -n % cell_px) for n in volume.shape[1:])]
    for target, values in zip(out, (logs, good.astype(xp.float32)), strict=True):
        if padding[1][1] or padding[2][1]:
            values = xp.pad(values, padding)
        cells = values.reshape(len(volume), n1, cell_px, n2, cell_px)
        target[...] = cells.sum(axis=4).sum(axis=2)
    return out


def profiles_and_parts(volume: Array, valid: Array | None, cell_px: int) -> tuple[Array, Array]:
    """Return `log_profiles`, and the mean logarithms of each cell's parts.

    Returns
    -------
    As of `log_profiles`; and float16 (z, parts along axis 1, parts along axis 2), NaN where less
    than half is known. A cell has `PARTS` a side, or as many as it has pixels.
    """
    xp = namespace(volume)
    parts = min(PARTS, cell_px)
    fine = log_profiles(volume, valid, cell_px // parts)
    fine = xp.pad(fine, [(0, 0), (0, 0), *((0, -n % parts) for n in fine.shape[2:])])
    n1, n2 = (n // parts for n in fine.shape[2:])
    whole = fine.reshape(2, len(volume), n1, parts, n2, parts).sum(axis=5).sum(axis=3)
    known = fine[1] >= max(1.0, 0.5 * (cell_px // parts) ** 2)
    means = xp.where(known, fine[0] / xp.maximum(fine[1], 1), xp.float32(xp.nan))
    return whole, means.astype(xp.float16)


def fit_face(
    sums: np.ndarray, counts: np.ndarray, cell_px: int, voxel_um: Sequence[float], s_z: float
) -> FaceSurface:
    """Find the face in the profiles of a slice.

    Parameters
    ----------
    sums, counts
        `log_profiles` of the whole slice, (z, cells along axis 1, cells along axis 2).
    cell_px
        Side of a cell.
    voxel_um
        Voxels of the slice.
    s_z
        Sigma of the derivative along depth, voxels.
    """
    has_data = np.asarray(counts.any(axis=0))
    known = counts >= max(1.0, _MIN_KNOWN_SHARE * cell_px**2)
    profile = np.where(known, sums / np.maximum(counts, 1), 0).astype(np.float64)
    extend_downwards(profile, known)
    threshold = _MIN_STEP * float(difference_weights(s_z).max())
    depth = first_rise(_derivative(profile, s_z), threshold)
    depth[~known.any(axis=0)] = np.nan
    depth = centred_rise(_derivative(np.exp(profile), s_z), depth)
    found = np.isfinite(depth)
    if found.sum() < max(3, _MIN_FACE_SHARE * has_data.sum()):
        # Nothing to see in single cells: the slice as a whole has one rise, if any.
        total, number = sums.sum(axis=(1, 2)), counts.sum(axis=(1, 2))
        mean = (total / np.maximum(number, 1)).astype(np.float64)[:, None, None]
        extend_downwards(mean, (number > 0)[:, None, None])
        steepest = float(_steepest(_derivative(mean, s_z))[0, 0])
        return FaceSurface(np.full(depth.shape, steepest), has_data, np.zeros_like(has_data))
    sigma = _SMOOTH_UM / (cell_px * float(np.mean(voxel_um[1:])))
    trend, spread = _robust_trend(depth)
    residual = np.nan_to_num(depth - trend)
    used = found & (np.abs(residual) <= max(TUKEY * spread, _FAR_UM / voxel_um[0]))
    # What disagrees with the smooth surface of its neighbours goes, the worst first.
    for _ in range(_ROUNDS):
        smooth = smooth_filled(residual, used, sigma)
        away = np.abs(residual - smooth)
        spread = robust_spread(away[used])
        used &= away <= max(TUKEY * spread, _LONE_PX)
    smooth = smooth_filled(residual, used, sigma)
    surface = np.clip(trend + smooth, 0, len(sums))
    return FaceSurface(surface, has_data, used)


def _derivative(profile: np.ndarray, s_z: float) -> np.ndarray:
    """Return the Gaussian derivative along axis 0, tap by tap: one order of sums everywhere."""
    weights = difference_weights(s_z)
    radius = len(weights) // 2
    steps = np.pad(np.diff(profile, axis=0), [(radius, radius), (0, 0), (0, 0)])
    out = np.zeros_like(profile)
    for tap, weight in enumerate(weights):
        out += weight * steps[tap : tap + len(profile)]
    return out


def first_rise(rise: np.ndarray, threshold: float) -> np.ndarray:
    """Return where each profile first rises clearly, NaN where it does not.

    Parameters
    ----------
    rise
        Derivative along axis 0, (z, …).
    threshold
        Least derivative of a clear rise; it must also reach a share of the profile's largest.

    Returns
    -------
    float64: index of the first voxel behind the step, to a fraction.
    """
    low = np.full((1, *rise.shape[1:]), -np.inf)
    above, below = np.concatenate([low, rise[:-1]]), np.concatenate([rise[1:], low])
    least = np.maximum(threshold, _STEP_SHARE * rise.max(axis=0))
    clear = (rise >= above) & (rise > below) & (rise >= least)
    index = clear.argmax(axis=0)
    return np.where(clear.any(axis=0), _refined(rise, index), np.nan)


def centred_rise(rise: np.ndarray, depth: np.ndarray) -> np.ndarray:
    """Move steps found on logarithms to the middle of the rise of the amplitude itself.

    The logarithm of a sample that holds a little tissue is already high, so that its steepest
    rise comes too early, the more so the higher the step.

    Parameters
    ----------
    rise
        Derivative of the amplitude along axis 0.
    depth
        From `first_rise` on the logarithm; NaN stays.
    """
    near = np.nan_to_num(np.rint(depth - 0.5)).astype(np.int64)
    places = near + np.arange(-_REACH, _REACH + 1).reshape(-1, *(1,) * depth.ndim)
    around = np.take_along_axis(rise, np.clip(places, 0, len(rise) - 1), axis=0)
    best = around.argmax(axis=0)
    # A rise that goes on beyond is that of something else.
    inside = (best > 0) & (best < 2 * _REACH) & np.isfinite(depth)
    return np.where(inside, _refined(rise, near - _REACH + best), depth)


def _steepest(rise: np.ndarray) -> np.ndarray:
    return _refined(rise, rise.argmax(axis=0))


def _refined(rise: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return the peak of a parabola through three samples, as the voxel behind the step."""

    def at(place: np.ndarray) -> np.ndarray:
        inside = np.clip(place, 0, len(rise) - 1)
        return np.take_along_axis(rise, inside[None], axis=0)[0]

    before, centre, after = at(index - 1), at(index), at(index + 1)
    curvature = before - 2 * centre + after
    inside = (index > 0) & (index < len(rise) - 1) & (curvature < 0)
    offset = np.where(inside, 0.5 * (before - after) / np.where(inside, curvature, 1), 0)
    # A step between k-1 and k is steepest at k - 1/2.
    return np.asarray(index + offset + 0.5)


def _robust_trend(depth: np.ndarray) -> tuple[np.ndarray, float]:
    """Return a plane, or where there are many cells a paraboloid, and the spread about it."""
    axes = np.meshgrid(*(np.linspace(-1, 1, n) if n > 1 else np.zeros(1) for n in depth.shape),
                       indexing="ij")  # fmt: skip
    t1, t2 = axes
    found = np.isfinite(depth)
    terms = [np.ones_like(t1), t1, t2]
    if found.sum() >= _MIN_CELLS_CURVED:
        terms += [t1**2 - 1 / 3, t1 * t2, t2**2 - 1 / 3]
    design = np.stack(terms, axis=-1)
    points, values = design[found], depth[found]
    ridge = 1e-6 * len(values) * np.eye(points.shape[1])
    weight = np.ones(len(values))
    solution = np.zeros(points.shape[1])
    spread = _MIN_SPREAD_PX
    # First the least sum of absolute residuals, which outliers hardly move; then Tukey's.
    for step in range(40):
        solution = least_squares(points, values, weight, ridge)
        residual = values - linear_combination(points, solution)
        if step < 20:
            weight = 1 / np.maximum(np.abs(residual), 0.05)
        else:
            spread = max(robust_spread(residual), _MIN_SPREAD_PX)
            weight = tukey(residual, spread)
    return linear_combination(design, solution), spread


def smooth_filled(values: np.ndarray, used: np.ndarray, sigma: float) -> np.ndarray:
    """Smooth a map over its used cells; where there are few, over wider neighbourhoods.

    What smoothing removes is smoothed and added back a few times, which leaves less of a
    slope's or a bump's height behind, at the borders too.

    Parameters
    ----------
    values
        Map; what it holds in cells that are not used does not matter.
    used
        Boolean, of its shape.
    sigma
        Of the Gaussian, cells.

    Returns
    -------
    float64 of the same shape; 0 where nothing is used at all.
    """
    known = np.where(used, values, 0).astype(np.float64)
    widths = [sigma]
    while widths[-1] < max(values.shape) / 2:
        widths.append(2 * widths[-1])
    share = used.astype(np.float64)
    # The widest first; what it lacks the narrower ones find.
    near = [(width, _smoothed(share, width) + _EMPTY_SHARE) for width in reversed(widths)]
    out = np.zeros(values.shape)
    for _ in range(_PASSES):
        left = np.where(used, known - out, 0)
        average = np.zeros(values.shape)
        for width, weight in near:
            average = (_smoothed(left, width) + _EMPTY_SHARE * average) / weight
        out += average
    return out


def _smoothed(values: np.ndarray, sigma: float) -> np.ndarray:
    n1, n2 = values.shape
    return np.asarray(gaussian_matrix(n1, sigma) @ values @ gaussian_matrix(n2, sigma).T)


def sample_surface(
    surface: np.ndarray,
    cell_px: Sequence[float],
    position1_px: np.ndarray,
    position2_px: np.ndarray,
) -> np.ndarray:
    """Interpolate a map of cells linearly; beyond the outermost centres it stays constant.

    Parameters
    ----------
    surface
        Values at the cells' centres, (cells along axis 1, along axis 2).
    cell_px
        Side of a cell along both axes.
    position1_px, position2_px
        Positions along axis 1 and axis 2, 1-d, in pixels from the low corner of cell (0, 0).

    Returns
    -------
    float64 (len(position1_px), len(position2_px)).
    """
    out = np.asarray(surface, dtype=np.float64)
    for axis, position in enumerate((position1_px, position2_px)):
        n = out.shape[axis]
        index = np.clip(np.asarray(position) / cell_px[axis] - 0.5, 0, n - 1)
        low = np.minimum(index.astype(np.int64), max(n - 2, 0))
        weight = (index - low).reshape((-1, 1) if axis == 0 else (1, -1))
        high = np.minimum(low + 1, n - 1)
        out = np.take(out, low, axis) * (1 - weight) + np.take(out, high, axis) * weight
    return out
