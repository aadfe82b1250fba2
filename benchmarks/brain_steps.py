#!/usr/bin/env python
"""Time the steps from slices to brain, as whole processes, on a GPU and on all cores in one run.

Slices are cut from one block of made-up tissue, so that neighbours match as they do in a brain.
Results of pairs in groups are compared with those of all pairs in one process, byte for byte.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from measure import environment, run, workplace  # noqa: E402

VOXEL_UM = 10.0
STEP_PX = 20
PLANES = 44
GROUP = 8


def write_slices(folder: Path, n_slices: int, side_px: int, odd: int = 0) -> None:
    """Write slices 0 … n − 1 of one block, each moved by some pixels that the stage denies.

    One of so many (`odd`) is turned over, so that it matches nowhere.
    """
    import numpy as np
    from scipy.ndimage import uniform_filter

    from linumpy.io.omezarr import create_image
    from linumpy.io.slice_layout import volume_spec

    rng = np.random.default_rng(4)
    shape = (STEP_PX * (n_slices - 1) + PLANES, side_px + 16, side_px + 16)
    scene = rng.normal(size=shape).astype(np.float32)
    for _ in range(2):
        scene = uniform_filter(scene, 3)
    scene /= scene.std()
    for number in range(n_slices):
        first, second = rng.integers(0, 16, 2)
        top = STEP_PX * number
        data = scene[top : top + PLANES, first : first + side_px, second : second + side_px]
        if odd and number % odd == odd - 1:
            data = data[:, ::-1, ::-1]
        noise = rng.normal(size=data.shape).astype(np.float32)
        data = np.exp(0.4 * data + 0.2 * noise)
        described = {
            "kind": "slice", "slice_id": number, "slice_interval_um": STEP_PX * VOXEL_UM,
            "interface_um": 120.0, "stage_to_array": "+x,+y", "nominal_positions": False,
        }  # fmt: skip
        spec = volume_spec(data.shape, (VOXEL_UM,) * 3, (120.0, 500.0, 700.0), described)
        path = folder / f"slices/slice_z{number:02d}.ome.zarr"
        with create_image(path, spec, overwrite=False, with_valid=True) as image:
            assert image.valid is not None
            image.array[...] = data
            assert image.valid is not None
            image.valid[...] = 1
    header = "fixed_id,moving_id,x_shift,y_shift,x_shift_mm,y_shift_mm\n"
    rows = (f"{n},{n + 1},0,0,0,0\n" for n in range(n_slices - 1))
    (folder / "shifts_xy.csv").write_text(header + "".join(rows))


def commands(folder: Path, out: Path, n_slices: int) -> dict[str, list[list[object]]]:
    """Return the command lines of each step; several where it is several tasks."""
    slices, shifts = folder / "slices", folder / "shifts_xy.csv"
    groups = [range(start, min(start + GROUP, n_slices)) for start in range(0, n_slices, GROUP)]

    def script(name: str, *arguments: object) -> list[object]:
        return [sys.executable, HERE.parent / "scripts" / f"linum_{name}.py", *arguments]

    rated = ("assess_slice_quality", slices, "--shifts", shifts, "--output")
    placed = ("register_slices", slices, shifts)
    return {
        "measure_pairs": [
            script("measure_pairs", slices, out / "pairs", "--shifts", shifts, "--ids", *ids)
            for ids in groups
        ],
        "assess_slice_quality": [script(*rated, out / "rated.json", "--pairs", out / "pairs")],
        "register_slices": [script(*placed, out / "placed.json", "--pairs", out / "pairs")],
        "assess_slice_quality, alone": [script(*rated, out / "rated_alone.json")],
        "register_slices, alone": [script(*placed, out / "placed_alone.json")],
        "stack_slices_motor": [
            script("stack_slices_motor", slices, shifts, out / "brain.ome.zarr",
                   "--registration", out / "placed.json", "--output_model", out / "stack.json")
        ],
        "correct_bias_field": [
            script("correct_bias_field", out / "brain.ome.zarr", out / "even.ome.zarr",
                   "--stack_model", out / "stack.json", "--output_model", out / "bias.json")
        ],
    }  # fmt: skip


def measure(folder: Path, device: str, n_slices: int, steps: list[str] | None) -> dict[str, Any]:
    """Run the steps on a device, and compare what pairs in groups and alone give."""
    out = folder / device
    found: dict[str, Any] = {}
    flag = "--use_gpu" if device == "gpu" else "--no-use_gpu"
    for name, lines in commands(folder, out, n_slices).items():
        if steps and name.partition(",")[0] not in steps:
            continue
        done = [
            run([*line, flag], environment(HERE.parent), on_gpu=device == "gpu") for line in lines
        ]
        found[name] = {
            "seconds": sum(one.seconds for one in done),
            "cpu_seconds": sum(one.cpu_seconds for one in done),
            "peak_bytes": max(one.peak_nbytes for one in done),
            "tasks": len(lines),
        }
        print(f"{device}  {name:30s} {found[name]['seconds']:8.2f} s", flush=True)
    for name in ("rated", "placed"):
        one, other = (out / f"{name}{which}.json" for which in ("", "_alone"))
        if one.exists() and other.exists() and one.read_bytes() != other.read_bytes():
            sys.exit(f"{device}: {name} by pairs in groups differs from all pairs in one process")
    return found


def table(record: dict[str, Any], n_pairs: int) -> str:
    """Return seconds and ratios as a table of Markdown."""
    devices = list(record)
    heads = " | ".join(f"{device}, s | of processors" for device in devices)
    lines = [f"| step | {heads} | cores / GPU |", "| --- " * (2 * len(devices) + 2) + "|"]
    for name in record[devices[0]]:
        wall = {d: record[d][name]["seconds"] for d in devices}
        ratio = f"{wall['cpu'] / wall['gpu']:.2f}" if len(wall) == 2 else "–"
        both = [(record[d][name]["seconds"], record[d][name]["cpu_seconds"]) for d in devices]
        cells = " | ".join(f"{all_s:.2f} | {used:.2f}" for all_s, used in both)
        lines.append(f"| {name} | {cells} | {ratio} |")
    for device, steps in record.items():
        if "measure_pairs" in steps:
            each = 1e3 * steps["measure_pairs"]["seconds"] / n_pairs
            lines.append(
                f"\n{device}: {each:.0f} ms a pair, measured and compared, starts included"
            )
    return "\n".join(lines)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--slices", type=int, default=8)
    parser.add_argument("--side", type=int, default=1024, help="pixels of a slice's side")
    parser.add_argument("--devices", default="cpu,gpu", help="which, in their order")
    parser.add_argument("--steps", help="names, separated by commas (default: all)")
    parser.add_argument("--folder", type=Path, help="where to work")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    args = parser.parse_args()
    steps = args.steps.split(",") if args.steps else None
    with workplace("brain-steps", args.folder) as folder:
        write_slices(folder, args.slices, args.side)
        began = time.time()
        record = {
            device: measure(folder, device, args.slices, steps)
            for device in args.devices.split(",")
        }
    print(table(record, 2 * args.slices - 3))
    if args.output:
        shown = {
            "date": time.strftime("%Y-%m-%d", time.gmtime(began)),
            "cores": os.cpu_count(),
            "slices": args.slices,
            "side_px": args.side,
            "steps": record,
        }
        args.output.write_text(json.dumps(shown, indent=1) + "\n")


if __name__ == "__main__":
    main()
