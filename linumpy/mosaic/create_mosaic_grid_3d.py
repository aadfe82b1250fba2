"""Raw tiles of one slice to a mosaic grid: fly-back cut out, bad samples masked, resampled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.device import CPU, Array, Device, namespace, to_device, to_host
from linumpy.errors import InputError, LinumpyError
from linumpy.geometry.galvo import GalvoShift, detect_slice_galvo_shift, fix_galvo_shift
from linumpy.geometry.resample import (
    apply_axis_weights,
    resample_masked,
    resampled_length,
    resampling_matrices,
)
from linumpy.io.atomic import refuse_existing
from linumpy.io.grid import GridInfo, GridTile, create_grid, parse_stage_to_array
from linumpy.io.omezarr import Shape, Triple
from linumpy.io.raw import RawTile, discover_tiles, image_files, read_aip, read_tile
from linumpy.mosaic.raw_slice import (
    RawSlice,
    TileGrid,
    axial_resolution_um,
    read_raw_slice,
    slice_interval_um,
    tile_grid,
)
from linumpy.stream import stream

logger = logging.getLogger("linumpy")

Key = tuple[int, int]
Progress = Callable[[Iterable[Any], int, str], Iterator[Any]]

NATIVE_RESOLUTION = -1.0
DARK_CONTRAST = 0.1
SATURATED_SHARE = 0.01


@dataclass(frozen=True)
class GridOptions:
    """How a slice is turned into a mosaic grid.

    Attributes
    ----------
    axial_resolution_um, slicing_interval_um
        Win over ``metadata.json``; None takes what stands there.
    resolution_um
        Isotropic voxel of the grid; -1 keeps the voxels of the microscope.
    fix_galvo_shift, galvo_threshold
        Whether to look for the fly-back band, and the confidence from which its place is believed.
    stage_to_array
        Signed stage axes that run along axis 1 (A-lines) and axis 2 (B-scans).
    """

    axial_resolution_um: float | None = None
    slicing_interval_um: float | None = None
    resolution_um: float = NATIVE_RESOLUTION
    fix_galvo_shift: bool = True
    galvo_threshold: float = 0.6
    stage_to_array: str = "+x,+y"


class _MaskNeeded(LinumpyError):
    """A tile turned out to need a mask, in a grid that was begun without."""


def create_mosaic_grid_3d(
    root: Path | str,
    slice_id: int,
    output: Path | str,
    options: GridOptions | None = None,
    *,
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
    output
        The grid's folder, ``*.ome.zarr``; it appears when it is whole.
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
    options = options or GridOptions()
    _check_options(options)
    refuse_existing(output, overwrite)
    slices = discover_tiles(root)
    raw = read_raw_slice(slices, slice_id, root)
    axial_um = axial_resolution_um(raw, options.axial_resolution_um)
    interval_um = slice_interval_um(raw, slices, options.slicing_interval_um)
    grid = tile_grid(raw, options.stage_to_array)
    for tile in raw.tiles:
        image_files(tile.path, raw.info)
    info = _grid_info(raw, grid, options, axial_um, interval_um)
    shift = galvo_shift_of_slice(raw, options)
    if shift is not None:
        info = replace(
            info, galvo_shift_px=shift.shift_px, galvo_confidence=round(shift.confidence, 4)
        )
    tiles = {(t.ix - grid.origin[0], t.iy - grid.origin[1]): t for t in raw.tiles}
    write = partial(_write, Path(output), info, raw, tiles, axial_um, device, overwrite, progress)
    holes = len(tiles) < len(info.tiles)
    try:
        written = write(with_valid=holes)
    except _MaskNeeded:
        written = write(with_valid=True)
    _report_flags(written, tiles)
    return written


def _report_flags(info: GridInfo, tiles: dict[Key, RawTile]) -> None:
    for tile in info.tiles:
        odd = [flag for flag in tile.flags if flag.startswith(("nan:", "saturated"))]
        if odd:
            path = tiles[tile.ix, tile.iy].path
            logger.warning("%s: flagged %s", path, ", ".join(odd))
    dark = sum("dark" in tile.flags for tile in info.tiles)
    logger.debug("slice z%02d: %d of %d tiles are dark", info.slice_id, dark, len(tiles))


def _check_options(options: GridOptions) -> None:
    parse_stage_to_array(options.stage_to_array)
    if options.resolution_um != NATIVE_RESOLUTION and not 0 < options.resolution_um < np.inf:
        raise InputError(
            f"--resolution is {options.resolution_um}, expected more than 0 um, or -1 to keep "
            "the voxels of the microscope"
        )
    if not 0 <= options.galvo_threshold <= 1:
        raise InputError(f"--galvo_threshold is {options.galvo_threshold}, expected 0 to 1")


def _grid_info(
    raw: RawSlice,
    grid: TileGrid,
    options: GridOptions,
    axial_um: float,
    interval_um: float | None,
) -> GridInfo:
    voxel_um: Triple = (axial_um, *raw.info.pixel_um)
    shape: Shape = raw.info.shape_px
    if options.resolution_um != NATIVE_RESOLUTION:
        target = float(options.resolution_um)
        nz, nx, ny = (
            resampled_length(n, source, target) for n, source in zip(shape, voxel_um, strict=True)
        )
        shape, voxel_um = (nz, nx, ny), (target, target, target)
    return GridInfo(
        slice_id=raw.slice_id,
        tile_shape_px=shape,
        voxel_um=voxel_um,
        overlap_fraction=grid.overlap_fraction,
        tiles=grid.tiles,
        tile_fov_um=raw.info.fov_um,
        stage_to_array=options.stage_to_array,
        slice_interval_um=interval_um,
    )


def galvo_shift_of_slice(raw: RawSlice, options: GridOptions) -> GalvoShift | None:
    """Find where the fly-back lies in a slice, from at most 5 of its tiles.

    Returns
    -------
    The shift to apply, 0 where the confidence is below the threshold; None when there is no
    fly-back or it is not to be looked for.
    """
    n_extra = raw.info.n_extra
    if n_extra == 0 or not options.fix_galvo_shift:
        return None
    found = detect_slice_galvo_shift(
        lambda n: read_aip(raw.tiles[n], raw.info), len(raw.tiles), n_extra
    )
    if found.confidence >= options.galvo_threshold:
        return found
    logger.warning(
        "slice z%02d: the galvo's fly-back band was not found with confidence (%.2f, threshold "
        "%g); it is taken to be the last %d A-lines",
        raw.slice_id, found.confidence, options.galvo_threshold, n_extra,
    )  # fmt: skip
    return GalvoShift(0, found.confidence)


def _write(
    output: Path,
    info: GridInfo,
    raw: RawSlice,
    tiles: dict[Key, RawTile],
    axial_um: float,
    device: Device,
    overwrite: bool,
    progress: Progress | None,
    *,
    with_valid: bool,
) -> GridInfo:
    """Stream the tiles through `prepare_tile` into a new grid."""
    matrices = resampling_matrices(raw.info.shape_px, (axial_um, *raw.info.pixel_um), info.voxel_um)
    places: dict[Key, GridTile] = {(t.ix, t.iy): t for t in info.tiles}
    bright = False

    def read(key: Key) -> np.ndarray:
        volume = read_tile(tiles[key], raw.info)
        return fix_galvo_shift(volume, info.galvo_shift_px, raw.info.n_extra)

    def compute(key: Key, volume: np.ndarray) -> PreparedTile:
        tile = prepare_tile(to_device(volume, device), matrices)
        if tile.valid is not None and not with_valid:
            raise _MaskNeeded
        return PreparedTile(
            to_host(tile.data), None if tile.valid is None else to_host(tile.valid), tile.flags
        )

    with create_grid(output, info, overwrite=overwrite, with_valid=with_valid) as writer:

        def write(key: Key, tile: PreparedTile) -> None:
            writer.write_tile(*key, tile.data, tile.valid)

        steps: Iterator[tuple[Key, PreparedTile]] = stream(sorted(tiles), read, compute, write)
        if progress is not None:
            steps = progress(steps, len(tiles), f"slice z{raw.slice_id:02d}")
        for key, tile in steps:
            bright = bright or bool(tile.data.any())
            if tile.flags:
                writer.update_tile(*key, flags=(*places[key].flags, *tile.flags))
        if not bright:
            raise InputError(
                f"{raw.root}: empty slice z{raw.slice_id:02d}, all samples of its {len(tiles)} "
                "tiles are 0; expected amplitudes"
            )
        return writer.info


@dataclass(frozen=True)
class PreparedTile:
    """A tile ready for the grid: samples, mask (None: all valid) and what is odd about it."""

    data: Array
    valid: Array | None
    flags: tuple[str, ...]


def prepare_tile(volume: Array, matrices: list[np.ndarray | None]) -> PreparedTile:
    """Mask what is not finite, note what is odd, and resample.

    Flags: ``nan:<n>`` for n samples that are not finite, which become 0; ``dark`` for a tile that
    shows nothing, its mean the same at every depth within 10 %; ``saturated`` when more than 1 %
    of the samples have the largest value.

    Parameters
    ----------
    volume
        float32 tile (z, axis 1, axis 2), NumPy or CuPy.
    matrices
        As from `linumpy.geometry.resample.resampling_matrices`.
    """
    xp = namespace(volume)
    flags = []
    finite = xp.isfinite(volume)
    n_bad = int(volume.size - xp.count_nonzero(finite))
    if n_bad:
        volume = xp.where(finite, volume, volume.dtype.type(0))
        flags.append(f"nan:{n_bad}")
    profile = volume.mean(axis=(1, 2), dtype=xp.float64)
    if float(profile.max() - profile.min()) <= DARK_CONTRAST * float(profile.mean()):
        flags.append("dark")
    top = volume.max()
    at_top = int(xp.count_nonzero(volume == top))
    if float(top) > 0 and at_top > max(1, SATURATED_SHARE * volume.size):
        flags.append("saturated")
    if not n_bad:
        return PreparedTile(apply_axis_weights(volume, matrices), None, tuple(flags))
    data, valid = resample_masked(volume, finite, matrices)
    return PreparedTile(data, valid, tuple(flags))
