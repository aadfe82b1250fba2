"""Comparisons of slices made beforehand, in groups of pairs; as `brain.measured_pairs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.brain.measured_pairs import conditions, saved
from linumpy.brain.slice_planes import SliceVolume
from linumpy.core.errors import InputError
from linumpy.io.models import load_model, save_model
from linumpy.stage_params.quality import ComparisonParams

STEM = "compare_pairs"

Match = dict[str, Any]
"""Fields ``ssim, edges, foreign, displaced`` of `PairSimilarity`."""


@dataclass
class Known:
    """What was compared before, to which what is compared now is added.

    Attributes
    ----------
    details
        ln of the detail's variance at each sampled depth, by slice id; None for a constant slice.
    pairs
        By ids of both slices, then by the fixed slice's plane compared from; None without tissue.
    """

    details: dict[int, np.ndarray | None] = field(default_factory=dict)
    pairs: dict[tuple[int, int], dict[int, Match | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class MeasuredSimilarities:
    """`Known` of one group as plain records, and under what conditions it was made."""

    voxel_um: tuple[float, float, float]
    params: dict[str, Any]
    slices: list[dict[str, Any]]
    pairs: list[dict[str, Any]]


def _params(params: ComparisonParams) -> dict[str, Any]:
    """Return those that comparisons depend on, without those of decisions."""
    return {f.name: getattr(params, f.name) for f in fields(ComparisonParams)}


def save_similarities(
    folder: Path,
    name: str,
    known: Known,
    slices: Sequence[SliceVolume],
    voxel_um: tuple[float, float, float],
    params: ComparisonParams,
) -> None:
    """Write the comparisons of a group, ``compare_pairs_NAME.json``."""
    rows = []
    for volume in slices:
        found = known.details[volume.slice_id]
        values = None if found is None else [float(v) if np.isfinite(v) else None for v in found]
        rows.append({**conditions(volume), "details": values})
    pairs = [
        {"fixed_id": fixed, "moving_id": moving, "start": start, "match": match}
        for (fixed, moving), starts in sorted(known.pairs.items())
        for start, match in starts.items()
    ]
    model = MeasuredSimilarities(voxel_um, _params(params), rows, pairs)
    save_model(folder, f"{STEM}_{name}", model)


def load_similarities(
    folder: Path,
    slices: Sequence[SliceVolume],
    voxel_um: tuple[float, float, float],
    params: ComparisonParams,
) -> Known:
    """Return the comparisons in a folder that hold for these slices and parameters.

    Raises
    ------
    InputError
        When a file is not what `save_similarities` writes; names it.
    """
    now = {volume.slice_id: conditions(volume) for volume in slices}
    known = Known()
    for path in saved(folder, STEM):
        model = load_model(folder, path.stem, MeasuredSimilarities)
        if tuple(model.voxel_um) != tuple(voxel_um) or model.params != _params(params):
            continue
        try:
            _add(known, model, now)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{path}: not comparisons of slices ({error})") from error
    return known


def _add(known: Known, model: MeasuredSimilarities, now: Mapping[int, Mapping[str, Any]]) -> None:
    same = set()
    for row in model.slices:
        given = dict(row)
        details = given.pop("details")
        if given == now.get(given["slice_id"]):
            same.add(given["slice_id"])
            # What is not finite counts for nothing.
            known.details[given["slice_id"]] = (
                None if details is None else np.array([np.nan if v is None else v for v in details])
            )
    for pair in model.pairs:
        ids, match = (int(pair["fixed_id"]), int(pair["moving_id"])), pair["match"]
        if set(ids) <= same:
            if match is not None:
                if "displaced" not in match:
                    continue  # Of an earlier version: it is measured again.
                match = {name: match[name] for name in ("ssim", "edges", "foreign", "displaced")}
            known.pairs.setdefault(ids, {})[int(pair["start"])] = match
