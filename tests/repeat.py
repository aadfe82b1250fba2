"""Run a command repeatedly, every other time under full load, and report each run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAMED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep so many processes busy."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


def main(times: int, command: list[str]) -> int:
    """Return how many runs failed."""
    logs = Path(tempfile.mkdtemp(prefix="repeat-"))
    print(f"logs: {logs}", flush=True)
    failed = 0
    for number in range(1, times + 1):
        loaded = number % 2 == 0
        log = logs / f"run_{number:02d}.log"
        began_s, began_cpu = time.monotonic(), os.times()
        with load(2 * len(os.sched_getaffinity(0)) if loaded else 0), log.open("w") as out:
            status = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT).returncode
        now = os.times()
        text = log.read_text(encoding="utf-8", errors="replace")
        lines = text.splitlines() or [""]
        cpu_s = now.children_user + now.children_system
        cpu_s -= began_cpu.children_user + began_cpu.children_system
        # What the load took is in it.
        cpu = "under load" if loaded else f"{cpu_s:.0f} CPU s"
        wall_s = time.monotonic() - began_s
        print(f"{number:2d}/{times} {wall_s:5.0f} s, {cpu}: {lines[-1].strip('= ')}", flush=True)
        for name in NAMED.findall(text):
            print(f"      {name}", flush=True)
        failed += status != 0
    print(f"{times - failed} of {times} runs passed, {times // 2} of all were under load")
    return failed


if __name__ == "__main__":
    sys.exit(min(main(int(sys.argv[1]), sys.argv[2:]), 100))
