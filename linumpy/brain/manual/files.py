"""Merge manual transforms into ``register_slices.json``, from files to files."""

from __future__ import annotations

from pathlib import Path

from linumpy.brain.slice_registration import SliceRegistration
from linumpy.core.device import CPU, Device
from linumpy.core.errors import InputError
from linumpy.core.log import logger, progress
from linumpy.stage_params.gaps import RefineManualParams


def refine_manual_transforms(
    folder: Path,
    shifts: Path | None,
    registration: Path,
    manual: Path,
    output: Path,
    params: RefineManualParams,
    *,
    config: Path | None = None,
    device: Device = CPU,
) -> SliceRegistration:
    """Write a registration in which transforms made by hand hold.

    Parameters
    ----------
    folder
        Slice volumes.
    shifts
        The table of shifts that registration had.
    registration
        ``register_slices.json`` without them.
    manual
        Folder of ``slice_zNN/transform.tfm``.
    output
        ``register_slices.json`` to write.
    params
        Whether and how far to look near them for a better match.
    config
        ``slice_config.csv``; slices with use=false stay out.

    Raises
    ------
    InputError
        When a transform is of a slice that is not there, or cannot be understood.
    """
    from linumpy.brain.manual.network import ManualPair, place_by_hand
    from linumpy.brain.manual.refine import refine_transform
    from linumpy.brain.manual.transforms import find_transforms, read_transform
    from linumpy.brain.slice_folder import load_folder
    from linumpy.io.models import load_model, model_place, save_model

    model = load_model(*model_place(registration), SliceRegistration)
    volumes, _, _ = load_folder(folder, shifts, config, device=device)
    known = {entry["slice_id"] for entry in model.slices}
    volumes = [volume for volume in volumes if volume.slice_id in known]
    ids = [volume.slice_id for volume in volumes]
    if not ids:
        raise InputError(f"{registration}: has none of the slices in {folder}")
    found = {i: (path, read_transform(path)) for i, path in find_transforms(manual, ids).items()}
    pairs = []
    for slice_id, (path, matrix) in progress(found.items(), len(found), "manual"):
        place = ids.index(slice_id)
        fixed, moving = volumes[place - 1], volumes[place]
        pair = ManualPair(fixed.slice_id, slice_id, matrix)
        if params.refine:
            better = refine_transform(fixed, moving, matrix, model, params)
            if better is None:
                logger.warning("%s: no clear match near it; taken as it is", path)
            else:
                logger.info(
                    "%s: refined by (%.2f, %.2f) px and %.2f degrees",
                    path,
                    *better.shift_px,
                    better.rotation_deg,
                )
                pair = ManualPair(
                    fixed.slice_id,
                    slice_id,
                    better.fixed_to_moving,
                    correlation=better.correlation,
                    refined=True,
                )
        pairs.append(pair)
    placed = place_by_hand(model, pairs)
    save_model(*model_place(output), placed)
    return placed
