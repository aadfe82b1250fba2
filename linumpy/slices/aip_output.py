"""Write the average intensity projection of a grid as OME-Zarr or PNG."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from linumpy.core.device import CPU, Device
from linumpy.io.grid import create_grid
from linumpy.slices.aip import project_grid
from linumpy.slices.grid_io import GridSource
from linumpy.store.atomic import refuse_existing


def write_aip_image(
    grid: Path,
    output: Path,
    *,
    assume_unit: str | None = None,
    overwrite: bool = False,
    device: Device = CPU,
) -> None:
    """Write the projection as a mosaic grid one plane deep, 0 where there is no data."""
    refuse_existing(output, overwrite)
    source = GridSource.open(grid, assume_unit=assume_unit)
    info = source.layout
    image = project_grid(source, device).image
    depth_um = info.tile_shape_px[0] * info.voxel_um[0]
    flat = replace(
        info,
        tile_shape_px=(1, *info.tile_shape_px[1:]),
        voxel_um=(depth_um, *info.voxel_um[1:]),
    )
    side = flat.tile_shape_px[1]
    with create_grid(output, flat, overwrite=overwrite, with_valid=True) as writer:
        for ix in range(flat.grid_shape[0]):
            row = image[None, ix * side : (ix + 1) * side]
            known = np.isfinite(row)
            # Tiles that were not imaged hold fill value, which is not stored.
            writer.write_row(ix, np.where(known, row, 0), known.astype(np.uint8))


def write_aip_png(
    grid: Path,
    output: Path,
    *,
    assume_unit: str | None = None,
    overwrite: bool = False,
    device: Device = CPU,
) -> None:
    """Write the projection as a 16-bit PNG, one pixel a voxel."""
    from linumpy.io.previews import aip_png

    refuse_existing(output, overwrite)
    source = GridSource.open(grid, assume_unit=assume_unit)
    aip_png(project_grid(source, device).image, output, overwrite=overwrite)
