#!/usr/bin/env python
"""Learn an acquisition's models: in lanes, slice by slice, and with another version of linumpy.

One command makes a raw slice, lets it stand for so many, and learns from them with the script as it
is, with one lane, and with the library in a folder named by ``--before``. It prints seconds and at
which steps they were spent, and exits with 1 where lanes change a bit of a model.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
# Run from a checkout, linumpy need not be installed.
sys.path[:0] = [str(ROOT)]

import measure  # noqa: E402
from measure import Measured, workplace  # noqa: E402
from stage_times import make_raw  # noqa: E402
from stages import apart, count_tiles  # noqa: E402

MEMORY = Path("/dev/shm")
ONE_BY_ONE = """
import sys
from pathlib import Path
from linumpy.core.device import resolve
from linumpy.slices.learn_models import learn_models
from linumpy.slices.raw_source import raw_inputs
from linumpy.stage_params.slices import LearnParams, SliceParams
raw, output, tiles, gpu = sys.argv[1:]
models = learn_models(
    raw_inputs(Path(raw)), SliceParams.from_values({}), LearnParams(int(tiles)),
    device=resolve(gpu == "gpu"), lanes=1,
)
models.save(Path(output))
"""


def link_slices(raw: Path, count: int) -> None:
    """Let the first slice stand for so many: tiles are links to its own."""
    first = raw / "slice_z01"
    for number in range(2, count + 1):
        other = raw / f"slice_z{number:02d}"
        (other / "tiles").mkdir(parents=True)
        (other / "metadata.json").write_bytes((first / "metadata.json").read_bytes())
        for tile in (first / "tiles").iterdir():
            (other / "tiles" / f"{tile.name[:-2]}{number:02d}").symlink_to(tile)


def digest(folder: Path) -> str:
    """Return a digest of the arrays of all models."""
    import numpy as np

    found = hashlib.sha256()
    for path in sorted(folder.glob("*.npz")):
        with np.load(path, allow_pickle=False) as arrays:
            for name in sorted(arrays):
                found.update(f"{path.name} {name}".encode() + arrays[name].tobytes())
    return found.hexdigest()


def learn(args: argparse.Namespace, work: Path, tiles: int, way: str) -> tuple[Measured, str]:
    """Learn from so many tiles; return how it went and a digest of the models."""
    root = args.before.resolve() if way == "before" else ROOT
    output = work / f"models-{way}-{tiles}"
    if way == "one lane":
        words = ["-c", ONE_BY_ONE, work / "raw", output, tiles, args.device]
    else:
        words = [root / "scripts" / "linum_learn_models.py", "--output", output]
        words += ["--from_root_directory", work / "raw", "--learn_max_tiles", tiles]
        words += ["--use_gpu"] if args.device == "gpu" else []
    environment = measure.environment(root, LINUMPY_LEASE_DIR=str(work / "lease"))
    measured = measure.run([sys.executable, *words], environment, on_gpu=args.device == "gpu")
    return measured, apart(digest, output)


def measure_all(args: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Return a record of all ways to learn."""
    n_tiles = apart(count_tiles, args.size)
    nbytes = apart(make_raw, work / "raw", args.size, n_tiles)
    link_slices(work / "raw", args.slices)
    record: dict[str, Any] = {
        "slices": args.slices,
        "tiles_a_slice": n_tiles,
        "slice_nbytes": nbytes,
        "cores": len(os.sched_getaffinity(0)),
        "device": args.device,
        "runs": [],
    }
    first, *more = args.tiles
    # Kernels are compiled once a machine.
    for way, tiles in [
        ("first use", 2),
        *((way, first) for way in ("lanes", *args.ways)),
        *(("lanes", tiles) for tiles in more),
    ]:
        try:
            found, bits = learn(args, work, tiles, way)
        except measure.Failed as error:
            print(f"{way}, {tiles} tiles: {error}", flush=True)
            record["runs"].append({"way": way, "tiles": tiles, "failed": str(error)})
            continue
        spent = {name: round(value, 2) for name, value in measure.phases(found).items()}
        steps = {
            step: round(own["covered_s"], 2) for step, own in measure.where_time_went(found).items()
        }
        record["runs"].append(
            {
                "way": way,
                "tiles": tiles,
                "seconds": round(found.seconds, 2),
                "cpu_seconds": round(found.cpu_seconds, 2),
                "phases": spent,
                "steps": steps,
                "device_nbytes": found.device_nbytes,
                "host_nbytes": found.peak_nbytes,
                "bits": bits,
            }
        )
        print(f"{way}, {tiles} tiles: {found.seconds:.2f} s, {spent}, {steps}", flush=True)
        if args.output:
            args.output.write_text(json.dumps(record, indent=1) + "\n")
    return record


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--size", type=float, default=4.0, help="GiB of a slice, as float32")
    parser.add_argument("--slices", type=int, default=25)
    parser.add_argument(
        "--tiles", type=int, nargs="+", default=[128], help="to learn from; other ways: the first"
    )
    parser.add_argument(
        "--before", type=Path, help="folder of another version: linumpy/ and scripts/"
    )
    parser.add_argument("--folder", type=Path, default=MEMORY, help="for files")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    return parser


def main() -> None:
    """Measure."""
    args = build_parser().parse_args()
    args.ways = ("one lane", "before") if args.before else ("one lane",)
    with workplace("learning", args.folder) as work:
        record = measure_all(args, work)
    bits = {run["way"]: run.get("bits") for run in reversed(record["runs"])}
    same = bits["lanes"] is not None and bits["lanes"] == bits["one lane"]
    print("same bits in lanes and one by one" if same else "lanes change bits, or failed")
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
