"""Write a phantom in the order and rhythm of a microscope, with faults at known slices."""

from __future__ import annotations

import json
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.errors import InputError
from linumpy.phantom.anatomy import Template
from linumpy.phantom.cutting import SlicePlan, TilePlan
from linumpy.phantom.fault_flag import TILE_KINDS, Fault
from linumpy.phantom.faults import params_with, plans_with, scene_of_tile
from linumpy.phantom.params import PhantomParams
from linumpy.phantom.simulate import (
    info_text,
    make_scene,
    slice_folder_name,
    tile_folder_name,
    write_metadata,
    write_state,
)
from linumpy.phantom.tile import Scene, image_tile
from linumpy.phantom.truth import describe, write_fields, write_volumes
from linumpy.store.atomic import atomic_path, refuse_existing

LINE_RATE_HZ = 80_000.0
"""As ``line_rate`` of info.txt says."""
MOVE_S = 0.5
CUT_S = 60.0
"""Time of a move of the stage, and of a cut with its way there and back, at speed 1."""
_PIECES = 8
"""Parts in which the samples of a tile reach the disk."""


def write_live(
    output: Path | str,
    params: PhantomParams,
    seed: int = 0,
    *,
    sleep: Callable[[float], object] = time.sleep,
    **options: Any,
) -> Path:
    """Write what `live_files` does, with its options, and wait between files; return the folder."""
    for seconds, _ in live_files(Path(output), params, seed, **options):
        sleep(seconds)
    return Path(output)


def live_files(
    output: Path,
    params: PhantomParams,
    seed: int = 0,
    *,
    speed: float,
    faults: Sequence[Fault] = (),
    headers_last: bool = False,
    overwrite: bool = False,
    threads: int = 2,
    template: Template | None = None,
) -> Iterator[tuple[float, Path | None]]:
    """Write OUTPUT/truth, then OUTPUT/raw tile by tile, each file growing while it is written.

    Parameters
    ----------
    speed
        Times the microscope's own speed. Where imaging takes longer, that is the rhythm.
    faults
        Of slices and tiles; `linumpy.phantom.faults`.
    headers_last
        Whether info.txt is written after the samples; else before them.
    template
        The brain; the MNI152 template when absent.

    Yields
    ------
    seconds, path
        Time to wait before the next step, and the file that was just written; None after a cut.
    """
    if not 0 < speed < float("inf"):
        raise InputError(f"--live {speed:g}: expected a speed above 0, such as 1")
    for part in ("raw", "truth"):
        refuse_existing(output / part, overwrite)
    params = params_with(params, faults)
    scene, slices = plans_with(*make_scene(params, seed, template), faults)
    with atomic_path(output / "truth", overwrite=overwrite, directory=True) as truth:
        told = describe(scene, slices)
        told["faults"] = [{"kind": f.kind, "slice": f.slice_id, "tile": f.tile} for f in faults]
        text = json.dumps(told, indent=1, allow_nan=False)
        (truth / "truth.json").write_text(text + "\n", encoding="utf-8")
        write_fields(truth / "fields.npz", scene)
        write_volumes(truth, scene, slices)
    raw = output / "raw"
    if raw.exists():
        shutil.rmtree(raw)
    raw.mkdir(parents=True)
    write_state(raw, slices)
    jobs = chain.from_iterable(((s, t) for t in s.tiles if t.present) for s in slices)
    pending: deque[tuple[SlicePlan, TilePlan, Future[bytes]]] = deque()
    tile_s = (params.nx + params.n_extra) * params.ny / LINE_RATE_HZ / speed
    last = None
    with ThreadPoolExecutor(threads, thread_name_prefix="phantom") as pool:

        def ask(count: int) -> None:
            for plan, tile in islice(jobs, count):
                pending.append((plan, tile, pool.submit(_samples, scene, plan, tile, faults)))

        ask(2 * threads)
        while pending:
            plan, tile, future = pending.popleft()
            data = future.result()
            ask(1)
            if plan.slice_id != last:
                if last is not None:
                    yield CUT_S / speed, None
                last = plan.slice_id
                write_metadata(raw, params, plan, n_tiles=len(plan.tiles))
            slow = (f.value for f in faults if f.kind == "slow_scan" and f.is_at(plan, tile))
            factor = next(slow, 1.0)
            folder = raw / slice_folder_name(last) / "tiles" / tile_folder_name(last, tile)
            folder.mkdir(parents=True)
            header, text = folder / "info.txt", info_text(params, tile)
            if not headers_last:
                header.write_text(text, encoding="utf-8")
            image = folder / "image_00000.bin"
            with image.open("wb", buffering=0) as stream:
                for piece in np.array_split(np.frombuffer(data, np.uint8), _PIECES):
                    stream.write(piece.tobytes())
                    yield factor * tile_s / _PIECES, image
            if headers_last:
                header.write_text(text, encoding="utf-8")
            yield factor * MOVE_S / speed, header


def _samples(scene: Scene, plan: SlicePlan, tile: TilePlan, faults: Sequence[Fault]) -> bytes:
    """Return the bytes of a tile's samples as its faults leave them."""
    here = {f.kind: f.value for f in faults if f.kind in TILE_KINDS and f.is_at(plan, tile)}
    p = scene.params
    if here.get("dead_tile") == 0:
        return bytes(4 * p.nz * (p.nx + p.n_extra) * p.ny)
    slabs = image_tile(scene_of_tile(scene, plan, tile, faults), plan, tile)
    data = b"".join(slab.astype("<f4", copy=False).tobytes() for slab in slabs)
    return data[: int(here.get("tile_short", 1.0) * len(data))]
