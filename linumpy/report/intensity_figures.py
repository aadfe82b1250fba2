"""Figures on brightness: seams between tiles, axial response, attenuation, bias field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from linumpy.core.style import (
    BLUE,
    FAINT,
    GREEN,
    MAP,
    ORANGE,
    SKY,
    dress,
    legend,
    new_figure,
    whole_ticks,
)
from linumpy.quality.run import TileRegistration
from linumpy.quality.seams import log_ratio

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEAST_SEAM_PERCENT = 0.01


def seam_strengths(registration: TileRegistration) -> np.ndarray:
    """Return |ln brightness ratio| of the overlaps of accepted pairs of tiles."""
    ratios = (log_ratio(pair) for pair in registration.pairs)
    return np.array([abs(ratio) for ratio in ratios if ratio is not None])


def seam_figure(registrations: Mapping[int, TileRegistration]) -> Figure:
    """Draw how much brighter overlapping tiles are than each other, slice by slice."""
    figure = new_figure(10.4, 3.2)
    axes = figure.subplots()
    found = {
        i: np.maximum(100 * seam_strengths(r), _LEAST_SEAM_PERCENT)
        for i, r in sorted(registrations.items())
    }
    found = {i: values for i, values in found.items() if values.size}
    for slice_id, values in found.items():
        axes.scatter(np.full(values.size, slice_id), values, s=9, color=SKY, alpha=0.6, linewidth=0)
    ids = list(found)
    axes.plot(
        ids, [np.median(v) for v in found.values()], marker="o", markersize=4, color=BLUE,
        label="median", linewidth=1.2,
    )  # fmt: skip
    axes.plot(
        ids, [np.percentile(v, 90) for v in found.values()], marker="^", markersize=4,
        color=ORANGE, label="90th percentile", linewidth=1.2,
    )  # fmt: skip
    dress(
        axes,
        title="Seams: difference in brightness of overlapping tiles after correction",
        xlabel="slice",
        ylabel="|ln ratio| (%)",
    )
    # Dark tiles are off by a hundred times what good ones are.
    axes.set_yscale("log")
    legend(axes, loc="best", ncols=2)
    whole_ticks(axes)
    return figure


def axial_figure(
    response: Mapping[str, Any] | None, attenuation: Mapping[int, Mapping[str, Any]]
) -> Figure:
    """Draw the axial response of the microscope, and the attenuation found along depth.

    Parameters
    ----------
    response
        Model of ``compensate_psf``.
    attenuation
        Models of ``compensate_attenuation`` by slice id.
    """
    figure = new_figure(10.4, 3.8)
    left, right = figure.subplots(1, 2)
    dress(left, title="Axial response (power)", xlabel="depth (µm)", ylabel="share of the largest")
    if response is None:
        left.text(0.5, 0.5, "not compensated", transform=left.transAxes, ha="center", fontsize=9)
    else:
        values = np.asarray(response["response"], dtype=float)
        depth = (np.arange(values.size) + 0.5) * float(response["voxel_um"][0])
        profile = np.asarray(response["profile"], dtype=float)
        known = np.isfinite(profile) & (profile > 0)
        # What the medium itself attenuates is not of the microscope.
        profile = profile * np.exp(2e-3 * float(response["medium_mu_per_mm"]) * depth)
        if known.any():
            scale = float(np.median(values[known] / profile[known]))
            left.plot(
                depth[known], scale * profile[known], color=ORANGE, linewidth=1,
                label=f"measured in {response['medium']}",
            )  # fmt: skip
        left.plot(depth, values, color=BLUE, linewidth=1.6, label=response["method"])
        if response.get("focus_um") is not None:
            left.axvline(float(response["focus_um"]), color=GREEN, linewidth=1, linestyle="--")
        left.set_ylim(bottom=0)
        legend(left, loc="best")
    dress(
        right,
        title="Attenuation of tissue, median of each plane",
        xlabel="depth below the cut face (µm)",
        ylabel="µ (1/mm)",
    )
    if not attenuation:
        right.text(0.5, 0.5, "not compensated", transform=right.transAxes, ha="center", fontsize=9)
    _draw_attenuation(figure, right, attenuation)
    return figure


def _draw_attenuation(
    figure: Figure, axes: Any, attenuation: Mapping[int, Mapping[str, Any]]
) -> None:
    """Draw one line a slice, coloured by its id when there are many."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    if not attenuation:
        return
    ids = sorted(attenuation)
    shades = Normalize(ids[0], max(ids[-1], ids[0] + 1))
    for slice_id in ids:
        model = attenuation[slice_id]
        values = np.array([np.nan if v is None else v for v in model["mu_by_plane"]], dtype=float)
        depth = (np.arange(values.size) + 0.5) * float(model["voxel_um"][0])
        axes.plot(depth, values, color=colormaps[MAP](shades(slice_id)), linewidth=1.1)
    axes.set_ylim(bottom=0)
    bar = figure.colorbar(ScalarMappable(shades, MAP), ax=axes, shrink=0.8, pad=0.02)
    bar.set_label("slice", fontsize=8.5)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.outline.set_visible(False)


def bias_figure(model: Mapping[str, Any]) -> Figure:
    """Draw what correction of the bias field made of the brightness of planes."""
    figure = new_figure(10.4, 2.8)
    axes = figure.subplots()
    gain = np.asarray(model["plane_gain"], dtype=float)
    axes.axhline(1, color=FAINT, linewidth=1)
    axes.plot(np.arange(gain.size), gain, color=BLUE, linewidth=1.3)
    dress(axes, title="Gain of each plane of the brain", xlabel="plane", ylabel="factor")
    return figure
