"""What a slice tells about the models of its acquisition; slices are measured side by side.

Each slice is measured by itself, and what it gives is small. So slices may be measured by any
number of threads or processes, and be put together in their order afterwards, with the same bits.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np

from linumpy.core import overlap
from linumpy.core.device import (
    Device,
    default_workers,
    is_device_array,
    share_of_gpu,
    tile_workers,
    to_host,
)
from linumpy.core.leases.lease import Ask, hold
from linumpy.core.start_up import import_first
from linumpy.core.timeline import span
from linumpy.core.worker_process import Setting, WorkerProcess, end_all, processes_on
from linumpy.geometry.detect_focal_curvature import FocalCurvature
from linumpy.io.grid import GridInfo
from linumpy.slices.engine import Source, Stage, StoreSource, observe, resting_bytes
from linumpy.slices.lanes import LANE_NBYTES, TILES_BESIDE, lanes_of_cores, usual_overlap
from linumpy.slices.psf_stages import CompensatePsf
from linumpy.slices.raw_source import (
    SliceInput,
    finished_layout,
    open_source,
    with_masks_where_needed,
)
from linumpy.slices.register_stage import RegisterTiles
from linumpy.slices.store import TileStore
from linumpy.slices.tile import Key, Tile
from linumpy.slices.tile_stages import LEARNED, DetectFocalCurvature, FieldStage, ResampleMosaicGrid
from linumpy.stage_params.slices import SliceParams
from linumpy.tiles.scan_distortion import ScanEvidence

SURFACE = DetectFocalCurvature.name


@dataclass(frozen=True)
class SliceEvidence:
    """What was measured on the tiles of a slice.

    Attributes
    ----------
    layout
        Geometry of the resampled tiles.
    measured
        By the name of a learner: what each tile gave it, in the order of tiles, on the host.
    corners_um
        Where tiles were registered; none of a slice whose faces alone were measured.
    scan
        What pairs of tiles say of the scan; None where no pair does.
    """

    layout: GridInfo
    measured: Mapping[str, Mapping[Key, Any]]
    corners_um: Mapping[Key, np.ndarray]
    scan: ScanEvidence | None = None

    def give(self, learner: Stage) -> None:
        """Let a learner gather what was measured for it."""
        learner.start(self.layout)
        for key, measurement in self.measured[learner.name].items():
            learner.gather(key, measurement)
        if isinstance(learner, FieldStage):
            learner.place(self.layout.slice_id, self.corners_um)


def make_learners(params: SliceParams) -> dict[str, Stage]:
    """Return the stages with a model of the acquisition that are switched on, by name."""
    made: dict[str, Stage] = {
        name: kind(params.of(kind.Params))
        for name, kind in LEARNED.items()
        if params.of(kind.Params).enabled
    }
    if params.psf.enabled:
        made[CompensatePsf.name] = CompensatePsf(params.psf)
    return made


class _Kept(Stage):
    """Keeps what a learner measures."""

    def __init__(self, learner: Stage) -> None:
        self.name = learner.name  # type: ignore[misc]
        self._learner = learner
        self.found: dict[Key, Any] = {}

    def start(self, layout: GridInfo) -> None:
        """Note the geometry of the tiles."""
        self._learner.start(layout)

    def measure(self, tile: Tile) -> Any:
        """Return what the learner measures."""
        return self._learner.measure(tile)

    def gather(self, key: Key, measurement: Any) -> None:
        """Keep what one tile gave."""
        self.found[key] = to_host(measurement) if is_device_array(measurement) else measurement


class _MeasuredOnTheWay(_Kept):
    """Measures tiles before they are changed, in the pass that changes them."""

    def apply(self, tile: Tile) -> Tile:
        """Measure a tile, and change it."""
        self.gather(tile.key, self.measure(tile))
        return self._learner.apply(tile)


class _Rest(Stage):
    """Sink that keeps tiles in memory."""

    name = "rest"
    changes = False

    def __init__(self, store: TileStore) -> None:
        self.store = store

    def apply(self, tile: Tile) -> Tile:
        """Keep a tile, and pass it on."""
        self.store.put(tile)
        return tile


class SliceMeasurer:
    """Measures slices of an acquisition by their ids.

    Parameters
    ----------
    inputs
        Mosaic grids or raw slices, by id.
    params
        Of all stages.
    device
        Where to compute.
    budget_bytes
        Memory for tiles that are needed again; None for what `slices.engine.resting_bytes` says.
    sharing
        How many measurers of other processes, with this one, share the host's memory.
    """

    def __init__(
        self,
        inputs: Mapping[int, SliceInput],
        params: SliceParams,
        device: Device,
        budget_bytes: int | None = None,
        *,
        sharing: int = 1,
    ) -> None:
        self._inputs, self._params, self._device = inputs, params, device
        self._budget_bytes = None if budget_bytes is None else budget_bytes // sharing
        self._sharing = sharing
        self._room: int | None = None
        self._taking = threading.Lock()
        self._sources: dict[int, Source] = {}
        self._stores: dict[int, TileStore] = {}
        self._faces: dict[int, Mapping[Key, Any]] = {}

    def __call__(self, slice_id: int, surface: FocalCurvature | None) -> SliceEvidence:
        """Return what a slice shows.

        Parameters
        ----------
        slice_id
            Which one.
        surface
            A focal surface that is good enough to register its tiles. None: its faces alone are
            measured, from which one is learned; the tiles stay in memory, where there is room.
        """
        if slice_id not in self._sources:
            self._sources[slice_id] = open_source(
                self._inputs[slice_id], self._params.resample.assume_unit, self._device
            )
        source = self._sources[slice_id]
        if SURFACE in make_learners(self._params) and surface is None:
            return self._measure_faces(slice_id, source)
        try:
            return with_masks_where_needed(
                partial(self._measure, source, surface, self._faces.pop(slice_id, None))
            )
        finally:
            del self._sources[slice_id]
            if slice_id in self._stores:
                self._stores.pop(slice_id).close()

    def _measure_faces(self, slice_id: int, source: Source) -> SliceEvidence:
        resample = ResampleMosaicGrid(self._params.resample)
        layout = resample.layout(source.layout)
        # Tiles and masks.
        size = len(source.keys()) * layout.tile_nbytes * 5 // 4
        with self._taking:
            if self._room is None:
                # Lanes that are threads share this room.
                self._room = resting_bytes(self._device, self._budget_bytes, lanes=self._sharing)
            rests = size <= self._room
            self._room -= size if rests else 0
        rest: list[Stage] = []
        if rests:
            self._stores[slice_id] = store = TileStore(size)
            rest = [_Rest(store)]
            self._sources[slice_id] = StoreSource(store, source.keys(), layout)
        faces = _Kept(make_learners(self._params)[SURFACE])
        with_masks_where_needed(
            partial(observe, [faces], [resample, *rest], source, device=self._device)
        )
        finished_layout(source, source.layout)
        self._faces[slice_id] = faces.found
        return SliceEvidence(layout, {SURFACE: faces.found}, {})

    def _measure(
        self, source: Source, surface: FocalCurvature | None, faces: Mapping[Key, Any] | None
    ) -> SliceEvidence:
        learners = make_learners(self._params)
        flattened = learners.pop(SURFACE, None)
        kept = {name: _Kept(learner) for name, learner in learners.items()}
        resample = ResampleMosaicGrid(self._params.resample)
        chain: list[Stage] = [resample]
        on_the_way: _MeasuredOnTheWay | None = None
        if flattened is not None:
            flattened.model = surface
            on_the_way = _MeasuredOnTheWay(flattened)
            chain.append(flattened if faces is not None else on_the_way)
        register = RegisterTiles(measure_strips=True)
        observe([register, *kept.values()], chain, source, device=self._device)
        finished_layout(source, source.layout)
        positions = register.solve()
        measured = {name: each.found for name, each in kept.items()}
        if on_the_way is not None:
            found = on_the_way.found if faces is None else faces
            measured[SURFACE] = {key: found[key] for key in source.keys()}  # noqa: SIM118
        layout = resample.layout(source.layout)
        return SliceEvidence(layout, measured, positions.corners_um(), register.evidence)


_Item = tuple[int, FocalCurvature | None] | Stage
"""What a process beside this one measures a slice by, or a learner whose model it solves for."""


def _begun(make: Callable[[], SliceMeasurer]) -> Callable[[_Item], Any]:
    measurer = make()
    return lambda item: item.solve() if isinstance(item, Stage) else measurer(*item)


def _measured_by(
    process: WorkerProcess[_Item, Any], slice_id: int, surface: FocalCurvature | None
) -> Any:
    return process((slice_id, surface), f"z{slice_id:02d}")


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
        self._measure: list[Callable[[int, FocalCurvature | None], SliceEvidence]] = [own]
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

    def run(
        self, slice_ids: Sequence[int], surface: FocalCurvature | None
    ) -> dict[int, SliceEvidence]:
        """Return the evidence of slices by id, in their order; `surface` as of `SliceMeasurer`."""
        waiting = deque(i for i in slice_ids if not any(i in own for own in self._own))
        found: dict[int, SliceEvidence] = {}

        def work(number: int) -> None:
            kept, seen = self._own[number], []
            try:
                while (item := _next(kept) if kept else _next(waiting)) is not None:
                    found[item] = self._measure[number](item, surface)
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
