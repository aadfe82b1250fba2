"""Measure one process from outside: time, memory on host and device, timeline.

Nothing here imports more than Python's own library. Linux counts the memory of the process that
starts a child as the child's until it has become another program, so ours must stay small.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

STEPS = (
    "start",
    "read",
    "fetch",
    "decode",
    "compute",
    "gather",
    "solve",
    "encode",
    "store",
    "write",
    "finish",
    "end",
)


Span = dict[str, Any]
Interval = tuple[str, float, float]


class Failed(Exception):
    """A process ended with an error; the message is the end of what it said."""


@contextmanager
def workplace(name: str, folder: Path | None) -> Iterator[Path]:
    """Yield an empty folder below `folder` for the time of a benchmark, which a failure ends."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"linum-{name}-", dir=folder) as work:
        try:
            yield Path(work)
        except Failed as error:
            print(f"failed: {error}", file=sys.stderr)
            sys.exit(1)


def environment(root: Path, **others: str) -> dict[str, str]:
    """Return this process's environment, with a checkout's packages before those that it has.

    Byte code is written, whatever the environment says, so that runs find it as in an installation.
    """
    paths = [str(root), os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONDONTWRITEBYTECODE": ""}
    return {**os.environ, **own, **others}


@dataclass
class Measured:
    """One run of a process.

    Attributes
    ----------
    seconds, cpu_seconds
        From its start until it was gone, and what all its threads computed.
    peak_nbytes
        Its largest resident memory.
    device_nbytes
        The most that device memory grew meanwhile; None where it cannot be measured.
    spans
        Its time line, as `linumpy.core.timeline` writes it; empty for other programs.
    said
        Standard output.
    left_s
        When its own work was all done, as its time line says; None for other programs.
    """

    seconds: float
    cpu_seconds: float
    peak_nbytes: int
    device_nbytes: int | None = None
    spans: list[Span] = field(default_factory=list)
    said: str = ""
    left_s: float | None = None


def run(command: Sequence[object], environment: dict[str, str], *, on_gpu: bool) -> Measured:
    """Run a program to its end.

    Raises
    ------
    Failed
        When its exit status is not 0.
    """
    memory: AbstractContextManager[Any] = DeviceMemory() if on_gpu else nullcontext()
    with tempfile.TemporaryDirectory(prefix="linum-run-") as folder, memory as device:
        timeline, said, complained = (Path(folder) / n for n in ("timeline.json", "out", "err"))
        words = [str(word) for word in command]
        with said.open("w") as out, complained.open("w") as err:
            start = time.perf_counter()
            process = subprocess.Popen(
                words,
                env={**environment, "LINUMPY_TIMELINE": str(timeline)},
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
            )
            with HostMemory(process.pid) as host:
                _, status, usage = os.wait4(process.pid, 0)
                seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            lines = complained.read_text().strip().splitlines()[-3:]
            raise Failed(f"exit status {process.returncode}: {' | '.join(lines)}")
        noted = json.loads(timeline.read_text()) if timeline.exists() else {}
        return Measured(
            seconds,
            usage.ru_utime + usage.ru_stime,
            host.peak_nbytes,
            None if device is None else device.grown_nbytes(),
            noted.get("spans", []),
            said.read_text(),
            noted.get("stop_s"),
        )


class HostMemory:
    """Watches the largest resident memory of a process, while a block runs.

    The kernel's own account of a child (``ru_maxrss``) begins with the memory of its parent.
    """

    _INTERVAL_S = 0.005

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak_nbytes = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(self._INTERVAL_S):
            try:
                lines = self._status.read_text().splitlines()
            except OSError:
                return
            # The last one counts: the first may still be that of the process that forked.
            for line in lines:
                if line.startswith("VmHWM:"):
                    self.peak_nbytes = 1024 * int(line.split()[1])


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class DeviceMemory:
    """Watches how much memory of the first visible GPU is taken, while a block runs.

    The driver is asked, every few milliseconds, without a CUDA context of our own. Whatever else
    uses the GPU meanwhile is counted in.
    """

    _INTERVAL_S = 0.004

    def __enter__(self) -> Self:
        self._stop = threading.Event()
        self._samples: list[int] = []
        self._thread: threading.Thread | None = None
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return self
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        self._handle = ctypes.c_void_p()
        index = ctypes.c_uint(int(visible) if visible.isdigit() else 0)
        found = self._library.nvmlInit_v2() == 0 and (
            self._library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(self._handle)) == 0
        )
        if found and self._sample():
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def grown_nbytes(self) -> int | None:
        """Return the largest sample less the first; None when the driver does not answer."""
        return max(self._samples) - self._samples[0] if self._samples else None

    def _sample(self) -> bool:
        memory = _Memory()
        if self._library.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory)) != 0:
            return False
        self._samples.append(int(memory.used))
        return True

    def _watch(self) -> None:
        while not self._stop.wait(self._INTERVAL_S) and self._sample():
            pass


