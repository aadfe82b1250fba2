#!/usr/bin/env python
"""Measure how long a verdict takes, and adding the slice to the growing brain.

    python benchmarks/verdict_time.py FOLDER [--preset small] [--gib 4] [--use_gpu]

Simulates a slice below FOLDER, where it is not there yet, and judges it and a copy of it, as after
a cut that did not happen. With ``--gib`` the preset has as many tiles as a slice of that size.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import resource
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--tile_px", type=int, help="A-lines and B-scans of a tile")
    parser.add_argument("--gib", type=float, help="size of a slice's raw data")
    parser.add_argument("--use_gpu", action="store_true")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING)

    from linumpy.core.device import resolve
    from linumpy.follow.judge import Judge
    from linumpy.follow.live_brain import LiveBrain
    from linumpy.follow.watch import FinishedSlice
    from linumpy.io.raw import discover_tiles
    from linumpy.mosaic.grid_options import GridOptions
    from linumpy.phantom.params import preset
    from linumpy.phantom.simulate import simulate

    params = preset(args.preset, n_slices=1)
    if args.tile_px:
        params = replace(params, nx=args.tile_px, ny=args.tile_px)
    if args.gib:
        tile = params.raw_bytes / (params.tiles_x * params.tiles_y)
        side = math.ceil(math.sqrt(args.gib * 2**30 / tile))
        params = replace(params, tiles_x=side, tiles_y=side)
    raw = args.folder / "raw"
    if not raw.exists():
        simulate(args.folder, params, 5)
        for path in (raw / "slice_z00").rglob("*"):
            name = str(path.relative_to(raw)).replace("_z00", "_z01")
            if path.is_file():
                (raw / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, raw / name)
    results = args.folder / "results"
    shutil.rmtree(results, ignore_errors=True)
    judge = Judge(raw, results, GridOptions(), resolve(args.use_gpu))
    brain = LiveBrain(results, judge.volume_of)
    lines: list[dict[str, object]] = []
    size = round(params.raw_bytes / 2**30, 3)
    print(
        f"{size} GiB, {params.tiles_x * params.tiles_y} tiles a slice, "
        f"{len(os.sched_getaffinity(0))} cores, {'GPU' if args.use_gpu else 'no GPU'}"
    )
    print("| slice | verdict, s | processor, s | into the brain, s | reasons |")
    print("| --- | --- | --- | --- | --- |")

    for slice_id, tiles in sorted(discover_tiles(raw).items()):
        found = FinishedSlice(slice_id, tiles, {}, (), 0, 0.0, 60.0, 0.0)
        start, start_cpu = time.perf_counter(), time.process_time()
        reasons, figures = judge.judge(found, lines, 1)
        judged, judged_cpu = time.perf_counter(), time.process_time()
        lines.append({"slice": slice_id, "verdict": "pass", "figures": figures})
        brain.grow(lines)
        grown = time.perf_counter()
        kinds = ", ".join(reason.kind for reason in reasons) or "none"
        print(
            f"| {slice_id} | {judged - start:.1f} | {judged_cpu - start_cpu:.1f} | "
            f"{grown - judged:.1f} | {kinds} |"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"memory: {peak} MiB at most")


if __name__ == "__main__":
    main()
