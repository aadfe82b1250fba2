#!/usr/bin/env python
"""Reconstruct slices in groups, overlapped, against a process a slice.

One command makes a mosaic grid, or with --raw raw tiles of a phantom's slice, learns the models,
and reconstructs so many slices of it on each GPU: a process a slice; then a process a GPU with all
of its slices, so many of them at a time. It says how many slices a minute that makes, how long any
thread was at each step, and whether all slices have the same bits. Files lie in memory unless told
otherwise.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
# Run from a checkout, linumpy need not be installed.
sys.path[:0] = [str(ROOT)]

import measure  # noqa: E402
from measure import STEPS, Measured, workplace  # noqa: E402
from raw_slices import RawSlices, make_raw  # noqa: E402
from several_gpus import describe  # noqa: E402
from stages import apart, count_tiles, make_grid, remove  # noqa: E402
from utilisation import Utilisation  # noqa: E402

SCRIPTS = ROOT / "scripts"
MEMORY = Path("/dev/shm")


def by_step(runs: list[Measured]) -> dict[str, float]:
    """Return the seconds in which any thread of a process was at a step, summed over processes."""
    found: dict[str, float] = {}
    for run in runs:
        for step in {span["step"] for span in run.spans}:
            own = [(s["start_s"], s["stop_s"]) for s in run.spans if s["step"] == step]
            found[step] = found.get(step, 0.0) + measure.covered_s(own)
    return dict(sorted(found.items(), key=lambda item: STEPS.index(item[0])))


def digest(folder: Path) -> str:
    """Return a digest of the chunks of a volume, by name; metadata hold its own."""
    found = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "zarr.json"):
        found.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


class Benchmark:
    """One run of everything that was asked for, in an empty folder."""

    def __init__(self, args: argparse.Namespace, work: Path) -> None:
        self.args, self.work, self.models = args, work, work / "models"
        self.flags = ["--use_gpu"] if args.device == "gpu" else []
        self.names = self._find_gpus() if self.flags else []
        self.record: dict[str, Any] = {"runs": {}}

    def _find_gpus(self) -> list[str]:
        from linumpy.core.leases.nvml import list_gpus, visible_gpus

        found = [gpu.uuid for gpu in visible_gpus(list_gpus())]
        if len(found) < self.args.gpus:
            sys.exit(f"--gpus {self.args.gpus}: {len(found)} GPUs are visible")
        return found[: self.args.gpus]

    def run(self) -> None:
        """Measure everything; what is known so far is written after each step."""
        args, began_s = self.args, time.perf_counter()
        self.record["date"] = datetime.now(UTC).isoformat(timespec="seconds")
        self.ids = range(args.slices * args.gpus)
        self.grids = [self.work / f"mosaic_grid_3d_z{i:02d}.ome.zarr" for i in self.ids]
        self.record |= apart(describe, self.work, bool(self.flags))
        self.record["work"] = apart(self._make_raw) if args.raw else apart(self._make_grids)
        self.record["work"] |= {
            "slices": len(self.ids),
            "gpus": args.gpus,
            "made_in_s": time.perf_counter() - began_s,
        }
        self._start("learn_models", *self._input(0), "--output", self.models)
        # Kernels are compiled once a machine.
        warm = self.work / "warm.ome.zarr"
        self._start("reconstruct_slice", *self._input(0), warm, *self._models)
        if args.singly:
            self._measure("one by one", self._singly)
        for processes, lanes in args.ways:
            name = f"{processes} x {lanes} at a time"
            self._measure(name, partial(self._in_groups, processes, lanes))
        self.record["took_s"] = time.perf_counter() - began_s
        self._write()

    def _make_grids(self) -> dict[str, Any]:
        first, n_tiles = self.grids[0], count_tiles(self.args.size)
        shape = make_grid(first, self.args.size, n_tiles, False)
        for link in self.grids[1:]:
            link.symlink_to(first)
        return {
            "n_tiles": n_tiles,
            "tile_shape": list(shape),
            "decoded_nbytes": measure.decoded_nbytes(first),
            "stored_nbytes": measure.stored_nbytes(first),
        }

    def _make_raw(self) -> dict[str, Any]:
        args, raw = self.args, self.work / "raw"
        wanted = RawSlices("large", 400, args.size, 1, len(self.ids), 5, args.template)
        print(make_raw(raw, wanted), file=sys.stderr, flush=True)
        tiles = list((raw / "slice_z00" / "tiles").glob("*/image_*.bin"))
        nbytes = sum(path.stat().st_size for path in tiles)
        return {"n_tiles": len(tiles), "decoded_nbytes": nbytes, "stored_nbytes": nbytes}

    @property
    def _raw(self) -> list[object]:
        return ["--from_root_directory", self.work / "raw"]

    def _input(self, number: int) -> list[object]:
        """Return the words that name one slice."""
        return [*self._raw, "--slice", number] if self.args.raw else [self.grids[number]]

    def _inputs(self, ids: Sequence[int]) -> list[object]:
        """Return the flags that name slices of a group."""
        if self.args.raw:
            return [*self._raw, "--slices", *ids]
        return ["--grids", *(self.grids[i] for i in ids)]

    @property
    def _models(self) -> list[object]:
        return ["--models", self.models]

    def _start(self, script: str, *arguments: object, sample: bool = False) -> Measured:
        environment = measure.environment(ROOT, LINUMPY_LEASE_DIR=str(self.work / "lease"))
        environment.pop("LINUMPY_LEASED_GPUS", None)
        if self.names:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(self.names)
        sampler = [HERE / "sampled.py", self.args.sample] if sample and self.args.sample else []
        words = [*sampler, SCRIPTS / f"linum_{script}.py", *arguments, *self.flags]
        command = [sys.executable, *words]
        return measure.run(command, environment, on_gpu=bool(self.names))

    def _singly(self, folder: Path) -> list[Measured]:
        def make(number: int) -> Measured:
            name = f"z{number:02d}"
            return self._start(
                "reconstruct_slice",
                *self._input(number),
                *(folder / "slices" / f"slice_{name}.ome.zarr", *self._models),
                *("--output_models", folder / "models" / name),
                *("--aip", folder / "aips" / f"aip_{name}.png"),
                *("--preview", folder / "previews" / f"slice_{name}.png"),
            )

        with ThreadPoolExecutor(self.args.gpus) as pool:
            return list(pool.map(make, range(len(self.grids))))

    def _group(self, processes: int, first: int, lanes: int) -> list[object]:
        """Return the flags of one of so many processes a GPU, which share its slices."""
        ids = self.ids[first :: self.args.gpus * processes]
        shared = ["--gpu_tasks", processes] if self.names else []
        if self.args.gpu_memory:
            shared += ["--gpu_memory", self.args.gpu_memory]
        return [*self._inputs(ids), *self._models, "--overlap", lanes, *shared]

    def _in_groups(self, processes: int, lanes: int, folder: Path) -> list[Measured]:
        def make(first: int) -> Measured:
            sample = first == 0 and (processes, lanes) == self.args.ways[0]
            words = self._group(processes, first, lanes)
            return self._start("reconstruct_slice", folder, *words, sample=sample)

        with ThreadPoolExecutor(self.args.gpus * processes) as pool:
            return list(pool.map(make, range(self.args.gpus * processes)))

    def _measure(self, name: str, make: Callable[[Path], list[Measured]]) -> None:
        print(f"... {name}", file=sys.stderr, flush=True)
        tries = []
        for _ in range(self.args.repeats):
            folder = self.work / "out"
            with Utilisation(self.names) if self.names else nullcontext() as busy:
                began_s = time.perf_counter()
                runs = make(folder)
                seconds = time.perf_counter() - began_s
            digests = {digest(path) for path in (folder / "slices").iterdir()}
            made = len(list((folder / "slices").iterdir()))
            remove(folder)
            tries.append((seconds, runs, busy, digests, made))
        seconds, runs, busy, digests, made = min(tries, key=lambda one: one[0])
        if made != len(self.grids):
            sys.exit(f"{name}: {made} slices were made of {len(self.grids)}")
        self.record.setdefault("digest", min(digests))
        self.record["runs"][name] = {
            "seconds": seconds,
            "all_seconds": [one[0] for one in tries],
            "slices_a_minute": 60 * made / seconds,
            "same_bits": digests == {self.record["digest"]},
            "covered_s": by_step(runs),
            "start_s": sum(measure.phases(run).get("start", 0.0) for run in runs),
            "cpu_s": sum(run.cpu_seconds for run in runs),
            "host_peak_nbytes": max(run.peak_nbytes for run in runs),
            "device_peak_nbytes": max(run.device_nbytes or 0 for run in runs),
            "utilisation_percent": [busy.percent(n) for n in self.names] if busy else [],
        }
        self._write()

    def _write(self) -> None:
        if self.args.output:
            self.args.output.write_text(json.dumps(self.record, indent=1) + "\n")


def format_record(record: dict[str, Any]) -> str:
    """Return a record as text."""
    work, runs = record["work"], record["runs"]
    lines = [
        f"{work['slices']} slices of {work['decoded_nbytes'] / 1e9:.2f} GB "
        f"({work['stored_nbytes'] / 1e9:.2f} stored, {work['n_tiles']} tiles), {work['gpus']} GPUs",
        f"{'':24}{'s':>8}{'a minute':>10}{'ratio':>7}{'GPU %':>7}{'host':>7}{'device':>8}  bits",
    ]
    one = next(iter(runs.values()))
    for name, found in runs.items():
        busy = [n for n in found["utilisation_percent"] if n is not None]
        share = f"{sum(busy) / len(busy):.0f}" if busy else "-"
        lines.append(
            f"{name:24}{found['seconds']:8.2f}{found['slices_a_minute']:10.1f}"
            f"{one['seconds'] / found['seconds']:7.2f}{share:>7}"
            f"{found['host_peak_nbytes'] / 1e9:6.1f}G{found['device_peak_nbytes'] / 1e9:7.1f}G"
            f"  {'same' if found['same_bits'] else 'DIFFERENT'}"
        )
        steps = ", ".join(f"{step} {s:.2f}" for step, s in found["covered_s"].items())
        lines.append(f"    any thread at: {steps} s; until a tile {found['start_s']:.2f} s")
    return "\n".join(lines)


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--gpus", type=int, default=1, help="GPUs, a process each at a time")
    parser.add_argument("--slices", type=int, default=8, help="slices to make on each GPU")
    parser.add_argument("--size", type=float, default=4.0, help="GiB of a slice, as float32")
    parser.add_argument(
        "--ways",
        type=lambda text: [tuple(map(int, word.split("x"))) for word in text.split(",")],
        default="1x1,1x2,1x4",
        help="groups a GPU x slices at a time in each (on a GPU processes), one after the other",
    )
    parser.add_argument(
        "--singly",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="a process a slice first, for the ratios",
    )
    parser.add_argument(
        "--sample", type=Path, help="file for the lines that the first way is found at"
    )
    parser.add_argument("--raw", action="store_true", help="slices of raw tiles, no mosaic grids")
    parser.add_argument("--template", type=Path, help="the brain, without nilearn: physics.py")
    parser.add_argument("--gpu_memory", help="device memory of each process that is started")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each; the best counts")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument(
        "--folder",
        type=Path,
        default=MEMORY if MEMORY.is_dir() else None,
        help="where files are made for the time of the run",
    )
    parser.add_argument("--output", type=Path, help="JSON file to write")
    return parser


def main() -> None:
    """Run the benchmark."""
    args = build_parser().parse_args()
    with workplace("groups", args.folder) as work:
        benchmark = Benchmark(args, work)
        try:
            benchmark.run()
        finally:
            if benchmark.record["runs"]:
                print(format_record(benchmark.record))
    if not all(found["same_bits"] for found in benchmark.record["runs"].values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
