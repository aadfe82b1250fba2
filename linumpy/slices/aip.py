"""Average intensity projections of tiles, as a stage and of a whole grid."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from linumpy.core.device import Array, Device, to_host
from linumpy.intensity.normalize_intensities_per_slice import depth_mean
from linumpy.io.grid import GridInfo
from linumpy.io.usable import clear_masked, usable
from linumpy.slices.engine import Stage, run
from linumpy.slices.grid_io import GridSource
from linumpy.slices.tile import Key, Tile


@dataclass(frozen=True)
class AipMosaic:
    """Average intensity projections of all tiles, laid side by side, NaN where invalid."""

    image: np.ndarray


class Aip(Stage):
    """Measure the mean over depth of every tile."""

    name = "aip"
    learns = True
    changes = False

    def start(self, layout: GridInfo) -> None:
        """Prepare the image."""
        _, self._t1, self._t2 = layout.tile_shape_px
        self._image = np.full(layout.shape[1:], np.nan, dtype=np.float32)

    def measure(self, tile: Tile) -> Array:
        """Return the tile's mean over depth."""
        return depth_mean(tile.data, tile.valid)

    def gather(self, key: Key, measurement: Array) -> None:
        """Put one tile into the image."""
        rows = slice(key[0] * self._t1, (key[0] + 1) * self._t1)
        columns = slice(key[1] * self._t2, (key[1] + 1) * self._t2)
        self._image[rows, columns] = to_host(measurement)

    def solve(self) -> AipMosaic:
        """Return the image."""
        return AipMosaic(self._image)


class ProjectTiles(Stage):
    """Replace every tile by its mean over depth, 0 where there is no data."""

    name = "aip"

    def layout(self, layout: GridInfo) -> GridInfo:
        """Return the geometry of a grid one plane deep."""
        tz, t1, t2 = layout.tile_shape_px
        z_um, axis1_um, axis2_um = layout.voxel_um
        voxel_um = (tz * z_um, axis1_um, axis2_um)
        return replace(layout, tile_shape_px=(1, t1, t2), voxel_um=voxel_um)

    def apply(self, tile: Tile) -> Tile:
        """Return the projection, and where it has data."""
        mean = depth_mean(tile.data, tile.valid)[None]
        if tile.valid is None:
            return Tile(tile.key, mean)
        known = usable(mean).astype(np.uint8)
        return Tile(tile.key, clear_masked(mean, known), known)


def project_grid(source: GridSource, device: Device) -> AipMosaic:
    """Return the average intensity projections of a grid's tiles, side by side."""
    stage = Aip()
    run([stage], source, device=device)
    mosaic: AipMosaic = stage.model
    return mosaic
