"""Records of all launches into one output folder, ``pipeline_info/run_<time>.json``.

The workflow writes its part when a launch begins, and again when it ends; here the rest is
added: the tasks from Nextflow's trace, and what they computed with.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from linumpy.core.errors import InputError
from linumpy.io.models import read_json
from linumpy.records.environment import describe_environment, read_note
from linumpy.records.privacy import without_secrets
from linumpy.records.summary import summarise_notes
from linumpy.records.timing import Task, as_record, read_trace, tasks_of, traces
from linumpy.store.aside import clean
from linumpy.store.atomic import write_json
from linumpy.store.untrusted import quoted

logger = logging.getLogger("linumpy")

INFO = "pipeline_info"
LOCK = ".linumpy.lock"
RUNNING, COMPLETED, FAILED, INTERRUPTED = "running", "completed", "failed", "interrupted"

_STAMP = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d")
_NONE = type(None)
# What a record holds at least: when a launch begins, and when its tasks are known.
_BEGUN: dict[str, Any] = {
    "status": str,
    "started": str,
    "params": dict,
    "versions": (dict, _NONE),
    "container": (dict, _NONE),
    "counts": (dict, _NONE),
}
_COMPLETE: dict[str, Any] = {
    "status": str,
    "started": str,
    "params": dict,
    "versions": dict,
    "container": list,
    "gpus": (list, _NONE),
    "failed_tasks": list,
    "tasks": list,
}
_REPORT = "generate_pipeline_report"
_WAIT_S = 5.0
_POLL_S = 0.05


def read_launches(output: Path) -> dict[Path, dict[str, Any]]:
    """Return the records of an output folder's launches, first one first; none is an empty dict.

    One that is damaged, or a link, is named in a warning and left out.
    """
    launches = {}
    for path in sorted((output / INFO).glob("run_*.json")):
        if not _STAMP.search(path.name):
            continue
        try:
            launches[path] = _read_record(path)
        except InputError as error:
            logger.warning("%s; this launch is left out", error)
    return launches


def _read_record(path: Path) -> dict[str, Any]:
    if path.is_symlink():
        raise InputError(f"{path}: a link; expected the record of a launch")
    record = read_json(path)
    wanted = _COMPLETE if "tasks" in record else _BEGUN
    for name, kinds in wanted.items():
        if not isinstance(record.get(name), kinds):
            raise InputError(f"{path}: {name} is {quoted(record.get(name))}, not that of a launch")
    if record["status"] not in (RUNNING, COMPLETED, FAILED, INTERRUPTED):
        raise InputError(f"{path}: status is {quoted(record['status'])}, not that of a launch")
    try:
        _wall_s(record["started"], record.get("ended"))
        tasks_of(record.get("tasks", ()))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not the record of a launch ({error!r})") from error
    return record


def page_record(output: Path) -> dict[str, Any] | None:
    """Return the complete record of the launch that made the report, None where there is none."""
    for record in reversed(read_launches(output).values()):
        made = (t["status"] for t in record.get("tasks", ()) if t["process"] == _REPORT)
        if not {"COMPLETED", "CACHED"}.isdisjoint(made):
            return record
    return None


def finish_launches(output: Path) -> dict[Path, dict[str, Any]]:
    """Complete the records that lack their tasks, and return all.

    A record that still says ``running`` is that of a launch that was killed: the launches into a
    folder come one after another.

    Parameters
    ----------
    output
        Output folder of the pipeline.

    Raises
    ------
    InputError
        When there is no record, or the last launch is still under way.
    """
    launches = read_launches(output)
    if not launches:
        raise InputError(
            f"{output}: no {INFO}/run_*.json that can be read; expected the output folder of a run"
        )
    last = list(launches.values())[-1]
    if last["status"] == RUNNING and _is_locked(output / LOCK):
        raise InputError(f"{output}: a run is writing there; its record is made when it has ended")
    for path, record in launches.items():
        # Each launch has a file of its own: a later one would not come by what this one left.
        clean(path)
        trace = _trace_of(path)
        done = finish(record, trace) if "tasks" not in record else _with_late_tasks(record, trace)
        if done != record:
            launches[path] = done
            write_json(path, done)
    return launches


def finish(record: Mapping[str, Any], trace: Path | None) -> dict[str, Any]:
    """Return a launch's record with its tasks, and what they computed with.

    Parameters
    ----------
    record
        As the workflow wrote it.
    trace
        Nextflow's trace of the launch; None when it kept none.
    """
    tasks = [] if trace is None else _complete_trace(trace, record.get("counts") or {})
    tasks = _in_order(tasks)
    notes = [(task, read_note(Path(task.folder)) if task.folder else None) for task in tasks]
    found = summarise_notes(notes)
    if not found["versions"]:
        here = describe_environment()
        found |= {"versions": here["versions"], "machines": [here["machine"]], "gpus": None}
    status = INTERRUPTED if record["status"] == RUNNING else record["status"]
    return {
        **without_secrets(record),
        "status": status,
        "wall_s": _wall_s(record.get("started"), record.get("ended")),
        "versions": {**found["versions"], **(record.get("versions") or {})},
        "other_versions": found["other_versions"],
        "environment_of": "tasks" if found["gpus"] is not None else "launching machine",
        "machines": found["machines"],
        "gpus": found["gpus"],
        "container": _images(record.get("container") or {}, tasks),
        "failed_tasks": failed_tasks(tasks) if status != COMPLETED else [],
        "trace": None if trace is None else trace.name,
        "tasks": [as_record(task) for task in tasks],
    }


def _with_late_tasks(record: dict[str, Any], trace: Path | None) -> dict[str, Any]:
    """Add the tasks that were stopped: Nextflow lists them when all else is done."""
    tasks = [] if trace is None else _in_order(read_trace(trace))
    if len(tasks) <= len(record["tasks"]):
        return record
    return {**record, "tasks": [as_record(task) for task in tasks]}


def _in_order(tasks: list[Task]) -> list[Task]:
    """Return tasks as they were submitted; Nextflow lists them as they end."""
    return sorted(tasks, key=lambda task: task.submit or datetime.max)


def failed_tasks(tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """Return the tasks whose last attempt failed; those that were stopped for it do not count."""
    last = {task.name: task for task in sorted(tasks, key=lambda task: task.attempt)}
    return [
        {"process": t.process, "tag": t.tag, "exit": t.exit, "attempt": t.attempt}
        for t in last.values()
        if t.status == "FAILED"
    ]


def _complete_trace(trace: Path, counts: Mapping[str, Any]) -> list[Task]:
    """Read a trace; its last lines may come a moment after the last task."""
    wanted = sum(int(counts.get(name) or 0) for name in ("succeeded", "cached", "failed"))
    end = time.monotonic() + _WAIT_S
    tasks = read_trace(trace)
    while len(tasks) < wanted and time.monotonic() < end:
        time.sleep(_POLL_S)
        tasks = read_trace(trace)
    return tasks


def _trace_of(record: Path) -> Path | None:
    """Return the trace of a launch: the last one begun before its record, and after any other's."""
    stamp = _stamp(record)
    earlier = [other for p in record.parent.glob("run_*.json") if (other := _stamp(p)) < stamp]
    after = max(earlier, default="")
    found = [p for p in traces(record.parent) if after < _stamp(p) <= stamp]
    return max(found, key=_stamp, default=None)


def _stamp(path: Path) -> str:
    found = _STAMP.search(path.name)
    return found[0] if found else ""


def _wall_s(started: str | None, ended: str | None) -> float | None:
    if not started or not ended:
        return None
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(started)).total_seconds()


def _images(told: Mapping[str, Any], tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """Return the container images that tasks ran in, with the digest of each.

    Parameters
    ----------
    told
        ``engine``; ``images`` by name, each with what the engine says of it: its id, then digests
        in registries.
    """
    images = told.get("images") or {}
    names = sorted({task.image for task in tasks if task.image} or images)
    found = []
    for name in names:
        words = str(images.get(name) or "").split()
        path = Path(name)
        # Apptainer's images are files.
        if not words and path.is_absolute() and path.is_file():
            with path.open("rb") as file:
                words = [f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"]
        found.append(
            {
                "image": name,
                "engine": told.get("engine"),
                "id": words[0] if words else None,
                "digests": words[1:],
            }
        )
    return found


def _is_locked(path: Path) -> bool:
    """Whether another process holds the lock of an output folder."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise InputError(f"{path}: cannot be opened ({error.strerror})") from error
    with os.fdopen(lock, "r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        fcntl.lockf(file, fcntl.LOCK_UN)
    return False
