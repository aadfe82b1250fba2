"""Grids of many tiny tiles, and the resources of a process that works on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
TILE = (8, 16, 16)
STEP_PX = 12

STORE_NBYTES = 8 << 20
"""For tiles that wait to be stitched: a tenth of all."""

# Works on a grid and says, as its last line, what it took: samples of memory and of open files.
CHILD = """
import json, sys
from tests.faults.load import Watch, work
step, path, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Watch() as watch:
    work(step, path, n, watch)
print(json.dumps(watch.record()))
"""


def open_files():
    """How many files, sockets and the like the process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


class Watch:
    """Samples the process's memory and open files while a block runs."""

    def __init__(self, every_s=0.02):
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.phase = ""
        self.samples = []

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _run(self):
        page = os.sysconf("SC_PAGE_SIZE")
        while not self._stop.wait(self._every_s):
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * page
            self.samples.append((self.phase, time.monotonic(), resident, open_files()))

    def record(self):
        return {
            "samples": self.samples,
            "threads": threading.active_count(),
            "open_files": open_files(),
        }


def grid_of(n):
    """A grid of `n` tiles of 16 x 16 pixels, a quarter of a side of them over each other."""
    from linumpy.io.grid import GridInfo, GridTile

    rows = int(n**0.5)
    tiles = tuple(
        GridTile(
            i, j, (i * STEP_PX + TILE[1] / 2) / 100, (j * STEP_PX + TILE[2] / 2) / 100,
            flags=("dark",) if (i + j) % 7 == 0 else (),
        )
        for i in range(rows) for j in range(-(-n // rows))
    )[:n]  # fmt: skip
    return GridInfo(
        slice_id=0, tile_shape_px=TILE, voxel_um=(10.0,) * 3, overlap_fraction=0.25, tiles=tiles,
        tile_fov_um=(160.0, 160.0), slice_interval_um=200.0,
    )  # fmt: skip


def tile_of(key):
    """What a tile shows: a value of its own place, and a texture."""
    i, j = np.ogrid[: TILE[1], : TILE[2]]
    at = (key[0] * STEP_PX + i) * 0.37 + (key[1] * STEP_PX + j) * 0.61
    plane = 10 + 3 * np.sin(at) + 2 * np.sin(1.7 * at + (key[0] * STEP_PX + i) * 0.9)
    return np.repeat(plane[None], TILE[0], axis=0).astype(np.float32)


def work(step, path, n, watch):
    """Do one step on a grid of `n` tiles at `path`."""
    from linumpy.core.device import CPU
    from linumpy.io.grid import create_grid
    from linumpy.quality.motor_only import stage_positions
    from linumpy.slices.aip import project_grid
    from linumpy.slices.block_stages import StitchedSource
    from linumpy.slices.engine import run
    from linumpy.slices.grid_io import GridSink, GridSource, SliceSink
    from linumpy.slices.register_stage import RegisterTiles
    from linumpy.slices.store import TileStore
    from linumpy.slices.tile_stages import ResampleMosaicGrid
    from linumpy.stage_params.slices import ResampleParams, StitchParams

    path = Path(path)
    if step == "write":
        info = grid_of(n)
        watch.phase = "write"
        with create_grid(path, info, overwrite=False) as writer:
            for t in info.tiles:
                writer.write_tile(t.ix, t.iy, tile_of((t.ix, t.iy)))
            watch.phase = ""
            writer.update_flags({(t.ix, t.iy): (*t.flags, "seen") for t in info.tiles})
        return
    source = GridSource.open(path)
    watch.phase = step
    if step == "aip":
        np.save(path.parent / "aip.npy", project_grid(source, CPU).image)
    elif step == "copy":
        with GridSink(path.parent / "copy.ome.zarr", overwrite=True) as sink:
            run([ResampleMosaicGrid(ResampleParams(resolution_um=-1))], source, [sink])
    elif step == "register":
        stage = RegisterTiles()
        run([stage], source)
        watch.phase = ""
        (path.parent / "register.json").write_text(json.dumps(len(stage.model.pairs)))
    elif step == "stitch":
        positions = stage_positions(source.layout)
        with (
            TileStore(STORE_NBYTES, fetch=source.read) as tiles,
            SliceSink(path.parent / "slice.ome.zarr", overwrite=True) as sink,
        ):
            run([], StitchedSource(tiles, source.layout, positions, StitchParams()), [sink])
    watch.phase = ""


def in_child(step, path, n):
    """Do a step in a process of its own; answers what it took, and the seconds of its loop."""
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", CHILD, step, str(path), str(n)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "LINUMPY_LOG": "error"},
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    record = json.loads(done.stdout.splitlines()[-1])
    record["wall_s"] = time.monotonic() - start
    during = [s for s in record["samples"] if s[0] == step]
    record["resident"] = [s[2] for s in during]
    record["files"] = max(s[3] for s in record["samples"])
    record["loop_s"] = during[-1][1] - during[0][1]
    return record


def growth(resident):
    """Return by how much the memory of a loop's last quarter exceeds that of its second."""
    quarter = len(resident) // 4
    assert quarter >= 5, f"{len(resident)} samples are too few to tell"
    second, last = resident[quarter : 2 * quarter], resident[-quarter:]
    return float(np.median(last) - np.median(second))
