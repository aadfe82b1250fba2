#!/usr/bin/env python
"""Run every stage and the fused slice as whole processes, beside the machine's limits.

One command makes a mosaic grid, measures what this machine can do at most, runs the stages, and
says how long each took, which part of the limit that is, and where the time went.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
# Run from a checkout, linumpy need not be installed.
sys.path[:0] = [str(ROOT)]

import measure  # noqa: E402
from measure import Failed, Measured, workplace  # noqa: E402
from stage_list import CHAINED, FUSED, Place, Stage, chosen_stages, with_needs  # noqa: E402

TINY_TILES = 4
GROWTH = (4, 2, 1)
# Of less than this beyond start-up no fraction is stated.
MEASURABLE_S = 0.1
WHOLE_TILE = "whole-tile"


def apart(work: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a process of its own, so that this one stays small (see `measure`)."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(work, *arguments).result()


def make_grid(path: Path, size_gib: float, count: int, others: bool) -> tuple[int, ...]:
    """Make a grid of so many tiles of the shape that suits a size; return that shape."""
    import acquisition

    shape = acquisition.tile_shape(size_gib)
    content = acquisition.Content(shape, acquisition.grid_shape(count))
    (acquisition.write_foreign_grid if others else acquisition.write_grid)(path, content)
    return shape


def count_tiles(size_gib: float) -> int:
    """Return how many tiles make a size."""
    import acquisition

    return acquisition.n_tiles(size_gib)


def find_limits(grid: Path, folder: Path, use_gpu: bool, repeats: int) -> dict[str, Any]:
    """Measure the machine."""
    import limits

    return limits.measure_limits(grid, folder, use_gpu, repeats)


def compare(first: Path, second: Path) -> dict[str, Any]:
    """Compare two slices."""
    import limits

    return limits.largest_difference(first, second)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


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
        self.work, self.repeats = work, args.repeats
        self.use_gpu = args.device == "gpu"
        self.size_gib, self.plain = args.size, args.plain
        self.chosen = args.stages
        self.ordered = with_needs(args.stages)
        self.environment = measure.environment(ROOT)
        self.missing: list[dict[str, str]] = []
        self.start_up_s: dict[str, float] = {}
        self.plain_start_up_s: dict[str, float] = {}

    def say(self, what: str) -> None:
        """Print what is being done."""
        print(f"... {what}", file=sys.stderr, flush=True)

    def make_place(self, name: str, size_gib: float, count: int, *, others: bool) -> Place:
        """Make the grids of a place."""
        self.say(f"making {name}: {count} tiles")
        place = Place(self.work / name, count)
        place.folder.mkdir()
        self.tile_shape = apart(make_grid, place.grid, size_gib, count, False)
        if others:
            apart(make_grid, place.foreign_grid, size_gib, count, True)
        return place

    # Runs

    def run_once(self, stage: Stage, place: Place) -> Measured:
        """Run a stage; what it wrote the last time is removed before."""
        remove(place / stage.output)
        flag = "--use_gpu" if self.use_gpu else "--no-use_gpu"
        script = ROOT / "scripts" / f"linum_{stage.script}.py"
        command = [sys.executable, script, *stage.arguments(place), flag]
        return measure.run(command, self.environment, on_gpu=self.use_gpu)

    def run_plain(self, stage: Stage, place: Place) -> Measured:
        """Run the plain implementation of a stage."""
        output = place / "plain.zarr"
        command = [sys.executable, HERE / "plain.py", stage.plain, place.grid, output]
        try:
            return measure.run(command, self.environment, on_gpu=False)
        finally:
            remove(output)

    def run_stages(
        self, place: Place, stages: Sequence[Stage], repeats: int, *, plain: bool
    ) -> tuple[dict[str, list[Measured]], dict[str, list[Measured]]]:
        """Run stages in order, each so often; alternating with the plain ones.

        A stage whose input could not be made is left out, and that is noted.
        """
        runs: dict[str, list[Measured]] = {}
        plain_runs: dict[str, list[Measured]] = {}
        for stage in stages:
            lacking = [name for name in stage.needs if name not in runs]
            if lacking:
                self.miss(f"{stage.name} ({place.folder.name})", f"rests on {lacking[0]}")
                continue
            try:
                if stage.prepare is not None:
                    stage.prepare(place)
                found = []
                for _ in range(repeats if stage in self.chosen else 1):
                    found.append(self.run_once(stage, place))
                    if plain and stage.plain:
                        ours = plain_runs.setdefault(stage.name, [])
                        ours.append(self.run_plain(stage, place))
                runs[stage.name] = found
            except Failed as error:
                self.miss(f"{stage.name} ({place.folder.name})", str(error))
        return runs, plain_runs

    def miss(self, name: str, reason: str) -> None:
        """Note what could not be measured."""
        row = {"name": name, "reason": reason.replace(f"{self.work}/", "")}
        if row not in self.missing:
            self.missing.append(row)

    # What is made of them

    def measure_start_up(self) -> None:
        """Time every stage on tiny tiles: imports, CUDA, and whatever else no tile asks for.

        The first round fills caches (compiled kernels, page cache) and does not count.
        """
        place = self.make_place("tiny", 0, TINY_TILES, others=True)
        self.say("start-up")
        self.run_stages(place, self.ordered, 1, plain=self.plain)
        runs, plain = self.run_stages(place, self.ordered, self.repeats, plain=self.plain)
        self.start_up_s = {name: _median(found, "seconds") for name, found in runs.items()}
        self.plain_start_up_s = {name: _median(found, "seconds") for name, found in plain.items()}
        remove(place.folder)

    def describe(
        self, stage: Stage, place: Place, found: list[Measured], best: dict[str, Any]
    ) -> dict[str, Any]:
        """Return a stage's measurements."""
        middle = _middle(found)
        seconds = _median(found, "seconds")
        start_up = self.start_up_s.get(stage.name)
        beyond = None if start_up is None else seconds - start_up
        inputs, output = stage.inputs(place), place / stage.output
        nbytes = {
            "read_decoded": sum(map(measure.decoded_nbytes, inputs)),
            "read_stored": sum(map(measure.stored_nbytes, inputs)),
            "written_decoded": measure.decoded_nbytes(output),
            "written_stored": measure.stored_nbytes(output),
        }
        where = measure.where_time_went(middle)
        on_host = WHOLE_TILE in stage.name or not self.use_gpu
        return {
            "script": stage.script,
            "all_seconds": [run.seconds for run in found],
            "seconds": seconds,
            "time_line_seconds": middle.seconds,
            "cpu_seconds": _median(found, "cpu_seconds"),
            "start_up_s": start_up,
            "beyond_s": beyond,
            "nbytes": nbytes,
            "gb_per_s": (nbytes["read_decoded"] + nbytes["written_decoded"]) / seconds / 1e9,
            "bound": bound(nbytes, best, beyond, self.use_gpu, on_host),
            "over_ideal": middle.seconds
            / (where["start"]["covered_s"] + measure.longest_step_s(middle))
            if where
            else None,
            "peak_nbytes": max(run.peak_nbytes for run in found),
            "device_nbytes": middle.device_nbytes,
            "where": where,
        }

    def grow(self, whole: dict[str, list[Measured]], count: int) -> dict[str, Any]:
        """Run the stages that work on the grid with a quarter and half as many tiles."""
        stages = [stage for stage in self.chosen if stage.grows and stage.name in whole]
        # Nothing is learned from a single tile.
        counts = [count // part for part in GROWTH if count // part > 1]
        found = {stage.name: [whole[stage.name]] for stage in stages}
        for n in reversed(counts[:-1]):
            place = self.make_place(f"tiles{n}", self.size_gib, n, others=False)
            self.say(f"growth: {n} tiles")
            runs, _ = self.run_stages(place, with_needs(stages), self.repeats, plain=False)
            for stage in stages:
                found[stage.name].insert(0, runs.get(stage.name, []))
            remove(place.folder)
        result = {}
        for name, by_count in found.items():
            if not all(by_count):
                continue
            times = [_median(runs, "seconds") for runs in by_count]
            beyond = [t - self.start_up_s.get(name, 0.0) for t in times]
            pairs = zip(beyond[:-1], beyond[1:], strict=True)
            result[name] = {
                "seconds": times,
                "factors": [b / a if a > MEASURABLE_S else None for a, b in pairs],
                "device_nbytes": [runs[0].device_nbytes for runs in by_count],
                "peak_nbytes": [max(run.peak_nbytes for run in runs) for runs in by_count],
            }
        return {"n_tiles": counts, "stages": result}

    def beside(
        self, runs: dict[str, list[Measured]], plain: dict[str, list[Measured]]
    ) -> dict[str, Any]:
        """Return each stage's measurements beside those of the plain implementation."""
        result = {}
        for name, theirs in plain.items():
            ours = runs.get(name)
            if not ours:
                continue
            learning = statistics.median(
                json.loads(run.said).get("learning_s", 0.0) if run.said.strip() else 0.0
                for run in theirs
            )
            seconds, our_seconds = _median(theirs, "seconds"), _median(ours, "seconds")
            peak = max(run.peak_nbytes for run in theirs)
            our_peak = max(run.peak_nbytes for run in ours)
            result[name] = {
                "seconds": seconds,
                "all_seconds": [run.seconds for run in theirs],
                "cpu_seconds": _median(theirs, "cpu_seconds"),
                "start_up_s": self.plain_start_up_s.get(name),
                "linumpy_seconds": our_seconds,
                "speed": seconds / our_seconds,
                "learning_s": learning,
                "speed_without_learning": (seconds - learning) / our_seconds,
                "peak_nbytes": peak,
                "linumpy_peak_nbytes": our_peak,
                "memory": our_peak / peak,
            }
        return result

    def run(self, growth: bool) -> dict[str, Any]:
        """Measure everything."""
        started = datetime.now(UTC)
        count = apart(count_tiles, self.size_gib)
        others = any(WHOLE_TILE in stage.name for stage in self.ordered)
        place = self.make_place("whole", self.size_gib, count, others=others)
        self.say("limits of the machine")
        limits = apart(find_limits, place.grid, self.work, self.use_gpu, self.repeats)
        tile_shape = self.tile_shape
        self.measure_start_up()
        self.say("stages")
        runs, plain = self.run_stages(place, self.ordered, self.repeats, plain=self.plain)
        stages = {
            stage.name: self.describe(stage, place, runs[stage.name], limits["best"])
            for stage in self.chosen
            if stage.name in runs
        }
        same = None
        if CHAINED in runs and FUSED in runs:
            same = apart(
                compare, *(place / s.output for s in self.ordered if s.name in (CHAINED, FUSED))
            )
        work = {
            "n_tiles": count,
            "tile_shape": list(tile_shape),
            "decoded_nbytes": measure.decoded_nbytes(place.grid),
            "stored_nbytes": measure.stored_nbytes(place.grid),
        }
        remove(place.folder)
        return {
            "date": started.isoformat(timespec="seconds"),
            # Of paths the names: the folders are private.
            "command": ["benchmarks/stages.py", *(Path(word).name for word in sys.argv[1:])],
            "machine": limits["machine"],
            "versions": limits["versions"],
            "repeats": self.repeats,
            "work": work,
            "best": limits["best"],
            "limits": limits["rows"],
            "gds": limits["gds"],
            "stages": stages,
            "fused_against_chained": same,
            "plain": self.beside(runs, plain),
            "growth": self.grow(runs, count) if growth else {},
            "missing": [*limits["missing"], *self.missing],
            "time_lines": {name: measure.time_line(_middle(runs[name])) for name in stages},
        }


def bound(
    nbytes: dict[str, int],
    best: dict[str, Any],
    beyond_s: float | None,
    use_gpu: bool,
    on_host: bool,
) -> dict[str, Any] | None:
    """Return the slowest of what a stage cannot do without, at the machine's limit for it.

    Parameters
    ----------
    nbytes
        Decoded and stored bytes, read and written.
    best
        Rates by kind of work, from `limits.measure_limits`.
    beyond_s
        The stage's time beyond start-up.
    use_gpu, on_host
        Where it computes; whether the cores decode for a GPU.

    Returns
    -------
    ``kind``, its ``seconds``, and the ``fraction`` of the time beyond start-up that they are.
    """
    codec = "device" if use_gpu else "host"
    kinds = {
        f"{'host' if on_host else 'device'} read": nbytes["read_stored"],
        f"{'host' if on_host else 'device'} decode": nbytes["read_decoded"],
        f"{codec} encode": nbytes["written_decoded"],
        f"{codec} memory": nbytes["read_decoded"] + nbytes["written_decoded"],
        "write": nbytes["written_stored"],
    }
    if use_gpu:
        kinds["upload"] = nbytes["read_decoded" if on_host else "read_stored"]
        kinds["download"] = nbytes["written_stored"]
    times = {k: n / best[k]["gb_per_s"] / 1e9 for k, n in kinds.items() if k in best}
    if not times:
        return None
    kind = max(times, key=lambda k: times[k])
    measurable = beyond_s is not None and beyond_s > MEASURABLE_S
    fraction = times[kind] / beyond_s if measurable else None
    return {"kind": kind, "seconds": times[kind], "fraction": fraction, "all": times}


def _middle(found: Sequence[Measured]) -> Measured:
    """Return the run of median time, the faster one of two."""
    return sorted(found, key=lambda run: run.seconds)[(len(found) - 1) // 2]


def _median(found: Sequence[Measured], what: str) -> float:
    return statistics.median(getattr(run, what) for run in found)


def write_record(record: dict[str, Any], path: Path) -> None:
    """Write a record as JSON, a line for each time line."""
    record = dict(record)
    lines = [
        f"  {json.dumps(name)}: {json.dumps(rows)}"
        for name, rows in record.pop("time_lines").items()
    ]
    text = json.dumps(record, indent=1).removesuffix("\n}")
    path.write_text(text + ',\n "time_lines": {\n' + ",\n".join(lines) + "\n }\n}\n")


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--size", type=float, default=4.0, help="GiB of the grid, as float32")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument(
        "--stages",
        type=_stages,
        default="all",
        help="scripts to measure, without linum_, such as aip,reconstruct_slice",
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs of each; medians count")
    parser.add_argument(
        "--growth", action="store_true", help="also with a quarter and half of the tiles"
    )
    parser.add_argument(
        "--plain",
        action="store_true",
        help="also the plain implementation, alternating with linumpy",
    )
    parser.add_argument("--cores", type=int, help="run on so many cores; all by default")
    parser.add_argument("--folder", type=Path, help="where files are made for the time of the run")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    parser.add_argument("--picture", type=Path, help="PNG of the time lines to write")
    return parser


def _stages(names: str) -> list[Stage]:
    try:
        return chosen_stages(names)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def main() -> None:
    """Run the benchmark."""
    args = build_parser().parse_args()
    if args.repeats < 1 or not args.size > 0:
        sys.exit("--repeats and --size: expected positive numbers")
    if args.cores is not None:
        cores = sorted(os.sched_getaffinity(0))
        if not 0 < args.cores <= len(cores):
            sys.exit(f"--cores {args.cores}: there are {len(cores)}")
        os.sched_setaffinity(0, cores[: args.cores])
    with workplace("stages", args.folder) as work:
        record = Benchmark(args, work).run(args.growth)

    from report import format_record

    print(format_record(record))
    if args.output:
        write_record(record, args.output)
    if args.picture:
        from picture import draw_time_lines

        draw_time_lines(record, args.picture)


if __name__ == "__main__":
    main()
