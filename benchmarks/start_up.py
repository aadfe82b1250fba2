#!/usr/bin/env python
"""Time the start of scripts as whole processes: help, first byte read, a tiny projection.

``start_up.py [FOLDER]`` makes a tiny grid and, with ``--size``, a larger one. With ``--use_gpu``
it projects on the CPU and on the GPU, there with each reader of files in turn. Ways take turns, so
that a change of load meets all of them. Projections on the GPU must be equal, whatever the reader.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import environment

ROOT = Path(__file__).resolve().parents[1]

# Runs a script as it runs by itself, tells when it opens its first chunk, and how files are read.
CHILD = """
import os, runpy, sys, time
begun, told, native = float(os.environ["BEGUN"]), [], os.environ["NATIVE"]
def look(event, args):
    if event == "open" and not told and "/0/c/" in str(args[0]):
        told.append(True)
        os.write(1, f"first byte {time.time() - begun}\\n".encode())
if os.environ["FIRST"]:
    sys.addaudithook(look)
if native == "threads":
    from linumpy.gpu import fetch
    fetch.make_fetch = lambda objects, device_id: (fetch.PinnedFetch(device_id), None)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def timed(script: str, *arguments: object, reader: str = "", first: bool = False) -> float:
    """Return the seconds of a process, or until it opens its first chunk."""
    line = [str(ROOT / "scripts" / f"linum_{script}.py"), *map(str, arguments)]
    if reader or first:
        line = ["-c", CHILD, *line]
    begun = time.time()
    own = {"BEGUN": str(begun), "NATIVE": reader, "FIRST": "yes" if first else ""}
    done = subprocess.run(
        [sys.executable, *line],
        env=environment(ROOT, **own),
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.time() - begun
    if done.returncode:
        sys.exit(f"{line}: {done.stderr}")
    return float(done.stdout.split("first byte ", 1)[1].splitlines()[0]) if first else seconds


def voxels(path: Path) -> bytes:
    """Return the voxels of a projection, decoded by Zarr."""
    import numpy as np
    import zarr

    return np.asarray(zarr.open_array(path / "0", mode="r")[...]).tobytes()


def measure(folder: Path, sizes: list[float], use_gpu: bool, turns: int) -> dict[str, list[float]]:
    """Return the seconds of each way, by its name."""
    found: dict[str, list[float]] = {}
    for turn in range(turns + 1):
        # The first turn warms caches up.
        rows = {"linum_aip.py --help": timed("aip", "--help")}
        for size in sizes:
            grid, name = (
                folder / f"{size:g}.ome.zarr",
                f"aip, {size:g} GiB" if size else "aip, tiny",
            )
            ways: dict[str, tuple[list[str], str]]
            ways = {"CPU": ([], "")} if not (use_gpu and size) else {}
            if use_gpu:
                ways |= {f"GPU by {r}": (["--use_gpu"], r) for r in ("kvikio", "threads")}
            for way, (flags, reader) in ways.items():
                out = folder / f"{size:g}-{way}.aip.ome.zarr".replace(" ", "-")
                rows[f"{name}, {way}"] = timed("aip", grid, out, "-f", *flags, reader=reader)
                if not size:
                    key = f"{name}, {way}: first byte"
                    rows[key] = timed("aip", grid, out, "-f", *flags, reader=reader, first=True)
        for name, seconds in rows.items():
            if turn:
                found.setdefault(name, []).append(seconds)
    return found


def main() -> None:
    """Make grids, measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("folder", nargs="?", type=Path, help="where to make the grids")
    parser.add_argument("--size", type=float, action="append", default=[], help="GiB as well")
    parser.add_argument("--use_gpu", action="store_true")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--output", type=Path, help="JSON of all seconds")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as made:
        folder = Path(made)
        sizes = [0.0, *args.size]
        for size in sizes:
            line = [str(ROOT / "benchmarks/acquisition.py"), "--size", str(size)]
            subprocess.run([sys.executable, *line, str(folder / f"{size:g}.ome.zarr")], check=True)
        found = measure(folder, sizes, args.use_gpu, args.turns)
        for size in sizes:
            made_by = sorted(folder.glob(f"{size:g}-*.aip.ome.zarr"))
            same = len({voxels(path) for path in made_by if "CPU" not in path.name}) <= 1
            print(f"{size:g} GiB: {len(made_by)} ways, on the GPU {'equal' if same else 'UNEQUAL'}")
    for name, seconds in found.items():
        print(f"{name:44} {statistics.median(seconds):6.3f} s  {[round(s, 3) for s in seconds]}")
    if args.output:
        args.output.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
