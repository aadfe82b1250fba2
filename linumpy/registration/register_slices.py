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
from linumpy.device import Array, is_device_array, namespace, to_host
from linumpy.registration.correlation import (
    ACCEPT_Z_SCORE,
    confidence,
    correlation_surface,
    find_peak,
    flatten,
)
from linumpy.registration.network import robust_spread, solve_network
from linumpy.stage_params.brain import RegisterParams

MAX_COARSE_SIDE_PX = 1024
MAX_PLANES = 10
_FINE_RADIUS_PX = 3
_MIN_PAIR_SIGMA_UM = 1.0
_MIN_MOTOR_SIGMA_UM = 2.0
_MAX_ID_STEP = 2


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
    factor = -(-max(*fixed.shape[1:], *moving.shape[1:]) // MAX_COARSE_SIDE_PX)
    low, high = max(0, start - reach), min(fixed.shape[0], start + n_planes + reach)
    below = _Planes(fixed, low, high, factor)
    above = _Planes(moving, params.first_plane, params.first_plane + n_planes, factor)
    guess, matched = None, 0
    for matched in _nearest_first(reach, high - n_planes - start, low - start):
        guess = _coarse_search(below, above, start + matched, expected, params)
        if guess is not None:
            break
    if guess is None:
        return None
    plane_shift, measured = 0.0, False
    if not params.expected_z:
        found = _search_depth(below, above, start, guess)
        if found is not None:
            plane_shift, measured = found, True
    centred = start + (round(plane_shift) if measured else matched)
    centred = int(np.clip(centred, 0, fixed.shape[0] - n_planes))
    fine = _fine_search(below, above, centred, guess)
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


class _Planes:
    """Planes ``low … high − 1`` of a slice as a pair looks at them, read and flattened once.

    Parameters
    ----------
    factor
        Pixels of a side that are one for the search over the whole plane.
    """

    def __init__(self, volume: SliceVolume, low: int, high: int, factor: int) -> None:
        self.volume, self.low, self.high, self.factor = volume, low, high, factor
        self._whole: tuple[Array, Array | None] | None = None
        self._coarse: dict[int, Array] = {}
        self._window: tuple[tuple[slice, slice], int, Array] | None = None

    @property
    def count(self) -> int:
        """How many planes there are."""
        return self.high - self.low

    def coarse(self, start: int, count: int) -> Array:
        """Return flattened whole planes, binned by the factor."""
        wanted = range(start, start + count)
        lacking = [plane for plane in wanted if plane not in self._coarse]
        # One plane at a time: all of a large slice is needed here, but only coarsely.
        parts = [self._binned(plane) for plane in lacking]
        if parts:
            xp = namespace(parts[0][0])
            valid = None
            if parts[0][1] is not None:
                valid = xp.concatenate([share for _, share in parts])
            flat = flatten(xp.concatenate([data for data, _ in parts]), valid)
            self._coarse.update(zip(lacking, flat, strict=True))
        return namespace(self._coarse[start]).stack([self._coarse[plane] for plane in wanted])

    def _binned(self, plane: int) -> tuple[Array, Array | None]:
        data, valid = self._read(slice(plane, plane + 1), self.volume.whole())
        if self.factor == 1:
            return data, valid
        share = None if valid is None else _bin(valid, self.factor) > 0.5
        return _bin(data, self.factor), share

    def within(self, window: tuple[slice, slice], start: int, count: int) -> Array:
        """Return flattened planes of a window, at full resolution."""
        if self._window is not None:
            known, first, planes = self._window
            if known == window and first <= start and start + count <= first + len(planes):
                return planes[start - first : start - first + count]
        planes = flatten(*self._read(slice(start, start + count), window))
        self._window = (window, start, planes)
        return planes

    def _read(self, planes: slice, window: tuple[slice, slice]) -> tuple[Array, Array | None]:
        if self.factor > 1:
            return self.volume.read(planes, window)
        if self._whole is None:
            self._whole = self.volume.read(slice(self.low, self.high), self.volume.whole())
        data, valid = self._whole
        part = (slice(planes.start - self.low, planes.stop - self.low), *window)
        return data[part], None if valid is None else valid[part]


def _bin(planes: Array, factor: int) -> Array:
    xp = namespace(planes)
    n1, n2 = planes.shape[1] // factor, planes.shape[2] // factor
    blocks = planes[:, : n1 * factor, : n2 * factor].astype(xp.float32)
    return blocks.reshape(len(planes), n1, factor, n2, factor).mean(axis=(2, 4))


def _coarse_search(
    fixed: _Planes, moving: _Planes, start: int, expected: np.ndarray, params: RegisterParams
) -> np.ndarray | None:
    factor = fixed.factor
    centre = np.rint(expected / factor).astype(int)
    radius = max(2, -(-params.max_translation_px // factor))
    surface = correlation_surface(
        fixed.coarse(start, moving.count),
        moving.coarse(moving.low, moving.count),
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


def _fine_search(fixed: _Planes, moving: _Planes, start: int, guess: np.ndarray) -> Any:
    window_fixed, window_moving = _shared_window(fixed.volume, moving.volume, guess)
    origin = np.array([w.start for w in window_fixed]) - [w.start for w in window_moving]
    first = fixed.within(window_fixed, start, moving.count)
    second = moving.within(window_moving, moving.low, moving.count)
    # A wide window serves as the noise that the peak is compared with.
    surface = correlation_surface(first, second, (0, 0), (24, 24), min_overlap_share=0.25)
    local = guess - origin
    peak = find_peak(
        surface,
        expected_px=(float(local[0]), float(local[1])),
        within_px=_FINE_RADIUS_PX * fixed.factor,
    )
    if peak is None:
        return None
    displacement = np.add(peak.displacement_px, origin)
    return type(peak)(
        (float(displacement[0]), float(displacement[1])), peak.correlation, peak.z_score
    )


def _search_depth(fixed: _Planes, moving: _Planes, start: int, guess: np.ndarray) -> float | None:
    """Find how many planes deeper than expected the match lies; None when it is not clear."""
    window_fixed, window_moving = _shared_window(fixed.volume, moving.volume, guess)
    first = fixed.within(window_fixed, fixed.low, fixed.count)
    second = moving.within(window_moving, moving.low, moving.count)
    values = _depth_scores(first, second)
    shifts = np.arange(len(values)) + fixed.low - start
    best = int(values.argmax())
    noise = max(1.4826 * float(np.median(np.abs(values - np.median(values)))), 1e-6)
    clear = (values[best] - np.median(values)) / noise >= 3.0
    if not clear or best in (0, len(values) - 1):
        return None
    before, peak, after = values[best - 1 : best + 2]
    curvature = before - 2 * peak + after
    offset = 0.5 * (before - after) / curvature if curvature < 0 else 0.0
    return float(shifts[best] + offset)


def _depth_scores(first: Array, second: Array) -> np.ndarray:
    """Return the correlation of `second` with as many planes of `first`, from each of its planes.

    The products of all planes are fetched from a device together.
    """
    xp = namespace(first)
    n, n_scores = len(second), len(first) - len(second) + 1
    sums = [_plane_products(first[k : k + n_scores], second[k]) for k in range(n)]
    squares = [_plane_products(plane[None], plane) for stack in (first, second) for plane in stack]
    found = to_host(xp.concatenate([*sums, *squares])).astype(np.float64)
    product = found[: n * n_scores].reshape(n, n_scores).sum(axis=0)
    energy = found[n * n_scores :]
    around = np.convolve(energy[: len(first)], np.ones(n), "valid")
    return product / (np.sqrt(energy[len(first) :].sum()) * np.sqrt(around) + 1e-12)


def _plane_products(planes: Array, plane: Array) -> Array:
    """Return the sum of the products of each plane's pixels with those of one plane."""
    if is_device_array(planes):
        return (planes * plane).sum(axis=(1, 2))
    room = np.empty_like(plane)
    return np.array([np.multiply(other, plane, out=room).sum() for other in planes])


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
