"""Scan distortion along the fast axis: learned from overlaps and from the stage.

An A-line at pixel x of a tile shows the tissue at x + d(x). Tile b, D further along the fast
axis, shows the same tissue at other pixels, so that a strip of the overlap about pixel x of tile a
measures D + d(x − D) − d(x). Two things determine d from that:

- How strips of one overlap differ gives the shape of d, whatever the stage did. Neighbours along
  the fast axis compare the ends of the field. Neighbours along the slow axis share its middle, too:
  the stage's own errors D shift them, and strips differ by -D d'(x).
- What all strips have in common looks like a stage whose scale is off in one direction. Stages are
  the better rulers: screw and linear-motor stages are specified to some 0.01 to 0.1 % of their
  travel, in both directions alike, a galvanometer's scan to 0.1 to some percent of its field, worst
  at its turning points. A wrong pixel size, or a stage rotated against the scan, changes both
  directions alike. So the slow axis says what scale there is, and what the fast axis differs from
  it by is distortion.

Both are one linear regression for the Legendre coefficients of d, with the galvanometer's linearity
and the stage's as normal priors. The posterior covariance says how well positions are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linumpy.core.device import Array, namespace
from linumpy.geometry.least_squares import (
    column_products,
    least_squares,
    linear_combination,
    solve_positive,
)
from linumpy.geometry.resample import apply_axis_weights, resample_masked
from linumpy.tiles.scan_posterior import posterior_mean, standard_error
from linumpy.tiles.scan_shape import (
    LINEARITY,
    ORDERS,
    Strip,
    scan_basis,
    scan_prior,
    shared_pixels,
    strip_equations,
    whole_difference,
)

FAST_AXIS = 0
"""Of the lateral axes: A-lines follow one another along axis 1 of a tile."""

_LINEARITIES = (0.0001, 0.03)
"""Of scans in general; how bent this one is follows from its strips."""

_STAGE_LINEARITY = 0.001
_LEAST_ANISOTROPY = 0.003
"""A few times what stages are specified to."""

_NO_STRETCH = 1e-6
"""Standard error of a stretch that is given to be none: far less than any other."""

_SIGNIFICANT = 4.0
_MIN_POSITIONS = 3
"""Tiles along either axis: of two rows, backlash looks like scale."""


@dataclass(frozen=True)
class ScanEvidence:
    """Measurements of the scan from one slice.

    Attributes
    ----------
    stage_px, position_px
        Reported and solved corners of the tiles that pairs join, shape (n, 2).
    steps_px
        Steps along the fast axis of the accepted pairs beside each other along it.
    strips
        Of all accepted pairs; none where only whole overlaps were measured.
    """

    stage_px: np.ndarray
    position_px: np.ndarray
    steps_px: np.ndarray
    strips: Sequence[Strip] = ()


@dataclass(frozen=True)
class ScanDistortion:
    """The model: how far along the fast axis each A-line lies from a straight scan.

    Attributes
    ----------
    error_um
        Shape (pixels of axis 1,): tissue shown, less where a straight scan puts the A-line.
    voxel_um
        Voxel size of the tiles it was learned from.
    n_strips
        Strips of overlaps that it rests on.
    anisotropy
        By how much scale along the fast axis exceeds that along the slow one, as pairs measure it;
        None where too few tiles lie in a row.
    position_sigma_px
        Standard error that it leaves in tile positions along the fast axis, RMS over a slice. Where
        no distortion stands out, it is what may be there for all that.
    scale_sigma
        The same as a share of distances along the fast axis; None in models of earlier versions.
    """

    error_um: np.ndarray
    voxel_um: tuple[float, float, float]
    n_strips: int
    anisotropy: float | None
    position_sigma_px: float
    scale_sigma: float | None = None

    def sigma_px(self, stage_px: np.ndarray) -> float:
        """Return the standard error that it leaves in tiles at some positions (n, 2), RMS."""
        if self.scale_sigma is None:
            return self.position_sigma_px
        return self.scale_sigma * float(stage_px[:, FAST_AXIS].std())

    @property
    def error_px(self) -> np.ndarray:
        """The error in pixels of axis 1."""
        return np.asarray(self.error_um, float) / self.voxel_um[1 + FAST_AXIS]

    @property
    def is_straight(self) -> bool:
        """Whether no distortion was found."""
        return not np.any(self.error_um)


@dataclass(frozen=True)
class _Anisotropy:
    """Scale along the fast axis less that along the slow one, of one slice or of several."""

    value: float
    variance: float
    free: int
    slow: float

    @property
    def is_fast(self) -> bool:
        """Whether the slow axis is the one nearer the nominal pixel size."""
        return abs(self.value + self.slow) > abs(self.slow)

    @property
    def is_distortion(self) -> bool:
        """Whether it stands out, and is one of the fast axis."""
        # Student's t as a normal number (Wallace, Ann. Math. Stat. 30, 1124, 1959).
        t = abs(self.value) / max(np.sqrt(self.variance), 1e-12)
        free = self.free
        normal = (8 * free + 1) / (8 * free + 3) * np.sqrt(free * np.log1p(t * t / free))
        likely = abs(self.value) > _LEAST_ANISOTROPY and self.is_fast
        return bool(likely and normal > _SIGNIFICANT)


def fit_scan_distortion(
    n_pixels: int, voxel_um: tuple[float, float, float], slices: Sequence[ScanEvidence]
) -> ScanDistortion | None:
    """Fit the scan's distortion to what the tiles of one microscope measured.

    Parameters
    ----------
    n_pixels
        Of a tile along the fast axis.
    voxel_um
        Voxel size of the tiles.
    slices
        Any number of slices. Without strips the shape of the distortion is left to the prior.

    Returns
    -------
    The model, with an error of 0 where neither a bend nor a stretch stands out from its error; None
    without a pair along the fast axis. A bend may come without a stretch.
    """
    steps = np.concatenate([np.zeros(0), *(part.steps_px for part in slices)])
    if not len(steps):
        return None
    scale = _pooled([found for part in slices if (found := _anisotropy(part))])
    normal, right, bent = strip_equations(n_pixels, [part.strips for part in slices])
    shares = np.mean([whole_difference(n_pixels, step) / step for step in steps], axis=0)
    if scale:
        weight = 1 / (scale.variance + _STAGE_LINEARITY**2)
        normal = normal + weight * np.outer(shares, shares)
        right = right + weight * scale.value * shares
    prior = scan_prior(n_pixels)
    scales = (_LINEARITIES[0] / LINEARITY, _LINEARITIES[1] / LINEARITY)
    coefficients = posterior_mean(normal, right, prior, scales)
    used = float(shares @ coefficients)
    share_sigma = standard_error(normal, right, prior, scales, shares, used)
    # A straight scan is as good an answer where the mean is less than its standard error. Without
    # strips, the stage's jitter alone would bend the scan of one slice in some hundred.
    has_strips = any(part.strips for part in slices)
    likely = has_strips and scale and scale.is_fast and abs(used) > share_sigma
    if bent and abs(used) < share_sigma:
        # Strips determine the bend. A stretch below its standard error is set to 0, which makes the
        # median error of tiles less: the posterior mean, given that there is none.
        none = np.outer(shares, shares) / _NO_STRETCH**2
        coefficients = posterior_mean(normal + none, right, prior, scales)
    elif not (bent or likely or (scale and scale.is_distortion)):
        coefficients = np.zeros(ORDERS)
    # About the stretch that is applied, which need not be the mean.
    share_sigma = float(np.hypot(share_sigma, used - float(shares @ coefficients)))
    error_px = scan_basis(np.arange(n_pixels), n_pixels) @ coefficients
    reach_px = max(
        float(part.stage_px[:, FAST_AXIS].std()) for part in slices if len(part.stage_px)
    )
    return ScanDistortion(
        error_um=np.asarray(error_px - error_px.mean()) * voxel_um[1 + FAST_AXIS],
        voxel_um=voxel_um,
        n_strips=sum(len(part.strips) for part in slices),
        anisotropy=scale.value if scale else None,
        position_sigma_px=float(share_sigma * reach_px),
        scale_sigma=float(share_sigma),
    )


def _pooled(parts: Sequence[_Anisotropy]) -> _Anisotropy | None:
    """Return the mean of several slices' anisotropies, weighted by their errors."""
    if not parts:
        return None
    weight = np.array([1 / max(part.variance, 1e-12) for part in parts])
    value, slow = (
        float(weight @ [getattr(part, name) for part in parts] / weight.sum())
        for name in ("value", "slow")
    )
    return _Anisotropy(value, float(1 / weight.sum()), sum(part.free for part in parts), slow)


