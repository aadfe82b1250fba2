"""Tables of accuracy distributions over physics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Metric:
    """A number of a result.

    Attributes
    ----------
    read
        From a result to the number; None where it was not measured.
    alone, together
        The bound where one effect is at work, and where all are; None without.
    at_least
        Whether larger is better.
    """

    name: str
    unit: str
    read: Callable[[Result], float | None]
    alone: float | None = None
    together: float | None = None
    at_least: bool = False

    @property
    def title(self) -> str:
        """Name and unit."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    def target(self, results: Sequence[Result]) -> float | None:
        """Return the bound for some results."""
        return self.alone if results and all(r["only"] for r in results) else self.together


def _figure(name: str) -> Callable[[Result], float | None]:
    return lambda result: result["figures"].get(name, {}).get("value")


def _detail(name: str, detail: str) -> Callable[[Result], float | None]:
    def read(result: Result) -> float | None:
        return result["figures"].get(name, {}).get("details", {}).get(detail)

    return read


def _of_ideal(result: Result) -> float | None:
    best = _detail("correlation", "pearson_ideal")(result)
    ours = _detail("correlation", "pearson")(result)
    return None if not best or ours is None else ours / best


def _over_stated(
    name: str, detail: str, target: float, times: float = 1
) -> Callable[[Result], float | None]:
    """Return an error over the larger of a target and so many times what the run itself states."""

    def read(result: Result) -> float | None:
        value = _figure(name)(result)
        stated = times * (_detail(name, detail)(result) or 0)
        return None if value is None else value / max(target, stated)

    return read


STEPS = {
    "tile_positions_px": ({"register_tiles", "scan_distortion"}, 0.3),
    "slice_xy_px": ({"register_slices"}, 0.5),
    "slice_z_voxel": ({"register_slices"}, 2),
    "flat_field_percent": ({"fix_illumination_3d"}, 2),
    "attenuation_grey_percent": ({"compensate_attenuation"}, 10),
    "attenuation_white_percent": ({"compensate_attenuation"}, 10),
}
"""Steps of which at least one must flag a metric beyond a bound."""


def _silent(result: Result) -> float | None:
    """Return how many steps are beyond their bound and raised no flag."""
    if "flags" not in result:
        return None
    # Acquisitions this small have fewer tiles than are wanted, whatever their physics.
    said = {flag.split(".")[0] for flag in result["flags"] if not flag.endswith(".n_tiles")}
    silent = set()
    for name, (steps, bound) in STEPS.items():
        value = _figure(name)(result)
        if value is not None and value > bound and not steps & said:
            silent.add(frozenset(steps))
    return float(len(silent))


