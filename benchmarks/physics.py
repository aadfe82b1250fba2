#!/usr/bin/env python
"""Measure the accuracy of estimators over random physics of microscope and tissue.

Each physics is a small acquisition of the phantom's preset ``foreign``, reconstructed by the
library with default parameters and compared with its truth. One JSON line each is appended to a
record; a run that was stopped goes on where it was.

    python benchmarks/physics.py run RECORD.jsonl --jobs 16 [--count 100] [--device gpu]
    python benchmarks/physics.py run RECORD.jsonl --each        a single effect a physics, in turn
    python benchmarks/physics.py run AFTER.jsonl --like BEFORE.jsonl       the same physics again
    python benchmarks/physics.py show RECORD.jsonl [--markdown] [--by effect]
    python benchmarks/physics.py compare BEFORE.jsonl AFTER.jsonl [--markdown]
    python benchmarks/physics.py template BRAIN.npz     for machines without nilearn: run --template
    python benchmarks/physics.py whole FOLDER --count 10 [--jobs 10]    whole runs of the pipeline

Seeds are drawn anew for each record, and are in its first line.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import physics_table

ROOT = Path(__file__).resolve().parent.parent
# A full brain section in few samples: 32 tiles, of which the flat field is learned to about 1 %.
GEOMETRY = {"n_slices": 2, "tiles_x": 4, "tiles_y": 4, "nx": 120, "ny": 120, "nz": 140}
LARGE = {"n_slices": 2, "tiles_x": 2, "tiles_y": 2, "nx": 400, "ny": 400, "nz": 120}
"""Tiles in which scale and shear of the stage add up to pixels."""

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def reconstruct(raw: Path, folder: Path, gpu: bool) -> None:
    """Reconstruct an acquisition as the pipeline does by default, into the layout of a run."""
    from linumpy.brain.output import register_folder, stack_folder
    from linumpy.core.device import resolve
    from linumpy.io.tables import write_shifts
    from linumpy.mosaic.create_mosaic_grid_3d import create_mosaic_grid_3d
    from linumpy.mosaic.shifts import estimate_xy_shift_from_metadata, read_extents
    from linumpy.quality.measure_pairs import measure_pairs
    from linumpy.slices.learn_models import learn_models
    from linumpy.slices.raw_source import raw_inputs
    from linumpy.slices.reconstruct_slice import reconstruct_to_files
    from linumpy.stage_params.slices import SliceParams

    device = resolve(gpu)
    params = SliceParams.from_values({})
    models = folder / "models"
    write_shifts(
        folder / "shifts_xy.csv", estimate_xy_shift_from_metadata(read_extents(raw, "+x,+y"))
    )
    grids = {}
    for source in raw_inputs(raw):
        name = f"mosaic_grid_3d_z{source.slice_id:02d}.ome.zarr"
        grids[source.slice_id] = folder / "mosaic_grids" / name
        create_mosaic_grid_3d(raw, source.slice_id, grids[source.slice_id])
    learned = learn_models(list(grids.values()), params, device=device)
    learned.save(models)
    for slice_id, grid in grids.items():
        reconstruct_to_files(
            grid,
            folder / "slices" / f"slice_z{slice_id:02d}.ome.zarr",
            {},
            models=models,
            output_models=models / f"z{slice_id:02d}",
            device=device,
        )
    registration = models / "register_slices.json"
    shifts, pairs = folder / "shifts_xy.csv", folder / "pairs"
    measure_pairs(folder / "slices", pairs, {}, shifts=shifts, device=device)
    config = _rate(folder, device)
    register_folder(
        folder / "slices", shifts, registration, {}, config=config, pairs=pairs, device=device
    )
    stack_folder(
        folder / "slices",
        shifts,
        folder / "brain.ome.zarr",
        {},
        registration=registration,
        pairs=pairs,
        config=config,
        output_model=models / "stack_slices_motor.json",
        device=device,
    )


def _rate(folder: Path, device: Any) -> Path:
    """Let the pipeline's decision on slices be made; return its table."""
    from linumpy.io.tables import SliceConfig, write_slice_config
    from linumpy.quality.assess_folder import assess_folder

    ids = sorted(int(p.name[7:9]) for p in (folder / "slices").glob("slice_z*.ome.zarr"))
    first, rated = folder / "slice_config_in.csv", folder / "slice_config.csv"
    write_slice_config(first, [SliceConfig(slice_id) for slice_id in ids])
    assess_folder(
        folder / "slices",
        folder / "models" / "assess_slice_quality.json",
        {},
        shifts=folder / "shifts_xy.csv",
        pairs=folder / "pairs",
        config_in=first,
        config_out=rated,
        device=device,
    )
    return rated


