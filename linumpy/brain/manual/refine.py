"""Refine manual transforms: search near them for the best match of two slices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from linumpy.brain.poses import entry_of
from linumpy.brain.register_slices import SliceVolume
from linumpy.brain.rigid import fit_rigid, middle_px
from linumpy.brain.slice_registration import SliceRegistration
from linumpy.core.device import Array, namespace
from linumpy.geometry.correlation_peaks import ACCEPT_Z_SCORE, correlation_peak
from linumpy.geometry.flatten import flatten
from linumpy.geometry.zmorph import planar, sample_plane, source_window, turn_about
from linumpy.stage_params.gaps import RefineManualParams

Window = tuple[slice, slice]

_MAX_SIDE_PX = 1024
_MAX_PLANES = 10
_NOISE_PX = 24
_PEAK_PX = 3.0


@dataclass(frozen=True)
class Refined:
    """A transform that matches best near one made by hand.

    Attributes
    ----------
    fixed_to_moving
        Map (3 × 3) between stage positions, um.
    shift_px, rotation_deg
        How far it is from the one made by hand.
    correlation, z_score
        Of the match.
    """

    fixed_to_moving: np.ndarray
    shift_px: tuple[float, float]
    rotation_deg: float
    correlation: float
    z_score: float


def refine_transform(
    fixed: SliceVolume,
    moving: SliceVolume,
    fixed_to_moving: np.ndarray,
    model: SliceRegistration,
    params: RefineManualParams,
) -> Refined | None:
    """Look near a manual transform for where two slices match best.

    Parameters
    ----------
    fixed, moving
        Neighbouring slices.
    fixed_to_moving
        The transform: from stage positions in `fixed` to those in `moving`, um.
    model
        Where the slices lie in depth.
    params
        How far to look.

    Returns
    -------
    The best match; None when the slices share no planes, nothing stands out of the noise, or the
    best lies at the border of the search.
    """
    planes = shared_planes(fixed, moving, model, params.first_plane)
    lateral = np.asarray(model.voxel_um[1:])
    frames = [planar(np.diag(lateral), v.corner_um + lateral / 2) for v in (fixed, moving)]
    # From pixels of the fixed slice to pixels of the moving one.
    by_hand = np.linalg.inv(frames[1]) @ fixed_to_moving @ frames[0]
    window = _window(by_hand, fixed.shape[1:], moving.shape[1:])
    if planes is None or window is None:
        return None
    start, count = planes
    top = slice(params.first_plane, params.first_plane + count)
    first = flatten(*fixed.read(slice(start, start + count), window))
    second = _seen_from_fixed(moving, top, by_hand, window)
    fit = fit_rigid(
        first,
        second,
        0.0,
        (0.0, 0.0),
        reach_deg=params.max_rotation_deg,
        reach_px=params.max_translation_px,
        max_rotation_deg=params.max_rotation_deg,
    )
    if fit is None or (fit.at_limit and params.max_rotation_deg > 0):
        return None
    radius = max(_NOISE_PX, int(np.ceil(params.max_translation_px)) + 2)
    peak = correlation_peak(
        first,
        fit.turned,
        (0, 0),
        (radius, radius),
        expected_px=fit.displacement_px,
        within_px=_PEAK_PX,
    )
    if (
        peak is None
        or peak.z_score < ACCEPT_Z_SCORE
        or np.hypot(*peak.displacement_px) > params.max_translation_px
    ):
        return None
    # What the moving slice, as seen from the fixed one, shows at q, the fixed one shows at q
    # rotated about the window's middle and displaced.
    centre = np.array([w.start for w in window]) + middle_px(first.shape)
    near = planar(np.eye(2), peak.displacement_px) @ turn_about(fit.rotation_deg, centre)
    pixels = by_hand @ np.linalg.inv(near)
    return Refined(
        frames[1] @ pixels @ np.linalg.inv(frames[0]),
        peak.displacement_px,
        fit.rotation_deg,
        peak.correlation,
        peak.z_score,
    )


def shared_planes(
    fixed: SliceVolume,
    moving: SliceVolume,
    model: SliceRegistration,
    first_plane: int,
    most: int = _MAX_PLANES,
) -> tuple[int, int] | None:
    """Return the fixed slice's plane that shows the moving one's first trusted plane.

    And how many planes from there on both have, at most `most`; None when there are none.
    """
    steps = moving.slice_id - fixed.slice_id
    depth = [entry_of(model, v.slice_id)["offset_um"][0] for v in (fixed, moving)]
    deeper = steps * model.slice_interval_um + depth[1] - depth[0]
    deeper += moving.face_to_plane_um - fixed.face_to_plane_um
    start = max(0, round(deeper / model.voxel_um[0]) + first_plane)
    count = min(most, fixed.shape[0] - start, moving.shape[0] - first_plane)
    return (start, count) if count >= 1 else None


def _seen_from_fixed(
    moving: SliceVolume, planes: slice, by_hand: np.ndarray, window: Window
) -> Array:
    """Return flattened planes of the moving slice where the transform puts a window's pixels."""
    shape = (window[0].stop - window[0].start, window[1].stop - window[1].start)
    here = by_hand @ planar(np.eye(2), [w.start for w in window])
    part = source_window([here], shape, moving.shape[1:])
    assert part is not None, "the window was chosen to be shared"
    data, valid = moving.read(planes, part)
    back = planar(np.eye(2), [-part[0].start, -part[1].start]) @ here
    moved = [
        sample_plane(plane, None if valid is None else valid[n], back, shape)
        for n, plane in enumerate(data)
    ]
    xp = namespace(data)
    return flatten(xp.stack([d for d, _ in moved]), xp.stack([m for _, m in moved]))


def _window(
    by_hand: np.ndarray, fixed_shape: tuple[int, int], moving_shape: tuple[int, int]
) -> Window | None:
    """Return the middle of what both slices show, in pixels of the fixed one."""
    shared = source_window([np.linalg.inv(by_hand)], moving_shape, fixed_shape)
    if shared is None:
        return None
    cut = []
    for part in shared:
        half = min(part.stop - part.start, _MAX_SIDE_PX) // 2
        middle = (part.start + part.stop) // 2
        cut.append(slice(middle - half, middle + half))
    return cut[0], cut[1]
