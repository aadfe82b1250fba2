"""Raw tiles of many slices of a given size, of which few are simulated and the others are links.

The tissue repeats along depth after the simulated slices, so that each slice shows what the one
above it shows further down, links too: all neighbours match, as in a real brain.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import physics

_work: list[Callable[[], None]] = []


def _do(number: int) -> None:
    _work[number]()


def _put_deeper(info: Path, deeper_mm: float) -> None:
    """Write a linked header anew, with the stage further down."""
    lines = info.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        key, _, value = line.partition(": ")
        if key == "stage_z_pos_mm":
            lines[number] = f"{key}: {float(value) + deeper_mm:.4f}"
    info.unlink()
    info.write_text("\n".join(lines) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class RawSlices:
    """What to simulate.

    Attributes
    ----------
    preset
        Of the phantom.
    tile_px
        A-lines and B-scans of a tile; None as the preset has them.
    gib
        Size of a slice's raw data, GiB, which sets the number of tiles; None as the preset has it.
    n_distinct, n_slices
        Slices that are simulated, and all: slice k is a link to slice k modulo `n_distinct`.
    seed
        Of the phantom.
    template
        The brain; None takes that of nilearn.
    """

    preset: str
    tile_px: int | None
    gib: float | None
    n_distinct: int
    n_slices: int
    seed: int
    template: Path | None


class _Repeated:
    """The phantom's tissue, the same again after some depth."""

    def __init__(self, anatomy: Any, period_um: float) -> None:
        self._anatomy, self._period_um = anatomy, period_um

    def properties(self, axis2_um: Any, axis1_um: Any, depth_um: Any) -> Any:
        """Return what lies at positions, as `linumpy.phantom.anatomy.Anatomy` does."""
        return self._anatomy.properties(axis2_um, axis1_um, depth_um % self._period_um)


def repeated(scene: Any) -> Any:
    """Return the phantom with tissue and speckle that repeat after its slices.

    Raises
    ------
    ValueError
        When that depth is no whole number of samples, on which speckle lies.
    """
    import numpy as np

    from linumpy.phantom import speckle
    from linumpy.phantom.lattice import white_box

    params = scene.params
    period_um = params.n_slices * params.slice_interval_um
    period = round(period_um / params.axial_um)
    if abs(period * params.axial_um - period_um) > 1e-6:
        raise ValueError(f"{period_um} um: expected a multiple of {params.axial_um} um")

    def box(key: Any, start: Any, shape: Any, components: int) -> Any:
        """Return noise as `white_box` does, piece by piece along depth."""
        parts, at, stop = [], start[2], start[2] + shape[2]
        while at < stop:
            first = at % period
            count = min(stop - at, period - first)
            parts.append(white_box(key, (*start[:2], first), (*shape[:2], count), components))
            at += count
        return np.concatenate(parts, axis=-1)

    speckle.white_box = box
    return replace(scene, anatomy=_Repeated(scene.anatomy, period_um))


def make_raw(raw: Path, wanted: RawSlices) -> str:
    """Make the raw folder on all cores; return a sentence that says what it holds."""
    from linumpy.phantom.params import preset
    from linumpy.phantom.simulate import (
        make_scene,
        slice_folder_name,
        tile_folder_name,
        write_metadata,
        write_state,
        write_tile,
    )

    start = time.perf_counter()
    params = preset(wanted.preset, n_slices=wanted.n_distinct)
    if wanted.tile_px:
        params = replace(params, nx=wanted.tile_px, ny=wanted.tile_px)
    n_tiles = params.tiles_x * params.tiles_y
    if wanted.gib:
        tile_bytes = params.raw_bytes / (n_tiles * wanted.n_distinct)
        side = math.ceil(math.sqrt(wanted.gib * 2**30 / tile_bytes))
        params, n_tiles = replace(params, tiles_x=side, tiles_y=side), side**2
    brain = physics.read_template(wanted.template) if wanted.template else None
    scene, slices = make_scene(params, wanted.seed, brain)
    scene = repeated(scene)
    raw.mkdir(parents=True)
    for plan in slices:
        write_metadata(raw, params, plan)
        tiles = raw / slice_folder_name(plan.slice_id) / "tiles"
        # Processes: threads wait for the interpreter. Forked, they share the scene.
        _work.extend(
            partial(write_tile, tiles / tile_folder_name(plan.slice_id, tile), scene, plan, tile)
            for tile in plan.tiles
        )
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("fork")) as pool:
        list(pool.map(_do, range(len(_work))))
    write_state(raw, [replace(slices[0], slice_id=number) for number in range(wanted.n_slices)])
    for number in range(wanted.n_distinct, wanted.n_slices):
        source = raw / slice_folder_name(number % wanted.n_distinct)
        target = raw / slice_folder_name(number)
        shutil.copytree(source, target, copy_function=os.link)
        old, new = (f"_{path.name.removeprefix('slice_')}" for path in (source, target))
        deeper_mm = (number - number % wanted.n_distinct) * params.slice_interval_um / 1000
        for tile in sorted(target.glob(f"tiles/*{old}")):
            _put_deeper(tile / "info.txt", deeper_mm)
            tile.rename(tile.with_name(tile.name.removesuffix(old) + new))
    size_gib = params.raw_bytes / wanted.n_distinct / 2**30
    return (
        f"simulated {wanted.n_distinct} slices of {size_gib:.2f} "
        f"GiB and {n_tiles} tiles in {time.perf_counter() - start:.0f} s; {wanted.n_slices} in all"
    )
