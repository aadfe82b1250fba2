"""Correlations with the truth, by depth below the face and by class."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from linumpy.quality.accuracy_metric import AT_LEAST, AccuracyMetric, make_metric, not_measured
from linumpy.quality.similarity import pearson
from linumpy.quality.slice_truth import CLASS_NAMES
from linumpy.quality.truth_grid import MIN_SHARE, TruthSlab

BOUND_TARGET = 0.9
_Row = dict[str, float | None]
NAMES = ("run", "ideal", "placed", "bound")
MIN_VOXELS = 50


class CorrelationTable:
    """Voxels of run, ideal run and bounds, for correlations by depth and class over all slices."""

    def __init__(self, voxel_um: float) -> None:
        self._voxel_um = voxel_um
        self._parts: list[dict[str, np.ndarray]] = []

    def add(
        self,
        slab: TruthSlab,
        mask: np.ndarray,
        volumes: Mapping[str, tuple[np.ndarray, np.ndarray]],
    ) -> None:
        """Keep the voxels of a slab; what a volume left empty counts as its mean."""
        part = {
            "truth": slab.clean[mask],
            "depth": np.nonzero(mask)[0],
            "class": slab.classes[mask],
        }
        for name, found in volumes.items():
            there = (found[1] >= MIN_SHARE) & mask
            fill = found[0][there].mean() if there.any() else 0.0
            part[name] = np.where(found[1] >= MIN_SHARE, found[0], fill)[mask]
        self._parts.append(part)

    def _of(self, name: str, key: str | None = None, value: int = 0) -> float | None:
        """Return the median over slices of a correlation, of all voxels or of some."""
        found = []
        for part in self._parts:
            if name not in part:
                return None
            chosen = slice(None) if key is None else part[key] == value
            pair = part[name][chosen], part["truth"][chosen]
            if pair[0].size >= MIN_VOXELS and np.isfinite(r := pearson(*pair)):
                found.append(r)
        return float(np.median(found)) if found else None

    def _row(self, key: str | None = None, value: int = 0) -> _Row:
        row = {name: self._of(name, key, value) for name in NAMES}
        ours, best = row["run"], row["ideal"]
        return {**row, "ratio": None if ours is None or not best else ours / best}

    def metrics(self) -> dict[str, AccuracyMetric]:
        """Return the correlation as it is, and over the bound."""
        depths = sorted({int(d) for part in self._parts for d in part["depth"]})
        by_depth = [
            {"depth_um": (d + 0.5) * self._voxel_um, **self._row("depth", d)} for d in depths
        ]
        by_class = {name: self._row("class", n) for n, name in CLASS_NAMES.items()}
        found = self._row()
        return {
            "correlation_absolute": make_metric(
                found["run"],
                "",
                len(self._parts),
                comparison=AT_LEAST,
                **{name: found[name] for name in NAMES[1:]},
                by_depth=by_depth,
                by_class=by_class,
            ),
            # Known weights are not the best where compensation errs: the better of both counts.
            "correlation_of_placed": self._relative("of placed", found, "ideal", "placed"),
            "correlation_of_bound": self._relative("of bound", found, "bound"),
        }

    def _relative(self, unit: str, found: _Row, *names: str) -> AccuracyMetric:
        """Return the run's correlation over the largest of those named."""
        ours = found["run"]
        known = [value for name in names if (value := found[name]) is not None]
        if ours is None or len(known) < len(names) or not max(known) > 0:
            return not_measured(
                "the truth lacks attenuation or noise, the run its models, or nothing is like it",
                unit,
                target=BOUND_TARGET,
                comparison=AT_LEAST,
            )
        return make_metric(
            ours / max(known),
            unit,
            len(self._parts),
            target=BOUND_TARGET,
            comparison=AT_LEAST,
            best=max(known),
        )
