"""Tasks of a run of the workflow, from the declarations of its stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from itertools import groupby
from typing import Any

from linumpy.brain.depth_parts import worthwhile
from linumpy.core.device import Device
from linumpy.core.worker_process import HOST_NBYTES, MOST_PROCESSES
from linumpy.io.slice_layout import SHARD_PX
from linumpy.launch.groups import slices_per_task
from linumpy.planning.plan_params import PlanParams
from linumpy.planning.processes import (
    CORES_ASKED,
    MASK,
    READ_RAW,
    REQUESTS,
    first_tiles,
    learned,
    learned_tiles,
)
from linumpy.planning.sizes import Sizes, SliceSize
from linumpy.planning.stage_times import GIB, StageTimes
from linumpy.planning.survey import SliceScan, Survey
from linumpy.slices.lanes import LANE_NBYTES, SLICES_A_PROCESS
from linumpy.slices.store import DEFAULT_BUDGET_BYTES
from linumpy.stage_params.declaration import Declaration
from linumpy.stage_params.declared import STAGES


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes
    ----------
    name
        Its own; tasks that need it name it so.
    process
        Of the workflow.
    needs
        Names of the tasks whose results it takes.
    cores, memory_bytes
        What it asks for; `ALL_CORES` and half of that stand for those of a machine.
    gpu
        Share of one GPU that it holds, 0 to 1.
    forks
        Most tasks of its process at a time; None for no bound.
    start_s
        Seconds from its start until it touches data.
    compute_s
        Seconds of work after that, at the speed of its cores or GPU.
    n_slices
        That it works on; 1 where it works on all.
    parallel
        Share of its work, as it takes one core, that more cores divide.
    light
        Whether it works on tables: Nextflow runs it beside itself where others are jobs.
    busy_cores, busy_gpu
        Cores, and share of its GPU, that it keeps busy when nothing runs beside it.
    """

    name: str
    process: str
    needs: tuple[str, ...] = ()
    cores: int = 1
    memory_bytes: int = 0
    gpu: float = 0.0
    forks: int | None = None
    start_s: float = 0.0
    compute_s: float = 0.0
    n_slices: int = 1
    parallel: float = 0.0
    light: bool = False
    busy_cores: float = 0.0
    busy_gpu: float = 0.0

    @property
    def alone_s(self) -> float:
        """How long it runs when nothing else does."""
        return self.start_s + self.compute_s


@dataclass
class Graph:
    """Tasks of a run.

    Attributes
    ----------
    tasks
        In an order in which each comes after those that it needs.
    unknown
        Processes that no time is known of; their tasks take none.
    estimated
        Processes whose times are estimated, not measured.
    """

    survey: Survey
    sizes: Sizes
    params: PlanParams
    times: StageTimes
    tasks: list[Task] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    estimated: set[str] = field(default_factory=set)


def run_facts(params: Mapping[str, Any], survey: Survey, *, straight: bool) -> dict[str, Any]:
    """Return parameters and facts of the input that decide which stages a run has."""
    raw = survey.kind == "raw"
    return {
        **params,
        "raw": raw,
        "straight": raw and straight,
        "shifts_found": survey.has_shifts,
        # The choice of slices is put into a new table.
        "config_found": survey.has_config and params["slices"] is None,
    }


def stages_of(facts: Mapping[str, Any]) -> list[Declaration]:
    """Return the stages of a run, each behind those that it comes after."""
    chosen = {name: stage for name, stage in STAGES.items() if stage.is_in(facts)}
    order = TopologicalSorter(
        {name: [a for a in stage.after if a in chosen] for name, stage in chosen.items()}
    )
    return [chosen[name] for name in order.static_order()]


def build_tasks(survey: Survey, sizes: Sizes, params: PlanParams, times: StageTimes) -> Graph:
    """Return the tasks of a run on an acquisition."""
    graph = Graph(survey, sizes, params, times)
    facts = run_facts(params.values, survey, straight=params.straight)
    size = slices_per_task(params.values, len(survey.slices), survey.input_bytes)
    names: dict[str, dict[int | None, str]] = {}
    for stage in stages_of(facts):
        names[stage.name] = {}
        for what, own, needed in _places(
            stage.per, survey, _pairs_per_task(params, size) if stage.per == "pairs" else size
        ):
            needs = [name for a in stage.after for name in _of(names.get(a, {}), needed)]
            name = f"{stage.name} ({what})"
            names[stage.name] |= dict.fromkeys((None,) if stage.per == "run" else own, name)
            raw = facts["straight"] or (facts["raw"] and stage.name in READ_RAW)
            graph.tasks.append(_task(graph, stage, name, own, needs, raw=raw))
    return graph


PAIRS_GROUP, PAIRS_ON_GPU = 8, 4
"""Ids of slices whose pairs one task measures at most, and on a GPU of this machine, as in
``workflows/assemble.nf``."""

