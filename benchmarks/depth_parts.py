#!/usr/bin/env python
"""Time stacking and the bias field by parts of depth, as whole programs, and compare their files.

All slices are one slice of noise under other numbers, whose chunks are shared. Each way is GPUs x
processes on each of them, or on the CPU just processes, which share its cores. Exits with 1 where
two ways write files that differ.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# Run from a checkout, linumpy need not be installed.
sys.path[:0] = [str(HERE), str(HERE.parent)]

from measure import environment, run, workplace  # noqa: E402
from stage_list import copy_slice, write_shifts  # noqa: E402

VOXEL_UM = 10.0
STEP_PX = 20
PLANES = 44
TISSUE = 0.5
BIN_PX = 12


def write_slices(folder: Path, n_slices: int, side_px: int) -> None:
    """Write slices 1 … n of a bright disk of noise in dark agarose, masked at two borders."""
    import numpy as np

    from linumpy.intensity.quality_map import QUALITY_ATTRIBUTE, encode_map, encode_weights
    from linumpy.io.omezarr import create_image
    from linumpy.io.slice_layout import volume_spec
    from linumpy.store.manifest import write_manifest

    rng = np.random.default_rng(4)
    shape = (PLANES, side_px, side_px)
    place = np.linspace(-1, 1, side_px)
    inside = place[:, None] ** 2 + place**2 < TISSUE
    data = rng.standard_normal(shape, np.float32)
    data *= np.where(inside, np.float32(0.2), np.float32(0.01))
    data += np.where(inside, np.float32(0.7), np.float32(0.02))
    valid = np.ones(shape, np.uint8)
    # The cut face lies deeper on one side.
    valid[:3, : side_px // 2] = valid[:, :8] = 0
    data *= valid
    bins = -(-side_px // BIN_PX)
    depth = np.arange(PLANES, dtype=np.float32)[:, None, None]
    weights = np.exp2(-depth / 10 * rng.uniform(0.5, 1.5, (1, bins, bins)).astype(np.float32))
    described = {
        QUALITY_ATTRIBUTE: encode_map(encode_weights(weights), BIN_PX, shape),
        "kind": "slice", "slice_id": 1, "slice_interval_um": STEP_PX * VOXEL_UM,
        "interface_um": 120.0, "stage_to_array": "+x,+y", "nominal_positions": False,
    }  # fmt: skip
    spec = volume_spec(shape, (VOXEL_UM,) * 3, (120.0, 500.0, 700.0), described)
    path = folder / "slices/slice_z01.ome.zarr"
    with create_image(path, spec, overwrite=False, with_valid=True) as image:
        assert image.valid is not None
        image.array[...] = data
        image.valid[...] = valid
    copy_slice(path, n_slices)
    for copy in path.parent.iterdir():
        write_manifest(copy)
    write_shifts(folder / "shifts_xy.csv", n_slices)


def flags(way: str) -> list[str]:
    """Return the flags of a way: ``2x3`` for two GPUs with three processes each, ``4`` without."""
    gpus, _, each = way.rpartition("x")
    if not gpus:
        return ["--no-use_gpu", "--parts", each]
    return ["--use_gpu", "--gpu_count", gpus, "--parts", str(int(gpus) * int(each))]


def commands(folder: Path, out: Path, way: str) -> dict[str, list[object]]:
    """Return the command line of each step."""

    def script(name: str, *arguments: object) -> list[object]:
        path = HERE.parent / "scripts" / f"linum_{name}.py"
        return [sys.executable, path, *arguments, *flags(way)]

    stacked, even = out / "brain.ome.zarr", out / "even.ome.zarr"
    return {
        "stack": script("stack_slices_motor", folder / "slices", folder / "shifts_xy.csv", stacked),
        "bias": script("correct_bias_field", stacked, even, "--bias_n4_engine", "linumpy"),
    }


def digests(path: Path) -> Any:
    """Return the manifest of an image: its files with their digests."""
    return json.loads((path / "zarr.json").read_text())["attributes"]["linumpy"]["manifest"]


def measure(folder: Path, way: str, steps: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run the steps in one way; return what they took, and the manifests of what they wrote."""
    out = folder / way
    found: dict[str, Any] = {}
    wrote: dict[str, Any] = {}
    for name, line in commands(folder, out, way).items():
        if name in steps:
            done = run(line, environment(HERE.parent), on_gpu=False)
            found[name] = {
                "seconds": done.seconds,
                "cpu_seconds": done.cpu_seconds,
                "peak_bytes": done.peak_nbytes,
            }
            path = out / ("brain.ome.zarr" if name == "stack" else "even.ome.zarr")
            wrote[name] = digests(path)
            print(f"{way:5s} {name:6s} {done.seconds:7.2f} s {done.cpu_seconds:8.2f} s of cores")
            sys.stdout.flush()
    shutil.rmtree(out)
    return found, wrote


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--slices", type=int, default=60)
    parser.add_argument("--side", type=int, default=1024, help="pixels of a slice's side")
    parser.add_argument("--ways", default="1x1,1x2,1x3", help="which, in their order")
    parser.add_argument("--steps", default="stack,bias", help="which of them")
    parser.add_argument("--folder", type=Path, help="where to work")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    args = parser.parse_args()
    record: dict[str, Any] = {}
    wrong = []
    with workplace("depth-parts", args.folder) as folder:
        write_slices(folder, args.slices, args.side)
        began = time.time()
        first: dict[tuple[bool, str], Any] = {}
        for way in args.ways.split(","):
            record[way], wrote = measure(folder, way, args.steps.split(","))
            for step, files in wrote.items():
                if files != first.setdefault(("x" in way, step), files):
                    wrong.append(f"{step} {way}")
    if args.output:
        shown = {
            "date": time.strftime("%Y-%m-%d", time.gmtime(began)),
            "cores": os.cpu_count(),
            "slices": args.slices,
            "side_px": args.side,
            "ways": record,
        }
        args.output.write_text(json.dumps(shown, indent=1) + "\n")
    if wrong:
        sys.exit(f"files differ from those of the first way: {', '.join(wrong)}")
    print("all ways wrote the same files")


if __name__ == "__main__":
    main()
