"""Raw tiles of one slice to a mosaic grid: fly-back cut out, bad samples masked, resampled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from linumpy.core.device import (
    CPU,
    Array,
    Device,
    default_workers,
    namespace,
    to_device,
    to_host,
)
from linumpy.core.errors import InputError, LinumpyError
from linumpy.core.stream import stream
from linumpy.geometry.galvo import (
    GalvoShift,
    GalvoTrack,
    detect_slice_galvo_shift,
    fix_galvo_shift,
    sampled_tiles,
    tile_galvo_shift,
    track_tiles,
)
from linumpy.geometry.resample import (
    apply_axis_weights,
    resample_masked,
    resampled_length,
    resampling_matrices,
)
from linumpy.io.grid import GridInfo, create_grid
from linumpy.io.omezarr import Shape, Triple
from linumpy.io.raw import RawTile, depth_mean, discover_tiles, read_aip, read_tile
from linumpy.io.raw_files import image_files
from linumpy.io.sample_checks import GARBLED, check_samples
from linumpy.io.stage_axes import parse_stage_to_array
from linumpy.mosaic.grid_options import NATIVE_RESOLUTION, GridOptions
from linumpy.mosaic.raw_slice import (
    RawSlice,
    TileGrid,
    axial_resolution_um,
    read_raw_slice,
    slice_interval_um,
    tile_grid,
)
from linumpy.store.atomic import refuse_existing

logger = logging.getLogger("linumpy")

Key = tuple[int, int]
Progress = Callable[[Iterable[Any], int, str], Iterator[Any]]

DARK_CONTRAST = 0.1
SATURATED_SHARE = 0.01


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
    refuse_existing(output, overwrite)
    tiles = open_raw_tiles(root, slice_id, options)
    return write_grid(tiles, output, device=device, overwrite=overwrite, progress=progress)


class TilesOfSlice(Protocol):
    """What `write_grid` takes: the tiles of a slice on their grid, whoever wrote them."""

    @property
    def info(self) -> GridInfo:
        """Geometry of the grid; what is odd about single tiles is not known yet."""

    @property
    def has_holes(self) -> bool:
        """Whether places of the grid lack a tile."""

    def keys(self) -> list[Key]:
        """All places that have a tile, row by row."""

    def read(self, key: Key) -> np.ndarray:
        """Read a tile from disk; called from several threads."""

    def prepare(self, key: Key, volume: Array) -> PreparedTile:
        """Make what is written of what was read."""

    def finish(self, found: Mapping[Key, TileNotes]) -> GridInfo:
        """Return the geometry with what was found out about all tiles."""


def write_grid(
    tiles: TilesOfSlice,
    output: Path | str,
    *,
    dtype: str = "float32",
    device: Device = CPU,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> GridInfo:
    """Stream the tiles of a slice into a new mosaic grid, with a mask where one is needed.

    Parameters
    ----------
    dtype
        Of the samples.
    output, device, overwrite, progress
        See `create_mosaic_grid_3d`.
    """
    write = partial(_write, Path(output), tiles, dtype, device, overwrite, progress)
    try:
        return write(with_valid=tiles.has_holes)
    except _MaskNeeded:
        return write(with_valid=True)


@dataclass(frozen=True)
class RawTiles:
    """The tiles of a raw slice on their grid: all checked, and where their fly-back lies.

    Attributes
    ----------
    info
        Geometry of the grid. What is odd about single tiles is not known yet.
    tiles
        The raw tile of each place; holes have none.
    matrices
        As from `linumpy.geometry.resample.resampling_matrices`.
    galvo
        Where the fly-back is expected in each tile; None where all have the roll of `info`.
    """

    raw: RawSlice
    info: GridInfo
    tiles: Mapping[Key, RawTile]
    matrices: list[np.ndarray | None]
    galvo: GalvoTrack | None = None

    @cached_property
    def _number(self) -> dict[Key, int]:
        """At which place of the slice's list each tile stands."""
        place = {tile: number for number, tile in enumerate(self.raw.tiles)}
        return {key: place[tile] for key, tile in self.tiles.items()}

    @property
    def has_holes(self) -> bool:
        """Whether places of the grid lack a tile."""
        return len(self.tiles) < len(self.info.tiles)

    def keys(self) -> list[Key]:
        """All places that have a tile, row by row."""
        return sorted(self.tiles)

    def read(self, key: Key) -> np.ndarray:
        """Read a tile's samples from disk; see `linumpy.io.raw.read_tile`."""
        return read_tile(self.tiles[key], self.raw.info)

    def prepare(self, key: Key, volume: Array) -> PreparedTile:
        """Cut the fly-back out of a tile, and do the rest as `prepare_tile`."""
        n_extra, shift = self.raw.info.n_extra, self.info.galvo_shift_px
        if self.galvo is not None:
            number = self._number[key]
            shift = tile_galvo_shift(depth_mean(volume), number, self.galvo, n_extra)
        kept = fix_galvo_shift(volume, shift, n_extra)
        return prepare_tile(kept, self.matrices)

    def finish(self, found: Mapping[Key, TileNotes]) -> GridInfo:
        """Return the geometry with what was found out about all tiles, and warn of odd ones.

        Raises
        ------
        InputError
            When all samples of the slice are 0.
        """
        if not any(notes.bright for notes in found.values()):
            raise InputError(
                f"{self.raw.root}: empty slice z{self.raw.slice_id:02d}, all samples of its "
                f"{len(self.tiles)} tiles are 0; expected amplitudes"
            )
        for key, notes in sorted(found.items()):
            odd = [flag for flag in notes.flags if flag != "dark"]
            if odd:
                logger.warning("%s: flagged %s", self.tiles[key].path, ", ".join(odd))
        dark = sum("dark" in notes.flags for notes in found.values())
        logger.debug("slice z%02d: %d of %d tiles are dark", self.raw.slice_id, dark, len(found))
        tiles = tuple(
            replace(tile, flags=(*tile.flags, *found[tile.ix, tile.iy].flags))
            if (tile.ix, tile.iy) in found
            else tile
            for tile in self.info.tiles
        )
        return replace(self.info, tiles=tiles)


