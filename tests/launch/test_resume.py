"""Work folders as a resumed run finds them, without a launch."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from linumpy.core.errors import LinumpyError
from linumpy.launch.resume import mend_work

from .test_claim import begin, kept

SESSION = "s-1"
MOMENT = 1_700_000_000_123_456_789


def make_task(work: Path, name: str, status: str | None = "0", noted: str = SESSION) -> Path:
    """Make the folder of a task that left one file."""
    folder = work / "ab" / name
    (folder / "out").mkdir(parents=True)
    (folder / "out" / "a").write_text("12345")
    os.utime(folder / "out" / "a", ns=(MOMENT, MOMENT))
    (folder / "staged").symlink_to(folder / "out")
    (folder / ".command.run").write_text(f"#!/bin/bash\n### name: 'p ({name})'\n")
    (folder / ".linumpy_files").write_text(f"session {noted}\n5 1700000000.123 ./out/a\nend\n")
    if status is not None:
        (folder / ".exitcode").write_text(status)
    return folder


def never() -> None:
    raise AssertionError("nothing to wait for")


def mend(work: Path, pause: Callable[[], None] = never) -> list[str]:
    warned: list[str] = []
    mend_work(work, SESSION, warned.append, pause)
    return warned


def listed(folder: Path, line: str) -> None:
    notes = folder / ".linumpy_files"
    notes.write_text(notes.read_text().replace("5 1700000000.123 ./out/a", line))


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "gone": (lambda f: (f / "out" / "a").unlink(), "out/a is missing"),
    "more": (lambda f: (f / "b").touch(), "b was added since it ended"),
    "size": (lambda f: listed(f, "4 1700000000.123 ./out/a"), "out/a was changed since it ended"),
    "time": (lambda f: os.utime(f / "out" / "a"), "out/a was changed since it ended"),
    "line": (lambda f: listed(f, "5 ./out/a"), "its list of files holds a line that is none: 5 "),
    "end": (lambda f: (f / ".linumpy_files").write_text(f"session {SESSION}\n"), "it noted no end"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_task_whose_files_are_not_what_it_left_runs_again(tmp_path: Path, kind: str) -> None:
    """Seen to fail where `_change_in` finds nothing."""
    other, folder = make_task(tmp_path, "01"), make_task(tmp_path, "02")
    change, reason = CHANGES[kind]
    change(folder)
    (line,) = mend(tmp_path)
    assert line.startswith(f"p (02) in {folder} runs again: {reason}")
    assert (other / ".exitcode").exists() and not (folder / ".exitcode").exists()
    assert (folder / ".exitcode.unusable").read_text() == "0"
    # It is known now, and left alone.
    assert mend(tmp_path) == [] and (folder / ".command.run").exists()


@pytest.mark.parametrize("time", ["1700000000.123", "1700000000"])
def test_times_are_noted_with_milliseconds_or_without(tmp_path: Path, time: str) -> None:
    folder = make_task(tmp_path, "01")
    listed(folder, f"5 {time} ./out/a")
    assert mend(tmp_path) == []


def test_what_others_left_and_what_failed(tmp_path: Path) -> None:
    """Seen to fail without the last loop of `mend_work`."""
    theirs = make_task(tmp_path, "01", None, "s-2")
    failed = make_task(tmp_path, "02", "1")
    begun = make_task(tmp_path, "03", None)
    assert mend(tmp_path) == []
    assert (theirs / "out" / "a").exists()
    assert not (failed / ".exitcode").exists() and (failed / "out" / "a").exists()
    assert list(begun.iterdir()) == [] and not list(begun.parent.glob(".*"))


def test_running_task_is_reported_and_waited_for(tmp_path: Path) -> None:
    """Seen to fail without `_wait_for`: the folder was emptied under the task."""
    folder = make_task(tmp_path, "01", None)
    warned: list[str] = []
    with (folder / ".linumpy_lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        def pause() -> None:
            assert warned == [
                f"p (01) in {folder}: is still at work for a launch that was killed; "
                "waiting for it to end"
            ]
            if len(looks) == 2:
                (folder / ".exitcode").write_text("0")
                fcntl.flock(lock, fcntl.LOCK_UN)
            looks.append(None)

        looks: list[None] = []
        mend_work(tmp_path, SESSION, warned.append, pause)
        assert len(looks) == 3 and len(warned) == 1
        assert (folder / ".exitcode").read_text() == "0" and (folder / "out" / "a").exists()

        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / ".exitcode").unlink()

        def stop() -> None:
            raise LinumpyError("stopped")

        with pytest.raises(LinumpyError, match="stopped"):
            mend(tmp_path, stop)
        assert (folder / "out" / "a").exists()


def test_waiting_is_reported_at_once_and_can_be_stopped(tmp_path: Path) -> None:
    """By the process beside Nextflow. Seen to fail without `_is_stopped`: it waited on."""
    output, work = tmp_path / "out", tmp_path / "work"
    folder = make_task(work, "01", None)
    record = {"revision": {}, "session": SESSION}
    request = begin(output) | {"work_dir": str(work), "mend": True, "record": record}
    with (folder / ".linumpy_lock").open("w") as lock, kept(output) as keeper:
        fcntl.flock(lock, fcntl.LOCK_EX)
        first = keeper.ask(**request)
        assert first["more"] and "is still at work" in first["warnings"][0]
        keeper.process.send_signal(signal.SIGINT)
        assert keeper.process.stdout is not None
        assert json.loads(keeper.process.stdout.readline())["error"].startswith("stopped while")
        assert (folder / "out" / "a").exists()