def covered_s(intervals: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        total += max(0.0, stop - max(start, reached))
        reached = max(reached, stop)
    return total


def innermost(spans: Iterable[Span]) -> list[Interval]:
    """Return what each thread was at: spans without the parts in which others lie.

    Parameters
    ----------
    spans
        As `linumpy.core.timeline` writes them; those of a thread lie in each other or apart.
    """
    found: list[Interval] = []
    by_thread: dict[str, list[Span]] = {}
    for span in spans:
        by_thread.setdefault(span["thread"], []).append(span)
    for own in by_thread.values():
        within: list[Span] = []
        at = 0.0
        # The last span, of no length, ends all before it.
        over = {"step": "", "start_s": float("inf"), "stop_s": float("inf")}
        for span in [*sorted(own, key=lambda s: (s["start_s"], -s["stop_s"])), over]:
            while within and within[-1]["stop_s"] <= span["start_s"]:
                ended = within.pop()
                found.append((ended["step"], at, ended["stop_s"]))
                at = ended["stop_s"]
            if within:
                found.append((within[-1]["step"], at, span["start_s"]))
            within.append(span)
            at = span["start_s"]
    return [interval for interval in found if interval[2] > interval[1]]


def phases(measured: Measured) -> dict[str, float]:
    """Return what a process was at, one after the other, in seconds.

    Returns
    -------
    ``start``: until a tile was first touched, beside which ``lease`` is the wait for a GPU and
    ``cuda`` until CUDA ran. ``work``: until its last result was handed to the system. ``finish``:
    until that was on the disk, its thread pools had ended, and it left. ``exit``: until the system
    had taken it apart, device memory and page-locked memory included. Empty without a time line.
    """
    work = [s for s in measured.spans if s["step"] not in ("start", "finish")]
    if not work or measured.left_s is None:
        return {}
    begun, done = min(s["start_s"] for s in work), max(s["stop_s"] for s in work)
    found = {"start": begun}
    for name, thread in (("lease", "start-lease"), ("cuda", "start-cuda")):
        own = [s["stop_s"] for s in measured.spans if s["thread"] == thread]
        found[name] = max(own, default=0.0)
    return {
        **found,
        "work": done - begun,
        "finish": measured.left_s - done,
        "exit": measured.seconds - measured.left_s,
    }


def where_time_went(measured: Measured) -> dict[str, dict[str, float]]:
    """Return what a time line adds up to.

    Returns
    -------
    By step, without what it left to other steps: ``busy_s``, summed over threads; ``covered_s``,
    while any thread was at it; and ``alone_s``, while no thread was at any other step, which is
    what all others waited for. The step ``start`` is all before the first tile was touched,
    whatever was noted of it, and ``end`` all after the last. Empty without a time line.
    """
    steps: dict[str, list[tuple[float, float]]] = {}
    for step, start, stop in innermost([s for s in measured.spans if s["step"] != "start"]):
        steps.setdefault(step, []).append((start, stop))
    if not steps:
        return {}
    everything = [interval for intervals in steps.values() for interval in intervals]
    first, last = min(s for s, _ in everything), max(e for _, e in everything)
    steps["start"] = [(0.0, first)]
    steps["end"] = [(last, max(last, measured.seconds))]
    everything += steps["start"] + steps["end"]
    whole = covered_s(everything)
    result = {}
    for step in sorted(steps, key=lambda s: (*STEPS, s).index(s)):
        others = [i for other, intervals in steps.items() if other != step for i in intervals]
        result[step] = {
            "busy_s": sum(stop - start for start, stop in steps[step]),
            "covered_s": covered_s(steps[step]),
            "alone_s": whole - covered_s(others),
        }
    return result


def time_line(measured: Measured) -> list[list[Any]]:
    """Return what each thread was at, as rows for a record: thread, step, start and stop (s)."""
    rows = []
    by_thread: dict[str, list[Span]] = {}
    for span in measured.spans:
        by_thread.setdefault(span["thread"], []).append(span)
    for thread, own in by_thread.items():
        for step, start, stop in sorted(innermost(own), key=lambda interval: interval[1]):
            rows.append([thread, step, round(start, 4), round(stop, 4)])
    return rows


def longest_step_s(measured: Measured) -> float:
    """Return how long the longest of the overlapped steps took, with all that lies in it."""
    steps: dict[str, list[tuple[float, float]]] = {}
    for span in measured.spans:
        if span["step"] != "start":
            steps.setdefault(span["step"], []).append((span["start_s"], span["stop_s"]))
    return max(map(covered_s, steps.values()), default=0.0)


def stored_nbytes(folder: Path) -> int:
    """Return the bytes of all files of a folder, or of one file."""
    if folder.is_file():
        return folder.stat().st_size
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def decoded_nbytes(folder: Path) -> int:
    """Return the bytes of all arrays in a folder, decoded."""
    total = 0
    for path in folder.rglob("zarr.json"):
        metadata = json.loads(path.read_text())
        if metadata["node_type"] == "array":
            total += _nbytes(metadata["shape"], metadata["data_type"])
    for path in folder.rglob(".zarray"):
        metadata = json.loads(path.read_text())
        total += _nbytes(metadata["shape"], metadata["dtype"])
    return total


def _nbytes(shape: Sequence[int], dtype: str) -> int:
    size = {"float32": 4, "uint8": 1, "<f4": 4, "|u1": 1}[dtype]
    for n in shape:
        size *= n
    return size
