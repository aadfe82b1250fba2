"""Register the slices of a brain: pairs that share tissue, solved in one network.

Consecutive slices, and those two apart, are measured against each other (`register_pairwise`);
all pairs and the motor positions are then solved together (`solve_slices`), relative to the
middle slice, instead of being summed along a chain. Pairs are measured in groups as soon as their
slices are there (`quality.measure_pairs`); what was measured before is not measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from linumpy.brain.deformation_model import deformation_record
from linumpy.brain.expected_depths import expected_depths, expected_steps
from linumpy.brain.measured_pairs import Depths
from linumpy.brain.pair_shift import PairShift
from linumpy.brain.pair_trust import LONE_CONFIDENCE, clear_alone, relative_trust, usual_sigma
from linumpy.brain.register_pairwise import NO_SHARED_PLANES, register_pair
from linumpy.brain.slice_planes import SliceVolume as SliceVolume
from linumpy.brain.slice_planes import expected_plane as expected_plane
from linumpy.brain.slice_registration import SliceRegistration
from linumpy.brain.solve_depths import DepthSolution, solve_depths
from linumpy.brain.solve_slices import SliceSolution, solve_slices
from linumpy.brain.solve_turns import solve_turns
from linumpy.core.log import logger, progress
from linumpy.geometry.turned import rotation_matrix
from linumpy.stage_params.brain import EULER, RegisterParams

Pair = tuple[SliceVolume, SliceVolume]

_MIN_PAIR_SIGMA_UM = 1.0
_MIN_MOTOR_SIGMA_UM = 2.0
_MIN_DEPTH_SIGMA_UM = 0.1
_MAX_ID_STEP = 2
_MIN_WEIGHT = 0.1
_TRUSTED_SHARE = 0.8


def register_slices(
    slices: Sequence[SliceVolume],
    voxel_um: tuple[float, float, float],
    interval_um: float,
    params: RegisterParams,
    *,
    known: Mapping[tuple[int, int], Depths] | None = None,
    workers: int = 1,
) -> SliceRegistration:
    """Register all slices of a brain against each other.

    Parameters
    ----------
    slices
        In order of their ids; at least one. Interpolated ones have their places: they are left
        out.
    voxel_um
        Voxel size of all.
    interval_um
        Slicing interval.
    known
        Measurements of pairs by ids of the slices, as `measure_shifts` gives them.
    workers
        Pairs that are registered at once; the answer does not depend on it.
    """
    slices = [volume for volume in slices if volume.place is None]
    found = {pair: dict(depths) for pair, depths in (known or {}).items()}
    pairs = pairs_to_measure(slices)
    measured = measure_shifts(slices, pairs, voxel_um, interval_um, params, found, workers)
    shifts = [shift for shift in measured if _worth_telling(shift)]
    return solve_registration(slices, shifts, voxel_um, interval_um, params)


def measure_shifts(
    slices: Sequence[SliceVolume],
    pairs: Sequence[Pair],
    voxel_um: tuple[float, float, float],
    interval_um: float,
    params: RegisterParams,
    known: dict[tuple[int, int], Depths],
    workers: int = 1,
    and_then: Callable[[Pair, PairShift], object] | None = None,
) -> list[PairShift]:
    """Measure pairs of slices, and add to `known` what was not measured before.

    Parameters
    ----------
    slices
        In order of their ids: their metadata together tell how deep each is expected.
    and_then
        Called with each pair and what was measured of it, in its thread.
    """
    number = {volume.slice_id: n for n, volume in enumerate(slices)}
    accounts = expected_depths(slices, interval_um)

    def measure(pair: Pair) -> PairShift:
        ids = (pair[0].slice_id, pair[1].slice_id)
        shift = register_pair(
            *pair,
            voxel_um,
            interval_um,
            params,
            expected_um=expected_steps(accounts, number, *ids),
            known=known[ids],
        )
        if and_then is not None:
            and_then(pair, shift)
        return shift

    for fixed, moving in pairs:
        known.setdefault((fixed.slice_id, moving.slice_id), {})
    with ThreadPoolExecutor(workers) as pool:
        return list(progress(pool.map(measure, pairs), len(pairs), "pairs of slices"))


def pairs_to_measure(slices: Sequence[SliceVolume]) -> list[Pair]:
    """List the pairs that may share tissue: neighbours, and those two steps apart."""
    pairs = []
    for n, fixed in enumerate(slices):
        for moving in slices[n + 1 :]:
            if moving.slice_id - fixed.slice_id > _MAX_ID_STEP and moving is not slices[n + 1]:
                break
            pairs.append((fixed, moving))
    return pairs


def _worth_telling(shift: PairShift) -> bool:
    """Whether a pair is more than two slices that were never to meet."""
    return shift.reason != NO_SHARED_PLANES or shift.moving_id - shift.fixed_id == 1


def solve_registration(
    slices: Sequence[SliceVolume],
    shifts: Sequence[PairShift],
    voxel_um: tuple[float, float, float],
    interval_um: float,
    params: RegisterParams,
) -> SliceRegistration:
    """Solve for all slices from the measurements of their pairs.

    Parameters
    ----------
    slices
        In order of their ids; at least one.
    shifts
        From `register_pair`; those with a reason are kept in the model and not used.
    voxel_um, interval_um, params
        As in `register_slices`.
    """
    number = {volume.slice_id: n for n, volume in enumerate(slices)}
    middle = _reference(number, shifts)
    lateral_um = np.asarray(voxel_um[1:])
    pivot = np.asarray(slices[middle].corner_um) + lateral_um * slices[middle].shape[1:] / 2
    shifts = list(shifts)
    used = [n for n, shift in enumerate(shifts) if not shift.reason]
    clear = np.zeros(len(shifts), bool)
    links = [(number[shifts[n].fixed_id], number[shifts[n].moving_id]) for n in used]
    clear[used] = clear_alone(len(slices), links, [shifts[n] for n in used])
    turns = np.zeros(len(slices))
    turned: tuple[int, ...] = ()
    while True:
        good = [shifts[n] for n in used]
        links = [(number[s.fixed_id], number[s.moving_id]) for s in good]
        stated_um = [s.sigma_um for s in good]
        if params.transform == EULER:
            turns, turned = solve_turns(slices, links, good, middle, clear[used])
        lateral = solve_slices(
            len(slices),
            links,
            _common_errors(good, links, turns, pivot),
            relative_trust(good, stated_um, _MIN_PAIR_SIGMA_UM),
            min_pair_sigma=_MIN_PAIR_SIGMA_UM,
            stated_pair_sigma=usual_sigma(stated_um, _MIN_PAIR_SIGMA_UM),
            min_prior_sigma=_MIN_MOTOR_SIGMA_UM,
            clear=clear[used],
        )
        wrong = _implausible(lateral, links, good)
        if not wrong:
            break
        for n, reason in wrong.items():
            shifts[used[n]] = replace(shifts[used[n]], reason=reason)
        used = [n for n in used if not shifts[n].reason]
    offsets = np.zeros((len(slices), 3))
    offsets[:, 1:] = lateral.deviation - lateral.deviation[middle]
    depths = _solve_depths(slices, interval_um, links, good, lateral.weight)
    nominal_um = interval_um * np.array([v.slice_id - slices[0].slice_id for v in slices])
    offsets[:, 0] = depths.depth_um - nominal_um
    stated_z_um = depths.expected_um - depths.expected_um[0] - nominal_um
    counts = np.bincount(np.array(links, int).ravel(), minlength=len(slices))
    lost_zero = tuple(slices[n].slice_id for n in lateral.lost_zero)
    _warn(slices, counts, lost_zero, turned)
    return SliceRegistration(
        reference_id=slices[middle].slice_id,
        voxel_um=voxel_um,
        slice_interval_um=interval_um,
        slices=[
            {
                "slice_id": volume.slice_id,
                "offset_um": offsets[n].tolist(),
                "rotation_deg": float(turns[n]),
                "n_pairs": int(counts[n]),
                "moved_um": list(volume.moved_um),
                "depth_sigma_um": _finite(depths.sigma[n]),
                "stated_z_um": float(stated_z_um[n]),
            }
            for n, volume in enumerate(slices)
        ],
        pairs=[_pair_record(s, number, offsets, turns, pivot, lateral) for s in shifts],
        pivot_um=(float(pivot[0]), float(pivot[1])),
        jumps=lost_zero,
        turned=turned,
        depth_scale=depths.scale if np.isfinite(depths.wide_scale_sigma) else None,
        depth_scale_sigma=_finite(depths.wide_scale_sigma),
        depth_scale_kept=depths.scale_is_significant and not depths.axial_scale_is_off,
        deformation=deformation_record(slices, good, offsets[:, 1:], turns, pivot, lateral_um)
        if params.elastic
        else None,
    )


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _reference(number: Mapping[int, int], shifts: Sequence[PairShift]) -> int:
    """Return the slice that all others are placed by: near the middle, and well matched.

    All offsets are relative to it. One that its pairs hardly place, such as a dark or torn slice,
    would shift the whole brain by its own error.
    """
    matched = np.zeros((len(number), 2), int)
    best = np.zeros(len(number))
    for shift in shifts:
        if shift.reason != NO_SHARED_PLANES:
            for n in (number[shift.fixed_id], number[shift.moving_id]):
                matched[n] += (not shift.reason, 1)
                if not shift.reason:
                    best[n] = max(best[n], shift.confidence * shift.agreement)
    middle = len(number) // 2
    trusted = [
        n
        for n, (accepted, compared) in enumerate(matched)
        if 2 * accepted > compared and best[n] >= _TRUSTED_SHARE * best.max()
    ]
    return min(trusted or [middle], key=lambda n: (abs(n - middle), n))


def motor_registration(
    slices: Sequence[SliceVolume], voxel_um: tuple[float, float, float], interval_um: float
) -> SliceRegistration:
    """Return a registration that trusts the motors, and the stage's height where plausible."""
    measured = [volume for volume in slices if volume.place is None]
    depths = dict(
        zip(
            (volume.slice_id for volume in measured),
            expected_depths(measured, interval_um)[0].tolist(),
            strict=True,
        )
    )
    stated_um = {k: depth - (k - measured[0].slice_id) * interval_um for k, depth in depths.items()}
    return SliceRegistration(
        reference_id=slices[len(slices) // 2].slice_id,
        voxel_um=voxel_um,
        slice_interval_um=interval_um,
        slices=[
            {
                "slice_id": s.slice_id,
                "offset_um": [stated_um[s.slice_id], 0.0, 0.0],
                "rotation_deg": 0.0,
                "n_pairs": 0,
                "moved_um": list(s.moved_um),
                "stated_z_um": stated_um[s.slice_id],
            }
            for s in measured
        ],
        pairs=[],
    )


def _common_errors(
    shifts: Sequence[PairShift],
    links: Sequence[tuple[int, int]],
    turns_deg: np.ndarray,
    pivot_um: np.ndarray,
) -> np.ndarray:
    """Return, for each pair, how much more the moving slice's offset is than the fixed one's, um.

    The point that was measured lies at one common position, whichever slice it is looked up in.
    """
    errors = np.zeros((len(shifts), 2))
    for row, shift, (fixed, moving) in zip(errors, shifts, links, strict=True):
        away = np.asarray(shift.centre_um) - pivot_um
        in_fixed = rotation_matrix(turns_deg[fixed]) @ (away + shift.shift_um[1:])
        row[:] = in_fixed - rotation_matrix(turns_deg[moving]) @ away
    return errors


def _implausible(
    solution: SliceSolution, links: Sequence[tuple[int, int]], shifts: Sequence[PairShift]
) -> dict[int, str]:
    """Return pairs, by number, that contradict the others, or motors that nothing else doubts."""
    wrong = {}
    for n, weight in enumerate(solution.weight):
        if weight < _MIN_WEIGHT:
            wrong[n] = "contradicts other pairs"
    for jump in solution.jumps:
        across = [n for n, (a, b) in enumerate(links) if a < jump <= b and n not in wrong]
        if len(across) == 1 and shifts[across[0]].confidence < LONE_CONFIDENCE:
            wrong[across[0]] = "no other pair bears out so large a shift"
    return wrong


def _solve_depths(
    slices: Sequence[SliceVolume],
    interval_um: float,
    links: Sequence[tuple[int, int]],
    shifts: Sequence[PairShift],
    weight: np.ndarray,
) -> DepthSolution:
    """Return how deep each slice lies below the first one, um."""
    used = [n for n, s in enumerate(shifts) if s.z_measured and weight[n] >= _MIN_WEIGHT]
    chosen = [shifts[n] for n in used]
    steps = np.array([s.moving_id - s.fixed_id for s in chosen])
    return solve_depths(
        len(slices),
        [links[n] for n in used],
        steps * interval_um + np.array([s.shift_um[0] for s in chosen]),
        relative_trust(chosen, [s.z_sigma_um for s in chosen], _MIN_DEPTH_SIGMA_UM),
        accounts=expected_depths(slices, interval_um),
        min_pair_sigma=_MIN_PAIR_SIGMA_UM,
        min_face_sigma=_MIN_MOTOR_SIGMA_UM,
    )


def _warn(
    slices: Sequence[SliceVolume],
    counts: np.ndarray,
    lost_zero: Sequence[int],
    turned: Sequence[int],
) -> None:
    alone = [f"z{s.slice_id:02d}" for s, n in zip(slices, counts, strict=True) if n == 0]
    if alone and len(slices) > 1:
        logger.warning(
            "slices %s match no other slice and stay where the motors put them", ", ".join(alone)
        )
    for slice_id in lost_zero:
        logger.warning(
            "from slice z%02d on all positions are shifted: the stage lost its zero there", slice_id
        )
    for slice_id in turned:
        logger.warning("from slice z%02d on all slices are rotated: the block was moved", slice_id)


def _pair_record(
    shift: PairShift,
    number: dict[int, int],
    offsets_um: np.ndarray,
    turns_deg: np.ndarray,
    pivot_um: np.ndarray,
    solution: SliceSolution,
) -> dict[str, Any]:
    fixed, moving = number[shift.fixed_id], number[shift.moving_id]
    accepted = not shift.reason
    error = _common_errors([shift], [(fixed, moving)], turns_deg, pivot_um)[0]
    residual = np.array([shift.shift_um[0], *error]) - (offsets_um[moving] - offsets_um[fixed])
    turn = shift.rotation_deg - (turns_deg[moving] - turns_deg[fixed])
    off = np.linalg.norm(residual[1:]) / (3 * solution.pair_sigma)
    found = shift.z_score > 0
    return {
        "fixed_id": shift.fixed_id,
        "moving_id": shift.moving_id,
        "shift_um": shift.shift_um.tolist() if found else None,
        "rotation_deg": shift.rotation_deg,
        "centre_um": list(shift.centre_um),
        "correlation": shift.correlation,
        "z_correlation": shift.correlation,
        "agreement": shift.agreement,
        # What the solution contradicts is less likely, however clear its peak.
        "confidence": float(shift.confidence * shift.agreement / (1 + off**2)),
        "accepted": accepted,
        "reason": shift.reason,
        "z_measured": shift.z_measured,
        "z_sigma_um": shift.z_sigma_um,
        "sigma_um": shift.sigma_um,
        "sigma_deg": shift.sigma_deg,
        "deformation_um": None if shift.parts is None else shift.parts.rest_um,
        "plane_fixed": shift.plane_fixed,
        "plane_moving": shift.plane_moving,
        "residual_um": residual.tolist() if accepted else None,
        "residual_deg": float(turn) if accepted else None,
    }
