"""Protocol between workflow and Python: JSON, a line each."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from linumpy.core.errors import LinumpyError
from linumpy.launch.problems import ProblemsError

REFUSAL = "refusal.txt"
"""Why a launch was refused, beside the file that ``LINUMPY_FAILURE`` names."""

Answer = dict
"""``error`` ends the launch; ``warnings`` are shown. With ``more``, another line follows."""


def answer(action: Callable[[dict[str, Any]], Answer], asked: dict[str, Any]) -> Answer:
    """Return what an action answers, or its error."""
    try:
        return action(asked)
    except ProblemsError as error:
        return {"error": _told(error.lines())}
    except LinumpyError as error:
        return {"error": str(error)}
    except OSError as error:
        return {"error": f"{error.filename or 'the launch'}: {error.strerror}"}


def _told(lines: list[str]) -> str:
    """Return what Nextflow says of a refusal: all, or its head where the launcher says it."""
    place = os.environ.get("LINUMPY_FAILURE")
    if not place or len(lines) == 1 or not Path(place).exists():
        return "\n".join(lines)
    Path(place).with_name(REFUSAL).write_text("\n".join(lines), encoding="utf-8")
    return lines[0]


def tell(answers: TextIO, told: Answer) -> None:
    """Write an answer at once."""
    print(json.dumps(told), file=answers, flush=True)
