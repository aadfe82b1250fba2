"""Side files of raw slices: ``metadata.json`` beside them, ``state.json`` at the root.

Read at launch by any Python: nothing but the standard library is imported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linumpy.core.errors import InputError
from linumpy.store.untrusted import JSON_NBYTES, parse_json, quoted, read_bounded


@dataclass(frozen=True)
class SideData:
    """What ``metadata.json`` (or ``state.json`` at the root) says about a slice.

    Attributes
    ----------
    path
        The file that was read, or where one was looked for; for messages.
    n_tiles
        Tiles of the slice.
    """

    path: Path
    axial_resolution_um: float | None = None
    slice_interval_um: float | None = None
    overlap_fraction: float | None = None
    n_tiles: int | None = None


def read_side_data(tile: Path, root: Path | str) -> SideData:
    """Read the side files of the slice that a tile's folder belongs to.

    The nearest ``metadata.json`` between the tile's folder and the root counts; a key that it
    lacks is looked up in ``state.json`` at the root.

    Raises
    ------
    InputError
        When a file is not a JSON object or a value is not a number in its range.
    """
    root = Path(root)
    values: dict[str, tuple[Path, Any]] = {}
    found = expected = tile.parent / "metadata.json"
    for folder in tile.parents:
        candidate = folder / "metadata.json"
        if candidate.is_file():
            found = candidate
            values = {key: (candidate, value) for key, value in _read_object(candidate).items()}
            break
        if folder == root:
            break
    state = root / "state.json"
    if state.is_file():
        values = {**{key: (state, value) for key, value in _read_object(state).items()}, **values}
    thickness_mm = _side_number(values, "slice_thickness", "mm", above=0)
    n_tiles = _side_number(values, "n_tiles", "", above=0)
    return SideData(
        path=found if found.is_file() else expected,
        axial_resolution_um=_side_number(values, "axial_resolution_um", "um", above=0),
        slice_interval_um=None if thickness_mm is None else thickness_mm * 1e3,
        overlap_fraction=_side_number(values, "overlap_fraction", "", above=-1e-12, below=1),
        n_tiles=None if n_tiles is None else int(n_tiles),
    )


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = parse_json(read_bounded(path, JSON_NBYTES), path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def _side_number(
    values: Mapping[str, tuple[Path, Any]],
    key: str,
    unit: str,
    *,
    above: float,
    below: float = math.inf,
) -> float | None:
    path, value = values.get(key, (None, None))
    if value is None:
        return None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)  # noqa: UP038
    if not is_number or not above < value < below:
        bounds = "from 0 to below 1" if below == 1 else f"above 0 {unit}"
        raise InputError(f"{path}: {key} is {quoted(value)}, expected a number {bounds}".rstrip())
    return float(value)
