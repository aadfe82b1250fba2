"""Find and open the slices of a folder, with positions from the tables beside them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from linumpy.brain.slice_planes import SliceVolume
from linumpy.brain.slice_volumes import slice_volumes
from linumpy.core.device import CPU, Device
from linumpy.core.errors import InputError
from linumpy.io.omezarr import open_image
from linumpy.io.stage_axes import parse_stage_to_array
from linumpy.io.tables import (
    offsets_from_shifts,
    position_corrections_um,
    read_shifts,
    read_slice_config,
    selected_ids,
)

_SLICE_NAME = re.compile(r"slice_z(\d+)(_interpolated)?\.ome\.zarr")


def find_slices(folder: Path, config: Path | None = None) -> list[Path]:
    """List the slice volumes of a folder, without those that the slice configuration leaves out.

    An interpolated slice replaces one that is missing, or left out by the configuration. Where
    no volume is named ``slice_zNN.ome.zarr``, the metadata of all Zarr say what they are.

    Raises
    ------
    InputError
        When the folder holds no slice, none is used, or one is wanted that is not there.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder of slices")
    found: dict[int, Path] = {}
    made: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):
        match = _SLICE_NAME.fullmatch(path.name)
        kind = made if match and match.group(2) else found
        if match and (other := kind.setdefault(int(match.group(1)), path)) != path:
            raise InputError(f"{other} and {path} are named for one slice; expected one")
    if not found:
        found, made = _freely_named(folder)
    ids = used_ids(found, folder, config)
    used = {**made, **{i: found[i] for i in ids}}
    return [used[i] for i in sorted(used)]


def _freely_named(folder: Path) -> tuple[dict[int, Path], dict[int, Path]]:
    """Return measured and interpolated slice volumes of a folder by the ids in their metadata."""
    kinds: tuple[dict[int, Path], dict[int, Path]] = ({}, {})
    for path in sorted(folder.glob("*.zarr")):
        attributes = open_image(path).attributes
        if attributes.get("kind") != "slice":
            continue
        slice_id = int(attributes["slice_id"])
        other = kinds[bool(attributes.get("interpolated"))].setdefault(slice_id, path)
        if other is not path:
            raise InputError(f"{other} and {path} both hold slice z{slice_id:02d}; expected one")
    if not kinds[0]:
        raise InputError(f"{folder}: no slice_z*.ome.zarr and no other slice volume in it")
    return kinds


def used_ids(found: Iterable[int], folder: Path, config: Path | None) -> Sequence[int]:
    """Return which of the slices that a folder holds are used, sorted.

    Raises
    ------
    InputError
        When the table leaves out all of them, or wants one that is not there: a slice whose
        reconstruction failed must not be missing from the brain without a word.
    """
    if config is None:
        return sorted(found)
    found, rows = set(found), read_slice_config(config)
    ids = selected_ids(rows, found)
    if not ids:
        raise InputError(f"{config}: leaves out every slice of {folder}")
    lacking = [f"z{row.slice_id:02d}" for row in rows if row.used and row.slice_id not in found]
    if lacking:
        raise InputError(
            f"{config}: wants slice {', '.join(lacking)}, of which {folder} has no volume; make "
            "it, or give its row use=false and a reason"
        )
    return ids


def load_slices(
    paths: Sequence[Path],
    shifts: Path | None,
    *,
    by_name: bool = False,
    device: Device = CPU,
) -> tuple[list[SliceVolume], tuple[float, float, float], float]:
    """Open slices at their motor positions.

    Slices carry stage positions; those of acquisitions that recorded none are placed by the
    table of shifts. Where the table was cleaned, what it adds to the stage's positions is added to
    the slices' too. Interpolated slices lie where they say.

    Parameters
    ----------
    by_name
        The slices were chosen by their names, which must agree with their metadata.

    Returns
    -------
    Slices in order, their voxel size, and the slicing interval in um.

    Raises
    ------
    InputError
        When one is no slice, or not the one that chose it; or they do not belong together.
    """
    images = [open_image(path) for path in paths]
    volumes = slice_volumes(images, device=device)
    for path, image in zip(paths, images, strict=True):
        slice_id, named = int(image.attributes["slice_id"]), _SLICE_NAME.fullmatch(path.name)
        if by_name and named and int(named.group(1)) != slice_id:
            raise InputError(
                f"{path}: its metadata say slice z{slice_id:02d}; rename it, as the slices of a "
                "folder are chosen by name"
            )
    interval_um = _common_interval([image.attributes for image in images], paths[0].parent)
    if shifts is not None:
        volumes = placed_by_table(volumes, [image.attributes for image in images], shifts)
    return volumes, images[0].voxel_um, interval_um


def load_folder(
    folder: Path, shifts: Path | None, config: Path | None = None, *, device: Device = CPU
) -> tuple[list[SliceVolume], tuple[float, float, float], float]:
    """Open the slices that `find_slices` lists, as `load_slices` does."""
    return load_slices(find_slices(folder, config), shifts, by_name=True, device=device)


def placed_by_table(
    volumes: Sequence[SliceVolume], attributes: Sequence[Mapping[str, Any]], shifts: Path
) -> list[SliceVolume]:
    """Return slices where the table of shifts puts them; interpolated ones stay.

    Parameters
    ----------
    attributes
        Those of all the slices' images, in any order.
    shifts
        ``shifts_xy.csv``, as the stage reported it or cleaned of glitches.
    """
    table = read_shifts(shifts)
    ids = [volume.slice_id for volume in volumes if volume.place is None]
    offsets = offsets_from_shifts(table, ids, where=shifts)
    corrections = position_corrections_um(table)
    by_id = {int(each["slice_id"]): each for each in attributes}
    return [
        v if v.place is not None else _at_stage(v, offsets, corrections, by_id[v.slice_id])
        for v in volumes
    ]


def _common_interval(attributes: Sequence[Mapping[str, Any]], folder: Path) -> float:
    """Return the slicing interval that all slices name; a lone slice needs none."""
    found = {a.get("slice_interval_um") for a in attributes}
    intervals = {float(interval) for interval in found if interval is not None}
    if len(attributes) == 1:
        return max(intervals, default=0.0)
    if len(intervals) != 1 or None in found:
        raise InputError(
            f"{folder}: slicing intervals {sorted(map(str, found))} um; expected one, from "
            "metadata.json or --slicing_interval_mm when the grids are made"
        )
    return intervals.pop()


def _at_stage(
    volume: SliceVolume,
    offsets_um: Mapping[int, tuple[float, float]],
    corrections_um: Mapping[int, tuple[float, float]],
    attributes: Mapping[str, Any],
) -> SliceVolume:
    """Return a slice where the table puts it, or at its own position with the table's correction.

    Both mappings hold vectors (x, y) of the stage.
    """
    nominal = attributes.get("nominal_positions")
    vector = (offsets_um if nominal else corrections_um).get(volume.slice_id, (0.0, 0.0))
    axes = parse_stage_to_array(attributes["stage_to_array"])
    first, second = (sign * vector[axis] for axis, sign in axes)
    if nominal:
        # Its own position means nothing.
        first, second = first - volume.corner_um[0], second - volume.corner_um[1]
    return volume.moved((first, second))
