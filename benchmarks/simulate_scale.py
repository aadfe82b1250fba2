#!/usr/bin/env python
"""Simulate the pipeline on one GPU and on many, from measured stage times.

An acquisition of so many slices of a size, on 1 to 64 GPUs: time, speed-up, how busy the GPUs are,
and what the run waits for. Then each limit is taken away alone, which shows what it costs. Nothing
is computed but the simulation (`simulate.py`), which takes seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# Run from a checkout, linumpy need not be installed.
sys.path[:0] = [str(HERE), str(HERE.parent)]

from machine_model import (  # noqa: E402
    LOCAL_POLL_S,
    LOCAL_SUBMIT_S,
    REASONS,
    SLURM_ARRAY,
    SLURM_POLL_S,
    SLURM_QUEUE_S,
    SLURM_QUEUE_SIZE,
    SLURM_SUBMIT_S,
    Machine,
    Simulation,
    Task,
)
from simulate import critical_path_s, simulate  # noqa: E402

from linumpy.planning.machine import Resources  # noqa: E402
from linumpy.planning.plan import within  # noqa: E402
from linumpy.planning.plan_params import PlanParams  # noqa: E402
from linumpy.planning.processes import learned_tiles  # noqa: E402
from linumpy.planning.sizes import BRAIN_STORED, GRID_STORED, SLICE_STORED, Sizes, plan_sizes  # noqa: E402
from linumpy.planning.stage_times import read_stage_times  # noqa: E402
from linumpy.planning.survey import SliceScan, Survey  # noqa: E402
from linumpy.planning.tasks import build_tasks  # noqa: E402

TILE_SHAPE = (256, 512, 512)
VOXEL_UM = 5.0
OVERLAP = 0.2
FLY_BACK = 51
INTERVAL_UM = 200.0
CORES_A_GPU = 8
CPU_CORES = 32
_MEMORY_BYTES = 1 << 60
GPUS = (1, 2, 4, 8, 16, 32, 64)
SHOWN = (1, 8, 64)
SERIAL = (
    "learn_models",
    "assess_slice_quality",
    "register_slices",
    "stack_slices_motor",
    "generate_pipeline_report",
)


def acquisition(n_slices: int, gib: float) -> Survey:
    """Return an acquisition of so many slices of about so many GiB, as headers state it."""
    tile_gib = 4 * math.prod(TILE_SHAPE) / 2**30
    rows = max(1, round(math.sqrt(gib / tile_gib)))
    columns = max(1, round(gib / tile_gib / rows))
    step = (1 - OVERLAP) * TILE_SHAPE[1] * VOXEL_UM
    scan = SliceScan(
        slice_id=0,
        n_tiles=rows * columns,
        grid_shape=(rows, columns),
        tile_shape_px=TILE_SHAPE,
        voxel_um=(VOXEL_UM,) * 3,
        step_um=(step, step),
        n_extra=FLY_BACK,
        corner_um=(0.0, 0.0),
    )
    return Survey(
        root=Path("simulated"),
        kind="raw",
        slices=tuple(replace(scan, slice_id=number) for number in range(n_slices)),
        left_out=(),
        interval_um=INTERVAL_UM,
        has_shifts=False,
        has_config=False,
    )


def make_tasks(found: Survey, *, grids: bool, gpus: int = 1) -> list[Task]:
    """Return the tasks of a run on so many GPUs (0: of SLURM), with or without mosaic grids."""
    params = PlanParams.from_values(
        {"use_gpu": True, "keep_mosaic_grids": grids, "gpu_count": gpus}
    )
    sizes = plan_sizes(found, params)
    tasks = build_tasks(found, sizes, params, read_stage_times()).tasks
    tasks = within(tasks, Resources(_cores(gpus), _MEMORY_BYTES))
    moved = moved_bytes(found, sizes, learned_tiles(found, params), grids=grids)
    return [
        Task(
            **vars(task),
            moved_bytes=moved.get(task.process, 0.0) * task.n_slices,
        )
        for task in tasks
    ]


def moved_bytes(
    found: Survey, sizes: Sizes, learned_tiles: int, *, grids: bool
) -> dict[str, float]:
    """Return the bytes that a process reads and writes for one slice, or for all of them."""
    scan = found.slices[0]
    grid = GRID_STORED * scan.grid_bytes
    tiles = grid if grids else scan.raw_bytes
    stored = SLICE_STORED * sizes.slices_bytes
    return {
        "create_mosaic_grid_3d": scan.raw_bytes + grid,
        "learn_models": learned_tiles / scan.n_tiles * scan.raw_bytes,
        "reconstruct_slice": tiles + SLICE_STORED * sizes.slices[0].volume_bytes,
        "assess_slice_quality": stored,
        "register_slices": stored,
        "stack_slices_motor": stored + BRAIN_STORED * sizes.brain_bytes,
    }


def _cores(gpus: int) -> int:
    return CPU_CORES + CORES_A_GPU * gpus


def machine(gpus: int, bandwidth: float, *, batch: bool) -> Machine:
    """Return so many GPUs, of SLURM nodes or of one machine, with the cores beside them."""
    where = Machine(cores=_cores(gpus), gpus=gpus, bandwidth=bandwidth)
    if batch:
        return replace(
            where,
            submit_s=SLURM_SUBMIT_S,
            poll_s=SLURM_POLL_S,
            queue_s=SLURM_QUEUE_S,
            queue_size=SLURM_QUEUE_SIZE,
            arrays={"create_mosaic_grid_3d": SLURM_ARRAY},
        )
    return replace(where, memory_bytes=_MEMORY_BYTES, submit_s=LOCAL_SUBMIT_S, poll_s=LOCAL_POLL_S)


@dataclass(frozen=True)
class Row:
    """One simulated run."""

    gpus: int
    seconds: float
    speed_up: float
    gpu_share: float
    bottleneck: str
    waited_s: dict[str, float]
    critical_s: float

    @property
    def efficiency(self) -> float:
        """Speed-up a GPU."""
        return self.speed_up / self.gpus


def scale(make: Callable[[int], Sequence[Task]], machines: Sequence[Machine]) -> list[Row]:
    """Simulate one run on each machine; speed-up counts from the first, which has one GPU.

    `make` returns the tasks for a number of GPUs, by which slices are grouped.
    """
    rows: list[Row] = []
    for where in machines:
        tasks = make(where.gpus)
        found = simulate(tasks, where)
        first = rows[0].seconds if rows else found.seconds
        rows.append(
            Row(
                gpus=where.gpus,
                seconds=found.seconds,
                speed_up=first / found.seconds,
                gpu_share=found.gpu_share(where.gpus),
                bottleneck=found.bottleneck,
                waited_s=found.waited_s,
                critical_s=critical_path_s(tasks, where),
            )
        )
    return rows


def without(tasks: Sequence[Task], where: Machine) -> dict[str, Simulation]:
    """Return runs in each of which one limit is another."""
    quick = [replace(task, start_s=0.0) for task in tasks]
    halved = [
        replace(task, compute_s=task.compute_s / 2) if task.process in SERIAL else task
        for task in tasks
    ]
    return {
        "as it is": simulate(tasks, where),
        "tasks handed over ten times as fast": simulate(
            tasks, replace(where, submit_s=where.submit_s / 10)
        ),
        "no waiting for Nextflow and the queue": simulate(
            tasks, replace(where, submit_s=0.0, poll_s=0.0, queue_s=0.0)
        ),
        "four times the bandwidth": simulate(tasks, replace(where, bandwidth=4 * where.bandwidth)),
        "a quarter of the bandwidth": simulate(
            tasks, replace(where, bandwidth=where.bandwidth / 4)
        ),
        "tasks that start at once": simulate(quick, where),
        "steps on all slices in half the time": simulate(halved, where),
        "twice the GPUs": simulate(tasks, replace(where, gpus=2 * where.gpus)),
    }


def serial_table(tasks: Sequence[Task], where: Machine) -> str:
    """Return how long the steps on all slices take, in their order."""
    times = read_stage_times()
    lines: list[tuple[str, ...]] = [("step on all slices", "time, s", "")]
    for task in tasks:
        if task.process in SERIAL:
            known = times.find(task.process, "gpu" if task.gpu else "cpu", raw=True)
            basis = "estimated" if known is not None and known.estimated else "measured"
            lines.append((task.process, f"{where.alone_s(task):.0f}", basis))
    return _markdown(lines)


def scale_table(rows: Sequence[Row]) -> str:
    """Return rows as a table of Markdown."""
    head = ("GPUs", "time, s", "speed-up", "efficiency", "GPUs held", *REASONS)
    lines: list[tuple[str, ...]] = [head]
    for row in rows:
        shares = [f"{100 * row.waited_s[reason] / row.seconds:.0f} %" for reason in REASONS]
        lines.append(
            (
                str(row.gpus),
                f"{row.seconds:.0f}",
                f"{row.speed_up:.2f}",
                f"{100 * row.efficiency:.0f} %",
                f"{100 * row.gpu_share:.0f} %",
                *shares,
            )
        )
    return _markdown(lines)


def without_table(by_gpus: dict[int, dict[str, Simulation]]) -> str:
    """Return times without each limit as a table of Markdown, a column a number of GPUs."""
    names = list(next(iter(by_gpus.values())))
    lines: list[tuple[str, ...]] = [("what if", *(f"{n} GPUs, s" for n in by_gpus))]
    lines += [(name, *(f"{runs[name].seconds:.0f}" for runs in by_gpus.values())) for name in names]
    return _markdown(lines)


def _markdown(rows: Sequence[tuple[str, ...]]) -> str:
    rule = tuple("---" for _ in rows[0])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (rows[0], rule, *rows[1:]))


def draw(scenarios: dict[str, list[Row]], path: Path) -> None:
    """Draw time against GPUs, and what the runs of the first scenario wait for."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for name, rows in scenarios.items():
        left.plot([r.gpus for r in rows], [r.seconds for r in rows], "o-", label=name)
    rows = next(iter(scenarios.values()))
    gpus = [row.gpus for row in rows]
    left.plot(gpus, [rows[0].seconds / n for n in gpus], "k:", label="as many times as fast")
    left.plot(gpus, [row.critical_s for row in rows], "k--", label="longest chain of tasks")
    left.set(xscale="log", yscale="log", xlabel="GPUs", ylabel="time, s")
    left.set_xticks(gpus, [str(n) for n in gpus])
    left.minorticks_off()
    left.legend(fontsize=8)
    places = range(len(rows))
    below = [0.0] * len(rows)
    for reason in REASONS:
        waited = [row.waited_s[reason] for row in rows]
        right.bar(places, waited, bottom=below, label=reason)
        below = [b + w for b, w in zip(below, waited, strict=True)]
    right.set_xticks(places, [str(n) for n in gpus])
    right.set(xlabel="GPUs", ylabel="time, s", title=next(iter(scenarios)))
    right.legend(title="waited for", fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--slices", type=int, default=120)
    parser.add_argument("--size", type=float, default=4.0, help="GiB of a slice, as float32")
    parser.add_argument("--gpus", type=int, nargs="+", default=list(GPUS), help="numbers of GPUs")
    parser.add_argument(
        "--bandwidth", type=float, default=10.0, help="GB/s of the file system, for all together"
    )
    parser.add_argument("--output", type=Path, help="JSON file to write")
    parser.add_argument("--picture", type=Path, help="PNG to write")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Simulate."""
    args = build_parser().parse_args(argv)
    found = acquisition(args.slices, args.size)
    bandwidth = 1e9 * args.bandwidth
    kinds = {
        "SLURM, from raw tiles": (False, True),
        "SLURM, with mosaic grids": (True, True),
        "one machine, from raw tiles": (False, False),
    }
    scenarios: dict[str, list[Row]] = {}
    for name, (grids, batch) in kinds.items():

        def make(gpus: int, grids: bool = grids, batch: bool = batch) -> list[Task]:
            return make_tasks(found, grids=grids, gpus=0 if batch else gpus)

        rows = scale(make, [machine(n, bandwidth, batch=batch) for n in args.gpus])
        scenarios[name] = rows
        print(f"{name}: {found.input_bytes / 1e9:.0f} GB in {len(make(args.gpus[-1]))} tasks\n")
        print(scale_table(rows) + "\n")
    jobs = make_tasks(found, grids=False, gpus=0)
    what_if = {n: without(jobs, machine(n, bandwidth, batch=True)) for n in args.gpus if n in SHOWN}
    print(serial_table(jobs, machine(1, bandwidth, batch=True)) + "\n")
    if what_if:
        print(without_table(what_if))
    if args.output:
        args.output.write_text(json.dumps(_record(args, scenarios, what_if), indent=1) + "\n")
    if args.picture:
        draw(scenarios, args.picture)


def _record(
    args: argparse.Namespace,
    scenarios: dict[str, list[Row]],
    what_if: dict[int, dict[str, Simulation]],
) -> dict[str, Any]:
    return {
        "slices": args.slices,
        "slice_gib": args.size,
        "bandwidth_gb_s": args.bandwidth,
        "stage_times": read_stage_times().records,
        "scenarios": {name: [asdict(row) for row in rows] for name, rows in scenarios.items()},
        "without": {
            str(n): {name: run.seconds for name, run in runs.items()} for n, runs in what_if.items()
        },
    }


if __name__ == "__main__":
    main()
