"""Figures of the operator's page: tile map of a slice, and metrics over slices with limits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from linumpy.core.style import BLUE, ORANGE, VERMILION, dress, whole_ticks
from linumpy.follow.judge import HISTORY
from linumpy.follow.reasons import BORDER_SHARE, FOCUS_LIMIT, scan_times_s, slow_limit
from linumpy.metrics.limits import LIMITS
from linumpy.report.plots import panel, svg

if TYPE_CHECKING:
    from markupsafe import Markup

_MOST_TEXTS = 100
_NAME = re.compile(r"x(\d+)_y(\d+)")


@dataclass(frozen=True)
class _Measure:
    """A metric of tiles, the values at the ends of its colours, and its limit."""

    name: str
    title: str
    ends: tuple[float, float]
    limit: float
    lower_is_bad: bool
    note: str

    def is_bad(self, value: float) -> bool:
        return value < self.limit if self.lower_is_bad else abs(value) >= self.limit


def _measures() -> tuple[_Measure, ...]:
    from linumpy.stage_params.slices import SliceParams

    least = SliceParams.from_values({}).stitch.min_tile_brightness
    confidence = LIMITS["confidence"].warning
    return (
        _Measure("confidence", "Confidence", (0, 1), confidence, True,
                 f"of the matches with the neighbours; marked below {confidence:g}"),
        _Measure("focus", "Focus", (-1.5, 1.5), FOCUS_LIMIT, False,
                 f"against the neighbours, Rayleigh lengths; marked from {FOCUS_LIMIT:g}"),
        _Measure("brightness", "Brightness", (0, 2), least, True,
                 f"against the neighbours; marked below {least:g}"),
    )  # fmt: skip


def tile_maps(tiles: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a map of cells for each metric of tiles.

    Parameters
    ----------
    tiles
        Those of ``tiles_zNN.json``.

    Returns
    -------
    Per metric ``title``, ``note``, ``rows``, ``columns`` and ``cells``, one a place of the grid
    with ``row``, ``column``, ``fill``, ``ink``, ``text``, ``title`` and ``bad``.
    """
    if not tiles:
        return []
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    low = np.min([tile["index"] for tile in tiles], axis=0)
    high = np.max([tile["index"] for tile in tiles], axis=0)
    rows, columns = (int(n) for n in high - low + 1)
    maps = []
    for measure in _measures():
        scale = colormaps["viridis" if measure.lower_is_bad else "PuOr"]
        cells = []
        for tile in tiles:
            value = tile[measure.name]
            row, column = (int(n) for n in np.subtract(tile["index"], low))
            cell: dict[str, Any] = {"row": row, "column": column, "bad": False, "fill": None}
            told = "not known" if value is None else f"{value:.2f}"
            cell |= {"ink": "var(--muted)", "text": "–", "title": f"{tile['name']}: {told}"}
            if value is not None:
                share = (value - measure.ends[0]) / (measure.ends[1] - measure.ends[0])
                colour = scale(float(np.clip(share, 0, 1)))
                light = np.dot(colour[:3], (0.299, 0.587, 0.114)) > 0.5
                cell |= {"fill": to_hex(colour), "ink": "#000" if light else "#fff"}
                cell |= {"text": f"{value:.1f}", "bad": measure.is_bad(value)}
            if len(tiles) > _MOST_TEXTS:
                cell["text"] = ""
            cells.append(cell)
        maps.append({"title": measure.title, "note": measure.note, "rows": rows,
                     "columns": columns, "cells": cells})  # fmt: skip
    return maps


def tile_boxes(
    told: Mapping[str, Any], levels: Mapping[str, str]
) -> list[tuple[float, float, str, str]]:
    """Return the tiles of a slice as they lie on its image.

    Parameters
    ----------
    told
        ``tiles_zNN.json``.
    levels
        Gravest level of the tiles that a verdict names.

    Returns
    -------
    Corner along axis 1 and axis 2 in um, name, and level or ``""``. A tile that was not placed
    lies where the grid of the others has it.
    """
    known = {tile["name"]: tuple(tile["corner_um"]) for tile in told["tiles"]}
    lost = [name for name in levels if name not in known and _NAME.fullmatch(name)]
    if lost and known:
        places, corners = (
            np.array(list(each), dtype=float)
            for each in zip(
                *((_indices(name), corner) for name, corner in known.items()), strict=True
            )
        )
        grid, *_ = np.linalg.lstsq(places, corners)
        known |= {name: tuple(np.round(_indices(name) @ grid, 1).tolist()) for name in lost}
    # Those that are named come last: they are drawn over the others.
    order = sorted(known, key=lambda name: (name in levels, name))
    return [(*known[name], name, levels.get(name, "")) for name in order]


