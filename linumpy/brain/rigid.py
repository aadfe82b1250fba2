"""Estimate rotation and translation between two nearly aligned stacks of planes.

The moving stack is cut into blocks so small that a rotation only shifts them. Each is correlated
by itself; for a rotation, the surfaces of all blocks are shifted to where it would put their peaks
and added up. The best rotation and translation are those of the highest sum: no block need show a
peak of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from linumpy.core.device import Array, namespace, to_host
from linumpy.geometry.correlated_windows import Windows, correlate_windows
from linumpy.geometry.least_squares import least_squares, solve_positive
from linumpy.geometry.turned import turn_planes

_BLOCK_PX = 96
_MIN_BLOCK_PX = 16
_MAX_BLOCKS_AN_AXIS = 8
_MIN_RADIUS_PX = 4
_EDGE_STEP_PX = 0.5
_SPLINE_BORDER_PX = 2
_TURN_AGAIN_PX = 0.25
_NEGLIGIBLE_PX = 0.02
_MAX_TURNS = 4
_REFINEMENTS = 5
_AGREEMENT_WINDOW_PX = 4
_AGREEMENT_PX = 1.5


@dataclass(frozen=True)
class RigidFit:
    """Rigid map of a moving stack to a fixed one.

    Attributes
    ----------
    rotation_deg
        Rotation of the moving stack about the middle of its planes, positive from axis 1 to axis 2.
    displacement_px
        Where its middle then lies, minus where it would lie with both pixels (0, 0) at one place.
    turned
        The moving planes, rotated.
    correlation
        Mean correlation of the blocks.
    agreement
        Share of the blocks, weighed by their pixels, that by themselves match best where the fit
        puts them.
    at_limit
        Whether the rotation is as large as was allowed.
    """

    rotation_deg: float
    displacement_px: tuple[float, float]
    turned: Array
    correlation: float
    agreement: float
    at_limit: bool


def middle_px(shape: Sequence[int]) -> np.ndarray:
    """Return the middle of a plane, in pixels counted at their centres."""
    return (np.asarray(shape[-2:], float) - 1) / 2


def half_diagonal_px(shape: Sequence[int]) -> float:
    """Return the distance of a plane's corners from its middle."""
    return float(np.hypot(shape[-2], shape[-1])) / 2


def fit_rigid(
    fixed: Array,
    moving: Array,
    guess_deg: float,
    guess_px: Sequence[float],
    *,
    reach_deg: float,
    reach_px: float,
    max_rotation_deg: float,
) -> RigidFit | None:
    """Fit rotation and translation near a guess.

    Parameters
    ----------
    fixed, moving
        Flattened planes of one number and one shape, NumPy or CuPy.
    guess_deg, guess_px
        About where to look.
    reach_deg, reach_px
        How far from there.
    max_rotation_deg
        Largest rotation that is answered.

    Returns
    -------
    None when no block has anything to compare.
    """
    centre = middle_px(moving.shape)
    rotation, displacement = float(guess_deg), np.asarray(guess_px, float)
    lever = half_diagonal_px(moving.shape)
    block_lever = np.deg2rad(min(_BLOCK_PX, lever)) / 2
    turned_by, turned = 0.0, moving
    fit: tuple[np.ndarray, float, float] | None = None
    for _ in range(_MAX_TURNS):
        if abs(rotation - turned_by) * np.deg2rad(lever) > _NEGLIGIBLE_PX and (
            fit is None or abs(rotation - turned_by) * block_lever > _TURN_AGAIN_PX
        ):
            turned_by = rotation
            turned = turn_planes(moving, rotation, centre)
        elif fit is not None:
            break
        surfaces = _block_surfaces(
            fixed, turned, displacement, reach_px + np.deg2rad(reach_deg) * lever
        )
        if surfaces is None:
            return None
        low, high = (
            np.clip(guess_deg + sign * reach_deg, -max_rotation_deg, max_rotation_deg) - turned_by
            for sign in (-1, 1)
        )
        fit = surfaces.best(rotation - turned_by, (float(low), float(high)), reach_px, lever)
        best, correlation, agreement = fit
        rotation, displacement = turned_by + best[0], surfaces.shift + best[1:]
        # From now on only what is left is sought.
        reach_deg = min(reach_deg, 2 / np.deg2rad(lever))
        reach_px = min(reach_px, 2.0)
        guess_deg = rotation
    assert fit is not None
    if abs(rotation - turned_by) * np.deg2rad(lever) > _NEGLIGIBLE_PX:
        turned = turn_planes(moving, rotation, centre)
    return RigidFit(
        float(rotation),
        (float(displacement[0]), float(displacement[1])),
        turned,
        correlation,
        agreement,
        abs(rotation) >= max_rotation_deg - 1e-3,
    )


