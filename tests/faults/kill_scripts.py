"""Kill scripts at random moments: ``python -m tests.faults.kill_scripts --kills 500``.

Every script runs in a process of its own, forked from this one, which has imported all that they
need and started no thread; so one costs no start-up. Half of the moments are of the clock, the
others the n-th call that makes, renames, removes or synchronises a file: what ends a run takes
little of its time. A line of JSON for each tells what was found; nothing is judged here.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import random
import runpy
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.kill_points import meet_at

SCRIPTS = Path(__file__).parents[2] / "scripts"
SHARE_OF_TERM = 0.25
SHARE_OF_CLOCK = 0.5
MICRO = ("--preset", "tiny", "--n_slices", "2", "--tiles_x", "2", "--tiles_y", "2")
HEAVY = (
    *("numpy", "scipy.ndimage", "scipy.fft", "scipy.optimize", "scipy.sparse.linalg", "PIL.Image"),
    *("zarr", "zarrs", "zarr.codecs", "linumpy.store.guarded_pipeline", "linumpy.cli"),
    *("linumpy.slices.reconstruct_slice", "linumpy.brain.output", "linumpy.slices.aip_output"),
    *("linumpy.mosaic.create_mosaic_grid_3d", "linumpy.mosaic.raw_tiles", "linumpy.io.previews"),
    "linumpy.slices.learn_models",
)


@dataclass(frozen=True)
class Job:
    """A script with its inputs and outputs, as names in a folder.

    The main output comes first; pictures, which are made from it, come last and after it. `old`
    are the arguments of another run, whose outputs are there when it is to overwrite.
    """

    script: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    pictures: tuple[str, ...]
    arguments: tuple[str, ...]
    old: tuple[str, ...]


def _grid(name: str, slice_id: int) -> tuple[str, ...]:
    return ("--from_root_directory", "phantom/raw", "--slice", str(slice_id), name)


def _slice(name: str, folder: str, grid: str) -> tuple[str, ...]:
    more = ("--models", "models", "--output_models", f"{folder}/models")
    pictures = ("--aip", f"{folder}/aip.png", "--preview", f"{folder}/preview.png")
    return (f"grids/mosaic_grid_3d_z0{grid}.ome.zarr", name, *more, *pictures)


JOBS = {
    "grid": Job(
        "create_mosaic_grid_3d",
        ("phantom/raw",),
        ("out/grid.ome.zarr",),
        (),
        _grid("out/grid.ome.zarr", 1),
        _grid("out/grid.ome.zarr", 0),
    ),
    "aip": Job(
        "aip",
        ("grids",),
        ("out/aip.ome.zarr",),
        (),
        ("grids/mosaic_grid_3d_z01.ome.zarr", "out/aip.ome.zarr"),
        ("grids/mosaic_grid_3d_z00.ome.zarr", "out/aip.ome.zarr"),
    ),
    "slice": Job(
        "reconstruct_slice",
        ("grids", "models"),
        ("out/slice.ome.zarr", "out/models"),
        ("out/aip.png", "out/preview.png"),
        _slice("out/slice.ome.zarr", "out", "1"),
        _slice("out/slice.ome.zarr", "out", "0"),
    ),
    "brain": Job(
        "stack_slices_motor",
        ("slices", "shifts_xy.csv"),
        ("out/brain.ome.zarr", "out/model.json", "out/matches.csv"),
        (),
        (
            *("slices", "shifts_xy.csv", "out/brain.ome.zarr", "--output_model", "out/model.json"),
            *("--z_matches", "out/matches.csv"),
        ),
        (
            *("slices", "shifts_xy.csv", "out/brain.ome.zarr", "--output_model", "out/model.json"),
            *("--z_matches", "out/matches.csv", "--no-stack_blend_enabled"),
        ),
    ),
}


def begin(script: str, arguments: Sequence[str], before: Callable[[], Any] | None = None) -> int:
    """Start a script in a process of its own; returns its id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        # What this process is to do at its end is not the child's.
        atexit._clear()
        path = SCRIPTS / f"linum_{script}.py"
        log = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.argv = [str(path), *arguments]
        if before is not None:
            before()
        try:
            runpy.run_path(str(path), run_name="__main__")
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
        # As at the end of any Python: threads are waited for, then what was left is done.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def end(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def must(script: str, *arguments: str) -> None:
    if end(begin(script, arguments)):
        raise RuntimeError(f"{script}: {Path('log.txt').read_text()}")


