"""Delete raw samples whose mosaic grids hold the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from linumpy.core.device import to_host
from linumpy.core.errors import InputError
from linumpy.core.log import logger
from linumpy.io.grid import Grid, open_grid
from linumpy.io.raw import RawTile, discover_tiles, tiles_of_slice
from linumpy.io.raw_files import image_files
from linumpy.io.sample_checks import GARBLED, is_lines
from linumpy.mosaic.grid_options import GridOptions
from linumpy.mosaic.raw_tiles import RawTiles, open_raw_tiles
from linumpy.mosaic.shifts import grids_by_id
from linumpy.mosaic.slice_tiles import PreparedTile
from linumpy.store.atomic import write_json

RECORD = "tile_cleaning.json"

_TOLERANCE = 1e-5
"""Rounding of a resampled voxel, relative to that voxel: CPU and GPU add some tens of float32
products, each rounded by 6e-8, in another order. Grids at the raw resolution hold the same bits."""


@dataclass(frozen=True)
class CleanedSlice:
    """What can go of a slice.

    Attributes
    ----------
    files
        The ``image_*.bin`` of all its tiles.
    n_bytes
        Their size.
    """

    slice_id: int
    grid: Path
    files: tuple[Path, ...]
    n_bytes: int


def clean_raw_data(
    root: Path | str,
    grids: Path | str,
    slice_ids: Sequence[int] | None = None,
    options: GridOptions | None = None,
    *,
    dry_run: bool = False,
) -> list[CleanedSlice]:
    """Delete the samples of raw slices whose grids are whole; headers and side files stay.

    Every tile of every slice is read from both before the first file is deleted.

    Parameters
    ----------
    root
        Folder of the raw acquisition. What was deleted is noted there in ``tile_cleaning.json``.
    grids
        Folder of mosaic grids.
    slice_ids
        Slices to clean; all when None.
    options
        How the grids were made.
    dry_run
        Look, and delete nothing.

    Returns
    -------
    What was, or would be, deleted.

    Raises
    ------
    InputError
        When a grid is missing or does not hold what the raw tiles do; nothing is deleted then.
        Tiles that the grid masks as garbled keep their samples.
    """
    root, grids = Path(root), Path(grids)
    slices = discover_tiles(root)
    ids = sorted(slices if slice_ids is None else set(slice_ids))
    checked = []
    made = grids_by_id(grids)
    for slice_id in ids:
        path = made.get(slice_id, grids / f"mosaic_grid_3d_z{slice_id:02d}.ome.zarr")
        raw = tiles_of_slice(slices, slice_id, root)
        checked.append(_check(root, raw, open_grid(path), options or GridOptions()))
    for found in checked:
        logger.info(
            "%s slice z%02d: %d files, %.3f GB, held by %s",
            "would clean" if dry_run else "cleaning",
            found.slice_id,
            len(found.files),
            found.n_bytes / 1e9,
            found.grid,
        )
    if dry_run:
        return checked
    record = {
        f"z{found.slice_id:02d}": {
            "grid": str(found.grid),
            "deleted": [str(path.relative_to(root)) for path in found.files],
        }
        for found in checked
    }
    write_json(root / RECORD, {**_earlier(root), **record})
    for found in checked:
        for path in found.files:
            path.unlink()
    return checked


def _earlier(root: Path) -> dict[str, object]:
    from linumpy.io.models import read_json

    path = root / RECORD
    return read_json(path) if path.is_file() else {}


def _check(root: Path, raw: Sequence[RawTile], grid: Grid, options: GridOptions) -> CleanedSlice:
    """Compare a grid with its raw tiles, voxel by voxel."""
    tiles = open_raw_tiles(root, raw[0].slice_id, options)
    mine, theirs = tiles.info, grid.info
    for name in ("slice_id", "tile_shape_px", "voxel_um", "stage_to_array"):
        if getattr(mine, name) != getattr(theirs, name):
            raise InputError(
                f"{grid.path}: {name} is {getattr(theirs, name)}, but {getattr(mine, name)} by the "
                f"raw tiles in {root}; nothing was deleted"
            )
    held = [tiles.tiles[key] for key in sorted(tiles.tiles) if _is_held(tiles, grid, key)]
    files = [path for tile in held for path, _ in image_files(tile.path, tiles.raw.info)]
    return CleanedSlice(
        theirs.slice_id, grid.path, tuple(files), sum(path.stat().st_size for path in files)
    )


def _is_held(tiles: RawTiles, grid: Grid, key: tuple[int, int]) -> bool:
    """Return whether a grid holds a tile's samples; not when it masks or interpolates some.

    Raises
    ------
    InputError
        When it holds something else.
    """
    volume = tiles.read(key)
    made = tiles.prepare(key, volume)
    is_there = any((t.ix, t.iy) == key and t.present for t in grid.info.tiles)
    if not (is_there and _is_same(tiles, grid, key, made, volume)):
        raise InputError(
            f"{grid.path}: tile {key} is not what {tiles.tiles[key].path} holds; nothing was "
            "deleted. Make the grid anew, or give the flags that it was made with"
        )
    if GARBLED in made.notes.flags:
        # Another byte order can be swapped.
        logger.warning("%s: garbled and masked in the grid; kept", tiles.tiles[key].path)
        return False
    if any(map(is_lines, made.notes.flags)):
        logger.warning("%s: planes are interpolated in the grid; kept", tiles.tiles[key].path)
        return False
    return True


def _is_same(
    tiles: RawTiles, grid: Grid, key: tuple[int, int], made: PreparedTile, volume: np.ndarray
) -> bool:
    """Compare a grid's tile and its mask, voxel by voxel, with what raw samples make."""
    expected, found = to_host(made.data), grid.read_tile(*key)
    valid = grid.read_valid(*key)
    mask = np.ones(expected.shape, bool) if made.valid is None else to_host(made.valid) > 0
    if not np.array_equal(mask, np.ones(found.shape, bool) if valid is None else valid > 0):
        return False
    if np.array_equal(found, expected):
        return True
    if all(matrix is None for matrix in tiles.matrices):
        return False
    # What is rounded are sums of magnitudes: samples of both signs may cancel.
    size = expected if volume.min() >= 0 else to_host(tiles.prepare(key, abs(volume)).data)
    # Written so that NaN is a difference.
    return bool((abs(found - expected) <= _TOLERANCE * abs(size)).all())
