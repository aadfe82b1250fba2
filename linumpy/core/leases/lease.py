"""Lease GPUs to the processes of a machine.

A process that wants a GPU writes a small file, which it keeps locked for as long as it lives, into
a folder that all of them see: what it wants, and later what it holds. The kernel frees the lock
when a process ends, whatever the reason, and so what it held. All is decided under one more lock,
held for a millisecond: a device's shares never add up to more than the device, and who came first
is served first, so that many small tasks cannot keep a whole-slice task waiting for ever.

The files' contents are what counts, their locks say whether they still do. Containers take part by
sharing the folder (`lease_book.VARIABLE`).
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from linumpy.core.errors import DeviceError, InputError, LinumpyError
from linumpy.core.leases import nvml
from linumpy.core.leases.book import Book, Entry, OwnEntry
from linumpy.core.leases.nvml import Gpu

LEASED = "LINUMPY_LEASED_GPUS"
"""Environment variable by which a process informs its children that the GPUs visible to them,
which it names once more, are theirs already."""

PARTS = 720720
"""Of a device; all numbers of tasks up to 16 divide it."""

DEFAULT_WAIT_S = 12 * 3600.0

CONTEXT_NBYTES = 600_000_000
"""Device memory of CUDA and kernels in a process."""

_POLL_S = (0.05, 0.5)
_SAY_AFTER_S = 1.0
_SAY_EVERY_S = 60.0

logger = logging.getLogger("linumpy")


@dataclass(frozen=True)
class Ask:
    """What a process wants of the GPUs.

    Attributes
    ----------
    tasks
        How many processes of its kind a device takes at a time at most; None for as many as its
        memory has room for.
    memory_bytes
        Device memory that it will take at most. With neither it has a device for itself.
    count
        Devices that it works on together.
    wait_s
        How long to wait at most, in seconds.
    """

    tasks: int | None = None
    memory_bytes: int | None = None
    count: int = 1
    wait_s: float = DEFAULT_WAIT_S

    def parts(self, gpu: Gpu) -> int:
        """Return what it takes of a device, of `PARTS`: the larger of its two shares."""
        shares = []
        if self.tasks is not None:
            shares.append(PARTS // self.tasks)
        if self.memory_bytes is not None and gpu.total_nbytes:
            shares.append(math.ceil(PARTS * self.memory_bytes / gpu.total_nbytes))
        return min(PARTS, max(1, *shares)) if shares else PARTS


@dataclass
class Lease:
    """Shares of GPUs that are this process's until it ends, or until `release`.

    Attributes
    ----------
    gpus
        The devices, in the order in which they were offered.
    """

    gpus: tuple[Gpu, ...]
    _descriptor: int

    def release(self) -> None:
        """Give the shares back."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def take(ask: Ask, gpus: Sequence[Gpu], folder: Path | None = None) -> Lease:
    """Wait for the device, of those offered, with the largest free share, and take what is asked.

    Parameters
    ----------
    ask
        What is wanted; its `count` devices are taken together.
    gpus
        Devices to choose from.
    folder
        Shared by all processes; `lease_book.lease_folder` when None.

    Raises
    ------
    DeviceError
        When none was free in time; names who holds them.
    InputError
        When the folder cannot be used, or trusted.
    """
    if len(gpus) < ask.count:
        raise DeviceError(f"--gpu_count {ask.count}: {len(gpus)} GPUs are visible")
    start = time.monotonic()
    said, pause = start + _SAY_AFTER_S - _SAY_EVERY_S, _POLL_S[0]
    with Book(folder) as book:
        own: OwnEntry | None = None
        try:
            while True:
                others: list[Entry] = []
                with book.locked(start + ask.wait_s):
                    if own is None:
                        own = book.enter({gpu.uuid: ask.parts(gpu) for gpu in gpus}, ask.count)
                    others = book.others(own.number)
                    chosen = _choose(ask, gpus, own.number, others)
                    if chosen:
                        own.write(holds={gpu.uuid: ask.parts(gpu) for gpu in chosen})
                        waited = time.monotonic() - start
                        level = logging.INFO if said > start else logging.DEBUG
                        logger.log(level, "got %s after %.0f s", _names(chosen), waited)
                        return Lease(tuple(chosen), own.keep())
                now = time.monotonic()
                if now - start >= ask.wait_s:
                    raise DeviceError(
                        f"no GPU was free within {ask.wait_s / 60:g} min (--gpu_wait): "
                        + _who(gpus, own.number, others)
                    )
                if now - said >= _SAY_EVERY_S:
                    said = now
                    logger.info("waiting for a GPU: %s", _who(gpus, own.number, others))
                time.sleep(min(pause, start + ask.wait_s - now))
                pause = min(2 * pause, _POLL_S[1])
        except OSError as error:
            raise InputError(f"{book.path}: {error.strerror}; it cannot be written to") from error
        finally:
            if own is not None:
                own.leave()


