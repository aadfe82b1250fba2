"""Parameters of decisions between slices: stage glitches, bad slices, gaps, manual alignment."""

from __future__ import annotations

from dataclasses import dataclass

from linumpy.params import param
from linumpy.stage_params.brain import FaceParams
from linumpy.stage_params.declaration import (
    CONFIG,
    IN_3D,
    MB,
    REGISTRATION,
    SHIFTS,
    VOLUMES,
    Declaration,
    Memory,
)

INTERPOLATION_METHODS = ("zmorph", "weighted", "average")
BLEND_METHODS = ("gaussian", "linear")
REGISTRATION_METRICS = ("MSE", "CC", "MI")


@dataclass(frozen=True)
class RehomingParams:
    """Parameters of the search for glitches of the stage."""

    max_shift_mm: float = param(
        0.5,
        "rehoming_max_shift_mm",
        "largest step between two slices that is plausible for a stage, mm",
        minimum=0,
    )
    return_fraction: float = param(
        0.4,
        "rehoming_return_fraction",
        "a larger step is a glitch when a neighbouring step undoes all but this share of it",
        minimum=0,
        maximum=1,
    )
    tile_fov_mm: float = param(
        0.0,
        "tile_fov_mm",
        "side of a tile, mm: whole tiles that the stage miscounted are subtracted; 0 for none",
        minimum=0,
    )
    tile_fov_tolerance: float = param(
        0.05,
        "tile_fov_tolerance",
        "how far a step may be from whole tiles, as a share of a tile",
        minimum=0,
        maximum=0.5,
    )


@dataclass(frozen=True)
class ShiftAnalysisParams:
    """Parameters of the search for outlying steps."""

    iqr_multiplier: float = param(
        1.5,
        "outlier_iqr_multiplier",
        "interquartile ranges beyond the quartiles from which a step is an outlier",
        minimum=0,
    )


@dataclass(frozen=True)
class AutoExcludeParams:
    """Parameters of leaving out slices that match no other."""

    consecutive: int = param(
        3,
        "auto_exclude_consecutive",
        "unmatched pairs in a row from which the slices between them are left out",
        minimum=2,
    )
    relative_correlation: float = param(
        0.6,
        "auto_exclude_relative_z_corr",
        "a pair counts as unmatched below this share of the correlation of pairs around it",
        minimum=0,
        maximum=1,
    )


@dataclass(frozen=True)
class InterpolateParams(FaceParams):
    """Parameters of filling the gap that one missing slice leaves."""

    method: str = param(
        "zmorph",
        "interpolation_method",
        "how a missing slice is made from its neighbours",
        choices=INTERPOLATION_METHODS,
    )
    blend: str = param(
        "gaussian",
        "interpolation_blend_method",
        "how the two neighbours are mixed: by depth alone, or also by distance from tissue's edge",
        choices=BLEND_METHODS,
    )
    search_window: int = param(
        5,
        "interpolation_overlap_search_window",
        "planes at the end of each neighbour among which the most alike are sought",
        minimum=1,
        maximum=32,
    )
    min_foreground: float = param(
        0.1,
        "interpolation_min_foreground_fraction",
        "least share of tissue in a plane to compare",
        minimum=0,
        maximum=1,
    )
    min_correlation: float = param(
        0.3,
        "interpolation_min_overlap_correlation",
        "least correlation of the neighbours' planes from which anything is interpolated",
        minimum=-1,
        maximum=1,
    )
    slab_size: int = param(
        3,
        "interpolation_reference_slab_size",
        "planes that are averaged before they are registered",
        minimum=1,
        maximum=31,
    )
    min_improvement: float = param(
        0.05,
        "interpolation_min_fisher_z_gain",
        "least gain in correlation (Fisher's z) for which a deformation is accepted",
        minimum=0,
        maximum=1,
    )
    metric: str = param(
        "MSE",
        "interpolation_registration_metric",
        "what the registration makes best: mean square, correlation or mutual information",
        choices=REGISTRATION_METRICS,
    )
    max_iterations: int = param(
        1000,
        "interpolation_max_iterations",
        "most steps of the registration, a level",
        minimum=1,
    )


@dataclass(frozen=True)
class ExportManualParams(FaceParams):
    """Parameters of the package for alignment by hand."""

    level: int = param(
        1,
        "manual_align_level",
        "how often pixels are halved in the exported images",
        minimum=0,
        maximum=6,
    )
    slab_px: int = param(
        20,
        "manual_align_slab",
        "planes that are averaged where two slices overlap",
        minimum=1,
    )


@dataclass(frozen=True)
class RefineManualParams(FaceParams):
    """Parameters of taking over alignments made by hand."""

    refine: bool = param(
        False,
        "refine_manual_transforms",
        "look near each manual transform for where the slices match best",
    )
    max_translation_px: float = param(
        10.0,
        "refine_max_translation_px",
        "how far from a manual transform is looked, pixels",
        minimum=1,
    )
    max_rotation_deg: float = param(
        2.0,
        "refine_max_rotation_deg",
        "how far from a manual transform is looked, degrees",
        minimum=0,
    )


_TABLES = (*SHIFTS, *CONFIG, "assess_slice_quality")

STAGES = (
    Declaration(
        "refine_manual_transforms",
        after=(*VOLUMES, *_TABLES, "register_slices"),
        when={**IN_3D, "manual_transforms_dir": True},
        work="slices",
        label="brain",
        memory=Memory(200 * MB, slices=4.0),
        params=(RefineManualParams,),
        learns=("register_slices",),
    ),
    Declaration(
        "export_manual_align",
        after=(*VOLUMES, *_TABLES, *REGISTRATION),
        when={**IN_3D, "export_manual_align": True},
        work="slices",
        label="slice",
        memory=Memory(200 * MB, slices=2.0),
        on_gpu=False,
        params=(ExportManualParams,),
    ),
    Declaration(
        "auto_exclude_slices",
        after=(*REGISTRATION, *CONFIG, "assess_slice_quality"),
        when={**IN_3D, "auto_exclude_enabled": True},
        on_gpu=False,
        params=(AutoExcludeParams,),
        learns=("auto_exclude_slices",),
    ),
    Declaration(
        "interpolate_missing_slice",
        after=(*VOLUMES, *_TABLES, *REGISTRATION, "auto_exclude_slices"),
        when={**IN_3D, "interpolate_missing_slices": True},
        per="gap",
        work="items",
        label="slice",
        memory=Memory(300 * MB, slices=10.0),
        params=(InterpolateParams,),
        learns=("interpolated_diagnostics",),
    ),
    Declaration(
        "finalise_interpolation",
        after=(*_TABLES[2:], "auto_exclude_slices", "interpolate_missing_slice"),
        when=IN_3D,
        on_gpu=False,
    ),
)
