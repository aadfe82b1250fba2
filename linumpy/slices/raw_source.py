"""Raw tiles as a source of the slice engine, without a mosaic grid between.

A slice that comes out of here is the same to the bit as one made through a grid on disk, as both
read, cut, mask and flag their tiles by the same code (`linumpy.mosaic.raw_tiles`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from linumpy.core.device import CPU, Array, Device, namespace
from linumpy.core.errors import InputError, LinumpyError
from linumpy.io.grid import GridInfo
from linumpy.io.omezarr import Shape, Triple
from linumpy.io.raw import RawTile, discover_tiles, tiles_of_slice
from linumpy.io.raw_files import image_files
from linumpy.io.tables import read_slice_config, selected_ids
from linumpy.mosaic.grid_options import GridOptions, grid_options
from linumpy.mosaic.raw_slice import axial_resolution_um, read_raw_slice
from linumpy.mosaic.raw_tiles import RawTiles, open_raw_tiles
from linumpy.mosaic.slice_tiles import TileNotes
from linumpy.slices.engine import Source
from linumpy.slices.grid_io import GridSource
from linumpy.slices.tile import Key, Tile

T = TypeVar("T")


class MaskNeeded(LinumpyError):
    """A tile needs a mask and those before it were read without: the pass must begin again."""


_READERS = 4
"""Threads that read tiles for the fly-back before a GPU has work. Its task has one core in the
pipeline's count, and each lane reads for itself."""


@dataclass(frozen=True)
class RawInput:
    """A slice of a raw acquisition, before its tiles are opened.

    Attributes
    ----------
    slices
        All slices of the acquisition, as from `linumpy.io.raw.discover_tiles`.
    """

    root: Path
    slice_id: int
    slices: Mapping[int, tuple[RawTile, ...]]
    options: GridOptions

    def __str__(self) -> str:
        return f"{self.root} (slice z{self.slice_id:02d})"

    @property
    def n_tiles(self) -> int:
        """Number of tiles."""
        return len(tiles_of_slice(self.slices, self.slice_id, self.root))

    def read_scan(self) -> tuple[Shape, Triple]:
        """Return shape and voxel size of the tiles, by the header of the first.

        Raises
        ------
        InputError
            When the header cannot be read, or the axial resolution is not known.
        """
        first = tiles_of_slice(self.slices, self.slice_id, self.root)[:1]
        raw = read_raw_slice({self.slice_id: first}, self.slice_id, self.root)
        axial_um = self.options.axial_resolution_um
        if axial_um is None:
            axial_um = axial_resolution_um(raw, None)
        return raw.info.shape_px, (axial_um, *raw.info.pixel_um)

    def open(self, device: Device = CPU) -> RawSource:
        """Check all headers and sizes, find the fly-back, and return the tiles as a source."""
        workers = _READERS if device.is_gpu else None
        return RawSource(
            open_raw_tiles(
                self.root, self.slice_id, self.options, slices=self.slices, workers=workers
            )
        )


SliceInput = Path | str | RawInput
"""A mosaic grid on disk, or a slice of a raw acquisition."""


def raw_inputs(
    root: Path | str,
    slice_ids: Sequence[int] | None = None,
    *,
    slice_config: Path | str | None = None,
    options: GridOptions | None = None,
) -> list[RawInput]:
    """List slices of a raw acquisition, first slice first.

    Parameters
    ----------
    root
        Folder of the raw acquisition.
    slice_ids
        Slices wanted; all when None.
    slice_config
        Table whose slices with ``use=false`` stay out.
    options
        How tiles are read.

    Raises
    ------
    InputError
        When there are no raw tiles, a slice is not there, or none is left.
    """
    root = Path(root)
    slices = discover_tiles(root)
    ids = sorted(slices if slice_ids is None else set(slice_ids))
    if slice_config is not None:
        ids = list(selected_ids(read_slice_config(slice_config), ids))
        if not ids:
            raise InputError(f"{slice_config}: leaves out every slice of {root}")
    for slice_id in ids:
        tiles_of_slice(slices, slice_id, root)
    return [RawInput(root, slice_id, slices, options or GridOptions()) for slice_id in ids]


