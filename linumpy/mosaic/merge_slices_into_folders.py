"""Tiles that lie flat in one folder, sorted into a folder a slice."""

from __future__ import annotations

from pathlib import Path

from linumpy.cli import logger
from linumpy.errors import OutputExistsError
from linumpy.io.raw import discover_tiles


def merge_slices_into_folders(
    root: Path | str, *, dry_run: bool = False
) -> list[tuple[Path, Path]]:
    """Move the tile folders that lie directly in `root` to ``slice_zNN/tiles``.

    Tiles that lie deeper are left where they are. An interrupted run may be repeated.

    Parameters
    ----------
    root
        Folder of the raw acquisition.
    dry_run
        Tell what would be moved, and move nothing.

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
        if target.exists():
            raise OutputExistsError(f"{target}: exists already; nothing was moved")
    for source, target in moves:
        logger.info("%s %s to %s", "would move" if dry_run else "moving", source, target)
        if not dry_run:
            target.parent.mkdir(parents=True, exist_ok=True)
            source.rename(target)
    return moves
