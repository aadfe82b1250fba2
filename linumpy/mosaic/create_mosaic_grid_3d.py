"""Convert the raw tiles of a slice to a mosaic grid, whatever their format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from linumpy.core.device import CPU, Device
from linumpy.io.grid import GridInfo
from linumpy.mosaic.grid_options import GridOptions
from linumpy.mosaic.raw_formats import RAW_FORMATS
from linumpy.mosaic.write_grid import Progress, write_grid
from linumpy.store.atomic import refuse_existing


def create_mosaic_grid_3d(
    root: Path | str,
    slice_id: int,
    output: Path | str,
    options: GridOptions | None = None,
    own: Any = None,
    *,
    data_type: str = "OCT",
    device: Device = CPU,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> GridInfo:
    """Write the mosaic grid of one slice of a raw acquisition.

    Headers, sizes and positions of all tiles are checked before the first sample is read. Tiles
    stream through memory, a few at a time. A mask is written beside the grid when there are holes
    or samples that are not finite.

    Parameters
    ----------
    root
        Folder of the raw acquisition.
    slice_id
        Which slice; the name of the only one where the format holds one slice a folder.
    output
        The grid's folder, ``*.ome.zarr``; it appears when it is whole.
    options
        Resolution, stage axes, and what wins over the headers.
    own
        Options of the raw format, such as `linumpy.mosaic.psoct_options.PsoctOptions`.
    data_type
        Name of the raw format in `linumpy.mosaic.raw_formats.RAW_FORMATS`.
    device
        Where tiles are resampled.
    progress
        Wraps the iteration over tiles: (tiles, number, label) → tiles.

    Returns
    -------
    The grid's geometry, as written.

    Raises
    ------
    InputError
        When the acquisition is not what was expected; names the file or the tile.
    OutputExistsError
        When the grid exists and `overwrite` is false.
    """
    refuse_existing(output, overwrite)
    tiles = RAW_FORMATS[data_type].open(root, slice_id, options, own)
    return write_grid(tiles, output, device=device, overwrite=overwrite, progress=progress)
