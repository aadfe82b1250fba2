"""Faults of a simulated acquisition at a known slice: in its parameters, faces, tiles and files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from linumpy.io.stage_axes import parse_stage_to_array
from linumpy.phantom.artefacts import BUBBLE_AMPLITUDE, BUBBLE_TRANSMISSION, Artefact
from linumpy.phantom.cutting import FACE_STEP_UM, SlicePlan, TilePlan
from linumpy.phantom.fault_flag import Fault
from linumpy.phantom.params import PhantomParams
from linumpy.phantom.tile import Scene


def params_with(params: PhantomParams, faults: Sequence[Fault]) -> PhantomParams:
    """Return parameters with the faults that parameters can express."""
    cuts = tuple(
        f"{f.slice_id}:{f.value * params.slice_interval_um:.6g}"
        for f in faults
        if f.kind == "double_cut"
    )
    lost = tuple(
        f"{f.slice_id}:{f.tile[0]}:{f.tile[1]}"
        for f in faults
        if f.kind == "missing_tile" and f.tile
    )
    return replace(
        params,
        uneven_cuts=(*params.uneven_cuts, *cuts),
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
            # The knife slid over the face, which is seen again; all later ones lie higher.
            faces[n] = faces[n - 1]
            cut_um = fault.value * p.slice_interval_um
            for k in range(n, len(plans)):
                up = p.slice_interval_um - cut_um
                plans[k] = replace(plans[k], face_um=plans[k].face_um - up)
            plans[n] = replace(plans[n], face_um=plans[n - 1].face_um + cut_um, cut_um=cut_um)
        elif fault.kind == "wedge":
            falls = fault.value * p.gap_um * _direction(fault)
            first, second = (
                (origin + FACE_STEP_UM * np.arange(n_points)) / side - 0.5
                for origin, n_points, side in zip(
                    scene.face_grid.origin_um, scene.face_grid.shape, p.mosaic_um, strict=True
                )
            )
            plane = falls[0] * first[:, None] + falls[1] * second
            faces[n] = (faces[n] + plane).astype(np.float32)
            tilt = np.add(plan.tilt_um, falls)
            plans[n] = replace(plan, tilt_um=(float(tilt[0]), float(tilt[1])))
        elif fault.kind in ("debris", "bubble"):
            artefacts[n] = (*artefacts[n], _artefact(fault, plan, p))
        else:
            plans[n] = replace(plan, tiles=tuple(_tile_with(fault, plan, t, p) for t in plan.tiles))
    return replace(scene, faces=faces, artefacts=artefacts), tuple(plans)


def _direction(fault: Fault) -> np.ndarray:
    angle = np.deg2rad(fault.angle_deg)
    return np.array([np.cos(angle), np.sin(angle)])


def _tile_with(fault: Fault, plan: SlicePlan, tile: TilePlan, p: PhantomParams) -> TilePlan:
    if not fault.is_at(plan, tile):
        return tile
    if fault.kind in ("dark_tile", "dead_tile"):
        return replace(tile, dark=True)
    if fault.kind == "galvo_drift":
        share = (tile.ix * p.tiles_y + tile.iy) / max(1, p.tiles_x * p.tiles_y - 1)
        shift = tile.galvo_shift_px + round(fault.value * p.n_extra * share)
        return replace(tile, galvo_shift_px=shift % (p.nx + p.n_extra))
    if fault.kind == "stage_glitch":
        return _with_stage(tile, 1e3 * fault.value * _direction(fault), p)
    if fault.kind == "border":
        # The mosaic was laid out beside the tissue, and the stage reports it.
        move_um = fault.value * np.multiply(p.mosaic_um, _direction(fault))
        corner = np.add(tile.true_corner_um, move_um)
        moved = replace(tile, true_corner_um=(float(corner[0]), float(corner[1])))
        return _with_stage(moved, move_um, p)
    return tile


def _with_stage(tile: TilePlan, move_um: np.ndarray, p: PhantomParams) -> TilePlan:
    """Return a tile that the stage says lies further along axis 1 and axis 2."""
    stage = list(tile.stage_mm)
    for (letter, sign), um in zip(parse_stage_to_array(p.stage_to_array), move_um, strict=True):
        stage[letter] = round((stage[letter] or 0.0) + sign * float(um) / 1e3, 4)
    return replace(tile, stage_mm=(stage[0] or 0.0, stage[1] or 0.0, stage[2]))


def _artefact(fault: Fault, plan: SlicePlan, p: PhantomParams) -> Artefact:
    """Return debris or a bubble: the fault's own, or a large one in the middle of its tile."""
    if fault.artefact is not None:
        return fault.artefact
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
    """Return the scene that one tile is imaged in, as its focus and its light are."""
    p = scene.params
    for fault in faults:
        if not fault.is_at(slice_plan, tile):
            continue
        if fault.kind == "defocus":
            p = replace(p, focus_um=p.focus_um + fault.value * p.rayleigh_um)
        elif fault.kind in ("dark_tile", "dead_tile"):
            amplitude = fault.value if fault.kind == "dark_tile" else 0.0
            p = replace(p, dark_amplitude=amplitude)
    return scene if p is scene.params else replace(scene, params=p)