def _indices(name: str) -> tuple[int, int, int]:
    """Return 1 and the indices that a tile's name holds."""
    match = _NAME.fullmatch(name)
    return (1, int(match[1]), int(match[2])) if match else (1, 0, 0)


@dataclass(frozen=True)
class History:
    """A metric over slices, and the limits from which on a verdict is look or stop.

    Attributes
    ----------
    values
        One a slice; None where it was not measured.
    look, stop
        Limits, each with a value a slice.
    """

    title: str
    unit: str
    values: list[float | None]
    look: list[list[float | None]]
    stop: list[list[float | None]]


def history(lines: Sequence[Mapping[str, Any]]) -> list[History]:
    """Return what was measured over slices.

    Parameters
    ----------
    lines
        Those of ``verdicts.jsonl``.
    """
    figures = [line.get("figures") or {} for line in lines]

    def of(name: str, factor: float = 1.0) -> list[float | None]:
        return [None if f.get(name) is None else f[name] * factor for f in figures]

    def cuts(off: float) -> list[float | None]:
        """Return the distance after the cuts since the slice before, and a part of an interval."""
        return [
            None
            if not f.get("interval_um")
            else f["interval_um"] * (line["slice"] - f.get("before", line["slice"] - 1) + off)
            for line, f in zip(lines, figures, strict=True)
        ]

    uneven, stage = LIMITS["uneven_cut"], LIMITS["translation"]
    before = [scan_times_s(lines[max(0, n - HISTORY) : n]) for n in range(len(lines))]
    found = [
        History(
            "Distance from the face before", "µm", of("cut_um"),
            [cuts(uneven.warning), cuts(-uneven.warning)],
            [cuts(uneven.error), cuts(-uneven.error)],
        ),
        History(
            "Change of the face's tilt across the slice", "µm", of("wedge_um"),
            [of("interval_um", 2 * uneven.warning)], [of("interval_um", 2 * uneven.error)],
        ),
        History(
            "Tissue along the border", "%", of("border_share", 100), [],
            [[100 * BORDER_SHARE] * len(lines)],
        ),
        History(
            "Off the stage's position", "µm",
            [None if not f.get("stage_off_um") else float(np.hypot(*f["stage_off_um"]))
             for f in figures],
            [of("pixel_um", stage.warning)], [],
        ),
        History(
            "Time of a scan", "min", of("duration_s", 1 / 60),
            [[slow_limit(times) / 60 if times else None for times in before]], [],
        ),
    ]  # fmt: skip
    return [each for each in found if any(value is not None for value in each.values)]


def history_plots(lines: Sequence[Mapping[str, Any]]) -> list[tuple[str, Markup]]:
    """Draw `history`; return titles and SVG."""
    slices = [line["slice"] for line in lines]
    return [
        (each.title, _plot(f"history{n}", slices, each)) for n, each in enumerate(history(lines))
    ]


def _plot(name: str, slices: Sequence[int], shown: History) -> Markup:
    figure, axes = panel(2.2)
    for limits, colour, style in ((shown.look, ORANGE, "--"), (shown.stop, VERMILION, "-")):
        for limit in limits:
            axes.plot(slices, _known(limit), color=colour, linestyle=style, linewidth=1.1)
    axes.plot(slices, _known(shown.values), color=BLUE, marker="o", markersize=3.5, linewidth=1.2)
    if len(slices) == 1:
        axes.set_xlim(slices[0] - 1, slices[0] + 1)
    dress(axes, xlabel="slice", ylabel=shown.unit)
    whole_ticks(axes)
    return svg(figure, name, shown.title)


def _known(values: Sequence[float | None]) -> np.ndarray:
    return np.array([np.nan if value is None else value for value in values], dtype=float)