METRICS = (
    Metric("tiles", "px", _figure("tile_positions_px"), 0.06, 0.3),
    Metric("tiles, worst", "px", _detail("tile_positions_px", "largest")),
    Metric("tiles, stated bound", "px", _detail("tile_positions_px", "stated_px")),
    Metric(
        "tiles, over 0.3 px or their stated bound",
        "",
        _over_stated("tile_positions_px", "stated_px", 0.3),
        1,
        1,
    ),
    Metric("tiles, but for their stretch", "px", _detail("tile_positions_px", "fitted_px")),
    Metric(
        "tiles, but for their stretch, over the stated bound",
        "",
        _detail("tile_positions_px", "fitted_of_stated"),
        1,
        1,
    ),
    Metric("stretch of tiles", "%", _detail("tile_positions_px", "stretch_percent")),
    Metric(
        "stretch of tiles, over the stated bound",
        "",
        _detail("tile_positions_px", "stretch_of_stated"),
        1,
        1,
    ),
    Metric("slices across", "px", _figure("slice_xy_px"), 0.5, 0.5),
    Metric(
        "slices across, over 0.5 px or two stated standard errors",
        "",
        _over_stated("slice_xy_px", "sigma_px", 0.5, 2),
        1,
        1,
    ),
    Metric("slices in depth", "voxel", _figure("slice_z_voxel"), 0.5, 2),
    Metric("slice rotation", "deg", _figure("slice_rotation_deg"), 0.2, 0.2),
    Metric(
        "slice rotation, over 0.2 deg or two stated standard errors",
        "",
        _over_stated("slice_rotation_deg", "sigma_deg", 0.2, 2),
        1,
        1,
    ),
    Metric("neighbours apart locally", "um", _figure("slice_local_um"), 4, 4),
    Metric("neighbours apart in all", "um", _detail("slice_local_um", "with_rigid_part")),
    Metric("cut face", "voxel", _figure("interface_voxel"), 1, 1),
    Metric("cut face, A-lines", "voxel", _figure("interface_aline_voxel"), 1, 1),
    Metric("cut face, surface", "voxel", _figure("interface_surface_voxel"), 1, 1),
    Metric("focal surface", "voxel", _figure("focal_surface_voxel"), 1, 1),
    Metric("flat field", "%", _figure("flat_field_percent"), 2, 2),
    Metric(
        "flat field, over 2 % or its stated bound",
        "",
        _over_stated("flat_field_percent", "stated_percent", 2),
        1,
        1,
    ),
    Metric("µ of grey matter", "%", _figure("attenuation_grey_percent"), 10, 10),
    Metric("µ of grey matter, signed", "%", _detail("attenuation_grey_percent", "signed")),
    Metric("µ of white matter", "%", _figure("attenuation_white_percent"), 10, 10),
    Metric("µ of white matter, signed", "%", _detail("attenuation_white_percent", "signed")),
    Metric(
        "µ of grey matter, over 10 % or its stated error",
        "",
        _over_stated("attenuation_grey_percent", "stated_percent", 10),
        1,
        1,
    ),
    Metric(
        "µ of white matter, over 10 % or its stated error",
        "",
        _over_stated("attenuation_white_percent", "stated_percent", 10),
        1,
        1,
    ),
    Metric("brightness with depth", "%", _figure("axial_flatness_percent"), 5, 5),
    Metric("seams", "", _figure("seams"), 0.02, 0.02),
    Metric("correlation", "", _detail("correlation", "pearson"), 0.65, 0.65, at_least=True),
    Metric("correlation, ideal run", "", _detail("correlation", "pearson_ideal"), at_least=True),
    Metric(
        "correlation, true places", "", _detail("correlation_absolute", "placed"), at_least=True
    ),
    Metric("correlation, bound", "", _detail("correlation_absolute", "bound"), at_least=True),
    Metric("correlation over ideal", "", _of_ideal, 0.9, 0.9, at_least=True),
    Metric(
        "correlation over the better of ideal run and true places",
        "",
        _figure("correlation_of_placed"),
        0.9,
        0.9,
        at_least=True,
    ),
    Metric(
        "correlation over its bound", "", _figure("correlation_of_bound"), 0.9, 0.9, at_least=True
    ),
    Metric("good slices dropped", "", lambda r: float(len(r.get("left_out", ()))), 0, 0),
    Metric("flags raised", "", lambda r: float(len(r["flags"])) if "flags" in r else None),
    Metric("steps off without a flag", "", _silent, 0, 0),
)
"""Rows; docs/accuracy.md defines each metric. px and voxel are 10 µm."""


@dataclass(frozen=True)
class Distribution:
    """Median, 90th percentile towards the bad side, worst, and share within the target."""

    n: int
    median: float
    ninety: float
    worst: float
    share: float | None