def _anisotropy(slice_: ScanEvidence) -> _Anisotropy | None:
    """Return by how much scale along the fast axis exceeds that along the slow one in a slice."""
    stage_px, position_px = slice_.stage_px, slice_.position_px
    if len(stage_px) < _MIN_POSITIONS**2:
        return None
    centred = stage_px - stage_px.mean(axis=0)
    if not _spans(centred):
        return None
    moved = position_px - stage_px
    moved = moved - moved.mean(axis=0)
    linear = least_squares(centred, moved)
    residual = moved - linear_combination(centred, linear)
    free = residual.size - 6
    variance = float(np.square(residual).sum()) / free
    shape = solve_positive(column_products(centred, centred), np.eye(2)).diagonal()
    fast, slow = (float(linear[axis, axis]) for axis in (FAST_AXIS, 1 - FAST_AXIS))
    return _Anisotropy(fast - slow, variance * float(shape.sum()), free, slow)


def _spans(centred: np.ndarray) -> bool:
    """Whether tiles lie in enough rows and columns."""
    if min(np.abs(centred).max(axis=0, initial=0.0)) <= 0:
        return False
    # Steps are at least half a tile: neighbours in a sorted row are far closer than that.
    for axis in (0, 1):
        gaps = np.diff(np.sort(centred[:, axis]))
        if 1 + int((gaps > 0.5 * gaps.max()).sum()) < _MIN_POSITIONS:
            return False
    return True


