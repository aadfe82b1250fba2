#!/usr/bin/env python
"""Measure what each process of the pipeline takes, for the planner's model of stage times.

A slice of a given size is simulated as raw tiles. Every process runs on it as it does in the
pipeline, a whole program on one core or one GPU; and once more on a slice of next to nothing, which
shows what it takes to start. The record says seconds, work and memory of each;
`linumpy/planning/stage_times.json` is made from such records.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
# Run from a checkout, linumpy need not be installed.
sys.path[:0] = [str(ROOT)]

import measure  # noqa: E402
from process_list import PROCESSES, Place, Process  # noqa: E402
from stage_list import copy_slice, write_shifts  # noqa: E402
from stages import apart, remove  # noqa: E402

START_UP_TILES = 4
START_UP_GIB = 0.004
START_UP_SLICES = 3
MOST_SLICES = 12
AXIAL_UM = 5.0
FLY_BACK_SHARE = 0.1


def make_raw(folder: Path, size_gib: float, n_tiles: int) -> int:
    """Write a slice as the microscope does; return the bytes of its samples without fly-back."""
    import acquisition
    import numpy as np

    shape = acquisition.tile_shape(size_gib)
    content = acquisition.Content(shape, acquisition.grid_shape(n_tiles))
    info = content.info
    nz, nx, ny = shape
    n_extra = max(1, int(FLY_BACK_SHARE * nx))
    slice_folder = folder / "slice_z01"

    def write(number: int) -> None:
        tile = info.tiles[number]
        path = slice_folder / "tiles" / f"tile_x{tile.ix:02d}_y{tile.iy:02d}_z01"
        path.mkdir(parents=True)
        values = {
            "nx": nx, "ny": ny, "n_extra": n_extra, "n_repeat": 1, "top_z": 0, "bottom_z": nz - 1,
            "width": nx * acquisition.VOXEL_UM, "height": ny * acquisition.VOXEL_UM,
            "stage_x_pos_mm": tile.stage_x_mm, "stage_y_pos_mm": tile.stage_y_mm,
        }  # fmt: skip
        (path / "info.txt").write_text("".join(f"{k}: {v}\n" for k, v in values.items()))
        data = content.tile(number)
        back = 0.15 * data[:, ::-1][:, :n_extra]
        frames = np.concatenate([data, back], axis=1).transpose(2, 1, 0)
        np.ascontiguousarray(frames, dtype="<f4").tofile(path / "image_00000.bin")

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(write, range(n_tiles)))
    metadata = {
        "slice_thickness": acquisition.SLICE_INTERVAL_UM / 1e3,
        "overlap_fraction": acquisition.OVERLAP_FRACTION,
        "axial_resolution_um": AXIAL_UM,
    }
    (slice_folder / "metadata.json").write_text(json.dumps(metadata))
    return 4 * nz * nx * ny * n_tiles


def copy_slices(place: Place) -> None:
    """Lay out further slices that are the first under other numbers; their chunks are shared."""
    for first in place.folder.glob("slices*/*_z01.ome.zarr"):
        copy_slice(first, place.n_slices)
    write_shifts(place / "shifts_xy.csv", place.n_slices)
    rows = [f"{n:02d},true" for n in range(1, place.n_slices + 1)]
    (place / "slice_config.csv").write_text("\n".join(["slice_id,use", *rows]) + "\n")


def level_nbytes(volume: Path) -> int:
    """Return the bytes of a volume's finest level as float32, without its mask."""
    attributes = json.loads((volume / "zarr.json").read_text())["attributes"]
    path = attributes["ome"]["multiscales"][0]["datasets"][0]["path"]
    shape = json.loads((volume / path / "zarr.json").read_text())["shape"]
    size = 4
    for n in shape:
        size *= n
    return size


