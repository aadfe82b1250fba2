"""Findings that no slice tells alone: all slices of a run together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from linumpy.metrics.limits import LIMITS, OK, WARNING
from linumpy.metrics.pooled import SURE, depth_remainder, linear_difference
from linumpy.quality.run import Run
from linumpy.report.collect import SliceRecord
from linumpy.report.kinds import (
    ATTENTION,
    KINDS,
    LEAST_PAIRS,
    MIN_ACCEPTED_SHARE,
    PROBLEM,
    Finding,
    Kind,
)
from linumpy.report.metric_texts import METRICS

STAGE_LINEAR = METRICS["stage_linear"][0]
_MANY_SLICES = 12
_SUBTRACTED_ERRORS = 2
"""Standard errors that are subtracted from the RMS of what planes share."""


def of_all_slices(run: Run, left_out: set[int]) -> list[Finding]:
    """Return what slices have in common that is not as it should be; some may be left out."""
    return [*_linear(run, left_out), *_along_depth(run, left_out)]


def along_one_axis(slices: Sequence[SliceRecord]) -> Finding | None:
    """Return the axis along which tiles hardly match that match along the other."""
    counts = [[sum(s.joined_pairs[axis][n] for s in slices) for n in (0, 1)] for axis in (0, 1)]
    enough = [total >= LEAST_PAIRS for _, total in counts]
    match = [accepted >= MIN_ACCEPTED_SHARE * total for accepted, total in counts]
    if not all(enough) or match[0] == match[1]:
        return None
    axis = match.index(False)
    accepted, total = counts[axis]
    value = (
        f"{accepted} of {total} pairs along axis {axis + 1}, of tiles that match along the other"
    )
    return Finding(PROBLEM, KINDS["reversed_axis"], "tile pairs", total, value)


def _linear(run: Run, left_out: set[int]) -> list[Finding]:
    """Return by what stage and pixels of all slices disagree."""
    models = [model for i, model in run.tile_registrations.items() if i not in left_out]
    found = linear_difference(models)
    if found is None:
        return []
    limits = LIMITS["stage_linear"]
    limit = limits.warning
    mean, error = found
    sure = np.where((abs(mean) >= limit) & (abs(mean) >= SURE * error), abs(mean), 0)
    if not sure.any():
        return []
    turned = (0, 1) if sure[0, 1] >= sure[1, 0] else (1, 0)
    names = {
        (0, 0): "scale along axis 1",
        (1, 1): "scale along axis 2",
        turned: "rotation or shear",
    }
    told = ", ".join(
        f"{name} {100 * mean[at]:+.2f} ± {100 * error[at]:.2f} %"
        for at, name in names.items()
        if sure[at]
    )
    kind = Kind(*METRICS["stage_linear"], f"below {100 * limit:g} %")
    severity = ATTENTION if limits.status(float(sure.max())) == WARNING else PROBLEM
    return [Finding(severity, kind, "all slices", len(models), told)]


def _along_depth(run: Run, left_out: set[int]) -> list[Finding]:
    """Return how brightness along depth is uneven in all slices alike, if that is sure."""
    models = run.slice_models("normalize_intensities_per_slice")
    kept = [model.get("tissue") for i, model in models.items() if i not in left_out]
    tissue = [planes for planes in kept if planes]
    found = depth_remainder(tissue)
    if found is None:
        return []
    rest, error = found
    size = float(np.sqrt(np.nanmean(rest**2)))
    certain = float(np.sqrt(max(0.0, size**2 - (_SUBTRACTED_ERRORS * error) ** 2)))
    status = LIMITS["depth_remainder"].status(certain)
    # Anatomy that neighbours share looks like a band where slices are few.
    if status == OK or (status == WARNING and len(tissue) < _MANY_SLICES):
        return []
    plane = int(np.nanargmax(np.abs(rest)))
    place = f"in plane {plane}"
    if run.slice_registration is not None:
        place = f"{(plane + 0.5) * run.slice_registration.voxel_um[0]:.0f} um below the face"
    told = f"{100 * size:.0f} % RMS, most {100 * np.expm1(rest[plane]):+.0f} % {place}"
    severity = ATTENTION if status == WARNING else PROBLEM
    return [Finding(severity, KINDS["uneven_depth"], "all slices", len(tissue), told)]
