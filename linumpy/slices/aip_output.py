"""Write the average intensity projection of a grid as OME-Zarr or PNG."""

from __future__ import annotations

from pathlib import Path

from linumpy.core.device import CPU, Device
from linumpy.slices.aip import ProjectTiles, project_grid
from linumpy.slices.grid_io import GridSource, grid_to_grid
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
    grid_to_grid([ProjectTiles()], grid, output, overwrite, device, assume_unit=assume_unit)


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
