#!/usr/bin/env python
"""Run the pipeline on a brain of large slices, beside what the plan says of it.

    python benchmarks/whole_brain.py FOLDER --slices 40 --gib 4 --use_gpu

simulates `--distinct` slices on all cores, unless FOLDER has raw data; the others are links to
them. It then plans the run on this machine, runs it with Nextflow, and prints when each process
began and ended, in the plan and in the run, and how busy the cores were. A folder in memory
(/dev/shm) takes the disk out of the measurement. `--before` runs another checkout on the same input
as well.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Run from a checkout, linumpy need not be installed.
sys.path[:0] = [str(ROOT)]

from measure import environment  # noqa: E402
from raw_slices import RawSlices, make_raw  # noqa: E402

from linumpy.records.timing import Task, read_trace, traces  # noqa: E402


def plan(folder: Path, gpus: int) -> dict[str, Any]:
    """Return the plan of the run, as its JSON says it."""
    path = folder / "plan.json"
    flags = ["--use_gpu", "--gpu_count", str(gpus)] if gpus else ["--no-use_gpu"]
    command: list[str | Path] = [
        sys.executable,
        ROOT / "scripts" / "linum_plan.py",
        folder / "raw",
        "--json",
        path,
    ]
    command += ["--keep_mosaic_grids", "false", "--overwrite", *flags]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return dict(json.loads(path.read_text(encoding="utf-8")))


def run(folder: Path, gpus: int, root: Path = ROOT, output: str = "output") -> float:
    """Run the pipeline of a checkout; return its seconds, Nextflow's start included."""
    command: list[str | Path] = [
        sys.executable,
        root / "scripts" / "linum_nextflow.py",
        "run",
        root / "main.nf",
    ]
    command += ["--input", folder / "raw", "--output", folder / output]
    command += ["--subject_name", "whole", "--keep_mosaic_grids", "false"]
    command += ["--use_gpu", "true", "--gpu_count", str(gpus)] if gpus else ["--use_gpu", "false"]
    began_s = time.monotonic()
    subprocess.run(command, cwd=folder, env=environment(root), check=True, stdin=subprocess.DEVNULL)
    return time.monotonic() - began_s


def spans(tasks: Sequence[Task]) -> dict[str, dict[str, float]]:
    """Return number, beginning, end, work and processor time of each process' tasks, seconds."""
    begun = min(task.submit for task in tasks if task.submit)
    found: dict[str, dict[str, float]] = {}
    for task in tasks:
        assert task.submit is not None
        first_s = (task.submit - begun).total_seconds()
        last_s = first_s + task.duration_s
        own = found.setdefault(
            task.process,
            {"tasks": 0, "begins_s": first_s, "ends_s": last_s, "total_s": 0.0, "cpu_s": 0.0},
        )
        own["tasks"] += 1
        own["begins_s"] = min(own["begins_s"], first_s)
        own["ends_s"] = max(own["ends_s"], last_s)
        own["total_s"] += task.realtime_s
        own["cpu_s"] += task.realtime_s * (task.cpu_percent or 0.0) / 100
    return found


def table(planned: dict[str, Any], measured: dict[str, dict[str, float]], seconds: float) -> str:
    """Return the plan beside the run, Markdown."""
    said = {row["name"]: row for row in planned["processes"]}
    lines = [
        "| process | tasks | from, s | to, s | in all, s | of processors, s "
        "| planned: tasks | from, s | to, s | in all, s |",
        "| --- " * 10 + "|",
    ]
    for name in sorted(measured, key=lambda name: measured[name]["begins_s"]):
        own, row = measured[name], said.get(name)
        cells = [own["tasks"], own["begins_s"], own["ends_s"], own["total_s"], own["cpu_s"]]
        if row:
            cells += [row["n_tasks"], row["begins_s"], row["ends_s"], row["total_s"]]
        texts = [f"{cell:.0f}" for cell in cells] + ["–"] * (9 - len(cells))
        lines.append(f"| {name} | " + " | ".join(texts) + " |")
    ratio = seconds / planned["seconds"]
    lines.append(f"\n{seconds:.0f} s; planned {planned['seconds']:.0f} s ({ratio:.2f} times)")
    return "\n".join(lines)


def busy(measured: dict[str, dict[str, float]], seconds: float) -> str:
    """Say how busy this machine's cores were, from the launch to the end."""
    cores = len(os.sched_getaffinity(0))
    used = sum(own["cpu_s"] for own in measured.values())
    first = min(own["begins_s"] for own in measured.values())
    last = max(own["ends_s"] for own in measured.values())
    shares = (100 * used / (cores * span) for span in (seconds, last - first))
    return "{} cores: {:.0f} s of processors; busy {:.0f} %, {:.0f} % while tasks ran".format(
        cores, used, *shares
    )


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where it is made")
    parser.add_argument("--slices", type=int, default=40)
    parser.add_argument("--distinct", type=int, default=3, help="slices to simulate [3]")
    parser.add_argument("--preset", default="large", help="of the phantom [large]")
    parser.add_argument("--tile_px", type=int, help="A-lines and B-scans of a tile")
    parser.add_argument("--gib", type=float, help="size of a slice's raw data")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--template", type=Path, metavar="NPZ", help="the brain, without nilearn")
    parser.add_argument("--use_gpu", action="store_true")
    parser.add_argument("--gpu_count", type=int, default=1)
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="to run as well")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    return parser


def main() -> None:
    """Simulate, plan, run, compare."""
    args = build_parser().parse_args()
    folder, gpus = args.folder.resolve(), args.gpu_count if args.use_gpu else 0
    wanted = RawSlices(
        args.preset, args.tile_px, args.gib, args.distinct, args.slices, args.seed, args.template
    )
    if not (folder / "raw").exists():
        print(make_raw(folder / "raw", wanted), flush=True)
    planned = plan(folder, gpus)

    def ran(root: Path, output: str) -> tuple[float, dict[str, dict[str, float]]]:
        seconds = run(folder, gpus, root, output)
        return seconds, spans(read_trace(traces(folder / output / "pipeline_info")[-1]))

    seconds, measured = ran(ROOT, "output")
    print(table(planned, measured, seconds))
    print(busy(measured, seconds), flush=True)
    if args.before:
        before_s, before = ran(args.before.resolve(), "output_before")
        print(table(planned, before, before_s))
        print(busy(before, before_s))
        print(f"{before_s:.0f} s before, {seconds:.0f} s now: {before_s / seconds:.2f} times")
    if args.output:
        record = {
            "command": sys.argv[1:],
            "cores": len(os.sched_getaffinity(0)),
            "gpus": gpus,
            "seconds": seconds,
            "measured": measured,
            "planned": {"seconds": planned["seconds"], "processes": planned["processes"]},
        }
        args.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
