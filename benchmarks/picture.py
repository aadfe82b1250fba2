#!/usr/bin/env python
"""Draw the timelines of a record of `stages.py`: what each thread did, and when."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

COLOURS = {
    "start": "#b5b5b5",
    "read": "#4c78a8",
    "fetch": "#9ecae9",
    "decode": "#3b9c94",
    "compute": "#e45756",
    "gather": "#ff9da6",
    "solve": "#9d755d",
    "encode": "#f2a23a",
    "store": "#cfa6dd",
    "write": "#7a5195",
    "finish": "#54a24b",
}
OTHER = "#6b4c35"
LANE_INCH = 0.17
MAX_LANES = 40
# Of the whole time; lanes that hold less are left out.
LEAST_SHARE = 0.002
MAIN = "MainThread"


def lanes(rows: list[list[Any]]) -> list[tuple[str, list[tuple[str, float, float]]]]:
    """Return a lane for each thread: its name, and the steps it was at, with start and stop.

    Threads of a pool are adjacent; pools are ordered by when they begin.

    Parameters
    ----------
    rows
        As `measure.time_line` makes them.
    """
    found: dict[str, list[tuple[str, float, float]]] = {}
    began: dict[str, float] = {}
    for thread, step, start, stop in rows:
        found.setdefault(thread, []).append((step, start, stop))
        began[pool(thread)] = min(began.get(pool(thread), start), start)
    return sorted(found.items(), key=lambda lane: (began[pool(lane[0])], lane[0]))


def pool(thread: str) -> str:
    """Return a thread's name without the number that its pool gave it."""
    name = "main" if thread == MAIN else thread.removeprefix("linumpy-")
    return name.rstrip("0123456789").rstrip("_-") or name


def draw_time_lines(record: dict[str, Any], path: Path) -> None:
    """Draw the time lines of a record's stages below each other.

    Parameters
    ----------
    record
        Of `stages.py`; stages without a time line are left out.
    path
        PNG to write.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    seconds = {name: stage["time_line_seconds"] for name, stage in record["stages"].items()}
    drawn = {}
    for name, rows in record["time_lines"].items():
        least = LEAST_SHARE * seconds[name]
        found = [lane for lane in lanes(rows) if sum(b - a for _, a, b in lane[1]) > least]
        drawn[name] = found[:MAX_LANES]
    drawn = {name: found for name, found in drawn.items() if found}
    if not drawn:
        return
    heights = [LANE_INCH * len(found) + 0.55 for found in drawn.values()]
    figure, axes = plt.subplots(
        len(drawn),
        1,
        figsize=(11, sum(heights) + 0.7),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    used: dict[str, None] = {}
    for axis, (name, found) in zip(axes[:, 0], drawn.items(), strict=True):
        _draw(axis, found)
        used |= {step: None for _, own in found for step, _, _ in own}
        axis.axvline(seconds[name], color="black", linewidth=0.8)
        axis.set_xlim(0, 1.02 * seconds[name])
        axis.set_title(f"{name}, {seconds[name]:.2f} s", loc="left", fontsize=9)
    axes[-1, 0].set_xlabel("s since the process began; the line: when it was gone", fontsize=8)
    order = [step for step in COLOURS if step in used] + [s for s in used if s not in COLOURS]
    figure.legend(
        handles=[Patch(color=COLOURS.get(step, OTHER), label=step) for step in order],
        loc="outside upper right",
        ncols=len(order),
        frameon=False,
        fontsize=8,
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw(axis: Any, found: list[tuple[str, list[tuple[str, float, float]]]]) -> None:
    """Fill a panel with the lanes of a stage."""
    groups: dict[str, list[int]] = {}
    for number, (thread, own) in enumerate(found):
        groups.setdefault(pool(thread), []).append(number)
        axis.broken_barh(
            [(start, stop - start) for _, start, stop in own],
            (number + 0.1, 0.8),
            facecolors=[COLOURS.get(step, OTHER) for step, _, _ in own],
            edgecolor="white",
            linewidth=0.25,
        )
    labels = [f"{name} ({len(n)})" if len(n) > 1 else name for name, n in groups.items()]
    axis.set_yticks([(n[0] + n[-1] + 1) / 2 for n in groups.values()], labels, fontsize=8)
    for numbers in groups.values():
        axis.axhline(numbers[-1] + 1, color="0.85", linewidth=0.6, zorder=0)
    axis.set_ylim(len(found), 0)
    axis.tick_params(axis="y", length=0)
    axis.tick_params(axis="x", labelsize=8)
    axis.grid(axis="x", color="0.9", linewidth=0.6)
    axis.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)


def main() -> None:
    """Draw a record's time lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record", type=Path, help="JSON file of stages.py")
    parser.add_argument("picture", type=Path, help="PNG to write")
    args = parser.parse_args()
    draw_time_lines(json.loads(args.record.read_text()), args.picture)


if __name__ == "__main__":
    main()
