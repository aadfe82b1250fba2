"""Figures on what was learned of the microscope, and on time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from linumpy.core.style import BLUE, INK, colour_bar, dress, new_figure
from linumpy.records.timing import StageTime, duration_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def field_figure(focal: Mapping[str, Any] | None, illumination: Mapping[str, Any] | None) -> Figure:
    """Draw the focal surface and the flat field with contour lines, on tile coordinates."""
    figure = new_figure(10.4, 4.2)
    panels = figure.subplots(1, 2)
    for axes, model, name, title, label, colours in (
        (panels[0], focal, "surface_um", "Focal surface", "µm deeper", "cividis"),
        (panels[1], illumination, "flat_field", "Flat field", "amplitude factor", "viridis"),
    ):
        dress(axes, title=title, xlabel="axis 2 (mm)", ylabel="axis 1 (mm)")
        axes.grid(False)
        if model is None or name not in model:
            axes.text(0.5, 0.5, "not learned", transform=axes.transAxes, ha="center", color=INK)
            axes.set_xticks([])
            axes.set_yticks([])
            continue
        field = np.asarray(model[name], dtype=float)
        sides = [
            n * float(v) / 1000 for n, v in zip(field.shape, model["voxel_um"][1:], strict=True)
        ]
        picture = axes.imshow(field, cmap=colours, extent=(0, sides[1], sides[0], 0))
        if np.ptp(field) > 0:
            lines = axes.contour(
                np.linspace(0, sides[1], field.shape[1]),
                np.linspace(0, sides[0], field.shape[0]),
                field,
                levels=6,
                colors="white",
                linewidths=0.8,
            )
            axes.clabel(lines, fontsize=7.5)
        colour_bar(figure, picture, axes, label)
    return figure


def time_figure(stages: Sequence[StageTime]) -> Figure:
    """Draw the summed time of each stage's tasks as bars."""
    figure = new_figure(10.4, 0.7 + 0.3 * len(stages))
    axes = figure.subplots()
    place = np.arange(len(stages))[::-1]
    total = np.array([stage.total_s for stage in stages])
    axes.barh(place, total, height=0.62, color=BLUE)
    for y, stage in zip(place, stages, strict=True):
        axes.text(
            stage.total_s, y, f" {duration_label(stage.total_s)}", fontsize=8, va="center",
            color=INK,
        )  # fmt: skip
    axes.set_yticks(place, [stage.process for stage in stages])
    axes.set_xlim(0, max(total.max() * 1.12, 1e-3))
    dress(axes, xlabel="time of all tasks together (s)")
    axes.grid(False, axis="y")
    return figure