class Runs:
    """Everything that was measured in one place."""

    def __init__(self, place: Place, *, use_gpu: bool, repeats: int) -> None:
        self.place, self.use_gpu, self.repeats = place, use_gpu, repeats
        threads = {} if use_gpu else dict.fromkeys(_THREADS, "1")
        self.environment = measure.environment(ROOT, **threads)

    def run_all(self, grid_nbytes: int, entry: dict[str, Any], write: Callable[[], None]) -> None:
        """Run all processes in their order; note their measurements, and which failed and why.

        What is known so far is written after each: a machine may be lent for a time only.
        """
        found, missing = entry["processes"], entry["missing"]
        for process in PROCESSES:
            write()
            if process.name == "assess_slice_quality":
                copy_slices(self.place)
            try:
                runs = [self.run_once(process) for _ in range(self.repeats)]
            except (measure.Failed, OSError) as error:
                missing.append({"name": process.name, "reason": str(error)})
                continue
            found[process.name] = {
                "work": process.work,
                "work_size": self.work_size(process, grid_nbytes),
                "seconds": statistics.median(run.seconds for run in runs),
                "all_seconds": [round(run.seconds, 3) for run in runs],
                "cpu_seconds": statistics.median(run.cpu_seconds for run in runs),
                "peak_nbytes": max(run.peak_nbytes for run in runs),
                "device_nbytes": max((run.device_nbytes or 0 for run in runs), default=0) or None,
                "written_nbytes": measure.stored_nbytes(self.place / process.output),
            }
            print(f"... {process.name}: {found[process.name]['seconds']:.2f} s", file=sys.stderr)
        write()

    def run_once(self, process: Process) -> measure.Measured:
        """Run a process; what it wrote the last time is removed before."""
        remove(self.place / process.output)
        flags = ["--use_gpu" if self.use_gpu else "--no-use_gpu"] if process.on_gpu else []
        command = [sys.executable, process.script, *process.arguments(self.place), *flags, "-f"]
        if not self.use_gpu:
            # Some libraries take all cores that they see.
            command = ["taskset", "-c", str(max(os.sched_getaffinity(0))), *command]
        return measure.run(command, self.environment, on_gpu=self.use_gpu)

    def work_size(self, process: Process, grid_nbytes: int) -> int:
        """Return the bytes, or the items, that a process works on."""
        if process.work == "grid":
            return grid_nbytes
        if process.work == "items":
            return self.place.n_slices
        volume = {
            "resampled": "resampled.ome.zarr",
            "slices": "slices/slice_z01.ome.zarr",
            "brain": "brain.ome.zarr",
        }[process.work]
        number = self.place.n_slices if process.work == "slices" else 1
        return number * level_nbytes(self.place / volume)


_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def describe(use_gpu: bool) -> dict[str, Any]:
    """Return what the machine is."""
    from linumpy.benchmark.machine import describe_machine, describe_versions

    machine = describe_machine(Path.cwd(), use_gpu)
    return {"machine": machine, "versions": describe_versions()}


def count_tiles(size_gib: float) -> int:
    """Return how many tiles make a size."""
    import acquisition

    return acquisition.n_tiles(size_gib)


def measure_all(args: argparse.Namespace, work: Path) -> None:
    """Measure start-up and work."""
    use_gpu = args.device == "gpu"
    record: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": ["benchmarks/stage_times.py", *(Path(word).name for word in sys.argv[1:])],
        **apart(describe, use_gpu),
        "device": args.device,
        "places": [],
    }
    sizes = [(START_UP_GIB, START_UP_TILES, START_UP_SLICES)]
    # Of small slices there are more: time a slice and time a voxel can be separated.
    sizes += [
        (size, apart(count_tiles, size), max(args.slices, min(MOST_SLICES, round(3 / size))))
        for size in args.sizes
    ]
    for size_gib, n_tiles, n_slices in sizes:
        place = Place(work / f"place{len(record['places'])}", n_slices)
        print(f"... {n_tiles} tiles, {size_gib:g} GiB", file=sys.stderr)
        grid_nbytes = apart(make_raw, place.raw, size_gib, n_tiles)
        entry: dict[str, Any] = {
            "grid_nbytes": grid_nbytes,
            "n_tiles": n_tiles,
            "n_slices": n_slices,
            "processes": {},
            "missing": [],
        }
        record["places"].append(entry)

        def write() -> None:
            args.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

        Runs(place, use_gpu=use_gpu, repeats=args.repeats).run_all(grid_nbytes, entry, write)
        remove(place.folder)


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--sizes", type=float, nargs="+", default=[0.24, 4.0], help="GiB of the slice, as float32"
    )
    parser.add_argument(
        "--slices", type=int, default=3, help="least number of slices to register and to stack"
    )
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each; medians count")
    parser.add_argument("--folder", type=Path, help="where files are made for the time of the run")
    parser.add_argument("--output", type=Path, required=True, help="JSON file to write")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Measure."""
    args = build_parser().parse_args(argv)
    with measure.workplace("times", args.folder) as work:
        measure_all(args, work)


if __name__ == "__main__":
    main()
