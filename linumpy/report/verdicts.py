"""Verdicts that were given while the acquisition was followed, as the report shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linumpy.core.errors import InputError
from linumpy.follow.state import VERDICTS_NAME, whole_lines
from linumpy.follow.verdict import LEVELS, LOOK, PASS, STOP, WORDS
from linumpy.store.untrusted import JSON_NBYTES, read_bounded

MARKS = {PASS: "pass", LOOK: "warning", STOP: "problem"}


@dataclass(frozen=True)
class SliceVerdict:
    """A line of ``verdicts.jsonl``.

    Attributes
    ----------
    reasons
        Kind, what was found with its tiles, and what to do, each as text.
    """

    slice_id: int
    verdict: str
    seconds: float | None
    reasons: tuple[tuple[str, str, str], ...]

    @property
    def name(self) -> str:
        """The slice as it is printed."""
        return f"z{self.slice_id:02d}"

    @property
    def words(self) -> str:
        """The verdict as it is printed."""
        return WORDS[self.verdict]

    @property
    def mark(self) -> str:
        """Its colour, by the severities of findings."""
        return MARKS[self.verdict]


def read_verdicts(run: Path) -> list[SliceVerdict]:
    """Return the verdicts in a run's folder, in the order of the slices; none without the file.

    Raises
    ------
    InputError
        Naming the line that is no verdict.
    """
    path = run / VERDICTS_NAME
    try:
        data = read_bounded(path, JSON_NBYTES)
    except FileNotFoundError:
        return []
    found = []
    for number, line in enumerate(whole_lines(data), 1):
        try:
            found.append(_verdict(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path}, line {number}: not a verdict ({error}); expected a line of "
                "linum_follow.py"
            ) from error
    return sorted(found, key=lambda each: each.slice_id)


def _verdict(line: Mapping[str, Any]) -> SliceVerdict:
    if line["verdict"] not in LEVELS:
        raise ValueError(f"verdict {line['verdict']!r}")
    seconds = line.get("seconds_after_last_tile")
    reasons = []
    for reason in line["reasons"]:
        tiles = ", ".join(map(str, reason.get("tiles", ())))
        text = f"{reason['text']} ({tiles})" if tiles else str(reason["text"])
        reasons.append((str(reason["kind"]), text, str(reason.get("advice", ""))))
    return SliceVerdict(
        int(line["slice"]),
        line["verdict"],
        None if seconds is None else float(seconds),
        tuple(reasons),
    )
