"""Measure the depth step between two cut faces, and the stage's error, in a second or two.

`brain.register_pairwise` measures pairs for a brain, with rotation, deformation and subpixels. An
operator needs to know now whether the knife cut once, twice or not at all: planes of a slice are
compared with all planes of the one before at pixels of about `PIXEL_UM`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from linumpy.brain.pair_depths import clear_maximum, compare_planes, depth_scores
from linumpy.brain.register_pairwise import Depths, register_pair
from linumpy.brain.slice_planes import SliceVolume, bin_planes, flatten_tissue
from linumpy.core.device import Array
from linumpy.geometry.correlation_peaks import ACCEPT_Z_SCORE, correlation_peak
from linumpy.stage_params.brain import TRANSLATION, RegisterParams

PIXEL_UM = 20.0
"""About the lateral resolution of such microscopes: a pixel holds a grain of speckle."""
N_PLANES = 8
_EXTRA_CUTS = (0, 1, -1, 2)
"""Intervals more than expected that are tried: as it should be, a double cut, a missed one, a
triple one."""
_ALIKE = 0.5
"""Of an interval: tries that lead to depths further apart do not tell a cut from two or none."""
_REACH_UM = 2000.0
_SPECKLE_PX = 2.0


@dataclass(frozen=True)
class DepthStep:
    """Where a slice lies against the one before.

    Attributes
    ----------
    distance_um
        Of their faces; None where they share no tissue that matches.
    shift_um
        What the stage positions are off, along axis 1 and axis 2.
    correlation
        Of the planes that match best.
    clear
        Whether depth is measured by speckle; else by anatomy, the same over many planes.
    agreed
        Whether tries from all depths led to this one. Where they do not, an oblique border matches
        at any depth, each time elsewhere along the plane.
    """

    distance_um: float | None
    shift_um: tuple[float, float] = (0.0, 0.0)
    correlation: float = 0.0
    clear: bool = False
    agreed: bool = True


@dataclass(frozen=True)
class SlicePair:
    """A slice and an earlier one.

    Attributes
    ----------
    fixed, moving
        The earlier slice and this one.
    voxel_um
        Of both.
    interval_um
        Motor step between two cuts.
    cuts
        Intervals that are expected between the two: the difference of their ids.
    """

    fixed: SliceVolume
    moving: SliceVolume
    voxel_um: tuple[float, float, float]
    interval_um: float
    cuts: int = 1


def coarse_planes(volume: SliceVolume, factor: int) -> Array:
    """Return a slice's flattened planes, float32 (z, axis 1, axis 2), pixels binned by a factor."""
    data, valid = volume.read(slice(0, volume.shape[0]), volume.whole())
    planes = bin_planes(data.astype(np.float32), factor)
    known = None if valid is None else bin_planes(valid.astype(np.float32), factor) > 0.5
    return flatten_tissue(planes, known).astype(np.float32)


