"""Analyse the steps between slices: which stand out, and where they lead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from linumpy.io.tables import XYShift
from linumpy.stage_params.gaps import ShiftAnalysisParams

_LEAST_STEPS = 4


@dataclass(frozen=True)
class ShiftAnalysis:
    """What a table of shifts looks like.

    Attributes
    ----------
    x_bounds_mm, y_bounds_mm
        Steps outside stand out: the quartiles, widened by so many interquartile ranges; None
        where there are too few steps.
    outliers
        ``fixed_id, moving_id, x_shift_mm, y_shift_mm, axes`` of each step that stands out.
    unreliable
        ``moving_id`` of steps that the table itself does not trust.
    drift_mm
        How far the last slice lies from the first along stage x and y, all steps taken as they
        are.
    largest_step_mm
        Length of the largest step.
    """

    iqr_multiplier: float
    n_steps: int
    x_bounds_mm: tuple[float, float] | None
    y_bounds_mm: tuple[float, float] | None
    outliers: list[dict[str, Any]]
    unreliable: list[int]
    drift_mm: tuple[float, float]
    largest_step_mm: float


def analyze_shifts(
    shifts: Sequence[XYShift], params: ShiftAnalysisParams
) -> tuple[ShiftAnalysis, tuple[XYShift, ...]]:
    """Find the steps that stand out from all others.

    Parameters
    ----------
    shifts
        Steps between slices.
    params
        How far out is an outlier (Tukey's fences).

    Returns
    -------
    What was found; and the steps with each outlying component replaced by the median of its
    axis. The table does not show whether such a step was real.
    """
    steps = np.array([[s.x_shift_mm, s.y_shift_mm] for s in shifts]).reshape(-1, 2)
    bounds = [_bounds(steps[:, axis], params.iqr_multiplier) for axis in (0, 1)]
    out = np.zeros(steps.shape, dtype=bool)
    for axis, fence in enumerate(bounds):
        if fence is not None:
            out[:, axis] = (steps[:, axis] < fence[0]) | (steps[:, axis] > fence[1])
    middle = np.median(steps, axis=0) if len(steps) else np.zeros(2)
    rows = [int(n) for n in np.nonzero(out.any(axis=1))[0]]
    analysis = ShiftAnalysis(
        iqr_multiplier=params.iqr_multiplier,
        n_steps=len(shifts),
        x_bounds_mm=bounds[0],
        y_bounds_mm=bounds[1],
        outliers=[
            {
                "fixed_id": shifts[n].fixed_id,
                "moving_id": shifts[n].moving_id,
                "x_shift_mm": shifts[n].x_shift_mm,
                "y_shift_mm": shifts[n].y_shift_mm,
                "axes": [name for name, is_out in zip("xy", out[n], strict=True) if is_out],
            }
            for n in rows
        ],
        unreliable=[s.moving_id for s in shifts if not s.reliable],
        drift_mm=(-float(steps[:, 0].sum()), -float(steps[:, 1].sum())),
        largest_step_mm=float(np.hypot(*steps.T).max()) if len(steps) else 0.0,
    )
    filtered = list(shifts)
    for n in rows:
        filtered[n] = _replaced(shifts[n], np.where(out[n], middle, steps[n]))
    return analysis, tuple(filtered)


def _bounds(steps: np.ndarray, multiplier: float) -> tuple[float, float] | None:
    if len(steps) < _LEAST_STEPS:
        return None
    low, high = (float(q) for q in np.percentile(steps, [25, 75]))
    reach = multiplier * (high - low)
    return low - reach, high + reach


def _replaced(shift: XYShift, step: np.ndarray) -> XYShift:
    values: dict[str, Any] = {"reliable": False}
    for axis, value in zip("xy", step, strict=True):
        old = getattr(shift, f"{axis}_shift_mm")
        added = float(value) - old
        if added:
            pixels = getattr(shift, f"{axis}_shift_px")
            values[f"{axis}_shift_mm"] = float(value)
            # An outlier is never 0, unless all others are something else.
            values[f"{axis}_shift_px"] = pixels * float(value) / old if old else pixels
            values[f"{axis}_correction_mm"] = getattr(shift, f"{axis}_correction_mm") + added
    return replace(shift, **values)


def drift_mm(shifts: Sequence[XYShift]) -> np.ndarray:
    """Return where slices lie along stage x and y, relative to the first.

    Returns
    -------
    Shape (n + 1, 2) for n steps, mm.
    """
    steps = np.array([[s.x_shift_mm, s.y_shift_mm] for s in shifts]).reshape(-1, 2)
    return np.vstack([np.zeros(2), -np.cumsum(steps, axis=0)])
