"""Score the normalised slices of a folder, and decide which to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from linumpy.brain.kept_slices import keep_slices, pair_workers
from linumpy.core.device import CPU, Device
from linumpy.core.errors import InputError
from linumpy.core.log import logger
from linumpy.io.models import model_place, save_model
from linumpy.io.tables import SliceConfig, read_slice_config, write_slice_config
from linumpy.params import build
from linumpy.quality.assess_slice_quality import SliceQuality, assess_slice_quality
from linumpy.quality.measured_similarities import Known, load_similarities
from linumpy.stage_params.quality import QualityParams


def assess_folder(
    folder: Path,
    output: Path,
    values: Mapping[str, Any],
    *,
    shifts: Path | None = None,
    config_in: Path | None = None,
    config_out: Path | None = None,
    pairs: Path | None = None,
    overwrite: bool = False,
    device: Device = CPU,
) -> SliceQuality:
    """Rate the slices of a folder, write the scores as JSON and the decisions into a new table.

    Parameters
    ----------
    shifts
        ``shifts_xy.csv``, for slices that recorded no stage positions.
    config_in, config_out
        ``slice_config.csv`` to read, and the one to write. Slices that the first leaves out are
        not rated and stay out.
    pairs
        Folder with comparisons of pairs (`linumpy.quality.measured_similarities`).

    Raises
    ------
    InputError
        When no slice is left; the scores are written all the same.
    """
    from linumpy.brain.slice_folder import find_slices, load_slices

    params = build(QualityParams, values)
    rows = () if config_in is None else read_slice_config(config_in)
    paths = find_slices(folder, config_in)
    volumes, voxel_um, interval_um = load_slices(paths, shifts, by_name=True, device=device)
    known = Known() if pairs is None else load_similarities(pairs, volumes, voxel_um, params)
    volumes, workers = keep_slices(volumes, device, pair_workers(device))
    amplitude = {
        volume.slice_id: float(scale)
        for volume in volumes
        if volume.image and (scale := volume.image.attributes.get("amplitude_scale"))
    }
    model = assess_slice_quality(
        volumes, voxel_um, interval_um, params, amplitude=amplitude, known=known, workers=workers
    )
    save_model(*model_place(output), model)
    for record in model.slices:
        if record["exclude_reason"]:
            logger.warning(
                "slice z%02d is left out: %s%s",
                record["slice_id"],
                record["exclude_reason"],
                "" if record["score"] is None else f" (score {record['score']:.2f})",
            )
    if all(record["exclude_reason"] for record in model.slices):
        raise InputError(
            f"{folder}: all {len(model.slices)} slices are left out, expected one to stay; "
            f"{output} has their scores, --assess_quality_min_quality is {params.min_quality:g}"
        )
    if config_out is not None:
        write_slice_config(config_out, stamp_quality(rows, model), overwrite=overwrite)
    return model


def stamp_quality(rows: Sequence[SliceConfig], model: SliceQuality) -> tuple[SliceConfig, ...]:
    """Return the table with scores, and with the slices left out that the model leaves out.

    A slice that is out already stays so, for the reason that it has. One without a row gets one.
    """
    table = {row.slice_id: row for row in rows}
    for record in model.slices:
        row = table.get(record["slice_id"], SliceConfig(record["slice_id"]))
        if record["score"] is not None:
            row = replace(row, quality_score=round(record["score"], 4))
        if record["exclude_reason"] and row.used:
            row = replace(row, use=False, exclude_reason=record["exclude_reason"])
        table[row.slice_id] = row
    return tuple(table[k] for k in sorted(table))
