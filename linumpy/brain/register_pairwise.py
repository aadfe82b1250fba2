"""Registration of two slices that share tissue: rotation, translation, depth.

Consecutive slices image some of the same tissue: what is deep in one lies at the top of the
next. A pair is searched over the whole plane by FFT, if need be at several angles, then fitted by
rotation and translation to a fraction of a pixel: of the whole plane, and where enough parts of it
match, of those parts, so that a deformation does not disturb it. Along depth it is searched over
the drift that the motor may have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from linumpy.brain.expected_depths import expected_depths
from linumpy.brain.local_fit import LocalFit
from linumpy.brain.measured_pairs import Depths
from linumpy.brain.pair_depths import MIN_PLANES
from linumpy.brain.pair_match import PairMatch
from linumpy.brain.pair_shift import PairParts, PairShift
from linumpy.brain.slice_planes import SliceVolume, Window, plane_of_top
from linumpy.stage_params.brain import RegisterParams

NO_SHARED_PLANES = "no shared planes"


def register_pair(
    fixed: SliceVolume,
    moving: SliceVolume,
    voxel_um: tuple[float, float, float],
    interval_um: float,
    params: RegisterParams,
    *,
    expected_um: Sequence[float] | None = None,
    known: Depths | None = None,
) -> PairShift:
    """Register one slice with another.

    Parameters
    ----------
    fixed, moving
        Slices, `moving` the later one.
    voxel_um
        Voxel size of both.
    interval_um
        Slicing interval.
    expected_um
        How far the faces may be apart, the likeliest distance first; None for what the slices' own
        metadata and the interval say. Where slices that follow each other match clearly at none
        of them, a cut thicker by an interval is tried, too, and one that was missed. The latter
        stays unknown where the stage errs by less than a pixel.
    known
        Measurements of this pair that were made before; those made now are added.

    Returns
    -------
    The measurement; its `reason` is set when it is rejected.
    """
    step = moving.slice_id - fixed.slice_id
    if expected_um is None:
        expected_um = [d[1] for d in expected_depths([fixed, moving], interval_um)]
    if params.expected_z:
        expected_um = expected_um[:1]
    none = PairShift(fixed.slice_id, moving.slice_id, np.zeros(3))
    known = {} if known is None else known

    def measure(distance_um: float) -> PairShift:
        offset = plane_of_top(fixed, moving, distance_um, voxel_um[0])
        if offset not in known:
            known[offset] = _register_at(fixed, moving, voxel_um, offset, params)
        return known[offset]

    best: PairShift | None = None
    for distance_um in expected_um:
        found = measure(distance_um)
        best = found if best is None else max(best, found, key=_clearness)
        if _is_clear(best):
            break
    best = none if best is None else best
    if not _is_clear(best) and step == 1 and not params.expected_z:
        # A double cut, or a missed one. It has to be clear: what is not is more likely as deep as
        # it should be. Reflections and what else is fixed to the microscope match at one depth,
        # too, but where the stage says, to a pixel.
        deeper, higher = expected_um[0] + interval_um, expected_um[0] - interval_um
        double, missed = measure(deeper), measure(higher)
        moved = np.hypot(*missed.shift_um[1:]) > max(voxel_um[1:])
        for found in (double, missed) if moved else (double,):
            if _is_clear(found) and _clearness(found) > _clearness(best):
                best = found
    shift = best.shift_um.copy()
    if best.z_measured:
        shift[0] -= step * interval_um
    return replace(best, shift_um=shift)


def _is_clear(found: PairShift) -> bool:
    return found.z_measured and not found.reason


def _clearness(found: PairShift) -> tuple[bool, bool, float]:
    return _is_clear(found), not found.reason, found.z_score


def _register_at(
    fixed: SliceVolume,
    moving: SliceVolume,
    voxel_um: tuple[float, float, float],
    offset: int,
    params: RegisterParams,
) -> PairShift:
    """Measure a pair about one distance of faces, in planes; the answer's z is the distance, um."""
    none = PairShift(fixed.slice_id, moving.slice_id, np.zeros(3))
    if min(moving.shape[0], fixed.shape[0] - offset) - params.first_plane < MIN_PLANES:
        return replace(none, reason=NO_SHARED_PLANES)
    pair = PairMatch(fixed, moving, np.asarray(voxel_um), offset, params)
    if reason := pair.nothing_to_compare():
        return replace(none, reason=reason)
    found = pair.measure()
    if found is None:
        return replace(none, reason="no match")
    axial = 0.0
    if found.depth is not None:
        axial = (offset + found.depth) * voxel_um[0]
        axial += fixed.face_to_plane_um - moving.face_to_plane_um
    lateral = (found.displacement_px - pair.expected) * pair.lateral_um
    centre = np.asarray(moving.corner_um) + (found.centre_px + 0.5) * pair.lateral_um
    shift = PairShift(
        fixed.slice_id,
        moving.slice_id,
        np.array([axial, *lateral]),
        correlation=found.peak.correlation,
        z_score=found.peak.z_score,
        z_measured=found.depth is not None,
        z_sigma_um=found.depth_sigma * voxel_um[0],
        rotation_deg=found.rotation_deg,
        centre_um=(float(centre[0]), float(centre[1])),
        agreement=found.agreement,
        plane_fixed=found.plane,
        plane_moving=pair.top,
        reason=found.reason,
    )
    return shift if found.local is None else _with_parts(shift, found.local, found.windows, pair)


def _with_parts(
    shift: PairShift, local: LocalFit, windows: tuple[Window, Window], pair: PairMatch
) -> PairShift:
    """Return a measurement with that of the planes' parts."""
    places = [
        np.asarray(planes.volume.corner_um)
        + (points + [part.start + 0.5 for part in window]) * pair.lateral_um
        for planes, window, points in zip(
            (pair.fixed, pair.moving), windows, (local.fixed_px, local.moving_px), strict=True
        )
    ]
    pixel_um, smooth = float(pair.lateral_um.max()), local.smooth
    return replace(
        shift,
        sigma_um=smooth.shift_sigma_px * pixel_um,
        sigma_deg=float(np.rad2deg(smooth.turn_sigma_rad)),
        parts=PairParts(
            places[0],
            places[1],
            float(np.sqrt(smooth.covariance.independent_noise(local.fixed_px))) * pixel_um,
            float(np.sqrt(smooth.covariance.variance)) * pixel_um,
            smooth.covariance.usual_length_px * pixel_um,
            local.step_px * pixel_um,
            float(np.sqrt(np.mean(np.square(smooth.field_px)))) * pixel_um,
        ),
    )
