"""Faults of a simulated acquisition at a known slice: in its parameters, faces, tiles and files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from linumpy.phantom.artefacts import BUBBLE_AMPLITUDE, BUBBLE_TRANSMISSION, Artefact
from linumpy.phantom.cutting import FACE_STEP_UM, SlicePlan, TilePlan
from linumpy.phantom.fault_flag import KINDS, Fault
from linumpy.phantom.params import PhantomParams
from linumpy.phantom.tile import Scene

SHORT_SHARE = 0.6
"""Share of its samples that a tile cut short has."""
SLOW_FACTOR = 3.0
_DEFOCUS_RAYLEIGHS = 1.5
_WEDGE_OF_GAP = 0.8
_DRIFT_PX_PER_TILE = 2


def params_with(params: PhantomParams, faults: Sequence[Fault]) -> PhantomParams:
    """Return parameters with the faults that parameters can express."""
    ids = {kind: tuple(f.slice_id for f in faults if f.kind == kind) for kind in KINDS}
    lost = tuple(
        f"{f.slice_id}:{f.tile[0]}:{f.tile[1]}"
        for f in faults
        if f.kind == "missing_tile" and f.tile
    )
    return replace(
        params,
        double_cuts=(*params.double_cuts, *ids["double_cut"]),
        glitch_slices=(*params.glitch_slices, *ids["stage_glitch"]),
        missing_tiles=(*params.missing_tiles, *lost),
    )


def plans_with(
    scene: Scene, slices: tuple[SlicePlan, ...], faults: Sequence[Fault]
) -> tuple[Scene, tuple[SlicePlan, ...]]:
    """Return scene and plans with the faults that lie in faces, tiles and artefacts."""
    p = scene.params
    faces, artefacts, plans = dict(scene.faces), dict(scene.artefacts), list(slices)
    for fault in faults:
        n = fault.slice_id
        plan = plans[n]
        if fault.kind == "missed_cut":
            # The knife took nothing: the same face is seen again, and all later ones lie higher.
            faces[n] = faces[n - 1]
            for k in range(n, len(plans)):
                plans[k] = replace(plans[k], face_um=plans[k].face_um - p.slice_interval_um)
            plans[n] = replace(plans[n], face_um=plans[n - 1].face_um, cut_um=0.0)
        elif fault.kind == "wedge":
            fall = _WEDGE_OF_GAP * p.gap_um
            across = (
                scene.face_grid.origin_um[0] + FACE_STEP_UM * np.arange(scene.face_grid.shape[0])
            ) / p.mosaic_um[0] - 0.5
            faces[n] = (faces[n] + fall * across[:, None]).astype(np.float32)
            plans[n] = replace(plan, tilt_um=(plan.tilt_um[0] + fall, plan.tilt_um[1]))
        elif fault.kind in ("debris", "bubble"):
            artefacts[n] = (*artefacts[n], _artefact(fault, plan, p))
        else:
            plans[n] = replace(plan, tiles=tuple(_tile_with(fault, plan, t, p) for t in plan.tiles))
    return replace(scene, faces=faces, artefacts=artefacts), tuple(plans)


def _tile_with(fault: Fault, plan: SlicePlan, tile: TilePlan, p: PhantomParams) -> TilePlan:
    if not fault.is_at(plan, tile):
        return tile
    if fault.kind == "dark_tile":
        return replace(tile, dark=True)
    if fault.kind == "galvo_drift":
        number = tile.ix * p.tiles_y + tile.iy
        shift = tile.galvo_shift_px + _DRIFT_PX_PER_TILE * number
        return replace(tile, galvo_shift_px=shift % (p.nx + p.n_extra))
    if fault.kind == "border":
        # The mosaic was laid out beside the tissue, and the stage knows it.
        move_um = p.mosaic_um[0] / 2
        first, second = tile.true_corner_um
        letter = p.stage_to_array.index("x") // 3
        stage = list(tile.stage_mm)
        stage[letter] = round((stage[letter] or 0.0) + move_um / 1e3, 4)
        return replace(
            tile,
            true_corner_um=(first + move_um, second),
            stage_mm=(stage[0] or 0.0, stage[1] or 0.0, stage[2]),
        )
    return tile


def _artefact(fault: Fault, plan: SlicePlan, p: PhantomParams) -> Artefact:
    """Return debris or a bubble of half a tile's width in the middle of the fault's tile."""
    tile = next(t for t in plan.tiles if (t.ix, t.iy) == fault.tile)
    centre = np.add(tile.true_corner_um, np.divide(p.tile_fov_um, 2))
    place = (float(centre[0]), float(centre[1]))
    radius = min(p.tile_fov_um) / 3
    if fault.kind == "debris":
        return Artefact("debris", place, radius, amplitude=4.0, transmission=0.05)
    return Artefact(
        "bubble", place, radius, amplitude=BUBBLE_AMPLITUDE, transmission=BUBBLE_TRANSMISSION,
        height_share=0.5,
    )  # fmt: skip


def scene_of_tile(
    scene: Scene, slice_plan: SlicePlan, tile: TilePlan, faults: Sequence[Fault]
) -> Scene:
    """Return the scene that one tile is imaged in: out of focus where a fault says so."""
    if not any(f.kind == "defocus" and f.is_at(slice_plan, tile) for f in faults):
        return scene
    p = scene.params
    deeper = p.focus_um + _DEFOCUS_RAYLEIGHS * p.rayleigh_um
    return replace(scene, params=replace(p, focus_um=deeper))
