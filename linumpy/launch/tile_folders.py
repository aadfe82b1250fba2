"""Validate folders of raw tiles: names, repeated indices, holes, mixed acquisitions."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from linumpy.io.raw_folders import ids_text
from linumpy.launch.problems import Problem

TILE = re.compile(r"tile_x([0-9]{1,9})_y([0-9]{1,9})_z([0-9]{1,9})")
_SUBJECT = re.compile(r"sub-[A-Za-z0-9_]+")
_SHOWN = 5

Index = tuple
"""Of a tile: x, y."""


def index_of(folder: Path) -> Index:
    """Return the indices that the name of a tile's folder gives."""
    match = TILE.fullmatch(folder.name)
    assert match is not None
    return int(match[1]), int(match[2])


def tile_folder_problems(
    option: str, root: Path, tiles: Mapping[int, Sequence[Path]], odd_names: Sequence[Path]
) -> list[Problem]:
    """Return what is wrong with the folders of an acquisition.

    Parameters
    ----------
    tiles
        Folders of tiles by slice.
    odd_names
        Folders that begin like a tile, and are not called like one.
    """
    found = []
    if odd_names:
        text = "not the name of a tile; expected tile_x<X>_y<Y>_z<Z>, such as tile_x00_y03_z07"
        found.append(Problem(f"{_some(odd_names)}: {text}"))
    parts = {
        part
        for folders in tiles.values()
        for folder in folders
        for part in folder.parent.parts[len(root.parts) :]
        if _SUBJECT.fullmatch(part)
    }
    if len(parts) > 1:
        names = ", ".join(sorted(parts)[:_SHOWN])
        found.append(Problem(f"{option}: holds {len(parts)} subjects ({names}); name one of them"))
        return found
    return found + _twins(option, tiles)


def _some(paths: Sequence[Path]) -> str:
    more = len(paths) - _SHOWN
    return ", ".join(map(str, paths[:_SHOWN])) + (f" and {more} more" if more > 0 else "")


def _twins(option: str, tiles: Mapping[int, Sequence[Path]]) -> list[Problem]:
    """Return tiles that claim one index, those of the same two folders together."""
    pairs: dict[tuple[Path, Path], list[tuple[int, Path, Path]]] = defaultdict(list)
    for number, folders in tiles.items():
        seen: dict[Index, Path] = {}
        for folder in folders:
            twin = seen.setdefault(index_of(folder), folder)
            if twin is not folder:
                common = Path(os.path.commonpath([twin, folder]))
                depth = len(common.parts) + 1
                branches = (Path(*twin.parts[:depth]), Path(*folder.parts[:depth]))
                pairs[branches].append((number, twin, folder))
    found = []
    for (first, second), twins in pairs.items():
        number, twin, folder = twins[0]
        if len(twins) == 1:
            x, y = index_of(folder)
            text = f"{twin} and {folder}: two tiles at grid index x {x}, y {y}"
            found.append(Problem(f"{text} of slice z{number:02d}; expected one"))
        else:
            ids = ids_text(number for number, _, _ in twins)
            found.append(
                Problem(
                    f"{option}: {first} and {second} both hold {len(twins)} tiles of the same "
                    f"indices (slices {ids}): two acquisitions, or a copy; name one of them"
                )
            )
    return found


def tile_folder_warnings(
    chosen: Sequence[int], tiles: Mapping[int, Iterable[Index]], ids: Sequence[int]
) -> list[str]:
    """Return holes in the tile grids of the chosen slices, and ids missing between them.

    Parameters
    ----------
    ids
        Of all slices that are there.
    """
    found = []
    holes = []
    for number in chosen:
        places = set(tiles[number])
        columns, rows = zip(*places)  # noqa: B905 - new in Python 3.10
        n_expected = (max(columns) - min(columns) + 1) * (max(rows) - min(rows) + 1)
        if n_expected > len(places):
            holes.append(f"z{number:02d} {n_expected - len(places)} of {n_expected}")
    if holes:
        more = f" and {len(holes) - _SHOWN} slices more" if len(holes) > _SHOWN else ""
        found.append(
            f"places of the tile grid without a tile stay empty and masked: "
            f"{', '.join(holes[:_SHOWN])}{more}"
        )
    missing = set(range(chosen[0], chosen[-1] + 1)) - set(ids)
    if missing:
        found.append(f"slices {ids_text(missing)} are missing between the others")
    return found
