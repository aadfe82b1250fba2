#!/usr/bin/env python
"""Reconstruct slices on several GPUs: many by leases, and a large one on all together.

One command makes a mosaic grid, learns the models, and reconstructs its slice again and again: as
many processes at a time as there are GPUs, each of which leases one, as the pipeline's tasks do;
and one process with all of them. It says how many times as fast each is as with one GPU, and what
every GPU had to do, and what as many processes take that only start and leave.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
# Run from a checkout, linumpy need not be installed.
sys.path[:0] = [str(ROOT)]

import measure  # noqa: E402
from measure import Measured, workplace  # noqa: E402
from stage_list import Place  # noqa: E402
from stages import apart, compare, count_tiles, make_grid, remove  # noqa: E402
from utilisation import Utilisation  # noqa: E402

TARGETS = {2: 1.8, 4: 3.4}
SLICE = ROOT / "scripts" / "linum_reconstruct_slice.py"
OUTSIDE = ("start", "finish", "end")


def worked_s(measured: Measured, thread: str = "") -> float:
    """Return how long a process, or its threads of that name, worked, all but start and end."""
    spans = [
        (span["start_s"], span["stop_s"])
        for span in measured.spans
        if span["step"] not in OUTSIDE and span["thread"].startswith(thread)
    ]
    return measure.covered_s(spans)


def covered_by_step(measured: Measured) -> dict[str, float]:
    """Return for how long a process was at each step, in any of its threads."""
    return {step: found["covered_s"] for step, found in measure.where_time_went(measured).items()}


def describe(folder: Path, on_gpu: bool) -> dict[str, Any]:
    """Return the machine and the versions of what works on it."""
    from linumpy.benchmark.machine import describe_machine, describe_versions

    return {"machine": describe_machine(folder, on_gpu), "versions": describe_versions()}


def medians(found: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the median of every number by its name."""
    names = found[0] if found else {}
    return {name: statistics.median(each[name] for each in found) for name in names}