BRAIN, ALL_CORES = "brain", 1 << 16
"""Label of processes that take all cores of a machine, half with a GPU (``conf/base.config``)."""

PARALLEL_SHARE = 0.9
"""Of the work of these on all tiles or voxels (docs/scale.md)."""


WINDOWED_PX = 480**2
"""Pixels of planes that hold 15 × 15 windows, as many as of any larger (`brain.local_fit`)."""


def _pairs_per_task(params: PlanParams, size: int) -> int:
    if not int(params["gpu_count"]):
        return PAIRS_GROUP
    return PAIRS_ON_GPU if params["use_gpu"] else min(size, PAIRS_GROUP)


GROUP_GAINS = (1.0, 1.0, 1.55, 2.5)
"""How many times as fast a GPU's slices are with so many processes, one for each two slices
(`linumpy.slices.slice_group`; docs/benchmarks/2026-11-25-slice-groups.md)."""


PAIR_GAINS = (1.0, 1.0, 1.5, 2.0)
"""How many times as fast pairs are measured by one to three processes of a GPU, with two cores each
and at least two slices (docs/benchmarks/2026-11-27-one-gpu.md)."""

PAIR_PROCESSES = 2
"""Of a task that shares a GPU, of a machine with the 16 cores a GPU that times were measured with
(docs/benchmarks/2026-11-28-two-gpus.md)."""


