"""Export OME-Zarr volumes to NIfTI.

NIfTI's first axis is our axis 2 (NGFF ``x``), its second our axis 1 (NGFF ``y``), its third depth
(NGFF ``z``). Where the anatomical orientation is known, the affine leads to right, anterior,
superior, in millimetres. Otherwise its world is the volume's own (voxel size on the diagonal,
centre of voxel 0 in the last column), and the codes of sform and qform are 0: unknown, so that no
viewer writes letters that may be wrong.
"""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from linumpy.core.errors import InputError
from linumpy.geometry.orientation import ATLAS_CODE, direction_matrix, parse_orientation
from linumpy.io.anatomy import stated_orientation
from linumpy.store.atomic import atomic_path, refuse_existing

if TYPE_CHECKING:
    from linumpy.io.axes import Choice
    from linumpy.io.omezarr import Image

SAME_VOXEL = 0.01
UNKNOWN, SCANNER, ALIGNED = 0, 1, 2
"""Codes of sform and qform: none of the body, anatomical, those of an atlas."""

_NIFTI1_MAX_SIDE = 32767
_INPUT_BYTES = 256 * 2**20


def convert_omezarr_to_nifti(
    image_path: Path | str,
    output: Path | str,
    resolution_um: float | None = None,
    *,
    assume_unit: str | None = None,
    choice: Choice | None = None,
    orientation: str = "",
    overwrite: bool = False,
) -> tuple[tuple[float, float, float], str]:
    """Export a volume at a voxel size.

    A pyramid level whose voxels are within 1 % of that size on every axis is written as it is;
    otherwise the coarsest level that is fine enough is resampled to it, anti-aliased.

    Parameters
    ----------
    image_path
        OME-Zarr volume (z, axis 1, axis 2).
    output
        ``.nii`` or ``.nii.gz``.
    resolution_um
        Voxel side; None writes the finest level.
    assume_unit
        Unit to take where the metadata has none.
    choice
        Time and channel, as `linumpy.io.omezarr.open_image` takes them.
    orientation
        Where z, axis 1 and axis 2 point in the body, such as ``PRS``; what the volume's metadata
        state when empty.
    overwrite
        Whether an existing file may be replaced.

    Returns
    -------
    Voxel size written, um (z, axis 1, axis 2), and the orientation, empty when it is not known.

    Raises
    ------
    InputError
        When the volume cannot be read, is coarser than asked for, the name has no NIfTI ending, or
        the orientation is none, or another than the volume's own.
    OutputExistsError
        When `output` exists and `overwrite` is false.
    """
    from linumpy.io.omezarr import open_image

    output = refuse_existing(output, overwrite)
    if not output.name.endswith((".nii", ".nii.gz")):
        raise InputError(f"{output}: expected a name that ends in .nii or .nii.gz")
    given = parse_orientation(orientation, "--orientation") if orientation.strip() else ""
    image = open_image(image_path, assume_unit=assume_unit, choice=choice or {})
    stated = stated_orientation(image)
    if given and stated and given != stated:
        raise InputError(
            f"--orientation {given}: {image_path} itself states {stated}; leave the flag out"
        )
    data, voxel_um, corner_um = read_at(image, resolution_um)
    code = given or stated
    aligned = image.attributes.get("kind") == "aligned_brain"
    form = (ALIGNED if aligned else SCANNER) if code else UNKNOWN
    _write(output, data, affine_mm(voxel_um, corner_um, code), form, overwrite)
    return voxel_um, code


def read_at(
    image: Image, resolution_um: float | None
) -> tuple[np.ndarray, tuple[float, float, float], tuple[float, float, float]]:
    """Read a volume at a voxel size, from the level that is nearest.

    Returns
    -------
    float32 volume (z, axis 1, axis 2), voxel size and corner of voxel 0, um.
    """
    if resolution_um is None:
        level, exact = 0, True
    else:
        level, exact = _choose_level(image, resolution_um)
    array, scale = image.arrays[level], image.level_scales_um[level]
    corner = tuple(
        t - v / 2 for t, v in zip(image.level_translations_um[level], scale, strict=True)
    )
    if exact:
        return np.asarray(array[:], dtype=np.float32), scale, corner  # type: ignore[return-value]
    assert resolution_um is not None
    data = _resample(array, scale, resolution_um)
    return data, (resolution_um,) * 3, corner  # type: ignore[return-value]


