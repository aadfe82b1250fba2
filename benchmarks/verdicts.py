#!/usr/bin/env python
"""Measure which faults the follower finds, and how often it is wrong about clean slices.

Acquisitions of the practising microscope are followed while they are written, by the follower's
own loop; its clock is that of the microscope. Half of the slices have one fault each, of all kinds
in turn, at random places and of random strengths; `RANGES` says from where to where. One JSON line
an acquisition is appended to a record; a run that was stopped goes on where it was.

    python benchmarks/verdicts.py run RECORD.jsonl --jobs 16 [--slices 400] [--preset small]
    python benchmarks/verdicts.py run AFTER.jsonl --like BEFORE.jsonl     the same faults again
    python benchmarks/verdicts.py show RECORD.jsonl

Seeds are drawn anew for each record, and stand in its first line. For machines without nilearn:
`benchmarks/physics.py template BRAIN.npz` here, `--template BRAIN.npz` there.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import shutil
import statistics
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import physics

N_SLICES = 8
"""Of an acquisition; half of them have a fault, never the first, which others are compared with."""
RANGES: dict[str, tuple[float, float]] = {
    "defocus": (1.0, 2.0),
    "dark_tile": (0.05, 0.45),
    "tile_short": (0.05, 0.99),
    "galvo_drift": (1.1, 3.0),
    "stage_glitch": (0.33, 1.5),
    "missed_cut": (0.0, 0.225),
    "double_cut": (1.925, 2.25),
    "wedge": (0.34, 0.8),
    "border": (0.3, 0.6),
    "slow_scan": (1.65, 4.0),
    "disk_full": (0.0, 0.9),
}
"""Strengths, in the units of `linumpy.phantom.fault_flag.STRENGTHS`: defocus from a Rayleigh length
on; the others from a tenth beyond the limits of docs/follow.md. Two slices of `small` share eight
planes up to 2.25 intervals. Of the disk: room that is left over what the slices to come need.
Debris and bubbles are those of `linumpy.phantom.artefacts`."""
OTHER_KINDS = ("dead_tile", "missing_tile", "debris", "bubble")
KINDS = (*RANGES, *OTHER_KINDS)
SPEED = 0.1
"""Of the microscope, so that a slice takes minutes: a scan is slow from 5 s more than usual on."""
POLL_S = 2.0
BASE_S = 1.7e9
"""When the microscope's clock starts, Unix time."""


def draw_faults(seed: int, kinds: Sequence[str], params: Any) -> list[Any]:
    """Draw place and strength of one fault of each kind, on slices of their own."""
    import numpy as np

    from linumpy.phantom.artefacts import draw_artefact
    from linumpy.phantom.cutting import plan_slices
    from linumpy.phantom.fault_flag import TILE_KINDS, Fault

    rng = random.Random(seed)
    plans = plan_slices(params, seed)
    faults = []
    for kind, slice_id in zip(
        kinds, rng.sample(range(1, params.n_slices), len(kinds)), strict=True
    ):
        tile = None
        if kind in TILE_KINDS and not (kind == "defocus" and rng.random() < 0.25):
            tile = (rng.randrange(params.tiles_x), rng.randrange(params.tiles_y))
        strength = rng.uniform(*RANGES[kind]) if kind in RANGES else None
        if kind == "dead_tile":
            strength = float(rng.randrange(2))
        if kind == "defocus":
            strength = (strength or 0.0) * rng.choice((-1, 1))
        artefact = None
        angle = rng.choice((0.0, 90.0, 180.0, 270.0)) if kind == "border" else rng.uniform(0, 360)
        if kind in ("debris", "bubble"):
            plan = next(t for t in plans[slice_id].tiles if (t.ix, t.iy) == tile)
            share = np.array([rng.uniform(0.2, 0.8), rng.uniform(0.2, 0.8)])
            place = np.add(plan.true_corner_um, share * params.tile_fov_um)
            draws = np.random.default_rng(rng.randrange(2**32))
            artefact = draw_artefact(kind, (float(place[0]), float(place[1])), draws)
        faults.append(Fault(kind, slice_id, tile, strength, angle, artefact))
    return faults


class Microscope:
    """Writes an acquisition as far as a clock has come, which it sets on while it is waited for."""

    def __init__(self, files: Iterator[tuple[float, Path | None]]) -> None:
        self.now_s = 0.0
        self._next_s = 0.0
        self._files = files

    def sleep(self, seconds: float) -> None:
        """Let so many seconds pass; files bear the times at which they were written."""
        self.now_s += seconds
        while self._next_s <= self.now_s:
            wait_s, path = next(self._files, (float("inf"), None))
            if path is not None:
                os.utime(path, (BASE_S + self._next_s,) * 2)
            self._next_s += wait_s


