"""Tiles of one slice in the raw format of folders, with the fly-back to be cut out."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from linumpy.core.device import CPU, Array, default_workers
from linumpy.core.start_up import begin_import
from linumpy.geometry.galvo import (
    N_BSCANS,
    GalvoShift,
    GalvoTrack,
    detect_slice_galvo_shift,
    fix_galvo_shift,
    sampled_tiles,
    tile_galvo_shift,
    track_tiles,
)
from linumpy.io.raw import RawTile, depth_mean, discover_tiles, read_aip, read_some, read_tile
from linumpy.io.raw_files import image_files
from linumpy.mosaic.fixed_lines import fixed_lines
from linumpy.mosaic.grid_options import GridOptions
from linumpy.mosaic.raw_slice import (
    RawSlice,
    axial_resolution_um,
    read_raw_slice,
    slice_interval_um,
    tile_grid,
)
from linumpy.mosaic.slice_tiles import (
    Key,
    PreparedTile,
    SliceTiles,
    check_grid_options,
    prepare_tile,
    resampled_grid,
)

logger = logging.getLogger("linumpy")

N_ALINES = 64
"""Looked at of each of `N_BSCANS`: quartiles of a thousand samples are known to 4 %."""


@dataclass(frozen=True)
class RawTiles(SliceTiles):
    """The tiles of a raw slice on their grid: all checked, and where their fly-back lies.

    Attributes
    ----------
    raw
        Headers of all tiles.
    galvo
        Where the fly-back is expected in each tile; None where all have the roll of `info`.
    lines
        Planes that reflections of the optics outshine; None for none.
    """

    tiles: Mapping[Key, RawTile]
    raw: RawSlice
    galvo: GalvoTrack | None = None
    lines: np.ndarray | None = None

    @cached_property
    def _number(self) -> dict[Key, int]:
        """Index of each tile in the slice's list."""
        place = {tile: number for number, tile in enumerate(self.raw.tiles)}
        return {key: place[tile] for key, tile in self.tiles.items()}

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
        return prepare_tile(kept, self.matrices, self.lines)


def open_raw_tiles(
    root: Path | str,
    slice_id: int,
    options: GridOptions | None = None,
    *,
    slices: Mapping[int, tuple[RawTile, ...]] | None = None,
    workers: int | None = None,
) -> RawTiles:
    """Check the headers, sizes and positions of a slice's tiles, and find their fly-back.

    Parameters
    ----------
    root
        Folder of the raw acquisition.
    slices
        What `linumpy.io.raw.discover_tiles` found there, where that is known already.
    workers
        Threads that look for the fly-back; None for one a core.

    Raises
    ------
    InputError
        When the acquisition is not what was expected; names the file or the tile.
    """
    options = options or GridOptions()
    check_grid_options(options)
    slices = discover_tiles(root) if slices is None else slices
    raw = read_raw_slice(slices, slice_id, root)
    axial_um = axial_resolution_um(raw, options.axial_resolution_um)
    interval_um = slice_interval_um(raw, slices, options.slicing_interval_um)
    grid = tile_grid(raw, options.stage_to_array)
    for tile in raw.tiles:
        image_files(tile.path, raw.info)
    info, matrices = resampled_grid(
        raw.info.shape_px,
        (axial_um, *raw.info.pixel_um),
        options,
        slice_id=raw.slice_id,
        overlap_fraction=grid.overlap_fraction,
        tiles=grid.tiles,
        tile_fov_um=raw.info.fov_um,
        slice_interval_um=interval_um,
        slice_thickness_um=raw.side.slice_interval_um,
    )
    shift = galvo_shift_of_slice(raw, options, workers)
    if shift is not None:
        info = replace(
            info, galvo_shift_px=shift.shift_px, galvo_confidence=round(shift.confidence, 4)
        )
    return RawTiles(
        root=raw.root,
        info=info,
        tiles={(t.ix - grid.origin[0], t.iy - grid.origin[1]): t for t in raw.tiles},
        matrices=matrices,
        raw=raw,
        galvo=None if shift is None else shift.track,
        lines=lines_of_slice(raw),
    )


def lines_of_slice(raw: RawSlice) -> np.ndarray | None:
    """Return the planes that reflections of the optics outshine, by some tiles of a slice."""
    tiles = [raw.tiles[number] for number in sampled_tiles(len(raw.tiles))]
    found = fixed_lines(read_some(tile, raw.info, N_BSCANS, N_ALINES) for tile in tiles)
    if not found.any():
        return None
    logger.warning(
        "slice z%02d: the optics reflect at a fixed depth; %d of %d planes are interpolated",
        raw.slice_id, found.sum(), len(found),
    )  # fmt: skip
    return found


def galvo_shift_of_slice(
    raw: RawSlice, options: GridOptions, workers: int | None = None
) -> GalvoShift | None:
    """Find where the fly-back lies in a slice, from at most 5 of its tiles and both ends.

    Parameters
    ----------
    raw, options
        The slice, and how its tiles are read.
    workers
        Threads that read these tiles; None for one a core.

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

    # The search needs it; its import takes as long as these tiles.
    begin_import("scipy.ndimage")
    workers = default_workers(CPU) if workers is None else workers
    with ThreadPoolExecutor(min(workers, len(numbers)), "linumpy-read") as pool:
        aips = dict(zip(numbers, pool.map(read, numbers), strict=True))

    def known_or_read(number: int) -> np.ndarray:
        return aips[number] if number in aips else read(number)

    found = detect_slice_galvo_shift(known_or_read, len(raw.tiles), n_extra)
    if found.confidence >= options.galvo_threshold:
        if not found.dark:
            logger.info(
                "slice z%02d: the galvo's fly-back records light, and is found by what it shows",
                raw.slice_id,
            )
            return found
        if found.track is not None:
            logger.info(
                "slice z%02d: the galvo's trigger drifts by %+.2f A-lines a tile; the fly-back "
                "is looked for in every tile", raw.slice_id, found.track.step_px,
            )  # fmt: skip
            return found
        # A slow drift hides between the few sampled tiles; each tile's own band shows it.
        n_alines = raw.info.shape_px[1] + n_extra
        return replace(found, track=GalvoTrack(found.shift_px, 0.0, n_alines))
    logger.warning(
        "slice z%02d: the galvo's fly-back band was not found with confidence (%.2f, threshold "
        "%g); it is taken to be the last %d A-lines",
        raw.slice_id, found.confidence, options.galvo_threshold, n_extra,
    )  # fmt: skip
    return GalvoShift(0, found.confidence)
