"""What the report of a run found, from the head of its page."""

from __future__ import annotations

import html
import os
import re
from pathlib import Path

_TOLD = re.compile(r'<meta name="linumpy-(?:findings|problem)" content="([^"]*)">')
_NOTHING = "no problems"


def findings(report: Path) -> tuple[str, bool]:
    """Return what a report found, in lines, and whether that is a problem.

    ``linum_nextflow.py`` names a file for it (``LINUMPY_FAILURE``), to say it last of all; then it
    is written there, and nothing is returned.
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
        Path(place).write_text(text, encoding="utf-8")
        return "", False
    return text, told[0] != _NOTHING
