"""Progress of a run, with the time that is left.

The plan says what there is to do, Nextflow's trace what is done. ``linum_nextflow.py`` shows it: on
a terminal in the last row, elsewhere as a line a minute.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from linumpy.core.log import duration

PLAN = "plan.json"
_LINE_S = 60.0
_LOOK_S = 2.0
_FEW_ROWS = 8
# As much of what was planned counts before what was measured does.
_TRUST_S = 60.0
_START_S = 1.0
_DONE = ("COMPLETED", "CACHED")


class Work(NamedTuple):
    """Tasks of a process, and the seconds of the run that they take, side by side as they go."""

    n_tasks: int
    seconds: float


def note_plan(plan: Mapping[str, Any], output: str) -> None:
    """Leave for ``linum_nextflow.py`` what there is to do, beside the file that it named."""
    place = os.environ.get("LINUMPY_FAILURE")
    if not place or not Path(place).exists():
        return
    cores = max(1, plan["resources"]["cores"])
    works = {
        process["name"]: Work(
            process["n_tasks"],
            (process["total_s"] + _START_S * process["n_tasks"]) / min(cores, process["n_tasks"]),
        )
        for process in plan["processes"]
        if process["n_tasks"]
    }
    note = {"output": str(Path(output).absolute()), "processes": works}
    Path(place).with_name(PLAN).write_text(json.dumps(note), encoding="utf-8")


def read_trace(path: Path) -> Counter[tuple[str, str]]:
    """Return how many tasks ended, by process and status; a last line may be half written."""
    found: Counter[tuple[str, str]] = Counter()
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    if not lines:
        return found
    header = lines[0].split("\t")
    process, status = header.index("process"), header.index("status")
    for line in lines[1:]:
        cells = line.split("\t")
        if len(cells) == len(header):
            found[cells[process].split(":")[-1], cells[status]] += 1
    return found


def progress_text(
    works: Mapping[str, Work], ended: Mapping[tuple[str, str], int], elapsed_s: float
) -> tuple[str, float]:
    """Return how far a run is in words, and the seconds that are left.

    Parameters
    ----------
    ended
        From `read_trace`. What was cached counts as done, and not for the speed.
    elapsed_s
        Since the run began.
    """
    total = sum(work.seconds for work in works.values())
    n_tasks = sum(work.n_tasks for work in works.values())
    done_s = ran_s = 0.0
    n_done = 0
    for name, work in works.items():
        counts = [min(ended.get((name, status), 0), work.n_tasks) for status in _DONE]
        n_ended = min(sum(counts), work.n_tasks)
        n_done += n_ended
        done_s += work.seconds * n_ended / work.n_tasks
        ran_s += work.seconds * counts[0] / work.n_tasks
    speed = (ran_s + _TRUST_S) / (elapsed_s + _TRUST_S)
    left_s = (total - done_s) / speed
    share = int(100 * done_s / total) if total else 0
    return f"{n_done} of {n_tasks} tasks, {share} %", left_s


class RunProgress:
    """Show a run's progress at each update.

    Parameters
    ----------
    folder
        Where `note_plan` leaves the plan.
    stream
        A terminal, or what a batch system keeps.
    """

    def __init__(self, folder: Path, stream: TextIO = sys.stderr) -> None:
        self._folder, self._stream = folder, stream
        self._started = self._looked = self._told = time.time()
        self._works: dict[str, Work] = {}
        self._output = Path()
        self._ended: Counter[tuple[str, str]] = Counter()
        self._changed = self._started
        self._rows = 0
        dumb = os.environ.get("TERM", "dumb") == "dumb"
        self._on_terminal = stream.isatty() and not dumb

    def look(self) -> None:
        """Show how far the run is, if it is time to."""
        now = time.time()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        text = self._text(now)
        if text is None:
            return
        if self._on_terminal:
            self._draw(text)
        elif now - self._told >= _LINE_S:
            print(f"linum_nextflow.py: {text}", file=self._stream, flush=True)
            self._told = now

    def _text(self, now: float) -> str | None:
        if not self._works:
            try:
                note = json.loads((self._folder / PLAN).read_text(encoding="utf-8"))
            except (OSError, ValueError):
                return None
            self._works = {name: Work(*work) for name, work in note["processes"].items()}
            self._output = Path(note["output"])
        traces = (self._output / "pipeline_info").glob("trace_*.tsv")
        try:
            mine = [path for path in traces if _began(path) >= self._started - 2]
            ended = read_trace(max(mine, key=_began)) if mine else Counter()
        except (OSError, ValueError):
            ended = self._ended
        if ended != self._ended:
            self._ended, self._changed = ended, now
        said, left_s = progress_text(self._works, ended, self._changed - self._started)
        waited_s = now - self._changed
        if 0 < left_s < waited_s:
            return f"{said}, longer than planned"
        left_s -= waited_s
        return f"{said}, {f'about {duration(left_s)}' if left_s > 10 else 'moments'} to go"

    def _draw(self, text: str) -> None:
        """Write into the last row, which is kept out of what scrolls."""
        size = shutil.get_terminal_size()
        if size.lines < _FEW_ROWS:
            return
        told = ""
        if size.lines != self._rows:
            # A line is made free, then the cursor goes back to where it was.
            told += f"\n\0337\033[1;{size.lines - 1}r\0338\033[1A"
            self._rows = size.lines
        told += f"\0337\033[{size.lines};1H\033[2K{text[: size.columns - 1]}\0338"
        self._stream.write(told)
        self._stream.flush()

    def end(self) -> None:
        """Give the last row back."""
        if self._rows:
            self._stream.write(f"\0337\033[r\033[{self._rows};1H\033[2K\0338")
            self._stream.flush()
            self._rows = 0


def _began(path: Path) -> float:
    """Return when the launch of a trace began, as its name says."""
    match = re.search(r"(\d{4})-(\d\d)-(\d\d)_(\d\d)-(\d\d)-(\d\d)", path.name)
    if match is None:
        raise ValueError(path.name)
    return time.mktime((*map(int, match.groups()), 0, 0, -1))  # type: ignore[arg-type]
