"""Figures on brightness: seams between tiles, axial response, attenuation, bias field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from linumpy.core.style import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    MAP,
    ORANGE,
    SKY,
    colour_bar,
    dress,
    legend,
    whole_ticks,
)
from linumpy.quality.run import TileRegistration
from linumpy.quality.seams import log_ratio
from linumpy.report.plots import MOST_POINTS, Plot, panel

_LEAST_SEAM_PERCENT = 0.01


def seam_strengths(registration: TileRegistration) -> np.ndarray:
    """Return |ln brightness ratio| of the overlaps of accepted pairs of tiles."""
    ratios = (log_ratio(pair) for pair in registration.pairs)
    return np.array([abs(ratio) for ratio in ratios if ratio is not None])


def seam_plot(registrations: Mapping[int, TileRegistration]) -> Plot:
    """Draw how much brighter overlapping tiles are than each other, slice by slice."""
    figure, axes = panel()
    found = {
        i: np.maximum(100 * seam_strengths(r), _LEAST_SEAM_PERCENT)
        for i, r in sorted(registrations.items())
    }
    found = {i: values for i, values in found.items() if values.size}
    if sum(values.size for values in found.values()) <= MOST_POINTS:
        for slice_id, values in found.items():
            axes.scatter(
                np.full(values.size, slice_id), values, s=9, color=SKY, alpha=0.6, linewidth=0
            )
    rows = [
        (i, v.size, float(np.median(v)), float(np.percentile(v, 90)), float(v.max()))
        for i, v in found.items()
    ]
    ids = list(found)
    axes.plot(
        ids, [row[2] for row in rows], marker="o", markersize=3, color=BLUE, label="median",
        linewidth=1.2,
    )  # fmt: skip
    axes.plot(
        ids, [row[3] for row in rows], marker="^", markersize=3, color=ORANGE,
        label="90th percentile", linewidth=1.2,
    )  # fmt: skip
    dress(axes, xlabel="slice", ylabel="|ln ratio| (%)")
    # Dark tiles are off by a hundred times what good ones are.
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    low, high = axes.get_ylim()
    if high < 10 * low:
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.tick_params(which="minor", labelsize=8, labelcolor=INK)
    legend(axes, loc="best", ncols=2)
    whole_ticks(axes)
    return Plot(
        "seams",
        "Seams: difference in brightness of overlapping tiles",
        figure,
        ("slice", "pairs", "median_percent", "p90_percent", "largest_percent"),
        rows,
        "What is left of seams before overlaps are blended. A line that rises over the slices "
        "tells of an illumination that changed.",
    )


def response_plot(response: Mapping[str, Any]) -> Plot:
    """Draw the axial response of the microscope.

    Parameters
    ----------
    response
        Model of ``compensate_psf``.
    """
    figure, axes = panel()
    values = np.asarray(response["response"], dtype=float)
    depth = (np.arange(values.size) + 0.5) * float(response["voxel_um"][0])
    profile = np.asarray(response["profile"], dtype=float)
    known = np.isfinite(profile) & (profile > 0)
    # What the medium itself attenuates is not of the microscope.
    profile = profile * np.exp(2e-3 * float(response["medium_mu_per_mm"]) * depth)
    if known.any():
        profile *= float(np.median(values[known] / profile[known]))
        axes.plot(
            depth[known], profile[known], color=ORANGE, linewidth=1, zorder=3,
            label=f"measured in {response['medium']}",
        )  # fmt: skip
    axes.plot(depth, values, color=BLUE, linewidth=1.6, label=response["method"])
    if response.get("focus_um") is not None:
        axes.axvline(float(response["focus_um"]), color=GREEN, linewidth=1, linestyle="--")
    axes.set_ylim(bottom=0)
    dress(axes, xlabel="depth (µm)", ylabel="share of the largest power")
    legend(axes, loc="best")
    measured = np.where(known, profile, np.nan)
    rows = [tuple(float(v) for v in row) for row in zip(depth, values, measured, strict=True)]
    return Plot(
        "axial_response",
        "Axial response of the microscope",
        figure,
        ("depth_um", "response", "measured"),
        rows,
    )


def attenuation_plot(attenuation: Mapping[int, Mapping[str, Any]]) -> Plot:
    """Draw the attenuation found along depth, one line a slice.

    Parameters
    ----------
    attenuation
        Models of ``compensate_attenuation`` by slice id.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize
    from matplotlib.ticker import MaxNLocator

    figure, axes = panel()
    ids = sorted(attenuation)
    shades = Normalize(ids[0], max(ids[-1], ids[0] + 1))
    # Its ends would not be seen on a dark, or on a light page.
    colours = ListedColormap(colormaps[MAP](np.linspace(0.25, 0.85, 256)))
    rows: list[tuple[Any, ...]] = []
    for slice_id in ids:
        model = attenuation[slice_id]
        values = np.array([np.nan if v is None else v for v in model["mu_by_plane"]], dtype=float)
        depth = (np.arange(values.size) + 0.5) * float(model["voxel_um"][0])
        axes.plot(depth, values, color=colours(shades(slice_id)), linewidth=1.1)
        rows += [(slice_id, float(d), float(v)) for d, v in zip(depth, values, strict=True)]
    axes.set_ylim(bottom=0)
    dress(axes, xlabel="depth below the cut face (µm)", ylabel="µ (1/mm)")
    if len(ids) > 1:
        colour_bar(figure, ScalarMappable(shades, colours), axes, "slice")
        figure.axes[-1].yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return Plot(
        "attenuation",
        "Attenuation of tissue, median of each plane",
        figure,
        ("slice", "depth_um", "mu_per_mm"),
        rows,
        "Attenuation that falls or rises over the whole depth tells of a wrong focus.",
    )


def bias_plot(model: Mapping[str, Any]) -> Plot:
    """Draw what correction of the bias field made of the brightness of planes."""
    figure, axes = panel()
    gain = np.asarray(model["plane_gain"], dtype=float)
    axes.axhline(1, color=FAINT, linewidth=1)
    axes.plot(np.arange(gain.size), gain, color=BLUE, linewidth=1.3)
    dress(axes, xlabel="plane", ylabel="factor")
    rows = [(n, float(value)) for n, value in enumerate(gain)]
    return Plot("bias_gain", "Gain of each plane of the brain", figure, ("plane", "gain"), rows)
