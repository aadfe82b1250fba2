"""Place each slice under those before it, by the pairs and the solvers of the batch brain.

A slice is measured against the last two that are there (`brain.register_pairwise`), and all pairs
of the last slices are solved together with what stage and interval say
(`brain.register_slices.solve_registration`). Slices that lie already stay where they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from linumpy.brain.expected_depths import expected_depths
from linumpy.brain.pair_shift import PairShift
from linumpy.brain.register_pairwise import register_pair
from linumpy.brain.register_slices import solve_registration
from linumpy.brain.slice_planes import SliceVolume
from linumpy.stage_params.brain import TRANSLATION, RegisterParams

SOLVED_TOGETHER = 32
"""Slices that are solved together, so that the time of one does not grow with their number."""
_PAIRS = 2
_SAME_UM = 1.0


@dataclass(frozen=True)
class Placed:
    """A slice of the growing brain.

    Attributes
    ----------
    depth_um
        Of its face below that of the first slice.
    shift_um
        Added to its stage position along axis 1 and axis 2.
    pairs
        What was measured of it against slices before it.
    """

    slice_id: int
    depth_um: float
    shift_um: tuple[float, float]
    pairs: tuple[PairShift, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it for the attributes of the brain."""
        pairs = [{**asdict(pair), "shift_um": pair.shift_um.tolist()} for pair in self.pairs]
        return {**asdict(replace(self, pairs=())), "pairs": pairs}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Placed:
        """Return what `to_json` wrote."""
        pairs = tuple(
            PairShift(**{**p, "shift_um": np.array(p["shift_um"]), "centre_um": (*p["centre_um"],)})
            for p in value["pairs"]
        )
        first, second = value["shift_um"]
        return cls(int(value["slice_id"]), float(value["depth_um"]), (first, second), pairs)


def place_slice(
    volumes: Sequence[SliceVolume],
    placed: Sequence[Placed],
    voxel_um: tuple[float, float, float],
    interval_um: float,
    distance_um: float | None = None,
) -> Placed:
    """Return where a new slice lies.

    Parameters
    ----------
    volumes
        The last slices in order of their ids, the new one last.
    placed
        Where all but the last of them lie.
    voxel_um
        Of all.
    interval_um
        Slicing interval.
    distance_um
        Of the new slice's face below that of the last one by the verdict, which finds cuts of any
        multiple of the interval; it counts where registration measures none.
    """
    new = volumes[-1]
    if not placed:
        return Placed(new.slice_id, 0.0, (0.0, 0.0))
    # A slice that is rotated would have to be interpolated, and is seen to be rotated as it is.
    params = RegisterParams(transform=TRANSLATION)
    before = {p.slice_id: p for p in placed}
    pairs = []
    for n, fixed in enumerate(volumes[-2 : -2 - _PAIRS : -1]):
        expected = [float(d[1]) for d in expected_depths([fixed, new], interval_um)]
        if distance_um is not None:
            # Below a slice further up, the new one lies deeper by what is between the two.
            between = before[volumes[-2].slice_id].depth_um - before[fixed.slice_id].depth_um
            deep = distance_um + between
            expected = [deep, *(d for d in expected if abs(d - deep) >= _SAME_UM)]
        pair = register_pair(fixed, new, voxel_um, interval_um, params, expected_um=expected)
        if n == 0 and distance_um is not None and not pair.z_measured:
            excess = distance_um - (new.slice_id - fixed.slice_id) * interval_um
            shift = np.array([excess, *pair.shift_um[1:]])
            pair = replace(pair, shift_um=shift, z_measured=True)
        pairs.append(replace(pair, parts=None))
    shifts = [pair for p in placed for pair in p.pairs] + pairs
    there = {volume.slice_id for volume in volumes}
    shifts = [s for s in shifts if {s.fixed_id, s.moving_id} <= there]
    model = solve_registration(volumes, shifts, voxel_um, interval_um, params)
    solved = {
        entry["slice_id"]: np.array(entry["offset_um"])
        + [(entry["slice_id"] - volumes[0].slice_id) * interval_um, 0.0, 0.0]
        for entry in model.slices
    }
    # Offsets are relative to one slice of them: what lies already says where that is.
    off = [np.array([p.depth_um, *p.shift_um]) - solved[p.slice_id] for p in placed]
    depth, first, second = (solved[new.slice_id] + np.median(off, axis=0)).tolist()
    if not any(pair.z_measured and not pair.reason for pair in pairs):
        # Without a pair the solver takes it for where the stage says, as if no cut before was off.
        last = placed[-1]
        step_um = (new.slice_id - last.slice_id) * interval_um
        depth = last.depth_um + (step_um if distance_um is None else distance_um)
    return Placed(new.slice_id, depth, (first, second), tuple(pairs))
