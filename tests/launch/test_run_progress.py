"""Progress of a run, by its plan and Nextflow's trace."""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path

import pytest

from linumpy.launch import run_progress
from linumpy.launch.run_progress import (
    PLAN,
    RunProgress,
    Work,
    note_plan,
    progress_text,
    read_trace,
)

WORKS = {"create": Work(4, 400.0), "stack": Work(1, 600.0)}
HEADER = "task_id\tprocess\tname\tstatus\n"


@pytest.mark.parametrize(
    ("ended", "elapsed_s", "said", "left_s"),
    [
        ({}, 0, "0 of 5 tasks, 0 %", 1000),
        # As planned: half of the first process took what it should.
        ({("create", "COMPLETED"): 2, ("create", "FAILED"): 3}, 200, "2 of 5 tasks, 20 %", 800),
        # Twice as slow as planned; the plan still counts for a minute.
        ({("create", "COMPLETED"): 4}, 800, "4 of 5 tasks, 40 %", 600 * 860 / 460),
        # What was cached is done, and tells nothing of the speed.
        ({("create", "CACHED"): 4, ("other", "CACHED"): 9}, 0, "4 of 5 tasks, 40 %", 600),
        ({("create", "CACHED"): 4, ("stack", "COMPLETED"): 2}, 600, "5 of 5 tasks, 100 %", 0),
    ],
)
def test_time_to_go_is_the_plans_at_the_speed_so_far(
    ended: dict[tuple[str, str], int], elapsed_s: float, said: str, left_s: float
) -> None:
    text, left = progress_text(WORKS, ended, elapsed_s)
    assert (text, left) == (said, pytest.approx(left_s))


def test_a_trace_that_is_being_written(tmp_path: Path) -> None:
    trace = tmp_path / "trace.tsv"
    rows = "1\ta:create\tx\tCOMPLETED\n2\ta:b:create\tx\tCACHED\n3\tstack\tx\tCOMPL"
    trace.write_text(HEADER + rows)
    assert read_trace(trace) == {("create", "COMPLETED"): 1, ("create", "CACHED"): 1}
    trace.write_text("")
    assert read_trace(trace) == {}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an output folder with a trace of now, and of an earlier launch; a plan is noted."""
    monkeypatch.setenv("LINUMPY_FAILURE", str(tmp_path / "end.txt"))
    output = tmp_path / "out"
    plan = {
        "resources": {"cores": 2},
        "processes": [
            {"name": "create", "n_tasks": 4, "total_s": 796},
            {"name": "stack", "n_tasks": 1, "total_s": 599},
            {"name": "interpolate", "n_tasks": 0, "total_s": 0},
        ],
    }
    note_plan(plan, str(output))
    assert not (tmp_path / PLAN).exists()
    (tmp_path / "end.txt").touch()
    note_plan(plan, str(output))
    note = json.loads((tmp_path / PLAN).read_text())
    assert {name: Work(*work) for name, work in note["processes"].items()} == WORKS
    info = output / "pipeline_info"
    info.mkdir(parents=True)
    row = "1\ta:create\tx\tCOMPLETED\n"
    for ago_s, rows in ((0, 2 * row), (3600, 4 * row)):
        name = time.strftime("trace_%Y-%m-%d_%H-%M-%S.tsv", time.localtime(time.time() - ago_s))
        (info / name).write_text(HEADER + rows)
    return output


def looked(stream: io.StringIO, folder: Path, monkeypatch: pytest.MonkeyPatch, *at_s: float) -> str:
    start = time.time()
    monkeypatch.setattr(run_progress.time, "time", lambda: start)
    progress = RunProgress(folder, stream)
    for second in at_s:
        monkeypatch.setattr(run_progress.time, "time", lambda second=second: start + second)
        progress.look()
    progress.end()
    return stream.getvalue()


def test_a_line_a_minute_where_there_is_no_terminal(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen to fail with moments to go where tasks take longer than planned."""
    told = looked(io.StringIO(), output.parent, monkeypatch, 1, 30, 61, 62, 130, 900)
    assert told.splitlines() == [
        # A fifth of the plan was done when it was first looked at.
        "linum_nextflow.py: 2 of 5 tasks, 20 %, about 4 min to go",
        "linum_nextflow.py: 2 of 5 tasks, 20 %, about 3 min to go",
        "linum_nextflow.py: 2 of 5 tasks, 20 %, longer than planned",
    ]


def test_earlier_trace_is_ignored(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen to fail where the last trace is taken, whenever it began."""
    max((output / "pipeline_info").iterdir()).unlink()
    told = looked(io.StringIO(), output.parent, monkeypatch, 61)
    assert told == "linum_nextflow.py: 0 of 5 tasks, 0 %, about 16 min to go\n"


def test_a_terminal_has_it_in_the_last_row(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(
        run_progress.shutil, "get_terminal_size", lambda: os.terminal_size((30, 24))
    )
    told = looked(Terminal(), output.parent, monkeypatch, 3)
    assert told == (
        "\n\0337\033[1;23r\0338\033[1A"
        "\0337\033[24;1H\033[2K2 of 5 tasks, 20 %, about 3 m\0338"
        "\0337\033[r\033[24;1H\033[2K\0338"
    )
    monkeypatch.setenv("TERM", "dumb")
    assert looked(Terminal(), output.parent, monkeypatch, 3) == ""


def test_without_a_plan_nothing_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert looked(io.StringIO(), tmp_path, monkeypatch, 30, 100) == ""
