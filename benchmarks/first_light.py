#!/usr/bin/env python
"""Time every step of a small reconstruction as whole processes, on the CPU and on a GPU.

Simulates an acquisition, makes its grids, and runs each script of the fused pipeline once to
warm the page cache and then `--runs` times, on every device asked for. Prints medians, their
ratio, and how far the devices' results differ.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


def call(name: str, *arguments: object) -> float:
    """Run a script; answer its wall time in seconds."""
    paths = [str(SCRIPTS.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, str(SCRIPTS / f"linum_{name}.py"), *map(str, arguments)]
    start = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return time.perf_counter() - start


def steps(work: Path, device: str) -> dict[str, list[object]]:
    """Return the command of every step; results go to a folder a device."""
    out = work / device
    flag = "--use_gpu" if device == "gpu" else "--no-use_gpu"
    grids = sorted((work / "grids").iterdir())
    commands: dict[str, list[object]] = {
        "aip": [grids[0], out / "aip.ome.zarr"],
        "resample_mosaic_grid": [grids[0], out / "resampled.ome.zarr"],
        "learn_models": [*grids, "--output", out / "models"],
    }
    for grid in grids:
        number = grid.name.removesuffix(".ome.zarr").rpartition("z")[2]
        models = ["--models", out / "models", "--output_models", out / f"models/z{number}"]
        output = out / f"slices/slice_z{number}.ome.zarr"
        commands[f"reconstruct_slice z{number}"] = [grid, output, *models]
    registration = out / "models/register_slices.json"
    commands["register_slices"] = [out / "slices", work / "shifts_xy.csv", registration]
    brain = out / "brain.ome.zarr"
    commands["stack_slices_motor"] = [
        *(out / "slices", work / "shifts_xy.csv", brain, "--registration", registration)
    ]
    return {name: [*arguments, "-f", flag] for name, arguments in commands.items()}


def compare(work: Path) -> dict[str, float]:
    """Return how far the brains of both devices differ, over the reference's 99.9th percentile."""
    import zarr

    brains = [np.asarray(zarr.open_array(work / d / "brain.ome.zarr/0")) for d in ("cpu", "gpu")]
    if brains[0].shape != brains[1].shape:
        return {"shapes_differ": 1.0}
    difference = np.abs(brains[0] - brains[1])
    scale = float(np.percentile(np.abs(brains[0]), 99.9))
    return {
        "largest_difference": float(difference.max() / scale),
        "share_above_1e-4": float((difference > 1e-4 * scale).mean()),
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="small", help="phantom preset")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--devices", default="cpu", help="cpu, or cpu,gpu")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    args = parser.parse_args()
    devices = args.devices.split(",")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        call("phantom", work / "phantom", "--preset", args.preset, "--seed", args.seed)
        raw = work / "phantom/raw"
        table: dict[str, dict[str, float]] = {}
        for number in range(len(list(raw.glob("slice_z*")))):
            grid = work / f"grids/mosaic_grid_3d_z{number:02d}.ome.zarr"
            arguments = [grid, "--from_root_directory", raw, "-z", number]
            table[f"create_mosaic_grid_3d z{number:02d}"] = {
                "cpu": call("create_mosaic_grid_3d", *arguments)
            }
        call("estimate_xy_shift_from_metadata", raw, work / "shifts_xy.csv")
        for device in devices:
            for name, arguments in steps(work, device).items():
                times = [call(name.split()[0], *arguments) for _ in range(args.runs + 1)]
                table.setdefault(name, {})[device] = statistics.median(times[1:])
        record = {
            "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
            "python": platform.python_version(),
            "numpy": np.__version__,
            "preset": args.preset,
            "seconds": table,
        }
        if len(devices) == 2:
            record["difference"] = compare(work)
            import cupy

            properties = cupy.cuda.runtime.getDeviceProperties(0)
            record["gpu"] = properties["name"].decode()
            record["cupy"] = cupy.__version__
    print(f"{'step':32}" + "".join(f"{d:>9}" for d in devices) + "   cpu/gpu")
    for name, times in table.items():
        row = f"{name:32}" + "".join(f"{times.get(d, float('nan')):9.2f}" for d in devices)
        ratio = times["cpu"] / times["gpu"] if {"cpu", "gpu"} <= times.keys() else None
        print(row + (f"{ratio:10.2f}" if ratio else ""))
    print(json.dumps({k: v for k, v in record.items() if k != "seconds"}, indent=1))
    if args.output:
        args.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
