"""Write a phantom in the order and rhythm of a microscope, with faults at known slices."""

from __future__ import annotations

import json
import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path

import numpy as np

from linumpy.core.errors import InputError
from linumpy.phantom.anatomy import Template
from linumpy.phantom.cutting import SlicePlan, TilePlan
from linumpy.phantom.faults import (
    SHORT_SHARE,
    SLOW_FACTOR,
    Fault,
    params_with,
    plans_with,
    scene_of_tile,
)
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
    speed: float,
    faults: Sequence[Fault] = (),
    headers_last: bool = False,
    overwrite: bool = False,
    threads: int = 2,
    template: Template | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> Path:
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
    sleep
        Waits so many seconds.

    Returns
    -------
    Path
        The output folder.
    """
    if not 0 < speed < float("inf"):
        raise InputError(f"--live {speed:g}: expected a speed above 0, such as 1")
    output = Path(output)
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
                    sleep(CUT_S / speed)
                last = plan.slice_id
                write_metadata(raw, params, plan, n_tiles=len(plan.tiles))
            slow = any(f.kind == "slow_scan" and f.is_at(plan, tile) for f in faults)
            factor = SLOW_FACTOR if slow else 1.0
            folder = raw / slice_folder_name(last) / "tiles" / tile_folder_name(last, tile)
            folder.mkdir(parents=True)
            header, text = folder / "info.txt", info_text(params, tile)
            if not headers_last:
                header.write_text(text, encoding="utf-8")
            with (folder / "image_00000.bin").open("wb", buffering=0) as stream:
                for piece in np.array_split(np.frombuffer(data, np.uint8), _PIECES):
                    stream.write(piece.tobytes())
                    sleep(factor * tile_s / _PIECES)
            if headers_last:
                header.write_text(text, encoding="utf-8")
            sleep(factor * MOVE_S / speed)
    return output


def _samples(scene: Scene, plan: SlicePlan, tile: TilePlan, faults: Sequence[Fault]) -> bytes:
    """Return the bytes of a tile's samples as its faults leave them."""
    kinds = {f.kind for f in faults if f.is_at(plan, tile)}
    p = scene.params
    if "dead_tile" in kinds:
        return bytes(4 * p.nz * (p.nx + p.n_extra) * p.ny)
    slabs = image_tile(scene_of_tile(scene, plan, tile, faults), plan, tile)
    data = b"".join(slab.astype("<f4", copy=False).tobytes() for slab in slabs)
    return data[: int(SHORT_SHARE * len(data))] if "tile_short" in kinds else data
