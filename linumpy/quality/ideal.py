"""Ideal run: the pipeline on the same tiles with the truth given to it.

Its models have the run's formats but hold the true focal surface, flat field, tile positions,
interfaces, slice offsets and deformation. Axial response, resampling, blending, normalisation and
stacking are the pipeline's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from linumpy.core.errors import InputError
from linumpy.core.log import progress
from linumpy.geometry.turned import rotation_matrix
from linumpy.io.models import read_json
from linumpy.quality.fields import on_model_grid
from linumpy.quality.interface import mean_unevenness_um
from linumpy.quality.positions import face_to_plane_um, plane_depth_um
from linumpy.quality.run import Run
from linumpy.quality.truth import Truth
from linumpy.store.atomic import atomic_path, write_json

M = TypeVar("M")

IDEAL_BRAIN = "ideal.ome.zarr"

_ROUNDS = 8
"""To find where tissue is seen: deformation changes by a few per cent of a length."""


class Reconstruct(Protocol):
    """Reconstructs one slice with models that are already there."""

    def __call__(self, grid: Path, output: Path, models: Path, slice_id: int) -> None:
        """Write slice volume `output` from `grid`.

        The acquisition's models are in `models`, the slice's tile positions in `models`/zNN;
        what else the slice needs is measured and written there.
        """


class Stack(Protocol):
    """Stacks slice volumes with a registration that is already there."""

    def __call__(self, slices: Path, models: Path, output: Path) -> None:
        """Write brain `output` from the volumes in `slices`, and its model to `models`."""


def build_ideal_run(
    run: Run,
    truth: Truth,
    grids: Mapping[int, Path],
    workdir: Path | str,
    *,
    reconstruct: Reconstruct,
    stack: Stack,
) -> Run:
    """Reconstruct the run's tiles with true models.

    Parameters
    ----------
    run
        The run to be rated; its models say on which voxels to work.
    grids
        Mosaic grids by slice id.
    workdir
        Folder to fill, in the layout of a run.

    Returns
    -------
    The ideal run, for `correlation.compare_runs`.

    Raises
    ------
    InputError
        When the run lacks a model or a slice has no grid.
    """
    workdir = Path(workdir)
    models, slices = workdir / "models", workdir / "slices"
    slice_ids = write_ideal_models(run, truth, models)
    missing = [i for i in slice_ids if i not in grids]
    if missing:
        raise InputError(f"no mosaic grid of slice z{missing[0]:02d} to reconstruct it from")
    for slice_id in progress(slice_ids, len(slice_ids), "ideal run"):
        output = slices / f"slice_z{slice_id:02d}.ome.zarr"
        reconstruct(grid=grids[slice_id], output=output, models=models, slice_id=slice_id)
    # The cuts may have been measured anew; what is true of a slice's depth follows from them.
    write_ideal_registration(run, truth, Run(workdir))
    stack(slices=slices, models=models, output=workdir / IDEAL_BRAIN)
    return Run(workdir)


def pipeline_steps(run: Run, values: Mapping[str, Any]) -> tuple[Reconstruct, Stack]:
    """Return the pipeline's own steps, on the voxels of the run.

    Parameters
    ----------
    run
        The run to be rated.
    values
        Parameters under their pipeline names; the resolution is taken from the run's models.
    """
    from linumpy.brain.overlap_correction import compare_overlaps
    from linumpy.brain.slice_registration import SliceRegistration
    from linumpy.brain.slice_volumes import open_slices
    from linumpy.brain.stack_slices_motor import stack_slices_motor
    from linumpy.intensity.compensate_psf import AxialResponse
    from linumpy.io.models import load_model, save_model
    from linumpy.params import build
    from linumpy.slices.learn_models import AcquisitionModels
    from linumpy.slices.psf_stages import CompensatePsf
    from linumpy.slices.reconstruct_slice import reconstruct_slice
    from linumpy.slices.tile_stages import LEARNED
    from linumpy.stage_params.brain import StackParams
    from linumpy.stage_params.slices import SliceParams
    from linumpy.tiles.positions import TileRegistration

    def loaded(models: Path, stem: str, kind: type[M]) -> M | None:
        # A correction that the run went without is one that its ideal goes without.
        return load_model(models, stem, kind) if (models / f"{stem}.json").exists() else None

    voxel_um = next(iter(run.tile_registrations.values())).voxel_um
    params = SliceParams.from_values({**values, "resolution": float(voxel_um[1])})
    first_plane = build(StackParams, values).first_plane

    def reconstruct(grid: Path, output: Path, models: Path, slice_id: int) -> None:
        # What has no truth is the run's own.
        found = {
            name: loaded(models, name, kind.Model) or loaded(run.models, name, kind.Model)
            for name, kind in LEARNED.items()
        }
        acquisition = AcquisitionModels(
            {name: model for name, model in found.items() if model is not None},
            # It has no error of position: the run's own serves both.
            loaded(run.models, CompensatePsf.name, AxialResponse) if params.psf.enabled else None,
        )
        folder = models / f"z{slice_id:02d}"
        positions = load_model(folder, "register_tiles", TileRegistration)
        reconstruct_slice(
            grid, output, acquisition, params, output_models=folder, positions=positions
        )

    stacked = run.model("stack_slices_motor") or {"slices": []}
    told = {s["slice_id"]: s.get("attenuation_from") for s in stacked["slices"]}

    def stack(slices: Path, models: Path, output: Path) -> None:
        volumes = open_slices(sorted(slices.glob("slice_z*.ome.zarr")))
        registration = load_model(models, "register_slices", SliceRegistration)
        volumes = compare_overlaps(volumes, registration, told, models, first_plane)
        placed = stack_slices_motor(
            volumes, registration, output, build(StackParams, values), resolutions_um=()
        )
        save_model(models, "stack_slices_motor", placed)

    return reconstruct, stack


def write_ideal_models(run: Run, truth: Truth, models: Path) -> tuple[int, ...]:
    """Write true models in the run's formats, but for the registration of slices.

    Fields that have no truth (residuals, confidences, counts) are the run's.

    Returns
    -------
    Ids of the slices of both run and truth; bad ones are useless for it.
    """
    _write_field(run, truth, models, "detect_focal_curvature", "surface_um", truth.focal_um)
    _write_field(run, truth, models, "fix_illumination_3d", "flat_field", truth.flat_field)
    shifts = frame_shifts_um(run, truth)
    used = tuple(i for i in shifts if not truth.slices[i].bad)
    for slice_id in used:
        folder = Path(f"z{slice_id:02d}")
        record = read_json(run.models / folder / "register_tiles.json")
        known = truth.slices[slice_id]
        for tile in record["tiles"]:
            index = (tile["ix"], tile["iy"])
            if index not in known.corner_um:
                raise InputError(
                    f"{truth.path}: knows no tile ({tile['ix']}, {tile['iy']}) of slice "
                    f"z{slice_id:02d}, which the run reconstructed"
                )
            tile["corner_um"] = (known.frame_corner_um(index) - shifts[slice_id]).tolist()
            tile["component"] = 0
            tile["brightness"] = 0.0 if index in known.dark else 1.0
        record["scan_error_um"] = _true_scan_error_um(truth, record)
        write_json(models / folder / "register_tiles.json", record)
        name = "crop_3d_mosaic_below_interface.json"
        if slice_id in run.crops:
            write_json(models / folder / name, _true_cut(run, truth, slice_id))
    return used


def _true_scan_error_um(truth: Truth, record: Mapping[str, Any]) -> list[float]:
    """Return the scan's true error at the pixels of a slice's tiles; empty for a straight scan."""
    if not np.any(truth.scan_um):
        return []
    shape = (record["tile_shape_px"][1], 1)
    return on_model_grid(truth.scan_um[:, None], truth, shape, record["voxel_um"]).ravel().tolist()


def frame_shifts_um(run: Run, truth: Truth) -> dict[int, np.ndarray]:
    """Return by slice id what must be added to stage positions to reach the slice's own frame.

    That is the mean over the slice's tiles of (corner in that frame - stage corner): the origin
    of the stage, an error of its report, and whatever the jitter has in common.
    """
    found = {}
    for slice_id, registration in run.tile_registrations.items():
        if slice_id not in truth.slices:
            continue
        known = truth.slices[slice_id]
        shifts = [
            known.frame_corner_um(tile.index) - tile.stage_corner_um
            for tile in registration.tiles
            if tile.index in known.corner_um
        ]
        if shifts:
            found[slice_id] = np.mean(shifts, axis=0)
    return found


def true_offset_um(
    truth: Truth, shifts_um: Mapping[int, np.ndarray], slice_id: int, reference_id: int
) -> np.ndarray:
    """Return a slice's true offset, axis 1 and axis 2, when the reference is left where it is.

    Rotations are about the middle of the truth's mosaic at the reference slice's stage position.
    """
    known, reference = truth.slices[slice_id], truth.slices[reference_id]
    turn = rotation_matrix(known.rotation_deg - reference.rotation_deg)
    back = rotation_matrix(-reference.rotation_deg)
    hidden = np.subtract(known.offset_um, reference.offset_um)
    return np.asarray(turn @ (shifts_um[slice_id] - shifts_um[reference_id]) + back @ hidden)


def write_ideal_registration(run: Run, truth: Truth, ideal: Run) -> None:
    """Write ``register_slices.json`` of the ideal run: true places of its slices."""
    shifts = frame_shifts_um(run, truth)
    ids = sorted(i for i in shifts if i in ideal.crops)
    if not ids:
        raise InputError(f"{ideal.models}: no slice has a crop model")
    first, reference = ids[0], ids[len(ids) // 2]
    if run.slice_registration is not None and run.slice_registration.reference_id in ids:
        reference = run.slice_registration.reference_id
    pivot = np.asarray(truth.slices[reference].pivot_um) - shifts[reference]
    # Of a slice's offset along depth, what brings its first plane to its true depth.
    face = {i: plane_depth_um(ideal, truth, i) - face_to_plane_um(ideal, i) for i in ids}
    record = {
        "reference_id": reference,
        "voxel_um": ideal.tile_registrations[reference].voxel_um,
        "slice_interval_um": truth.slice_interval_um,
        "slices": [
            {
                "slice_id": i,
                "offset_um": [
                    face[i] - face[first] - (i - first) * truth.slice_interval_um,
                    *true_offset_um(truth, shifts, i, reference).tolist(),
                ],
                "rotation_deg": truth.slices[i].rotation_deg - truth.slices[reference].rotation_deg,
                "n_pairs": 0,
            }
            for i in ids
        ],
        "pairs": [],
        "pivot_um": pivot.tolist(),
        "jumps": [],
        "deformation": true_deformation(truth, shifts, ids, reference),
    }
    write_json(ideal.models / "register_slices.json", record)


def true_deformation(
    truth: Truth, shifts_um: Mapping[int, np.ndarray], ids: Sequence[int], reference_id: int
) -> dict[str, Any] | None:
    """Return the true fields of slices as `SliceRegistration.deformation` holds them.

    Parameters
    ----------
    shifts_um
        From `frame_shifts_um`.

    Returns
    -------
    None where no slice is deformed.
    """
    maps = {i: found for i in ids if (found := truth.slices[i].deformation) is not None}
    if not maps:
        return None
    reference, shift = truth.slices[reference_id], shifts_um[reference_id]
    sample = next(iter(maps.values()))[0]
    last = np.subtract(sample.depth_um.shape, 1)
    ends = sample.origin_um + np.array([[0, 0], [0, 1], [1, 0], [1, 1]]) * last * sample.step_um
    ends = reference.from_block_um(ends) - shift
    sides = [
        np.arange(low, high + step, step)
        for low, high, step in zip(ends.min(0), ends.max(0), sample.step_um, strict=True)
    ]
    common = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1)
    block = reference.to_block_um(common + shift)
    fields = {}
    for slice_id in maps:
        seen = block
        for _ in range(_ROUNDS):
            seen = seen - (truth.slices[slice_id].tissue_um(seen) - block)
        field = reference.from_block_um(seen) - shift - common
        fields[str(slice_id)] = np.moveaxis(field, -1, 0).tolist()
    return {
        "origin_um": [float(side[0]) for side in sides],
        "step_um": list(sample.step_um),
        "fields_um": fields,
        "pairs": [],
    }


def _write_field(
    run: Run, truth: Truth, models: Path, stem: str, name: str, field: np.ndarray
) -> None:
    """Write an acquisition model with the true field on the run's grid."""
    record = run.model(stem)
    if record is None:
        # The run went without this correction, and so does its ideal.
        return
    shape = np.shape(record[name])
    true = on_model_grid(field, truth, shape, record["voxel_um"])
    true = true - true.mean() if stem == "detect_focal_curvature" else true / true.mean()
    plain = read_json(run.models / f"{stem}.json")
    with atomic_path(models / f"{stem}.npz", overwrite=True) as partial, partial.open("wb") as file:
        np.savez(file, **{name: true.astype(np.float32)})
    write_json(models / f"{stem}.json", plain)


def _true_cut(run: Run, truth: Truth, slice_id: int) -> dict[str, Any]:
    """Return the run's cut of a slice moved to the true interface."""
    registration = run.tile_registrations[slice_id]
    axial_um, planes = registration.voxel_um[0], registration.tile_shape_px[0]
    crop = dict(run.crops[slice_id])
    interface_um = truth.interface_um(slice_id, mean_unevenness_um(truth, slice_id))
    first = round(interface_um / axial_um)
    kept = planes - first
    if crop["first_plane"] + crop["n_planes"] < planes:
        kept = min(kept, crop["n_planes"])
    crop.update(
        interface_um=float(interface_um),
        first_plane=int(first),
        n_planes=int(kept),
        depth_um=kept * axial_um,
    )
    return crop
