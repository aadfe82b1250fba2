"""Where each slice lies against the others: pairs that share tissue, solved all together.

Consecutive slices image some of the same tissue: what is deep in one lies at the top of the
next. A pair is searched over the whole plane by FFT, refined to a fraction of a pixel, and
along depth over the drift that the motor may have. All pairs and the motor positions are then
solved together, relative to the middle slice, instead of being summed along a chain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from linumpy.cli import logger
from linumpy.device import Array, namespace, to_host
from linumpy.params import param
from linumpy.registration.correlation import (
    ACCEPT_Z_SCORE,
    confidence,
    correlation_surface,
    find_peak,
    flatten,
)
from linumpy.registration.network import robust_spread, solve_network

MAX_COARSE_SIDE_PX = 1024
MAX_PLANES = 10
_FINE_RADIUS_PX = 3
_MIN_PAIR_SIGMA_UM = 1.0
_MIN_MOTOR_SIGMA_UM = 2.0
_MAX_ID_STEP = 2


@dataclass(frozen=True)
class RegisterParams:
    """Parameters of the registration of slices."""

    first_plane: int = param(
        4,
        "moving_slice_first_index",
        "planes at the top of a slice that are not trusted, for an uneven cut",
        minimum=0,
    )
    max_translation_px: int = param(
        200,
        "registration_max_translation",
        "largest shift sought between two slices, pixels",
        minimum=1,
    )
    drift_mm: float = param(
        0.1,
        "registration_allowed_drifting_mm",
        "largest error of the slicing interval sought, mm",
        minimum=0,
    )
    expected_z: bool = param(
        False,
        "use_expected_z_overlap",
        "place slices in depth by the slicing interval alone, without measuring",
    )


@dataclass(frozen=True)
class SliceVolume:
    """A cropped slice as registration and stacking see it.

    Attributes
    ----------
    shape
        Planes and lateral pixels.
    corner_um
        Stage position of the low corner along axis 1 and axis 2.
    face_to_plane_um
        Depth below the cut face at which plane 0 begins (a fraction of a voxel).
    read
        Reads planes ``start … stop − 1`` within a lateral window, as amplitudes and mask.
    """

    slice_id: int
    shape: tuple[int, int, int]
    corner_um: tuple[float, float]
    face_to_plane_um: float
    read: Callable[[slice, tuple[slice, slice]], tuple[Array, Array | None]]

    def whole(self) -> tuple[slice, slice]:
        """Return the window of all lateral pixels."""
        return slice(0, self.shape[1]), slice(0, self.shape[2])


@dataclass(frozen=True)
class SliceRegistration:
    """The model: offsets of all slices, and the pairs that they rest on.

    Attributes
    ----------
    slices
        ``slice_id, offset_um (z, axis 1, axis 2), n_pairs``. Common position = stage position +
        offset; a slice's face lies at ``(id − first id) · interval + offset z``.
    pairs
        ``fixed_id, moving_id, shift_um, correlation, confidence, accepted, residual_um``: the
        offset of the moving slice minus that of the fixed one.
    """

    reference_id: int
    voxel_um: tuple[float, float, float]
    slice_interval_um: float
    slices: list[dict[str, Any]]
    pairs: list[dict[str, Any]]

    def offsets_um(self) -> dict[int, np.ndarray]:
        """Return each slice's offset (z, axis 1, axis 2)."""
        return {s["slice_id"]: np.asarray(s["offset_um"], float) for s in self.slices}


@dataclass(frozen=True)
class PairShift:
    """How far a moving slice is off, against a fixed one, from where the motors put it."""

    fixed_id: int
    moving_id: int
    shift_um: np.ndarray
    correlation: float
    z_score: float
    z_measured: bool


def expected_plane(id_step: int, interval_um: float, axial_um: float, moving_plane: int) -> int:
    """Return the fixed slice's plane that shows what `moving_plane` of a later slice shows.

    Missing slices count: the step is between ids, not between slices at hand.
    """
    return round(id_step * interval_um / axial_um) + moving_plane


