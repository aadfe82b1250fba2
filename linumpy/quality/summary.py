"""Summarise a run in a few lines for a terminal."""

from __future__ import annotations

from pathlib import Path

from linumpy.core.errors import InputError
from linumpy.quality.accuracy_metric import AccuracyMetric, format_table
from linumpy.quality.run import Run


def summarize_run(path: Path | str) -> str:
    """Return the accuracy table, when there is one, and where brain, report and images lie.

    Raises
    ------
    InputError
        When the folder holds no brain.
    """
    path = Path(path)
    run = Run(path)
    brain = run.brain_path
    if brain is None:
        raise InputError(f"{path}: no brain (*.ome.zarr) in it; expected a finished run")
    lines = []
    if run.accuracy is not None:
        metrics = {name: AccuracyMetric.from_json(entry) for name, entry in run.accuracy.items()}
        lines += [format_table(metrics), ""]
    places = {
        "Brain": brain,
        "Report": path / "report.html",
        "Preview": path / "previews" / f"{brain.name.removesuffix('.ome.zarr')}.png",
    }
    lines += [f"{name + ':':9}{place}" for name, place in places.items() if place.exists()]
    return "\n".join(lines)
