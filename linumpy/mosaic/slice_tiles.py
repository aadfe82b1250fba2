"""Tiles of one slice on their grid: the interface of all raw formats, and preparation."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from linumpy.core.device import Array, namespace
from linumpy.core.errors import InputError
from linumpy.geometry.resample import (
    apply_axis_weights,
    resample_masked,
    resampled_length,
    resampling_matrices,
)
from linumpy.io.grid import GridInfo
from linumpy.io.omezarr import Shape, Triple
from linumpy.io.sample_checks import GARBLED, LINES, check_samples, is_lines
from linumpy.io.stage_axes import parse_stage_to_array
from linumpy.mosaic.fixed_lines import without_lines
from linumpy.mosaic.grid_options import NATIVE_RESOLUTION, GridOptions

logger = logging.getLogger("linumpy")

Key = tuple[int, int]
"""Place of a tile in the grid: index along axis 1 and along axis 2."""

DARK_CONTRAST = 0.1
SATURATED_SHARE = 0.01


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


def prepare_tile(
    volume: Array, matrices: list[np.ndarray | None], lines: np.ndarray | None = None
) -> PreparedTile:
    """Mask what no microscope writes, remove its own reflections, note what is odd, and resample.

    Flags: those of `linumpy.io.sample_checks.check_samples`, whose samples become 0;
    ``lines:<planes>`` for `lines`, which are interpolated; ``dark`` for a tile that shows
    nothing, its mean the same at every depth within 10 %; ``saturated`` when
    more than 1 % of the samples have the largest value.

    Parameters
    ----------
    volume
        float32 tile (z, axis 1, axis 2), NumPy or CuPy.
    matrices
        As from `linumpy.geometry.resample.resampling_matrices`.
    lines
        Planes as from `linumpy.mosaic.fixed_lines.fixed_lines`; None for none.
    """
    xp = namespace(volume)
    found = check_samples(volume)
    flags = list(found.flags)
    if found.usable is not None:
        volume = xp.where(found.usable, volume, volume.dtype.type(0))
    usable = found.usable
    if lines is not None and lines.any():
        flags.append(f"{LINES}:{int(lines.sum())}")
        volume, usable = without_lines(volume, lines, usable)
    profile = volume.mean(axis=(1, 2), dtype=xp.float64)
    is_flat = float(profile.max() - profile.min()) <= DARK_CONTRAST * float(profile.mean())
    if is_flat and GARBLED not in flags:
        flags.append("dark")
    top = volume.max()
    at_top = int(xp.count_nonzero(volume == top))
    if float(top) > 0 and at_top > max(1, SATURATED_SHARE * volume.size):
        flags.append("saturated")
    valid = None
    if usable is not None:
        data, valid = resample_masked(volume, usable, matrices)
    else:
        data = apply_axis_weights(volume, matrices)
    bright = float(top) != 0 or bool(data.any())
    return PreparedTile(data, valid, TileNotes(tuple(flags), bright))


class Located(Protocol):
    """A tile on disk."""

    @property
    def path(self) -> Path:
        """File or folder, for messages."""


@dataclass(frozen=True)
class SliceTiles(ABC):
    """The tiles of a slice on their grid, headers checked and samples not yet read.

    A raw format derives a class that reads a tile.

    Attributes
    ----------
    root
        Folder that was opened, for messages.
    info
        Geometry of the grid. Flags of single tiles are set by `finish`.
    tiles
        The tile of each place; holes have none.
    matrices
        As from `linumpy.geometry.resample.resampling_matrices`.
    """

    root: Path
    info: GridInfo
    tiles: Mapping[Key, Located]
    matrices: list[np.ndarray | None]

    @property
    def dtype(self) -> str:
        """Of the samples that are written."""
        return "float32"

    @property
    def has_holes(self) -> bool:
        """Whether places of the grid lack a tile."""
        return len(self.tiles) < len(self.info.tiles)

    def keys(self) -> list[Key]:
        """All places that have a tile, row by row."""
        return sorted(self.tiles)

    @abstractmethod
    def read(self, key: Key) -> np.ndarray:
        """Read a tile (z, axis 1, axis 2) from disk; called from several threads."""

    def prepare(self, key: Key, volume: Array) -> PreparedTile:
        """Mask, flag and resample a tile; see `prepare_tile`."""
        return prepare_tile(volume, self.matrices)

    def finish(self, found: Mapping[Key, TileNotes]) -> GridInfo:
        """Return the geometry with the flags of all tiles, and warn of odd ones.

        Raises
        ------
        InputError
            When all samples of the slice are 0.
        """
        slice_id = self.info.slice_id
        if not any(notes.bright for notes in found.values()):
            raise InputError(
                f"{self.root}: empty slice z{slice_id:02d}, all samples of its "
                f"{len(self.tiles)} tiles are 0; expected amplitudes"
            )
        for key, notes in sorted(found.items()):
            odd = [flag for flag in notes.flags if flag != "dark" and not is_lines(flag)]
            if odd:
                logger.warning("%s: flagged %s", self.tiles[key].path, ", ".join(odd))
        dark = sum("dark" in notes.flags for notes in found.values())
        logger.debug("slice z%02d: %d of %d tiles are dark", slice_id, dark, len(found))
        tiles = tuple(
            replace(tile, flags=(*tile.flags, *found[tile.ix, tile.iy].flags))
            if (tile.ix, tile.iy) in found
            else tile
            for tile in self.info.tiles
        )
        return replace(self.info, tiles=tiles)


def check_grid_options(options: GridOptions) -> None:
    """Raise `InputError` for options that no grid can have."""
    parse_stage_to_array(options.stage_to_array)
    if options.resolution_um != NATIVE_RESOLUTION and not 0 < options.resolution_um < np.inf:
        raise InputError(
            f"--resolution is {options.resolution_um}, expected more than 0 um, or -1 to keep "
            "the voxels of the microscope"
        )
    if not 0 <= options.galvo_threshold <= 1:
        raise InputError(f"--galvo_threshold is {options.galvo_threshold}, expected 0 to 1")


def resampled_grid(
    shape: Shape, voxel_um: Triple, options: GridOptions, **geometry: Any
) -> tuple[GridInfo, list[np.ndarray | None]]:
    """Return the geometry of a slice's grid and the matrices that resample its tiles.

    Parameters
    ----------
    shape, voxel_um
        Of a tile as read: z, axis 1, axis 2.
    options
        Resolution and stage axes.
    geometry
        Further fields of `GridInfo`.
    """
    target_um, size = voxel_um, shape
    if options.resolution_um != NATIVE_RESOLUTION:
        target_um = (float(options.resolution_um),) * 3
        nz, nx, ny = (
            resampled_length(n, source, target)
            for n, source, target in zip(shape, voxel_um, target_um, strict=True)
        )
        size = (nz, nx, ny)
    info = GridInfo(
        tile_shape_px=size, voxel_um=target_um, stage_to_array=options.stage_to_array, **geometry
    )
    return info, resampling_matrices(shape, voxel_um, target_um)
