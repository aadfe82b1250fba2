"""Solve slice positions again with manual transforms held fixed.

What a person says of two neighbours holds exactly. All other slices keep to the pairs that
registration accepted, as far as these do not contradict it: a slice that only it had no match for
moves alone, one that others were aligned with takes them along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from linumpy.brain.poses import map_of, pivot_of, pose_of, stage_to_common
from linumpy.brain.slice_registration import SliceRegistration

MANUAL = "manual"
REPLACED = "a manual transform says otherwise"

_MANUAL_WEIGHT = 1e4
_PRIOR_WEIGHT = 1e-7
_ITERATIONS = 12
_BELIEVED_UM = 10.0
"""Pairs that a manual transform strains by more than this begin to lose their pull."""

_DEGREES_AS_UM = 50.0
"""What a degree counts against an um: how far it moves tissue some 3 mm from the pivot."""


@dataclass(frozen=True)
class ManualPair:
    """A transform made by hand, as it was taken over.

    Attributes
    ----------
    fixed_to_moving
        Map (3 × 3) from stage positions in the fixed slice to those in the moving one, um.
    correlation
        Of the slices so aligned; None when it was not compared.
    refined
        Whether the transform was changed to what matched best near it.
    """

    fixed_id: int
    moving_id: int
    fixed_to_moving: np.ndarray
    correlation: float | None = None
    refined: bool = False


def place_by_hand(model: SliceRegistration, manual: Sequence[ManualPair]) -> SliceRegistration:
    """Return a registration in which manual pairs hold.

    Parameters
    ----------
    model
        As it was found without them.
    manual
        Pairs of neighbouring slices.

    Returns
    -------
    New lateral offsets and rotations, relative to the same reference slice; depths are as they
    were. Automatic pairs that end in a manually aligned slice are no longer accepted.
    """
    ids = [entry["slice_id"] for entry in model.slices]
    number = {slice_id: n for n, slice_id in enumerate(ids)}
    by_hand = {pair.moving_id for pair in manual}
    kept = [
        pair
        for pair in model.pairs
        if pair.get("accepted") and pair["moving_id"] not in by_hand
        if pair["fixed_id"] in number and pair["moving_id"] in number
    ]
    before = [stage_to_common(model, slice_id) for slice_id in ids]
    # From the moving slice's stage to the fixed one's, a pair.
    links = [
        (number[p.fixed_id], number[p.moving_id], np.linalg.inv(p.fixed_to_moving)) for p in manual
    ]
    weights = [_MANUAL_WEIGHT] * len(links)
    for pair in kept:
        a, b = number[pair["fixed_id"]], number[pair["moving_id"]]
        links.append((a, b, np.linalg.inv(before[a]) @ before[b]))
        weights.append(max(float(pair.get("confidence", 1.0)), 1e-2))
    placed = _solve(before, links, np.array(weights), len(manual), pivot_of(model))
    reference = placed[number[model.reference_id]] if model.reference_id in number else placed[0]
    home = np.linalg.inv(reference)
    poses = [pose_of(home @ matrix, pivot_of(model)) for matrix in placed]
    slices = [
        _moved(entry, rotation, offset)
        for entry, (rotation, offset) in zip(model.slices, poses, strict=True)
    ]
    moved = replace(model, slices=slices)
    done = {(pair.fixed_id, pair.moving_id) for pair in manual}
    pairs = [_record(pair, model, pivot_of(model)) for pair in manual]
    for pair in model.pairs:
        if (pair["fixed_id"], pair["moving_id"]) not in done:
            replaced = pair["moving_id"] in by_hand and pair.get("accepted")
            pairs.append({**pair, "accepted": False, "reason": REPLACED} if replaced else {**pair})
    for pair in pairs:
        pair.update(residual_of(pair, moved))
    return replace(moved, pairs=sorted(pairs, key=lambda p: (p["fixed_id"], p["moving_id"])))


def _solve(
    before: Sequence[np.ndarray],
    links: Sequence[tuple[int, int, np.ndarray]],
    weights: np.ndarray,
    n_manual: int,
    pivot: np.ndarray,
) -> list[np.ndarray]:
    """Return every slice's map by robust least squares; the first `n_manual` links hold."""
    placed = list(before)
    start = _unknowns(before, pivot)
    design = np.zeros((len(links), len(before)))
    for row, (a, b, _) in enumerate(links):
        design[row, b], design[row, a] = 1, -1
    trust = np.ones(len(links))
    for _ in range(_ITERATIONS):
        now = _unknowns(placed, pivot)
        wanted = np.array(
            [_unknowns([placed[a] @ link], pivot)[0] - now[a] for a, _, link in links]
        )
        weighted = design.T * (weights * trust)
        normal = weighted @ design + _PRIOR_WEIGHT * np.eye(len(before))
        solved = np.linalg.solve(normal, weighted @ wanted + _PRIOR_WEIGHT * start)
        placed = [map_of(u[2] / _DEGREES_AS_UM, u[:2], pivot) for u in solved]
        residual = np.linalg.norm(wanted - design @ solved, axis=1)
        # Cauchy weights: what contradicts a person loses its pull smoothly.
        trust[n_manual:] = 1 / (1 + (residual[n_manual:] / _BELIEVED_UM) ** 2)
    return placed