@dataclass(frozen=True)
class _Surfaces:
    """Correlations of blocks with their surroundings.

    Attributes
    ----------
    shift
        Displacement that their middle samples stand for, px.
    place
        Middle of each block relative to the middle of the plane, shape (n, 2).
    count
        Known pixels of each block.
    splines
        Coefficients of cubic splines through the surfaces, shape (n, side, side).
    values
        The surfaces.
    """

    shift: np.ndarray
    place: np.ndarray
    count: np.ndarray
    splines: np.ndarray
    values: np.ndarray

    def score(self, rotation_deg: float | np.ndarray, shifts: np.ndarray) -> np.ndarray:
        """Return mean correlations over blocks, (…, n), at rotations (…) and shifts (…, n, 2)."""
        from scipy.ndimage import map_coordinates

        side, border = self.splines.shape[1:], _SPLINE_BORDER_PX
        moved = np.array([self._moved(angle) for angle in np.ravel(rotation_deg)])
        moved = moved.reshape(*np.shape(rotation_deg), 1, *moved.shape[1:])
        where = np.clip(shifts[..., None, :] + moved + self._middle, 0, np.array(side) - 1) + border
        where[..., 0] += (side[0] + 2 * border) * np.arange(len(self.count))
        found = map_coordinates(
            self._one_above_another, np.moveaxis(where, -1, 0), order=3, prefilter=False
        )
        return np.asarray((found * self.count).sum(axis=-1) / self.count.sum())

    @cached_property
    def _one_above_another(self) -> np.ndarray:
        """The splines as one image: SciPy then samples all of them in a call.

        Each has a border, in which a cubic spline finds the samples nearest to it.
        """
        border = [(0, 0), *2 * [(_SPLINE_BORDER_PX, _SPLINE_BORDER_PX)]]
        return np.concatenate(list(np.pad(self.splines, border, mode="edge")))

    def _moved(self, rotation_deg: float) -> np.ndarray:
        angle = np.deg2rad(rotation_deg)
        cos, sin = np.cos(angle) - 1, np.sin(angle)
        return self.place @ np.array([[cos, sin], [-sin, cos]])

    @property
    def _middle(self) -> np.ndarray:
        return (np.array(self.values.shape[1:]) - 1) / 2

    def best(
        self, start_deg: float, bounds_deg: tuple[float, float], reach_px: float, lever_px: float
    ) -> tuple[np.ndarray, float, float]:
        """Return the best rotation and displacement, their correlation, and the agreement."""
        step = np.rad2deg(_EDGE_STEP_PX / lever_px)
        first, last = (int(np.floor((bound - start_deg) / step)) for bound in bounds_deg)
        angles = start_deg + step * np.arange(first, last + 1)
        angles = np.clip(angles, *bounds_deg)
        side = np.arange(-np.ceil(reach_px), np.ceil(reach_px) + 1)
        shifts = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)
        scores = np.array([self.score(angle, shifts) for angle in angles])
        a, s = divmod(int(scores.argmax()), len(shifts))
        found = self._refine(np.array([angles[a], *shifts[s]]), step, bounds_deg)
        correlation = float(self.score(found[0], found[None, 1:])[0])
        return found, correlation, self._agreement(found)

    def _refine(
        self, found: np.ndarray, step_deg: float, bounds_deg: tuple[float, float]
    ) -> np.ndarray:
        """Climb to the top by quadratic forms through 27 samples, ever closer."""
        unit = np.stack(np.meshgrid(*[(-1.0, 0.0, 1.0)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
        a, b, c = unit.T
        design = np.stack([np.ones(27), a, b, c, a * a, b * b, c * c, a * b, a * c, b * c], axis=1)
        steps = np.array([2 * step_deg, 1.0, 1.0])
        for _ in range(_REFINEMENTS):
            around = found + unit.reshape(3, 9, 3) * steps
            samples = self.score(around[:, 0, 0], around[..., 1:]).ravel()
            q = least_squares(design, samples)
            hessian = np.array(
                [[2 * q[4], q[7], q[8]], [q[7], 2 * q[5], q[9]], [q[8], q[9], 2 * q[6]]]
            )
            if (np.linalg.eigvalsh(hessian) < 0).all():
                move = np.clip(solve_positive(-hessian, q[1:4]), -1, 1)
            else:
                move = unit[int(samples.argmax())]
            found = found + move * steps
            found[0] = np.clip(found[0], *bounds_deg)
            if np.abs(move).max() < 0.5:
                steps = steps / 2
        return found

    def _agreement(self, found: np.ndarray) -> float:
        """Return the share of blocks that match best, of what is near, where the fit puts them."""
        expected = found[1:] + self._moved(found[0]) + self._middle
        agreeing = 0.0
        for values, place, count in zip(self.values, expected, self.count, strict=True):
            low = np.maximum(np.rint(place).astype(int) - _AGREEMENT_WINDOW_PX, 0)
            near = values[
                low[0] : low[0] + 2 * _AGREEMENT_WINDOW_PX + 1,
                low[1] : low[1] + 2 * _AGREEMENT_WINDOW_PX + 1,
            ]
            if near.size:
                own = low + np.unravel_index(int(near.argmax()), near.shape)
                agreeing += count * bool(np.hypot(*(own - place)) <= _AGREEMENT_PX)
        return float(agreeing / self.count.sum())


def _block_surfaces(
    fixed: Array, moving: Array, displacement: np.ndarray, reach_px: float
) -> _Surfaces | None:
    from scipy.ndimage import spline_filter

    radius = max(_MIN_RADIUS_PX, int(np.ceil(reach_px)) + 2)
    shift = np.rint(displacement).astype(int)
    cuts = []
    for axis in (0, 1):
        low = max(0, -shift[axis])
        high = min(moving.shape[axis + 1], fixed.shape[axis + 1] - shift[axis])
        cuts.append(_cut(int(low), int(high)))
    blocks = [(rows, columns) for rows in cuts[0] for columns in cuts[1]]
    if not blocks:
        return None
    low = np.array([[part.start for part in block] for block in blocks])
    side = np.array([[part.stop - part.start for part in block] for block in blocks])
    windows = Windows.around(low, side, fixed.shape[1:], radius, shift)
    values = to_host(
        correlate_windows(fixed, moving, windows, (radius, radius), min_overlap_share=0.25)[0]
    ).astype(np.float64)
    xp = namespace(moving)
    counts = [xp.count_nonzero(moving[:, rows, columns]) for rows, columns in blocks]
    count = to_host(xp.stack([xp.asarray(n) for n in counts])).astype(float)
    known = np.isfinite(values)
    # A block that overlaps too little for part of its surface says less.
    count *= known.mean(axis=(1, 2))
    used = count > 0.1 * count.max()
    if not count.max() or not used.any():
        return None
    values = np.where(known, values, 0)[used]
    splines = np.stack([spline_filter(surface, order=3, mode="nearest") for surface in values])
    place = (low + (side - 1) / 2)[used] - middle_px(moving.shape)
    return _Surfaces(shift.astype(float), place, count[used], splines, values)


def _cut(low: int, high: int) -> list[slice]:
    """Cut a range into blocks of one length, four of them where that is possible."""
    length = high - low
    if length < _MIN_BLOCK_PX:
        return []
    most = max(1, length // _MIN_BLOCK_PX)
    n = min(max(min(4, most), -(-length // _BLOCK_PX)), _MAX_BLOCKS_AN_AXIS)
    edges = [low + length * k // n for k in range(n + 1)]
    return [slice(a, b) for a, b in zip(edges[:-1], edges[1:], strict=True)]
