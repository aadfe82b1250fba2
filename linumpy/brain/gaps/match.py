"""Match the slices on both sides of a gap: corresponding planes and the map between them.

Everything here works on small planes of the common frame, reduced to at most `MAX_SIDE_PX`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from linumpy.core.device import to_host
from linumpy.stage_params.gaps import InterpolateParams

MAX_SIDE_PX = 512
"""Side of the planes that maps are estimated on: a map of six numbers needs no more."""

NO_FOREGROUND = "no_foreground_planes"
LOW_OVERLAP = "low_overlap_ncc"
REGISTRATION_FAILED = "registration_exception"
NOT_IMPROVED = "reg_did_not_improve"
MIRRORED = "affine_determinant_non_positive"

_ALIGNED_CORRELATION = 0.5
_BEYOND_CHANCE = 6.0
_FIRST_STEPS_PX = (4.0, 1.0)
_LEAST_PIXELS = 64


@dataclass(frozen=True)
class PlaneStack:
    """Consecutive planes of one slice in the common frame, reduced.

    Attributes
    ----------
    data
        Shape (planes, axis 1, axis 2), float32, smoothed.
    valid
        Mask of the same shape.
    first
        Number of the first plane within its slice.
    sigma_px
        How far planes were smoothed.
    """

    data: np.ndarray
    valid: np.ndarray
    first: int
    sigma_px: float

    @classmethod
    def of(cls, data: np.ndarray, valid: np.ndarray, first: int, sigma_px: float) -> PlaneStack:
        """Smooth planes; masked pixels lend nothing to their neighbours."""
        from scipy.ndimage import gaussian_filter

        there = (valid > 0).astype(np.float32)
        sigma = (0, sigma_px, sigma_px)
        share = gaussian_filter(there, sigma)
        smooth = gaussian_filter(data.astype(np.float32) * there, sigma)
        smooth = np.where(there > 0, smooth / np.maximum(share, 1e-6), 0)
        return cls(smooth.astype(np.float32), there > 0, first, sigma_px)

    def slab(self, plane: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean of `size` planes around a plane, as far as there are any, and where."""
        here = plane - self.first
        start = max(0, min(here - size // 2, len(self.data) - size))
        part = slice(start, start + size)
        count = self.valid[part].sum(axis=0)
        mean = (self.data[part] * self.valid[part]).sum(axis=0) / np.maximum(count, 1)
        return np.asarray(mean, np.float32), np.asarray(count > 0)


@dataclass(frozen=True)
class Match:
    """What was found out about a gap.

    Attributes
    ----------
    failure
        Which gate failed; empty when none did.
    upper_plane, lower_plane
        The planes that are most alike, counted within their slices; None without any.
    foreground
        Largest share of tissue among the planes of the upper and of the lower slice.
    correlation
        Of the central half of these planes where they lie; None when not computed.
    slab_correlation, moved_correlation
        Of the whole slabs around them, and after the map; None when not computed.
    way
        Map (3 × 3, reduced pixels) from a structure's place in the upper plane to its place in
        the lower one; None after a failure.
    deformed
        Whether `way` is a map that was found, and not the identity.
    """

    failure: str
    upper_plane: int | None = None
    lower_plane: int | None = None
    foreground: tuple[float, float] = (0.0, 0.0)
    correlation: float | None = None
    slab_correlation: float | None = None
    moved_correlation: float | None = None
    way: np.ndarray | None = None
    deformed: bool = False


def match_slices(upper: PlaneStack, lower: PlaneStack, params: InterpolateParams) -> Match:
    """Find how the planes at the end of one slice go over into those at the top of another.

    Parameters
    ----------
    upper, lower
        Planes of both, on one grid of pixels.
    params
        Gates, and how the map is found.

    Returns
    -------
    The map, or the gate that failed. A map that gains too little is rejected; planes that
    match where they lie are then taken to have no deformation between them, others fail.
    """
    threshold = tissue_threshold(np.concatenate([s.data[s.valid].ravel() for s in (upper, lower)]))
    shares = [
        [float((plane[mask] > threshold).mean()) if mask.any() else 0.0 for plane, mask in planes]
        for planes in (zip(s.data, s.valid, strict=True) for s in (upper, lower))
    ]
    foreground = (max(shares[0]), max(shares[1]))
    first_upper = max(0, len(upper.data) - params.search_window)
    best: tuple[float, int, int] | None = None
    for i in range(first_upper, len(upper.data)):
        for j in range(min(params.search_window, len(lower.data))):
            if min(shares[0][i], shares[1][j]) < params.min_foreground or threshold <= 0:
                continue
            value = correlation(upper.data[i], lower.data[j], upper.valid[i] & lower.valid[j])
            if value is not None and (best is None or value > best[0]):
                best = (value, i + upper.first, j + lower.first)
    if best is None:
        return Match(NO_FOREGROUND, foreground=foreground)
    value, i, j = best
    found = Match("", i, j, foreground, value)
    if value < params.min_correlation:
        return _failed(found, LOW_OVERLAP)
    return _find_way(
        upper.slab(i, params.slab_size),
        lower.slab(j, params.slab_size),
        found,
        params,
        4 * np.pi * upper.sigma_px**2,
    )


def _failed(match: Match, reason: str) -> Match:
    from dataclasses import replace

    return replace(match, failure=reason)


def _find_way(
    upper: tuple[np.ndarray, np.ndarray],
    lower: tuple[np.ndarray, np.ndarray],
    found: Match,
    params: InterpolateParams,
    pixels_a_sample: float,
) -> Match:
    from dataclasses import replace

    from linumpy.geometry.zmorph import affine_power, sample_plane

    before = correlation(upper[0], lower[0], upper[1] & lower[1], central=False)
    found = replace(found, slab_correlation=before)
    failure, way = "", np.eye(3)
    for first_step_px in _FIRST_STEPS_PX:
        try:
            way = register_affine(upper, lower, params.metric, params.max_iterations, first_step_px)
            affine_power(way, 0.5)
        except (RuntimeError, ValueError) as error:
            # A first step that is too long can flip small planes: a shorter one may not.
            failure = MIRRORED if isinstance(error, ValueError) else REGISTRATION_FAILED
        else:
            failure = ""
            break
    if failure:
        return _failed(found, failure)
    moved, there = sample_plane(lower[0], lower[1], way, upper[0].shape)
    both = upper[1] & lower[1] & there
    lying = correlation(upper[0], lower[0], both, central=False)
    after = correlation(upper[0], to_host(moved), both, central=False)
    found = replace(found, moved_correlation=after)
    if before is None or lying is None or after is None:
        return _failed(found, NOT_IMPROVED)
    # Six numbers always fit something: about 3/n by chance, for n independent samples.
    by_chance = 3 * pixels_a_sample / both.sum()
    # Fisher's z: from 0.9 to 0.95 is as much of a gain as from 0.4 to 0.6.
    gain = _fisher_z(after) - _fisher_z(lying)
    if gain >= max(params.min_improvement, _BEYOND_CHANCE * by_chance):
        return replace(found, way=way, deformed=True)
    if before >= _ALIGNED_CORRELATION:
        return replace(found, way=np.eye(3))
    return _failed(found, NOT_IMPROVED)


def _fisher_z(value: float) -> float:
    return float(np.arctanh(np.clip(value, -1 + 1e-9, 1 - 1e-9)))


def correlation(
    first: np.ndarray, second: np.ndarray, both: np.ndarray, *, central: bool = True
) -> float | None:
    """Return Pearson's correlation of two planes, each clipped to its 5–95 %.

    Parameters
    ----------
    first, second
        Planes of one shape.
    both
        Where both are valid.
    central
        Compare the central half of each side alone.

    Returns
    -------
    None where too few pixels are left, or one plane is constant.
    """
    chosen = both
    if central:
        n1, n2 = both.shape
        centre = np.zeros_like(both)
        centre[n1 // 4 : n1 - n1 // 4, n2 // 4 : n2 - n2 // 4] = True
        chosen = both & centre
    if chosen.sum() < _LEAST_PIXELS:
        return None
    values = []
    for plane in (first, second):
        inside = plane[chosen].astype(np.float64)
        clipped = np.clip(inside, *np.percentile(inside, [5, 95]))
        if clipped.std() <= 1e-9 * (abs(clipped).max() + 1e-30):
            return None
        values.append((clipped - clipped.mean()) / clipped.std())
    return float((values[0] * values[1]).mean())


def tissue_threshold(values: np.ndarray) -> float:
    """Return Otsu's threshold between agarose and tissue; 0 where values are equal or absent."""
    from skimage.filters import threshold_otsu

    if values.size == 0 or values.max() <= values.min():
        return 0.0
    return float(threshold_otsu(values))


def register_affine(
    upper: tuple[np.ndarray, np.ndarray],
    lower: tuple[np.ndarray, np.ndarray],
    metric: str,
    max_iterations: int,
    first_step_px: float,
) -> np.ndarray:
    """Find the affine map from places in one plane to places of the same structure in another.

    Parameters
    ----------
    upper, lower
        Plane and mask of each, on one grid.
    metric
        ``MSE``, ``CC`` or ``MI``.
    max_iterations
        Most steps a level.
    first_step_px
        Length of the first step of the descent.

    Returns
    -------
    3 × 3 matrix in pixels.

    Raises
    ------
    RuntimeError
        When the optimiser fails.
    """
    import SimpleITK as sitk

    images = []
    for plane, mask in (upper, lower):
        low, high = np.percentile(plane[mask], [0.5, 99.5]) if mask.any() else (0.0, 1.0)
        scaled = np.clip((plane - low) / max(high - low, 1e-12), 0, 1) * mask
        images.append(
            (
                sitk.GetImageFromArray(scaled.astype(np.float32)),
                sitk.GetImageFromArray(mask.astype(np.uint8)),
            )
        )
    method = sitk.ImageRegistrationMethod()
    # The sum over threads depends on how many there are; planes this small need only one.
    method.SetNumberOfThreads(1)
    if metric == "MSE":
        method.SetMetricAsMeanSquares()
    elif metric == "CC":
        method.SetMetricAsCorrelation()
    else:
        method.SetMetricAsMattesMutualInformation(50)
    method.SetMetricFixedMask(images[0][1])
    method.SetMetricMovingMask(images[1][1])
    method.SetInterpolator(sitk.sitkLinear)
    method.SetOptimizerAsRegularStepGradientDescent(
        learningRate=first_step_px,
        minStep=1e-3,
        numberOfIterations=max_iterations,
        gradientMagnitudeTolerance=1e-8,
    )
    method.SetOptimizerScalesFromPhysicalShift()
    method.SetShrinkFactorsPerLevel([4, 2, 1])
    method.SetSmoothingSigmasPerLevel([3, 2, 1])
    middle = [(n - 1) / 2 for n in reversed(upper[0].shape)]
    start = sitk.AffineTransform(2)
    start.SetCenter(middle)
    method.SetInitialTransform(start, inPlace=True)
    method.Execute(images[0][0], images[1][0])
    # ITK counts the last array axis first.
    matrix = np.array(start.GetMatrix()).reshape(2, 2)[::-1, ::-1]
    centre = np.array(start.GetCenter())[::-1]
    offset = np.array(start.GetTranslation())[::-1] + centre - matrix @ centre
    out = np.eye(3)
    out[:2, :2], out[:2, 2] = matrix, offset
    return out
