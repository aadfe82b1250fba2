"""Reconstruct the image of a slice: project, flatten, register and stitch its tiles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.device import CPU, Device
from linumpy.core.errors import InputError
from linumpy.flat.estimate_illumination import picture_stages
from linumpy.flat.stitch_2d import stitch_2d
from linumpy.intensity.fix_illumination_3d import FlatField
from linumpy.io.grid import GridInfo
from linumpy.io.models import load_model, save_model
from linumpy.slices.aip import Aip
from linumpy.slices.engine import Stage, make_store, run
from linumpy.slices.grid_io import SliceSink
from linumpy.slices.raw_source import (
    SliceInput,
    finished_layout,
    open_source,
    with_masks_where_needed,
)
from linumpy.slices.register_stage import RegisterTiles
from linumpy.slices.tile_stages import FixIllumination3d
from linumpy.stage_params.flat import FlatParams
from linumpy.store.atomic import refuse_any, together


@together()
def reconstruct_slice_2d(
    slice_input: SliceInput,
    output: Path | str,
    flat_field: FlatField | None,
    params: FlatParams,
    *,
    output_models: Path | str | None = None,
    overwrite: bool = False,
    device: Device = CPU,
) -> np.ndarray:
    """Make one image of a slice.

    Parameters
    ----------
    slice_input
        Mosaic grid, 3D or 2D, or a slice of a raw acquisition; the result is the same.
    output
        Image to write, an OME-Zarr of one plane.
    flat_field
        From `estimate_illumination`; None leaves the illumination as it is.
    params
        Of all stages.
    output_models
        Folder for the tile positions.
    overwrite
        Whether existing outputs may be replaced.
    device
        Where to compute.

    Returns
    -------
    Corrected projections of the tiles, side by side; NaN where invalid.
    """
    source = open_source(slice_input, params.resample.assume_unit)
    with (
        SliceSink(output, overwrite=overwrite) as sink,
        make_store(device) as tiles,
    ):

        def correct() -> tuple[GridInfo, Aip, RegisterTiles]:
            aip, register = Aip(), RegisterTiles()
            chain: list[Stage] = picture_stages(params)
            if flat_field is not None:
                chain.append(FixIllumination3d(model=flat_field))
            layout: GridInfo = run([*chain, aip, register], source, keep=tiles, device=device)
            return finished_layout(source, layout), aip, register

        layout, aip, register = with_masks_where_needed(correct)
        picture = stitch_2d(tiles, layout, register.model, params.stitch, device=device)
        run([], picture, [sink], device=device)
    if output_models is not None:
        save_model(output_models, register.name, register.model)
    image: np.ndarray = aip.model.image
    return image


def reconstruct_2d_to_files(
    slice_input: SliceInput,
    output: Path,
    values: Mapping[str, Any],
    *,
    models: Path | None,
    output_models: Path | None = None,
    aip: Path | None = None,
    preview: Path | None = None,
    overwrite: bool = False,
    device: Device = CPU,
) -> None:
    """Make one image from files to files; see `reconstruct_slice_2d`.

    Parameters
    ----------
    models
        Folder of the flat field; not needed when the illumination is left as it is.

    Raises
    ------
    InputError
        When the flat field is missing.
    """
    from linumpy.io.omezarr import open_image
    from linumpy.io.previews import aip_png, slice_preview

    refuse_any(overwrite, output, aip, preview)
    params = FlatParams.from_values(values)
    flat_field = None
    if params.illumination.enabled:
        if models is None:
            raise InputError(
                "--models: missing; expected the folder of linum_estimate_illumination.py, "
                "or --no-fix_illum_enabled"
            )
        flat_field = load_model(models, FixIllumination3d.name, FlatField)
    projections = reconstruct_slice_2d(
        slice_input,
        output,
        flat_field,
        params,
        output_models=output_models,
        overwrite=overwrite,
        device=device,
    )
    if aip is not None:
        aip_png(projections, aip, overwrite=overwrite)
    if preview is not None:
        image = open_image(output)
        picture = np.asarray(image.array[0])
        if image.valid is not None:
            picture = np.where(np.asarray(image.valid[0]) > 0, picture, np.nan)
        slice_preview(picture, image.voxel_um, preview, overwrite=overwrite)
