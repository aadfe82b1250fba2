"""Raw acquisitions: find the tiles, read their headers, side files and samples.

A tile is a folder ``tile_x<X>_y<Y>_z<Z>`` with an ``info.txt`` and one or more ``image_*.bin``.
Folders may lie flat under the root or nested, usually in ``slice_z<Z>/tiles``. X and Y are
indices of the tile grid, Z is the id of the physical slice; any number of digits will do.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.device import Array, namespace
from linumpy.core.errors import InputError
from linumpy.io.info import INFO_NAME, TileInfo, read_info
from linumpy.io.raw_files import image_files
from linumpy.io.raw_folders import SLICE_NAME, TILE_PREFIX, ids_text, walk_raw_folders
from linumpy.io.table_rows import LARGEST_ID

logger = logging.getLogger("linumpy")

LARGEST_INDEX = 9999
"""Largest index of a tile along an axis of its grid, which has a place for every index below."""

TILE_NAME = re.compile(r"tile_x([0-9]+)_y([0-9]+)_z([0-9]+)")


CACHED_NBYTES = 1 << 20
"""B-scans that are averaged while a core's cache holds them. A whole tile in new memory takes twice
as long."""


@dataclass(frozen=True)
class RawTile:
    """One tile folder; indices as the folder's name gives them."""

    path: Path
    slice_id: int
    ix: int
    iy: int

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.path.name

    def read_info(self) -> TileInfo:
        """Read the tile's ``info.txt``."""
        return read_info(self.path / INFO_NAME)


def discover_tiles(root: Path | str) -> dict[int, tuple[RawTile, ...]]:
    """Find all tiles below a folder, links followed (`walk_raw_folders`).

    The folder of a slice that holds no tile, as of one that is about to be imaged, is named in a
    warning.

    Returns
    -------
    For each slice id, in rising order, its tiles in the order of their indices (x, then y).

    Raises
    ------
    InputError
        When there is no such folder or no tile in it, when the name of a tile folder cannot be
        read, or when two folders claim one index.
    """
    root = Path(root)
    if not root.is_dir():
        raise InputError(f"{root}: no such folder of raw tiles")
    tiles: dict[tuple[int, int, int], RawTile] = {}
    slice_folders: dict[int, Path] = {}
    for path in walk_raw_folders(root, logger.warning):
        if not path.name.startswith(TILE_PREFIX):
            if match := SLICE_NAME.fullmatch(path.name):
                slice_folders.setdefault(int(match.group(1)), path)
            continue
        match = TILE_NAME.fullmatch(path.name)
        if match is None:
            raise InputError(
                f"{path}: not the name of a tile; expected tile_x<X>_y<Y>_z<Z>, "
                "such as tile_x00_y03_z07"
            )
        ix, iy, slice_id = (int(group) for group in match.groups())
        if slice_id > LARGEST_ID or max(ix, iy) > LARGEST_INDEX:
            raise InputError(
                f"{path}: expected a slice id up to {LARGEST_ID} and indices up to {LARGEST_INDEX}"
            )
        tile = RawTile(path, slice_id, ix, iy)
        twin = tiles.setdefault((slice_id, ix, iy), tile)
        if twin is not tile:
            raise InputError(
                f"{twin.path} and {path}: two tiles at grid index x {ix}, y {iy} "
                f"of slice z{slice_id:02d}; expected one"
            )
    slices: dict[int, list[RawTile]] = {}
    for key in sorted(tiles):
        slices.setdefault(key[0], []).append(tiles[key])
    if not slices:
        raise InputError(f"{root}: holds no raw tile; expected folders tile_x<X>_y<Y>_z<Z>")
    for slice_id in sorted(slice_folders.keys() - slices.keys()):
        logger.warning("%s: empty slice, holds no tile; left out", slice_folders[slice_id])
    return {slice_id: tuple(found) for slice_id, found in slices.items()}


