"""State of a follower: ``verdicts.jsonl``, one line a slice, written in one piece."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from linumpy.core.errors import InputError
from linumpy.core.log import logger
from linumpy.follow.verdict import Verdict
from linumpy.follow.watch import Progress
from linumpy.store.atomic import write_json

VERDICTS_NAME = "verdicts.jsonl"
STOP_NAME = "STOP"
NOW_NAME = "now.json"
_LOCK_NAME = ".follow.lock"
KEPT_LINES = 32
"""Lines that stay in memory, which does not grow with the acquisition."""


def whole_lines(data: bytes) -> list[bytes]:
    """Return the lines of ``verdicts.jsonl``; what ends without a newline is being written."""
    return data[: data.rfind(b"\n") + 1].splitlines(keepends=True)


class Record:
    """The verdicts of a results folder; one follower at a time holds it.

    A line that a killed follower left half written is cut off when the record is opened. `lines`
    are all that were there then; from the first new verdict on, the last `KEPT_LINES`.

    Raises
    ------
    InputError
        When another follower holds the folder, or a whole line cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / _LOCK_NAME).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise InputError(
                f"{folder}: another linum_follow.py writes here; expected one a folder"
            ) from None
        self._path = folder / VERDICTS_NAME
        self._told: dict[str, Any] | None = {}
        data = self._path.read_bytes() if self._path.exists() else b""
        whole = whole_lines(data)
        if (n_bytes := sum(map(len, whole))) != len(data):
            os.truncate(self._path, n_bytes)
        self.lines: list[dict[str, Any]] = []
        for number, line in enumerate(whole, 1):
            try:
                self.lines.append(json.loads(line))
                int(self.lines[-1]["slice"])
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"{self._path}, line {number}: not a verdict ({error}); expected one JSON "
                    "object a line, with slice"
                ) from error
        self.judged = {int(line["slice"]) for line in self.lines}
        """Ids of the slices that have a verdict."""

    def __enter__(self) -> Record:
        return self

    def __exit__(self, *exc: object) -> None:
        self._lock.close()

    @property
    def stop_asked(self) -> bool:
        """Whether the folder holds a file ``STOP``."""
        return (self.folder / STOP_NAME).exists()

    def tell_progress(self, progress: Progress | None, *, is_judging: bool = False) -> None:
        """Keep ``now.json`` up to date, which the page reads; a failure hinders no verdict."""
        told = None if progress is None else {**asdict(progress), "is_judging": is_judging}
        if told == self._told:
            return
        self._told = told
        try:
            write_json(self.folder / NOW_NAME, told)
        except OSError as error:
            logger.debug("%s: not written (%s)", self.folder / NOW_NAME, error)

    def add(self, verdict: Verdict) -> dict[str, Any]:
        """Append a verdict in one write that has reached the disk on return."""
        if verdict.slice_id in self.judged:
            raise ValueError(f"slice {verdict.slice_id} was judged before")
        line = verdict.to_json()
        data = (json.dumps(line, allow_nan=False) + "\n").encode()
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(handle, data)
            os.fsync(handle)
        finally:
            os.close(handle)
        self.judged.add(verdict.slice_id)
        self.lines = [*self.lines, line][-KEPT_LINES:]
        return line
