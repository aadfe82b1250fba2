"""Shifts between slices from stage positions: ``shifts_xy.csv``.

No image is used here. When an acquisition enlarges its mosaic from one slice to the next,
only one border moves: along each axis the border that moved less gives the slice's shift.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from linumpy.io.grid import GridInfo, GridTile, check_slice_ids, open_grid
from linumpy.io.raw import discover_tiles
from linumpy.io.stage_axes import parse_stage_to_array
from linumpy.io.tables import XYShift
from linumpy.mosaic.raw_slice import RawSlice, read_raw_slice, tile_grid

_GRID_NAME = re.compile(r"mosaic_grid.*\.ome\.zarr")
_NAME_GRIDS = "name them by their slices, as in mosaic_grid_3d_z00.ome.zarr"


@dataclass(frozen=True)
class SliceExtent:
    """What a slice's tiles cover, along the stage axes x and y.

    Attributes
    ----------
    low_mm, high_mm
        Stage positions of the borders.
    n_tiles
        Number of distinct tile indices along x and along y of the grid.
    pixel_um
        Tile pixel along stage x and stage y.
    """

    slice_id: int
    low_mm: tuple[float, float]
    high_mm: tuple[float, float]
    n_tiles: tuple[int, int]
    pixel_um: tuple[float, float]


def estimate_xy_shift_from_metadata(extents: Sequence[SliceExtent]) -> tuple[XYShift, ...]:
    """Return the shift between each slice and the next, fixed minus moving.

    Parameters
    ----------
    extents
        The slices, in the order of their ids.

    Returns
    -------
    One row a pair of consecutive slices. Pixels are those of the first slice's tiles; a pair is
    reliable when both slices have as many tiles along both axes.
    """
    shifts = []
    for fixed, moving in pairwise(extents):
        x_mm, y_mm = (
            _border_shift(
                fixed.low_mm[axis] - moving.low_mm[axis],
                fixed.high_mm[axis] - moving.high_mm[axis],
            )
            for axis in (0, 1)
        )
        shifts.append(
            XYShift(
                fixed_id=fixed.slice_id,
                moving_id=moving.slice_id,
                x_shift_px=x_mm * 1e3 / extents[0].pixel_um[0],
                y_shift_px=y_mm * 1e3 / extents[0].pixel_um[1],
                x_shift_mm=x_mm,
                y_shift_mm=y_mm,
                reliable=fixed.n_tiles == moving.n_tiles,
            )
        )
    return tuple(shifts)


def _border_shift(low: float, high: float) -> float:
    return low if abs(low) <= abs(high) else high


def extent_of_grid(info: GridInfo) -> SliceExtent:
    """Return what the tiles of a mosaic grid cover; holes do not count."""
    tiles = [tile for tile in info.tiles if tile.present]
    pixel_um = (info.voxel_um[1], info.voxel_um[2])
    return _extent(info.slice_id, tiles, info.tile_fov_um, pixel_um, info.stage_to_array)


def extent_of_raw_slice(raw: RawSlice, stage_to_array: str = "+x,+y") -> SliceExtent:
    """Return what the tiles of a raw slice cover."""
    tiles = [tile for tile in tile_grid(raw, stage_to_array).tiles if tile.present]
    return _extent(raw.slice_id, tiles, raw.info.fov_um, raw.info.pixel_um, stage_to_array)


def _extent(
    slice_id: int,
    tiles: Sequence[GridTile],
    fov_um: tuple[float, float],
    pixel_um: tuple[float, float],
    stage_to_array: str,
) -> SliceExtent:
    # Which array axis, 0 or 1, runs along stage x, and which along stage y.
    along = {stage: array for array, (stage, _) in enumerate(parse_stage_to_array(stage_to_array))}
    half = [fov_um[along[axis]] / 2e3 for axis in (0, 1)]
    x = [tile.stage_x_mm for tile in tiles]
    y = [tile.stage_y_mm for tile in tiles]
    return SliceExtent(
        slice_id=slice_id,
        low_mm=(min(x) - half[0], min(y) - half[1]),
        high_mm=(max(x) + half[0], max(y) + half[1]),
        n_tiles=(len({tile.ix for tile in tiles}), len({tile.iy for tile in tiles})),
        pixel_um=(pixel_um[along[0]], pixel_um[along[1]]),
    )


def read_extents(
    source: Path | str,
    stage_to_array: str = "+x,+y",
    *,
    assume_unit: str | None = None,
    without: Iterable[int] = (),
) -> tuple[SliceExtent, ...]:
    """Return what each slice covers, from a folder of mosaic grids or of raw tiles.

    Parameters
    ----------
    source
        Folder that holds ``mosaic_grid*.ome.zarr``, or a raw acquisition.
    stage_to_array
        Signed stage axes of the raw tiles; grids carry their own.
    without
        Slices of a raw acquisition to pass over.

    Raises
    ------
    InputError
        When the folder holds neither, or a slice cannot be read.
    """
    if holds_grids(source):
        return tuple(extent_of_grid(info) for info in read_grid_infos(source, assume_unit))
    slices = discover_tiles(source)
    passed = set(without)
    return tuple(
        extent_of_raw_slice(read_raw_slice(slices, slice_id, source), stage_to_array)
        for slice_id in slices
        if slice_id not in passed
    )


def holds_grids(folder: Path | str) -> bool:
    """Whether a folder holds mosaic grids (else a raw acquisition)."""
    return bool(_grid_paths(folder))


def _grid_paths(folder: Path | str) -> list[Path]:
    """List the mosaic grids of a folder: those named so, else all where it holds only Zarr."""
    folder = Path(folder)
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    named = [path for path in found if _GRID_NAME.fullmatch(path.name)]
    folders = [path for path in found if path.is_dir() and not path.name.startswith(".")]
    only_zarr = all(path.suffix == ".zarr" for path in folders)
    return named or (folders if only_zarr else [])


def read_grid_infos(folder: Path | str, assume_unit: str | None = None) -> tuple[GridInfo, ...]:
    """Return the geometry of all mosaic grids in a folder, in the order of their slice ids.

    Raises
    ------
    InputError
        When a grid cannot be opened or two are of one slice.
    """
    paths = _grid_paths(folder)
    check_slice_ids(paths, assume_unit=assume_unit, advice=_NAME_GRIDS)
    infos = [open_grid(path, assume_unit=assume_unit).info for path in paths]
    return tuple(sorted(infos, key=lambda info: info.slice_id))


def grids_by_id(folder: Path | str) -> dict[int, Path]:
    """Return the mosaic grids of a folder by the slice ids that `read_grid_infos` finds."""
    paths = _grid_paths(folder)
    check_slice_ids(paths, advice=_NAME_GRIDS)
    return {open_grid(path).info.slice_id: path for path in paths}
