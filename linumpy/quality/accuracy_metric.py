"""Accuracy metric: a number, its unit, its target, and how many values it rests on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

AT_MOST = "<="
AT_LEAST = ">="


@dataclass(frozen=True)
class AccuracyMetric:
    """An accuracy metric.

    Attributes
    ----------
    value
        The metric, or None when it could not be measured (`details` says why).
    unit
        ``px`` and ``voxel`` are voxels of the model that was compared; empty for plain ratios.
    target
        The bound, or None when the metric only informs.
    comparison
        ``<=`` or ``>=``: on which side of the target a good value lies.
    n
        How many tiles, slices, pairs, pixels … the value rests on.
    passed
        Whether the target is met; None without a target or a value.
    details
        What helps to understand the value, as plain JSON.
    """

    value: float | None
    unit: str
    target: float | None
    n: int
    comparison: str = AT_MOST
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool | None:
        """Whether the target is met."""
        if self.value is None or self.target is None:
            return None
        if self.comparison == AT_MOST:
            return self.value <= self.target
        return self.value >= self.target

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> AccuracyMetric:
        """Read what `to_json` returned."""
        names = ("value", "unit", "target", "n", "comparison", "details")
        return cls(**{name: entry[name] for name in names})

    def to_json(self) -> dict[str, Any]:
        """Return the metric as plain JSON; numbers that are not finite become null."""
        return {
            "value": self.value,
            "unit": self.unit,
            "target": self.target,
            "n": self.n,
            "passed": self.passed,
            "comparison": self.comparison,
            "details": plain(self.details),
        }


def make_metric(
    value: float | None,
    unit: str,
    n: int,
    *,
    target: float | None = None,
    comparison: str = AT_MOST,
    **details: Any,
) -> AccuracyMetric:
    """Build a metric; a value that is not finite, or rests on nothing, counts as not measured."""
    if value is not None and (n < 1 or not math.isfinite(value)):
        value = None
    if value is None and "reason" not in details:
        details["reason"] = "nothing to measure it on"
    return AccuracyMetric(
        None if value is None else float(value), unit, target, int(n), comparison, details
    )


def not_measured(
    reason: str, unit: str, *, target: float | None = None, comparison: str = AT_MOST
) -> AccuracyMetric:
    """Return the placeholder of a metric that could not be measured."""
    return AccuracyMetric(None, unit, target, 0, comparison, {"reason": reason})


def plain(value: Any) -> Any:
    """Turn NumPy numbers and arrays, mappings and sequences into what JSON can hold."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def format_table(metrics: Mapping[str, AccuracyMetric]) -> str:
    """Lay metrics out as a table for the terminal, one a line."""
    rows = [("metric", "value", "target", "n", "")]
    for name, metric in metrics.items():
        value = "–" if metric.value is None else f"{metric.value:.3g} {metric.unit}".strip()
        sign = "≤" if metric.comparison == AT_MOST else "≥"
        target = "" if metric.target is None else f"{sign} {metric.target:g}"
        rows.append((name, value, target, str(metric.n), verdict(metric)))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = []
    for row in rows:
        name, value, target, n, mark = (
            cell.ljust(width) if column in (0, 4) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append(f"{name}  {value}  {target}  {n}  {mark}".rstrip())
    lines.insert(1, "-" * max(len(line) for line in lines))
    return "\n".join(lines)


def verdict(metric: AccuracyMetric) -> str:
    """Return pass, MISS, not measured or for information."""
    if metric.value is None:
        return "not measured"
    return {True: "pass", False: "MISS", None: "for information"}[metric.passed]
