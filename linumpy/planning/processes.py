"""The pipeline's processes: their labels, where they compute, and the memory that they take.

Figures of memory were fitted to measured peaks (docs/scale.md): a process takes a base, so many
tiles a core, tiles that rest between passes up to the engine's budget, and so many slices, layers
of shards of the brain or pictures.
"""

from __future__ import annotations

from dataclasses import dataclass

from linumpy.brain.stacking import BLOCK_PX
from linumpy.io.slice_layout import SHARD_PX
from linumpy.planning.plan_params import PlanParams
from linumpy.planning.sizes import Sizes
from linumpy.planning.survey import SAMPLE_BYTES, Survey
from linumpy.slices.store import DEFAULT_BUDGET_BYTES

GIB = 1 << 30
MB = 1_000_000

REQUESTS = {"light": 1 * GIB, "slice": 6 * GIB, "brain": 8 * GIB}
"""Bytes that a task asks for at its first attempt, by label, as in ``conf/base.config``."""

CORES_ASKED = 1

CUDA_BYTES = 600 * MB
GROUP_BYTES = 2 * GIB
"""Most bytes of the tiles that a GPU reads at once (`linumpy.slices.gpu_sweep.GROUP_NBYTES`)."""

LONE_GROUP, SEVERAL_GROUPS = 8.0, 12.2
"""Device memory over a group's bytes, with one group in flight and with several, as measured."""

LEAST_TILES_ON_DEVICE = 6.0
MASK = 1.25
"""A tile or volume with its mask, over its samples."""


@dataclass(frozen=True)
class Memory:
    """Host memory of a task: a base, and how many of each thing it holds.

    Attributes
    ----------
    base_bytes
        The interpreter with what it imports.
    tiles, raw_tiles
        Tiles at the microscope's voxel, a core; more of them when they are read raw.
    resting
        Tiles of this many slices at the working voxel, up to the budget of the engine's store;
        -1 for those that are learned from.
    slices
        Slice volumes.
    blocks, layers
        Blocks of the brain, and whole layers of it, one shard deep.
    pictures, all_pictures
        Pictures of one slice, and of each.
    """

    base_bytes: int
    tiles: float = 0.0
    raw_tiles: float = 0.0
    resting: int = 0
    slices: float = 0.0
    blocks: float = 0.0
    layers: float = 0.0
    pictures: float = 0.0
    all_pictures: float = 0.0


@dataclass(frozen=True)
class Process:
    """One process of the pipeline.

    Attributes
    ----------
    label
        In its module; decides what it asks for.
    work
        What its time grows with: ``grid``, ``resampled``, ``slices``, ``brain`` (bytes of samples),
        ``items`` (slices), or ``table`` for what takes no longer with more.
    on_gpu
        Whether it computes on a GPU where one is asked for.
    gpu_tasks
        How many of its tasks share a GPU.
    """

    label: str
    work: str
    memory: Memory
    on_gpu: bool = True
    gpu_tasks: int = 1


_TABLE = Process("light", "table", Memory(120 * MB), on_gpu=False)
_FIGURE = Process("light", "table", Memory(250 * MB), on_gpu=False)
_BLOCKS = Memory(200 * MB, resting=0, slices=1.5)