def register_pair(
    fixed: SliceVolume,
    moving: SliceVolume,
    voxel_um: tuple[float, float, float],
    interval_um: float,
    params: RegisterParams,
) -> PairShift | None:
    """Measure the shift between two slices; None when they share no planes.

    Parameters
    ----------
    fixed, moving
        Slices, `moving` the later one.
    voxel_um
        Voxel size of both.
    interval_um
        Slicing interval.
    """
    step = moving.slice_id - fixed.slice_id
    lateral_um = np.asarray(voxel_um[1:])
    start = expected_plane(step, interval_um, voxel_um[0], params.first_plane)
    n_planes = min(MAX_PLANES, moving.shape[0] - params.first_plane, fixed.shape[0] - start)
    if n_planes < 2:
        return None
    expected = (np.subtract(moving.corner_um, fixed.corner_um)) / lateral_um
    reach = 0 if params.expected_z else round(params.drift_mm * 1e3 / voxel_um[0])
    guess, matched = None, 0
    for matched in _nearest_first(reach, fixed.shape[0] - n_planes - start, -start):
        guess = _coarse_search(fixed, moving, start + matched, n_planes, expected, params)
        if guess is not None:
            break
    if guess is None:
        return None
    plane_shift, measured = 0.0, False
    if not params.expected_z:
        found = _search_depth(fixed, moving, start, n_planes, guess, params, reach)
        if found is not None:
            plane_shift, measured = found, True
    centred = start + (round(plane_shift) if measured else matched)
    centred = int(np.clip(centred, 0, fixed.shape[0] - n_planes))
    fine = _fine_search(fixed, moving, centred, n_planes, guess, params)
    if fine is None:
        return None
    lateral = (np.asarray(fine.displacement_px) - expected) * lateral_um
    axial = (start - params.first_plane + plane_shift) * voxel_um[0]
    axial += fixed.face_to_plane_um - moving.face_to_plane_um - step * interval_um
    if not measured:
        axial = 0.0
    return PairShift(
        fixed.slice_id,
        moving.slice_id,
        np.array([axial, *lateral]),
        fine.correlation,
        fine.z_score,
        measured,
    )


def _nearest_first(reach: int, highest: int, lowest: int) -> list[int]:
    """List depth shifts to try: none first, then every second one, nearest first.

    Planes that lie two apart still look alike; a slice much deeper or higher than expected would
    otherwise match nowhere.
    """
    steps = [s for k in range(0, reach + 1, 2) for s in ((k, -k) if k else (0,))]
    return [s for s in steps if lowest <= s <= highest]


def _planes(
    volume: SliceVolume, start: int, count: int, window: tuple[slice, slice], factor: int = 1
) -> Array:
    if factor == 1:
        return flatten(*volume.read(slice(start, start + count), window))
    binned = []
    for plane in range(start, start + count):
        # One plane at a time: the whole of a large slice is needed here, but only coarsely.
        data, valid = volume.read(slice(plane, plane + 1), window)
        share = None if valid is None else _bin(valid, factor)
        binned.append((_bin(data, factor), share))
    xp = namespace(binned[0][0])
    valid = None
    if binned[0][1] is not None:
        valid = xp.concatenate([share for _, share in binned]) > 0.5
    return flatten(xp.concatenate([data for data, _ in binned]), valid)


def _bin(planes: Array, factor: int) -> Array:
    xp = namespace(planes)
    n1, n2 = planes.shape[1] // factor, planes.shape[2] // factor
    blocks = planes[:, : n1 * factor, : n2 * factor].astype(xp.float32)
    return blocks.reshape(len(planes), n1, factor, n2, factor).mean(axis=(2, 4))


