"""Times of tasks from Nextflow's trace file."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PREFIX = {"B": 1.0, "KB": 2.0**10, "MB": 2.0**20, "GB": 2.0**30, "TB": 2.0**40}


@dataclass(frozen=True)
class Task:
    """One task of a run."""

    process: str
    name: str
    status: str
    submit: datetime | None
    duration_s: float
    realtime_s: float
    peak_bytes: float | None


@dataclass(frozen=True)
class StageTime:
    """All tasks of one process together."""

    process: str
    tasks: int
    cached: int
    failed: int
    total_s: float
    longest_s: float
    peak_bytes: float | None


def find_trace(folder: Path) -> Path | None:
    """Return the newest trace file in a ``pipeline_info`` folder."""
    if not folder.is_dir():
        return None
    found = [p for p in folder.glob("*trace*") if p.is_file() and p.suffix in (".txt", ".tsv")]
    return max(found, key=lambda p: (p.stat().st_mtime, p.name), default=None)


def read_trace(path: Path) -> list[Task]:
    """Read a trace; columns that it lacks count as unknown, lines cut short are dropped."""
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if None not in row.values()]
    return [
        Task(
            process=(row.get("process") or row.get("name", "?")).split(" (")[0].split(":")[-1],
            name=row.get("name", "?"),
            status=row.get("status", ""),
            submit=_moment(row.get("submit", "")),
            duration_s=seconds(row.get("duration", "")),
            realtime_s=seconds(row.get("realtime", "")),
            peak_bytes=_bytes(row.get("peak_rss", "")),
        )
        for row in rows
    ]


def tasks_of(records: Iterable[Mapping[str, Any]]) -> list[Task]:
    """Return tasks that a workflow tells of itself: ``process, tag, seconds`` each."""
    return [
        Task(
            process=str(record["process"]),
            name=f"{record['process']} ({record.get('tag', '')})",
            status="COMPLETED",
            submit=None,
            duration_s=float(record["seconds"]),
            realtime_s=float(record["seconds"]),
            peak_bytes=None,
        )
        for record in records
    ]


def by_stage(tasks: Iterable[Task]) -> list[StageTime]:
    """Sum tasks by process, in the order in which the processes first appear."""
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(task.process, []).append(task)
    return [
        StageTime(
            process=process,
            tasks=len(members),
            cached=sum(t.status == "CACHED" for t in members),
            failed=sum(t.status in ("FAILED", "ABORTED") for t in members),
            total_s=sum(t.realtime_s for t in members),
            longest_s=max(t.realtime_s for t in members),
            peak_bytes=max((t.peak_bytes for t in members if t.peak_bytes), default=None),
        )
        for process, members in groups.items()
    ]


def wall_time_s(tasks: Sequence[Task]) -> float | None:
    """Return the time from the first submission to the last end, cached tasks left out."""
    spans = [
        (t.submit, t.submit + timedelta(seconds=t.duration_s))
        for t in tasks
        if t.submit is not None and t.status != "CACHED"
    ]
    if not spans:
        return None
    return (max(end for _, end in spans) - min(start for start, _ in spans)).total_seconds()


def seconds(text: str) -> float:
    """Read a duration such as ``1h 2m 3.5s`` or ``120ms``; plain numbers are milliseconds.

    What cannot be read counts as 0.
    """
    text = text.strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text) / 1000
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\b", text)
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def duration_label(value_s: float | None) -> str:
    """Write a duration the way a person says it."""
    if value_s is None:
        return "unknown"
    if value_s < 10:
        return f"{value_s:.1f} s"
    whole = round(value_s)
    hours, minutes, rest = whole // 3600, whole % 3600 // 60, whole % 60
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _bytes(text: str) -> float | None:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?B)?\s*", text)
    return float(match.group(1)) * _PREFIX[match.group(2) or "B"] if match else None


def _moment(text: str) -> datetime | None:
    text = text.strip()
    if re.fullmatch(r"\d{12,}", text):
        return datetime.fromtimestamp(int(text) / 1000)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