class RawSource(Source):
    """The tiles of one raw slice, as its mosaic grid would give them.

    Each tile is read from disk once a pass. All tiles have a mask when there are holes or samples
    that are not finite, else none has. Such samples show only when their tile is read: `read`
    then raises `MaskNeeded`, and the next pass has masks.
    """

    def __init__(self, tiles: RawTiles) -> None:
        self.layout: GridInfo = tiles.info
        self._tiles = tiles
        self._masked = tiles.has_holes
        self._found: dict[Key, TileNotes] = {}

    def keys(self) -> Sequence[Key]:
        """All imaged tiles, row by row."""
        return self._tiles.keys()

    def read(self, key: Key) -> Tile:
        """Read a tile; samples that are not finite become 0 and invalid.

        Raises
        ------
        InputError
            When the tile cannot be read; names the file.
        MaskNeeded
            When it is the first that needs a mask.
        """
        return self._prepared(key, self._tiles.read(key))

    def read_many(self, keys: Sequence[Key], device: Device) -> list[Tile]:
        """Read tiles; on a GPU their files are read straight into its memory."""
        if not device.is_gpu:
            return super().read_many(keys, device)
        return [self._prepared(key, volume) for key, volume in _read_on_gpu(self._tiles, keys)]

    def finish(self) -> GridInfo:
        """Return the layout with what a whole pass found out about the tiles; warn of odd ones.

        Raises
        ------
        InputError
            When all samples of the slice are 0.
        """
        return self._tiles.finish(self._found)

    def _prepared(self, key: Key, volume: Array) -> Tile:
        tile = self._tiles.prepare(key, volume)
        if tile.valid is not None and not self._masked:
            self._masked = True
            raise MaskNeeded(f"{self._tiles.tiles[key].path}: holds samples that are not finite")
        self._found[key] = tile.notes
        valid = tile.valid
        if valid is None and self._masked:
            xp = namespace(tile.data)
            valid = xp.ones(tile.data.shape, xp.uint8)
        return Tile(key, tile.data, valid)


def _read_on_gpu(tiles: RawTiles, keys: Sequence[Key]) -> Iterator[tuple[Key, Any]]:
    """Read raw tiles (z, A-line, B-scan), fly-back included, into memory of the current GPU."""
    import cupy

    from linumpy.gpu.fetch import Run, make_fetch
    from linumpy.gpu.objects import LocalObject

    info = tiles.raw.info
    nbytes = info.bscan_bytes * info.ny
    # Direct reads want the place in memory to be a multiple of 4096, as that in the file is.
    room = -(-nbytes // 4096) * 4096
    runs = []
    for number, key in enumerate(keys):
        at = number * room
        for path, n_frames in image_files(tiles.tiles[key].path, info):
            runs.append(Run(LocalObject(str(path)), 0, n_frames * info.bscan_bytes, at))
            at += runs[-1].nbytes
    staging = cupy.empty(room * len(keys), cupy.uint8)
    # The reader's own copies are on no stream: what used this memory before must be over.
    cupy.cuda.get_current_stream().synchronize()
    fetch, _ = make_fetch([run.stored for run in runs], staging.device.id)
    try:
        fetch.start(runs, staging)()
    finally:
        fetch.close()
    for number, key in enumerate(keys):
        frames = staging[number * room : number * room + nbytes].view(cupy.float32)
        yield key, frames.reshape(info.ny, info.n_alines, info.nz).transpose(2, 1, 0)


def open_source(
    slice_input: SliceInput, assume_unit: str | None = None, device: Device = CPU
) -> Source:
    """Open a mosaic grid or a raw slice; `assume_unit` as in `io.omezarr.open_image`."""
    if isinstance(slice_input, RawInput):
        return slice_input.open(device)
    return GridSource.open(slice_input, assume_unit=assume_unit)


def with_masks_where_needed(work: Callable[[], T]) -> T:
    """Do one or more passes over a source; again from the start if it then turns out to need masks.

    Parameters
    ----------
    work
        Leaves nothing behind when it fails that would be in the way of doing it anew.
    """
    try:
        return work()
    except MaskNeeded:
        return work()


def finished_layout(source: Source, layout: GridInfo) -> GridInfo:
    """Return a layout after a whole pass over its source, flags included.

    Raises
    ------
    InputError
        When all samples of a raw slice are 0.
    """
    return replace(layout, tiles=source.finish().tiles) if isinstance(source, RawSource) else layout


def slice_input(args: argparse.Namespace) -> SliceInput:
    """Return the grid that was named, or the raw slice in place of it."""
    if args.input is not None:
        grid: Path = args.input
        return grid
    return raw_inputs(args.from_root_directory, [args.slice], options=grid_options(args))[0]
