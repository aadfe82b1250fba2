"""Atlases: one volume in anatomical space, from NIfTI, NRRD or OME-Zarr.

Whatever the file's axes, the array comes out as (z, y, x) nearest to (superior, anterior, right),
and positions are (superior, anterior, right) in micrometres: the file's own world coordinates,
with the signs of RAS. Files in which left, posterior or superior count up (LPS, as in ITK and
most NRRD) are converted.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.errors import InputError
from linumpy.geometry.orientation import (
    ATLAS_CODE,
    direction_matrix,
    orientation_of,
    parse_orientation,
    reorient,
    reorient_affine,
)
from linumpy.io.anatomy import stated_orientation
from linumpy.io.convert_nifti_file import check_nifti_size
from linumpy.io.nifti import write_picture
from linumpy.store.remote import as_path, local_file
from linumpy.store.untrusted import quoted

UNITS_UM = {
    "nanometer": 1e-3, "nm": 1e-3,
    "micrometer": 1.0, "micron": 1.0, "microns": 1.0, "um": 1.0, "µm": 1.0,
    "millimeter": 1e3, "mm": 1e3,
    "centimeter": 1e4, "cm": 1e4,
    "meter": 1e6, "m": 1e6,
}  # fmt: skip
"""Names of units of length, and their micrometres."""

_NRRD_SPACES = {
    "right-anterior-superior": (1, 1, 1), "ras": (1, 1, 1),
    "left-anterior-superior": (-1, 1, 1), "las": (-1, 1, 1),
    "left-posterior-superior": (-1, -1, 1), "lps": (-1, -1, 1),
}  # fmt: skip
_SHEAR = 1e-3
_GZIP_RATIO = 1032
_ALIGNED = 2


@dataclass(frozen=True)
class Atlas:
    """An atlas volume.

    Attributes
    ----------
    data
        Array (z, y, x) in the file's number type, NumPy or zarr; z, y, x are nearest to superior,
        anterior, right.
    index_to_um
        4 × 4, from voxel indices (z, y, x) to (superior, anterior, right), um. Its axes are
        orthogonal but may be oblique.
    """

    path: Path
    data: Any
    index_to_um: np.ndarray

    @property
    def voxel_um(self) -> tuple[float, float, float]:
        """Voxel size along z, y, x."""
        sides = np.linalg.norm(self.index_to_um[:3, :3], axis=0)
        return tuple(float(side) for side in sides)  # type: ignore[return-value]


def read_atlas(path: Path | str, *, orientation: str = "", unit: str = "") -> Atlas:
    """Read an atlas.

    Parameters
    ----------
    path
        ``.nii``, ``.nii.gz``, ``.nrrd``, ``.nhdr`` or a folder ``.ome.zarr``. The finest level is
        taken; zarr arrays stay on disk.
    orientation
        Where the file's axes point, three letters in the order of its header (NIfTI and NRRD:
        fastest axis first, OME-Zarr: z, y, x), when the file does not say or says it wrong. The
        centre of voxel 0 then is the origin.
    unit
        Unit of length of a file that names none.

    Raises
    ------
    InputError
        When the file cannot be read, has other than three axes, no spacing, no unit, no
        orientation, sheared axes, or holds nothing but one value. Names the file, and the
        parameter that helps.
    """
    path = as_path(path)
    code = parse_orientation(orientation, "--atlas_orientation") if orientation else ""
    if unit and unit.lower() not in UNITS_UM:
        raise InputError(f"--atlas_unit {unit!r}: expected one of {', '.join(UNITS_UM)}")
    if not path.exists():
        raise InputError(f"{path}: no such atlas (--atlas)")
    name = path.name.lower()
    if path.is_dir():
        data, to_ras = _read_omezarr(path, code, unit)
    elif name.endswith((".nii", ".nii.gz")):
        data, to_ras = _read_nifti(local_file(path), code, unit)
    elif name.endswith((".nrrd", ".nhdr")):
        data, to_ras = _read_nrrd(local_file(path), code, unit)
    else:
        raise InputError(
            f"{path}: expected an atlas as .nii, .nii.gz, .nrrd, .nhdr or a folder .ome.zarr"
        )
    return _in_order(path, data, to_ras)


def _in_order(path: Path, data: Any, to_ras_um: np.ndarray) -> Atlas:
    """Bring axes to (superior, anterior, right), and check what came out."""
    linear = to_ras_um[:3, :3]
    sides = np.linalg.norm(linear, axis=0)
    _refuse_flat(path, sides)
    if min(data.shape) < 2:
        raise InputError(f"{path}: shape {tuple(data.shape)}, expected a volume")
    unit = linear / sides
    if np.abs(unit.T @ unit - np.eye(3)).max() > _SHEAR:
        raise InputError(f"{path}: its axes are not at right angles; resample it to a plain grid")
    code = orientation_of(linear)
    moves = reorient_affine(data.shape, code, ATLAS_CODE)
    if code != ATLAS_CODE:
        data = reorient(np.asarray(data), code, ATLAS_CODE)
    # Rows come as right, anterior, superior.
    index_to_um = (to_ras_um @ moves)[[2, 1, 0, 3]]
    low, high = _range(data)
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InputError(f"{path}: holds numbers that are not finite")
    if low == high:
        raise InputError(f"{path}: every voxel is {low:g}; expected an image of a brain")
    return Atlas(path, data, index_to_um)


def _refuse_flat(path: Path, voxel_um: Any) -> None:
    if not all(0 < v < math.inf for v in voxel_um):
        sides = " x ".join(f"{v:g}" for v in voxel_um)
        raise InputError(f"{path}: voxel size {sides} um, expected three positive numbers")


def _range(data: Any) -> tuple[float, float]:
    """Return the smallest and the largest value, read plane by plane."""
    low, high = math.inf, -math.inf
    step = max(1, 2**24 // math.prod(data.shape[1:]))
    for start in range(0, data.shape[0], step):
        planes = np.asarray(data[start : start + step])
        # NaN must not hide in a comparison.
        if planes.dtype.kind == "f" and not np.isfinite(planes).all():
            return math.nan, math.nan
        low, high = min(low, float(planes.min())), max(high, float(planes.max()))
    return low, high


def _by_letters(code: str, voxel_um: Any) -> np.ndarray:
    """Return the map to RAS of axes that point as the letters say, voxel 0 at the origin."""
    matrix = np.eye(4)
    matrix[:3, :3] = direction_matrix(code) * np.asarray(voxel_um, dtype=float)
    return matrix


def _unit_um(path: Path, found: str | None, given: str) -> float:
    """Return the micrometres of a file's unit; `given` stands in where there is none."""
    unit = (found or given).strip().lower()
    if not unit:
        raise InputError(
            f"{path}: names no unit of length; say which with --atlas_unit, such as millimeter"
        )
    if unit not in UNITS_UM:
        raise InputError(f"{path}: unit {found!r}; expected one of {', '.join(UNITS_UM)}")
    return UNITS_UM[unit]


