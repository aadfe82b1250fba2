"""Tasks, machine and result of a simulated run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from linumpy.planning import tasks as planning

# What a run can wait for; every second of it belongs to one of them.
DEVICES, BANDWIDTH, CHAIN, NEXTFLOW = "devices", "bandwidth", "chain", "nextflow"
REASONS = (DEVICES, BANDWIDTH, CHAIN, NEXTFLOW)


LOCAL_SUBMIT_S = 0.03
LOCAL_POLL_S = 0.1
"""Nextflow's local executor: what starting a task takes it, and how often it looks."""

SLURM_SUBMIT_S = 1.0
SLURM_POLL_S = 2.0
SLURM_QUEUE_S = 2.0
SLURM_QUEUE_SIZE = 100
SLURM_ARRAY = 25
"""Of ``conf/slurm.config``: submissions a second, how often Nextflow looks, jobs at a time, jobs of
an array; and the least time that SLURM keeps a job when there is room at once."""


@dataclass(frozen=True)
class Task(planning.Task):
    """A task with the bytes that it reads and writes.

    Attributes
    ----------
    moved_bytes
        They move while it computes, and for as long after that as they take.
    """

    moved_bytes: float = 0.0


@dataclass(frozen=True)
class Machine:
    """Where tasks run, and how Nextflow gets them there.

    Attributes
    ----------
    cores, gpus
        In all.
    memory_bytes
        In all; None is not counted.
    bandwidth
        Bytes a second of the file system, for all tasks together.
    task_bandwidth
        Bytes a second of it that one task can get at most.
    submit_s
        What handing over a task takes; one follows the other.
    poll_s
        Nextflow sees that a task has ended when it looks, once in so many seconds.
    queue_s
        Least time that a batch system keeps a task waiting.
    queue_size
        Tasks handed over to a batch system at a time, which starts them when there is room. None
        for one machine: Nextflow starts them itself, and there is room once it saw an end.
    arrays
        Most tasks that are handed over together, by process; others are one by one.
    """

    cores: int
    gpus: int = 0
    memory_bytes: int | None = None
    bandwidth: float = math.inf
    task_bandwidth: float = math.inf
    submit_s: float = 0.0
    poll_s: float = 0.0
    queue_s: float = 0.0
    queue_size: int | None = None
    arrays: Mapping[str, int] = field(default_factory=dict)

    def is_beside(self, task: Task) -> bool:
        """Whether Nextflow runs a task beside itself, as those on tables where others are jobs."""
        return self.queue_size is not None and task.light

    def alone_s(self, task: Task) -> float:
        """Return how long a task runs when nothing else does."""
        rate = min(self.bandwidth, self.task_bandwidth)
        return task.start_s + max(task.compute_s, task.moved_bytes / rate)


@dataclass(frozen=True)
class Span:
    """When a task could begin, ran, and was seen to have ended, in seconds from the launch."""

    task: Task
    ready_s: float
    start_s: float
    end_s: float
    seen_s: float

    @property
    def busy_s(self) -> float:
        """How long it ran."""
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Simulation:
    """What came of it.

    Attributes
    ----------
    seconds
        From the launch until the last end was seen.
    spans
        One a task, in the order of their starts.
    waited_s
        Seconds by what kept the run from being further, of `REASONS`; they add up to `seconds`.
        ``devices``: tasks waited for cores, memory, a GPU or one of their kind. ``bandwidth``: a
        task had computed and waited for its bytes, while others moved theirs. ``chain``: all that
        could run ran, and what comes next rests on it. ``nextflow``: there was room, and the task
        was yet to be handed over, or an end to be seen.
    """

    seconds: float
    spans: tuple[Span, ...]
    waited_s: dict[str, float]

    def gpu_share(self, gpus: int) -> float:
        """Return the share of the time of all GPUs for which tasks held them."""
        held = sum(span.busy_s * span.task.gpu for span in self.spans)
        return held / (gpus * self.seconds) if gpus and self.seconds else 0.0

    @property
    def bottleneck(self) -> str:
        """What most of the time was waited for."""
        return max(REASONS, key=lambda reason: self.waited_s[reason])

    def process_s(self) -> dict[str, tuple[float, float]]:
        """Return for each process when its first task began and its last was seen to end."""
        found: dict[str, tuple[float, float]] = {}
        for span in self.spans:
            first, last = found.get(span.task.process, (math.inf, 0.0))
            found[span.task.process] = (min(first, span.start_s), max(last, span.seen_s))
        return found
