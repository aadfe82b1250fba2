"""Plan of a run: input, outputs, memory, time, and parameters to choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from linumpy.core.errors import InputError
from linumpy.core.log import duration
from linumpy.launch.groups import slices_per_task
from linumpy.planning.machine import Resources
from linumpy.planning.plan_params import PlanParams
from linumpy.planning.processes import DeviceNeed, device_need, host_bytes
from linumpy.planning.schedule import Schedule, chain_s, schedule
from linumpy.planning.sizes import Disk, Sizes, plan_disks, plan_sizes
from linumpy.planning.stage_times import StageTimes, read_stage_times
from linumpy.planning.survey import Survey, survey
from linumpy.planning.tasks import ALL_CORES, Graph, Task, build_tasks
from linumpy.stage_params.declared import STAGES

MEASURED, ESTIMATED, UNKNOWN = "measured", "estimated", "unknown"
_WORTH_SHARE = 0.05
_ROUND_GIB = 1 << 30


@dataclass(frozen=True)
class ProcessPlan:
    """A process of the run.

    Attributes
    ----------
    asked_bytes, host_bytes
        Memory that a task asks for, and that it is likely to take.
    device
        Memory on a GPU; None where it uses none.
    task_s
        Seconds of its longest task.
    total_s
        Seconds of all its tasks, one after the other.
    begins_s, ends_s
        When the first begins and the last ends, by the scheduled.
    basis
        Whether times are measured, estimated or unknown.
    """

    name: str
    n_tasks: int
    asked_bytes: int
    host_bytes: int
    device: DeviceNeed | None
    task_s: float
    total_s: float
    begins_s: float
    ends_s: float
    basis: str


LAUNCH_S = 16.0
"""Of Nextflow before the first task and after the last: as in a run of 40 slices, 2026-11-26
(docs/benchmarks/2026-11-26-whole-brain.md), and as in one of four tiny ones (19 on two cores)."""


@dataclass(frozen=True)
class Suggestion:
    """Something to choose, as it is written on the command line or in a config, and why."""

    text: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """Everything reported before a run.

    Attributes
    ----------
    chain_s
        Seconds of the longest chain of tasks; more cores or GPUs do not make it shorter.
    disk_problems, memory_problems
        Why it will fail, or be refused at launch.
    notes
        Warnings.
    """

    survey: Survey
    sizes: Sizes
    disks: tuple[Disk, ...]
    resources: Resources
    params: PlanParams
    processes: tuple[ProcessPlan, ...]
    scheduled: Schedule
    chain_s: float
    disk_problems: tuple[str, ...]
    memory_problems: tuple[str, ...]
    notes: tuple[str, ...]
    suggestions: tuple[Suggestion, ...]
    times: StageTimes

    @property
    def seconds(self) -> float:
        """Seconds from the command to its last line."""
        return LAUNCH_S + self.scheduled.seconds

    @property
    def problems(self) -> tuple[str, ...]:
        """All problems."""
        return self.disk_problems + self.memory_problems


def make_plan(
    root: Path | str,
    given: Mapping[str, Any],
    resources: Resources,
    *,
    work_folder: Path | str = "work",
    slurm: bool = False,
    times: StageTimes | None = None,
) -> Plan:
    """Plan a run.

    Parameters
    ----------
    root
        The input: raw tiles or mosaic grids.
    given
        Pipeline parameters by their names.
    resources
        What the run may use; its GPUs count where ``use_gpu`` is set.
    work_folder
        Nextflow's.
    slurm
        Whether jobs can be handed to SLURM.
    times
        Model of stage times; the shipped one when None.

    Raises
    ------
    InputError
        When the input or a parameter cannot be read.
    """
    params = PlanParams.from_values(given)
    known = read_stage_times() if times is None else times
    found = survey(root, params)
    resources = _for_run(resources, params, found)
    size = slices_per_task(params.values, len(found.slices), found.input_bytes, resources.cores)
    params = PlanParams({**params.values, "slices_per_task": str(size)})
    sizes = plan_sizes(found, params)
    disks = plan_disks(sizes, Path(params["output"]), Path(work_folder))
    graph = build_tasks(found, sizes, params, known)
    tasks = within(graph.tasks, resources)
    scheduled = schedule(tasks, resources)
    processes = _process_plans(graph, scheduled, resources)
    return Plan(
        survey=found,
        sizes=sizes,
        disks=disks,
        resources=resources,
        params=params,
        processes=processes,
        scheduled=scheduled,
        chain_s=chain_s(tasks),
        disk_problems=tuple(_disk_problems(disks)),
        memory_problems=tuple(_memory_problems(processes, resources)),
        notes=tuple([*found.notes(), *_notes(graph, processes)]),
        suggestions=tuple(_suggestions(graph, disks, processes, scheduled, resources, slurm)),
        times=known,
    )


def with_given(
    here: Resources, cores: int | None, memory_bytes: int | None, gpu_bytes: int | None
) -> Resources:
    """Return a machine with what the command line says of it instead.

    Raises
    ------
    InputError
        When there is no core.
    """
    if cores is not None and cores < 1:
        raise InputError(f"--cores {cores}: expected 1 or more")
    return replace(
        here,
        cores=cores or here.cores,
        memory_bytes=memory_bytes or here.memory_bytes,
        gpu_bytes=gpu_bytes or here.gpu_bytes,
    )


def _for_run(resources: Resources, params: PlanParams, found: Survey) -> Resources:
    """Return what the run may use; with GPUs of a batch system, as much as all slices can."""
    if not params["use_gpu"]:
        return replace(resources, gpus=0)
    count = int(params["gpu_count"])
    if count < 0:
        raise InputError(f"--gpu_count {count}: expected 0 or more")
    if count > 0:
        return replace(resources, gpus=count)
    n_slices = len(found.slices)
    return replace(resources, gpus=n_slices, cores=max(resources.cores, 4 * n_slices), batch=True)


def within(tasks: Sequence[Task], resources: Resources) -> list[Task]:
    """Return tasks capped at the resources, as by Nextflow's resourceLimits, on so many cores."""

    def fitted(task: Task) -> Task:
        cores, asked = min(task.cores, resources.cores), task.memory_bytes
        if task.cores >= ALL_CORES // 2:
            cores = max(1, resources.cores * task.cores // ALL_CORES)
        if task.cores == ALL_CORES:
            asked = max(asked, cores * _ROUND_GIB)
        gpu = task.gpu
        if gpu and resources.gpu_bytes:
            least = STAGES[task.process].least_gpu_bytes
            gpu = min(1.0, max(gpu, least / resources.gpu_bytes))
        return replace(
            task,
            cores=cores,
            memory_bytes=min(asked, resources.memory_bytes),
            gpu=gpu,
            compute_s=task.compute_s * (1 - task.parallel + task.parallel / cores),
        )

    return [fitted(task) for task in tasks]


def _process_plans(
    graph: Graph, scheduled: Schedule, resources: Resources
) -> tuple[ProcessPlan, ...]:
    when = scheduled.process_s()
    by_name: dict[str, list[Task]] = {}
    for task, _, _ in scheduled.spans:
        by_name.setdefault(task.process, []).append(task)
    plans = []
    for name in sorted(by_name, key=lambda process: when[process]):
        first = by_name[name][0]
        alone = [task.start_s + task.compute_s for task in by_name[name]]
        basis = ESTIMATED if name in graph.estimated else MEASURED
        plans.append(
            ProcessPlan(
                name=name,
                n_tasks=len(alone),
                asked_bytes=first.memory_bytes,
                host_bytes=host_bytes(
                    name,
                    graph.survey,
                    graph.sizes,
                    graph.params,
                    first.cores,
                    first.memory_bytes,
                ),
                device=device_need(name, graph.survey, graph.sizes)
                if graph.params["use_gpu"]
                else None,
                task_s=max(alone),
                total_s=sum(alone),
                begins_s=when[name][0],
                ends_s=when[name][1],
                basis=UNKNOWN if name in graph.unknown else basis,
            )
        )
    return tuple(plans)


def _disk_problems(disks: Sequence[Disk]) -> list[str]:
    return [
        f"{' and '.join(disk.folders)}: {gb(disk.wanted_bytes)} will be written, "
        f"{gb(disk.free_bytes)} are free"
        for disk in disks
        if not disk.suffices
    ]


def _memory_problems(processes: Sequence[ProcessPlan], resources: Resources) -> list[str]:
    found = []
    for process in processes:
        if process.host_bytes > resources.memory_bytes:
            found.append(
                f"{process.name}: a task takes {gb(process.host_bytes)} of memory, the machine "
                f"has {gb(resources.memory_bytes)}"
            )
        least = process.device.least_bytes if process.device else 0
        if resources.gpu_bytes is not None and least > resources.gpu_bytes:
            found.append(
                f"{process.name}: a task takes {gb(least)} of device memory at least, there "
                f"are {gb(resources.gpu_bytes)}"
            )
    return found


def _notes(graph: Graph, processes: Sequence[ProcessPlan]) -> list[str]:
    found = []
    if graph.unknown:
        found.append(f"no time is known, and none counted, of {', '.join(sorted(graph.unknown))}")
    if graph.estimated:
        found.append(f"times are estimated, not measured, of {', '.join(sorted(graph.estimated))}")
    if any(process.device for process in processes):
        found.append("GPU times are those of an NVIDIA H200 and 16 cores")
    return found


def _suggestions(
    graph: Graph,
    disks: Sequence[Disk],
    processes: Sequence[ProcessPlan],
    scheduled: Schedule,
    resources: Resources,
    slurm: bool,
) -> list[Suggestion]:
    found = [_profile(graph.params, resources, slurm)]
    if graph.params["use_gpu"] and resources.gpus > 1 and not resources.batch:
        text = f"--gpu_count {resources.gpus}"
        found.append(Suggestion(text, "so many tasks of a slice run at a time"))
    raw = graph.survey.kind == "raw"
    if raw and graph.params["keep_mosaic_grids"] and graph.params["fused"]:
        found += _without_grids(graph, disks, scheduled, resources)
    short = any(not disk.suffices for disk in disks)
    together = len(disks) == 1
    if short and together and graph.params["publish_mode"] == "copy":
        saved = sum(graph.sizes.output_stored.values())
        found.append(
            Suggestion(
                "--publish_mode link",
                f"output and work folder share their files: {gb(saved)} less on disk",
            )
        )
    for process in processes:
        if resources.memory_bytes >= process.host_bytes > process.asked_bytes:
            wanted = -(-process.host_bytes // _ROUND_GIB)
            found.append(
                Suggestion(
                    f"process {{ withName: '{process.name}' {{ memory = {wanted}.GB }} }}",
                    f"a task takes about {gb(process.host_bytes)} and asks for "
                    f"{gb(process.asked_bytes)} at first; a line for -c my.config",
                )
            )
    return found


def _profile(params: PlanParams, resources: Resources, slurm: bool) -> Suggestion:
    if slurm or resources.batch:
        gpu = ",gpu" if params["use_gpu"] else ""
        return Suggestion(f"-profile slurm{gpu}", "SLURM gives tasks their places")
    if params["use_gpu"]:
        reason = "one machine with a GPU" if resources.gpus == 1 else "one machine with GPUs"
        return Suggestion("-profile gpu", reason)
    return Suggestion("-profile standard", "one machine, its cores alone")


def _without_grids(
    graph: Graph, disks: Sequence[Disk], scheduled: Schedule, resources: Resources
) -> list[Suggestion]:
    """Suggest to go without mosaic grids where that spares disk that is short, or much time."""
    params = PlanParams({**graph.params.values, "keep_mosaic_grids": False})
    sizes = plan_sizes(graph.survey, params)
    other = build_tasks(graph.survey, sizes, params, graph.times)
    seconds = schedule(within(other.tasks, resources), resources).seconds
    saved_s = scheduled.seconds - seconds
    stored = [
        {**s.output_stored, "work": sum(s.work_stored.values())} for s in (graph.sizes, sizes)
    ]
    saved = sum(stored[0].values()) - sum(stored[1].values())
    short = any(not disk.suffices for disk in disks)
    if not short and saved_s < _WORTH_SHARE * scheduled.seconds:
        return []
    reason = f"no mosaic grids: {gb(saved)} less on disk"
    if saved_s > 0:
        reason += f", {duration(saved_s)} less"
    return [Suggestion("--keep_mosaic_grids false", reason)]


def gb(count: float) -> str:
    """Return bytes as people say them."""
    for unit, size in (("TB", 1e12), ("GB", 1e9)):
        if count >= 0.9995 * size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e6:.3g} MB"