def tiles_of_slice(
    slices: Mapping[int, tuple[RawTile, ...]], slice_id: int, root: Path | str
) -> tuple[RawTile, ...]:
    """Return the tiles of one slice of `discover_tiles`.

    Raises
    ------
    InputError
        When the slice is not there; names those that are.
    """
    if slice_id not in slices:
        raise InputError(
            f"{root}: no tile of slice z{slice_id:02d}; slices there: {ids_text(slices)}"
        )
    return slices[slice_id]


def read_tile(tile: RawTile, info: TileInfo) -> np.ndarray:
    """Read all samples of a tile.

    Returns
    -------
    float32 array (z, A-line, B-scan) of shape (nz, nx + n_extra, ny): fly-back is still in it.
    A view whose depth axis is contiguous, as on disk.

    Raises
    ------
    InputError
        See `image_files`; also when a file cannot be read to its end.
    """
    frames = np.empty((info.ny, info.n_alines, info.nz), dtype="<f4")
    start = 0
    for path, n_frames in image_files(tile.path, info):
        with _opened(path) as file:
            _read_all(file, frames[start : start + n_frames], path)
        start += n_frames
    return frames.transpose(2, 1, 0)


def read_some(tile: RawTile, info: TileInfo, n_bscans: int, n_alines: int) -> np.ndarray:
    """Read about so many A-lines of about so many B-scans, evenly spaced; see `read_tile`."""
    step = max(1, info.ny // n_bscans)
    alines = slice(None, None, max(1, info.n_alines // n_alines))
    wanted = np.arange(step // 2, info.ny, step)
    parts = []
    start = 0
    for path, n_frames in image_files(tile.path, info):
        here = wanted[(wanted >= start) & (wanted < start + n_frames)] - start
        try:
            frames = np.memmap(path, "<f4", "r", shape=(n_frames, info.n_alines, info.nz))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from error
        parts.append(frames[here, alines])
        start += n_frames
    return np.concatenate(parts).transpose(2, 1, 0)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with path.open("rb", buffering=0) as file:
            yield file
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def _read_all(file: Any, frames: np.ndarray, path: Path) -> None:
    part, done = memoryview(frames.data).cast("B"), 0
    # One read call returns at most 2 GiB.
    while done < len(part):
        count = file.readinto(part[done:])
        if not count:
            raise InputError(f"{path}: ended after {done} bytes, expected {len(part)}")
        done += count


def read_aip(tile: RawTile, info: TileInfo) -> np.ndarray:
    """Return the tile's mean over depth, float32 (A-line, B-scan), fly-back included.

    Samples that are not finite are left out of the mean. B-scans are read as many at a time as stay
    in a core's cache.
    """
    aip = np.empty((info.n_alines, info.ny), np.float32)
    frame_nbytes = 4 * info.n_alines * info.nz
    held = np.empty((max(1, CACHED_NBYTES // frame_nbytes), info.n_alines, info.nz), "<f4")
    start = 0
    for path, n_frames in image_files(tile.path, info):
        with _opened(path) as file:
            for first in range(0, n_frames, len(held)):
                frames = held[: min(len(held), n_frames - first)]
                _read_all(file, frames, path)
                stop = start + len(frames)
                aip[:, start:stop] = depth_mean(frames.transpose(2, 1, 0))
                start = stop
    return aip


def depth_mean(volume: Array) -> Array:
    """Return the mean over depth (axis 0) of a tile, float32; what is not finite is left out.

    Parameters
    ----------
    volume
        (z, A-line, B-scan), NumPy or CuPy.
    """
    xp = namespace(volume)
    finite = xp.isfinite(volume)
    if finite.all():
        mean = volume.mean(axis=0, dtype=xp.float64)
    else:
        total = xp.where(finite, volume, 0).sum(axis=0, dtype=xp.float64)
        mean = total / xp.maximum(finite.sum(axis=0), 1)
    plane: Array = xp.ascontiguousarray(mean, dtype=xp.float32)
    return plane
