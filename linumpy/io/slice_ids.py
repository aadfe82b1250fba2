"""Slice ids where metadata have none: from ``--slice_id`` or from the file's name.

Ids that metadata state always win. A name such as ``mosaic_grid_3d_z07.ome.zarr`` states one
where they are silent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from linumpy.core.errors import InputError
from linumpy.io.table_rows import LARGEST_ID

_IN_NAME = re.compile(r"(?<![A-Za-z0-9])z([0-9]+)(?![A-Za-z0-9])")

_given: dict[str, int] = {}


def give_slice_ids(paths: Sequence[Path], ids: Sequence[int]) -> None:
    """Note the ids of volumes that this process will open, one a volume, in their order.

    Raises
    ------
    InputError
        When there are more or fewer ids than volumes, or one is out of range.
    """
    if len(paths) != len(ids):
        raise InputError(f"--slice_id: {len(ids)} ids for {len(paths)} inputs; expected one each")
    for path, slice_id in zip(paths, ids, strict=True):
        if not 0 <= slice_id <= LARGEST_ID:
            raise InputError(f"--slice_id {slice_id}: expected an id from 0 to {LARGEST_ID}")
        _given[str(path)] = slice_id


def check_stated_id(path: Path, stated: int) -> None:
    """Reject a given id that contradicts the metadata of a volume."""
    if _given.get(str(path), stated) != stated:
        raise InputError(
            f"{path}: --slice_id {_given[str(path)]}, but its metadata say slice {stated}; "
            "leave --slice_id out"
        )


def slice_id_beside_metadata(path: Path) -> int | None:
    """Return the id of a volume whose metadata have none: the given one, or that of its name."""
    if str(path) in _given:
        return _given[str(path)]
    match = _IN_NAME.search(path.name)
    return int(match[1]) if match and int(match[1]) <= LARGEST_ID else None