def measure(folder: Path, truth: Path) -> dict[str, Any]:
    """Return the metrics of a run, the steps that reported a problem, and lost slices."""
    from linumpy.quality.evaluate import evaluate

    figures = evaluate(folder, truth, grids=folder / "mosaic_grids")
    return {"figures": {name: figure.to_json() for name, figure in figures.items()}} | decided(
        folder
    )


def decided(folder: Path) -> dict[str, Any]:
    """Return what a run says of itself: metrics beyond their limits, slices left out."""
    from linumpy.quality.run import Run

    run = Run(folder)
    flags = sorted(
        f"{step}.{name}"
        for (step, _), record in run.metrics.items()
        for name, metric in record.get("metrics", {}).items()
        if metric["status"] != "ok"
    )
    return {"flags": sorted(set(flags)), "left_out": sorted(run.left_out)}


def one_physics(task: Mapping[str, Any]) -> dict[str, Any]:
    """Simulate, reconstruct and rate one physics; failures are part of the result."""
    from linumpy.phantom.physics import foreign
    from linumpy.phantom.simulate import simulate

    started = time.perf_counter()
    result: dict[str, Any] = {"seed": task["seed"], "only": task["only"]}
    folder = Path(tempfile.mkdtemp(prefix=f"physics-{task['seed']}-", dir=task["scratch"]))
    try:
        params = foreign(task["seed"], task["only"], **task["geometry"])
        brain = read_template(task["template"]) if task["template"] else None
        simulate(folder, params, task["seed"], threads=1, template=brain)
        simulated = time.perf_counter()
        result["simulated_s"] = round(simulated - started, 1)
        try:
            reconstruct(folder / "raw", folder / "run", task["device"] == "gpu")
            result["reconstructed_s"] = round(time.perf_counter() - simulated, 1)
            result |= measure(folder / "run", folder / "truth")
        except Exception as error:
            # What linumpy cannot do is what this is to find; the others go on.
            result["error"] = f"{type(error).__name__}: {error}"
            result["traceback"] = traceback.format_exc()[-2000:]
    finally:
        if not task["keep"]:
            shutil.rmtree(folder, ignore_errors=True)
    result["wall_s"] = round(time.perf_counter() - started, 1)
    return result


def write_template(path: Path) -> None:
    """Write the brain of the phantom to one file that NumPy reads."""
    import numpy as np

    from linumpy.phantom.anatomy import load_template

    brain = load_template()
    np.savez_compressed(path, grey=brain.grey, white=brain.white, voxel_mm=brain.voxel_mm)


def read_template(path: Path) -> Any:
    """Read what `write_template` wrote."""
    from linumpy.phantom.anatomy import Template
    from linumpy.store.untrusted import read_arrays

    found = read_arrays(path)
    voxel = found["voxel_mm"].tolist()
    return Template(found["grey"], found["white"], (voxel[0], voxel[1], voxel[2]))


