"""Check and mend the work folder of earlier launches before a resumed run starts.

Nextflow takes the outputs of a finished task as they are, and gives the folder of an unfinished one
to a new task, be the old one still at work. ``conf/base.config`` has each task note whose it is,
hold a lock, and list what it leaves.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_NOTES, _STATUS, _UNUSABLE = ".linumpy_files", ".exitcode", ".exitcode.unusable"
_NAME = re.compile(r"^### name: '(.*)'$", re.MULTILINE)
_LISTED = re.compile(r"(\d+) (\d+(?:\.\d+)?) \./(.+)")
_WORKERS = 8

Warn = Callable[[str], None]


def mend_work(work: Path, session: str, warn: Warn, pause: Callable[[], None]) -> None:
    """Have a resumed run take up only what is finished and as it was left.

    Waits for tasks that a killed launch left running, cleans up after those that are no more, and
    has tasks run again whose files are not what they left, or that could not do all their slices.

    Parameters
    ----------
    work, session
        Work folder and id of Nextflow's session; only its tasks can be taken up.
    warn
        Called with each line to show, at once.
    pause
        Called between two looks at a task that is still at work; raises to give up.
    """
    for folder in _unfinished(work, session):
        _wait_for(folder, warn, pause)
    for folder in _unfinished(work, session):
        _empty(folder, warn)
    tasks = [(folder, _status(folder)) for folder in _own_tasks(work, session)]
    finished = [folder for folder, status in tasks if status == "0"]
    with ThreadPoolExecutor(_WORKERS) as pool:
        changes = list(pool.map(lambda folder: _failed_in(folder) or _change_in(folder), finished))
    for folder, change in zip(finished, changes):  # noqa: B905 - Python 3.9 has no `strict`
        if change:
            warn(f"{_task_name(folder)} runs again: {change}")
            _set_aside(folder)
    # A scheduler's tasks are identified by their status, and these folders may be used again.
    for folder, status in tasks:
        if status not in (None, "0"):
            _set_aside(folder)


def _own_tasks(work: Path, session: str) -> list[Path]:
    tops = (path for path in _listed(work) if re.fullmatch("[0-9a-f]{2}", path.name))
    folders = (folder for top in tops for folder in _listed(top))
    return [folder for folder in folders if _notes(folder)[0] == f"session {session}"]


def _unfinished(work: Path, session: str) -> list[Path]:
    """Return folders without a status. Nextflow remembers one that was set aside, and avoids it."""
    own = _own_tasks(work, session)
    return [f for f in own if _status(f) is None and not (f / _UNUSABLE).exists()]


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _notes(folder: Path) -> list[str]:
    text = _text(folder / _NOTES)
    return text.split("\n")[:-1] if text.endswith("\n") else text.split("\n")


def _status(folder: Path) -> str | None:
    return _text(folder / _STATUS).strip() or None


def _text(path: Path) -> str:
    """Return what a file holds, nothing where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        return ""


def _task_name(folder: Path) -> str:
    """Return what Nextflow calls the task of a folder: its script says so."""
    match = _NAME.search(_text(folder / ".command.run"))
    return f"{match[1] if match else 'a task'} in {folder}"


def _wait_for(folder: Path, warn: Warn, pause: Callable[[], None]) -> None:
    """Wait until no process holds the task's lock. Its result counts, should it come to one."""
    told = False
    while _is_locked(folder / ".linumpy_lock"):
        if not told:
            warn(
                f"{_task_name(folder)}: is still at work for a launch that was killed; "
                "waiting for it to end"
            )
            told = True
        pause()


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        # No lock was made, or the file system has none.
        pass
    return False


def _empty(folder: Path, warn: Warn) -> None:
    """Replace a folder by an empty one.

    Nextflow may put a new task into it; or it knows it for one that failed, and looks for a later
    attempt as long as it is there.
    """
    aside = folder.with_name(f".{folder.name}")
    folder.rename(aside)
    folder.mkdir()
    try:
        shutil.rmtree(aside)
    except OSError:
        warn(f"{aside}: left by a launch that was killed, cannot be removed")


def _set_aside(folder: Path) -> None:
    """Take away a task's status: without one it did not finish."""
    (folder / ".command.begin").unlink(missing_ok=True)
    (folder / _STATUS).replace(folder / _UNUSABLE)


def _change_in(folder: Path) -> str | None:
    """Return how a finished task's files differ from those that it left; None where they do not."""
    notes = _notes(folder)
    if notes[-1] != "end":
        return "it noted no end"
    left = {}
    for line in notes[1:-1]:
        match = _LISTED.fullmatch(line)
        if match is None:
            return f"its list of files holds a line that is none: {line}"
        left[match[3]] = (int(match[1]), match[2])
    found = dict(_files(str(folder)))
    for name in left:
        if name not in found:
            return f"{name} is missing"
    for name in sorted(found):
        if name not in left:
            return f"{name} was added since it ended"
    for name, (nbytes, time) in left.items():
        if nbytes != found[name].st_size or not _is_same_time(time, found[name].st_mtime_ns):
            return f"{name} was changed since it ended"
    return None


def _failed_in(folder: Path) -> str | None:
    """Return which slice of a group failed, by the records that the task left; None for none."""
    for path in _listed(folder / "records"):
        record = json.loads(_text(path))
        if record["status"] == "failed":
            return f"slice z{record['slice_id']:02d} failed"
    return None


def _files(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield regular files by their name below a folder.

    Staged inputs are links, and hidden files of the folder itself are not the task's.
    """
    waiting = [""]
    while waiting:
        below = waiting.pop()
        with os.scandir(f"{root}/{below}") as entries:
            for entry in entries:
                if not below and entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(f"{below}{entry.name}/")
                elif entry.is_file(follow_symlinks=False):
                    yield below + entry.name, entry.stat(follow_symlinks=False)


def _is_same_time(text: str, found_ns: int) -> bool:
    """Whether a time noted in seconds, with or without milliseconds, is a file's."""
    seconds, point, fraction = text.partition(".")
    if not point:
        return int(seconds) == found_ns // 10**9
    return int(seconds) * 1000 + int(fraction.ljust(3, "0")[:3]) == found_ns // 10**6
