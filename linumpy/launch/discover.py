"""Discover the contents of the input folder."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from linumpy.core.errors import InputError
from linumpy.io.raw_folders import SLICE_NAME, TILE_PREFIX, Identity, identity
from linumpy.launch.names import check_names, is_address, local_path
from linumpy.launch.places import place_problems
from linumpy.launch.problems import Problem, ProblemsError
from linumpy.launch.stage import stage_problems
from linumpy.launch.tables import check_config
from linumpy.launch.tile_folders import TILE, index_of, tile_folder_problems, tile_folder_warnings
from linumpy.launch.tiles import READERS, BadTile, Headers, bad_tiles_problem, read_tiles, skipped
from linumpy.launch.tree import ListedTree, LocalTree, digest
from linumpy.launch.units import resolution_problems, unit_problems

_GRID = re.compile(r"mosaic_grid[A-Za-z0-9_]*?_z([0-9]{1,9})(?:_[A-Za-z0-9_]+)?\.ome\.zarr")
_KINDS = ("mosaic-grids", "mosaics", "mosaic_grids", "input", "data", "raw")


def find_input(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what there is to work on, once nothing is wrong with it.

    Parameters
    ----------
    asked
        ``input``, ``output``, ``work_dir``, ``subject_name``, ``slices``, ``slice_config``,
        ``shifts_xy``: texts or None; ``skip_bad_slices``, true or false; ``exclude_first_slices``;
        parameters that headers may contradict: ``resolution``, ``axial_resolution``,
        ``slicing_interval_mm``, ``stage_to_array``; what `place_problems` takes;
        ``skip_preflight``, for warnings instead of problems of headers and places.
        ``listing`` where Nextflow listed an input elsewhere: rows of name, bytes and time, and
        ``texts`` of its tables by name.

    Returns
    -------
    ``kind`` (``raw`` or ``grids``); ``root``, where it really lies; ``subject``; ``slices``, each
    ``[id of two digits or more, path below the root, digest]``, chosen ones only; ``digest`` of
    all; ``bytes`` of all; ``shifts_xy`` and ``slice_config``, a path or None; ``bad``, ids of
    slices with tiles that cannot be read, and ``unplaced``, those of them that have a header which
    cannot be read; ``warnings``.

    Raises
    ------
    InputError
        When it holds no tiles and no grids, or both; when something in it cannot be listed.
    ProblemsError
        With all else that is wrong: bad or doubled tiles, tables or a choice of slices that do not
        fit, lengths that cannot be, stage axes that headers contradict, places.
    """
    option = f"--input {asked['input']}"
    warnings: list[str] = []
    tree = _tree(option, asked)
    grids = _find_grids(tree)
    tiles, odd_names = _find_tiles(tree, asked, warnings)
    if grids and tiles:
        raise InputError(
            f"{option}: holds both raw tiles ({_in(tree, _first(tiles))}) and mosaic grids "
            f"({_in(tree, _first(grids))}); name one of the two folders"
        )
    if not grids and not tiles and not odd_names:
        raise InputError(
            f"{option}: found neither folders tile_x00_y00_z00 nor mosaic_grid_3d_z00.ome.zarr "
            "in it"
        )
    root = _first(grids).parent if grids else tree.root
    problems: list[Problem] = []
    doubts = [Problem(text) for text in place_problems(asked, root)]
    if not grids:
        problems += tile_folder_problems(option, root, tiles, odd_names)
    slices = _grid_slices(tree, option, grids, root) if grids else _raw_slices(tree, tiles)
    ids = sorted(slices)
    tables = {
        name: _tried(problems, _table, name, asked, tree, root if grids else None)
        for name in _TABLES
    }
    unused = set(ids[: asked.get("exclude_first_slices") or 0])
    if tables["slice_config"] is not None:
        unused = _tried(problems, _unused, tree, tables["slice_config"], asked, ids) or set()
    chosen = _tried(problems, _chosen, ids, asked.get("slices")) or ids
    wanted = [number for number in chosen if number not in unused]
    bad, headers = ({}, {}) if grids else read_tiles(tree, tiles)
    _skip_bad(option, {i: bad[i] for i in wanted if i in bad}, wanted, asked, problems, warnings)
    chosen = [number for number in chosen if number not in bad]
    wanted = [number for number in wanted if number not in bad]
    if grids:
        doubts += map(Problem, resolution_problems(asked.get("resolution")))
    elif wanted:
        warnings += tile_folder_warnings(wanted, {i: map(index_of, tiles[i]) for i in wanted}, ids)
        doubts += _header_problems(
            {i: headers[i] for i in wanted if i in headers}, root, {**asked, "n_slices": len(ids)}
        )
    if asked.get("skip_preflight"):
        warnings += (line for doubt in doubts for line in (doubt.text, *doubt.details))
    else:
        problems += doubts
    if problems:
        raise ProblemsError(problems)
    return {
        "kind": "grids" if grids else "raw",
        "root": str(root),
        "subject": _subject(asked, root),
        "slices": [[f"{i:02d}", *slices[i][:2]] for i in chosen],
        "ids": ids,
        "digest": _joined(slices[i][1] for i in ids),
        "bytes": sum(slices[i][2] for i in ids),
        **tables,
        "bad": sorted(bad),
        "unplaced": [i for i in sorted(bad) if not all(t.has_position for t in bad[i])],
        "warnings": warnings,
    }


