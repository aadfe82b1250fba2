"""Kill a follower again and again while a microscope writes.

``python -m tests.faults.follow_kills --kills N --folder FOLDER`` writes slices whose files grow in
pieces, pause when half written, have their header before or after the samples, and bear times of
another clock. Followers are forked, and killed after random times; the last one runs to its end. A
line of JSON says what is there then.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from linumpy.follow.follow import END, FollowOptions, follow
from linumpy.follow.judge import Judge
from linumpy.follow.live_brain import LiveBrain
from linumpy.follow.state import VERDICTS_NAME
from linumpy.io.info import INFO_NAME
from linumpy.mosaic.grid_options import GridOptions
from linumpy.store.atomic import write_json

REPOSITORY = Path(__file__).parents[2]
PHANTOM = [
    "--preset", "tiny", "--n_slices", "1", "--tiles_x", "2", "--tiles_y", "2", "--nx", "64",
    "--ny", "64", "--jitter_rms_um", "10", "--brain_fill", "0.7", "--seed", "4",
]  # fmt: skip
KEPT = 3
"""Slices whose raw tiles are kept once they have a verdict."""
FAILED = 9


def tiles_of(folder: Path) -> list[Path]:
    return sorted((folder / "slice_z00" / "tiles").iterdir())


def judged(results: Path) -> int:
    path = results / VERDICTS_NAME
    return path.read_bytes().count(b"\n") if path.exists() else 0


def write_file(path: Path, data: bytes, rng: random.Random) -> None:
    """Write a file in pieces, now and then with a pause longer than files take to settle."""
    n_pieces = rng.randint(1, 5)
    size = -(-len(data) // n_pieces)
    with path.open("wb", buffering=0) as stream:
        for start in range(0, len(data), size):
            stream.write(data[start : start + size])
            off_s = rng.uniform(-86400, 86400)
            os.utime(path, (time.time() + off_s,) * 2)
            time.sleep(2.5 if rng.random() < 0.02 else rng.uniform(0, 0.02))


def microscope(source: Path, folder: Path, seed: int) -> None:
    """Write slice after slice, two ahead of the verdicts, until there are enough."""
    rng = random.Random(seed)
    raw, results = folder / "raw", folder / "results"
    slice_id = 0
    while True:
        while slice_id > judged(results) + 1:
            time.sleep(0.02)
        top = raw / f"slice_z{slice_id:02d}"
        top.mkdir(parents=True)
        shutil.copyfile(source / "slice_z00" / "metadata.json", top / "metadata.json")
        for tile in tiles_of(source):
            place = top / "tiles" / f"{tile.name[:-2]}{slice_id:02d}"
            place.mkdir(parents=True)
            files = sorted(tile.iterdir(), key=lambda p: p.name != INFO_NAME)
            for path in files if rng.random() < 0.5 else reversed(files):
                write_file(place / path.name, path.read_bytes(), rng)
        if slice_id >= KEPT and judged(results) > slice_id - KEPT:
            shutil.rmtree(raw / f"slice_z{slice_id - KEPT:02d}", ignore_errors=True)
        if (folder / "enough").exists():
            write_json(raw / "state.json", {"z_min": 0, "z_max": slice_id})
            return
        slice_id += 1


class CheckedJudge(Judge):
    """Ends the process when it is given a tile that is not whole."""

    source: Path

    def judge(self, found, history, last_id):
        wanted = {path.name[:-3]: path for path in tiles_of(self.source)}
        for tile in found.tiles:
            for path in wanted[tile.path.name[:-3]].iterdir():
                if (tile.path / path.name).read_bytes() != path.read_bytes():
                    os._exit(FAILED)
        return super().judge(found, history, last_id)


def follower(source: Path, folder: Path) -> None:
    """Follow to the end; exit with 0 when it is that of the acquisition."""
    results = folder / "results"
    judge = CheckedJudge(folder / "raw", results, GridOptions())
    judge.source = source
    brain = LiveBrain(results, judge.volume_of)

    def grow(lines):
        brain.grow(lines)
        judge.learn_again(lines)

    end = follow(
        folder / "raw", results, judge, FollowOptions(poll_s=0.02, quiet_s=300, idle_s=120),
        tell=lambda _: None, grow=grow,
    )  # fmt: skip
    os._exit(0 if end == END else FAILED)


def fork(work, *arguments) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work(*arguments)
        except BaseException as error:
            sys.stderr.write(f"{error!r}\n")
            os._exit(FAILED)
        os._exit(0)
    return pid


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--folder", type=Path, required=True)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    folder, source = args.folder, args.folder / "source" / "raw"
    command = [sys.executable, REPOSITORY / "scripts" / "linum_phantom.py", folder / "source"]
    subprocess.run([*command, *PHANTOM, "--live", "1e6"], check=True, stdout=subprocess.DEVNULL)
    writing = fork(microscope, source, folder, args.seed)
    # How long a slice takes here, the first one with its models apart.
    first = fork(follower, source, folder)
    while judged(folder / "results") < 1:
        time.sleep(0.01)
    start = time.monotonic()
    while judged(folder / "results") < 2:
        time.sleep(0.01)
    slice_s = time.monotonic() - start
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    statuses = []
    for _ in range(args.kills - 1):
        pid = fork(follower, source, folder)
        time.sleep(rng.uniform(0, 2 * slice_s))
        os.kill(pid, rng.choice((signal.SIGKILL, signal.SIGTERM)))
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    (folder / "enough").touch()
    last = os.waitstatus_to_exitcode(os.waitpid(fork(follower, source, folder), 0)[1])
    written = os.waitstatus_to_exitcode(os.waitpid(writing, 0)[1])
    results = folder / "results"
    lines = [json.loads(line) for line in (results / VERDICTS_NAME).read_bytes().splitlines()]
    kinds = {reason["kind"] for line in lines for reason in line["reasons"]}
    told = {
        "seed": args.seed, "kills": len(statuses) + 1, "statuses": sorted(set(statuses)),
        "last": last, "written": written, "slices": [line["slice"] for line in lines],
        "z_max": json.loads((folder / "raw" / "state.json").read_text())["z_max"],
        "n_tiles": sorted({line["n_tiles"] for line in lines}), "kinds": sorted(kinds),
        "brain": [p.slice_id for p in LiveBrain(results, None).slices()],
        "left": sorted(p.name for p in results.iterdir() if p.name.startswith(".live")),
        "slice_s": round(slice_s, 2),
    }  # fmt: skip
    print(json.dumps(told))


if __name__ == "__main__":
    main()