def _needs_letters(path: Path, what: str) -> InputError:
    return InputError(
        f"{path}: {what}, so that its orientation is unknown; give it with "
        "--atlas_orientation, such as PIR"
    )


def _read_nifti(path: Path, code: str, unit: str) -> tuple[np.ndarray, np.ndarray]:
    import nibabel
    from nibabel.filebasedimages import ImageFileError

    try:
        image: Any = nibabel.load(path)
        header = image.header
        shape = image.shape
        if len(shape) > 3 and all(n == 1 for n in shape[3:]):
            shape = shape[:3]
        if len(shape) != 3:
            raise InputError(f"{path}: {len(shape)} axes {shape}, expected a volume of 3")
        units = header.get_xyzt_units()[0] if hasattr(header, "get_xyzt_units") else None
        scale_um = _unit_um(path, None if units == "unknown" else units, unit)
        voxel_um = [float(v) * scale_um for v in header.get_zooms()[:3]]
        _refuse_flat(path, voxel_um)
        needed = int(image.dataobj.offset) + header.get_data_dtype().itemsize * math.prod(shape)
        check_nifti_size(path, needed)
        data = np.asanyarray(image.dataobj).reshape(shape)
    except InputError:
        raise
    except (ImageFileError, OSError, EOFError, ValueError) as error:
        raise InputError(f"{path}: not a readable NIfTI file ({error})") from error
    if code:
        return data, _by_letters(code, voxel_um)
    if not (header["sform_code"] > 0 or header["qform_code"] > 0):
        raise _needs_letters(path, "its sform and qform are not set")
    matrix = np.array(image.affine, dtype=float)
    matrix[:3] *= scale_um
    return data, matrix


def write_nifti(
    output: Path | str, data: np.ndarray, index_to_um: np.ndarray, *, overwrite: bool = False
) -> None:
    """Write a volume in anatomical space as NIfTI: axes (x, y, z) to right, anterior, superior.

    Parameters
    ----------
    output
        ``.nii`` or ``.nii.gz``.
    data, index_to_um
        As in `Atlas`.
    overwrite
        Whether an existing file may be replaced.
    """
    import nibabel

    output = Path(output)
    affine = index_to_um[[2, 1, 0, 3]][:, [2, 1, 0, 3]].copy()
    affine[:3] /= 1000
    picture = nibabel.Nifti1Image(data.transpose(2, 1, 0), affine)
    picture.header.set_xyzt_units("mm")
    picture.set_sform(affine, code=_ALIGNED)
    picture.set_qform(affine, code=_ALIGNED)
    write_picture(picture, output, overwrite=overwrite)


