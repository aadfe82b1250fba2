"""Measurements of pairs made beforehand, in groups: files, and what of them can be used again.

What `register_pairwise` finds at one depth depends on both slices, their places and the parameters
alone. Pairs are therefore measured as soon as both slices are there; `register_slices` takes every
measurement that was made under its own conditions and makes the others, so that the bits are those
of all pairs in one process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.brain.pair_shift import PairParts, PairShift
from linumpy.brain.slice_planes import SliceVolume
from linumpy.core.errors import InputError
from linumpy.io.models import load_model, save_model
from linumpy.stage_params.brain import RegisterParams

Depths = dict[int, PairShift]
"""Measurements of one pair, by the plane of the fixed slice expected to show the moving one's 0."""

STEM = "register_pairs"


@dataclass(frozen=True)
class MeasuredPairs:
    """Measurements of some pairs, and under what conditions they were made.

    Attributes
    ----------
    slices
        `conditions` of each slice.
    pairs
        A record each: ``offset``, the fields of `PairShift`, and under ``parts`` those of
        `PairParts` with ``n``, how many rows of `places_um` are its places; None without parts.
    places_um
        Places of all parts, shape (n, 4): in the fixed slice, in the moving one.
    """

    voxel_um: tuple[float, float, float]
    params: dict[str, Any]
    slices: list[dict[str, Any]]
    pairs: list[dict[str, Any]]
    places_um: np.ndarray


def conditions(volume: SliceVolume) -> dict[str, Any]:
    """Return what a comparison of a slice depends on, but for its voxels."""
    return {
        "slice_id": volume.slice_id,
        "shape": list(volume.shape),
        "corner_um": list(volume.corner_um),
        "face_to_plane_um": volume.face_to_plane_um,
    }


def save_pairs(
    folder: Path,
    name: str,
    measured: Mapping[tuple[int, int], Depths],
    slices: Sequence[SliceVolume],
    voxel_um: tuple[float, float, float],
    params: RegisterParams,
) -> None:
    """Write the measurements of a group of pairs, ``register_pairs_NAME`` (JSON and NPZ)."""
    pairs, places = [], [np.zeros((0, 4))]
    for depths in measured.values():
        for offset, shift in depths.items():
            # Not by asdict, which would copy all places.
            record = {f.name: getattr(shift, f.name) for f in fields(shift)}
            record |= {"offset": offset, "shift_um": shift.shift_um.tolist()}
            if shift.parts is not None:
                part = {f.name: getattr(shift.parts, f.name) for f in fields(shift.parts)}
                places.append(np.hstack([part.pop("fixed_um"), part.pop("moving_um")]))
                record["parts"] = {**part, "n": len(places[-1])}
            pairs.append(record)
    model = MeasuredPairs(
        voxel_um, asdict(params), [conditions(s) for s in slices], pairs, np.concatenate(places)
    )
    save_model(folder, f"{STEM}_{name}", model)


def load_pairs(
    folder: Path,
    slices: Sequence[SliceVolume],
    voxel_um: tuple[float, float, float],
    params: RegisterParams,
) -> dict[tuple[int, int], Depths]:
    """Return the measurements in a folder that hold for these slices and parameters, by pair.

    Raises
    ------
    InputError
        When a file is not what `save_pairs` writes; names it.
    """
    now = {volume.slice_id: conditions(volume) for volume in slices}
    known: dict[tuple[int, int], Depths] = {}
    for path in saved(folder, STEM):
        model = load_model(folder, path.stem, MeasuredPairs)
        if tuple(model.voxel_um) != tuple(voxel_um) or model.params != asdict(params):
            continue
        try:
            same = {s["slice_id"] for s in model.slices if s == now.get(s["slice_id"])}
            for offset, shift in _shifts(model):
                if {shift.fixed_id, shift.moving_id} <= same:
                    known.setdefault((shift.fixed_id, shift.moving_id), {})[offset] = shift
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{path}: not measurements of pairs ({error})") from error
    return known


def saved(folder: Path, stem: str) -> list[Path]:
    """List the files of all groups in a folder.

    Raises
    ------
    InputError
        When there is none.
    """
    found = sorted(folder.glob(f"{stem}_z*.json"))
    if not found:
        raise InputError(f"{folder}: no {stem}_z*.json, as linum_measure_pairs.py writes them")
    return found


def remove_saved(folder: Path, stem: str, ids: Iterable[int]) -> None:
    """Remove what an earlier measurement left of slices, or of groups that began with them."""
    for slice_id in ids:
        for suffix in (".json", ".npz"):
            (folder / f"{stem}_z{slice_id:02d}{suffix}").unlink(missing_ok=True)


def _shifts(model: MeasuredPairs) -> Iterator[tuple[int, PairShift]]:
    start = 0
    for record in model.pairs:
        given = dict(record)
        offset, parts = int(given.pop("offset")), given.pop("parts")
        if parts is not None:
            rest = dict(parts)
            places = model.places_um[start : start + int(rest.pop("n"))]
            start += len(places)
            parts = PairParts(places[:, :2], places[:, 2:], **rest)
        if "z_sigma_um" not in given:
            # Of another version, whose depths have a bias of their own.
            continue
        first, second = given["centre_um"]
        shift = np.array(given["shift_um"], float).reshape(3)
        yield (
            offset,
            PairShift(**{**given, "shift_um": shift, "centre_um": (first, second)}, parts=parts),
        )
