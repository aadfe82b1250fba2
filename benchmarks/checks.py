#!/usr/bin/env python
"""Measure the cost of checking all that is read and listing all that is written.

One command makes a mosaic grid, then reads it, and reconstructs a slice from it, in turns with and
without the checks, each time in a process of its own, and says how many times as long it took with
them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
# Run from a checkout, linumpy need not be installed.
sys.path[:0] = [str(ROOT)]

import measure  # noqa: E402
from measure import Measured, workplace  # noqa: E402
from several_gpus import describe, worked_s  # noqa: E402
from stages import apart, compare, count_tiles, make_grid, remove  # noqa: E402

TARGET = 1.05
MODES = ("on", "off")
WARM_UP_GIB = 0.01
SCRIPTS = ROOT / "scripts"


def summary(seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Return medians and ratios of what was measured in turns, with and without checks.

    Each run is compared with its neighbour, so that what slows the machine for a while slows both.
    """
    ratios = [on / off for on, off in zip(seconds["on"], seconds["off"], strict=True)]
    return {
        "seconds": seconds,
        "median_s": {mode: statistics.median(found) for mode, found in seconds.items()},
        "least_s": {mode: min(found) for mode, found in seconds.items()},
        "ratios": ratios,
        "ratio": statistics.median(ratios),
        "ratio_of_least": min(seconds["on"]) / min(seconds["off"]),
    }


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
        self.grid, self.small = work / "grid.ome.zarr", work / "small.ome.zarr"
        self.record: dict[str, Any] = {}

    def start(self, mode: str, script: Path, *arguments: object) -> Measured:
        """Run a script with the checks on or off."""
        flag = "--use_gpu" if self.on_gpu else "--no-use_gpu"
        command = [sys.executable, HERE / "unchecked.py", mode, script, *arguments, flag]
        return measure.run(command, measure.environment(ROOT), on_gpu=False)

    def run(self) -> None:
        """Measure everything."""
        args = self.args
        started = time.perf_counter()
        self.record["date"] = datetime.now(UTC).isoformat(timespec="seconds")
        # Of paths the names: the folders are private.
        words = [Path(word).name for word in sys.argv[1:]]
        self.record["command"] = ["benchmarks/checks.py", *words]
        self.record |= apart(describe, self.work, self.on_gpu)
        n_tiles = apart(count_tiles, args.size)
        print(f"... making a grid of {n_tiles} tiles", file=sys.stderr, flush=True)
        shape = apart(make_grid, self.grid, args.size, n_tiles, False)
        apart(make_grid, self.small, WARM_UP_GIB, 4, False)
        self.record["work"] = {
            "n_tiles": n_tiles,
            "tile_shape": list(shape),
            "decoded_nbytes": measure.decoded_nbytes(self.grid),
            "stored_nbytes": measure.stored_nbytes(self.grid),
        }
        models = self.work / "models"
        self.start("on", SCRIPTS / "linum_learn_models.py", self.grid, "--output", models)
        self.record["read"] = self.reads()
        self.record |= self.slices(models)
        self.record["took_s"] = time.perf_counter() - started
        if args.output:
            args.output.write_text(json.dumps(self.record, indent=1) + "\n")

    def turns(self, number: int) -> Sequence[str]:
        """Return the order of a round: who comes first changes."""
        return MODES if number % 2 else MODES[::-1]

    def reads(self) -> dict[str, Any]:
        """Read the grid; the process's own time, without its start."""
        seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
        for number in range(self.args.repeats):
            for mode in self.turns(number):
                done = self.start(mode, HERE / "read_grid.py", self.grid, self.small)
                seconds[mode].append(float(done.said))
        return summary(seconds)

    def slices(self, models: Path) -> dict[str, Any]:
        """Reconstruct the slice; the whole process, and what it did between start and end."""
        whole: dict[str, list[float]] = {mode: [] for mode in MODES}
        work: dict[str, list[float]] = {mode: [] for mode in MODES}
        script = SCRIPTS / "linum_reconstruct_slice.py"
        for number in range(self.args.repeats):
            for mode in self.turns(number):
                out = self.work / f"{mode}.ome.zarr"
                remove(out)
                done = self.start(mode, script, self.grid, out, "--models", models)
                whole[mode].append(done.seconds)
                work[mode].append(worked_s(done))
        same = apart(compare, self.work / "on.ome.zarr", self.work / "off.ome.zarr")
        return {
            "fused_slice": summary(whole),
            "fused_slice_work": summary(work),
            "same_bits": same["same_bits"],
        }


def format_record(record: dict[str, Any]) -> str:
    """Return a record as text."""
    work = record["work"]
    lines = [
        f"{work['n_tiles']} tiles {work['tile_shape']}, {work['decoded_nbytes'] / 2**30:.2f} GiB; "
        f"medians of {len(record['read']['ratios'])} runs in turns",
        f"{'':24}{'with, s':>10}{'without':>10}{'ratio':>8}{'of least':>10}",
    ]
    names = {
        "read": "reading the grid",
        "fused_slice": "fused slice",
        "fused_slice_work": "  without start, end",
    }
    for key, name in names.items():
        found = record[key]
        lines.append(
            f"{name:24}{found['median_s']['on']:10.3f}{found['median_s']['off']:10.3f}"
            f"{found['ratio']:8.3f}{found['ratio_of_least']:10.3f}"
        )
    within = record["fused_slice"]["ratio"] <= TARGET
    lines.append(f"target of the fused slice {TARGET}: {'met' if within else 'missed'}")
    lines.append(f"same bits: {record['same_bits']}")
    return "\n".join(lines)


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--size", type=float, default=4.0, help="GiB of the grid")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to work; the temporary folder if none")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    return parser


def main() -> None:
    """Run the benchmark."""
    args = build_parser().parse_args()
    with workplace("checks", args.folder) as work:
        benchmark = Benchmark(args, work)
        benchmark.run()
        print(format_record(benchmark.record))


if __name__ == "__main__":
    main()