def open_raw_tiles(
    root: Path | str,
    slice_id: int,
    options: GridOptions | None = None,
    *,
    slices: Mapping[int, tuple[RawTile, ...]] | None = None,
) -> RawTiles:
    """Check the headers, sizes and positions of a slice's tiles, and find their fly-back.

    Parameters
    ----------
    root
        Folder of the raw acquisition.
    slices
        What `linumpy.io.raw.discover_tiles` found there, where that is known already.

    Raises
    ------
    InputError
        When the acquisition is not what was expected; names the file or the tile.
    """
    options = options or GridOptions()
    _check_options(options)
    slices = discover_tiles(root) if slices is None else slices
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
    source_um = (axial_um, *raw.info.pixel_um)
    return RawTiles(
        raw=raw,
        info=info,
        tiles={(t.ix - grid.origin[0], t.iy - grid.origin[1]): t for t in raw.tiles},
        matrices=resampling_matrices(raw.info.shape_px, source_um, info.voxel_um),
        galvo=None if shift is None else shift.track,
    )


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
        slice_thickness_um=raw.side.slice_interval_um,
    )


def galvo_shift_of_slice(raw: RawSlice, options: GridOptions) -> GalvoShift | None:
    """Find where the fly-back lies in a slice, from at most 5 of its tiles and both ends.

    Returns
    -------
    The shift to apply, 0 where the confidence is below the threshold, with a track otherwise; None
    when there is no fly-back or it is not to be looked for.
    """
    n_extra = raw.info.n_extra
    if n_extra == 0 or not options.fix_galvo_shift:
        return None
    numbers = [*sampled_tiles(len(raw.tiles)), *track_tiles(len(raw.tiles))]

    def read(number: int) -> np.ndarray:
        return read_aip(raw.tiles[number], raw.info)

    with ThreadPoolExecutor(min(default_workers(CPU), len(numbers)), "linumpy-read") as pool:
        aips = dict(zip(numbers, pool.map(read, numbers), strict=True))

    def known_or_read(number: int) -> np.ndarray:
        return aips[number] if number in aips else read(number)

    found = detect_slice_galvo_shift(known_or_read, len(raw.tiles), n_extra)
    if found.confidence >= options.galvo_threshold:
        if found.track is not None:
            logger.info(
                "slice z%02d: the galvo's trigger drifts by %+.2f A-lines a tile; the fly-back "
                "is looked for in every tile", raw.slice_id, found.track.step_px,
            )  # fmt: skip
            return found
        # A slow drift hides between the few tiles looked at; each tile's own band shows it.
        n_alines = raw.info.shape_px[1] + n_extra
        return replace(found, track=GalvoTrack(found.shift_px, 0.0, n_alines))
    logger.warning(
        "slice z%02d: the galvo's fly-back band was not found with confidence (%.2f, threshold "
        "%g); it is taken to be the last %d A-lines",
        raw.slice_id, found.confidence, options.galvo_threshold, n_extra,
    )  # fmt: skip
    return GalvoShift(0, found.confidence)