def read_record(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a record's first line and its results; a line that was cut short is dropped."""
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        # A kill fell into the last write: the next one begins a line of its own.
        with path.open("r+b") as file:
            file.truncate(len(whole))
    lines = [json.loads(line) for line in whole.decode("utf-8").splitlines()]
    if not lines or "seeds" not in lines[0]:
        sys.exit(f"{path}: no record of benchmarks/physics.py; expected seeds in its first line")
    return lines[0], lines[1:]


def append(path: Path, entry: Mapping[str, Any]) -> None:
    """Append a line and wait until it is on disk."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def plan(args: argparse.Namespace) -> dict[str, Any]:
    """Return the first line of a new record: what is to be done."""
    if args.like is not None:
        header, _ = read_record(args.like)
        return {**header, "device": args.device}
    from linumpy.phantom.physics import EFFECTS

    seeds = _seeds(args)
    if args.each:
        names = list(EFFECTS)
        only: list[list[str] | None] = [[names[i % len(names)]] for i in range(len(seeds))]
    else:
        only = [args.only] * len(seeds)
    geometry = dict(LARGE if args.large else GEOMETRY)
    geometry |= {"n_slices": args.slices} if args.slices else {}
    return {
        "seeds": seeds,
        "only": only,
        "geometry": geometry,
        "device": args.device,
        "version": version(),
    }


def _seeds(args: argparse.Namespace) -> list[int]:
    return args.seeds or [random.SystemRandom().randrange(1, 10**6) for _ in range(args.count)]


def version() -> str:
    """Return what git calls the code, or the release without git."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        from linumpy import __version__

        return __version__


def run_all(args: argparse.Namespace) -> None:
    """Do what a record lacks."""
    if args.record.exists():
        header, done = read_record(args.record)
    else:
        header, done = plan(args), []
        append(args.record, header)
    print(f"seeds: {' '.join(map(str, header['seeds']))}", flush=True)
    known = {(r["seed"], tuple(r["only"] or ())) for r in done}
    tasks = [
        {
            "seed": seed, "only": only, "geometry": header["geometry"], "scratch": args.scratch,
            "keep": args.keep, "device": header["device"], "template": args.template,
        }
        for seed, only in zip(header["seeds"], header["only"], strict=True)
        if (seed, tuple(only or ())) not in known
    ]  # fmt: skip
    for name in THREAD_VARIABLES:
        os.environ.setdefault(name, "1")
    for number, result in enumerate(results_of(one_physics, tasks, args.jobs), len(done) + 1):
        append(args.record, result)
        only = f" {'+'.join(result['only'])}" if result["only"] else ""
        failure = f"  FAILED {result['error']}" if "error" in result else ""
        print(
            f"{number}/{len(header['seeds'])} seed {result['seed']}{only}: "
            f"{result['wall_s']} s{failure}",
            flush=True,
        )
    print(physics_table.show(*read_record(args.record)))


def results_of(
    make: Callable[[Mapping[str, Any]], dict[str, Any]],
    tasks: Sequence[Mapping[str, Any]],
    jobs: int,
    cores: int = 1,
) -> Iterator[dict[str, Any]]:
    """Yield results of tasks as they come, of at most `jobs` processes with so many cores each."""
    if jobs == 1:
        yield from map(make, tasks)
        return
    # Spawned: a process that has used a GPU must not be forked.
    context = multiprocessing.get_context("spawn")
    number = context.Value("i", 0)
    with ProcessPoolExecutor(jobs, context, _take_cores, (number, cores)) as pool:
        pending: set[Future[dict[str, Any]]] = {pool.submit(make, t) for t in tasks}
        while pending:
            finished, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in finished:
                yield future.result()


def _take_cores(number: Any, each: int) -> None:
    """Let a process work on cores of its own: threads of several would wait for each other."""
    with number.get_lock():
        mine = number.value
        number.value += 1
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[(mine * each + i) % len(cores)] for i in range(each)})


