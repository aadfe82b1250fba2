"""Registry of the functions that read metrics from models of stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from linumpy.metrics.stage_metrics import StageMetrics

Reader = Callable[[Any, StageMetrics], None]

READERS: dict[str, tuple[str, Reader]] = {}
"""Name of the stage and function that reads its metrics, by stem of the model's file."""


def metrics_of(stage: str, *stems: str) -> Callable[[Reader], Reader]:
    """Register the function that adds a stage's metrics, read from its model.

    Parameters
    ----------
    stage
        Its name, and the stem of its model.
    stems
        Other stems of such models.
    """

    def register(reader: Reader) -> Reader:
        READERS.update(dict.fromkeys((stage, *stems), (stage, reader)))
        return reader

    return register


def share_of(part: int, whole: int) -> float | None:
    """Return a share; None of nothing."""
    return part / whole if whole else None


def median_of(values: Iterable[float]) -> float | None:
    """Return the median; None of no values."""
    known = list(values)
    return float(np.median(known)) if known else None


def rms_per_axis(vectors: Iterable[np.ndarray]) -> float | None:
    """Return the RMS along each axis, pooled; None of no vectors."""
    known = np.array(list(vectors), float)
    return float(np.sqrt(np.mean(known**2))) if known.size else None


def slice_names(ids: Iterable[int]) -> str:
    """Return slice ids as text."""
    return ", ".join(f"z{slice_id:02d}" for slice_id in ids)
