"""Processes that do something one after the other: real processes, no GPU."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from linumpy.core.leases.book import turn

ROOT = Path(__file__).resolve().parents[2]

# Takes a turn and tells when it began and ended.
TAKER = """
import json, sys, time
from pathlib import Path
from linumpy.core.leases.book import turn

folder, hold_s, most_wait_s = json.loads(sys.argv[1])
with turn("start", most_wait_s, Path(folder)):
    begin = time.monotonic()
    print(json.dumps(begin), flush=True)
    time.sleep(hold_s)
    print(json.dumps(time.monotonic()), flush=True)
"""


def start(folder: Path, hold_s: float, most_wait_s: float = 60) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", TAKER, json.dumps([str(folder), hold_s, most_wait_s])],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def times(process: subprocess.Popen[str]) -> list[float]:
    assert process.stdout is not None
    found = [float(line) for line in process.stdout]
    assert process.wait() == 0
    return found


def test_turns_follow_each_other(tmp_path):
    """Seen to fail without the lock in `turn`."""
    taken = sorted(times(p) for p in [start(tmp_path, 0.1) for _ in range(5)])
    assert all(before[1] <= after[0] for before, after in zip(taken, taken[1:], strict=False))


def test_killed_holder_releases_the_lock(tmp_path):
    holder = start(tmp_path, 600)
    assert holder.stdout is not None
    holder.stdout.readline()
    waiting = start(tmp_path, 0)
    time.sleep(0.2)
    assert waiting.poll() is None
    os.kill(holder.pid, signal.SIGKILL)
    assert len(times(waiting)) == 2
    holder.wait()


def test_after_so_long_it_is_done_all_the_same(tmp_path):
    holder = start(tmp_path, 600)
    try:
        assert holder.stdout is not None
        begun = float(holder.stdout.readline())
        first = times(start(tmp_path, 0, most_wait_s=0.3))[0]
        assert first > begun
        assert holder.poll() is None
    finally:
        holder.kill()
        holder.wait()


def test_without_a_folder_it_is_done_all_the_same(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    done = []
    with turn("start", 1, file):
        done.append(1)
    assert done == [1]


def test_an_error_inside_is_passed_on_and_frees_the_turn(tmp_path):
    class Mine(Exception):
        pass

    for _ in range(2):
        try:
            with turn("start", 0.01, tmp_path):
                raise Mine
        except Mine:
            continue
        raise AssertionError("nothing was raised")
    assert times(start(tmp_path, 0, most_wait_s=60))
