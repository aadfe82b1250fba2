"""Tiles of one slice of a Thorlabs PS-OCT, as magnitudes or as complex samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from linumpy.core.device import Array, namespace
from linumpy.core.errors import InputError
from linumpy.geometry.resample import apply_axis_weights, resample_masked
from linumpy.io.psoct import OctHeader, read_oct
from linumpy.io.sample_checks import check_samples
from linumpy.mosaic.grid_options import GridOptions
from linumpy.mosaic.psoct_options import STAGE_TO_ARRAY, PsoctOptions
from linumpy.mosaic.psoct_slice import read_psoct_slice
from linumpy.mosaic.slice_tiles import (
    Key,
    PreparedTile,
    SliceTiles,
    check_grid_options,
    prepare_tile,
    resampled_grid,
)


@dataclass(frozen=True)
class PsoctTiles(SliceTiles):
    """The ``.oct`` files of a slice on their grid."""

    tiles: Mapping[Key, OctHeader]
    psoct: PsoctOptions

    @property
    def dtype(self) -> str:
        """Of the samples that are written."""
        return "complex64" if self.psoct.return_complex else "float32"

    def read(self, key: Key) -> np.ndarray:
        """Read a tile."""
        return read_oct(
            self.tiles[key],
            self.psoct.polarization,
            slice(*self.psoct.depth_px),
            return_complex=self.psoct.return_complex,
        )

    def prepare(self, key: Key, volume: Array) -> PreparedTile:
        """Mask, flag and resample a tile; complex samples as real and imaginary parts."""
        if not self.psoct.return_complex:
            return prepare_tile(volume, self.matrices)
        return _prepare_complex(volume, self.matrices)


def open_psoct_tiles(
    root: Path | str,
    slice_id: int,
    options: GridOptions | None = None,
    psoct: PsoctOptions | None = None,
) -> PsoctTiles:
    """Read the headers and positions of a slice's tiles, of one polarisation and angle.

    Parameters
    ----------
    root
        Folder with the ``.oct`` files of the slice and their ``.scan`` file.
    slice_id
        Id that the slice gets; the files have none.
    options
        Resolution, stage axes, and what wins over the headers.
    psoct
        Polarisation, angle and depths.

    Raises
    ------
    InputError
        When files are not what was expected; names the file.
    """
    options = options or GridOptions(stage_to_array=STAGE_TO_ARRAY)
    psoct = psoct or PsoctOptions()
    check_grid_options(options)
    for name in ("axial_resolution", "slicing_interval"):
        value = getattr(options, f"{name}_um")
        if value is not None and not 0 < value < np.inf:
            raise InputError(f"--{name} is {value}, expected more than 0")
    source = read_psoct_slice(root, psoct, options.stage_to_array)
    axial_um, *pixel_um = source.header.voxel_um
    first, stop = psoct.depth_px
    shape = (stop - first, *source.header.shape_px[1:])
    info, matrices = resampled_grid(
        shape,
        (options.axial_resolution_um or axial_um, pixel_um[0], pixel_um[1]),
        options,
        slice_id=slice_id,
        overlap_fraction=source.overlap_fraction,
        tiles=source.places,
        tile_fov_um=(shape[1] * pixel_um[0], shape[2] * pixel_um[1]),
        slice_interval_um=options.slicing_interval_um,
    )
    return PsoctTiles(source.root, info, source.headers, matrices, psoct)


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
