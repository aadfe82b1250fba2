"""Fit a rigid part and a smooth residual to the map between two slices, by local windows.

Slices are deformed smoothly: one correlation of the whole plane follows the part that has most
contrast, and the rest of the plane then matches nothing. Windows measured by themselves see the
deformation. The moving planes are sampled where the windows put them, and measured again, until
the windows are no longer distorted (image deformation: Scarano, Meas. Sci. Technol. 13, R1, 2002).
Till then all windows count alike: a distorted one has a low peak, and must be followed, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linumpy.brain.covariance import SMOOTHNESS
from linumpy.brain.kriging import SmoothDisplacement, fit_displacement
from linumpy.brain.local_shifts import measure_local_shifts
from linumpy.core.device import Array
from linumpy.geometry.shift_field import ShiftField
from linumpy.geometry.turned import (
    Turn,
    rotation_matrix,
    warp_planes,
)

WINDOW_PX = 64
"""Side of a window: some hundred grains of speckle, enough to exclude a chance match."""

_FIRST_WINDOW_PX = 3 * WINDOW_PX // 2
_REACH_PX = (WINDOW_PX // 4, WINDOW_PX // 8)
"""How far windows are searched, at first and later: the farther, the more likely one matches
somewhere by chance, and once the planes are sampled where a window put them, a wrong one goes on to
match there."""

_GROWTH = 1.1
_MAX_PASSES = 5
_NODE_PX = WINDOW_PX / 4
_MIN_WINDOWS = 9
_MIN_SHARE = 0.2
"""By chance one in ten windows matches somewhere."""

_WINDOWS_A_SIDE = 15
_DENSE_WINDOWS_A_SIDE = 40
LEAST_NOISE_PX = 0.1
LEAST_FIELD_PX = 3 * LEAST_NOISE_PX
"""Deformation, RMS along one axis, below which windows show little but their own noise."""


@dataclass(frozen=True)
class LocalFit:
    """Map of a moving stack to a fixed one.

    Attributes
    ----------
    rotation_deg, displacement_px
        Of the moving stack about the middle of its planes, and where that middle then lies, as in
        `RigidFit`: the rigid part over the area that both share.
    warped
        The moving planes on the pixels of the fixed ones, sampled where they were found.
    share
        Windows that match and agree with the others, of all that hold something.
    fixed_px, moving_px
        Places that show the same in both stacks, float64 (n, 2).
    smooth
        The last fit of the displacement.
    step_px
        Distance of the windows.
    """

    rotation_deg: float
    displacement_px: np.ndarray
    warped: Array
    share: float
    fixed_px: np.ndarray
    moving_px: np.ndarray
    smooth: SmoothDisplacement
    step_px: float


@dataclass(frozen=True)
class _Rigid:
    """Where the moving stack's pixels lie in the fixed stack."""

    rotation_deg: float
    displacement_px: np.ndarray
    middle_px: np.ndarray

    def to_fixed(self, points: np.ndarray) -> np.ndarray:
        away = points - self.middle_px
        turned = away @ rotation_matrix(self.rotation_deg).T
        return np.asarray(turned + self.middle_px + self.displacement_px)

    @property
    def sampling(self) -> Turn:
        """Where pixels of the fixed stack lie in the moving one."""
        inverse = rotation_matrix(-self.rotation_deg)
        shift = self.middle_px - inverse @ (self.middle_px + self.displacement_px)
        return Turn.of(inverse, shift)

    def corrected(self, found: SmoothDisplacement, centre_px: np.ndarray) -> _Rigid:
        """Return what is left when a measured rigid part is taken into account."""
        turn_deg = float(np.rad2deg(found.turn_rad))
        middle = self.middle_px + self.displacement_px
        back = rotation_matrix(-turn_deg) @ (middle - centre_px - found.shift_px) + centre_px
        return _Rigid(self.rotation_deg - turn_deg, back - self.middle_px, self.middle_px)


