"""An atlas of the phantom's brain: the T1 image of the same template, in anatomical space.

Its contrast is that of magnetic resonance, not of scattering, and it is not cut, moved or cropped:
what registration has to cope with, on a brain whose place in the atlas is known exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.errors import InputError
from linumpy.phantom.anatomy import ANATOMY_AXES, load_template, template_folder

ATLAS_NAME = "atlas.nii.gz"
MODEL_STEM = "atlas"

_T1 = "mni_icbm152_t1_tal_nlin_sym_09a_converted.nii.gz"


@dataclass(frozen=True)
class PhantomAtlas:
    """Where the phantom's block lies in its atlas.

    Attributes
    ----------
    matrix
        4 × 4, from block coordinates (depth, axis 1, axis 2) to the atlas' coordinates
        (superior, anterior, right), both in um.
    voxel_um
        Voxel of the atlas along superior, anterior, right.
    """

    matrix: list[list[float]]
    voxel_um: tuple[float, float, float]


def place_block(truth: Mapping[str, Any], folder: Path | None = None) -> PhantomAtlas:
    """Return where a block lies in the atlas that `write_atlas` makes for it.

    Parameters
    ----------
    truth
        Content of ``truth.json``.
    folder
        Where the template's files lie; nilearn's data folder when absent.
    """
    import nibabel

    if truth["anatomy_axes"] != ANATOMY_AXES:
        raise InputError(
            f"truth.json: anatomy_axes {truth['anatomy_axes']!r}, expected {ANATOMY_AXES}"
        )
    template = load_template(folder)
    image = nibabel.as_closest_canonical(nibabel.load((folder or template_folder()) / _T1))
    um_per_mm = float(truth["anatomy_um_per_mm"])
    middle_mm = _middle_mm(template.grey, folder)
    p = truth["params"]
    block_um = np.array(_block_middle_um(p))
    # Rows S, A, R; columns depth (to posterior), axis 1 (to the right), axis 2 (to superior).
    linear = np.array([[0, 0, 1], [-1 / p["depth_scale"], 0, 0], [0, 1, 0]], dtype=float)
    matrix = np.eye(4)
    matrix[:3, :3] = linear
    matrix[:3, 3] = um_per_mm * middle_mm - linear @ block_um
    zooms = image.header.get_zooms()[2::-1]
    return PhantomAtlas(matrix.tolist(), tuple(float(z) * um_per_mm for z in zooms))  # type: ignore[arg-type]


def _block_middle_um(params: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return where the middle of the brain lies in the block (depth, axis 1, axis 2)."""
    import dataclasses

    from linumpy.phantom.params import PhantomParams

    names = {field.name for field in dataclasses.fields(PhantomParams)}
    known: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in params.items()
        if key in names
    }
    p = PhantomParams(**known)
    return (p.block_depth_um / 2, p.mosaic_um[0] / 2, p.mosaic_um[1] / 2)


def _middle_mm(cropped: np.ndarray, folder: Path | None) -> np.ndarray:
    """Return the middle of the cropped template in its world, mm (superior, anterior, right)."""
    import nibabel

    path = (folder or template_folder()) / "mni_icbm152_gm_tal_nlin_sym_09a_converted.nii.gz"
    image = nibabel.as_closest_canonical(nibabel.load(path))
    # The axes of the cropped template are superior, right, posterior.
    whole = np.asanyarray(image.dataobj).transpose(2, 0, 1)[:, :, ::-1]
    start = _find(whole, cropped)
    middle = np.array(start) + (np.array(cropped.shape) - 1) / 2
    index = (middle[1], whole.shape[2] - 1 - middle[2], middle[0])
    return (image.affine @ [*index, 1])[2::-1]


def _find(whole: np.ndarray, part: np.ndarray) -> tuple[int, ...]:
    """Return where `part` was cut out of `whole`, from the profiles of both."""
    start = []
    for axis in range(3):
        others = tuple(a for a in range(3) if a != axis)
        long, short = (m.sum(axis=others, dtype=np.int64) for m in (whole, part))
        # What was cropped away along the other axes holds next to nothing.
        misfit = [
            int(np.abs(long[k : k + short.size] - short).sum())
            for k in range(long.size - short.size + 1)
        ]
        start.append(int(np.argmin(misfit)))
    found = whole[tuple(slice(s, s + n) for s, n in zip(start, part.shape, strict=True))]
    if not np.array_equal(found, part):
        raise InputError("the template's T1 image and tissue maps do not lie on one grid")
    return tuple(start)


def write_atlas(
    output: Path | str, truth: Mapping[str, Any], folder: Path | None = None
) -> PhantomAtlas:
    """Write the atlas of a phantom, with its model beside it as ``atlas.json``.

    Parameters
    ----------
    output
        Folder for ``atlas.nii.gz`` and ``atlas.json``, such as the phantom's ``truth``.
    truth
        Content of ``truth.json``.
    folder
        Where the template's files lie; nilearn's data folder when absent.

    Raises
    ------
    InputError
        When the template is missing.
    """
    import nibabel

    from linumpy.io.atlas import write_nifti
    from linumpy.io.models import save_model

    output = Path(output)
    source = (folder or template_folder()) / _T1
    if not source.is_file():
        raise InputError(f"{source}: missing; expected the T1 image of nilearn's MNI152 template")
    model = place_block(truth, folder)
    image = nibabel.as_closest_canonical(nibabel.load(source))
    index_to_um = float(truth["anatomy_um_per_mm"]) * image.affine
    index_to_um[3, 3] = 1
    write_nifti(
        output / ATLAS_NAME,
        np.asanyarray(image.dataobj).transpose(2, 1, 0),
        index_to_um[[2, 1, 0, 3]][:, [2, 1, 0, 3]],
        overwrite=True,
    )
    save_model(output, MODEL_STEM, model)
    return model
