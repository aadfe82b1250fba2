"""Parameters of learning and of all stages of a slice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from linumpy.params import ParamsGroup, param
from linumpy.stage_params.declaration import (
    CHAINED,
    CHOSEN,
    FUSED,
    GRIDS,
    IN_3D,
    MB,
    Declaration,
    Memory,
)
from linumpy.stage_params.intensity import BLOCKS, AttenuationParams, PsfParams

BLENDING_METHODS = ("linear", "average", "none")


@dataclass(frozen=True)
class ResampleParams:
    """Parameters of resampling."""

    resolution_um: float = param(
        10.0, "resolution", "voxel size to work at, um; -1 keeps the grid's", minimum=-1
    )
    assume_unit: str = param(
        "", "assume_unit", "unit of grids whose metadata has none, such as millimeter"
    )


@dataclass(frozen=True)
class FocalParams:
    """Parameters of the focal curvature."""

    enabled: bool = param(True, "fix_curvature_enabled", "correct the focal curvature")
    sigma_xy_px: int = param(
        3, "fix_curvature_sigma_xy", "lateral box of the interface finder, pixels", minimum=1
    )
    sigma_z_px: float = param(
        2.0, "fix_curvature_sigma_z", "axial sigma of the interface finder, voxels", minimum=0.5
    )


@dataclass(frozen=True)
class IlluminationParams:
    """Parameters of the illumination correction."""

    enabled: bool = param(True, "fix_illum_enabled", "divide by the learned flat field")


@dataclass(frozen=True)
class StitchParams:
    """Parameters of stitching."""

    blending_method: str = param(
        "linear", "stitch_blending_method", "how overlaps are blended", choices=BLENDING_METHODS
    )
    min_tile_brightness: float = param(
        0.5,
        "stitch_min_tile_brightness",
        "tiles dimmer than this share of the others, by what neighbours show of one place, are "
        "left out; 0 keeps all",
        minimum=0,
        maximum=1,
    )


@dataclass(frozen=True)
class CropParams:
    """Parameters of cropping."""

    depth_um: float = param(
        600.0, "crop_interface_out_depth", "depth kept below the interface, um", minimum=1
    )
    flat: bool = param(
        False, "crop_interface_flat", "cut at one plane, not along the surface of the interface"
    )
    sigma_z_px: float = param(
        2.0, "crop_interface_sigma_z", "axial sigma of the interface finder, voxels", minimum=0.5
    )
    max_depth_fraction: float = param(
        0.5,
        "crop_interface_max_depth_fraction",
        "share of the depth, from the top, where the interface is sought",
        minimum=0.05,
        maximum=1,
    )


@dataclass(frozen=True)
class NormalizeParams:
    """Parameters of normalisation."""

    percentile_max: float = param(
        99.9,
        "clip_percentile_upper",
        "percentile of each plane that values are capped at",
        minimum=50,
        maximum=100,
    )
    sigma_px: float = param(
        1.0,
        "normalize_sigma",
        "smoothing before agarose is separated from tissue, pixels",
        minimum=0,
    )


LEAST_SLICES = 3
"""Slices that models are learned from, where there are so many: the axial response needs faces at
several depths."""

FIRST_TILES = 64
"""Tiles of the first focal surface, which flattens tiles for their registration alone."""

LEAST_GPU_BYTES = 27_000_000_000
"""Device memory for as many processes as a group of slices gains by (`core.worker_process`)."""


@dataclass(frozen=True)
class LearnParams:
    """Parameters of learning."""

    max_tiles: int = param(
        192,
        "learn_max_tiles",
        "tiles to learn the acquisition's models from; of three slices at least",
        minimum=2,
    )


@dataclass(frozen=True)
class SliceParams(ParamsGroup):
    """Parameters of all stages of a slice."""

    resample: ResampleParams
    focal: FocalParams
    illumination: IlluminationParams
    stitch: StitchParams
    psf: PsfParams
    crop: CropParams
    attenuation: AttenuationParams
    normalize: NormalizeParams


def _on_tiles(name: str, *after: str, memory: Memory, **options: Any) -> Declaration:
    """Declare a stage of the chained flow that reads resampled tiles."""
    return Declaration(
        name,
        after=after,
        when=CHAINED,
        per="slice",
        work="resampled",
        label="slice",
        memory=memory,
        **options,
    )


_TILES = Memory(250 * MB, tiles=0.5)
LEARNED = (
    _on_tiles(
        "detect_focal_curvature",
        *("resample_mosaic_grid", "learn_models"),
        memory=Memory(250 * MB, tiles=0.5, resting=1),
        gpu_tasks=4,
        params=(FocalParams,),
    ),
    _on_tiles(
        "fix_illumination_3d",
        *("detect_focal_curvature", "learn_models"),
        memory=_TILES,
        params=(IlluminationParams,),
    ),
)
"""Stages that correct tiles by what `learn_models` learned for them, in the order of the chain; the
first flattens the tiles that the others are learned from."""

CORRECTED = LEARNED[-1].name

STAGES = (
    Declaration(
        "learn_models",
        after=CHOSEN,
        when=IN_3D,
        work="learned",
        label="brain",
        memory=Memory(145 * MB, tiles=1.5, raw_tiles=1.5, resting=-1),
        params=(
            ResampleParams,
            *(kind for stage in LEARNED for kind in stage.params),
            PsfParams,
            LearnParams,
        ),
        learns=(*(stage.name for stage in LEARNED), "compensate_psf", "scan_distortion"),
    ),
    Declaration(
        "reconstruct_slice",
        after=(*GRIDS, "learn_models"),
        when=FUSED,
        per="group",
        work="grid",
        label="slice",
        memory=Memory(300 * MB, tiles=1.0, raw_tiles=1.0, resting=1, slices=1.25),
        # Pairs of the slices that are there are measured beside it.
        gpu_tasks=2,
        gpu_forks=1,
        least_gpu_bytes=LEAST_GPU_BYTES,
        params=SliceParams.kinds(),
    ),
    Declaration(
        "resample_mosaic_grid",
        after=GRIDS,
        when=CHAINED,
        per="slice",
        work="grid",
        label="slice",
        memory=Memory(250 * MB, tiles=2.0),
        gpu_tasks=6,
        params=(ResampleParams,),
    ),
    *LEARNED,
    _on_tiles("aip_png", CORRECTED, memory=Memory(250 * MB, tiles=0.5, pictures=4)),
    _on_tiles(
        "register_tiles",
        *(CORRECTED, "learn_models"),
        memory=Memory(250 * MB, tiles=0.5, pictures=60),
        learns=("register_tiles",),
    ),
    _on_tiles(
        "stitch_3d_refined",
        *(CORRECTED, "register_tiles"),
        memory=Memory(250 * MB, tiles=0.5, resting=1, slices=1.25),
        params=(StitchParams,),
    ),
    _on_tiles(
        "crop_3d_mosaic_below_interface",
        *("stitch_3d_refined", "compensate_psf_from_model", "compensate_psf_model_free"),
        memory=Memory(200 * MB, slices=2.5),
        params=(CropParams,),
        learns=("crop_3d_mosaic_below_interface",),
    ),
    _on_tiles(
        "normalize_intensities_per_slice",
        *("crop_3d_mosaic_below_interface", "compensate_attenuation_inplace"),
        memory=BLOCKS,
        params=(NormalizeParams,),
        learns=("normalize_intensities_per_slice",),
    ),
)