def content(paths: Iterable[str]) -> dict[str, int]:
    """Return checksums of files as they are, by path."""
    found = {}
    for name in paths:
        path = Path(name)
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.is_file():
                found[str(file)] = zlib.crc32(file.read_bytes())
    return found


def meaning(path: Path) -> Any:
    """Return what an output says: nothing, or checksums of its arrays, metadata and files.

    A shard's chunks lie in it in the order in which threads were done with them, an NPZ file knows
    the time, and a manifest the bytes: those are compared by what they hold.
    """
    import numpy as np

    if not path.exists():
        return None
    if path.name.endswith(".zarr"):
        # Read in a process of its own: this one is to have no threads.
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                told = json.dumps(_meaning_of_zarr(path))
            except BaseException as error:
                told = json.dumps(f"torn: {error!r}")
            os.write(writer, told.encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as file:
            told = file.read()
        end(child)
        return json.loads(told)
    if path.is_dir():
        return {p.name: meaning(p) for p in sorted(path.iterdir()) if not p.name.startswith(".")}
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return {name: zlib.crc32(arrays[name].tobytes()) for name in arrays.files}
    return zlib.crc32(path.read_bytes())


def _meaning_of_zarr(path: Path) -> dict[str, Any]:
    import zarr

    from linumpy.io.zarr_io import zarr_context
    from linumpy.store.verify import verify

    problems = verify(path, deep=True)
    if problems:
        raise ValueError("; ".join(problems))
    found: dict[str, Any] = {}
    with zarr_context():
        for file in sorted(path.rglob("zarr.json")):
            metadata = json.loads(file.read_text())
            metadata.get("attributes", {}).get("linumpy", {}).pop("manifest", None)
            name = str(file.parent.relative_to(path))
            found[f"{name}/zarr.json"] = zlib.crc32(json.dumps(metadata).encode())
            if metadata["node_type"] == "array":
                found[name] = zlib.crc32(zarr.open_array(file.parent, mode="r")[...].tobytes())
    return found


def hidden() -> list[str]:
    return sorted(str(p) for p in Path("out").rglob(".*"))


def clear() -> None:
    shutil.rmtree("out", ignore_errors=True)
    Path("out").mkdir()


class Reference:
    """What a job's outputs are, from runs that nobody disturbed, and how long such a run is."""

    def __init__(self, job: Job) -> None:
        self.job = job
        clear()
        must(job.script, *job.old)
        shutil.copytree("out", f"old_{job.script}", dirs_exist_ok=True)
        self.old = self.outputs()
        clear()
        start = time.monotonic()
        must(job.script, *job.arguments)
        self.seconds = time.monotonic() - start
        self.new = self.outputs()
        self.inputs = content(job.inputs)
        if self.old[0] == self.new[0] or "torn" in f"{self.old}{self.new}":
            raise RuntimeError(f"{job}: {self.old}, {self.new}")
        self.n_calls = self._count()

    def outputs(self) -> list[Any]:
        return [meaning(Path(name)) for name in (*self.job.outputs, *self.job.pictures)]

    def _count(self) -> int:
        """Return how many calls a run makes that change or synchronise files."""
        n = 256
        while True:
            clear()
            if end(begin(self.job.script, self.job.arguments, lambda n=n: meet_at(n, "kill"))) == 0:
                break
            n *= 2
        low, high = 0, n
        while high - low > max(1, low // 50):
            middle = (low + high) // 2
            clear()
            status = end(
                begin(self.job.script, self.job.arguments, lambda m=middle: meet_at(m, "kill"))
            )
            low, high = (low, middle) if status == 0 else (middle, high)
        return high

    def prepare(self, overwrite: bool) -> None:
        clear()
        if overwrite:
            shutil.copytree(f"old_{self.job.script}", "out", dirs_exist_ok=True)

    def look(self) -> list[str]:
        """Say of each output whether it is absent, the old one, the new one, or something else."""
        said = []
        for found, old, new in zip(self.outputs(), self.old, self.new, strict=True):
            kinds = {"new": new, "old": old, "absent": None}
            name = next((k for k, value in kinds.items() if found == value), None)
            # A folder of models is filled file by file.
            if name is None and isinstance(found, dict) and isinstance(new, dict):
                whole = all(found[k] in (old.get(k), new.get(k)) for k in found)
                name = "mixed" if whole else None
            said.append(name or f"torn: {found}")
        return said


def strike(reference: Reference, rng: random.Random) -> dict[str, Any]:
    """Run a job, end it by a signal at a random moment, look, and run it again."""
    job, overwrite = reference.job, rng.random() < 0.5
    number = signal.SIGTERM if rng.random() < SHARE_OF_TERM else signal.SIGKILL
    by_clock = rng.random() < SHARE_OF_CLOCK
    moment = rng.random() * reference.seconds if by_clock else rng.randint(1, reference.n_calls)
    reference.prepare(overwrite)
    arguments = [*job.arguments, *(["--overwrite"] if overwrite else [])]
    fault = "stop" if number == signal.SIGTERM else "kill"
    child = begin(job.script, arguments, None if by_clock else lambda: meet_at(int(moment), fault))
    if by_clock:
        time.sleep(moment)
        with suppress(ProcessLookupError):
            os.kill(child, number)
    found = {
        "script": job.script,
        "signal": number.name,
        "overwrite": overwrite,
        "moment": f"{moment:.3f} s" if by_clock else f"call {moment} of {reference.n_calls}",
        "status": end(child),
        "then": reference.look(),
        "pictures": len(job.pictures),
        "left": hidden(),
        "inputs": content(job.inputs) == reference.inputs,
    }
    # What was made beside the main output may be there, and need not be told to go.
    may_exist = overwrite or set(found["then"]) != {"absent"}
    arguments = [*job.arguments, *(["--overwrite"] if may_exist else [])]
    found["again"] = end(begin(job.script, arguments))
    found.update(after=reference.look(), hidden=hidden())
    found["inputs"] &= content(job.inputs) == reference.inputs
    if found["again"]:
        found["log"] = Path("log.txt").read_text()[-2000:]
    return found


def make_inputs(seed: int) -> None:
    """Make what the jobs start from: raw tiles, grids, models, slices and shifts."""
    must("phantom", "phantom", *MICRO, "--seed", str(seed))
    for i in "01":
        must("create_mosaic_grid_3d", *_grid(f"grids/mosaic_grid_3d_z0{i}.ome.zarr", int(i)))
    grids = [f"grids/mosaic_grid_3d_z0{i}.ome.zarr" for i in "01"]
    must("learn_models", *grids, "--output", "models")
    for i in "01":
        must(
            "reconstruct_slice", grids[int(i)], f"slices/slice_z0{i}.ome.zarr", "--models", "models"
        )
    must("estimate_xy_shift_from_metadata", "phantom/raw", "shifts_xy.csv")


def campaign(kills: int, seed: int, jobs: Mapping[str, Job], tell: Callable[[Any], None]) -> None:
    """Strike until so many runs were ended by a signal."""
    rng = random.Random(seed)
    make_inputs(seed % 100)
    references = [Reference(job) for job in jobs.values()]
    for each in references:
        tell({"script": each.job.script, "seconds": each.seconds, "calls": each.n_calls})
    done = 0
    while done < kills:
        # As many of each: the long ones leave more.
        found = strike(references[done % len(references)], rng)
        done += found["status"] != 0
        tell({"n": done, **found})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 10**6)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    for name in HEAVY:
        __import__(name)
    folder = tempfile.mkdtemp(dir=args.folder, prefix="kills-")
    try:
        os.chdir(folder)
        print(json.dumps({"seed": args.seed}), flush=True)
        campaign(args.kills, args.seed, JOBS, lambda line: print(json.dumps(line), flush=True))
    finally:
        os.chdir("/")
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