def _write(
    output: Path,
    tiles: TilesOfSlice,
    dtype: str,
    device: Device,
    overwrite: bool,
    progress: Progress | None,
    *,
    with_valid: bool,
) -> GridInfo:
    """Stream the tiles into a new grid."""

    def prepare(key: Key, volume: np.ndarray) -> PreparedTile:
        tile = tiles.prepare(key, to_device(volume, device))
        if tile.valid is not None and not with_valid:
            raise _MaskNeeded
        valid = None if tile.valid is None else to_host(tile.valid)
        return PreparedTile(to_host(tile.data), valid, tile.notes)

    with create_grid(
        output, tiles.info, dtype=dtype, overwrite=overwrite, with_valid=with_valid
    ) as writer:

        def write(key: Key, tile: PreparedTile) -> None:
            valid = None if tile.valid is None else to_host(tile.valid)
            writer.write_tile(*key, to_host(tile.data), valid)

        steps: Iterator[tuple[Key, PreparedTile]]
        if device.is_gpu:
            steps = stream(tiles.keys(), tiles.read, prepare, write)
        else:
            # NumPy releases the GIL in all that takes long: whole tiles in threads.
            workers = default_workers(device)
            steps = stream(
                tiles.keys(),
                lambda key: prepare(key, tiles.read(key)),
                lambda _, tile: tile,
                write,
                depth=workers + 1,
                readers=workers,
            )
        if progress is not None:
            steps = progress(steps, len(tiles.keys()), f"slice z{tiles.info.slice_id:02d}")
        info = tiles.finish({key: tile.notes for key, tile in steps})
        writer.update_flags({(place.ix, place.iy): place.flags for place in info.tiles})
        return writer.info


@dataclass(frozen=True)
class TileNotes:
    """What was found out about a tile.

    Attributes
    ----------
    flags
        What is odd about it; see `prepare_tile`.
    bright
        Whether it has a sample that is not 0.
    """

    flags: tuple[str, ...]
    bright: bool


@dataclass(frozen=True)
class PreparedTile:
    """A tile ready for the grid: samples, mask (None: all valid) and what was found out."""

    data: Array
    valid: Array | None
    notes: TileNotes


def prepare_tile(volume: Array, matrices: list[np.ndarray | None]) -> PreparedTile:
    """Mask what no microscope writes, note what is odd, and resample.

    Flags: those of `linumpy.io.sample_checks.check_samples`, whose samples become 0; ``dark``
    for a tile that shows
    nothing, its mean the same at every depth within 10 %; ``saturated`` when
    more than 1 % of the samples have the largest value.

    Parameters
    ----------
    volume
        float32 tile (z, axis 1, axis 2), NumPy or CuPy.
    matrices
        As from `linumpy.geometry.resample.resampling_matrices`.
    """
    xp = namespace(volume)
    found = check_samples(volume)
    flags = list(found.flags)
    if found.usable is not None:
        volume = xp.where(found.usable, volume, volume.dtype.type(0))
    profile = volume.mean(axis=(1, 2), dtype=xp.float64)
    is_flat = float(profile.max() - profile.min()) <= DARK_CONTRAST * float(profile.mean())
    if is_flat and GARBLED not in flags:
        flags.append("dark")
    top = volume.max()
    at_top = int(xp.count_nonzero(volume == top))
    if float(top) > 0 and at_top > max(1, SATURATED_SHARE * volume.size):
        flags.append("saturated")
    valid = None
    if found.usable is not None:
        data, valid = resample_masked(volume, found.usable, matrices)
    else:
        data = apply_axis_weights(volume, matrices)
    bright = float(top) != 0 or bool(data.any())
    return PreparedTile(data, valid, TileNotes(tuple(flags), bright))
