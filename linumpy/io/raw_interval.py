"""Slicing interval from stage heights, and its contradictions with the side files.

Read at launch by any Python: nothing but the standard library is imported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev

LIKELY_CUT = (0.2, 4.0)
"""Intervals that a cut may be thick: less is no cut, more is another zero or unit of the stage."""

INTERVAL_TOLERANCE = 0.05

_FEW_STEPS = 2
"""Of the stage, one uneven cut of which moves the median as far as it likes."""

_STUDENT_T = (31.6, 12.92, 8.61, 6.87, 5.96, 5.41, 5.04, 4.78, 4.59, 4.44)
"""Two-sided 99.9 % quantiles of Student's t of 2, 3, … 11 degrees of freedom."""


def stage_moves_um(heights: Sequence[tuple[int, float]]) -> list[float]:
    """Return how far the stage's z moves a slice, a value a step; none where it rests.

    Parameters
    ----------
    heights
        Ids of slices, rising, with the stage's z in mm.
    """
    pairs = zip(heights, heights[1:])  # noqa: B905 - new in Python 3.10
    moves = [abs(z1 - z0) * 1e3 / (id1 - id0) for (id0, z0), (id1, z1) in pairs]
    return moves if moves and median(moves) > 0 else []


def stage_interval_um(heights: Sequence[tuple[int, float]]) -> tuple[float | None, float, int]:
    """Return the median motion of the stage's z a slice, its error, and the number of steps.

    The motion is None without information. The standard error of a median is 1.2533 times that of
    a mean.

    Parameters
    ----------
    heights
        As `stage_moves_um` takes them.
    """
    moves = stage_moves_um(heights)
    if not moves:
        return None, 0.0, 0
    middle = median(moves)
    spread = 1.4826 * median(abs(move - middle) for move in moves)
    return middle, 1.2533 * spread / math.sqrt(len(moves)), len(moves)


def interval_contradiction(
    interval_um: float, heights: Sequence[tuple[int, float]], n_slices: int
) -> tuple[str, bool] | None:
    """Return how an interval contradicts the stage, and whether that is beyond doubt.

    Whether one or two steps are even is unknown, so that any thickness that a cut can
    have leaves a doubt. So do more steps whose mean lies within Student's 99.9 % limits. None where
    they agree within 5 %, or as far as uneven steps explain.

    Parameters
    ----------
    heights
        As `stage_moves_um` takes them.
    n_slices
        Of the acquisition.
    """
    moved, sigma, n_steps = stage_interval_um(heights)
    if moved is None or abs(interval_um - moved) <= max(INTERVAL_TOLERANCE * moved, 3 * sigma):
        return None
    if n_steps <= _FEW_STEPS:
        is_uneven = LIKELY_CUT[0] <= moved / interval_um <= LIKELY_CUT[1]
    else:
        moves = stage_moves_um(heights)
        limit = _STUDENT_T[min(n_steps - 3, len(_STUDENT_T) - 1)] * stdev(moves)
        is_uneven = abs(interval_um - fmean(moves)) <= limit / math.sqrt(n_steps)
    text = (
        f"slice interval is {interval_um:g} um, but stage_z_pos_mm moves by {moved:g} um a slice "
        f"(median of {n_slices} slices)"
    )
    return text, not is_uneven
