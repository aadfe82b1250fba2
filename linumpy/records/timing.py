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
    """One attempt at a task of a run.

    Attributes
    ----------
    status
        COMPLETED, CACHED (taken from an earlier launch), FAILED or ABORTED.
    attempt
        From 1 on.
    duration_s, realtime_s
        From submission to end, and at work.
    cpu_percent
        100 for a core that was busy all the time.
    read_bytes, write_bytes
        From and to disks.
    folder
        Its work folder.
    image
        The container image it ran in, as Nextflow names it.
    """

    process: str
    name: str
    status: str
    submit: datetime | None
    duration_s: float
    realtime_s: float
    peak_bytes: float | None
    tag: str = ""
    exit: int | None = None
    attempt: int = 1
    cpu_percent: float | None = None
    read_bytes: float | None = None
    write_bytes: float | None = None
    folder: str = ""
    image: str = ""

    @property
    def cached(self) -> bool:
        """Whether it was done in an earlier launch."""
        return self.status == "CACHED"

    @property
    def failed(self) -> bool:
        """Whether it came to no good end."""
        return self.status in ("FAILED", "ABORTED")

    @property
    def retried(self) -> bool:
        """Whether it was tried before in this launch."""
        return self.attempt > 1 and not self.cached


@dataclass(frozen=True)
class StageTime:
    """All tasks of one process together.

    Attributes
    ----------
    tasks
        Tasks; one that was tried three times is one.
    failed
        Tasks that failed in the end.
    retries
        Attempts after the first ones.
    total_s
        Time of all attempts, cached tasks with what they took when they ran.
    """

    process: str
    tasks: int
    cached: int
    failed: int
    total_s: float
    longest_s: float
    peak_bytes: float | None
    retries: int = 0
    read_bytes: float | None = None
    write_bytes: float | None = None


def find_trace(folder: Path) -> Path | None:
    """Return the newest trace file in a ``pipeline_info`` folder."""
    return max(traces(folder), key=lambda p: (p.stat().st_mtime, p.name), default=None)


def traces(folder: Path) -> list[Path]:
    """Return all trace files in a ``pipeline_info`` folder."""
    if not folder.is_dir():
        return []
    return [p for p in folder.glob("*trace*") if p.is_file() and p.suffix in (".txt", ".tsv")]


def read_trace(path: Path) -> list[Task]:
    """Read a trace; columns that it lacks count as unknown, lines cut short are dropped."""
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if None not in row.values()]
    return [_task(row) for row in rows]


def _task(row: Mapping[str, str]) -> Task:
    name = row.get("name", "?")
    process, _, rest = (row.get("process") or name).partition(" (")
    tag = row.get("tag") or (rest or name.partition(" (")[2]).removesuffix(")")
    return Task(
        process=process.split(":")[-1],
        name=name,
        tag="" if tag == "-" else tag,
        status=row.get("status", ""),
        exit=int(text) if (text := row.get("exit", "")).isdecimal() else None,
        attempt=int(text) if (text := row.get("attempt", "")).isdecimal() else 1,
        submit=_moment(row.get("submit", "")),
        duration_s=seconds(row.get("duration", "")),
        realtime_s=seconds(row.get("realtime", "")),
        cpu_percent=_number(row.get("%cpu", "").removesuffix("%")),
        peak_bytes=_bytes(row.get("peak_rss", "")),
        read_bytes=_bytes(row.get("read_bytes", "")),
        write_bytes=_bytes(row.get("write_bytes", "")),
        folder=_given(row.get("workdir", "")),
        image=_given(row.get("container", "")),
    )


def tasks_of(records: Iterable[Mapping[str, Any]]) -> list[Task]:
    """Return the tasks in a run's record, or those of a workflow that is still running.

    Parameters
    ----------
    records
        What `as_record` made, or ``process, tag, seconds`` each.
    """
    return [
        Task(
            process=str(record["process"]),
            name=f"{record['process']} ({record.get('tag', '')})",
            tag=str(record.get("tag", "")),
            status=str(record.get("status", "COMPLETED")),
            exit=record.get("exit"),
            attempt=int(record.get("attempt", 1)),
            submit=_moment(record.get("submitted") or ""),
            duration_s=float(record.get("duration_s", record.get("seconds", 0))),
            realtime_s=float(record.get("realtime_s", record.get("seconds", 0))),
            cpu_percent=record.get("cpu_percent"),
            peak_bytes=record.get("peak_rss_nbytes"),
            read_bytes=record.get("read_nbytes"),
            write_bytes=record.get("write_nbytes"),
        )
        for record in records
    ]


def as_record(task: Task) -> dict[str, Any]:
    """Return a task as a run's record keeps it."""
    return {
        "process": task.process,
        "tag": task.tag,
        "status": task.status,
        "exit": task.exit,
        "attempt": task.attempt,
        "submitted": None if task.submit is None else task.submit.astimezone().isoformat(),
        "duration_s": task.duration_s,
        "realtime_s": task.realtime_s,
        "cpu_percent": task.cpu_percent,
        "peak_rss_nbytes": _whole(task.peak_bytes),
        "read_nbytes": _whole(task.read_bytes),
        "write_nbytes": _whole(task.write_bytes),
    }


def by_stage(tasks: Iterable[Task]) -> list[StageTime]:
    """Sum tasks by process, in the order in which the processes first appear."""
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(task.process, []).append(task)
    return [_stage(process, members) for process, members in groups.items()]


def _stage(process: str, members: Sequence[Task]) -> StageTime:
    retries = sum(t.retried for t in members)
    return StageTime(
        process=process,
        tasks=len(members) - retries,
        cached=sum(t.cached for t in members),
        # Each further attempt follows one that failed.
        failed=max(0, sum(t.failed for t in members) - retries),
        retries=retries,
        total_s=sum(t.realtime_s for t in members),
        longest_s=max(t.realtime_s for t in members),
        peak_bytes=max((t.peak_bytes for t in members if t.peak_bytes), default=None),
        read_bytes=_sum(t.read_bytes for t in members),
        write_bytes=_sum(t.write_bytes for t in members),
    )


def wall_time_s(tasks: Sequence[Task]) -> float | None:
    """Return the time from the first submission to the last end, cached tasks left out."""
    spans = [
        (t.submit, t.submit + timedelta(seconds=t.duration_s))
        for t in tasks
        if t.submit is not None and not t.cached
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


def bytes_label(value: float | None) -> str:
    """Write a number of bytes the way a person says it; nothing where there is none."""
    if value is None:
        return ""
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.5:
            return f"{value:.{0 if value >= 99.5 else 1}f} {unit}"
    return f"{value / 1000:.1f} TB"


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _given(text: str) -> str:
    return "" if text.strip() in ("-", "") else text.strip()


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


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
