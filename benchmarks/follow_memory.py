#!/usr/bin/env python
"""Measure the memory of a follower over hundreds of slices.

    python benchmarks/follow_memory.py FOLDER [--slices 400]

Two small slices of the phantom are written in turn, tile by tile, under new numbers; the follower's
own loop judges them and grows the brain. After each slice two figures are read: the memory of the
process, and what the program has allocated in it (glibc's ``mallinfo2``, all Python objects
included), which tells a leak from memory that the C library keeps. Printed are the growth of both
a slice with its standard error, over the second half, and the largest memory.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import logging
import os
import shutil
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

GEOMETRY = {"n_slices": 2, "tiles_x": 2, "tiles_y": 2, "nx": 64, "ny": 64, "brain_fill": 0.7}
KEPT = 2
"""Slices whose raw tiles are kept, so that the disk holds any number."""


def slices(source: Path, raw: Path, count: int) -> Iterator[None]:
    """Write slice after slice, a tile a step."""
    (raw / "state.json").write_text(f'{{"z_min": 0, "z_max": {count - 1}}}\n')
    for slice_id in range(count):
        top = source / f"slice_z{slice_id % 2:02d}"
        place = raw / f"slice_z{slice_id:02d}"
        place.mkdir()
        shutil.copyfile(top / "metadata.json", place / "metadata.json")
        for tile in sorted((top / "tiles").iterdir()):
            name = f"{tile.name.rpartition('_z')[0]}_z{slice_id:02d}"
            shutil.copytree(tile, place / "tiles" / name)
            yield
        if slice_id >= KEPT:
            shutil.rmtree(raw / f"slice_z{slice_id - KEPT:02d}")


def resident_mib() -> float:
    """Return the memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class _Mallinfo(ctypes.Structure):
    """Struct ``mallinfo2`` of glibc, 2.33 or newer."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    ]  # fmt: skip


def allocated_mib() -> float:
    """Return what the program holds of the C library, Python objects included (`main`)."""
    gc.collect()
    read = ctypes.CDLL(None).mallinfo2
    read.restype = _Mallinfo
    found = read()
    return float((found.uordblks + found.hblkhd) / 2**20)


def growth(values: Sequence[float]) -> tuple[float, float]:
    """Return the slope of values over their number, and its standard error.

    Neighbouring values hang together: the error is that of slopes over eighths of them.
    """
    import numpy as np

    n = len(values) // 8
    parts = [np.polyfit(np.arange(n), values[k * n : (k + 1) * n], 1)[0] for k in range(8)]
    slope = float(np.polyfit(np.arange(len(values)), values, 1)[0])
    return slope, statistics.stdev(map(float, parts)) / 8**0.5


def main(argv: Sequence[str] | None = None) -> None:
    """Follow, and print a line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--slices", type=int, default=400)
    args = parser.parse_args(argv)
    logging.getLogger("linumpy").setLevel(logging.ERROR)
    if os.environ.get("PYTHONMALLOC") != "malloc":
        os.execve(
            sys.executable, [sys.executable, *sys.argv], os.environ | {"PYTHONMALLOC": "malloc"}
        )

    from linumpy.core.host_memory import share_heap
    from linumpy.follow.follow import FollowOptions, follow
    from linumpy.follow.judge import Judge
    from linumpy.follow.live_brain import LiveBrain
    from linumpy.mosaic.grid_options import GridOptions
    from linumpy.phantom.live import write_live
    from linumpy.phantom.params import preset

    share_heap()  # as the script does
    params = preset("tiny", **GEOMETRY)
    write_live(args.folder / "source", params, 4, speed=1e6, sleep=lambda _: None)
    raw, results = args.folder / "raw", args.folder / "results"
    raw.mkdir()
    files = slices(args.folder / "source" / "raw", raw, args.slices)
    judge = Judge(raw, results, GridOptions())
    brain = LiveBrain(results, judge.volume_of)
    now_s = [0.0]
    seen: list[float] = []
    held: list[float] = []
    judged: list[int] = []

    def sleep(_: float) -> None:
        now_s[0] += 3.0
        if judged and len(seen) < judged[-1]:
            # After all that follows from a verdict.
            held.append(allocated_mib())
            seen.append(resident_mib())
            if len(seen) % 20 == 0:
                print(f"{len(seen)}: {seen[-1]:.1f} MiB, {held[-1]:.2f} allocated", flush=True)
        next(files, None)

    def grow(lines: Sequence[Any]) -> None:
        brain.grow(lines)
        # All lines are there at the start alone.
        count = int(lines[-1]["slice"]) + 1 if lines else 0
        judged.append(count)
        # The growing brain reads the last 32 slices.
        shutil.rmtree(judge.volume_of(count - 40), ignore_errors=True)

    follow(
        raw, results, judge, FollowOptions(), tell=lambda _: None, grow=grow,
        clock=lambda: now_s[0], sleep=sleep,
    )  # fmt: skip
    for name, values in (("process", seen), ("allocated", held)):
        slope, error = growth(values[len(values) // 2 :])
        print(
            f"{name}: {1024 * slope:+.1f} +- {1024 * error:.1f} KiB a slice over the second "
            f"half of {len(values)}, {max(values):.0f} MiB at most, {values[0]:.0f} after the first"
        )


if __name__ == "__main__":
    main()
