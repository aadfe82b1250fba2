"""Summarise the notes of all tasks: software, machines and GPUs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from linumpy.records.timing import Task


def summarise_notes(notes: Sequence[tuple[Task, Mapping[str, Any] | None]]) -> dict[str, Any]:
    """Sum up what tasks noted (`linumpy.records.environment`).

    Parameters
    ----------
    notes
        Each task, with its note or None.

    Returns
    -------
    ``versions`` of most tasks of this launch (of cached ones where nothing ran), empty without a
    note; ``other_versions``: ``tasks``, how many of them are ``cached``, and ``versions`` that
    differ, None for what was not there; ``machines`` and ``gpus``, most used first, with the
    number of ``tasks``, and of ``devices`` where GPUs have an identity.
    """
    known = [(task, note) for task, note in notes if note is not None]
    ran = [note["versions"] for task, note in known if not task.cached]
    versions = _most(ran or [note["versions"] for _, note in known])
    return {
        "versions": versions,
        "other_versions": _others(known, versions),
        "machines": [
            {**machine, "tasks": n} for machine, n in _counted(note["machine"] for _, note in known)
        ],
        "gpus": _gpus([note["gpus"] for _, note in known]),
    }


def _most(found: Sequence[Mapping[str, str]]) -> dict[str, str]:
    counted = _counted(found)
    return counted[0][0] if counted else {}


def _others(
    known: Sequence[tuple[Task, Mapping[str, Any]]], versions: Mapping[str, str]
) -> list[dict[str, Any]]:
    groups: dict[str, list[Task]] = {}
    for task, note in known:
        names = sorted(versions.keys() | note["versions"].keys())
        other = {n: v for n in names if (v := note["versions"].get(n)) != versions.get(n)}
        if other:
            groups.setdefault(json.dumps(other), []).append(task)
    return [
        {"tasks": len(tasks), "cached": sum(t.cached for t in tasks), "versions": json.loads(text)}
        for text, tasks in groups.items()
    ]


def _gpus(used: Iterable[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Count the tasks that used each kind of GPU, and the GPUs of that kind."""
    tasks: Counter[str] = Counter()
    devices: dict[str, set[str]] = {}
    for gpus in used:
        kinds = set()
        for gpu in gpus:
            kind = json.dumps({n: v for n, v in gpu.items() if n != "uuid"}, sort_keys=True)
            kinds.add(kind)
            devices.setdefault(kind, set()).update(filter(None, [gpu.get("uuid")]))
        tasks.update(kinds)
    return [
        {**json.loads(kind), "devices": len(devices[kind]) or None, "tasks": n}
        for kind, n in tasks.most_common()
    ]


def _counted(items: Iterable[Mapping[str, Any]]) -> list[tuple[dict[str, Any], int]]:
    """Return the different items with how often each occurs, the most frequent first."""
    counts = Counter(json.dumps(item, sort_keys=True) for item in items)
    return [(json.loads(text), n) for text, n in counts.most_common()]
