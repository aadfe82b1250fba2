"""Parameters of slice quality and diagnostics."""

from __future__ import annotations

from dataclasses import dataclass

from linumpy.params import param
from linumpy.stage_params.brain import FaceParams, RegisterParams
from linumpy.stage_params.declaration import CONFIG, IN_3D, MB, SHIFTS, VOLUMES, Declaration, Memory


@dataclass(frozen=True)
class ComparisonParams(FaceParams):
    """What of slices is compared; others take this on."""

    roi_size_px: int = param(
        1024,
        "assess_quality_roi_size",
        "side of the square in the middle of a slice that is rated, pixels",
        minimum=64,
    )
    sample_depth: int = param(
        5, "assess_quality_sample_depth", "depths of a slice that are rated", minimum=1
    )


@dataclass(frozen=True)
class QualityParams(ComparisonParams):
    """Parameters of rating slices against their neighbours."""

    min_quality: float = param(
        0.3,
        "assess_quality_min_quality",
        "score from 0 to 1 below which a slice is left out; good ones reach about 1",
        minimum=0,
        maximum=1,
    )
    min_brightness: float = param(
        0.25,
        "assess_quality_min_brightness",
        "brightness below which a slice is left out, as a share of the median slice's",
        minimum=0,
        maximum=1,
    )
    exclude_first: int = param(
        0, "assess_quality_exclude_first", "slices from the first one on to leave out", minimum=0
    )
    detect_calibration: bool = param(
        False,
        "detect_calibration",
        "leave out any of the first three slices that is far deeper than usual",
    )


@dataclass(frozen=True)
class RotationDiagnosticParams:
    """Parameters of the diagnosis of slices' rotations."""

    rotation_threshold_deg: float = param(
        2.0,
        "diagnostic_rotation_threshold",
        "rotation of a slice, of either sign, from which it is named, degrees",
        minimum=0,
    )


MEASURE_PAIRS = Declaration(
    "measure_pairs",
    after=(*VOLUMES, *SHIFTS, *CONFIG),
    when=IN_3D,
    per="pairs",
    work="slices",
    label="slice",
    memory=Memory(110 * MB, slices=7.5),
    gpu_tasks=4,
    params=(RegisterParams, ComparisonParams),
)
ASSESS_SLICE_QUALITY = Declaration(
    "assess_slice_quality",
    after=(*VOLUMES, *SHIFTS, *CONFIG, "measure_pairs"),
    when={**IN_3D, "assess_quality_enabled": True},
    work="slices",
    label="brain",
    memory=Memory(110 * MB, slices=2.5),
    params=(QualityParams,),
    learns=("assess_slice_quality",),
)
