"""Memory that each process requests and takes, on the host and on a GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from linumpy.brain.stacking import BLOCK_PX, GPU_NBYTES_A_PX, GPU_SHARE
from linumpy.io.slice_layout import SHARD_PX
from linumpy.planning.plan_params import PlanParams
from linumpy.planning.sizes import Sizes
from linumpy.planning.survey import SAMPLE_BYTES, SliceScan, Survey
from linumpy.slices.store import DEFAULT_BUDGET_BYTES
from linumpy.stage_params.declaration import MB
from linumpy.stage_params.declared import STAGES
from linumpy.stage_params.slices import FIRST_TILES, LEAST_SLICES

GIB = 1 << 30

REQUESTS = {"light": 1 * GIB, "slice": 6 * GIB, "brain": 8 * GIB}
"""Bytes that a task asks for at its first attempt, by label, as in ``conf/base.config``."""

CORES_ASKED = 1

READ_RAW = ("create_mosaic_grid_3d", "learn_models")
"""Processes that read raw tiles where there are any, also where grids are made of them."""

CUDA_BYTES = 600 * MB
GROUP_BYTES = 2 * GIB
"""Most bytes of the tiles that a GPU reads at once (`linumpy.slices.gpu_sweep.GROUP_NBYTES`)."""

LONE_GROUP, SEVERAL_GROUPS = 8.0, 12.2
"""Device memory over a group's bytes, with one group in flight and with several, as measured."""

LEAST_TILES_ON_DEVICE = 6.0
_ON_TILES = ("grid", "learned")
STACKING = ("stack_slices_motor", "stack_motor_only")
"""Processes that put blocks of a brain together (`linumpy.brain.stacking.block_sides`)."""

MASK = 1.25
"""A tile or volume with its mask, over its samples."""


def host_bytes(
    name: str,
    survey: Survey,
    sizes: Sizes,
    params: PlanParams,
    cores: int = CORES_ASKED,
    asked_bytes: int = 0,
) -> int:
    """Return the memory that a task of a process takes at most, on cores that asked for so much."""
    memory = STAGES[name].memory
    tile = max(scan.tile_bytes for scan in survey.slices)
    tiles = memory.tiles
    if survey.kind == "raw" and (params.straight or name in READ_RAW):
        tiles += memory.raw_tiles
    largest = max(sizes.slices, key=lambda size: size.volume_bytes)
    planes, *lateral = sizes.brain_shape
    planes = SAMPLE_BYTES * min(SHARD_PX, planes)
    layer = planes * lateral[0] * lateral[1]
    block = planes * min(BLOCK_PX, lateral[0]) * min(BLOCK_PX, lateral[1])
    every_plane = sum(size.plane_px for size in sizes.slices)
    # On a GPU cores have no tiles of their own.
    cores = CORES_ASKED if params["use_gpu"] and STAGES[name].on_gpu else cores
    # Fewer threads where those of all cores would take more (`linumpy.core.device.tile_workers`).
    in_flight = min(cores * tiles * tile, max(tiles * tile, asked_bytes / 2))
    return int(
        memory.base_bytes
        + in_flight
        + _resting_bytes(memory.resting, sizes, survey, params)
        + memory.slices * largest.volume_bytes
        + memory.blocks * block
        + memory.layers * layer
        + memory.pictures * SAMPLE_BYTES * largest.plane_px
        + memory.all_pictures * SAMPLE_BYTES * every_plane
    )


def _resting_bytes(count: int, sizes: Sizes, survey: Survey, params: PlanParams) -> float:
    if not count:
        return 0.0
    if count < 0:
        resting = MASK * first_tiles(survey, params) * sizes.slices[0].resampled_tile_bytes
    else:
        resting = MASK * max(size.resampled_bytes for size in sizes.slices)
    return min(resting, DEFAULT_BUDGET_BYTES)


def learned_tiles(survey: Survey, params: PlanParams) -> int:
    """Return how many tiles models are learned from: those of evenly spaced whole slices."""
    return sum(scan.n_tiles for scan in learned(survey, params))


def first_tiles(survey: Survey, params: PlanParams) -> int:
    """Return how many of these are needed twice: those of the first focal surface."""
    return sum(scan.n_tiles for scan in _spaced(learned(survey, params), FIRST_TILES, 1))


def learned(survey: Survey, params: PlanParams) -> list[SliceScan]:
    """Return the slices that models are learned from."""
    return _spaced(survey.slices, int(params["learn_max_tiles"]), LEAST_SLICES)


def _spaced(scans: Sequence[SliceScan], max_tiles: int, least: int) -> list[SliceScan]:
    from linumpy.slices.learn_models import evenly_spaced

    tiles = sum(scan.n_tiles for scan in scans) / len(scans)
    return [scans[place] for place in evenly_spaced(len(scans), tiles, max_tiles, least)]


@dataclass(frozen=True)
class DeviceNeed:
    """Device memory of a task.

    Attributes
    ----------
    least_bytes
        Below this its batches do not fit.
    wanted_bytes
        What it takes where it is free.
    """

    least_bytes: int
    wanted_bytes: int


def device_need(name: str, survey: Survey, sizes: Sizes) -> DeviceNeed | None:
    """Return what a task takes on a GPU; None for a process that uses none."""
    process = STAGES[name]
    if not process.on_gpu:
        return None
    if name in STACKING:
        plane_px = math.prod(sizes.brain_shape[1:])
        block_px = min(plane_px, BLOCK_PX**2)
        return DeviceNeed(
            *(int(CUDA_BYTES + GPU_NBYTES_A_PX * px / GPU_SHARE) for px in (block_px, plane_px))
        )
    scan = survey.largest
    size = next(s for s in sizes.slices if s.slice_id == scan.slice_id)
    if process.work in _ON_TILES:
        piece, whole = scan.tile_bytes, scan.grid_bytes
    elif process.work == "resampled":
        piece, whole = size.resampled_tile_bytes, size.resampled_bytes
    else:
        piece = SAMPLE_BYTES * SHARD_PX**2 * max(1, min(SHARD_PX, size.shape[0]))
        whole = size.volume_bytes
    group = min(GROUP_BYTES, whole)
    factor = LONE_GROUP if group == whole else SEVERAL_GROUPS
    resting = MASK * size.resampled_bytes if process.work in _ON_TILES else 0
    least = CUDA_BYTES + LEAST_TILES_ON_DEVICE * piece
    return DeviceNeed(int(least), int(max(least, CUDA_BYTES + factor * group + resting)))