def one_acquisition(task: Mapping[str, Any]) -> dict[str, Any]:
    """Write and follow one acquisition; return what was told of each slice."""
    from linumpy.phantom.params import preset

    logging.getLogger("linumpy").setLevel(logging.ERROR)
    started = time.perf_counter()
    params = preset(task["preset"], n_slices=N_SLICES, **task["geometry"])
    faults = draw_faults(task["seed"], task["kinds"], params)
    told = [
        {"slice": f.slice_id, "kind": f.kind, "tile": f.tile, "strength": f.strength,
         "artefact": f.artefact and [f.artefact.radius_um, f.artefact.amplitude,
                                     f.artefact.transmission, f.artefact.height_share]}
        for f in faults
    ]  # fmt: skip
    result: dict[str, Any] = {"seed": task["seed"], "faults": told}
    folder = Path(tempfile.mkdtemp(prefix=f"verdicts-{task['seed']}-", dir=task["scratch"]))
    try:
        lines, seconds = _follow(folder, params, faults, task)
        face_um = _faces_um(folder / "truth")
        result["slices"] = [
            {"slice": line["slice"], "verdict": line["verdict"], "cpu_s": round(cpu_s, 2),
             "reasons": line["reasons"], "figures": line["figures"],
             "cut_um": round(face_um[n] - face_um[n - 1], 2) if n else None}
            for n, (line, cpu_s) in enumerate(zip(lines, seconds, strict=True))
        ]  # fmt: skip
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {error}"
        result["traceback"] = traceback.format_exc()[-2000:]
    finally:
        if not task["keep"]:
            shutil.rmtree(folder, ignore_errors=True)
    result["wall_s"] = round(time.perf_counter() - started, 1)
    return result


def _faces_um(truth_path: Path) -> list[float]:
    """Return the mean depth of each slice's face where it was imaged: it is uneven beyond that."""
    from linumpy.quality.interface import mean_unevenness_um
    from linumpy.quality.truth import load_truth

    truth = load_truth(truth_path)
    return [s.face_um + mean_unevenness_um(truth, k) for k, s in sorted(truth.slices.items())]


