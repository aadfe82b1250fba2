#!/usr/bin/env python
"""Run a script, and say at its end which of its lines its threads were found at.

    sampled.py REPORT SCRIPT [ARGUMENTS …]

All threads are looked at a few hundred times a second. One that waits for another is counted apart.
"""

from __future__ import annotations

import atexit
import runpy
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType

EVERY_S = 0.004
SHOWN = 70
WAITING = ("threading.py", "queue.py", "selectors.py", "_base.py", "thread.py")


class Sampler:
    """Counts where threads are, until the process ends; then writes a report."""

    def __init__(self, report: Path) -> None:
        self._report = report
        self._found: Counter[tuple[str, bool, str]] = Counter()
        self._looks = 0
        self._began_s = time.monotonic()
        atexit.register(self._write)
        threading.Thread(target=self._watch, name="sampler", daemon=True).start()

    def _watch(self) -> None:
        own = threading.get_ident()
        while True:
            time.sleep(EVERY_S)
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            for ident, frame in sys._current_frames().items():
                waits, where = _is_waiting(frame), _where(frame)
                if ident != own and not (waits and where.startswith("-")):
                    kind = names.get(ident, "?").rstrip("0123456789_-")
                    self._found[kind, waits, where] += 1
            self._looks += 1

    def _write(self) -> None:
        seconds = time.monotonic() - self._began_s
        each = seconds / max(1, self._looks)
        lines = [f"{seconds:.2f} s, {self._looks} looks; thread-seconds:"]
        for (kind, waits, where), count in self._found.most_common(SHOWN):
            lines.append(f"{count * each:7.2f} {kind:16} {'waits ' if waits else ''}{where}")
        self._report.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _is_waiting(frame: FrameType) -> bool:
    return Path(frame.f_code.co_filename).name in WAITING


def _where(frame: FrameType) -> str:
    """Return the two innermost lines of linumpy on a stack, and what is called there."""
    leaf = f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}"
    own: list[str] = []
    at: FrameType | None = frame
    while at is not None and len(own) < 2:
        path = Path(at.f_code.co_filename)
        if "linumpy" in path.parts and "site-packages" not in path.parts:
            own.append(f"{path.stem}.{at.f_code.co_name}:{at.f_lineno}")
        at = at.f_back
    return f"{' < '.join(own) or '-'} [{leaf}]"


def main() -> None:
    """Run the script that the arguments name."""
    Sampler(Path(sys.argv[1]))
    sys.argv = sys.argv[2:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
