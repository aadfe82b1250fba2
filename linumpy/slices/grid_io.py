"""Grids and slices on disk as sources and sinks of the slice engine."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np

from linumpy.core.device import (
    CPU,
    Array,
    Device,
    batch_share,
    default_workers,
    free_gpu_bytes,
    is_device_array,
    to_host,
)
from linumpy.core.errors import InputError
from linumpy.core.log import logger
from linumpy.io.grid import Grid, GridInfo, create_grid, masks_on_gpu, open_grid
from linumpy.io.omezarr import Image, create_image, open_image
from linumpy.io.reading import reading
from linumpy.io.slice_ids import check_stated_id, slice_id_beside_metadata
from linumpy.io.slice_layout import SliceLayout, corner_of, third_party_attributes
from linumpy.io.usable import mask_unusable, refuse_unusable
from linumpy.slices.engine import Sink, Source, Stage, run
from linumpy.slices.tile import Key, Tile
from linumpy.store.atomic import refuse_existing

ENCODE_NBYTES = 1 << 30
"""Most bytes of tiles on a GPU that are gathered before they are encoded together."""

ENCODE_SHARE = 16
"""No more than this part of the memory that is free."""


class GridSource(Source):
    """The tiles of a mosaic grid that were imaged."""

    def __init__(self, grid: Grid) -> None:
        if grid.is_complex:
            raise InputError(
                f"{grid.path}: holds complex samples, expected amplitudes; make the grid without "
                "--return_complex"
            )
        self._grid = grid
        self.layout: GridInfo = grid.info
        self.tiles_a_read = -(-default_workers(CPU) // grid.chunks_a_tile)
        self._keys = [(t.ix, t.iy) for t in grid.info.tiles if t.present]
        holes = len(grid.info.tiles) - len(self._keys)
        if holes:
            logger.warning("%s: tiles that were not imaged and stay empty: %d", grid.path, holes)
        if not self._keys:
            raise InputError(f"{grid.path}: no tile was imaged")

    @classmethod
    def open(cls, path: Path | str, *, assume_unit: str | None = None) -> GridSource:
        """Open the grid at `path`; `assume_unit` as in `io.omezarr.open_image`."""
        return cls(open_grid(path, assume_unit=assume_unit))

    def keys(self) -> Sequence[Key]:
        """All imaged tiles, row by row."""
        return self._keys

    def read(self, key: Key) -> Tile:
        """Read a tile; voxels that are not finite become 0 and invalid."""
        return self._masked(key, self._grid.read_tile(*key), self._grid.read_valid(*key))

    def read_many(self, keys: Sequence[Key], device: Device) -> list[Tile]:
        """Read tiles; on a GPU they are decoded there, all at once."""
        if not device.is_gpu:
            return super().read_many(keys, device)
        found = self._grid.read_tiles_on_gpu(keys)
        return [self._masked(key, *parts) for key, parts in zip(keys, found, strict=True)]

    def _masked(self, key: Key, data: Array, valid: Array | None) -> Tile:
        return Tile(key, *mask_unusable(data, valid, f"{self._grid.path}: tile {key}"))


class _Sink(Sink):
    """A context manager whose output is created by `begin` and appears when the block ends.

    Tiles on a GPU are gathered there until they are worth encoding.
    """

    def __init__(self, path: Path | str, *, overwrite: bool) -> None:
        self._path = refuse_existing(path, overwrite)
        self._overwrite = overwrite
        self._output = ExitStack()
        self._gathered: dict[int, list[Tile]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> bool | None:
        self._gathered.clear()
        return self._output.__exit__(*error)

    def write(self, tile: Tile) -> None:
        """Take one tile and its mask."""
        if not is_device_array(tile.data):
            self.write_on_host(tile)
            return
        gathered = self._gathered.setdefault(tile.data.device.id, [])
        gathered.append(tile)
        room = int(batch_share() * min(ENCODE_NBYTES, free_gpu_bytes() // ENCODE_SHARE))
        if sum(t.nbytes for t in gathered) >= room:
            self.flush()

    def flush(self) -> None:
        """Write what was gathered on the current GPU."""
        if self._gathered:
            import cupy

            tiles = self._gathered.pop(cupy.cuda.Device().id, [])
            if tiles:
                self.write_on_gpu(tiles)

    def write_on_host(self, tile: Tile) -> None:
        """Write one tile of NumPy arrays."""
        raise NotImplementedError

    def write_on_gpu(self, tiles: Sequence[Tile]) -> None:
        """Write tiles of CuPy arrays."""
        raise NotImplementedError


class GridSink(_Sink):
    """Sink that writes tiles to a new mosaic grid."""

    def begin(self, layout: GridInfo) -> None:
        """Create the grid."""
        self._writer = self._output.enter_context(
            create_grid(self._path, layout, overwrite=self._overwrite, with_valid=True)
        )

    def write_on_host(self, tile: Tile) -> None:
        """Write one tile and its mask."""
        valid = None if tile.valid is None else to_host(tile.valid)
        self._writer.write_tile(*tile.key, to_host(tile.data), valid)

    def write_on_gpu(self, tiles: Sequence[Tile]) -> None:
        """Write tiles and their masks, encoded together."""
        self._writer.write_tiles_on_gpu(
            [t.key for t in tiles], [t.data for t in tiles], [t.valid for t in tiles]
        )


def grid_to_grid(
    stages: Sequence[Stage],
    grid: Path,
    output: Path,
    overwrite: bool,
    device: Device,
    *,
    assume_unit: str | None = None,
) -> None:
    """Run stages over the tiles of a grid on disk, and write what they make as a new one."""
    with GridSink(output, overwrite=overwrite) as sink:
        source = GridSource.open(grid, assume_unit=assume_unit)
        run(stages, source, [sink], device=device)


class SliceSource(Source):
    """The blocks of a slice volume on disk."""

    def __init__(self, image: Image) -> None:
        kind = image.attributes.get("kind", "slice")
        if kind != "slice":
            raise InputError(f"{image.path}: holds a {kind}, expected a slice volume")
        self._image = image
        attributes = {k: v for k, v in image.attributes.items() if k != "version"}
        stated = attributes.get("slice_id")
        if stated is None:
            assumed = third_party_attributes(slice_id_beside_metadata(image.path) or 0)
            attributes = {**assumed, **attributes}
        elif type(stated) is not int:
            raise InputError(f"{image.path}: slice_id {stated!r}, expected a whole number")
        else:
            check_stated_id(image.path, stated)
        self.layout = SliceLayout(
            shape=tuple(image.array.shape),
            voxel_um=image.voxel_um,
            corner_um=corner_of(image.translation_um, image.voxel_um),
            attributes=attributes,
        )

    @classmethod
    def open(cls, path: Path | str) -> SliceSource:
        """Open the slice volume at `path`."""
        return cls(open_image(path))

    def keys(self) -> Sequence[Key]:
        """All blocks, row by row."""
        return self.layout.keys()

    def read(self, key: Key) -> Tile:
        """Read a block and its mask."""
        window = (slice(None), *self.layout.window(key))
        with reading(f"{self._image.path}: block {key}"):
            data = np.ascontiguousarray(self._image.array[window], dtype=np.float32)
            valid = None
            if self._image.valid is not None:
                valid = np.ascontiguousarray(self._image.valid[window], dtype=np.uint8)
        return self._checked(key, data, valid)

    def _checked(self, key: Key, data: Array, valid: Array | None) -> Tile:
        data = refuse_unusable(data, valid, f"{self._image.path}: block {key}")
        return Tile(key, data, valid)

    def read_many(self, keys: Sequence[Key], device: Device) -> list[Tile]:
        """Read blocks; on a GPU they are decoded there, all at once."""
        if not device.is_gpu:
            return super().read_many(keys, device)
        from linumpy.gpu.windows import read_windows

        windows = [(slice(None), *self.layout.window(key)) for key in keys]
        blocks = [b.astype("float32", copy=False) for b in read_windows(self._image.array, windows)]
        masks: list[Any] = [None] * len(blocks)
        if self._image.valid is not None:
            found = read_windows(self._image.valid, windows)
            masks = [m.astype("uint8", copy=False) for m in found]
        return [self._checked(*parts) for parts in zip(keys, blocks, masks, strict=True)]


class SliceSink(_Sink):
    """Sink that writes blocks to a new slice volume."""

    def begin(self, layout: SliceLayout) -> None:
        """Create the volume."""
        self._layout = layout
        self._writer = self._output.enter_context(
            create_image(self._path, layout.spec(), overwrite=self._overwrite, with_valid=True)
        )
        self._mask: Any = self._writer.valid

    def write_on_host(self, tile: Tile) -> None:
        """Write one block and its mask."""
        window = (slice(None), *self._layout.window(tile.key))
        self._writer.array[window] = tile.data
        self._mask[window] = np.uint8(1) if tile.valid is None else tile.valid

    def write_on_gpu(self, tiles: Sequence[Tile]) -> None:
        """Write blocks and their masks, encoded together."""
        from linumpy.gpu.windows import write_windows

        windows = [(slice(None), *self._layout.window(tile.key)) for tile in tiles]
        blocks = [tile.data for tile in tiles]
        write_windows(self._writer.array, windows, blocks)
        write_windows(self._mask, windows, masks_on_gpu(blocks, [tile.valid for tile in tiles]))