def run_whole(args: argparse.Namespace) -> None:
    """Send whole acquisitions through the pipeline, those that the record lacks."""
    args.folder.mkdir(parents=True, exist_ok=True)
    record = args.folder / "whole.jsonl"
    if record.exists():
        header, done = read_record(record)
    else:
        seeds = _seeds(args)
        header, done = {"seeds": seeds, "only": [None] * len(seeds), "version": version()}, []
        append(record, header)
    print(f"seeds: {' '.join(map(str, header['seeds']))}", flush=True)
    known = {result["seed"] for result in done}
    tasks = [
        {
            "seed": seed, "folder": args.folder.resolve() / f"seed-{seed}", "keep": args.keep,
            "phantom": args.phantom, "nextflow": args.nextflow,
        }
        for seed in header["seeds"]
        if seed not in known
    ]  # fmt: skip
    cores = max(1, len(os.sched_getaffinity(0)) // args.jobs)
    for result in results_of(one_whole, tasks, args.jobs, cores):
        append(record, result)
    print(physics_table.show(*read_record(record)))


def one_whole(task: Mapping[str, Any]) -> dict[str, Any]:
    """Simulate an acquisition and send it through the pipeline; failures are part of the result."""
    seed, folder = task["seed"], task["folder"]
    started = time.perf_counter()
    result: dict[str, Any] = {"seed": seed, "only": None}
    folder.mkdir(exist_ok=True)
    try:
        _command(
            folder, "linum_phantom.py", folder, "--preset", "foreign", "--seed", seed,
            "--overwrite", *task["phantom"],
        )  # fmt: skip
        _command(
            folder, "linum_nextflow.py", "run", ROOT / "main.nf", "--input", folder / "raw",
            "--output", folder / "output", "--truth", folder / "truth",
            "--subject_name", "foreign", *task["nextflow"],
        )  # fmt: skip
        found = next((folder / "output").rglob("accuracy.json"))
        result["figures"] = json.loads(found.read_text(encoding="utf-8"))
        result |= decided(folder / "output")
    except (subprocess.CalledProcessError, StopIteration) as error:
        result["error"] = f"the pipeline failed ({error!r})"
    if not task["keep"] and "error" not in result:
        for name in ("raw", "truth", "work", "output"):
            shutil.rmtree(folder / name, ignore_errors=True)
    return {**result, "wall_s": round(time.perf_counter() - started, 1)}


def _command(folder: Path, script: str, *arguments: object) -> None:
    """Run a script in a folder of its own: Nextflow keeps its session where it is launched."""
    command = [sys.executable, str(ROOT / "scripts" / script), *map(str, arguments)]
    with (folder / "log.txt").open("a", encoding="utf-8") as log:
        subprocess.run(
            command, cwd=folder, check=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="do what a record lacks")
    run.add_argument("record", type=Path, help="file of JSON lines, made or continued")
    run.add_argument("--count", type=int, default=100, help="number of physics [100]")
    run.add_argument("--seeds", type=int, nargs="+", help="these instead of drawn ones")
    run.add_argument("--like", type=Path, metavar="RECORD", help="the same physics as a record")
    run.add_argument("--only", nargs="+", metavar="EFFECT", help="draw these effects alone")
    run.add_argument("--each", action="store_true", help="one effect a physics, in turn")
    run.add_argument("--large", action="store_true", help="four tiles of 400 x 400")
    run.add_argument("--slices", type=int, help="slices a physics [2]")
    run.add_argument("--jobs", type=int, default=1, help="processes [1]")
    run.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    run.add_argument("--template", type=Path, metavar="NPZ", help="the brain, without nilearn")
    run.add_argument("--scratch", help="folder for temporary files, 1 GB a job")
    run.add_argument("--keep", action="store_true", help="keep acquisitions and runs")
    show = commands.add_parser("show", help="print the distributions of a record")
    show.add_argument("record", type=Path)
    show.add_argument("--markdown", action="store_true", help="a table for docs/accuracy.md")
    show.add_argument("--by", choices=("effect",), help="a table an effect")
    compare = commands.add_parser("compare", help="compare two records metric by metric")
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)
    compare.add_argument("--markdown", action="store_true")
    template = commands.add_parser("template", help="write the brain as one NumPy file")
    template.add_argument("output", type=Path)
    whole = commands.add_parser("whole", help="whole runs through the pipeline (needs Nextflow)")
    whole.add_argument("folder", type=Path)
    whole.add_argument("--count", type=int, default=10)
    whole.add_argument("--seeds", type=int, nargs="+")
    whole.add_argument("--jobs", type=int, default=1, help="runs side by side, cores shared [1]")
    whole.add_argument("--keep", action="store_true", help="keep acquisitions and runs")
    whole.add_argument(
        "--phantom", type=shlex.split, default=[], metavar="FLAGS", help="quantities, quoted"
    )
    whole.add_argument("--nextflow", nargs=argparse.REMAINDER, default=[], help="flags of the run")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command."""
    args = build_parser().parse_args(argv)
    if args.command == "run":
        run_all(args)
    elif args.command == "template":
        write_template(args.output)
    elif args.command == "whole":
        run_whole(args)
    elif args.command == "show":
        header, results = read_record(args.record)
        print(physics_table.show(header, results, markdown=args.markdown, by=args.by))
    else:
        records = [read_record(path)[1] for path in (args.before, args.after)]
        print(physics_table.compare(*records, markdown=args.markdown))


if __name__ == "__main__":
    main()
