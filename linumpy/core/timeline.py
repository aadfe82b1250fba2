"""Timeline of a process: when each of its steps ran.

Off unless the environment variable ``LINUMPY_TIMELINE`` names a file: at exit it gets the spans
as JSON, in seconds since the process started. Worker processes write files beside it, their process
id at the end of the name; ``began_s`` puts them on one clock.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "LINUMPY_TIMELINE"


class _Recorder:
    """Spans of this process, written when it ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began_s = _process_start_s()
        self._spans: list[dict[str, object]] = []
        atexit.register(self._write)

    def now_s(self) -> float:
        return time.monotonic() - self._began_s

    def add(self, step: str, item: str, start_s: float) -> None:
        self._spans.append(
            {
                "step": step,
                "item": item,
                "thread": threading.current_thread().name,
                "start_s": start_s,
                "stop_s": self.now_s(),
            }
        )

    def stand_beside(self) -> None:
        self._path = self._path.with_name(f"{self._path.name}.{os.getpid()}")

    def _write(self) -> None:
        record = {"spans": self._spans, "began_s": self._began_s, "stop_s": self.now_s()}
        self._path.write_text(json.dumps(record) + "\n")


def _process_start_s() -> float:
    """Return when this process began, on the monotonic clock."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic() - (since_boot - int(fields[19]) / ticks)


# Made at import, before there are threads that could make two.
_path = os.environ.get(VARIABLE)
_recorder = _Recorder(Path(_path)) if _path else None


def record_beside() -> None:
    """Write another file than the process that started this one."""
    if _recorder is not None:
        _recorder.stand_beside()


@contextmanager
def span(step: str, item: object = "") -> Iterator[None]:
    """Note when the block began and ended.

    Parameters
    ----------
    step
        ``start``, ``read``, ``compute``, ``gather``, ``solve``, ``write`` or ``finish``; on a GPU
        a read is made of ``fetch`` and ``decode``, a write of ``encode`` and ``store``. Stacking
        has ``open``, ``correct``, ``stack`` (around others, with ``pyramid``) and ``label``.
    item
        What it was done to.
    """
    if _recorder is None:
        yield
        return
    start_s = _recorder.now_s()
    try:
        yield
    finally:
        _recorder.add(step, str(item), start_s)
