"""Figures of the microscope's models, and of time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from linumpy.core.style import BLUE, INK, MAP, colour_bar, dress, new_figure
from linumpy.records.timing import StageTime, duration_label
from linumpy.report.plots import WIDTH_IN, Plot, panel

_NAME_CHARACTERS = 36
_CONTOUR_CELLS = 24


def field_plot(
    name: str, title: str, field: np.ndarray, voxel_um: Sequence[float], unit: str
) -> Plot:
    """Draw a field over a tile, with contour lines.

    Parameters
    ----------
    field
        Shape (axis 1, axis 2).
    voxel_um
        Pixel size; the last two entries count.
    unit
        What the colours are.
    """
    figure, axes = panel(4.2)
    field = np.asarray(field, dtype=float)
    sides = [n * float(v) / 1000 for n, v in zip(field.shape, voxel_um[-2:], strict=True)]
    extent = (0, sides[1], sides[0], 0)
    # A few thousand pixels describe a smooth field, and keep the page small.
    step = max(1, max(field.shape) // 64)
    shown = axes.imshow(field[::step, ::step], cmap=MAP, extent=extent, interpolation="none")
    if np.ptp(field) > 0:
        # A gain of single lines would make islands.
        places, smooth = _cell_means(field)
        lines = axes.contour(
            places[1] * sides[1],
            places[0] * sides[0],
            smooth,
            levels=6,
            colors="#fefefe",
            linewidths=0.8,
        )
        axes.clabel(lines, fontsize=7.5)
    dress(axes, xlabel="axis 2 (mm)", ylabel="axis 1 (mm)")
    axes.grid(False)
    colour_bar(figure, shown, axes, unit)
    rows = [[float(v) for v in row] for row in field[::step, ::step]]
    columns = [f"axis2_{n * step}_px" for n in range(len(rows[0]))]
    return Plot(name, title, figure, columns, rows)


def _cell_means(field: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Return means over a few cells a side, and their centres as shares of the sides."""
    edges = [np.linspace(0, n, min(n, _CONTOUR_CELLS) + 1).astype(int) for n in field.shape]
    for axis, edge in enumerate(edges):
        widths = np.diff(edge).reshape(-1, 1) if axis == 0 else np.diff(edge)
        field = np.add.reduceat(field, edge[:-1], axis=axis) / widths
    centres = [(edge[1:] + edge[:-1]) / 2 / edge[-1] for edge in edges]
    return centres, field


def time_plot(stages: Sequence[StageTime]) -> Plot:
    """Draw the summed time of each stage's tasks as bars."""
    figure = new_figure(WIDTH_IN, 0.7 + 0.22 * len(stages))
    axes = figure.subplots()
    place = np.arange(len(stages))[::-1]
    total = np.array([stage.total_s for stage in stages])
    axes.barh(place, total, height=0.62, color=BLUE)
    for y, stage in zip(place, stages, strict=True):
        axes.text(
            stage.total_s, y, f" {duration_label(stage.total_s)}", fontsize=8, va="center",
            color=INK,
        )  # fmt: skip
    axes.set_yticks(place, [_end(stage.process) for stage in stages])
    axes.set_xlim(0, max(total.max() * 1.25, 1e-3))
    dress(axes, xlabel="time of all tasks together (s)")
    axes.grid(False, axis="y")
    rows = [(stage.process, stage.tasks, float(stage.total_s)) for stage in stages]
    return Plot("times", "Time of each stage", figure, ("stage", "tasks", "seconds"), rows)


def _end(name: str) -> str:
    """Return a name, or the end of one that would leave no room for its bar."""
    return name if len(name) <= _NAME_CHARACTERS else f"…{name[1 - _NAME_CHARACTERS :]}"
