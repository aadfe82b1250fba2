"""Read the findings of a run from the head of its report."""

from __future__ import annotations

import html
import os
import re
from pathlib import Path

from linumpy.core.log import duration

_TOLD = re.compile(r'<meta name="linumpy-(?:findings|problem)" content="([^"]*)">')
_RESULTS = (".ome.zarr", ".nii.gz")
_NOTHING = "no problems"


def made(folder: Path, subject: str, seconds: float) -> str:
    """Return the results of a run that lie directly in its output folder, brain first."""
    if not subject:
        return ""
    names = [path.name for path in folder.glob(f"{subject}[._]*") if path.name.endswith(_RESULTS)]
    if not names:
        return ""
    first, *more = sorted(names, key=lambda name: (name.endswith(".gz"), len(name), name))
    also = f" (also {', '.join(more)})" if more else ""
    return f"made {folder / first}{also} in {duration(seconds)}"


def findings(report: Path, done: str = "") -> tuple[str, bool]:
    """Return what a report found, in lines, and whether that is a problem.

    ``linum_nextflow.py`` names a file for it (``LINUMPY_FAILURE``), to say it last of all; then it
    is written there, below what was `done`, and nothing is returned.
    """
    try:
        head, _, _ = report.read_text(encoding="utf-8").partition("<style>")
    except OSError:
        return "", False
    told = [html.unescape(text) for text in _TOLD.findall(head)]
    if not told:
        return "", False
    text = "\n  ".join([f"{told[0]}, see the report: {report}", *told[1:]])
    place = os.environ.get("LINUMPY_FAILURE")
    if place and Path(place).exists():
        Path(place).write_text("\n".join(filter(None, [done, text])), encoding="utf-8")
        return "", False
    return text, told[0] != _NOTHING
