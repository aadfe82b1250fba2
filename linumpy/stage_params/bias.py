"""Parameters of the bias field correction of the brain."""

from __future__ import annotations

from dataclasses import dataclass

from linumpy.params import param
from linumpy.stage_params.declaration import IN_3D, MB, Declaration, Memory

BIAS_MODES = ("two_pass", "per_section", "global")
N4_ENGINES = ("itk", "linumpy")


@dataclass(frozen=True)
class BiasParams:
    """Parameters of the bias field correction."""

    mode: str = param(
        "two_pass",
        "bias_mode",
        "fit fields to the sections, to the whole brain, or to one after the other",
        choices=BIAS_MODES,
    )
    strength: float = param(
        1.0,
        "bias_strength",
        "share of the correction that is applied: 0 none, 1 all of it",
        minimum=0,
        maximum=1,
    )
    match_planes: bool = param(
        True,
        "bias_histogram_match_per_zplane",
        "give the tissue of every plane the brightness distribution of the whole brain first",
    )
    threshold: float = param(
        0.005,
        "bias_tissue_threshold",
        "value up to which a voxel of the normalised brain is no tissue",
        minimum=0,
    )
    zprofile_sigma_px: float = param(
        2.0,
        "bias_zprofile_smooth_sigma",
        "sigma that the mean brightness of planes is smoothed with along depth, planes; 0 for none",
        minimum=0,
    )
    shrink_factor: int = param(
        4,
        "bias_shrink_factor",
        "voxels along each axis that are averaged into one before fields are fitted",
        minimum=1,
        maximum=16,
    )
    section_distance_mm: float = param(
        4.0,
        "bias_spline_distance_section",
        "distance of the knots of a section's field at its finest, mm",
        minimum=0.1,
    )
    global_distance_mm: float = param(
        10.0,
        "bias_spline_distance_global",
        "distance of the knots of the whole brain's field at its finest, mm",
        minimum=0.1,
    )
    engine: str = param(
        "itk",
        "bias_n4_engine",
        "what fits fields on the CPU: ITK's filter, or linumpy's fit as on a GPU, which is faster",
        choices=N4_ENGINES,
    )


CORRECT_BIAS_FIELD = Declaration(
    "correct_bias_field",
    after=("stack_slices_motor",),
    when={**IN_3D, "correct_bias_field": True},
    work="brain",
    label="brain",
    memory=Memory(350 * MB, blocks=2.2, layers=0.3),
    parts=True,
    params=(BiasParams,),
    learns=("correct_bias_field",),
)
