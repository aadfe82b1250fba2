"""Simulate the pipeline's tasks on a machine, event by event: times and waits.

Tasks need others, hold cores, memory and a share of a GPU while they run, slow each other where
they keep more of one machine busy than there is, and move bytes over a file system that all share.
Nextflow hands tasks over one after the other and looks for finished ones at intervals. The
simulation has no chance in it: the same tasks give the same times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from machine_model import (
    BANDWIDTH,
    CHAIN,
    DEVICES,
    LOCAL_POLL_S,
    LOCAL_SUBMIT_S,
    NEXTFLOW,
    REASONS,
    Machine,
    Simulation,
    Span,
    Task,
)

from linumpy.core.errors import LinumpyError
from linumpy.planning.machine import Resources
from linumpy.planning.schedule import speeds

_EPSILON_S = 1e-9
_EPSILON_SHARE = 1e-9


def simulate(tasks: Sequence[Task], machine: Machine) -> Simulation:
    """Run tasks on a machine.

    Raises
    ------
    LinumpyError
        When a task needs one that is not there, tasks need each other in a circle, or one asks for
        more than the machine has.
    """
    _check(tasks, machine)
    return _Run(tasks, machine).finish()


def critical_path_s(tasks: Sequence[Task], machine: Machine) -> float:
    """Return the length of the longest chain of tasks, each as fast as alone: no run is shorter."""
    done: dict[str, float] = {}
    for task in _in_order(tasks):
        start = max((done[name] for name in task.needs), default=0.0)
        done[task.name] = start + machine.alone_s(task)
    return max(done.values(), default=0.0)


def _check(tasks: Sequence[Task], machine: Machine) -> None:
    for task in _in_order(tasks):
        room = math.inf if machine.memory_bytes is None else machine.memory_bytes
        if task.cores > machine.cores or task.memory_bytes > room or task.gpu > machine.gpus:
            raise LinumpyError(
                f"task {task.name}: asks for {task.cores} cores, {task.memory_bytes} bytes and "
                f"{task.gpu:g} of a GPU; the machine has {machine.cores}, {room} and "
                f"{machine.gpus}"
            )
        if task.gpu > 1:
            raise LinumpyError(f"task {task.name}: holds {task.gpu:g} GPUs, expected at most one")


def _in_order(tasks: Sequence[Task]) -> list[Task]:
    """Return tasks so that each comes after those it needs."""
    by_name = {task.name: task for task in tasks}
    if len(by_name) < len(tasks):
        raise LinumpyError("two tasks have one name; expected one task a name")
    waiting = {task.name: len(task.needs) for task in tasks}
    users = _users(tasks, by_name)
    ready = [task for task in tasks if not task.needs]
    ordered: list[Task] = []
    while ready:
        task = ready.pop(0)
        ordered.append(task)
        for user in users.get(task.name, ()):
            waiting[user.name] -= 1
            if not waiting[user.name]:
                ready.append(user)
    if len(ordered) < len(tasks):
        circle = next(name for name, count in waiting.items() if count)
        raise LinumpyError(f"task {circle}: needs itself, through others")
    return ordered


def _users(tasks: Iterable[Task], known: Mapping[str, Task]) -> dict[str, list[Task]]:
    users: dict[str, list[Task]] = {}
    for task in tasks:
        for name in task.needs:
            if name not in known:
                raise LinumpyError(f"task {task.name}: needs {name}, which is no task")
            users.setdefault(name, []).append(task)
    return users


@dataclass
class _Running:
    """A task under way: its GPU, what is yet to move, and the seconds that are left to it alone."""

    task: Task
    ready_s: float
    start_s: float
    device: int | None
    left_bytes: float
    left_s: float

    @property
    def has_computed(self) -> bool:
        return self.left_s <= _EPSILON_S

    @property
    def has_begun(self) -> bool:
        return self.left_s <= self.task.compute_s + _EPSILON_S

    @property
    def is_moving(self) -> bool:
        return self.left_bytes > 0 and self.has_begun

    @property
    def is_done(self) -> bool:
        return self.left_bytes <= 0 and self.has_computed


class _Run:
    """The state of a simulation."""

    def __init__(self, tasks: Sequence[Task], machine: Machine) -> None:
        self.machine = machine
        self.users = _users(tasks, {task.name: task for task in tasks})
        self.needed = {task.name: len(task.needs) for task in tasks}
        self.now = 0.0
        self.left = len(tasks)
        # In this order tasks go through: ready, handed over, running, ended, seen.
        self.ready: list[tuple[Task, float]] = [(task, 0.0) for task in tasks if not task.needs]
        self.handing: tuple[list[tuple[Task, float]], float] | None = None
        self.queued: list[tuple[Task, float, float]] = []
        self.running: list[_Running] = []
        self.ended: list[tuple[Span, _Running]] = []
        self.spans: list[Span] = []
        self.in_flight: dict[str, int] = {}
        self.handed = 0
        self.cores, self.memory = machine.cores, machine.memory_bytes
        self.devices = [1.0] * machine.gpus
        self.waited_s = dict.fromkeys(REASONS, 0.0)

    def finish(self) -> Simulation:
        """Go from event to event until all is done."""
        while self.left:
            self._settle()
            if not self.left:
                break
            then = self._next_event()
            self._advance(then)
        spans = sorted(self.spans, key=lambda span: (span.start_s, span.task.name))
        return Simulation(self.now, tuple(spans), self.waited_s)

    # Everything that happens at one time

    def _settle(self) -> None:
        """Let happen what can happen now, until nothing more does."""
        while self._end() or self._see() or self._hand_over() or self._start():
            pass

    def _end(self) -> bool:
        done = [r for r in self.running if r.is_done]
        for running in done:
            self.running.remove(running)
            seen = self._next_look(running.task)
            span = Span(running.task, running.ready_s, running.start_s, self.now, seen)
            self.ended.append((span, running))
            if self.machine.queue_size is not None:
                self._free(running)
        return bool(done)

    def _next_look(self, task: Task) -> float:
        poll = LOCAL_POLL_S if self.machine.is_beside(task) else self.machine.poll_s
        return math.ceil(self.now / poll - 1e-9) * poll if poll else self.now

    def _see(self) -> bool:
        seen = [item for item in self.ended if item[0].seen_s <= self.now + _EPSILON_S]
        for item in seen:
            self.ended.remove(item)
            span, running = item
            if self.machine.queue_size is None:
                self._free(running)
            self.spans.append(span)
            self.left -= 1
            self._count(span.task, -1)
            for user in self.users.get(span.task.name, ()):
                self.needed[user.name] -= 1
                if not self.needed[user.name]:
                    self.ready.append((user, self.now))
        return bool(seen)

    def _hand_over(self) -> bool:
        for item in self.ready:
            if self.machine.is_beside(item[0]):
                self.ready.remove(item)
                self._count(item[0])
                self.queued.append((*item, self.now + LOCAL_SUBMIT_S))
                return True
        if self.handing is not None:
            together, until = self.handing
            if until > self.now + _EPSILON_S:
                return False
            self.handing = None
            queue_s = self.now + self.machine.queue_s
            self.queued += [(task, ready_s, queue_s) for task, ready_s in together]
            return True
        together = []
        for item in list(self.ready):
            task, _ = item
            if together and task.process != together[0][0].process:
                continue
            if self._may_hand_over(task):
                self.ready.remove(item)
                self._count(task)
                if self.machine.queue_size is None:
                    self._take(task)
                together.append(item)
                if len(together) == self.machine.arrays.get(task.process, 1):
                    break
        if together:
            self.handing = (together, self.now + self.machine.submit_s)
        return bool(together)

    def _count(self, task: Task, by: int = 1) -> None:
        if not self.machine.is_beside(task):
            self.handed += by
        self.in_flight[task.process] = self.in_flight.get(task.process, 0) + by

    def _may_hand_over(self, task: Task) -> bool:
        if self._has_all_forks(task):
            return False
        if self.machine.queue_size is not None:
            return self.handed < self.machine.queue_size
        return self._has_room(task)

    def _has_all_forks(self, task: Task) -> bool:
        return task.forks is not None and self.in_flight.get(task.process, 0) >= task.forks

    def _start(self) -> bool:
        free = list(self.devices)
        for item in self.queued:
            task, ready_s, earliest = item
            if earliest > self.now + _EPSILON_S:
                continue
            # Who came first is served first, as leases are (`linumpy.core.leases`).
            device = self._reserve(task, free)
            if device is _NO_ROOM:
                continue
            self.queued.remove(item)
            if self.machine.queue_size is not None and not self.machine.is_beside(task):
                self._take(task)
            if device is not None:
                self.devices[device] -= task.gpu
            self.running.append(
                _Running(task, ready_s, self.now, device, task.moved_bytes, task.alone_s)
            )
            return True
        return False

    def _has_room(self, task: Task) -> bool:
        """Whether there are cores and memory for a task."""
        return task.cores <= self.cores and (
            self.memory is None or task.memory_bytes <= self.memory
        )

    def _reserve(self, task: Task, free: list[float]) -> int | None:
        """Return the GPU with the most room for a task, None if it needs none, or no room.

        Its share of that GPU is taken from those that are free, whether it has room or waits.
        """
        if self.machine.is_beside(task):
            return None
        best = None
        if task.gpu:
            best = max(range(len(free)), key=lambda n: (free[n], -n))
            free[best] -= task.gpu
        # One machine's cores and memory are taken when Nextflow starts a task.
        fits = self.machine.queue_size is None or self._has_room(task)
        fits &= best is None or free[best] >= -_EPSILON_SHARE
        return best if fits else _NO_ROOM

    def _take(self, task: Task, sign: int = 1) -> None:
        """Take a task's cores and memory, or give them back."""
        self.cores -= sign * task.cores
        if self.memory is not None:
            self.memory -= sign * task.memory_bytes

    def _free(self, running: _Running) -> None:
        if self.machine.is_beside(running.task):
            return
        self._take(running.task, -1)
        if running.device is not None:
            self.devices[running.device] += running.task.gpu

    # From one event to the next

    def _rate(self) -> float:
        """Return the bytes a second that each moving task gets."""
        moving = sum(r.is_moving for r in self.running)
        return min(self.machine.task_bandwidth, self.machine.bandwidth / max(moving, 1))

    def _computing(self) -> list[tuple[_Running, float]]:
        """Return the tasks that compute, with their speeds as plans have them."""
        resources = Resources(
            self.machine.cores, 0, self.machine.gpus, batch=self.machine.queue_size is not None
        )
        busy = [r for r in self.running if not r.has_computed]
        return list(zip(busy, speeds([(r.task, r.device) for r in busy], resources), strict=True))

    def _next_event(self) -> float:
        rate = self._rate()
        times = [span.seen_s for span, _ in self.ended]
        times += [earliest for _, _, earliest in self.queued if earliest > self.now + _EPSILON_S]
        if self.handing is not None:
            times.append(self.handing[1])
        times += [self.now + r.left_bytes / rate for r in self.running if r.is_moving]
        for r, speed in self._computing():
            until_s = r.left_s if r.has_begun else r.left_s - r.task.compute_s
            times.append(self.now + until_s / speed)
        return max(self.now, min(times))

    def _advance(self, then: float) -> None:
        rate, seconds = self._rate(), then - self.now
        self.waited_s[self._reason(rate)] += seconds
        for r in self.running:
            if r.is_moving:
                ends = self.now + r.left_bytes / rate <= then + _EPSILON_S
                r.left_bytes = 0.0 if ends else r.left_bytes - rate * seconds
        for r, speed in self._computing():
            r.left_s -= speed * seconds
        self.now = then

    def _reason(self, rate: float) -> str:
        """Return what keeps the run from being further, as things stand."""
        starved = any(r.is_moving and r.has_computed for r in self.running)
        if starved and rate < self.machine.task_bandwidth:
            return BANDWIDTH
        free = list(self.devices)
        held = [self._reserve(task, free) is _NO_ROOM for task, _, _ in self.queued]
        held += [
            self._has_all_forks(task)
            or not self._has_room(task)
            or self._reserve(task, free) is _NO_ROOM
            for task, _ in self.ready
        ]
        if held and all(held):
            # Room that is only free once an end is seen is Nextflow's to give.
            return DEVICES if self.running else NEXTFLOW
        if self.running and not held and self.handing is None:
            return CHAIN
        return NEXTFLOW


_NO_ROOM = -1
