"""Grids and slices on disk as sources and sinks of the slice engine."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np

from linumpy.cli import logger
from linumpy.device import to_host
from linumpy.errors import InputError
from linumpy.io.atomic import refuse_existing
from linumpy.io.grid import Grid, GridInfo, create_grid, open_grid
from linumpy.io.omezarr import Image, create_image, open_image
from linumpy.slices.layout import SliceLayout
from linumpy.slices.tile import Key, Tile


class GridSource:
    """The tiles of a mosaic grid that were imaged."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.layout: GridInfo = grid.info
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
        data = self._grid.read_tile(*key)
        valid = self._grid.read_valid(*key)
        finite = np.isfinite(data)
        if not finite.all():
            logger.warning(
                "%s: tile %s has %d voxels that are not finite; they are masked",
                self._grid.path,
                key,
                int((~finite).sum()),
            )
            data = np.where(finite, data, np.float32(0))
            valid = finite.astype(np.uint8) if valid is None else valid * finite
        return Tile(key, data, valid)


class _Sink:
    """A context manager whose output is created by `begin` and appears when the block ends."""

    def __init__(self, path: Path | str, *, overwrite: bool) -> None:
        self._path = refuse_existing(path, overwrite)
        self._overwrite = overwrite
        self._output = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> bool | None:
        return self._output.__exit__(*error)


class GridSink(_Sink):
    """Writes tiles to a new mosaic grid."""

    def begin(self, layout: GridInfo) -> None:
        """Create the grid."""
        self._writer = self._output.enter_context(
            create_grid(self._path, layout, overwrite=self._overwrite, with_valid=True)
        )

    def write(self, tile: Tile) -> None:
        """Write one tile and its mask."""
        valid = None if tile.valid is None else to_host(tile.valid)
        self._writer.write_tile(*tile.key, to_host(tile.data), valid)


class SliceSource:
    """The blocks of a slice volume on disk."""

    def __init__(self, image: Image) -> None:
        if image.attributes.get("kind") != "slice":
            raise InputError(f"{image.path}: expected a slice volume of linumpy")
        self._image = image
        attributes = {k: v for k, v in image.attributes.items() if k != "version"}
        self.layout = SliceLayout(
            shape=tuple(image.array.shape),
            voxel_um=image.voxel_um,
            corner_um=tuple(  # type: ignore[arg-type]
                t - v / 2 for t, v in zip(image.translation_um, image.voxel_um, strict=True)
            ),
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
        try:
            data = np.ascontiguousarray(self._image.array[window], dtype=np.float32)
            valid = None
            if self._image.valid is not None:
                valid = np.ascontiguousarray(self._image.valid[window], dtype=np.uint8)
        except Exception as error:
            raise InputError(
                f"{self._image.path}: block {key} cannot be read ({type(error).__name__}: {error})"
            ) from error
        return Tile(key, data, valid)


class SliceSink(_Sink):
    """Writes blocks to a new slice volume."""

    def begin(self, layout: SliceLayout) -> None:
        """Create the volume."""
        self._layout = layout
        self._writer = self._output.enter_context(
            create_image(self._path, layout.spec(), overwrite=self._overwrite, with_valid=True)
        )
        self._mask: Any = self._writer.valid

    def write(self, tile: Tile) -> None:
        """Write one block and its mask."""
        window = (slice(None), *self._layout.window(tile.key))
        self._writer.array[window] = to_host(tile.data)
        valid = np.uint8(1) if tile.valid is None else to_host(tile.valid)
        self._mask[window] = valid
