"""Plot the steps between slices before and after correction."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from linumpy.core.style import (
    BLUE,
    FAINT,
    GREEN,
    MUTED,
    ORANGE,
    VERMILION,
    dress,
    legend,
    new_figure,
    whole_ticks,
)
from linumpy.io.previews import figure_png
from linumpy.io.tables import XYShift
from linumpy.mosaic.analyze_shifts import ShiftAnalysis, drift_mm
from linumpy.mosaic.detect_rehoming import RehomingEvent
from linumpy.store.atomic import atomic_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_EVENT_STYLE = {
    "tile_step": (ORANGE, "s", "whole tiles, subtracted"),
    "spike": (VERMILION, "o", "springs back, put between its neighbours"),
    "large_step": (MUTED, "x", "large and lasting, kept"),
}


def plot_rehoming(
    before: Sequence[XYShift],
    after: Sequence[XYShift],
    events: Sequence[RehomingEvent],
    path: Path,
) -> None:
    """Draw where slices lie by the stage, as reported and as cleaned, along x and y.

    Parameters
    ----------
    before, after
        The table, as it was and cleaned.
    events
        What was found.
    path
        The PNG; an existing one is replaced.
    """
    figure = new_figure(8.0, 5.0)
    ids = _ids(before)
    for axis, axes in enumerate(figure.subplots(2, 1, sharex=True)):
        reported, cleaned = drift_mm(before)[:, axis], drift_mm(after)[:, axis]
        axes.plot(ids, reported, color=MUTED, lw=1, ls="--", label="as reported")
        axes.plot(ids, cleaned, color=BLUE, lw=1.4, marker=".", ms=4, label="cleaned")
        place = {slice_id: n for n, slice_id in enumerate(ids)}
        for kind, (colour, marker, text) in _EVENT_STYLE.items():
            at = [place[event.slice_id] for event in events if event.kind == kind]
            if at:
                axes.plot(
                    np.take(ids, at),
                    reported[at],
                    color=colour,
                    marker=marker,
                    ls="",
                    ms=6,
                    label=text,
                )
        dress(axes, ylabel=f"stage {'xy'[axis]}, mm", xlabel="slice" if axis else "")
        whole_ticks(axes)
    legend(figure.axes[0], loc="best")
    figure.axes[0].set_title("Where the stage put each slice", fontsize=9.5, loc="left")
    _save(figure, path)


def plot_analysis(
    shifts: Sequence[XYShift],
    filtered: Sequence[XYShift],
    analysis: ShiftAnalysis,
    path: Path,
) -> None:
    """Draw the steps with the bounds of what is usual, and where they lead.

    Parameters
    ----------
    shifts, filtered
        The table, and the same without the steps that stand out.
    analysis
        From `linumpy.mosaic.analyze_shifts.analyze_shifts`.
    path
        The PNG; an existing one is replaced.
    """
    figure = new_figure(8.0, 5.0)
    grid = figure.subplots(2, 2, sharex=True)
    ids = _ids(shifts)
    odd = {record["moving_id"]: record["axes"] for record in analysis.outliers}
    for axis, name in enumerate("xy"):
        steps = np.array([getattr(s, f"{name}_shift_mm") for s in shifts])
        bounds = (analysis.x_bounds_mm, analysis.y_bounds_mm)[axis]
        axes = grid[0, axis]
        if bounds is not None:
            axes.axhspan(*bounds, color=FAINT, lw=0, alpha=0.6)
        axes.plot(ids[1:], steps, color=BLUE, marker=".", ms=4, lw=0.8)
        out = [n for n, slice_id in enumerate(ids[1:]) if name in odd.get(slice_id, ())]
        axes.plot(np.take(ids[1:], out), steps[out], color=VERMILION, marker="o", ls="", ms=5)
        dress(axes, title=f"Steps along stage {name}", ylabel="" if axis else "mm")
        axes = grid[1, axis]
        axes.plot(ids, drift_mm(shifts)[:, axis], color=BLUE, lw=1.4, label="all steps")
        axes.plot(
            ids,
            drift_mm(filtered)[:, axis],
            color=GREEN,
            lw=1,
            ls="--",
            label="without those that stand out",
        )
        dress(axes, title="Where they lead", xlabel="slice", ylabel="" if axis else "mm")
        whole_ticks(axes)
    legend(grid[1, 0])
    _save(figure, path)


def _ids(shifts: Sequence[XYShift]) -> list[int]:
    return [*(s.fixed_id for s in shifts[:1]), *(s.moving_id for s in shifts)] or [0]


def _save(figure: Figure, path: Path) -> None:
    with atomic_path(path, overwrite=True) as partial:
        partial.write_bytes(figure_png(figure, colours=64))
