"""Parameters of learning and of all stages of a slice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from linumpy.params import build, param
from linumpy.stage_params.declaration import CHAINED, FUSED, GRIDS, IN_3D, MB, Declaration, Memory
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

    enabled: bool = param(True, "fix_curvature_enabled", "take the focal curvature off")
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
        1.0, "normalize_sigma", "smoothing before agarose is told from tissue, pixels", minimum=0
    )


@dataclass(frozen=True)
class LearnParams:
    """Parameters of learning."""

    max_tiles: int = param(
        400, "learn_max_tiles", "tiles to learn the acquisition's models from", minimum=2
    )


@dataclass(frozen=True)
class SliceParams:
    """Parameters of all stages of a slice."""

    resample: ResampleParams
    focal: FocalParams
    illumination: IlluminationParams
    stitch: StitchParams
    psf: PsfParams
    crop: CropParams
    attenuation: AttenuationParams
    normalize: NormalizeParams

    KINDS: ClassVar = (
        ResampleParams,
        FocalParams,
        IlluminationParams,
        StitchParams,
        PsfParams,
        CropParams,
        AttenuationParams,
        NormalizeParams,
    )

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> SliceParams:
        """Build all stages' parameters from pipeline names."""
        return cls(
            resample=build(ResampleParams, values),
            focal=build(FocalParams, values),
            illumination=build(IlluminationParams, values),
            stitch=build(StitchParams, values),
            psf=build(PsfParams, values),
            crop=build(CropParams, values),
            attenuation=build(AttenuationParams, values),
            normalize=build(NormalizeParams, values),
        )


STAGES = (
    Declaration(
        "learn_models",
        after=GRIDS,
        when=IN_3D,
        work="learned",
        label="slice",
        memory=Memory(145 * MB, tiles=1.5, raw_tiles=1.5, resting=-1),
        params=(ResampleParams, FocalParams, IlluminationParams, PsfParams, LearnParams),
        learns=(
            "detect_focal_curvature",
            "fix_illumination_3d",
            "compensate_psf",
            "scan_distortion",
        ),
    ),
    Declaration(
        "reconstruct_slice",
        after=(*GRIDS, "learn_models"),
        when=FUSED,
        per="slice",
        work="grid",
        label="slice",
        memory=Memory(330 * MB, tiles=1.0, raw_tiles=1.0, resting=1, slices=1.25),
        params=SliceParams.KINDS,
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
    Declaration(
        "detect_focal_curvature",
        after=("resample_mosaic_grid", "learn_models"),
        when=CHAINED,
        per="slice",
        work="resampled",
        label="slice",
        memory=Memory(250 * MB, tiles=0.5, resting=1),
        gpu_tasks=4,
        params=(FocalParams,),
    ),
    Declaration(
        "fix_illumination_3d",
        after=("detect_focal_curvature", "learn_models"),
        when=CHAINED,
        per="slice",
        work="resampled",
        label="slice",
        memory=Memory(250 * MB, tiles=0.5),
        params=(IlluminationParams,),
    ),
    Declaration(
        "aip_png",
        after=("fix_illumination_3d",),
        when=CHAINED,
        per="slice",
        work="resampled",
        label="slice",
        memory=Memory(250 * MB, tiles=0.5, pictures=4),
    ),
    Declaration(
        "register_tiles",
        after=("fix_illumination_3d", "learn_models"),
        when=CHAINED,
        per="slice",
        work="resampled",
        label="slice",
        memory=Memory(250 * MB, tiles=0.5, pictures=60),
        learns=("register_tiles",),
    ),
    Declaration(
        "stitch_3d_refined",
        after=("fix_illumination_3d", "register_tiles"),
        when=CHAINED,
        per="slice",
        work="resampled",
        label="slice",
        memory=Memory(250 * MB, tiles=0.5, resting=1, slices=1.25),
        params=(StitchParams,),
    ),
    Declaration(
        "crop_3d_mosaic_below_interface",
        after=("stitch_3d_refined", "compensate_psf_from_model", "compensate_psf_model_free"),
        when=CHAINED,
        per="slice",
        work="resampled",
        label="slice",
        memory=Memory(200 * MB, slices=2.5),
        params=(CropParams,),
        learns=("crop_3d_mosaic_below_interface",),
    ),
    Declaration(
        "normalize_intensities_per_slice",
        after=("crop_3d_mosaic_below_interface", "compensate_attenuation_inplace"),
        when=CHAINED,
        per="slice",
        work="resampled",
        label="slice",
        memory=BLOCKS,
        params=(NormalizeParams,),
        learns=("normalize_intensities_per_slice",),
    ),
)
