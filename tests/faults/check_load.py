"""Load: 10,000 tiles in one grid, 64 processes on two devices. Slow; run by `make test-faults`.

That work grows as the tiles do is told by counted operations, in `test_load.py`.
"""

from __future__ import annotations

import json
import random
import signal
import time

import numpy as np
import pytest

from linumpy.core.leases.lease import PARTS, take
from linumpy.io.omezarr import open_image

from ..core.test_lease import GIB, TWO, Ask, events, most_at_once, start
from . import load

MIB = 1 << 20
FEW, MANY = 400, 10000
NOISE_NBYTES = 24 * MIB
"""What allocators and caches move about by; a tile is 8 KiB, all tiles are 80 MiB."""

KEPT_NBYTES = {"register": 5 << 10, "stitch": 10 << 10}
"""A tile: its picture of 1 KiB and the correlations of two pairs stay until all are solved; and a
store remembers where each tile is."""

PATIENCE_S = 3000
"""Of a process that waits for a device: none is left waiting for ever."""

STEPS = ("write", "aip", "copy", "register", "stitch")


@pytest.fixture(scope="module")
def records(made_once):
    """Every step, with few tiles and with many, each in a process of its own."""

    def make(folder):
        for n in (FEW, MANY):
            part = folder / str(n)
            part.mkdir()
            path = part / "mosaic_grid_3d_z00.ome.zarr"
            found = {step: load.in_child(step, path, n) for step in STEPS}
            (part / "records.json").write_text(json.dumps(found), encoding="utf-8")

    folder = made_once("load", make)
    return {
        n: {**json.loads((folder / str(n) / "records.json").read_text()), "folder": folder / str(n)}
        for n in (FEW, MANY)
    }


@pytest.mark.parametrize("step", STEPS)
def test_memory_is_flat_while_ten_thousand_tiles_pass(records, step):
    """The last quarter of the loop against its second.

    Seen to fail with a writer that keeps its tiles.
    """
    record = records[MANY][step]
    grown = load.growth(record["resident"])
    few, many = (max(records[n][step]["resident"]) / MIB for n in (FEW, MANY))
    print(
        f"{step}: {record['loop_s']:.1f} s, grown by {grown / MIB:.1f} MiB, peaks {few:.0f} and "
        f"{many:.0f} MiB, at most {record['files']} files open"
    )
    # From the middle of the second quarter to that of the last.
    assert grown < NOISE_NBYTES + KEPT_NBYTES.get(step, 0) * MANY * 5 // 8


@pytest.mark.parametrize("step", STEPS)
def test_open_files_do_not_grow_with_the_tiles(records, step):
    """Seen to fail with files left open whose digests were read."""
    few, many = (records[n][step]["files"] for n in (FEW, MANY))
    assert many <= few + 20 and many < 60
    assert records[MANY][step]["threads"] < 40


def test_ten_thousand_tiles_come_through_right(records):
    """Seen to fail with rows and columns exchanged where a tile is read."""
    folder = records[MANY]["folder"]
    image = np.load(folder / "aip.npy")
    for key in ((0, 0), (99, 99), (57, 3), (4, 81)):
        rows, columns = (slice(16 * k, 16 * k + 16) for k in key)
        np.testing.assert_allclose(image[rows, columns], load.tile_of(key)[0], rtol=1e-6)
    assert json.loads((folder / "register.json").read_text()) == 2 * 100 * 99
    brain = open_image(folder / "slice.ome.zarr")
    side = 99 * load.STEP_PX + load.TILE[1]
    assert brain.array.shape == (8, side, side)
    assert np.asarray(brain.valid[:1]).all()
    for i, j in ((0, 0), (1199, 1199), (700, 41)):
        key = (min(i // load.STEP_PX, 99), min(j // load.STEP_PX, 99))
        at = load.tile_of(key)[0, i - key[0] * load.STEP_PX, j - key[1] * load.STEP_PX]
        assert abs(float(brain.array[3, i, j]) - at) < 1e-4


def test_sixty_four_processes_share_two_devices(tmp_path):
    """Some are killed while they hold, some while they wait; all others are served.

    Seen to fail with a lease that does not look at what the others hold.
    """
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    choose = random.Random(seed)
    folder, log = tmp_path / "lease", tmp_path / "log"
    kinds = [{"tasks": 4}, {"tasks": 6}, {"tasks": 1}, {"memory_bytes": 30 * GIB}]
    asks = [{**choose.choice(kinds), "wait_s": PATIENCE_S} for _ in range(64)]
    processes = [start(folder, log, choose.choice([0.0, 0.05, 0.3]), ask) for ask in asks]
    killed = set()
    most_files = 0
    while any(p.poll() is None for p in processes):
        if folder.is_dir():
            most_files = max(most_files, len(list(folder.iterdir())))
        if len(killed) < 12 and choose.random() < 0.2:
            victim = choose.choice(processes)
            if victim.poll() is None:
                victim.send_signal(signal.SIGKILL)
                killed.add(victim.pid)
        time.sleep(0.02)
    for process in processes:
        _, said = process.communicate()
        expected = (0, -signal.SIGKILL) if process.pid in killed else (0,)
        assert process.returncode in expected, f"seed {seed}: {said}"
    found = events(log)
    # One that is killed tells no end: from then on it holds nothing.
    ended = {pid for _, what, pid, _ in found if what == "end"}
    served = {pid for _, what, pid, _ in found if what == "begin"}
    assert {p.pid for p in processes} - killed <= served & ended, f"seed {seed}"
    whole = tmp_path / "whole"
    whole.write_text("".join(json.dumps(line) + "\n" for line in found if line[2] in ended))
    parts = most_at_once(whole)
    assert parts and max(parts.values()) <= PARTS, f"seed {seed}: {parts}"
    # A file a process that asks, the lock, and one that is being made.
    assert most_files <= 64 + 2
    with take(Ask(wait_s=0), TWO, folder), take(Ask(wait_s=0), TWO, folder):
        assert len(list(folder.glob("task.*"))) == 2
