"""Estimate when tasks run: each starts once its inputs exist and there is room."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from linumpy.core.errors import LinumpyError
from linumpy.planning.machine import Resources
from linumpy.planning.tasks import Task

_DONE_S = 1e-9


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


@dataclass
class _Running:
    """A task under way: its GPU, or -1, and the seconds that it would yet take alone."""

    task: Task
    device: int
    begin_s: float
    left_s: float


def schedule(tasks: Sequence[Task], resources: Resources) -> Schedule:
    """Run tasks, each after those it needs in the sequence, with what there is.

    Tasks that share cores or a GPU slow each other (`speeds`). A batch system's memory is not
    counted. Tasks are handed over one after the other, and take longer than by
    themselves (`Resources.handing_s`); those that run beside Nextflow wait for no job. Who waits
    for a GPU is served in the order of coming (`linumpy.core.leases`).

    Raises
    ------
    LinumpyError
        When a task asks for more than there is.
    """
    cores, gpus = resources.cores, [1.0] * resources.gpus
    memory = math.inf if resources.batch else float(resources.memory_bytes)
    waiting, ended, spans = list(tasks), set[str](), []
    handed: list[Task] = []
    running: list[_Running] = []
    forks = Counter[str]()
    now = handed_s = 0.0
    while waiting or handed or running:
        left = []
        for task in waiting:
            fits = task.cores <= cores and task.memory_bytes <= memory
            fits &= task.forks is None or forks[task.process] < task.forks
            if not fits or not ended.issuperset(task.needs):
                left.append(task)
                continue
            cores, memory = cores - task.cores, memory - task.memory_bytes
            forks[task.process] += 1
            handed.append(task)
        waiting, free, queue = left, list(gpus), list[Task]()
        for task in handed:
            device = -1
            if task.gpu:
                # Where it has to wait, room is kept for it. Thirds of a GPU need not add up to one.
                device = max(range(len(free)), key=free.__getitem__, default=-1)
                if free:
                    free[device] -= task.gpu
                if not free or free[device] < -1e-9:
                    queue.append(task)
                    continue
                gpus[device] -= task.gpu
            submit_s, overhead_s = resources.handing_s(light=task.light)
            if resources.batch and task.light:
                begin_s = now + submit_s
            else:
                begin_s = handed_s = max(now, handed_s + submit_s)
            alone_s = begin_s - now + task.alone_s + overhead_s
            running.append(_Running(task, device, begin_s, alone_s))
        handed = queue
        if not running:
            name = (handed + waiting)[0].name
            raise LinumpyError(f"task {name}: asks for more than there is, or needs itself")
        found = speeds([(each.task, each.device) for each in running], resources)
        step_s = min(each.left_s / speed for each, speed in zip(running, found, strict=True))
        now += step_s
        for each, speed in zip(running, found, strict=True):
            each.left_s -= step_s * speed
        for each in [each for each in running if each.left_s <= _DONE_S]:
            running.remove(each)
            task = each.task
            ended.add(task.name)
            spans.append((task, each.begin_s, now))
            cores, memory = cores + task.cores, memory + task.memory_bytes
            forks[task.process] -= 1
            if task.gpu:
                gpus[each.device] += task.gpu
    return Schedule(tuple(sorted(spans, key=lambda span: (span[1], span[0].name))))


def speeds(running: Sequence[tuple[Task, int | None]], resources: Resources) -> list[float]:
    """Return the speed of each task: 1 where it has what it keeps busy alone.

    Each task comes with the number of its GPU, which does not count where it uses none.

    Tasks that keep more cores or more of a GPU busy than there are share them: all on one GPU, and
    all on one machine, are slower by the same factor. What jobs of a batch system share is not
    counted.
    """
    if resources.batch:
        return [1.0] * len(running)
    on_cores = sum(task.busy_cores for task, _ in running) / resources.cores
    on_gpu: dict[int | None, float] = defaultdict(float)
    for task, device in running:
        on_gpu[device] += task.busy_gpu
    return [
        1 / max(1.0, on_cores if task.busy_cores else 0.0, on_gpu[device] if task.busy_gpu else 0.0)
        for task, device in running
    ]


def chain_s(tasks: Sequence[Task]) -> float:
    """Return the length of the longest chain of tasks: no run is shorter."""
    ends: dict[str, float] = {}
    for task in tasks:
        ends[task.name] = task.alone_s + max((ends[name] for name in task.needs), default=0.0)
    return max(ends.values(), default=0.0)
