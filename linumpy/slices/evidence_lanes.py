"""Measure slices in lanes: this process and others beside it, or threads on few cores.

Slices may be measured by any number of threads or processes, and are put together in their order
afterwards, with the same bits.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any, Self

from linumpy.core import overlap
from linumpy.core.device import Device, default_workers, share_of_gpu, tile_workers
from linumpy.core.leases.lease import Ask, hold
from linumpy.core.start_up import import_first
from linumpy.core.timeline import span
from linumpy.core.worker_process import Setting, WorkerProcess, end_all, processes_on
from linumpy.slices.engine import Stage
from linumpy.slices.lanes import LANE_NBYTES, TILES_BESIDE, lanes_of_cores, usual_overlap
from linumpy.slices.slice_evidence import FirstLook, SliceEvidence, SliceMeasurer

_Item = tuple[int, FirstLook | None] | Stage
"""What a process beside this one measures a slice by, or a learner whose model it solves for."""


def _begun(make: Callable[[], SliceMeasurer]) -> Callable[[_Item], Any]:
    measurer = make()
    return lambda item: item.solve() if isinstance(item, Stage) else measurer(*item)


def _measured_by(process: WorkerProcess[_Item, Any], slice_id: int, look: FirstLook | None) -> Any:
    return process((slice_id, look), f"z{slice_id:02d}")


def _solved(learner: Stage, process: WorkerProcess[_Item, Any] | None) -> Any:
    with span("solve", learner.name):
        return learner.solve() if process is None else process(learner, learner.name)


def _usual_lanes(device: Device, n_slices: int, worth: int) -> int:
    """Return how many slices to measure at a time; `worth` in slices of 4 GiB.

    Of several GPUs each process needs one slice only: it starts while the first faces are measured.
    """
    if device.count == 1:
        return usual_overlap(device, worth)
    return max(1, min(processes_on(device, whole=True), n_slices, worth))


class Lanes:
    """Measures slices in lanes: this process and others beside it, threads on few cores.

    Parameters
    ----------
    make
        Returns the measurer of a lane, called with its device; to be pickled.
    device
        Where to compute.
    n_slices, n_tiles, tile_nbytes
        To be measured, and the size of a tile.
    lanes
        Slices at a time; None for what device, cores and memory allow.
    apart
        Whether lanes beside the first are processes; None for those of a GPU, and of many cores.
        Of several GPUs each process has one. A lane alone has the first, or all where it is asked
        for.
    """

    def __init__(
        self,
        make: Callable[..., SliceMeasurer],
        device: Device,
        n_slices: int,
        n_tiles: int,
        tile_nbytes: int,
        lanes: int | None = None,
        *,
        apart: bool | None = None,
    ) -> None:
        worth = n_tiles * tile_nbytes // LANE_NBYTES
        workers = tile_workers(tile_nbytes, device)
        if device.count > 1:
            # Before processes are counted and started, which work on the GPUs that this one holds.
            hold(Ask(count=device.count))
        self._count = lanes or _usual_lanes(device, n_slices, worth)
        processes = lanes_of_cores(n_slices, n_tiles * tile_nbytes, workers)
        if processes > 1 and not device.is_gpu and lanes is None and apart is None:
            self._count, apart = processes, True
        self._apart = device.is_gpu if apart is None else apart
        self._tiles = None
        self._stack = ExitStack()
        gpus = device.count
        if self._count > 1 and self._apart and not device.is_gpu:
            make = partial(make, sharing=self._count)
        if self._count > 1 and self._apart or lanes is None and self._count == 1:
            # One GPU takes a slice sooner than several together.
            device = device.first()
        make = partial(make, device)
        own = make()
        self._measure: list[Callable[[int, FirstLook | None], SliceEvidence]] = [own]
        self._measure *= self._count
        self._beside: list[WorkerProcess[_Item, Any]] = []
        if self._count > 1 and not self._apart:
            self._tiles = default_workers(device) + TILES_BESIDE
        elif self._count > 1:
            share = threads = None
            if device.is_gpu:
                share = self._stack.enter_context(share_of_gpu(-(-self._count // gpus)))
            else:
                threads = max(1, workers // self._count)
                self._tiles = threads + TILES_BESIDE
            for n in range(1, self._count):
                gpu = n % gpus if gpus > 1 else None
                setting = Setting.like_here(device, share, gpu=gpu, threads=threads)
                process: WorkerProcess[_Item, Any] = WorkerProcess(setting, partial(_begun, make))
                self._beside.append(self._stack.enter_context(process))
                self._measure[n] = partial(_measured_by, process)
            self._stack.callback(end_all, self._beside)
        # What a lane has in its memory stays with it.
        self._own: list[deque[int]] = [deque() for _ in range(self._count)]
        import_first("scipy")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> bool | None:
        return self._stack.__exit__(*error)

    def run(self, slice_ids: Sequence[int], look: FirstLook | None) -> dict[int, SliceEvidence]:
        """Return the evidence of slices by id, in their order; `look` as of `SliceMeasurer`."""
        waiting = deque(i for i in slice_ids if not any(i in own for own in self._own))
        found: dict[int, SliceEvidence] = {}

        def work(number: int) -> None:
            kept, seen = self._own[number], []
            try:
                while (item := _next(kept) if kept else _next(waiting)) is not None:
                    found[item] = self._measure[number](item, look)
                    seen.append(item)
            except BaseException:
                waiting.clear()
                raise
            kept.extend(seen)

        overlap.in_overlap(
            deque(range(self._count)), work, self._count, self._tiles, apart=self._apart
        )
        return {slice_id: found[slice_id] for slice_id in slice_ids}

    def solve(self, learners: Mapping[str, Stage]) -> dict[str, Any]:
        """Return the models of learners, by name.

        None needs another. The first is solved here, others in the processes beside this one as far
        as there are any: threads of one process wait for each other's interpreter.
        """
        with ThreadPoolExecutor(max(1, len(learners)), "linumpy-solve") as pool:
            where = itertools.chain([None, *self._beside], itertools.repeat(None))
            models = pool.map(_solved, learners.values(), where)
            return dict(zip(learners, models, strict=True))


def _next(items: deque[int]) -> int | None:
    try:
        return items.popleft()
    except IndexError:
        return None
