"""Parameters of the 2.5D flow: projections of tiles, stitched and stacked as images."""

from __future__ import annotations

from dataclasses import dataclass

from linumpy.params import ParamsGroup, param
from linumpy.stage_params.brain import RegisterParams, RigidParams
from linumpy.stage_params.declaration import CONFIG, GRIDS, IN_2D, MB, SHIFTS, Declaration, Memory
from linumpy.stage_params.slices import (
    IlluminationParams,
    LearnParams,
    ResampleParams,
    StitchParams,
)


@dataclass(frozen=True)
class ProjectParams:
    """Parameters of the projection along depth."""

    top_um: float = param(
        0.0, "projection_top", "depth of the first sample that is projected, um", minimum=0
    )
    depth_um: float = param(
        0.0, "projection_depth", "depth range that is projected, um; 0 for all below", minimum=0
    )


@dataclass(frozen=True)
class CropTilesParams:
    """Parameters of cropping tiles; x runs along axis 1."""

    xmin: int = param(0, "crop_tiles_xmin", "first A-line of a tile that is kept, px", minimum=0)
    xmax: int = param(
        0, "crop_tiles_xmax", "A-line before which a tile ends, px; 0 keeps its end", minimum=0
    )
    ymin: int = param(0, "crop_tiles_ymin", "first B-scan of a tile that is kept, px", minimum=0)
    ymax: int = param(
        0, "crop_tiles_ymax", "B-scan before which a tile ends, px; 0 keeps its end", minimum=0
    )


@dataclass(frozen=True)
class Stack2dParams(RigidParams):
    """Parameters of aligning and stacking images."""

    align: bool = param(
        True, "stack_2d_align", "move the slices of the 2.5D flow to where neighbours look alike"
    )

    def registration(self) -> RegisterParams:
        """Return the same for `brain.register_slices`: images have no depth."""
        return RegisterParams(
            first_plane=0,
            max_translation_px=self.max_translation_px,
            transform=self.transform,
            max_rotation_deg=self.max_rotation_deg,
            expected_z=True,
        )


@dataclass(frozen=True)
class FlatParams(ParamsGroup):
    """Parameters of all stages of an image of one slice."""

    resample: ResampleParams
    project: ProjectParams
    crop: CropTilesParams
    illumination: IlluminationParams
    stitch: StitchParams


STAGES = (
    Declaration(
        "estimate_illumination",
        after=GRIDS,
        when={**IN_2D, "fix_illum_enabled": True},
        work="learned",
        label="slice",
        memory=Memory(200 * MB, tiles=2.0, raw_tiles=1.5),
        params=(ResampleParams, ProjectParams, CropTilesParams, LearnParams),
        learns=("fix_illumination_3d",),
    ),
    Declaration(
        "reconstruct_slice_2d",
        after=(*GRIDS, "estimate_illumination"),
        when=IN_2D,
        per="slice",
        work="grid",
        label="slice",
        memory=Memory(250 * MB, tiles=2.0, raw_tiles=1.5, pictures=40),
        params=FlatParams.kinds(),
    ),
    Declaration(
        "stack_slices_2d",
        after=("reconstruct_slice_2d", *SHIFTS, *CONFIG),
        when=IN_2D,
        work="items",
        label="brain",
        memory=Memory(250 * MB, pictures=40),
        params=(Stack2dParams,),
    ),
)
