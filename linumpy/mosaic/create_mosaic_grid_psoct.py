"""The ``.oct`` files of one slice to a mosaic grid, of magnitudes or of complex samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from linumpy.core.device import CPU, Array, Device, namespace
from linumpy.core.errors import InputError
from linumpy.core.log import logger
from linumpy.geometry.resample import (
    apply_axis_weights,
    resample_masked,
    resampled_length,
    resampling_matrices,
)
from linumpy.io.grid import GridInfo
from linumpy.io.psoct import read_oct
from linumpy.io.sample_checks import check_samples
from linumpy.mosaic.create_mosaic_grid_3d import (
    PreparedTile,
    Progress,
    TileNotes,
    prepare_tile,
    write_grid,
)
from linumpy.mosaic.grid_options import NATIVE_RESOLUTION, GridOptions
from linumpy.mosaic.psoct_options import STAGE_TO_ARRAY, PsoctOptions
from linumpy.mosaic.psoct_slice import Key, PsoctSlice, read_psoct_slice
from linumpy.store.atomic import refuse_existing


def create_mosaic_grid_psoct(
    root: Path | str,
    slice_id: int,
    output: Path | str,
    options: GridOptions | None = None,
    psoct: PsoctOptions | None = None,
    *,
    device: Device = CPU,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> GridInfo:
    """Write the mosaic grid of one slice of a Thorlabs PS-OCT, of one polarisation and angle.

    All headers are checked before the first sample is read. Complex samples are written as one
    array of complex64, and resampled as real and imaginary parts.

    Parameters
    ----------
    root
        Folder with the ``.oct`` files of the slice and their ``.scan`` file.
    slice_id
        What the slice is called; the files do not tell.
    output
        The grid's folder, ``*.ome.zarr``; it appears when it is whole.
    options
        Resolution, stage axes, and what wins over the headers.
    psoct
        Which polarisation, angle and depths.

    Returns
    -------
    The grid's geometry, as written.

    Raises
    ------
    InputError
        When files are not what was expected; names the file.
    OutputExistsError
        When the grid exists and `overwrite` is false.
    """
    refuse_existing(output, overwrite)
    options = options or GridOptions(stage_to_array=STAGE_TO_ARRAY)
    psoct = psoct or PsoctOptions()
    tiles = _open(root, slice_id, options, psoct)
    return write_grid(
        tiles,
        output,
        dtype="complex64" if psoct.return_complex else "float32",
        device=device,
        overwrite=overwrite,
        progress=progress,
    )


def _open(root: Path | str, slice_id: int, options: GridOptions, psoct: PsoctOptions) -> _Tiles:
    if options.resolution_um != NATIVE_RESOLUTION and not 0 < options.resolution_um < np.inf:
        raise InputError(
            f"--resolution is {options.resolution_um}, expected more than 0 um, or -1 to keep "
            "the voxels of the microscope"
        )
    for name in ("axial_resolution", "slicing_interval"):
        value = getattr(options, f"{name}_um")
        if value is not None and not 0 < value < np.inf:
            raise InputError(f"--{name} is {value}, expected more than 0")
    source = read_psoct_slice(root, psoct, options.stage_to_array)
    axial_um, *pixel_um = source.header.voxel_um
    voxel_um = (options.axial_resolution_um or axial_um, pixel_um[0], pixel_um[1])
    first, stop = psoct.depth_px
    shape = (stop - first, *source.header.shape_px[1:])
    target_um = voxel_um
    if options.resolution_um != NATIVE_RESOLUTION:
        target_um = (float(options.resolution_um),) * 3
    size = [
        n if pixel == wanted else resampled_length(n, pixel, wanted)
        for n, pixel, wanted in zip(shape, voxel_um, target_um, strict=True)
    ]
    info = GridInfo(
        slice_id=slice_id,
        tile_shape_px=(size[0], size[1], size[2]),
        voxel_um=target_um,
        overlap_fraction=source.overlap_fraction,
        tiles=source.places,
        tile_fov_um=(shape[1] * pixel_um[0], shape[2] * pixel_um[1]),
        stage_to_array=options.stage_to_array,
        slice_interval_um=options.slicing_interval_um,
    )
    return _Tiles(source, psoct, info, resampling_matrices(shape, voxel_um, target_um))


@dataclass(frozen=True)
class _Tiles:
    """The files of a slice on their grid, as `write_grid` takes them."""

    source: PsoctSlice
    psoct: PsoctOptions
    info: GridInfo
    matrices: list[np.ndarray | None]

    @property
    def has_holes(self) -> bool:
        """Whether places of the grid lack a file."""
        return len(self.source.headers) < len(self.info.tiles)

    def keys(self) -> list[Key]:
        """All places that have a file, row by row."""
        return list(self.source.headers)

    def read(self, key: Key) -> np.ndarray:
        """Read a tile."""
        return read_oct(
            self.source.headers[key],
            self.psoct.polarization,
            slice(*self.psoct.depth_px),
            return_complex=self.psoct.return_complex,
        )

    def prepare(self, key: Key, volume: Array) -> PreparedTile:
        """Mask what is not finite, note what is odd, and resample."""
        if not self.psoct.return_complex:
            return prepare_tile(volume, self.matrices)
        return _prepare_complex(volume, self.matrices)

    def finish(self, found: Mapping[Key, TileNotes]) -> GridInfo:
        """Add the flags of all tiles; warn of odd ones."""
        if not any(notes.bright for notes in found.values()):
            raise InputError(
                f"{self.source.root}: empty slice z{self.info.slice_id:02d}, all samples of its "
                f"{len(found)} tiles are 0; expected amplitudes"
            )
        for key, notes in sorted(found.items()):
            odd = [flag for flag in notes.flags if flag != "dark"]
            if odd:
                logger.warning("%s: flagged %s", self.source.headers[key].path, ", ".join(odd))
        tiles = tuple(
            replace(tile, flags=(*tile.flags, *found[tile.ix, tile.iy].flags))
            if (tile.ix, tile.iy) in found
            else tile
            for tile in self.info.tiles
        )
        return replace(self.info, tiles=tiles)


def _prepare_complex(volume: Array, matrices: list[np.ndarray | None]) -> PreparedTile:
    """Do as `prepare_tile` with complex samples; the flags are those of the magnitude."""
    xp = namespace(volume)
    magnitude = xp.abs(volume)
    keep: list[np.ndarray | None] = [None] * 3
    notes = prepare_tile(magnitude, keep).notes
    finite = check_samples(magnitude).usable
    parts, valid = [], None
    for part in (volume.real, volume.imag):
        part = xp.ascontiguousarray(part)
        if finite is None:
            parts.append(apply_axis_weights(part, matrices))
        else:
            data, valid = resample_masked(xp.where(finite, part, 0), finite, matrices)
            parts.append(data)
    data = xp.empty(parts[0].shape, xp.complex64)
    data.real, data.imag = parts
    return PreparedTile(data, valid, notes)
