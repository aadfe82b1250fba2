#!/usr/bin/env python
"""Measure how long a verdict takes, and adding the slice to the growing brain.

    python benchmarks/verdict_time.py prepare FOLDER [--preset small] [--tile_px 400] [--gib 4]
    python benchmarks/verdict_time.py measure FOLDER [--use_gpu]

`prepare` simulates a slice below FOLDER on all cores, and links it, as after a cut that did not
happen. With ``--gib`` the preset has as many tiles as a slice of that size. `measure` judges both,
in a process that has not used the GPU, and prints a table; after ``--limit_s`` it prints the stack
of each thread and ends. For machines without nilearn: `benchmarks/physics.py template BRAIN.npz`
here, `prepare --template BRAIN.npz` there.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import resource
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from raw_slices import RawSlices, make_raw

import linumpy.cli  # noqa: F401  Holds BLAS to one thread, as the script does: before NumPy.


def prepare(args: argparse.Namespace) -> None:
    """Simulate a slice and link it."""
    wanted = RawSlices(args.preset, args.tile_px, args.gib, 1, 2, args.seed, args.template)
    print(make_raw(args.folder / "raw", wanted))


def measure(args: argparse.Namespace) -> None:
    """Judge the slices, and print a line for each."""
    from linumpy.core.device import resolve
    from linumpy.core.host_memory import share_heap
    from linumpy.follow.judge import Judge
    from linumpy.follow.live_brain import LiveBrain
    from linumpy.follow.watch import FinishedSlice
    from linumpy.io.raw import discover_tiles
    from linumpy.mosaic.grid_options import GridOptions

    faulthandler.dump_traceback_later(args.limit_s, exit=True, file=sys.stdout)
    share_heap()  # as the script does
    raw, results = args.folder / "raw", args.folder / "results"
    shutil.rmtree(results, ignore_errors=True)
    judge = Judge(raw, results, GridOptions(), resolve(args.use_gpu))
    brain = LiveBrain(results, judge.volume_of, judge.device)
    lines: list[dict[str, object]] = []
    print(
        f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} before, "
        f"{'GPU' if args.use_gpu else 'no GPU'}"
    )
    print("| slice | tiles | GiB | verdict, s | processor, s | into the brain, s | reasons |")
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for slice_id, tiles in sorted(discover_tiles(raw).items()):
        size = sum(path.stat().st_size for tile in tiles for path in tile.path.iterdir())
        found = FinishedSlice(slice_id, tiles, {}, (), 0, 0.0, 60.0, 0.0)
        start, start_cpu = time.perf_counter(), time.process_time()
        reasons, figures = judge.judge(found, lines, 1)
        judged, judged_cpu = time.perf_counter(), time.process_time()
        lines.append({"slice": slice_id, "verdict": "pass", "figures": figures})
        brain.grow(lines)
        grown = time.perf_counter()
        kinds = ", ".join(reason.kind for reason in reasons) or "none"
        print(
            f"| {slice_id} | {len(tiles)} | {size / 2**30:.2f} | {judged - start:.1f} | "
            f"{judged_cpu - start_cpu:.1f} | {grown - judged:.1f} | {kinds} |",
            flush=True,
        )
    faulthandler.cancel_dump_traceback_later()
    if len(brain.slices()) != len(lines):
        sys.exit(f"the growing brain holds {len(brain.slices())} of {len(lines)} slices")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"memory: {peak} MiB at most; load {os.getloadavg()[0]:.1f} after")


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    made = commands.add_parser("prepare", help="simulate a slice and copy it")
    made.add_argument("folder", type=Path, metavar="FOLDER", help="without raw data")
    made.add_argument("--preset", default="small", help="of the phantom [small]")
    made.add_argument("--tile_px", type=int, help="A-lines and B-scans of a tile")
    made.add_argument("--gib", type=float, help="size of a slice's raw data")
    made.add_argument("--seed", type=int, default=5)
    made.add_argument("--template", type=Path, metavar="NPZ", help="the brain, without nilearn")
    made.set_defaults(command=prepare)
    judged = commands.add_parser("measure", help="judge the slices")
    judged.add_argument("folder", type=Path, metavar="FOLDER", help="of prepare")
    judged.add_argument("--use_gpu", action="store_true")
    judged.add_argument("--limit_s", type=float, default=300.0, help="limit of time [300]")
    judged.set_defaults(command=measure)
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING)
    args.command(args)


if __name__ == "__main__":
    main()
