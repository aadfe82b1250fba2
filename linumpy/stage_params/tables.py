"""Stages on tables, mosaic grids, diagnostics and the report."""

from __future__ import annotations

from linumpy.stage_params.declaration import (
    BRAIN,
    CHOSEN,
    CONFIG,
    FIGURE,
    GRIDS,
    IN_3D,
    MB,
    REGISTRATION,
    SHIFTS,
    VOLUMES,
    Declaration,
    Memory,
)
from linumpy.stage_params.gaps import RehomingParams, ShiftAnalysisParams
from linumpy.stage_params.quality import RotationDiagnosticParams

_DIAGNOSE = {**IN_3D, "diagnostic_mode": True}
# Its results are the chained slices' models; the images of their tiles come with them.
_TILE_MODELS = (*VOLUMES, "aip_png")
_RESULTS = (
    "estimate_illumination",
    "aip_png",
    "stack_slices_2d",
    "export_manual_align",
    *BRAIN,
    "align_to_ras",
    "analyze_shifts",
    "analyze_registration_transforms",
    "analyze_acquisition_rotation",
    "compare_stitching",
    "stack_motor_only",
)

BEFORE = (
    Declaration("estimate_xy_shift_from_metadata", when={"shifts_found": False}, on_gpu=False),
    Declaration("generate_slice_config", when={"config_found": False}, on_gpu=False),
    Declaration(
        "detect_rehoming",
        after=(*SHIFTS[:1], *CONFIG[:1]),
        when={"detect_rehoming": True},
        memory=FIGURE,
        on_gpu=False,
        params=(RehomingParams,),
        learns=("rehoming_report",),
    ),
    Declaration(
        "create_mosaic_grid_3d",
        after=CHOSEN,
        when={"raw": True, "straight": False},
        per="slice",
        work="grid",
        label="slice",
        memory=Memory(90 * MB, tiles=8.5),
    ),
)

AFTER = (
    Declaration(
        "analyze_shifts",
        after=SHIFTS,
        when={**IN_3D, "analyze_shifts": True},
        memory=FIGURE,
        on_gpu=False,
        params=(ShiftAnalysisParams,),
    ),
    Declaration(
        "analyze_registration_transforms",
        after=REGISTRATION,
        when=_DIAGNOSE,
        memory=FIGURE,
        on_gpu=False,
        params=(RotationDiagnosticParams,),
    ),
    *(
        Declaration(name, after=_TILE_MODELS, when=_DIAGNOSE, memory=FIGURE, on_gpu=False)
        for name in ("analyze_acquisition_rotation", "compare_stitching")
    ),
    Declaration(
        "stitch_motor_only",
        after=GRIDS,
        when={**_DIAGNOSE, "straight": False},
        per="slice",
        work="grid",
        label="slice",
        memory=Memory(330 * MB, tiles=1.0, resting=1, slices=1.25),
    ),
    Declaration(
        "stack_motor_only",
        after=(*VOLUMES, *SHIFTS, "finalise_interpolation"),
        when=_DIAGNOSE,
        work="slices",
        label="brain",
        memory=Memory(155 * MB, blocks=2.5, layers=0.3),
        parts=True,
    ),
    Declaration(
        "evaluate_run",
        after=_RESULTS,
        when={"truth": True},
        work="grid",
        label="slice",
        memory=Memory(500 * MB, tiles=2.0, slices=8.0),
        on_gpu=False,
    ),
    Declaration(
        "generate_pipeline_report",
        after=(*_RESULTS, "convert_omezarr_to_nifti", "stitch_motor_only", "evaluate_run"),
        work="items",
        label="brain",
        memory=Memory(190 * MB, all_pictures=9),
        on_gpu=False,
    ),
)