class Benchmark:
    """One run of everything that was asked for.

    Parameters
    ----------
    args
        The command line.
    work
        An empty folder.
    """

    def __init__(self, args: argparse.Namespace, work: Path) -> None:
        self.args, self.work = args, work
        self.on_gpu = args.device == "gpu"
        self.most = max(args.gpus)
        cores = sorted(os.sched_getaffinity(0))
        each = args.cores_a_gpu or max(1, len(cores) // self.most)
        self.cores = [cores[n * each :][:each] or cores[-1:] for n in range(self.most)]
        self.names = self._find_gpus()
        self.place = Place(work, 0)
        self.record: dict[str, Any] = {}

    def _find_gpus(self) -> list[str]:
        if not self.on_gpu:
            return [f"GPU-pretended-{n}" for n in range(self.most)]
        from linumpy.core.leases.nvml import list_gpus, visible_gpus

        found = [gpu.uuid for gpu in visible_gpus(list_gpus())]
        if len(found) < self.most:
            sys.exit(f"--gpus {self.most}: {len(found)} GPUs are visible")
        return found[: self.most]

    def say(self, what: str) -> None:
        """Print what is being done."""
        print(f"... {what}", file=sys.stderr, flush=True)

    def run(self) -> None:
        """Measure everything; what is known so far is written after each step."""
        args = self.args
        started = time.perf_counter()
        self.record["date"] = datetime.now(UTC).isoformat(timespec="seconds")
        # Of paths the names: the folders are private.
        words = [Path(word).name for word in sys.argv[1:]]
        self.record["command"] = ["benchmarks/several_gpus.py", *words]
        n_tiles = apart(count_tiles, args.size)
        self.say(f"making a grid of {n_tiles} tiles")
        shape = apart(make_grid, self.place.grid, args.size, n_tiles, False)
        self.record |= apart(describe, self.work, self.on_gpu)
        self.record["work"] = {
            "n_slices_a_gpu": args.slices,
            "n_tiles": n_tiles,
            "tile_shape": list(shape),
            "decoded_nbytes": measure.decoded_nbytes(self.place.grid),
            "stored_nbytes": measure.stored_nbytes(self.place.grid),
            "made_in_s": time.perf_counter() - started,
            "cores_a_gpu": len(self.cores[0]),
            "gpus": self.names,
        }
        self.say("learning the models; a first slice")
        models = self.work / "models"
        learn = ROOT / "scripts" / "linum_learn_models.py"
        self.start(learn, [self.place.grid, "--output", models], 1, self.cores[0])
        first = self.reconstruct("first", 1, self.cores[0])
        self.record["alone_s"] = first.seconds
        self.record |= {"nothing": {}, "throughput": {}}
        for count in args.gpus:
            self.say(f"{args.slices * count} slices on {count} GPUs, after as many empty tasks")
            self.record["nothing"][count] = self.nothing(count)
            self.record["throughput"][count] = self.throughput(count, n_tiles)
            self.write()
        self.record["split"] = {}
        for count in args.gpus:
            self.say(f"one slice on {count} GPUs together")
            self.record["split"][count] = self.split(count)
            self.write()
        self.record["took_s"] = time.perf_counter() - started
        self.write()

    def start(
        self,
        script: Path,
        arguments: Sequence[object],
        visible: int,
        cores: Sequence[int],
        together: int = 1,
    ) -> Measured:
        """Run a script that sees so many GPUs, and works on `together` of them."""
        environment = measure.environment(
            ROOT,
            LINUMPY_LEASE_DIR=str(self.work / "lease"),
            LINUM_CORES=",".join(map(str, cores)),
            OMP_NUM_THREADS=str(len(cores)),
            OPENBLAS_NUM_THREADS=str(len(self.cores[0])),
        )
        environment.pop("LINUMPY_LEASED_GPUS", None)
        names = ",".join(self.names[:visible])
        flags = ["--use_gpu", "--gpu_count", together]
        if self.on_gpu:
            environment["CUDA_VISIBLE_DEVICES"] = names
        else:
            environment["LINUM_PRETENDED_GPUS"] = names
            environment["LINUM_PRETENDED_COUNT"] = str(together)
            flags = ["--no-use_gpu"]
        command = [sys.executable, HERE / "leased.py", script, *arguments, *flags, "-f"]
        return measure.run(command, environment, on_gpu=False)

    def reconstruct(
        self, name: str, visible: int, cores: Sequence[int], together: int = 1
    ) -> Measured:
        """Make a slice."""
        output = self.work / f"{name}.ome.zarr"
        arguments = [self.place.grid, output, "--models", self.work / "models"]
        return self.start(SLICE, arguments, visible, cores, together)

    def share_out(
        self, count: int, task: Callable[[int, Sequence[int]], Measured]
    ) -> tuple[float, list[Measured]]:
        """Run a task for each slice, as many at a time as there are GPUs; returns the time."""
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in range(self.args.slices * count):
            waiting.put(number)
        done: list[Measured] = []
        problems: list[BaseException] = []

        def work(worker: int) -> None:
            try:
                while not problems:
                    done.append(task(waiting.get_nowait(), self.cores[worker]))
            except queue.Empty:
                return
            except BaseException as error:
                problems.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if problems:
            raise problems[0]
        return time.perf_counter() - start, done

    def nothing(self, count: int) -> dict[str, Any]:
        """Start and end as many processes as slices would be made."""
        script = HERE / "empty_task.py"
        seconds, done = self.share_out(count, lambda _, cores: self.start(script, [], count, cores))
        return {
            "seconds": seconds,
            "tasks_a_minute": 60 * len(done) / seconds,
            "median_task_s": statistics.median(found.seconds for found in done),
            "phases_s": medians([measure.phases(found) for found in done]),
        }

    def throughput(self, count: int, n_tiles: int) -> dict[str, Any]:
        """Make all slices, as many at a time as there are GPUs."""
        names = self.names[:count]
        with Utilisation(names) as busy:
            seconds, done = self.share_out(
                count,
                lambda number, cores: self.reconstruct(f"slice_{number}", count, cores),
            )
        by_gpu = {}
        for name in names:
            own = [found for found in done if found.said.split()[-1] == name]
            by_gpu[name] = {
                "slices": len(own),
                "tiles": len(own) * n_tiles,
                "leased_s": sum(found.seconds for found in own),
                "worked_s": sum(worked_s(found) for found in own),
                "utilisation_percent": busy.percent(name),
            }
        same = apart(compare, self.work / "first.ome.zarr", self.work / "slice_0.ome.zarr")
        for number in range(len(done)):
            remove(self.work / f"slice_{number}.ome.zarr")
        return {
            "slices": len(done),
            "seconds": seconds,
            "slices_a_minute": 60 * len(done) / seconds,
            "median_slice_s": statistics.median(found.seconds for found in done),
            "phases_s": medians([measure.phases(found) for found in done]),
            "covered_s": medians([covered_by_step(found) for found in done]),
            "same_bits": same["same_bits"],
            "by_gpu": by_gpu,
        }

    def split(self, count: int) -> dict[str, Any]:
        """Make one slice with all GPUs."""
        cores = [core for own in self.cores[:count] for core in own]
        runs = []
        with Utilisation(self.names[:count]) as busy:
            for _ in range(self.args.repeats):
                runs.append(self.reconstruct("split", count, cores, count))
        best = min(runs, key=lambda found: found.seconds)
        same = apart(compare, self.work / "first.ome.zarr", self.work / "split.ome.zarr")
        return {
            "seconds": best.seconds,
            "all_seconds": [found.seconds for found in runs],
            "worked_s": worked_s(best),
            "phases_s": measure.phases(best),
            "same_bits": same["same_bits"],
            "by_gpu": {
                name: {
                    "computed_s": worked_s(
                        best, f"linumpy-lane_{n}" if count > 1 else "MainThread"
                    ),
                    "utilisation_percent": busy.percent(name),
                }
                for n, name in enumerate(self.names[:count])
            },
            "time_line": measure.time_line(best),
        }

    def write(self) -> None:
        """Write what is known."""
        if self.args.output:
            self.args.output.write_text(json.dumps(self.record, indent=1) + "\n")


def format_record(record: dict[str, Any]) -> str:
    """Return a record as text."""
    work = record["work"]
    lines = [
        f"{work['n_slices_a_gpu']} slices a GPU of {work['n_tiles']} tiles {work['tile_shape']}, "
        f"{work['decoded_nbytes'] / 1e9:.2f} GB each, made in {work['made_in_s']:.0f} s; "
        f"{work['cores_a_gpu']} cores a GPU",
        "",
        "many slices, a GPU each       s   a minute   of one   target   same bits",
    ]
    one = record["throughput"].get(1)
    for count, found in record["throughput"].items():
        ratio = found["slices_a_minute"] / one["slices_a_minute"] if one else None
        lines.append(
            f"{count} GPUs{found['seconds']:25.2f}{found['slices_a_minute']:11.1f}"
            f"{_number(ratio, 9)}{_number(TARGETS.get(count), 9)}   {found['same_bits']}"
        )
        lines.append(f"    a slice: {_phases(found['phases_s'])}")
        lines.append(f"    of it at: {_phases(found['covered_s'])}")
        empty = record.get("nothing", {}).get(count)
        if empty:
            lines.append(
                f"    an empty task: {_phases(empty['phases_s'])}; "
                f"{empty['tasks_a_minute']:.1f} a minute"
            )
        for name, own in found["by_gpu"].items():
            lines.append(
                f"    {name[:12]}: {own['slices']} slices, {own['tiles']} tiles, leased "
                f"{own['leased_s']:.1f} s, worked {own['worked_s']:.1f} s, utilisation"
                f"{_number(own['utilisation_percent'], 6)} %"
            )
    lines += ["", "one slice, divided            s   worked, s   of one (all, worked)   same bits"]
    alone = record.get("split", {}).get(1)
    for count, found in record.get("split", {}).items():
        ratios = (
            (alone["seconds"] / found["seconds"], alone["worked_s"] / found["worked_s"])
            if alone
            else (None, None)
        )
        lines.append(
            f"{count} GPUs{found['seconds']:25.2f}{found['worked_s']:12.2f}"
            f"{_number(ratios[0], 10)}{_number(ratios[1], 8)}         {found['same_bits']}"
        )
        lines.append(f"    {_phases(found['phases_s'])}")
        for name, own in found["by_gpu"].items():
            lines.append(
                f"    {name[:12]}: computed {own['computed_s']:.2f} s, utilisation"
                f"{_number(own['utilisation_percent'], 6)} %"
            )
    if "took_s" in record:
        lines += ["", f"all of it took {record['took_s']:.0f} s"]
    return "\n".join(lines)


def _phases(found: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.2f}" for name, seconds in found.items()) + " s"


def _number(value: float | None, width: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:{width}.2f}"


def _counts(text: str) -> list[int]:
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected numbers of GPUs, such as 1,2,4")
    return found


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--gpus", type=_counts, default="1,2", help="how many GPUs, one by one")
    parser.add_argument("--slices", type=int, default=8, help="slices to make for each GPU")
    parser.add_argument("--size", type=float, default=8.0, help="GiB of a slice, as float32")
    parser.add_argument(
        "--repeats", type=int, default=2, help="runs of a divided slice; best counts"
    )
    parser.add_argument(
        "--device", choices=("gpu", "cpu"), default="gpu", help="cpu pretends to have GPUs"
    )
    parser.add_argument(
        "--cores_a_gpu", type=int, help="cores of a process for each GPU; an equal share of all"
    )
    parser.add_argument("--folder", type=Path, help="where files are made for the time of the run")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    return parser


def main() -> None:
    """Run the benchmark."""
    args = build_parser().parse_args()
    with workplace("gpus", args.folder) as work:
        benchmark = Benchmark(args, work)
        try:
            benchmark.run()
        finally:
            if "throughput" in benchmark.record:
                print(format_record(benchmark.record))


if __name__ == "__main__":
    main()
