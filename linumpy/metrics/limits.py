"""Limits of metrics for warnings and errors.

One table for all stages: a metric names its limits, and its status follows. Limits on angles and
lengths are on magnitudes, whatever their sign.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

OK, WARNING, ERROR = "ok", "warning", "error"
STATUSES = (OK, WARNING, ERROR)


@dataclass(frozen=True)
class Limits:
    """Where a metric stops being good.

    Attributes
    ----------
    warning, error
        The first value that is not good any more, and the first that is bad.
    higher_is_better
        Whether values below the limits are the bad ones.
    """

    warning: float
    error: float
    higher_is_better: bool = False

    def status(self, value: float) -> str:
        """Judge a value; one that is not finite is an error."""
        if not math.isfinite(value):
            return ERROR
        sign = -1.0 if self.higher_is_better else 1.0
        size = value if self.higher_is_better else abs(value)
        if sign * size >= sign * self.error:
            return ERROR
        return WARNING if sign * size >= sign * self.warning else OK


LIMITS = {
    # Of any registration.
    "translation": Limits(30, 50),
    "rotation": Limits(1, 2),
    # Degrees: 17 um over a millimetre of depth, and what a beam that is not set up is off by.
    "lean": Limits(1, 5),
    "correlation": Limits(0.7, 0.5, higher_is_better=True),
    "confidence": Limits(0.4, 0.3, higher_is_better=True),
    "rms_residual": Limits(5, 15),
    # In micrometres, along one axis: what neighbours may be off locally (docs/accuracy.md) with the
    # noise of windows, and a pixel; and how far windows are searched.
    "deformation_left": Limits(6, 10),
    "deformation": Limits(160, 320),
    "accepted_share": Limits(0.5, 0.25, higher_is_better=True),
    # A tile in which B-scans are missing has one or two; four are several tiles.
    "torn_pairs": Limits(1, 4),
    # Of tile pairs that match clearly; a minority of wrong ones is what robust solvers bear, half
    # is where they break down.
    "clear_pairs_share": Limits(0.8, 0.5, higher_is_better=True),
    # 0.5 % is 5 um over a millimetre, half a pixel at 10 um a pixel; stages are made to 0.1 %.
    "stage_linear": Limits(0.005, 0.02),
    # In micrometres: what tiles are to be known to (docs/accuracy.md), and a pixel of 10 um, from
    # which on seams show.
    "tile_position_bound": Limits(3.0, 10.0),
    # In percent: 3 um over a millimetre, and what is a problem of the stage's scale.
    "tile_stretch_bound": Limits(0.3, 2.0),
    # In percent: what the flat field is to be known to (docs/accuracy.md), and what brightness
    # along depth is.
    "flat_field_bound": Limits(2.0, 5.0),
    # Dark bands have 1; one of 0.64 was in the wrong place, of a fly-back that is not dark
    # (docs/benchmarks/2026-11-27-other-simulator.md). Never an error: water alone has 0.1 to 0.2.
    "galvo_confidence": Limits(0.8, -1.0, higher_is_better=True),
    # Of brightness: what it is to be flat to along depth (docs/accuracy.md), and three times that.
    "depth_remainder": Limits(0.05, 0.15),
    "unregistered_tiles_share": Limits(0.5, 0.8),
    # Of what an image shows.
    "tissue_coverage": Limits(0.1, 0.05, higher_is_better=True),
    "mask_coverage": Limits(0.05, 0.01, higher_is_better=True),
    "agarose_coverage": Limits(0.05, 0.01, higher_is_better=True),
    # Tissue whose lost light cannot be corrected.
    "capped_share": Limits(0.1, 0.3),
    # Grey and white matter differ by a factor of two (Wang et al., NeuroImage 165, 56, 2018).
    "mu_error": Limits(0.5, 1.5),
    # Standard errors of reported exponents: beyond three, attenuation does not go with brightness
    # as Klett's inversion takes it to, on which mu rests.
    "exponent_departure": Limits(3, 6),
    "empty_fraction": Limits(0.5, 0.8),
    "seam": Limits(0.12, 0.25),
    "profile_quality": Limits(0.5, 0.3, higher_is_better=True),
    # In percent of power: amplitudes along depth are to be right to half of it (docs/accuracy.md),
    # as for depth_remainder.
    "response_error": Limits(10.0, 30.0),
    # It is 1 where noise is even. At 3, nine tenths of the water's power are not subtracted below.
    "noise_excess": Limits(1.1, 3.0),
    "psf_max": Limits(0.1, 0.05, higher_is_better=True),
    "atlas_overlap": Limits(0.8, 0.5, higher_is_better=True),
    "orientation_margin": Limits(0.02, 0.0, higher_is_better=True),
    # Half of what slices are to be known to (docs/accuracy.md), and ten times that.
    "slice_shift_sigma": Limits(0.25, 2.5),
    "slice_turn_sigma": Limits(0.1, 1.0),
    # Of depth. One voxel is what depths are to be known to (docs/accuracy.md).
    "depth_residual": Limits(1, 3),
    "depth_sigma": Limits(1, 3),
    # What tissue's refractive indices differ by (1.33 to 1.47) is the most that an axial voxel is
    # likely to be off. Half a percent adds up to half an interval over 100 slices.
    "depth_scale": Limits(0.005, 0.05),
    # Of an interval. A double cut is 1.
    "uneven_cut": Limits(0.1, 0.75),
    # One leaves two parts of a brain in doubt; many are the rule, and a problem of the optics.
    "unmeasured_steps": Limits(1, 20),
    "z_offset_std": Limits(10, 25),
    "z_offset_range": Limits(15, 30),
    # Of what was learned.
    "learned_tiles": Limits(48, 12, higher_is_better=True),
    "surface_residual": Limits(2, 5),
    # Of brightness, a factor: light that is halved is a change of the microscope, a quarter is left
    # out as dim (assess_quality_min_brightness).
    "light_change": Limits(2.0, 4.0),
    # Of decisions on slices.
    "excluded_share": Limits(0.1, 0.5),
}
"""Limits by name. Pixels and voxels are those of the working resolution, angles degrees."""


def worst(statuses: list[str]) -> str:
    """Return the worst of some statuses; ok where there are none."""
    return max(statuses, key=STATUSES.index, default=OK)