def _tried(problems: list[Problem], action: Callable[..., Any], *arguments: Any) -> Any:
    """Return what an action gives; None where it finds a problem, which joins the others."""
    try:
        return action(*arguments)
    except InputError as error:
        problems.append(Problem(str(error)))
        return None


def _unused(
    tree: LocalTree | ListedTree, table: str, asked: Mapping[str, Any], ids: list[int]
) -> set[int]:
    """Return the slices that a table leaves out."""
    text = asked.get("slice_config_text")
    return check_config(table, tree.text(Path(table)) if text is None else text, ids)


def _header_problems(headers: Headers, root: Path, asked: Mapping[str, Any]) -> list[Problem]:
    """Return how the headers of wanted slices contradict each other, or parameters."""
    if not headers:
        return []
    placed = {
        number: {index_of(folder): (folder, info) for folder, info in tiles}
        for number, tiles in headers.items()
    }
    found = unit_problems(headers, root, asked, asked["n_slices"])
    return found + stage_problems(placed, asked.get("stage_to_array") or "+x,+y")


def _skip_bad(
    option: str,
    bad: Mapping[int, list[BadTile]],
    wanted: list[int],
    asked: Mapping[str, Any],
    problems: list[Problem],
    warnings: list[str],
) -> None:
    """Warn of wanted slices with bad tiles where they may be skipped, else add the problem."""
    if not bad:
        return
    if not asked.get("skip_bad_slices"):
        advice = "copy these tiles anew, or leave their slices out with --skip_bad_slices"
        problems.append(bad_tiles_problem(option, bad, advice))
    elif len(bad) == len(wanted):
        problems.append(bad_tiles_problem(option, bad, "without them no slice would be left"))
    else:
        warnings += skipped(bad)


_TABLES = ("shifts_xy", "slice_config")


def _tree(option: str, asked: Mapping[str, Any]) -> LocalTree | ListedTree:
    if asked.get("listing") is not None:
        return ListedTree(option, asked["listing"], asked.get("texts") or {})
    root = local_path("--input", asked["input"]).resolve()
    if not root.is_dir():
        raise InputError(
            f"{option}: no such folder; expected raw tiles (tile_x00_y00_z00) or mosaic grids"
        )
    return LocalTree(option, root)


def _in(tree: LocalTree | ListedTree, path: Path) -> str:
    return os.path.relpath(path, tree.root)


def _first(found: Mapping[int, list[Path]]) -> Path:
    return found[min(found)][0]


def _find_grids(tree: LocalTree | ListedTree) -> dict[int, list[Path]]:
    """Return mosaic grids by slice id, those in the folder or in its folder ``mosaic_grids``."""
    for folder in (tree.root, tree.root / "mosaic_grids"):
        found: dict[int, list[Path]] = {}
        for path in tree.folders(folder) if tree.is_dir(folder) else ():
            if match := _GRID.fullmatch(path.name):
                found.setdefault(int(match[1]), []).append(path)
        if found:
            return found
    return {}


def _find_tiles(
    tree: LocalTree | ListedTree, asked: Mapping[str, Any], warnings: list[str]
) -> tuple[dict[int, list[Path]], list[Path]]:
    """Return tile folders by slice id, and those whose names cannot be read.

    This run's own folders are not entered. The folder of a slice that holds no tile, as of one that
    is about to be imaged, is warned about.
    """
    found: dict[int, list[Path]] = {}
    odd_names: list[Path] = []
    slice_folders: dict[int, Path] = {}
    for path in tree.raw_folders(warnings.append, _own_folders(asked)):
        if not path.name.startswith(TILE_PREFIX):
            if match := SLICE_NAME.fullmatch(path.name):
                slice_folders.setdefault(int(match[1]), path)
        elif match := TILE.fullmatch(path.name):
            found.setdefault(int(match[3]), []).append(path)
        else:
            odd_names.append(path)
    for number in sorted(slice_folders.keys() - found.keys() if found else ()):
        warnings.append(f"{slice_folders[number]}: empty slice, holds no tile; left out")
    return found, odd_names


def _own_folders(asked: Mapping[str, Any]) -> list[Identity]:
    places = (asked.get("output"), asked.get("work_dir"))
    return [identity(p) for p in places if p and not is_address(p) and Path(p).is_dir()]