def _coarse_search(
    fixed: SliceVolume,
    moving: SliceVolume,
    start: int,
    n_planes: int,
    expected: np.ndarray,
    params: RegisterParams,
) -> np.ndarray | None:
    side = max(*fixed.shape[1:], *moving.shape[1:])
    factor = -(-side // MAX_COARSE_SIDE_PX)
    first = _planes(fixed, start, n_planes, fixed.whole(), factor)
    second = _planes(moving, params.first_plane, n_planes, moving.whole(), factor)
    centre = np.rint(expected / factor).astype(int)
    radius = max(2, -(-params.max_translation_px // factor))
    surface = correlation_surface(
        first,
        second,
        (int(centre[0]), int(centre[1])),
        (radius, radius),
        min_overlap_share=0.25,
    )
    peak = find_peak(surface)
    if peak is None or peak.z_score < ACCEPT_Z_SCORE:
        return None
    return np.multiply(peak.displacement_px, factor)


def _shared_window(
    fixed: SliceVolume, moving: SliceVolume, guess: np.ndarray
) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Return windows of at most the coarse side that show the same tissue in both slices."""
    windows_fixed, windows_moving = [], []
    for axis in (0, 1):
        shift = round(float(guess[axis]))
        low = max(0, shift)
        high = min(fixed.shape[axis + 1], moving.shape[axis + 1] + shift)
        middle, half = (low + high) // 2, min(high - low, MAX_COARSE_SIDE_PX) // 2
        windows_fixed.append(slice(middle - half, middle + half))
        windows_moving.append(slice(middle - half - shift, middle + half - shift))
    return (
        (windows_fixed[0], windows_fixed[1]),
        (windows_moving[0], windows_moving[1]),
    )


def _fine_search(
    fixed: SliceVolume,
    moving: SliceVolume,
    start: int,
    n_planes: int,
    guess: np.ndarray,
    params: RegisterParams,
) -> Any:
    window_fixed, window_moving = _shared_window(fixed, moving, guess)
    origin = np.array([w.start for w in window_fixed]) - [w.start for w in window_moving]
    first = _planes(fixed, start, n_planes, window_fixed)
    second = _planes(moving, params.first_plane, n_planes, window_moving)
    # A wide window serves as the noise that the peak is compared with.
    surface = correlation_surface(first, second, (0, 0), (24, 24), min_overlap_share=0.25)
    local = guess - origin
    factor = max(1, -(-max(*fixed.shape[1:], *moving.shape[1:]) // MAX_COARSE_SIDE_PX))
    peak = find_peak(
        surface,
        expected_px=(float(local[0]), float(local[1])),
        within_px=_FINE_RADIUS_PX * factor,
    )
    if peak is None:
        return None
    displacement = np.add(peak.displacement_px, origin)
    return type(peak)(
        (float(displacement[0]), float(displacement[1])), peak.correlation, peak.z_score
    )


def _search_depth(
    fixed: SliceVolume,
    moving: SliceVolume,
    start: int,
    n_planes: int,
    guess: np.ndarray,
    params: RegisterParams,
    reach: int,
) -> float | None:
    """Find how many planes deeper than expected the match lies; None when it is not clear."""
    window_fixed, window_moving = _shared_window(fixed, moving, guess)
    low = max(0, start - reach)
    high = min(fixed.shape[0], start + n_planes + reach)
    first = _planes(fixed, low, high - low, window_fixed)
    second = _planes(moving, params.first_plane, n_planes, window_moving)
    xp = namespace(first)
    shifts = np.arange(low - start, high - n_planes - start + 1)
    scores = []
    norm = xp.sqrt((second * second).sum())
    for shift in shifts:
        part = first[start - low + shift : start - low + shift + n_planes]
        product = (part * second).sum()
        scores.append(float(to_host(product / (norm * xp.sqrt((part * part).sum()) + 1e-12))))
    values = np.array(scores)
    best = int(values.argmax())
    noise = max(1.4826 * float(np.median(np.abs(values - np.median(values)))), 1e-6)
    clear = (values[best] - np.median(values)) / noise >= 3.0
    if not clear or best in (0, len(values) - 1):
        return None
    before, peak, after = values[best - 1 : best + 2]
    curvature = before - 2 * peak + after
    offset = 0.5 * (before - after) / curvature if curvature < 0 else 0.0
    return float(shifts[best] + offset)


def register_slices(
    slices: Sequence[SliceVolume],
    voxel_um: tuple[float, float, float],
    interval_um: float,
    params: RegisterParams,
    *,
    workers: int = 1,
) -> SliceRegistration:
    """Register all slices of a brain against each other.

    Parameters
    ----------
    slices
        In order of their ids; at least one.
    voxel_um
        Voxel size of all.
    interval_um
        Slicing interval.
    workers
        Pairs that are registered at once; the answer does not depend on it.
    """
    pairs = []
    for n, fixed in enumerate(slices):
        for moving in slices[n + 1 :]:
            if moving.slice_id - fixed.slice_id > _MAX_ID_STEP and moving is not slices[n + 1]:
                break
            pairs.append((fixed, moving))
    with ThreadPoolExecutor(workers) as pool:
        measured = pool.map(
            lambda pair: register_pair(pair[0], pair[1], voxel_um, interval_um, params), pairs
        )
        shifts = [shift for shift in measured if shift is not None]
    number = {volume.slice_id: n for n, volume in enumerate(slices)}
    good = [s for s in shifts if s.z_score >= ACCEPT_Z_SCORE]
    offsets = np.zeros((len(slices), 3))
    lateral = _solve_axes(len(slices), number, good, slice(1, 3))
    axial = _solve_axes(len(slices), number, [s for s in good if s.z_measured], slice(0, 1))
    offsets[:, 1:], offsets[:, :1] = lateral, axial
    middle = len(slices) // 2
    offsets[:, 1:] -= offsets[middle, 1:]
    offsets[:, 0] -= offsets[0, 0]
    counts = dict.fromkeys(number, 0)
    for shift in good:
        counts[shift.fixed_id] += 1
        counts[shift.moving_id] += 1
    alone = [f"z{slice_id:02d}" for slice_id, n in counts.items() if n == 0]
    if alone and len(slices) > 1:
        logger.warning(
            "slices %s match no other slice and stay where the motors put them", ", ".join(alone)
        )
    return SliceRegistration(
        reference_id=slices[middle].slice_id,
        voxel_um=voxel_um,
        slice_interval_um=interval_um,
        slices=[
            {
                "slice_id": volume.slice_id,
                "offset_um": offsets[n].tolist(),
                "n_pairs": counts[volume.slice_id],
            }
            for n, volume in enumerate(slices)
        ],
        pairs=[_pair_record(s, number, offsets, s.z_score >= ACCEPT_Z_SCORE) for s in shifts],
    )


def motor_registration(
    slices: Sequence[SliceVolume], voxel_um: tuple[float, float, float], interval_um: float
) -> SliceRegistration:
    """Return a registration that trusts the motors."""
    return SliceRegistration(
        reference_id=slices[len(slices) // 2].slice_id,
        voxel_um=voxel_um,
        slice_interval_um=interval_um,
        slices=[
            {"slice_id": s.slice_id, "offset_um": [0.0, 0.0, 0.0], "n_pairs": 0} for s in slices
        ],
        pairs=[],
    )


def _solve_axes(
    n_slices: int, number: dict[int, int], shifts: Sequence[PairShift], axes: slice
) -> np.ndarray:
    n_axes = len(range(*axes.indices(3)))
    errors = np.array([s.shift_um[axes] for s in shifts]).reshape(len(shifts), n_axes)
    if not len(shifts):
        return np.zeros((n_slices, n_axes))
    spread = max(robust_spread(errors), _MIN_MOTOR_SIGMA_UM)
    return solve_network(
        n_slices,
        [(number[s.fixed_id], number[s.moving_id]) for s in shifts],
        errors,
        prior_sigma=spread,
        min_pair_sigma=_MIN_PAIR_SIGMA_UM,
    ).deviation


def _pair_record(
    shift: PairShift, number: dict[int, int], offsets: np.ndarray, accepted: bool
) -> dict[str, Any]:
    step = offsets[number[shift.moving_id]] - offsets[number[shift.fixed_id]]
    return {
        "fixed_id": shift.fixed_id,
        "moving_id": shift.moving_id,
        "shift_um": shift.shift_um.tolist(),
        "correlation": shift.correlation,
        "confidence": confidence(shift.z_score),
        "accepted": accepted,
        "z_measured": shift.z_measured,
        "residual_um": (shift.shift_um - step).tolist() if accepted else None,
    }
