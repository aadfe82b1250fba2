"""Judge the metrics of a stage: ``<stem>_metrics.json`` beside each model.

A stage's metrics are read from its model, so that they cost no pass over the data and no stage
has to think of them. They carry no time: files that are compared between runs would differ.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from linumpy.metrics.limits import ERROR, LIMITS, OK, WARNING, worst


@dataclass(frozen=True)
class Metric:
    """One metric: ``value`` is None where it could not be measured.

    `limits` are the first value that is not good any more, and the first that is bad.
    """

    value: float | int | None
    unit: str
    description: str
    status: str
    limits: tuple[float, float] | None = None


@dataclass
class StageMetrics:
    """All metrics of one stage, for one slice or the whole brain.

    Attributes
    ----------
    warnings, errors
        Sentences for a person; each raises the overall status.
    """

    step_name: str
    metrics: dict[str, Metric] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def add(
        self,
        name: str,
        value: float | int | None,
        unit: str,
        description: str,
        limits: str | None = None,
    ) -> None:
        """Add a metric.

        Parameters
        ----------
        name
            Unique in the stage.
        value
            None, NaN and infinities count as not measured, and are judged to be nothing wrong.
        limits
            Name in `linumpy.metrics.limits.LIMITS`; a metric without any is for information.
        """
        if value is not None:
            value = value if isinstance(value, int) else float(value)
            value = value if math.isfinite(value) else None
        status = OK if limits is None or value is None else LIMITS[limits].status(value)
        judged = None if limits is None else (LIMITS[limits].warning, LIMITS[limits].error)
        self.metrics[name] = Metric(value, unit, description, status, judged)

    @property
    def overall_status(self) -> str:
        """The worst of all metrics and remarks."""
        statuses = [metric.status for metric in self.metrics.values()]
        return worst(statuses + [WARNING] * bool(self.warnings) + [ERROR] * bool(self.errors))

    def as_json(self) -> dict[str, Any]:
        """Return the content of the file."""
        return {
            "step_name": self.step_name,
            "overall_status": self.overall_status,
            "metrics": {name: asdict(metric) for name, metric in self.metrics.items()},
            "warnings": self.warnings,
            "errors": self.errors,
        }
