"""Crop the border of tiles, which the galvo's turning points distort."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from linumpy.core.device import Array, namespace
from linumpy.core.errors import InputError
from linumpy.io.grid import GridInfo, GridTile
from linumpy.io.stage_axes import parse_stage_to_array
from linumpy.slices.engine import Stage
from linumpy.slices.tile import Tile
from linumpy.stage_params.flat import CropTilesParams

Window = tuple[slice, slice]


def crop_tiles(array: Array, window: Window) -> Array:
    """Return the pixels of a tile (z, axis 1, axis 2) that lie in a lateral window."""
    return namespace(array).ascontiguousarray(array[:, window[0], window[1]])


class CropTiles(Stage):
    """Crops all tiles alike; positions follow."""

    name = "crop_tiles"

    def __init__(self, params: CropTilesParams) -> None:
        self._params = params

    def start(self, layout: GridInfo) -> None:
        """Find the window."""
        self._window = crop_window(self._params, layout)
        self._whole = all(
            part == slice(0, n)
            for part, n in zip(self._window, layout.tile_shape_px[1:], strict=True)
        )

    def layout(self, layout: GridInfo) -> GridInfo:
        """Return the grid of cropped tiles."""
        return layout if self._whole else cropped_layout(layout, self._window)

    def apply(self, tile: Tile) -> Tile:
        """Crop a tile and its mask."""
        if self._whole:
            return tile
        valid = None if tile.valid is None else crop_tiles(tile.valid, self._window)
        return Tile(tile.key, crop_tiles(tile.data, self._window), valid)


def crop_window(params: CropTilesParams, layout: GridInfo) -> Window:
    """Return the pixels of a tile that are kept.

    Raises
    ------
    InputError
        When the limits do not lie within the tile, or keep nothing.
    """
    parts = []
    for name, low, high, n in zip(
        "xy",
        (params.xmin, params.ymin),
        (params.xmax, params.ymax),
        layout.tile_shape_px[1:],
        strict=True,
    ):
        stop = high or n
        if not low < stop <= n:
            raise InputError(
                f"--crop_tiles_{name}min {low}, --crop_tiles_{name}max {high}: expected a rising "
                f"range within the {n} pixels of the tiles of slice z{layout.slice_id:02d}"
            )
        parts.append(slice(low, stop))
    return parts[0], parts[1]


def cropped_layout(layout: GridInfo, window: Window) -> GridInfo:
    """Return a grid whose tiles show less, where they showed it.

    Tiles keep their distances: what they share becomes less.
    """
    pixel_um = np.asarray(layout.voxel_um[1:])
    low = np.array([part.start for part in window])
    side = np.array([part.stop - part.start for part in window])
    fov_um = side * pixel_um
    moved_um = low * pixel_um + (fov_um - np.asarray(layout.tile_fov_um)) / 2
    stage_mm = np.zeros(2)
    for (axis, sign), by_um in zip(
        parse_stage_to_array(layout.stage_to_array), moved_um, strict=True
    ):
        stage_mm[axis] = sign * by_um / 1e3
    step_um = np.asarray(layout.tile_fov_um) * (1 - layout.overlap_fraction)
    overlap = float(np.clip(1 - step_um / fov_um, 0, 1).mean())

    def moved(tile: GridTile) -> GridTile:
        return replace(
            tile,
            stage_x_mm=tile.stage_x_mm + float(stage_mm[0]),
            stage_y_mm=tile.stage_y_mm + float(stage_mm[1]),
        )

    return replace(
        layout,
        tile_shape_px=(layout.tile_shape_px[0], int(side[0]), int(side[1])),
        tile_fov_um=(float(fov_um[0]), float(fov_um[1])),
        overlap_fraction=overlap,
        tiles=tuple(moved(tile) for tile in layout.tiles),
    )