PROCESSES: dict[str, Process] = {
    "estimate_xy_shift_from_metadata": _TABLE,
    "generate_slice_config": _TABLE,
    "detect_rehoming": _FIGURE,
    "create_mosaic_grid_3d": Process("slice", "grid", Memory(90 * MB, tiles=8.5)),
    "learn_models": Process(
        "slice", "grid", Memory(145 * MB, tiles=1.5, raw_tiles=1.5, resting=-1)
    ),
    "reconstruct_slice": Process(
        "slice", "grid", Memory(330 * MB, tiles=1.0, raw_tiles=1.0, resting=1, slices=1.25)
    ),
    "resample_mosaic_grid": Process("slice", "grid", Memory(250 * MB, tiles=2.0), gpu_tasks=6),
    "detect_focal_curvature": Process(
        "slice", "resampled", Memory(250 * MB, tiles=0.5, resting=1), gpu_tasks=4
    ),
    "fix_illumination_3d": Process("slice", "resampled", Memory(250 * MB, tiles=0.5)),
    "aip_png": Process("slice", "resampled", Memory(250 * MB, tiles=0.5, pictures=4)),
    "register_tiles": Process("slice", "resampled", Memory(250 * MB, tiles=0.5, pictures=60)),
    "stitch_3d_refined": Process(
        "slice", "resampled", Memory(250 * MB, tiles=0.5, resting=1, slices=1.25)
    ),
    "compensate_psf_from_model": Process("slice", "resampled", _BLOCKS),
    "compensate_psf_model_free": Process("slice", "resampled", _BLOCKS),
    "crop_3d_mosaic_below_interface": Process("slice", "resampled", Memory(200 * MB, slices=2.5)),
    "compensate_attenuation_inplace": Process("slice", "resampled", _BLOCKS),
    "normalize_intensities_per_slice": Process("slice", "resampled", _BLOCKS),
    "estimate_illumination": Process("slice", "grid", Memory(200 * MB, tiles=2.0, raw_tiles=1.5)),
    "reconstruct_slice_2d": Process(
        "slice", "grid", Memory(250 * MB, tiles=2.0, raw_tiles=1.5, pictures=40)
    ),
    "stack_slices_2d": Process("brain", "items", Memory(250 * MB, pictures=40)),
    "assess_slice_quality": Process("brain", "slices", Memory(110 * MB, slices=2.5)),
    "register_slices": Process("brain", "slices", Memory(90 * MB, slices=4.0)),
    "refine_manual_transforms": Process("brain", "slices", Memory(200 * MB, slices=4.0)),
    "export_manual_align": Process("brain", "slices", Memory(200 * MB, slices=2.0), on_gpu=False),
    "auto_exclude_slices": _TABLE,
    "interpolate_missing_slice": Process("slice", "items", Memory(300 * MB, slices=10.0)),
    "finalise_interpolation": _TABLE,
    "align_mosaics_3d_from_shifts": Process("slice", "resampled", Memory(200 * MB, slices=2.5)),
    "stack_slices_motor": Process("brain", "slices", Memory(155 * MB, blocks=2.5, layers=0.3)),
    "correct_bias_field": Process("brain", "brain", Memory(350 * MB, blocks=2.2, layers=0.3)),
    "align_to_ras": Process("brain", "brain", Memory(800 * MB, blocks=2.5, layers=0.3)),
    "check_atlas": Process("brain", "table", Memory(600 * MB), on_gpu=False),
    "download_allen": Process("brain", "table", Memory(600 * MB), on_gpu=False),
    "convert_omezarr_to_nifti": Process(
        "brain", "brain", Memory(90 * MB, layers=0.1), on_gpu=False
    ),
    "analyze_shifts": _FIGURE,
    "analyze_registration_transforms": _FIGURE,
    "analyze_acquisition_rotation": _FIGURE,
    "compare_stitching": _FIGURE,
    "stitch_motor_only": Process(
        "slice", "grid", Memory(330 * MB, tiles=1.0, resting=1, slices=1.25)
    ),
    "stack_motor_only": Process("brain", "slices", Memory(155 * MB, blocks=2.5, layers=0.3)),
    "evaluate_run": Process("brain", "grid", Memory(500 * MB, tiles=2.0, slices=8.0), on_gpu=False),
    "generate_pipeline_report": Process(
        "brain", "items", Memory(190 * MB, all_pictures=9), on_gpu=False
    ),
}
"""All processes by name."""


def host_bytes(name: str, survey: Survey, sizes: Sizes, params: PlanParams, cores: int = 1) -> int:
    """Return the memory that a task of a process takes at most."""
    memory = PROCESSES[name].memory
    tile = max(scan.tile_bytes for scan in survey.slices)
    tiles = memory.tiles
    if survey.kind == "raw" and (params.straight or name == "create_mosaic_grid_3d"):
        tiles += memory.raw_tiles
    largest = max(sizes.slices, key=lambda size: size.volume_bytes)
    planes, *lateral = sizes.brain_shape
    planes = SAMPLE_BYTES * min(SHARD_PX, planes)
    layer = planes * lateral[0] * lateral[1]
    block = planes * min(BLOCK_PX, lateral[0]) * min(BLOCK_PX, lateral[1])
    every_plane = sum(size.plane_px for size in sizes.slices)
    return int(
        memory.base_bytes
        + cores * tiles * tile
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
        resting = MASK * learned_tiles(survey, params) * sizes.slices[0].resampled_tile_bytes
    else:
        resting = MASK * max(size.resampled_bytes for size in sizes.slices)
    return min(resting, DEFAULT_BUDGET_BYTES)


def learned_tiles(survey: Survey, params: PlanParams) -> int:
    """Return how many tiles models are learned from: those of evenly spaced whole slices."""
    usual = max(1, round(survey.n_tiles / len(survey.slices)))
    most = int(params["learn_max_tiles"])
    return min(survey.n_tiles, max(1, most // usual) * usual)


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
    process = PROCESSES[name]
    if not process.on_gpu:
        return None
    scan = survey.largest
    size = next(s for s in sizes.slices if s.slice_id == scan.slice_id)
    if process.work == "grid":
        piece, whole = scan.tile_bytes, scan.grid_bytes
    elif process.work == "resampled":
        piece, whole = size.resampled_tile_bytes, size.resampled_bytes
    else:
        piece = SAMPLE_BYTES * SHARD_PX**2 * max(1, min(SHARD_PX, size.shape[0]))
        whole = size.volume_bytes
    group = min(GROUP_BYTES, whole)
    factor = LONE_GROUP if group == whole else SEVERAL_GROUPS
    resting = MASK * size.resampled_bytes if process.work == "grid" else 0
    least = CUDA_BYTES + LEAST_TILES_ON_DEVICE * piece
    return DeviceNeed(int(least), int(max(least, CUDA_BYTES + factor * group + resting)))