class StepMismatch:
    """What distortion adds to the displacement of two tiles, by how far apart they are.

    Parameters
    ----------
    error_px
        Distortion at each pixel of the fast axis.
    """

    def __init__(self, error_px: np.ndarray) -> None:
        n = len(error_px)
        self._steps = np.arange(1 - n, n)
        shared = [(step, shared_pixels(n, step)) for step in self._steps.tolist()]
        self._added = np.array([(error_px[x - s] - error_px[x]).mean() for s, x in shared])

    def added(self, step_px: float) -> float:
        """Return what is added, along the fast axis, to a true step along it."""
        return float(np.interp(step_px, self._steps, self._added))

    def straight(self, measured_px: float) -> float:
        """Return the true step of a measured one."""
        # What is added changes by a few percent of the step: twice is exact to 0.01 pixel.
        step = measured_px - self.added(measured_px)
        return measured_px - self.added(step)


@dataclass(frozen=True)
class Straightening:
    """How tiles of a bent scan are resampled along their fast axis onto a straight one.

    Attributes
    ----------
    weights
        Of linear interpolation, float64 (pixels, pixels).
    unseen
        Pixels that no A-line shows then.
    """

    weights: np.ndarray
    unseen: tuple[int, ...]

    @classmethod
    def of(cls, error_px: np.ndarray) -> Straightening:
        """Return what undoes a distortion, given at each pixel of axis 1."""
        n = len(error_px)
        pixel = np.arange(n)
        place = np.interp(pixel, pixel + error_px, pixel)
        low = np.minimum(place.astype(int), n - 2)
        weights = np.zeros((n, n))
        weights[pixel, low] = 1 - (place - low)
        weights[pixel, low + 1] = place - low
        # So that what is derived from it may be kept.
        weights.setflags(write=False)
        # Half a pixel beyond the outermost centres is still theirs.
        unseen = (pixel < error_px[0] - 0.5) | (pixel > n - 0.5 + error_px[-1])
        return cls(weights, tuple(np.flatnonzero(unseen).tolist()))

    def apply(self, array: Array, valid: Array | None) -> tuple[Array, Array]:
        """Straighten a tile.

        Parameters
        ----------
        array
            Tile (z, axis 1, axis 2), float32, NumPy or CuPy.
        valid
            Its mask, or None.

        Returns
        -------
        The tile, and its mask (uint8): places that no A-line shows are 0 in both.
        """
        matrices = (None, self.weights, None)
        if valid is None:
            out = apply_axis_weights(array, matrices)
            kept = namespace(array).ones(array.shape, np.uint8)
        else:
            out, kept = resample_masked(array, valid, matrices)
        for edge in self.unseen:
            out[:, edge], kept[:, edge] = 0, 0
        return out, kept