def _unknowns(maps: Sequence[np.ndarray], pivot: np.ndarray) -> np.ndarray:
    """Return offsets and rotations of maps on one scale, shape (n, 3)."""
    poses = [pose_of(matrix, pivot) for matrix in maps]
    return np.array([[*offset, rotation * _DEGREES_AS_UM] for rotation, offset in poses])


def _moved(entry: Mapping[str, Any], rotation_deg: float, offset_um: np.ndarray) -> dict[str, Any]:
    offset = [float(entry["offset_um"][0]), *(float(v) for v in offset_um)]
    return {**entry, "offset_um": offset, "rotation_deg": rotation_deg}


def residual_of(pair: Mapping[str, Any], model: SliceRegistration) -> dict[str, Any]:
    """Return what a pair measured minus what a model says, as the model keeps it.

    The point that was measured lies at one common position, whichever slice it is looked up in.
    """
    if not pair.get("accepted") or pair.get("shift_um") is None:
        return {"residual_um": None, "residual_deg": None}
    depth, *shift = pair["shift_um"]
    centre = np.asarray(pair["centre_um"], float)
    ids = (pair["fixed_id"], pair["moving_id"])
    fixed, moving = (stage_to_common(model, i) for i in ids)
    lateral = (fixed @ (*(centre + shift), 1.0))[:2] - (moving @ (*centre, 1.0))[:2]
    offsets, turns = model.offset_um, model.rotation_deg
    depth -= offsets[ids[1]][0] - offsets[ids[0]][0]
    return {
        "residual_um": [float(depth), *(float(v) for v in lateral)],
        "residual_deg": float(pair["rotation_deg"] - (turns[ids[1]] - turns[ids[0]])),
    }


def _record(manual: ManualPair, before: SliceRegistration, pivot: np.ndarray) -> dict[str, Any]:
    """Return a manual pair as the model keeps pairs; its depth is that of the automatic one."""
    ids = (manual.fixed_id, manual.moving_id)
    automatic: Mapping[str, Any] = next(
        (p for p in before.pairs if (p["fixed_id"], p["moving_id"]) == ids), {}
    )
    offsets = before.offset_um
    depth = offsets[ids[1]][0] - offsets[ids[0]][0]
    to_fixed = np.linalg.inv(manual.fixed_to_moving)
    turn, shift = pose_of(to_fixed, pivot)
    correlation = manual.correlation
    if correlation is None:
        correlation = automatic.get("correlation", 0.0)
    return {
        **automatic,
        "fixed_id": ids[0],
        "moving_id": ids[1],
        "shift_um": [float(depth), *(float(v) for v in shift)],
        "rotation_deg": turn,
        "centre_um": [float(v) for v in pivot],
        "correlation": correlation,
        "z_correlation": correlation,
        "agreement": 1.0,
        "confidence": 1.0,
        "accepted": True,
        "reason": "",
        "z_measured": bool(automatic.get("z_measured", False)),
        "z_sigma_um": float(automatic.get("z_sigma_um", 0.0)),
        "plane_fixed": automatic.get("plane_fixed", 0),
        "plane_moving": automatic.get("plane_moving", 0),
        "source": MANUAL,
        "refined": manual.refined,
    }