def _choose(ask: Ask, gpus: Sequence[Gpu], number: int, others: Sequence[Entry]) -> list[Gpu]:
    """Return the devices that can be taken now; none when it is not our turn, or none is free.

    Who came earlier and still waits has the devices with the largest free shares kept for it.
    These shares only grow, so that its turn comes; the others' devices are free for the later ones.
    """
    free = dict.fromkeys((gpu.uuid for gpu in gpus), PARTS)
    for other in others:
        for uuid, parts in other.holds.items():
            free[uuid] = free.get(uuid, PARTS) - parts
        for uuid in other.wants:
            free.setdefault(uuid, PARTS)
    for other in others:
        if other.number < number and not other.holds:
            for uuid in sorted(other.wants, key=lambda uuid: -free[uuid])[: other.count]:
                free[uuid] -= other.wants[uuid]
    fitting = [gpu for gpu in gpus if free[gpu.uuid] >= ask.parts(gpu)]
    # Of equals the one with the most free memory: not all programs take part in this.
    fitting.sort(key=lambda gpu: (-free[gpu.uuid], -gpu.free_nbytes))
    best = fitting[: ask.count]
    return [gpu for gpu in gpus if gpu in best] if len(best) == ask.count else []


def _names(gpus: Sequence[Gpu]) -> str:
    return ", ".join(gpu.uuid[:12] for gpu in gpus)


def _who(gpus: Sequence[Gpu], number: int, others: Sequence[Entry]) -> str:
    """Log which processes hold the devices, and how many wait before this one."""
    lines = []
    for gpu in gpus:
        holders = [f"{other} ({other.holds[gpu.uuid] / PARTS:.0%})" for other in others
                   if gpu.uuid in other.holds]  # fmt: skip
        lines.append(f"{gpu.uuid[:12]} is held by {', '.join(holders) or 'no process'}")
    waiting = sum(not other.holds and other.number < number for other in others)
    return "; ".join(lines) + (f"; {waiting} wait before this one" if waiting else "")


@dataclass(frozen=True)
class Held:
    """The GPUs of this process; none where there is nothing to share out, as CUDA then says.

    Attributes
    ----------
    offered
        How many there were to choose from, which other processes use.
    """

    ask: Ask
    gpus: tuple[Gpu, ...]
    lease: Lease | None = None
    offered: int = 1

    @property
    def tasks(self) -> int:
        """How many of its kind a device takes at a time."""
        return self.ask.tasks or 1

    def memory_limit(self) -> int | None:
        """Return the bytes of a device that its share leaves to arrays; None for all that is free.

        A process that shares a device also has CUDA and its kernels there.
        """
        if self.tasks == 1 or not self.gpus:
            return None
        least = min(self.gpus, key=lambda gpu: gpu.total_nbytes)
        share = least.total_nbytes * self.ask.parts(least) // PARTS
        return max(share - CONTEXT_NBYTES, share // 2) or None


_guard = threading.Lock()
_wanted: Ask | None = None
_outcome: Held | LinumpyError | None = None


def want(ask: Ask) -> None:
    """Set what this process wants of the GPUs, before they are first asked for."""
    global _wanted
    _wanted = ask


def hold(default: Ask | None = None) -> Held:
    """Give this process its GPUs, until it ends; later calls return what the first got.

    It gets what it wants (`want`), else what `default` asks for, else a GPU of its own.

    ``CUDA_VISIBLE_DEVICES`` names them from here on. Where CUDA runs already, its first devices are
    taken. A process that was started by one that holds GPUs works on those.

    Raises
    ------
    DeviceError, InputError
        As `take`.
    """
    global _outcome
    with _guard:
        if _outcome is None:
            try:
                _outcome = _hold(_wanted or default or Ask())
            except LinumpyError as error:
                _outcome = error
        if isinstance(_outcome, LinumpyError):
            raise _outcome
        return _outcome


def keep_one(number: int) -> None:
    """Leave this process one of the GPUs that the process which started it holds, before CUDA.

    Parameters
    ----------
    number
        Its place among them.
    """
    names = os.environ.get(nvml.VARIABLE, "")
    listed = [name for name in names.split(",") if name]
    leased = os.environ.get(LEASED) == names
    os.environ[nvml.VARIABLE] = listed[number] if listed else str(number)
    if leased:
        os.environ[LEASED] = os.environ[nvml.VARIABLE]


def _hold(ask: Ask) -> Held:
    started = nvml.started_uuids()
    gpus = nvml.list_gpus()
    visible = nvml.visible_gpus(gpus) if started is None else nvml.by_uuid(started, gpus)
    if not visible:
        return Held(ask, ())
    if os.environ.get(LEASED) == os.environ.get(nvml.VARIABLE, ""):
        return Held(ask, tuple(visible))
    lease = take(ask, visible if started is None else visible[: ask.count])
    chosen = ",".join(gpu.uuid for gpu in lease.gpus)
    os.environ[nvml.VARIABLE] = os.environ[LEASED] = chosen
    return Held(ask, lease.gpus, lease, len(visible))
