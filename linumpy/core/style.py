"""Shared style of the report's figures: colours safe for colour-blind readers, and helpers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1b1f24"
MUTED = "#6b7280"
FAINT = "#d7dbe0"
BLUE = "#0072b2"
SKY = "#56b4e9"
ORANGE = "#e69f00"
VERMILION = "#d55e00"
GREEN = "#009e73"
MAP = "viridis"
DPI = 150


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure in inches, laid out so that labels do not collide."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, facecolor="white", layout="constrained")


def dress(axes: Axes, *, title: str = "", xlabel: str = "", ylabel: str = "") -> None:
    """Give axes the report's look: small type, no box, a light grid behind the data."""
    axes.set_title(title, fontsize=9.5, color=INK, loc="left")
    axes.set_xlabel(xlabel, fontsize=8.5, color=INK)
    axes.set_ylabel(ylabel, fontsize=8.5, color=INK)
    axes.tick_params(labelsize=8, colors=INK, length=2.5, color=MUTED)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(MUTED)
    axes.grid(True, color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)


def legend(axes: Axes, **options: Any) -> None:
    """Add a small frameless legend when something is labelled."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, frameon=False, labelcolor=INK, **options)


def whole_ticks(axes: Axes) -> None:
    """Put the ticks of axis x on whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=16, min_n_ticks=1))


def colour_bar(figure: Figure, mappable: Any, axes: Axes, label: str) -> None:
    """Add a small labelled colour bar."""
    bar = figure.colorbar(mappable, ax=axes, shrink=0.8, pad=0.02)
    bar.set_label(label, fontsize=8.5, color=INK)
    bar.ax.tick_params(labelsize=8, colors=INK, length=2)
    bar.outline.set_visible(False)