def _grid_slices(
    tree: LocalTree | ListedTree, option: str, grids: Mapping[int, list[Path]], root: Path
) -> dict[int, tuple[str, str, int]]:
    slices = {}
    for number, paths in grids.items():
        if len(paths) > 1:
            names = " and ".join(path.name for path in paths)
            raise InputError(
                f"{option}: {names} both hold slice z{number:02d}; expected one grid a slice"
            )
        files = list(tree.files(paths[0], paths[0]))
        slices[number] = (paths[0].name, digest(files), sum(file[1] for file in files))
    return slices


def _raw_slices(
    tree: LocalTree | ListedTree, tiles: Mapping[int, list[Path]]
) -> dict[int, tuple[str, str, int]]:
    slices = {}
    with ThreadPoolExecutor(READERS) as pool:
        for number, folders in tiles.items():
            # Metadata that counts lies in the folders above the tiles.
            above = {folder for tile in folders for folder in _between(tree.root, tile.parent)}
            side = [folder / name for folder in above for name in ("metadata.json", "state.json")]
            listed = pool.map(lambda tile: list(tree.files(tile)), folders)
            files = [file for found in listed for file in found]
            nbytes = sum(file[1] for file in files)
            files += [tree.file(path) for path in side if tree.is_file(path)]
            slices[number] = ("", digest(files), nbytes)
    return slices


def _between(root: Path, folder: Path) -> Iterator[Path]:
    while True:
        yield folder
        if folder == root:
            return
        folder = folder.parent


def _table(
    name: str, asked: Mapping[str, Any], tree: LocalTree | ListedTree, beside: Path | None
) -> str | None:
    """Return the table that a parameter names, else the one beside the grids, else None."""
    given = asked.get(name)
    if given is not None:
        return given if is_address(given) else str(checked_file(f"--{name}", given))
    if beside is None or not tree.is_file(beside / f"{name}.csv"):
        return None
    check_names(f"--input: {name}.csv", [f"{name}.csv"])
    return str(beside / f"{name}.csv")


def checked_file(option: str, text: str) -> Path:
    """Return the file that a parameter names.

    Raises
    ------
    InputError
        When there is none, or a name on its path is not harmless.
    """
    path = local_path(option, text)
    if not path.is_file():
        raise InputError(f"{option} {text}: no such file")
    return path


def checked_path(option: str, text: str, *, folder: bool = False) -> tuple[Path, str]:
    """Return the file or folder that a parameter names, with a digest of what is in it.

    Raises
    ------
    InputError
        When there is none, it is a file where a folder is wanted, or something in it cannot be
        read.
    """
    path = local_path(option, text)
    if path.is_dir():
        real = path.resolve()
        return real, digest(LocalTree(f"{option} {text}", real).files(real))
    if folder or not path.is_file():
        raise InputError(f"{option} {text}: no such {'folder' if folder else 'file'}")
    return path, digest([LocalTree(f"{option} {text}", path.parent).file(path)])


def manual_transforms(text: str, ids: list[int]) -> tuple[Path, str]:
    """Return a folder of transforms made by hand, with a digest.

    Raises
    ------
    InputError
        When one is for no slice of the input.
    """
    option = "--manual_transforms_dir"
    folder, value = checked_path(option, text, folder=True)
    for path in sorted(folder.iterdir()):
        if not (path / "transform.tfm").exists():
            continue
        match = re.fullmatch(r"slice_z([0-9]+)", path.name)
        if match is None or int(match[1]) not in ids:
            raise InputError(
                f"{option} {text}: {path.name}/transform.tfm is for no slice of the input, whose "
                f"ids are {', '.join(map(str, ids))}"
            )
    return folder, value


def _joined(digests: Iterator[str]) -> str:
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def _chosen(ids: list[int], text: Any) -> list[int]:
    """Return the ids named in text such as 7,9-12; all where there is none. A range may have gaps.

    Raises
    ------
    InputError
        When a part names none of the ids.
    """
    if text is None:
        return ids
    wanted: set[int] = set()
    for part in str(text).split(","):
        ends = [int(end) for end in part.split("-")]
        found = {number for number in ids if ends[0] <= number <= ends[-1]}
        if not found:
            raise InputError(
                f"--slices {text}: the input has no slice {part}; it has {', '.join(map(str, ids))}"
            )
        wanted |= found
    return sorted(wanted)


def _subject(asked: Mapping[str, Any], root: Path) -> str:
    if asked.get("subject_name") is not None:
        return str(asked["subject_name"])
    parts = asked["root_names"] if asked.get("listing") is not None else root.parts[1:]
    return subject_of(parts)


def subject_of(names: Any) -> str:
    """Return the part ``sub-…`` of a path, else its last name that says more than what kind it is.

    Parameters
    ----------
    names
        Names on the path, from the root on.
    """
    names = list(names)
    subjects = [name for name in names if re.fullmatch(r"sub-[A-Za-z0-9_]+", name)]
    others = [name for name in reversed(names) if name not in _KINDS]
    name = (subjects + others + ["brain"])[0]
    plain = re.sub(r"^[^A-Za-z0-9]+", "", re.sub(r"[^A-Za-z0-9._-]+", "_", name))
    return plain or "brain"
