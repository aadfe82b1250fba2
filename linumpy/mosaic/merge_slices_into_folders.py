"""Sort the tiles of one flat folder into a folder a slice."""

from __future__ import annotations

import os
from pathlib import Path

from linumpy.core.errors import OutputExistsError
from linumpy.core.log import logger
from linumpy.io.raw import discover_tiles


def merge_slices_into_folders(
    root: Path | str, *, dry_run: bool = False
) -> list[tuple[Path, Path]]:
    """Move the tile folders that lie directly in `root` to ``slice_zNN/tiles``.

    Tiles that lie deeper are left where they are. Links in `root` that are in a tile, lead to one,
    or are tiles themselves still lead to the same. An interrupted run may be repeated.

    Parameters
    ----------
    root
        Folder of the raw acquisition.
    dry_run
        Print what would be moved, and move nothing.

    Returns
    -------
    Old and new place of each tile.

    Raises
    ------
    InputError
        When there is no tile, or two have one index.
    OutputExistsError
        When something is in a tile's way; nothing is moved then.
    """
    root = Path(root)
    moves = [
        (tile.path, root / f"slice_z{slice_id:02d}" / "tiles" / tile.name)
        for slice_id, tiles in discover_tiles(root).items()
        for tile in tiles
        if tile.path.parent == root
    ]
    for _, target in moves:
        if os.path.lexists(target):
            raise OutputExistsError(f"{target}: exists already; nothing was moved")
    links = {} if dry_run else _links_below(root)
    for source, target in moves:
        logger.info("%s %s to %s", "would move" if dry_run else "moving", source, target)
        if not dry_run:
            target.parent.mkdir(parents=True, exist_ok=True)
            _move(source, target, links)
    return moves


def _links_below(root: Path) -> dict[Path, Path]:
    """Return all links below a folder, each with where it leads at the first step."""
    return {
        link: Path(os.path.normpath(link.parent.resolve() / link.readlink()))
        for folder, folders, files in os.walk(root.resolve())
        for name in folders + files
        if (link := Path(folder, name)).is_symlink()
    }


def _move(source: Path, target: Path, links: dict[Path, Path]) -> None:
    """Move a tile; links in it and links to it, or itself a link, lead to the same as before.

    At any moment the links in the tile lead where they led: before it is moved, they are absolute.
    """
    source, target = _without_links_above(source), _without_links_above(target)
    touched = {}
    for link, end in list(links.items()):
        is_inside, leads_inside = _is_at(link, source), _is_at(end, source)
        is_relative = not link.readlink().is_absolute()
        if is_inside and is_relative and not leads_inside:
            _write_link(link, str(end))
        if (is_inside and is_relative) or leads_inside:
            touched[_moved(link, source, target)] = is_relative
        if is_inside or leads_inside:
            del links[link]
            links[_moved(link, source, target)] = _moved(end, source, target)
    source.rename(target)
    for link, is_relative in touched.items():
        end = links[link]
        _write_link(link, os.path.relpath(end, link.parent) if is_relative else str(end))


def _without_links_above(path: Path) -> Path:
    return path.parent.resolve() / path.name


def _is_at(path: Path, folder: Path) -> bool:
    return path == folder or folder in path.parents


def _moved(path: Path, source: Path, target: Path) -> Path:
    return target / path.relative_to(source) if _is_at(path, source) else path


def _write_link(link: Path, text: str) -> None:
    partial = link.with_name(f".{link.name}.{os.getpid()}.partial")
    partial.symlink_to(text)
    partial.replace(link)