def distribution(metric: Metric, values: Sequence[float], target: float | None) -> Distribution:
    """Summarise the values of a metric; at least one is needed."""
    # Signed metrics are bad on both sides.
    two_sided = metric.name.endswith("signed")
    size = abs if two_sided else (lambda v: -v if metric.at_least else v)
    ordered = sorted(values, key=size)
    middle = sorted(values)
    half = (middle[(len(middle) - 1) // 2] + middle[len(middle) // 2]) / 2
    within = None
    if target is not None:
        good = [v >= target if metric.at_least else v <= target for v in values]
        within = sum(good) / len(good)
    ninety = ordered[math.ceil(0.9 * len(ordered)) - 1]
    return Distribution(len(values), half, ninety, ordered[-1], within)


def values_of(metric: Metric, results: Sequence[Result]) -> dict[tuple[Any, ...], float]:
    """Return a metric's values by physics, where it was measured."""
    found = {}
    for result in results:
        if "figures" in result and (value := metric.read(result)) is not None:
            found[(result["seed"], *(result["only"] or ()))] = float(value)
    return found


def show(
    header: Mapping[str, Any],
    results: Sequence[Result],
    *,
    markdown: bool = False,
    by: str | None = None,
) -> str:
    """Return the distributions of a record as text."""
    if by == "effect":
        names = sorted({"+".join(r["only"] or ("all",)) for r in results})
        parts = []
        for name in names:
            chosen = [r for r in results if "+".join(r["only"] or ("all",)) == name]
            title = f"### {name}" if markdown else f"== {name}"
            parts.append(f"{title}\n\n{show(header, chosen, markdown=markdown)}")
        return "\n\n".join(parts)
    failed = [r for r in results if "error" in r]
    rows: list[tuple[str, ...]] = [("metric", "target", "n", "median", "90 %", "worst", "within")]
    for metric in METRICS:
        values = list(values_of(metric, results).values())
        if not values:
            continue
        target = metric.target(results)
        found = distribution(metric, values, target)
        rows.append(
            (
                metric.title,
                _target(metric, target),
                str(found.n),
                *(_number(v) for v in (found.median, found.ninety, found.worst)),
                "" if found.share is None else f"{100 * found.share:.0f} %",
            )
        )
    lines = [_table(rows, markdown)]
    lines.append("")
    lines.append(
        f"{len(results)} of {len(header['seeds'])} physics, {len(failed)} failed, "
        f"version {header.get('version', '?')}."
    )
    for result in failed:
        lines.append(f"- seed {result['seed']} {result['only'] or ''}: {result['error']}")
    return "\n".join(lines)


def compare(before: Sequence[Result], after: Sequence[Result], *, markdown: bool = False) -> str:
    """Return two records side by side, over the physics that both measured."""
    rows: list[tuple[str, ...]] = [
        ("metric", "target", "n", "median", "90 %", "worst", "within", "better", "worse")
    ]
    for metric in METRICS:
        old, new = (values_of(metric, results) for results in (before, after))
        both = sorted(set(old) & set(new), key=str)
        if not both:
            continue
        target = metric.target(after)
        first, second = (
            distribution(metric, [each[k] for k in both], target) for each in (old, new)
        )
        pairs = (
            f"{_number(a)} → {_number(b)}"
            for a, b in (
                (first.median, second.median),
                (first.ninety, second.ninety),
                (first.worst, second.worst),
            )
        )
        share = (
            ""
            if first.share is None or second.share is None
            else f"{100 * first.share:.0f} → {100 * second.share:.0f} %"
        )
        gain = [_gain(metric, old[k], new[k]) for k in both]
        rows.append(
            (
                metric.title, _target(metric, target), str(len(both)), *pairs, share,
                str(sum(g > 0 for g in gain)), str(sum(g < 0 for g in gain)),
            )
        )  # fmt: skip
    failures = [sum("error" in r for r in results) for results in (before, after)]
    return f"{_table(rows, markdown)}\n\nfailed: {failures[0]} → {failures[1]}"


def _gain(metric: Metric, old: float, new: float) -> float:
    """Return how much better the new value is; changes below one percent count as none."""
    if metric.name.endswith("signed"):
        old, new = abs(old), abs(new)
    gain = new - old if metric.at_least else old - new
    return gain if abs(gain) > 0.01 * max(abs(old), abs(new)) else 0.0


def _target(metric: Metric, target: float | None) -> str:
    if target is None:
        return ""
    return f"{'≥' if metric.at_least else '≤'} {target:g}"


def _number(value: float) -> str:
    return f"{value:.3g}"


def _table(rows: Sequence[tuple[str, ...]], markdown: bool) -> str:
    if markdown:
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        lines.insert(1, "|" + " --- |" * len(rows[0]))
        return "\n".join(lines)
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    )
