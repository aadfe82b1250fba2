"""Learn the flat field of an acquisition from projections of its tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from linumpy.core.device import CPU, Device
from linumpy.core.errors import InputError
from linumpy.core.log import logger
from linumpy.flat.create_mosaic_grid_2d import CreateMosaicGrid2d
from linumpy.flat.crop_tiles import CropTiles
from linumpy.intensity.fix_illumination_3d import FlatField
from linumpy.io.grid import GridInfo, check_slice_ids, open_grid
from linumpy.slices.engine import Source, Stage, observe
from linumpy.slices.learn_models import evenly_spaced
from linumpy.slices.raw_source import (
    RawInput,
    SliceInput,
    finished_layout,
    open_source,
    with_masks_where_needed,
)
from linumpy.slices.register_stage import RegisterTiles
from linumpy.slices.tile_stages import FixIllumination3d
from linumpy.stage_params.flat import FlatParams
from linumpy.stage_params.slices import LEAST_SLICES, LearnParams


def picture_stages(params: FlatParams) -> list[Stage]:
    """Return the stages that make images of tiles, in order."""
    return [CreateMosaicGrid2d(params.project, params.resample), CropTiles(params.crop)]


def estimate_illumination(
    slices: Sequence[SliceInput],
    params: FlatParams,
    learn: LearnParams,
    *,
    device: Device = CPU,
) -> FlatField:
    """Learn the flat field from images of tiles, at the positions that they register to.

    Where neighbours overlap they show the same tissue, and differ by the flat field alone.

    Parameters
    ----------
    slices
        Mosaic grids, 3D or 2D, or raw slices, in order. When they hold more than
        `learn.max_tiles` tiles, evenly spaced slices are taken.
    params
        How images are made; a flat field serves images of one size.

    Raises
    ------
    InputError
        When slices differ in tile shape or voxel size, or too few tiles show signal.
    """
    check_slice_ids(
        [s for s in slices if not isinstance(s, RawInput)], assume_unit=params.resample.assume_unit
    )
    learner = FixIllumination3d()
    first: _Scan | None = None
    for slice_input in spread_slices(slices, learn.max_tiles, params.resample.assume_unit):
        source = open_source(slice_input, params.resample.assume_unit)
        scan = _Scan.of(source.layout)
        first = first or scan
        if scan != first:
            raise InputError(
                f"{slice_input}: {scan}, but {first} in the slices before; "
                "one flat field cannot serve them"
            )
        register = with_masks_where_needed(partial(_observe, source, learner, params, device))
        finished_layout(source, source.layout)
        learner.place(source.layout.slice_id, register.solve().corners_um())
    field: FlatField = learner.solve()
    logger.debug("flat field from %d tiles and %d overlaps", field.n_tiles, field.n_pairs)
    return field


def spread_slices(
    slices: Sequence[SliceInput], max_tiles: int, assume_unit: str
) -> list[SliceInput]:
    """Choose evenly spaced slices with at most about `max_tiles` tiles in all, three at least.

    Raises
    ------
    InputError
        When there is no slice.
    """
    if not slices:
        raise InputError("no slice to learn from")
    tiles = float(np.mean([_count_tiles(s, assume_unit) for s in slices]))
    return [slices[i] for i in evenly_spaced(len(slices), tiles, max_tiles, LEAST_SLICES)]


def _count_tiles(slice_input: SliceInput, assume_unit: str) -> int:
    if isinstance(slice_input, RawInput):
        return slice_input.n_tiles
    info = open_grid(slice_input, assume_unit=assume_unit).info
    return sum(tile.present for tile in info.tiles)


def _observe(
    source: Source, learner: FixIllumination3d, params: FlatParams, device: Device
) -> RegisterTiles:
    register = RegisterTiles()
    observe([register, learner], picture_stages(params), source, device=device)
    return register


@dataclass(frozen=True)
class _Scan:
    """What slices that share a flat field have in common."""

    tile_shape_px: tuple[int, int]
    pixel_um: tuple[float, float]

    @classmethod
    def of(cls, layout: GridInfo) -> _Scan:
        return cls(layout.tile_shape_px[1:], layout.voxel_um[1:])

    def __str__(self) -> str:
        (n1, n2), (p1, p2) = self.tile_shape_px, self.pixel_um
        return f"tiles of {n1} x {n2} pixels of {p1:g} x {p2:g} um"