def depth_step(pair: SlicePair) -> DepthStep:
    """Measure how deep a slice lies below an earlier one, on coarse planes."""
    fixed, moving, voxel_um = pair.fixed, pair.moving, pair.voxel_um
    factor = max(1, round(PIXEL_UM / voxel_um[1]))
    pixel_um = np.multiply(voxel_um[1:], factor)
    first, second = coarse_planes(fixed, factor), coarse_planes(moving, factor)
    expected = np.subtract(moving.corner_um, fixed.corner_um) / pixel_um
    top = min(2, max(0, len(second) - N_PLANES))
    moved = second[top : top + N_PLANES]
    faces_um = fixed.face_to_plane_um - moving.face_to_plane_um

    def best(starts: Iterable[int], off_px: np.ndarray = expected) -> DepthStep:
        found = DepthStep(None)
        depths_um = []
        for start in starts:
            here = first[start : start + N_PLANES]
            if start < 0 or len(here) < 2:
                continue
            measured = _measure(first, here, moved[: len(here)], moved, off_px, pixel_um)
            if measured is None:
                continue
            place, correlation, displacement_px, clear = measured
            shift_px = displacement_px - expected
            distance = (place - top) * voxel_um[0] + faces_um
            shift_um = (float(shift_px[0] * pixel_um[0]), float(shift_px[1] * pixel_um[1]))
            depths_um.append(distance)
            step = DepthStep(float(distance), shift_um, correlation, clear)
            if (step.clear, step.correlation) > (found.clear, found.correlation):
                found = step
        apart_um = max(depths_um, default=0.0) - min(depths_um, default=0.0)
        return replace(found, agreed=bool(apart_um < _ALIKE * pair.interval_um))

    planes_a_cut = pair.interval_um / voxel_um[0]
    starts = [round((pair.cuts + extra) * planes_a_cut) + top for extra in _EXTRA_CUTS]
    step = best(starts)
    if step.distance_um is None:
        # The stage may be wrong by more than the slices overlap then: the mosaic where it was.
        step = best(starts, np.zeros(2))
    if step.distance_um is None:
        # A part of a cut: grains of speckle match at their own depth alone. With so many tries,
        # anatomy matches by chance.
        every = best(range(len(first) - 1))
        if every.distance_um is not None and every.clear:
            place = round((every.distance_um - faces_um) / voxel_um[0]) + top
            again = best([place])
            step = again if again.clear else every
    return step


def confirmed(step: DepthStep, pair: SlicePair) -> DepthStep:
    """Return a step that is off, or not agreed, as the registration of the brain measures it.

    At full resolution the registration looks about the expected depth. Where it finds the slice
    there beyond doubt, the coarse planes were misled. Of a step that is not agreed, the depth at
    which the slices correlate best counts: an oblique border misleads the registration, too.
    """
    params = RegisterParams(transform=TRANSLATION)
    expected_um = pair.cuts * pair.interval_um
    tried = [expected_um]
    if not (step.clear or step.agreed) and step.distance_um is not None:
        tried += [step.distance_um, expected_um + pair.interval_um]
    known: Depths = {}
    found = [
        register_pair(
            pair.fixed, pair.moving, pair.voxel_um, pair.interval_um, params,
            expected_um=[distance_um], known=known,
        )
        for distance_um in tried
    ]  # fmt: skip
    best = max(
        (each for each in found if each.z_measured and not each.reason),
        key=lambda each: each.correlation, default=None,
    )  # fmt: skip
    if best is None:
        return step
    return DepthStep(
        float(expected_um + best.shift_um[0]),
        (float(best.shift_um[1]), float(best.shift_um[2])),
        best.correlation,
        clear=True,
    )


def _measure(
    planes: Array,
    here: Array,
    like: Array,
    moved: Array,
    off_px: np.ndarray,
    pixel_um: np.ndarray,
) -> tuple[float, float, np.ndarray, bool] | None:
    """Return plane, correlation, displacement and clearness of one try about a displacement."""
    centre = np.rint(off_px).astype(int)
    radius = int(min(_REACH_UM / pixel_um.max(), max(here.shape[1:]) * 0.5))
    peak = correlation_peak(
        here, like, (int(centre[0]), int(centre[1])), (radius, radius), min_overlap_share=0.25
    )
    if peak is None or peak.z_score < ACCEPT_Z_SCORE:
        return None
    shift = np.rint(peak.displacement_px).astype(int)
    windows = [
        (slice(max(0, s), min(n, m + s)), slice(max(0, -s), min(m, n - s)))
        for s, n, m in zip(shift, planes.shape[1:], moved.shape[1:], strict=True)
    ]
    fixed = planes[:, windows[0][0], windows[1][0]]
    other = moved[:, windows[0][1], windows[1][1]]
    scores = depth_scores(compare_planes(fixed, other))
    # Coarse pixels average speckle: two planes away, anatomy is as sharp.
    place = clear_maximum(scores, float(np.sqrt(_SPECKLE_PX / other.size)), lags=(1,))
    at = float(scores.argmax()) if place is None else place[0]
    return at, float(scores.max()), np.asarray(peak.displacement_px), place is not None
