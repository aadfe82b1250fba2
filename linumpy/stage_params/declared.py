"""All stages of the workflow, by name; each is declared beside its parameters."""

from __future__ import annotations

from linumpy.stage_params import atlas, flat, gaps, intensity, slices, tables
from linumpy.stage_params.bias import CORRECT_BIAS_FIELD
from linumpy.stage_params.brain import REGISTER_SLICES, STACK
from linumpy.stage_params.declaration import Declaration
from linumpy.stage_params.quality import ASSESS_SLICE_QUALITY, MEASURE_PAIRS

STAGES: dict[str, Declaration] = {
    stage.name: stage
    for stage in (
        *tables.BEFORE,
        *flat.STAGES,
        *slices.STAGES,
        *intensity.STAGES,
        MEASURE_PAIRS,
        ASSESS_SLICE_QUALITY,
        REGISTER_SLICES,
        *gaps.STAGES,
        *STACK,
        CORRECT_BIAS_FIELD,
        *atlas.STAGES,
        *tables.AFTER,
    )
}