def _gain(graph: Graph, stage: Declaration, n_slices: int) -> float:
    """Return how many times as fast as one by one a task's slices are made on a GPU."""
    if stage.name == "measure_pairs":
        most = PAIR_PROCESSES if graph.params["gpu_count"] else len(PAIR_GAINS) - 1
        return PAIR_GAINS[min(n_slices // 2, most)]
    if stage.name != "reconstruct_slice":
        return 1.0
    return GROUP_GAINS[min(n_slices // 2, len(GROUP_GAINS) - 1)]


LANES_START_S = 1.2
"""Until the processes of other GPUs measure slices that models are learned from, after the first
does (docs/benchmarks/2026-11-28-learning-on-gpus.md)."""


def _in_lanes(graph: Graph, seconds: float) -> float:
    """Return how long all GPUs of this machine measure slices to learn from; `seconds` take one.

    Where other tasks have work for GPUs meanwhile, it has one (``modules/learn_models.nf``).
    """
    gpus, slices = max(1, int(graph.params["gpu_count"])), learned(graph.survey, graph.params)
    worth = sum(scan.grid_bytes for scan in slices) // LANE_NBYTES
    one = max(1, min(MOST_PROCESSES, worth // SLICES_A_PROCESS))
    several = min(gpus * MOST_PROCESSES, worth, len(slices))
    raw = graph.survey.kind == "raw"
    alone = graph.params["fused"] and not (raw and graph.params["keep_mosaic_grids"])
    if gpus == 1 or several <= one or not alone:
        return seconds
    return min(seconds, LANES_START_S + seconds * one / several)


PART_SHARE = 0.6
"""Of the time of a step by parts of depth, after its start: what its processes divide on GPUs, as
stacking was measured (docs/benchmarks/2026-11-28-whole-planes.md)."""

PARTS_START_S = 2.5
"""Until processes by parts of depth have started (the same record)."""


def _by_parts(graph: Graph, stage: Declaration, seconds: float) -> float:
    """Return how long a stage's work takes all GPUs of this machine, by parts of depth."""
    if not stage.parts:
        return seconds
    gpus = max(1, int(graph.params["gpu_count"]))
    layers = -(-graph.sizes.brain_shape[0] // SHARD_PX)
    most = worthwhile(Device("cuda"), int(graph.sizes.brain_bytes))
    count = min(layers, most, gpus * MOST_PROCESSES)
    if count < 2:
        return seconds
    # Of the process with the most layers; parts are whole ones.
    part = -(-layers // count) / layers
    return PARTS_START_S + seconds * (1 - PART_SHARE + PART_SHARE * part)


def _places(
    per: str, survey: Survey, size: int
) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Yield for each task of a stage its tag, the slices it works on, and those it needs."""
    ids = survey.ids
    if per == "run":
        yield "all slices", ids, ()
    elif per == "slice":
        yield from ((f"z{slice_id:02d}", (slice_id,), (slice_id,)) for slice_id in ids)
    elif per == "gap":
        yield from ((f"z{slice_id:02d}", (slice_id,), ()) for slice_id in survey.gaps)
    elif per == "group":
        for _, group in groupby(ids, lambda slice_id: slice_id // size):
            own = tuple(group)
            ends = dict.fromkeys((own[0], own[-1]))
            yield "-".join(f"z{slice_id:02d}" for slice_id in ends), own, own
    else:
        for _, group in groupby(ids, lambda slice_id: slice_id // size):
            own = tuple(group)
            start = ids.index(own[0])
            yield f"z{own[0]:02d}", own, ids[start : start + len(own) + 2]


def _of(names: Mapping[int | None, str], needed: Iterable[int]) -> list[str]:
    """Return the tasks of a stage that one on some slices needs: these slices', else all."""
    return [names[i] for i in needed if i in names] or list(names.values())


GPUS_MEASURED = 4
"""How much tasks slow each other was measured up to so many GPUs of one machine; more count as
these (docs/benchmarks/2026-11-29-what-four-gpus-wait-for.md)."""


def _task(
    graph: Graph,
    stage: Declaration,
    name: str,
    own: tuple[int, ...],
    needs: list[str],
    *,
    raw: bool,
) -> Task:
    on_gpu = bool(graph.params["use_gpu"]) and stage.on_gpu
    time = graph.times.find(stage.name, "gpu" if on_gpu else "cpu", raw=raw)
    if time is None:
        graph.unknown.add(stage.name)
    elif time.estimated:
        graph.estimated.add(stage.name)
    units, pieces = _work(graph, stage, own)
    seconds = 0.0 if time is None else time.seconds(units, pieces)
    if time is not None and on_gpu and stage.work == "learned":
        measuring = time.per_unit_s * units
        seconds += _in_lanes(graph, measuring) - measuring
    gpus, cores = int(graph.params["gpu_count"]), CORES_ASKED
    slower = 1.0
    if time is not None and on_gpu and gpus:
        slower += time.slower_a_gpu * (min(gpus, GPUS_MEASURED) - 1)
    alone = stage.label == BRAIN and not graph.params["use_gpu"]
    memory_bytes = REQUESTS[stage.label]
    if alone:
        cores = ALL_CORES
    elif stage.label == BRAIN and gpus:
        # For all processes by parts of depth, and what starts them.
        cores, processes = ALL_CORES // 2, MOST_PROCESSES * gpus + 1
        memory_bytes = max(memory_bytes, processes * HOST_NBYTES)
    gain = _gain(graph, stage, len(own)) if on_gpu else 1.0
    if on_gpu:
        seconds = _by_parts(graph, stage, seconds / gain)
    # Pairs were measured by one process, slices by as many as they gain by.
    busier = gain if stage.per == "pairs" else 1.0
    return Task(
        name=name,
        process=stage.name,
        needs=tuple(dict.fromkeys(needs)),
        cores=cores,
        memory_bytes=memory_bytes,
        # A scheduler gives each task a GPU of its own.
        gpu=1 / (stage.gpu_tasks if gpus else 1) if on_gpu else 0.0,
        forks=gpus * stage.forks_a_gpu if on_gpu and gpus else None,
        start_s=0.0 if time is None else slower * time.start_s,
        compute_s=slower * seconds,
        n_slices=1 if stage.per == "run" else len(own),
        parallel=PARALLEL_SHARE if alone and stage.on_gpu else 0.0,
        light=stage.label == "light",
        busy_cores=busier * time.busy_cores if time and on_gpu else 0.0,
        busy_gpu=busier * time.busy_gpu if time and on_gpu else 0.0,
    )


def _work(graph: Graph, stage: Declaration, own: tuple[int, ...]) -> tuple[float, float]:
    """Return what a task works on: GiB or items, and pieces (tiles or slices)."""
    survey, sizes = graph.survey, graph.sizes
    scans: list[SliceScan] = [s for s in survey.slices if s.slice_id in own]
    tiles = sum(scan.n_tiles for scan in scans)
    grid_bytes = sum(scan.grid_bytes for scan in scans)
    if stage.work == "learned":
        share = learned_tiles(survey, graph.params) / tiles * _passes(graph, stage)
        return share * grid_bytes / GIB, round(share * tiles)
    if stage.work == "grid":
        return grid_bytes / GIB, tiles
    made: list[SliceSize] = [s for s in sizes.slices if s.slice_id in own]
    if stage.work == "resampled":
        return sum(size.resampled_bytes for size in made) / GIB, 0
    if stage.work == "slices":
        # Of pairs, slices with all the windows that are ever measured.
        windows = sum(min(1.0, size.plane_px / WINDOWED_PX) for size in made)
        pieces = windows if stage.per == "pairs" else len(scans)
        return sum(size.volume_bytes for size in made) / GIB, pieces
    if stage.work == "brain":
        return sizes.brain_bytes / GIB, 0
    return (1 if stage.per == "gap" else len(scans)) if stage.work == "items" else 0.0, 0


def _passes(graph: Graph, stage: Declaration) -> float:
    """Return how often tiles are read: again where the engine's store has no room for them."""
    if graph.params["use_gpu"] or not stage.memory.resting:
        return 1.0
    tiles = first_tiles(graph.survey, graph.params)
    resting = MASK * tiles * graph.sizes.slices[0].resampled_tile_bytes
    again = tiles * max(0.0, 1 - DEFAULT_BUDGET_BYTES / max(resting, 1.0))
    return 1 + again / learned_tiles(graph.survey, graph.params)
