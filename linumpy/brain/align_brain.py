"""Align a brain with an atlas, from files to files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.brain.align_to_ras import (
    AlignedBrain,
    Alignment,
    align_to_ras,
    orientation_codes,
)
from linumpy.brain.atlas.refine import mutual_information
from linumpy.brain.atlas.search import axes_to_atlas
from linumpy.brain.atlas.transform import (
    ngff_affine,
    parse_rotation,
    principal_scales,
    tilt_deg,
    write_itk,
)
from linumpy.brain.atlas.volume import (
    Volume,
    contrast,
    read_atlas_volume,
    read_brain,
    tissue_mask,
    working_voxel_um,
)
from linumpy.core.device import CPU, Device, to_host
from linumpy.core.errors import InputError
from linumpy.core.log import logger
from linumpy.geometry.orientation import ATLAS_CODE, is_mirrored
from linumpy.io.atlas import Atlas, read_atlas
from linumpy.io.models import save_model
from linumpy.io.omezarr import Image, open_image
from linumpy.params import build
from linumpy.stage_params.atlas import AlignParams
from linumpy.store.atomic import refuse_any, refuse_existing

_AMBIGUOUS = 0.05
_LITTLE_OVERLAP = 0.8


def check_atlas(path: Path | str, values: Mapping[str, Any]) -> str:
    """Read an atlas and the parameters of `align_brain`, and describe the atlas in one line.

    Raises
    ------
    InputError
        As `align_brain` would, long before there is a brain.
    """
    from linumpy.io.atlas import read_atlas

    params = build(AlignParams, values)
    orientation_codes(params)
    parse_rotation(params.rotation)
    atlas = read_atlas(path, orientation=params.atlas_orientation, unit=params.atlas_unit)
    shape = " x ".join(str(n) for n in atlas.data.shape)
    sides = np.linalg.norm(atlas.index_to_um[:3, :3], axis=0)
    voxel = " x ".join(f"{side:g}" for side in sides)
    return f"{path}: {shape} voxels of {voxel} um (superior x anterior x right)"


def align_brain(
    input_path: Path | str,
    output: Path | str,
    atlas_path: Path | str,
    values: Mapping[str, Any],
    *,
    output_model: Path | None = None,
    output_transform: Path | None = None,
    preview: Path | None = None,
    store_transform_only: bool = False,
    orientation_preview_only: bool = False,
    assume_unit: str | None = None,
    overwrite: bool = False,
    device: Device = CPU,
    parts: int | None = None,
) -> AlignedBrain:
    """Register a brain to an atlas and write it in the atlas' space.

    Parameters
    ----------
    input_path
        OME-Zarr (z, axis 1, axis 2).
    output
        OME-Zarr to write.
    atlas_path
        NIfTI, NRRD or OME-Zarr.
    values
        Parameters under their pipeline names, ``pyramid_resolutions`` among them.
    output_model
        JSON file for what was found.
    output_transform
        ``.tfm`` for ITK; `align_to_ras_transform` says its direction.
    preview
        PNG of brain and atlas.
    store_transform_only
        Write the brain as it is, with the transform in its metadata.
    orientation_preview_only
        Only find the orientation and write the preview.
    assume_unit
        Unit of a brain whose metadata names none.
    overwrite
        Whether existing outputs may be replaced.
    device
        Where to compute.
    parts
        As in `linumpy.brain.atlas.apply.apply_to_volume`.

    Raises
    ------
    InputError
        When brain, atlas or a parameter is no good; before anything is computed.
    """
    from linumpy.brain.output import model_place, resolutions

    params = build(AlignParams, values)
    # Wrong letters or angles are to be found before anything is read.
    orientation_codes(params)
    parse_rotation(params.rotation)
    if orientation_preview_only and preview is None:
        raise InputError("--orientation_preview_only makes an image: say where with --preview")
    if not orientation_preview_only:
        refuse_existing(output, overwrite)
    refuse_any(overwrite, output_model, output_transform, preview)
    image = open_image(input_path, assume_unit=assume_unit)
    file = read_atlas(atlas_path, orientation=params.atlas_orientation, unit=params.atlas_unit)
    voxel_um = working_voxel_um(image, file, params.level)
    brain, atlas = read_brain(image, voxel_um), read_atlas_volume(file, voxel_um)
    found = align_to_ras(
        brain, atlas, params, device=device.first(), only_orientation=orientation_preview_only
    )
    small, small_atlas, matrix = contrast(brain), contrast(atlas), found.matrix
    model = _model(file, params, small, small_atlas, found)
    _warn(model)
    if preview is not None:
        from linumpy.brain.atlas.preview import align_preview

        title = f"{Path(input_path).name} as {model.orientation} in {model.atlas}"
        align_preview(small, small_atlas, matrix, preview, title=title, overwrite=overwrite)
    if orientation_preview_only:
        return model
    if output_model is not None:
        save_model(*model_place(output_model), model)
    if output_transform is not None:
        write_itk(output_transform, matrix, model.orientation, overwrite=overwrite)
    attributes = _attributes(image, model, matrix, aligned=not store_transform_only)
    if store_transform_only:
        from linumpy.brain.atlas.apply import store_transform

        store_transform(image, output, attributes, overwrite=overwrite)
    else:
        from linumpy.brain.atlas.apply import apply_to_volume

        apply_to_volume(
            image,
            output,
            matrix,
            attributes,
            resolutions_um=resolutions(values),
            overwrite=overwrite,
            device=device,
            parts=parts,
        )
    return model


def _model(
    file: Atlas, params: AlignParams, brain: Volume, atlas: Volume, found: Alignment
) -> AlignedBrain:
    return AlignedBrain(
        atlas=file.path.name,
        atlas_voxel_um=file.voxel_um,
        voxel_um=max(brain.voxel_um),
        orientation=found.code,
        mirrored=is_mirrored(found.code),
        transform=params.transform,
        metric=params.metric,
        matrix=found.matrix.tolist(),
        scale=principal_scales(found.matrix),
        tilt_deg=tilt_deg(found.matrix, axes_to_atlas(found.code)),
        likeness=mutual_information(brain, atlas, found.matrix),
        margin=found.margin,
        overlap=_overlap(brain, atlas, found.matrix),
        candidates=found.candidates,
    )


def _overlap(brain: Volume, atlas: Volume, matrix: np.ndarray) -> float:
    """Return which share of the brain's tissue lies within the atlas' grid."""
    index = np.argwhere(to_host(tissue_mask(brain)))
    if not len(index):
        return 0.0
    to_atlas = np.linalg.inv(atlas.index_to_um) @ matrix @ brain.index_to_um
    reached = index @ to_atlas[:3, :3].T + to_atlas[:3, 3]
    inside = (reached >= -0.5) & (reached <= np.array(atlas.data.shape) - 0.5)
    return float(inside.all(axis=1).mean())


def _warn(model: AlignedBrain) -> None:
    """Say what makes a result doubtful."""
    if model.margin is not None and model.margin < _AMBIGUOUS:
        logger.warning(
            "the brain fits the atlas nearly as well in another orientation as in %s; look at the "
            "preview, and name the right one with --ras_input_orientation",
            model.orientation,
        )
    if model.overlap < _LITTLE_OVERLAP:
        logger.warning(
            "only %.0f %% of the brain's tissue lies within the atlas; look at the preview",
            100 * model.overlap,
        )


def _attributes(
    image: Image, model: AlignedBrain, matrix: np.ndarray, *, aligned: bool
) -> dict[str, Any]:
    """Return what the output's metadata says of the transform."""
    transform = ngff_affine(matrix, "brain", "atlas")
    shared = {"atlas": model.atlas, "coordinateTransformations": [transform]}
    if not aligned:
        return {**shared, "orientation": model.orientation}
    kept = {k: v for k, v in image.attributes.items() if k != "version"}
    return {**kept, **shared, "kind": "aligned_brain", "orientation": ATLAS_CODE}