def fit_locally(
    fixed: Array,
    moving: Array,
    rotation_deg: float,
    displacement_px: np.ndarray,
    *,
    turn: bool = True,
    dense: bool = False,
) -> LocalFit | None:
    """Refine a rigid fit by local windows.

    Parameters
    ----------
    fixed, moving
        Flattened planes that show the same depths, shape (z, axis 1, axis 2), NumPy or CuPy.
    rotation_deg, displacement_px
        About how the moving stack lies, as in `RigidFit`.
    turn
        Whether the moving stack may be rotated.
    dense
        Whether windows overlap by half in large planes, too, as far as there is time, if these are
        deformed: the field then shows more, the rigid part hardly.

    Returns
    -------
    None where too few windows match to estimate a smooth displacement.
    """
    if not has_room(fixed.shape) or not has_room(moving.shape):
        return None
    rigid = _Rigid(rotation_deg, np.asarray(displacement_px, float), _middle(moving))
    field: ShiftField | None = None
    shape = (fixed.shape[1], fixed.shape[2])
    side = float(np.sqrt(np.prod(shape)))
    step = max(WINDOW_PX / 2, side / _WINDOWS_A_SIDE)
    finest = max(WINDOW_PX / 2, side / _DENSE_WINDOWS_A_SIDE) if dense else step
    before = 0
    for n in range(_MAX_PASSES):
        window = WINDOW_PX if n else _FIRST_WINDOW_PX
        warped = warp_planes(moving, rigid.sampling, shape, field)
        shifts = measure_local_shifts(
            fixed,
            warped,
            window_px=window,
            step_px=max(window / 2, step),
            reach_px=_REACH_PX[min(n, 1)],
        )
        if len(shifts.place_px) < max(_MIN_WINDOWS, _MIN_SHARE * shifts.compared):
            return None
        source = _bent(rigid.sampling, field, shifts.place_px + shifts.shift_px)
        seen = shifts.place_px, source
        rigid, field, smooth = _improved(rigid, fixed, moving, *seen, turn, window)
        if smooth.used.sum() < _MIN_WINDOWS:
            return None
        if n > 1 and (smooth.used.sum() < _GROWTH * before or n == _MAX_PASSES - 2):
            bent_px = float(np.sqrt(np.mean(smooth.field_px**2)))
            if step == finest or bent_px < LEAST_FIELD_PX:
                break
            step = finest
        before = int(smooth.used.sum())
    sigma_px = shifts.sigma_px
    last = _improved(rigid, fixed, moving, *seen, turn, window, sigma_px, SMOOTHNESS)
    if last[2].used.sum() >= _MIN_WINDOWS:
        rigid, field, smooth = last
    return LocalFit(
        rigid.rotation_deg,
        rigid.displacement_px,
        warp_planes(moving, rigid.sampling, shape, field),
        float(smooth.used.sum() / shifts.compared),
        shifts.place_px[smooth.used],
        source[smooth.used],
        smooth,
        step,
    )


def _improved(
    rigid: _Rigid,
    fixed: Array,
    moving: Array,
    places: np.ndarray,
    source: np.ndarray,
    turn: bool,
    window_px: int,
    sigma_px: np.ndarray | None = None,
    smoothness: Sequence[float] = (1.5,),
) -> tuple[_Rigid, ShiftField, SmoothDisplacement]:
    """Fit rigid part and field to windows at `places` that show what lies at `source`, (n, 2)."""
    rows, columns = _shared_nodes(fixed, moving, rigid)
    area = np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1).reshape(-1, 2)
    smooth = fit_displacement(
        places,
        rigid.to_fixed(source) - places,
        area,
        window_px=window_px,
        least_noise_px=LEAST_NOISE_PX,
        sigma_px=sigma_px,
        smoothness=smoothness,
        turn=turn,
    )
    values = smooth.field_px.T.reshape(2, len(rows), len(columns))
    field = ShiftField((rows[0], columns[0]), (_NODE_PX, _NODE_PX), values)
    return rigid.corrected(smooth, area.mean(axis=0)), field, smooth


def has_room(shape: Sequence[int]) -> bool:
    """Say whether planes (…, axis 1, axis 2) hold enough windows to be fitted."""
    sides = [2 * n // _FIRST_WINDOW_PX - 1 for n in shape[-2:]]
    return min(sides) > 0 and sides[0] * sides[1] >= _MIN_WINDOWS


def _middle(planes: Array) -> np.ndarray:
    return (np.asarray(planes.shape[1:], float) - 1) / 2


def _bent(turn: Turn, field: ShiftField | None, points: np.ndarray) -> np.ndarray:
    return turn.at(points if field is None else points + field.at(points))


def _shared_nodes(fixed: Array, moving: Array, rigid: _Rigid) -> list[np.ndarray]:
    """Return rows and columns of nodes over the part of the fixed planes that both show."""
    sides = []
    for axis, shift in enumerate(rigid.displacement_px.tolist()):
        low = max(0.0, shift)
        high = min(fixed.shape[axis + 1], shift + moving.shape[axis + 1]) - 1.0
        count = max(2, int(np.ceil((high - low) / _NODE_PX)) + 1)
        sides.append(low + _NODE_PX * np.arange(count))
    return sides
