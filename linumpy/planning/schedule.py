"""Estimate when tasks run: each starts once its inputs exist and there is room."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from linumpy.core.errors import LinumpyError
from linumpy.planning.machine import Resources
from linumpy.planning.tasks import Task


@dataclass(frozen=True)
class Schedule:
    """Begin and end of each task, in seconds from the launch, in the order of their begins."""

    spans: tuple[tuple[Task, float, float], ...]

    @property
    def seconds(self) -> float:
        """When the last task has ended."""
        return max((end for _, _, end in self.spans), default=0.0)

    def gpu_share(self, gpus: int) -> float:
        """Return the share of the time of all GPUs for which tasks hold them."""
        held = sum((end - begin) * task.gpu for task, begin, end in self.spans)
        return held / (gpus * self.seconds) if gpus and self.seconds else 0.0

    def process_s(self) -> dict[str, tuple[float, float]]:
        """Return for each process when its first task begins and its last ends."""
        found: dict[str, tuple[float, float]] = {}
        for task, begin, end in self.spans:
            first, last = found.get(task.process, (math.inf, 0.0))
            found[task.process] = (min(first, begin), max(last, end))
        return found


def schedule(tasks: Sequence[Task], resources: Resources) -> Schedule:
    """Run tasks, each after those it needs in the sequence, with what there is.

    A batch system's memory is not counted. Every task takes `Resources.overhead_s` more, and one
    is handed over every `Resources.submit_s`.

    Raises
    ------
    LinumpyError
        When a task asks for more than there is.
    """
    cores, gpus = resources.cores, [1.0] * resources.gpus
    memory = math.inf if resources.batch else float(resources.memory_bytes)
    waiting, ended, spans = list(tasks), set[str](), []
    running: list[tuple[float, int, Task, int]] = []
    now = handed_s = 0.0
    while waiting:
        left = []
        for task in waiting:
            device = max(range(len(gpus)), key=gpus.__getitem__, default=-1) if task.gpu else -1
            fits = task.cores <= cores and task.memory_bytes <= memory
            # Thirds of a GPU need not add up to one.
            fits &= not task.gpu or (device >= 0 and gpus[device] >= task.gpu - 1e-9)
            if not fits or not ended.issuperset(task.needs):
                left.append(task)
                continue
            cores, memory = cores - task.cores, memory - task.memory_bytes
            if task.gpu:
                gpus[device] -= task.gpu
            handed_s = max(now, handed_s + resources.submit_s)
            end = handed_s + task.alone_s + resources.overhead_s
            spans.append((task, handed_s, end))
            heapq.heappush(running, (end, len(spans), task, device))
        if not running:
            raise LinumpyError(f"task {left[0].name}: asks for more than there is, or needs itself")
        now, _, task, device = heapq.heappop(running)
        ended.add(task.name)
        cores, memory = cores + task.cores, memory + task.memory_bytes
        if task.gpu:
            gpus[device] += task.gpu
        waiting = left
    return Schedule(tuple(sorted(spans, key=lambda span: (span[1], span[0].name))))


def chain_s(tasks: Sequence[Task]) -> float:
    """Return the length of the longest chain of tasks: no run is shorter."""
    ends: dict[str, float] = {}
    for task in tasks:
        ends[task.name] = task.alone_s + max((ends[name] for name in task.needs), default=0.0)
    return max(ends.values(), default=0.0)
