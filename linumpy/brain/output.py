"""Steps between files from a folder of slices to registration, common space and brain."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from linumpy.brain.align_mosaics_3d_from_shifts import Canvas, align_mosaics_3d_from_shifts
from linumpy.brain.kept_slices import keep_slices, pair_workers
from linumpy.brain.measured_pairs import load_pairs
from linumpy.brain.overlap_correction import with_overlaps
from linumpy.brain.register_slices import motor_registration, register_slices
from linumpy.brain.slice_folder import load_folder
from linumpy.brain.slice_planes import GivenPlace, SliceVolume
from linumpy.brain.slice_registration import SliceRegistration
from linumpy.brain.stack_slices_motor import brain_geometry, stack_slices_motor, z_matches
from linumpy.brain.stacking import BLOCK_PX, cuts
from linumpy.core.device import CPU, Array, Device, to_host
from linumpy.core.errors import InputError
from linumpy.core.log import logger, progress
from linumpy.core.stream import stream
from linumpy.core.timeline import span
from linumpy.intensity.quality_map import QUALITY_ATTRIBUTE, placed_map
from linumpy.io.models import load_model, model_place, save_model
from linumpy.io.omezarr import create_image, open_image
from linumpy.io.slice_layout import volume_spec
from linumpy.io.tables import read_slice_config
from linumpy.params import build
from linumpy.stage_params.brain import RegisterParams, StackParams
from linumpy.store.atomic import together, write_text


def register_folder(
    folder: Path,
    shifts: Path | None,
    output: Path,
    values: Mapping[str, Any],
    *,
    config: Path | None = None,
    pairs: Path | None = None,
    device: Device = CPU,
) -> SliceRegistration:
    """Register the slices of a folder and write the model as JSON.

    Parameters
    ----------
    pairs
        Folder with measurements of pairs (`linumpy.brain.measured_pairs`).
    """
    params = build(RegisterParams, values)
    volumes, voxel_um, interval_um = load_folder(folder, shifts, config, device=device)
    if not any(volume.place is None for volume in volumes):
        raise InputError(f"{folder}: every slice is interpolated; expected measured ones")
    known = {} if pairs is None else load_pairs(pairs, volumes, voxel_um, params)
    volumes, workers = keep_slices(volumes, device, pair_workers(device))
    model = register_slices(volumes, voxel_um, interval_um, params, known=known, workers=workers)
    save_model(*model_place(output), model)
    return model


def _as_registered(volumes: Sequence[SliceVolume], model: SliceRegistration) -> list[SliceVolume]:
    """Return slices at the places that their offsets were found against."""
    moved = {s["slice_id"]: s.get("moved_um") for s in model.slices}
    return [
        v.moved((float(by[0]), float(by[1])))
        if v.place is None and (by := moved.get(v.slice_id))
        else v
        for v in volumes
    ]


def align_slice(
    slice_path: Path,
    folder: Path,
    registration: Path,
    output: Path,
    *,
    pairs: Path | None = None,
    overwrite: bool = False,
    device: Device = CPU,
) -> None:
    """Write one slice of a folder on the canvas that all its slices share.

    Parameters
    ----------
    pairs
        As in `stack_folder`.
    """
    model = load_model(*model_place(registration), SliceRegistration)
    volumes, voxel_um, _ = load_folder(folder, None, device=device)
    _check_voxels(model, voxel_um, registration)
    attributes = open_image(slice_path).attributes
    placed = model.offset_um
    # Slices that are left out of the brain do not widen its canvas.
    volumes = [v for v in _as_registered(volumes, model) if v.slice_id in placed or v.place]
    volume = next((v for v in volumes if v.slice_id == attributes.get("slice_id")), None)
    if volume is None:
        raise InputError(f"{slice_path}: not one of the slices in {folder} that are registered")
    if pairs is not None:
        own_id = volume.slice_id
        volumes = with_overlaps(volumes, pairs, model, [own_id])
        volume = next(v for v in volumes if v.slice_id == own_id)
    canvas, _ = brain_geometry(volumes, model, StackParams())
    top_um = volume.face_to_plane_um + float(attributes["interface_um"])
    spec = volume_spec(
        (volume.shape[0], *canvas.shape),
        voxel_um,
        (top_um, *canvas.corner_um),
        {
            **{k: v for k, v in attributes.items() if k not in ("version", QUALITY_ATTRIBUTE)},
            **_quality_on_canvas(volume, attributes, canvas),
            "attenuation_from": volume.attenuation_from,
        },
    )
    windows = [
        (i, j)
        for i in cuts(slice(0, canvas.shape[0]), BLOCK_PX)
        for j in cuts(slice(0, canvas.shape[1]), BLOCK_PX)
    ]

    def align(window: tuple[slice, slice]) -> tuple[Array, Array] | None:
        return align_mosaics_3d_from_shifts(
            volume.read,
            volume.shape[1:],
            canvas.origin_px[volume.slice_id],
            slice(0, volume.shape[0]),
            window,
            canvas.turns.get(volume.slice_id),
            canvas.fields.get(volume.slice_id),
        )

    with create_image(output, spec, overwrite=overwrite, with_valid=True) as image:

        def write(window: tuple[slice, slice], found: tuple[Array, Array] | None) -> None:
            if found is not None:
                image.array[(slice(None), *window)] = to_host(found[0])
                image.valid[(slice(None), *window)] = to_host(found[1])  # type: ignore[index]

        done = stream(windows, align, lambda _, found: found, write)
        for _ in progress(done, len(windows), "align"):
            pass


def _quality_on_canvas(
    volume: SliceVolume, attributes: Mapping[str, Any], canvas: Canvas
) -> dict[str, Any]:
    """Return the attribute that holds a slice's quality on the canvas."""
    record = placed_map(
        attributes,
        volume.shape,
        canvas.shape,
        canvas.origin_px[volume.slice_id],
        canvas.turns.get(volume.slice_id),
    )
    return {} if record is None else {QUALITY_ATTRIBUTE: record}


