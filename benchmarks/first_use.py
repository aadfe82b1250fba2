#!/usr/bin/env python
"""Time the scripts of a GPU run as whole processes, with and without compiled kernels.

``first_use.py prepare FOLDER`` simulates a tiny acquisition and runs all scripts on the CPU;
``first_use.py measure FOLDER`` runs each on the GPU from a copy, first with an empty cache of
kernels, then again. ``--record`` adds CuPy's kernels that were loaded to the list of those that
`linumpy.core.compile_kernels` compiles beforehand.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT)]

from stage_list import STAGES, Place  # noqa: E402

from linumpy.core.compile_kernels import LIST, cupy_kernels, write_list  # noqa: E402

# Tiles as small as the chain takes, deep enough that slices share planes; slices of four of them.
SMALL = {"n_slices": 3, "tiles_x": 2, "tiles_y": 2, "nx": 64, "ny": 64, "nz": 88}


def commands(folder: Path) -> dict[str, list[str]]:
    """Return the command lines of all scripts in the order in which they can run."""
    place = Place(folder, 4)
    raw, grids, slices = folder / "acquisition/raw", folder / "grids", folder / "made"
    names = [path.name[6:] for path in sorted(raw.glob("slice_z*"))]
    found: dict[str, list[Any]] = {}
    for name in names:
        grid = grids / f"mosaic_grid_3d_{name}.ome.zarr"
        root = ["--from_root_directory", raw, "-z", name[1:], "--resolution", -1, "-f"]
        found[f"create_mosaic_grid_3d {name}"] = [grid, *root]
    all_grids = [grids / f"mosaic_grid_3d_{name}.ome.zarr" for name in names]
    found["learn_models all"] = [*all_grids, "--output", folder / "learned", "-f"]
    for name in names:
        grid = grids / f"mosaic_grid_3d_{name}.ome.zarr"
        own = ["--models", folder / "learned", "--output_models", folder / "own" / name, "-f"]
        found[f"reconstruct_slice {name}"] = [grid, slices / f"slice_{name}.ome.zarr", *own]
    shifts, registration = folder / "shifts.csv", folder / "register_slices.json"
    rated = ["--output", folder / "rated.json", "--shifts", shifts]
    config = ["--slice_config_in", folder / "config.csv", "--slice_config_out"]
    found["assess_slice_quality all"] = [slices, *rated, *config, folder / "rated.csv", "-f"]
    ids = [name[1:] for name in names]
    pairs = [slices, folder / "pairs", "--shifts", shifts, "--ids", *ids, "-f"]
    found["measure_pairs all"] = pairs
    found["register_slices all"] = [slices, shifts, registration, "-f"]
    brain = folder / "whole.ome.zarr"
    stacked = [brain, "--registration", registration, "--pairs", folder / "pairs", "-f"]
    model = ["--output_model", folder / "stacked.json"]
    found["stack_slices_motor all"] = [slices, shifts, *stacked, *model]
    around = [slices / f"slice_{names[0]}.ome.zarr", slices / f"slice_{names[2]}.ome.zarr"]
    gap = [folder / "gap.ome.zarr", "--id", names[1][1:], "--shifts", shifts, "-f"]
    gap += ["--registration", registration]
    found["interpolate_missing_slice"] = [*around, *gap]
    unbiased = [folder / "unbiased.ome.zarr", "--stack_model", folder / "stacked.json", "-f"]
    found["correct_bias_field"] = [brain, *unbiased]
    first = all_grids[0]
    found["aip_png"] = [first, folder / "aip.png", "-f"]
    for stage in STAGES.values():
        if "whole-tile" not in stage.name and not stage.prepare:
            found[f"{stage.script} {stage.name}"] = stage.arguments(place)
    return {name: [str(part) for part in parts] for name, parts in found.items()}


def script_line(name: str, *arguments: str) -> list[str]:
    """Return the words of a command."""
    script = ROOT / "scripts" / f"linum_{name.split(maxsplit=1)[0]}.py"
    return [sys.executable, str(script), *arguments]


def is_wanted(name: str, only: Sequence[str]) -> bool:
    """Whether a command is of one of the scripts; any is where none is named."""
    return not only or name.split(maxsplit=1)[0] in only


def prepare(folder: Path, only: Sequence[str]) -> None:
    """Simulate, and run scripts on the CPU."""
    script = ROOT / "scripts" / "linum_phantom.py"
    simulated = folder / "acquisition"
    sizes = [part for key, value in SMALL.items() for part in (f"--{key}", str(value))]
    simulation = [str(simulated), "--preset", "tiny", "--seed", "20261", *sizes]
    subprocess.run([sys.executable, str(script), *simulation], check=True)
    for name, table in (
        ("estimate_xy_shift_from_metadata", "shifts.csv"),
        ("generate_slice_config", "config.csv"),
    ):
        tables = [str(simulated / "raw"), str(folder / table)]
        subprocess.run(script_line(name, *tables), check=True, stdout=subprocess.DEVNULL)
    wanted = {name: words for name, words in commands(folder).items() if is_wanted(name, only)}
    for name, arguments in wanted.items():
        if name == "aip aip":
            shutil.copytree(folder / "grids/mosaic_grid_3d_z01.ome.zarr", Place(folder, 4).grid)
        begun = time.monotonic()
        line = script_line(name, *arguments, "--no-use_gpu")
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        print(f"{time.monotonic() - begun:6.1f} s  {name}", flush=True)
        if done.returncode:
            print(done.stderr[-800:], flush=True)


def run_once(name: str, folder: Path, cache: Path, tag: str) -> tuple[float, list[dict[str, Any]]]:
    """Run a script on the GPU; return its seconds and what it loaded of kernels."""
    rows = cache / f"{tag}.jsonl"
    paths = [str(HERE / "recorder"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "CUPY_CACHE_DIR": str(cache),
        "LINUMPY_COMPILED": str(rows),
        "LINUMPY_LEASE_DIR": str(cache / "lease"),
        "OMP_NUM_THREADS": "2",
    }
    line = script_line(name, *commands(folder)[name], "--use_gpu")
    begun = time.monotonic()
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=environment)
    seconds = time.monotonic() - begun
    if done.returncode:
        print(f"{name} ended with {done.returncode}: {done.stderr[-400:]}", flush=True)
    text = rows.read_text(encoding="utf-8").splitlines() if rows.exists() else []
    return seconds, [json.loads(row) for row in text]


def measure_one(name: str, prepared: Path) -> dict[str, Any]:
    """Run a script cold and warm, from a copy of what was prepared."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, cache = Path(temporary) / "work", Path(temporary) / "cache"
        shutil.copytree(prepared, folder)
        (cache / "lease").mkdir(parents=True)
        cold_s, cold = run_once(name, folder, cache, "cold")
        warm_s, warm = run_once(name, folder, cache, "warm")
    made = [row for row in cold if row["compiled_s"]]
    return {
        "name": name,
        "cold_s": round(cold_s, 2),
        "warm_s": round(warm_s, 2),
        "compiled": len(made),
        "own": sum(not row["cupy"] for row in made),
        "compiled_s": round(sum(row["compiled_s"] for row in made), 2),
        "own_s": round(sum(row["compiled_s"] for row in made if not row["cupy"]), 2),
        "loaded_warm_s": round(sum(row["seconds"] for row in warm), 3),
        "compiled_warm": sum(row["compiled_s"] > 0 for row in warm),
        "kernels": cold,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Prepare or measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("prepare", "measure"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=1, help="processes at a time")
    parser.add_argument("--only", default="", help="scripts, separated by commas")
    parser.add_argument("--record", action="store_true", help="add to the list of CuPy's kernels")
    parser.add_argument("--output", type=Path, help="JSON file of the figures")
    arguments = parser.parse_args(argv)
    folder = arguments.folder.resolve()
    only = [part for part in arguments.only.split(",") if part]
    if arguments.what == "prepare":
        folder.mkdir(parents=True)
        prepare(folder, only)
        return 0
    # Of slices that are all alike, one is measured.
    names = [name for name in commands(folder) if " z" not in name or name.endswith("z01")]
    names = [name for name in names if is_wanted(name, only)]
    with ThreadPoolExecutor(arguments.workers) as pool:
        rows = list(pool.map(lambda name: measure_one(name, folder), names))
    kernels = {
        (k["source"], tuple(k["options"]), k["cupy"]) for r in rows for k in r.pop("kernels")
    }
    columns = [key for key in rows[0] if key != "name"]
    print("  ".join(columns))
    for row in rows:
        print("  ".join(f"{row[key]:>{len(key)}}" for key in columns), row["name"])
    print(f"{len(kernels)} different kernels, {len(rows)} scripts")
    if arguments.record:
        found = [(source, options) for source, options, cupy in kernels if cupy]
        write_list([*cupy_kernels(), *found])
        print(f"{len(cupy_kernels())} kernels of CuPy in {LIST}")
    if arguments.output:
        arguments.output.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