def _choose_level(image: Image, resolution_um: float) -> tuple[int, bool]:
    """Return the level to read, and whether its voxels are those asked for."""
    if not 0 < resolution_um < math.inf:
        raise InputError(f"resolution {resolution_um} um: expected a positive number")
    fine_enough = None
    for level, scale in enumerate(image.level_scales_um):
        if all(abs(v / resolution_um - 1) <= SAME_VOXEL for v in scale):
            return level, True
        if all(v <= resolution_um * (1 + SAME_VOXEL) for v in scale):
            fine_enough = level
    if fine_enough is None:
        finest = " x ".join(f"{v:g}" for v in image.voxel_um)
        raise InputError(
            f"{image.path}: its finest voxels are {finest} um (z, axis 1, axis 2); "
            f"{resolution_um:g} um would invent detail, expected that size or coarser"
        )
    return fine_enough, False


def _resample(array: Any, scale_um: tuple[float, ...], resolution_um: float) -> np.ndarray:
    """Resample a zarr array, a slab of output planes at a time."""
    from linumpy.geometry.resample import apply_axis_weights, axis_weights, resampled_length

    shape = [
        resampled_length(n, v, resolution_um) for n, v in zip(array.shape, scale_um, strict=True)
    ]
    depth, rows, columns = (
        None if v == resolution_um else axis_weights(n, m, resolution_um / v)
        for n, m, v in zip(array.shape, shape, scale_um, strict=True)
    )
    plane_bytes = 4 * array.shape[1] * array.shape[2]
    planes = max(8, _INPUT_BYTES // plane_bytes)
    step = max(1, int(planes * scale_um[0] / resolution_um))
    out = np.empty(shape, dtype=np.float32)
    for start in range(0, shape[0], step):
        stop = min(start + step, shape[0])
        if depth is None:
            first, last, part = start, stop, None
        else:
            used = np.flatnonzero(depth[start:stop].any(axis=0))
            first, last = int(used[0]), int(used[-1]) + 1
            part = depth[start:stop, first:last]
        slab = np.asarray(array[first:last], dtype=np.float32)
        out[start:stop] = apply_axis_weights(slab, [part, rows, columns])
    return out


def affine_mm(
    voxel_um: tuple[float, float, float],
    corner_um: tuple[float, float, float],
    orientation: str = "",
) -> np.ndarray:
    """Return the 4 × 4 matrix from NIfTI indices (axis 2, axis 1, z) to millimetres.

    World axes are right, anterior, superior where the orientation of (z, axis 1, axis 2) is given,
    else (axis 2, axis 1, z).
    """
    directions = direction_matrix(orientation or ATLAS_CODE)[:, ::-1]
    voxel = np.asarray(voxel_um[::-1]) / 1000
    affine = np.eye(4)
    affine[:3, :3] = directions * voxel
    affine[:3, 3] = directions @ (np.asarray(corner_um[::-1]) / 1000 + voxel / 2)
    return affine


def write_picture(picture: Any, output: Path, *, overwrite: bool) -> None:
    """Write a nibabel image as ``.nii`` or ``.nii.gz``; it appears whole or not at all."""
    with atomic_path(output, overwrite=overwrite) as partial, partial.open("wb") as file:
        if output.name.endswith(".gz"):
            # No time and no name in the header: the same volume gives the same bytes.
            with gzip.GzipFile("", "wb", compresslevel=4, fileobj=file, mtime=0) as packed:
                picture.to_stream(packed)
        else:
            picture.to_stream(file)


def _write(output: Path, data: np.ndarray, affine: np.ndarray, form: int, overwrite: bool) -> None:
    import nibabel

    kind: Any = nibabel.Nifti2Image if max(data.shape) > _NIFTI1_MAX_SIDE else nibabel.Nifti1Image
    # Given the affine, nibabel would set a code when it is written.
    picture = kind(np.transpose(data, (2, 1, 0)), None)
    picture.header.set_xyzt_units("mm")
    picture.header["descrip"] = b"linumpy: i = axis 2 (x), j = axis 1 (y), k = depth (z)"
    picture.header.set_sform(affine, code=form)
    picture.header.set_qform(affine, code=form)
    write_picture(picture, output, overwrite=overwrite)