@together()
def stack_folder(
    folder: Path,
    shifts: Path,
    output: Path,
    values: Mapping[str, Any],
    *,
    registration: Path | None = None,
    aligned: bool = False,
    pairs: Path | None = None,
    config: Path | None = None,
    output_model: Path | None = None,
    matches: Path | None = None,
    overwrite: bool = False,
    device: Device = CPU,
    parts: int | None = None,
) -> None:
    """Stack the slices of a folder.

    Parameters
    ----------
    registration
        Offsets and rotations of all slices; the motor positions alone when None.
    aligned
        The slices share a canvas already: only their depths are taken from the registration.
    pairs
        Folder of `linumpy.quality.measure_pairs`, to correct the residual attenuation that overlaps
        show. It goes with `registration`, not with `aligned`: those slices are corrected already.
    parts
        As in `stack_slices_motor`.

    Raises
    ------
    InputError
        When a slice is missing that the table wants, or that was registered where there is no
        table; or the files do not fit each other. Nothing is written then.
    """
    if pairs is not None and (aligned or registration is None):
        raise InputError(
            f"--pairs {pairs}: goes with --registration, and not with --no_xy_shift; slices on "
            "their canvas were corrected when they were moved there"
        )
    with span("open"):
        volumes, voxel_um, interval_um = load_folder(
            folder, None if aligned else shifts, config, device=device
        )
    model = motor_registration(volumes, voxel_um, interval_um)
    if registration is not None:
        model = load_model(*model_place(registration), SliceRegistration)
        _check_voxels(model, voxel_um, registration)
        _check_complete(volumes, model, registration, config)
        if not aligned:
            volumes = _as_registered(volumes, model)
            if pairs is not None:
                with span("correct"):
                    volumes = with_overlaps(volumes, pairs, model)
    if aligned:
        flat = [
            {**s, "offset_um": [s["offset_um"][0], 0.0, 0.0], "rotation_deg": 0.0}
            for s in model.slices
        ]
        model = replace(model, slices=flat, deformation=None)
        volumes = [
            v if v.place is None else replace(v, place=GivenPlace((v.place.offset_um[0], 0.0, 0.0)))
            for v in volumes
        ]
    brain = stack_slices_motor(
        volumes,
        model,
        output,
        build(StackParams, values),
        resolutions_um=resolutions(values),
        overwrite=overwrite,
        device=device,
        parts=parts,
    )
    if output_model is not None:
        save_model(*model_place(output_model), brain)
    if matches is not None:
        _write_csv(matches, z_matches(brain.slices))


def _check_voxels(
    model: SliceRegistration, voxel_um: tuple[float, float, float], path: Path
) -> None:
    if any(abs(a - b) > 1e-6 * b for a, b in zip(model.voxel_um, voxel_um, strict=True)):
        raise InputError(
            f"{path}: made for voxels of {model.voxel_um} um, the slices have {voxel_um}; "
            "register them again"
        )


def _check_complete(
    volumes: Sequence[SliceVolume], model: SliceRegistration, path: Path, config: Path | None
) -> None:
    """Refuse to go without a slice that was registered, where no table says why."""
    there = {volume.slice_id for volume in volumes}
    if config is None:
        lacking = sorted(set(model.offset_um) - there)
        if lacking:
            raise InputError(
                f"{path}: has slice z{lacking[0]:02d}, of which there is no volume; a slice that "
                "is to be left out is named in --slice_config"
            )
        return
    for row in read_slice_config(config):
        if row.interpolated and row.slice_id not in there:
            logger.warning(
                "%s: slice z%02d is said to be interpolated, but there is no volume of it: its "
                "gap stays", config, row.slice_id,
            )  # fmt: skip


def resolutions(values: Mapping[str, Any]) -> list[float]:
    """Return the pyramid's voxel sizes from the parameters.

    Raises
    ------
    InputError
        When ``pyramid_resolutions`` is not a list of sizes.
    """
    from linumpy.io.pyramid import DEFAULT_RESOLUTIONS_UM

    wanted = values.get("pyramid_resolutions") or DEFAULT_RESOLUTIONS_UM
    if isinstance(wanted, str):
        wanted = wanted.split(",")
    try:
        return [float(r) for r in wanted]
    except (TypeError, ValueError):
        raise InputError(f"--pyramid_resolutions {wanted!r}: expected sizes in um") from None


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    columns = ["fixed_id", "moving_id", "overlap_voxels", "moving_z_start"]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())
