"""Write the tiles of a slice to a mosaic grid, a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.device import CPU, Device, default_workers, to_device, to_host
from linumpy.core.errors import LinumpyError
from linumpy.core.stream import stream
from linumpy.io.grid import GridInfo, create_grid
from linumpy.mosaic.slice_tiles import Key, PreparedTile, SliceTiles

Progress = Callable[[Iterable[Any], int, str], Iterator[Any]]


class _MaskNeeded(LinumpyError):
    """A tile turned out to need a mask, in a grid that was begun without."""


def write_grid(
    tiles: SliceTiles,
    output: Path | str,
    *,
    device: Device = CPU,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> GridInfo:
    """Stream the tiles of a slice into a new mosaic grid, with a mask where one is needed.

    Parameters
    ----------
    output, device, overwrite, progress
        See `linumpy.mosaic.create_mosaic_grid_3d.create_mosaic_grid_3d`.
    """
    write = partial(_write, Path(output), tiles, device, overwrite, progress)
    try:
        return write(with_valid=tiles.has_holes)
    except _MaskNeeded:
        return write(with_valid=True)


def _write(
    output: Path,
    tiles: SliceTiles,
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
        output, tiles.info, dtype=tiles.dtype, overwrite=overwrite, with_valid=with_valid
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