def _read_nrrd(path: Path, code: str, unit: str) -> tuple[np.ndarray, np.ndarray]:
    import SimpleITK as sitk

    fields = nrrd_header(path)
    if fields.get("dimension") != "3":
        raise InputError(f"{path}: {fields.get('dimension')} axes, expected a volume of 3")
    _check_nrrd_size(path, fields)
    names = re.findall(r'"([^"]*)"', fields.get("space units", fields.get("units", "")))
    if len(set(names)) > 1:
        raise InputError(f"{path}: units {names}, expected one for all axes")
    scale_um = _unit_um(path, names[0] if names else None, unit)
    space = fields.get("space", "").lower()
    directions = _vectors(path, fields.get("space directions", ""))
    if directions is None and "spacings" in fields:
        directions = np.diag(_numbers(path, "spacings", fields["spacings"]))
    if directions is None or not np.isfinite(directions).all():
        raise InputError(f"{path}: neither space directions nor spacings; expected a voxel size")
    voxel_um = np.linalg.norm(directions, axis=0) * scale_um
    _refuse_flat(path, voxel_um)
    try:
        # ITK's first axis is the last of the array.
        data = sitk.GetArrayFromImage(sitk.ReadImage(str(path))).transpose()
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise InputError(f"{path}: not a readable NRRD file ({reason})") from error
    if data.ndim != 3:
        raise InputError(f"{path}: {data.ndim} axes, expected a volume of 3")
    if code:
        return data, _by_letters(code, voxel_um)
    if space not in _NRRD_SPACES or "space directions" not in fields:
        raise _needs_letters(path, "its header names no anatomical space")
    matrix = np.eye(4)
    matrix[:3, :3] = directions * scale_um
    origin = _vectors(path, fields.get("space origin", ""))
    matrix[:3, 3] = 0 if origin is None else origin[:, 0] * scale_um
    matrix[:3] *= np.array(_NRRD_SPACES[space])[:, None]
    return data, matrix


def _check_nrrd_size(path: Path, fields: dict[str, str]) -> None:
    """Refuse data that lie elsewhere than beside the header, or cannot be as many as it says."""
    name = fields.get("data file", fields.get("datafile", path.name))
    if "/" in name or name in ("", ".", "..") or not (path.parent / name).is_file():
        raise InputError(f"{path}: data file {quoted(name)}, expected the name of one beside it")
    n_values = math.prod(int(side) for side in _numbers(path, "sizes", fields.get("sizes", "")))
    packed = fields.get("encoding", "raw").lower() not in ("raw", "txt", "text", "ascii", "hex")
    nbytes = (path.parent / name).stat().st_size
    if not 0 < n_values <= nbytes * (_GZIP_RATIO if packed else 1):
        raise InputError(f"{path}: {nbytes} bytes in {quoted(name)}, its header has {n_values}")


def nrrd_header(path: Path) -> dict[str, str]:
    """Return the fields of an NRRD header, names in small letters.

    Raises
    ------
    InputError
        When the file is no NRRD.
    """
    fields: dict[str, str] = {}
    try:
        with path.open("rb") as file:
            if not file.readline(16).startswith(b"NRRD"):
                raise InputError(f"{path}: not an NRRD file")
            for raw in iter(lambda: file.readline(2**16), b""):
                line = raw.decode("utf-8", "replace").strip()
                if not line:
                    break
                name, colon, value = line.partition(":")
                if colon and not line.startswith("#") and not value.startswith("="):
                    fields[name.strip().lower()] = value.strip()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    return fields


def _vectors(path: Path, text: str) -> np.ndarray | None:
    """Return the vectors ``(a,b,c) (d,e,f) …`` of a header as columns; None without any."""
    found = re.findall(r"\(([^)]*)\)", text)
    if not found:
        return None
    columns = [_numbers(path, text, vector.replace(",", " ")) for vector in found]
    if any(len(column) != 3 for column in columns):
        raise InputError(f"{path}: {text!r}, expected vectors of three numbers")
    return np.array(columns).T


def _numbers(path: Path, name: str, text: str) -> list[float]:
    try:
        return [float(word) for word in text.split()]
    except ValueError:
        raise InputError(f"{path}: {name} {text!r}, expected numbers") from None


def _read_omezarr(path: Path, code: str, unit: str) -> tuple[Any, np.ndarray]:
    from linumpy.io.axes import MICROMETRES_PER_UNIT
    from linumpy.io.omezarr import open_image

    # OME-Zarr spells its units out; the names here have short forms too.
    names = {um: name for name, um in reversed(MICROMETRES_PER_UNIT.items())}
    unit = names[UNITS_UM[unit.lower()]] if unit else ""
    image = open_image(path, assume_unit=unit, choice={})
    if code:
        return image.array, _by_letters(code, image.voxel_um)
    code = stated_orientation(image)
    if not code:
        raise _needs_letters(path, "its metadata name no anatomical orientation")
    matrix = _by_letters(code, image.voxel_um)
    matrix[:3, 3] = direction_matrix(code) @ np.asarray(image.translation_um)
    return image.array, matrix