def _follow(
    folder: Path, params: Any, faults: Sequence[Any], task: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], list[float]]:
    """Return the verdicts, and the processor time of each."""
    from linumpy.core.device import resolve
    from linumpy.follow.follow import END, FollowOptions, follow
    from linumpy.follow.judge import Judge
    from linumpy.mosaic.grid_options import GridOptions
    from linumpy.phantom.live import live_files

    brain = physics.read_template(task["template"]) if task["template"] else None
    full = {f.slice_id: f.strength for f in faults if f.kind == "disk_full"}
    files = live_files(
        folder, params, task["seed"], speed=SPEED, threads=1, template=brain,
        faults=[f for f in faults if f.kind != "disk_full"],
    )  # fmt: skip
    clock = Microscope(files)
    clock.sleep(0.0)
    seconds: list[float] = []

    class Timed(Judge):
        def judge(self, found: Any, history: Any, last_id: int | None) -> Any:
            start = time.process_time()
            left = max(1, params.n_slices - 1 - found.slice_id)
            needs = params.raw_bytes / params.n_slices * left
            free = int(full.get(found.slice_id, 1e6) * needs)
            with patch("shutil.disk_usage", return_value=SimpleNamespace(free=free)):
                verdict = super().judge(found, history, last_id)
            seconds.append(time.process_time() - start)
            return verdict

    judge = Timed(folder / "raw", folder / "results", GridOptions(), resolve(task["gpu"]))
    end = follow(
        folder / "raw", folder / "results", judge, FollowOptions(poll_s=POLL_S),
        tell=lambda _: None, grow=judge.learn_again,
        clock=lambda: clock.now_s, sleep=clock.sleep,
    )  # fmt: skip
    if end != END:
        raise RuntimeError(f"following ended with {end}")
    text = (folder / "results" / "verdicts.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()], seconds


def plan(args: argparse.Namespace) -> dict[str, Any]:
    """Return the first line of a new record: seeds, kinds of faults, geometry."""
    if args.like is not None:
        header, _ = physics.read_record(args.like)
        return {**header, "version": physics.version()}
    count = -(-args.slices // N_SLICES)
    drawn = random.SystemRandom()
    each = N_SLICES // 2
    kinds = args.kinds or KINDS
    in_turn = [kinds[i % len(kinds)] for i in range(count * each)]
    drawn.shuffle(in_turn)
    return {
        "seeds": [drawn.randrange(1, 10**6) for _ in range(count)],
        "kinds": [in_turn[i * each : (i + 1) * each] for i in range(count)],
        "preset": args.preset,
        "geometry": json.loads(args.geometry),
        "version": physics.version(),
    }


def run_all(args: argparse.Namespace) -> None:
    """Do what a record lacks."""
    if args.record.exists():
        header, done = physics.read_record(args.record)
    else:
        header, done = plan(args), []
        physics.append(args.record, header)
    known = {result["seed"] for result in done}
    tasks = [
        {
            "seed": seed, "kinds": kinds, "preset": header["preset"],
            "geometry": header["geometry"], "scratch": args.scratch, "keep": args.keep,
            "gpu": args.use_gpu, "template": args.template,
        }
        for seed, kinds in zip(header["seeds"], header["kinds"], strict=True)
        if seed not in known
    ]  # fmt: skip
    for name in physics.THREAD_VARIABLES:
        os.environ.setdefault(name, "1")
    for number, result in enumerate(
        physics.results_of(one_acquisition, tasks, args.jobs), len(done) + 1
    ):
        physics.append(args.record, result)
        failure = f"  FAILED {result['error']}" if "error" in result else ""
        print(f"{number}/{len(header['seeds'])} {result['wall_s']} s{failure}", flush=True)
    show(args.record)


def is_found(fault: Mapping[str, Any], line: Mapping[str, Any]) -> bool:
    """Whether a slice's reasons have the fault's kind, and of a tile name that tile."""
    name = "" if fault["tile"] is None else "x{:02d}_y{:02d}".format(*fault["tile"])
    return any(
        r["kind"] == fault["kind"] and (not name or name in r["tiles"]) for r in line["reasons"]
    )


def show(path: Path) -> None:
    """Print rates, and all that was missed or told beside the truth."""
    header, results = physics.read_record(path)
    print(f"{header['preset']} {header['geometry']}, {header['version']}")
    found: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    clean: Counter[str] = Counter()
    missed, wrong, off_um, cpu_s = [], [], [], []
    for result in results:
        faults = {fault["slice"]: fault for fault in result["faults"]}
        for line in result.get("slices", ()):
            fault = faults.get(line["slice"])
            kinds = sorted({r["kind"] for r in line["reasons"]})
            where = f"seed {result['seed']} z{line['slice']:02d}"
            cpu_s.append(line["cpu_s"])
            if fault is None:
                clean[line["verdict"]] += 1
                if kinds:
                    texts = "; ".join(f"{r['kind']}: {r['text']}" for r in line["reasons"])
                    wrong.append(f"{where} {line['verdict']}: {texts}")
                continue
            asked[fault["kind"]] += 1
            found[fault["kind"]] += is_found(fault, line)
            extra = [k for k in kinds if k != fault["kind"]]
            if not is_found(fault, line) or extra:
                told = {k: v for k, v in fault.items() if k not in ("slice", "kind") and v}
                label = "also" if is_found(fault, line) else "MISSED"
                missed.append(f"{where} {label} {fault['kind']} {told}: {', '.join(kinds)}")
            if fault["kind"] in ("missed_cut", "double_cut"):
                told_um = line["figures"].get("cut_um")
                if told_um is not None:
                    off_um.append(abs(told_um - line["cut_um"]))
    print("\n".join([*missed, *wrong]))
    for result in results:
        if "error" in result:
            print(f"seed {result['seed']}: {result['error']}")
    print("| fault | slices | found |\n| --- | --- | --- |")
    for kind in sorted(asked):
        print(f"| `{kind}` | {asked[kind]} | {found[kind]} |")
    print(f"| all | {asked.total()} | {found.total()} |")
    print(f"clean slices: {clean.total()}, of these look {clean['look']}, stop {clean['stop']}")
    if off_um:
        print(
            f"faces after missed and double cuts: median {statistics.median(off_um):.1f} um off, "
            f"largest {max(off_um):.1f}"
        )
    if cpu_s:
        print(f"processor time of a verdict: median {statistics.median(cpu_s):.1f} s")


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="do what a record lacks")
    run.add_argument("record", type=Path, help="file of JSON lines, made or continued")
    run.add_argument("--slices", type=int, default=400, help="slices in all [400]")
    run.add_argument("--preset", default="small", help="of the phantom [small]")
    run.add_argument("--geometry", default="{}", help="what differs from the preset, as JSON")
    run.add_argument("--kinds", nargs="+", choices=KINDS, help="faults of these kinds alone")
    run.add_argument("--like", type=Path, metavar="RECORD", help="the same faults as a record")
    run.add_argument("--jobs", type=int, default=1, help="processes [1]")
    run.add_argument("--use_gpu", action="store_true")
    run.add_argument("--template", type=Path, metavar="NPZ", help="the brain, without nilearn")
    run.add_argument("--scratch", help="folder for temporary files, 0.3 GB a job and slice")
    run.add_argument("--keep", action="store_true", help="keep acquisitions and results")
    shown = commands.add_parser("show", help="print the rates of a record")
    shown.add_argument("record", type=Path)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command."""
    args = build_parser().parse_args(argv)
    if args.command == "run":
        run_all(args)
    else:
        show(args.record)


if __name__ == "__main__":
    main()
