"""Read and write NIfTI files part by part.

A NIfTI volume is indexed (i, j, k), i fastest on disk. Its world is right, anterior, superior in
millimetres.
"""

from __future__ import annotations

import gzip
import io
import math
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.errors import InputError
from linumpy.core.log import logger
from linumpy.io.convert import native, unit_um
from linumpy.store.atomic import atomic_path
from linumpy.store.remote import local_file

ENDINGS = (".nii", ".nii.gz")
SLAB_BYTES = 128 * 2**20
_UNITS = {1: "meter", 2: "millimeter", 3: "micrometer"}
_COPY_BYTES = 16 * 2**20
# The most bytes that a byte of gzip can hold.
_GZIP_RATIO = 1032


@dataclass(frozen=True)
class Nifti:
    """A NIfTI volume, opened.

    Attributes
    ----------
    data
        As stored, shape (i, j, k), mapped from the file.
    slope, intercept
        What stored values are scaled by; 1 and 0 for not at all.
    affine_mm
        4 × 4, from (i, j, k) to right, anterior, superior in mm.
    header
        nibabel's header.
    """

    path: Path
    data: np.ndarray
    slope: float
    intercept: float
    affine_mm: np.ndarray
    header: Any

    @property
    def voxel_mm(self) -> np.ndarray:
        """Voxel size along i, j, k."""
        return np.asarray(np.linalg.norm(self.affine_mm[:3, :3], axis=0))

    @property
    def dtype(self) -> np.dtype:
        """Type of the values that are meant: float32 where stored ones are scaled."""
        return np.dtype(np.float32) if self.is_scaled else native(self.data.dtype)

    @property
    def is_scaled(self) -> bool:
        """Whether stored values are not yet those that are meant."""
        return (self.slope, self.intercept) != (1.0, 0.0)

    def values(self, stored: np.ndarray) -> np.ndarray:
        """Return the values that stored ones mean, in the machine's byte order."""
        if self.is_scaled:
            return (stored * self.slope + self.intercept).astype(np.float32)
        return stored.astype(self.dtype)


def nifti_name(path: Path | str) -> Path:
    """Return a path that is to be written, when its name is one of NIfTI.

    Raises
    ------
    InputError
        When it ends otherwise.
    """
    path = Path(path)
    if not path.name.endswith(ENDINGS):
        raise InputError(f"{path}: expected a name that ends in .nii or .nii.gz")
    return path


@contextmanager
def open_nifti(
    path: Path | str, scratch: Path | str, *, assume_unit: str | None = None
) -> Iterator[Nifti]:
    """Open a NIfTI volume without loading it.

    Parameters
    ----------
    path
        ``.nii`` or ``.nii.gz``.
    scratch
        Folder for what a compressed file holds, while it is open.
    assume_unit
        Unit where the header has none.

    Raises
    ------
    InputError
        When it is no NIfTI volume of three axes, is cut short, or its unit is unknown and not
        assumed.
    """
    import nibabel

    path = local_file(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        image: Any = nibabel.load(path)
        header = image.header
        units = int(header["xyzt_units"]) & 0x07
        shape = tuple(int(n) for n in image.shape)
        stored = header.get_data_dtype()
        slope, intercept = image.dataobj.slope, image.dataobj.inter
        offset = int(image.dataobj.offset)
    except Exception as error:
        raise InputError(f"{path}: not a NIfTI volume ({error})") from error
    while len(shape) > 3 and shape[-1] == 1:
        shape = shape[:-1]
    if len(shape) != 3 or min(shape) < 1:
        raise InputError(f"{path}: {image.shape} voxels, expected three axes")
    try:
        native(stored)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    unit = _UNITS.get(units) or assume_unit
    if not unit:
        raise InputError(f"{path}: its header names no unit; name it with --assume_unit")
    if units not in _UNITS:
        logger.info("%s: names no unit; taken to be %s, by --assume_unit", path, unit)
    found = np.asarray(image.affine)
    known = form_code(header) > 0
    if not known and np.linalg.det(header.get_sform()[:3, :3]) != 0:
        # Code 0 with a matrix: the volume's own frame, as linumpy exports it. nibabel would flip i.
        found = header.get_sform()
    affine = np.diag([1.0, 1, 1, 1000]) @ found * unit_um(unit, str(path)) / 1000
    affine[3] = [0, 0, 0, 1]
    if not np.isfinite(affine).all() or abs(np.linalg.det(affine[:3, :3])) == 0:
        raise InputError(f"{path}: its affine {found.tolist()} maps to no volume")
    needed = offset + stored.itemsize * math.prod(shape)
    check_nifti_size(path, needed)
    with ExitStack() as stack:
        plain = path
        if path.name.endswith(".gz"):
            plain = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=scratch))) / "volume"
            _unpack(path, plain, needed)
        if plain.stat().st_size < needed:
            raise InputError(
                f"{path}: holds {plain.stat().st_size} bytes, its header asks for {needed}"
            )
        data = np.memmap(plain, stored, "r", offset, shape, "F")
        yield Nifti(path, data, float(slope), float(intercept), affine, header)


def form_code(header: Any) -> int:
    """Return what a header's affine leads to, as NIfTI numbers it; 0 when that is not known."""
    return int(header["sform_code"]) or int(header["qform_code"])


def check_nifti_size(path: Path, needed: int) -> None:
    """Refuse a file that cannot hold what its header asks for, before room is made for it.

    Raises
    ------
    InputError
        Naming the file and both sizes.
    """
    nbytes = path.stat().st_size
    most = nbytes * (_GZIP_RATIO if path.name.endswith(".gz") else 1)
    if most < needed:
        raise InputError(f"{path}: holds {nbytes} bytes, its header asks for {needed}")


def _unpack(path: Path, plain: Path, needed: int) -> None:
    """Unpack a volume and no more than that, to the end where the checksum is compared."""
    try:
        with gzip.open(path) as packed, plain.open("wb") as file:
            left = needed + _COPY_BYTES
            while left and (piece := packed.read(min(left, _COPY_BYTES))):
                file.write(piece)
                left -= len(piece)
            if not left and packed.read(1):
                raise InputError(f"{path}: holds more than the {needed} bytes of its header")
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be unpacked ({error})") from error


def closest_axes(affine_mm: np.ndarray) -> tuple[list[int], list[int]]:
    """Return which index runs along right, anterior and superior, and with which sign.

    Every index gets the world axis that it is nearest to, as nibabel assigns them.
    """
    import nibabel

    orientation = nibabel.orientations.io_orientation(affine_mm)
    order = [int(np.flatnonzero(orientation[:, 0] == axis)[0]) for axis in range(3)]
    return order, [int(orientation[axis, 1]) for axis in order]


def reoriented(nifti: Nifti) -> tuple[np.ndarray, np.ndarray]:
    """Return a view of the stored voxels whose indices run to right, anterior, superior.

    Returns
    -------
    View of shape (i, j, k), and its affine in mm.
    """
    order, signs = closest_axes(nifti.affine_mm)
    view = nifti.data.transpose(order)
    affine = nifti.affine_mm.copy()
    affine[:, :3] = nifti.affine_mm[:, order]
    for axis, sign in enumerate(signs):
        if sign < 0:
            view = np.flip(view, axis)
            affine[:3, 3] += affine[:3, axis] * (view.shape[axis] - 1)
            affine[:3, axis] *= -1
    return view, affine


def obliqueness_deg(affine_mm: np.ndarray) -> float:
    """Return the largest angle between an index and the world axis that it is nearest to."""
    directions = affine_mm[:3, :3] / np.linalg.norm(affine_mm[:3, :3], axis=0)
    cosines = np.abs(directions).max(axis=0).clip(max=1)
    return float(np.degrees(np.arccos(cosines)).max())


def write_nifti(
    output: Path,
    shape: tuple[int, ...],
    dtype: np.dtype,
    affine_mm: np.ndarray,
    read: Callable[[slice], np.ndarray],
    *,
    form: int,
    like: Nifti | None = None,
    overwrite: bool = False,
    read_planes: int = 1,
) -> None:
    """Write a NIfTI file some planes at a time.

    Parameters
    ----------
    output
        ``.nii`` or ``.nii.gz``; it appears when all went well.
    shape, dtype
        Voxels (i, j, k) and their type on disk.
    affine_mm
        From indices to millimetres.
    read
        Returns planes along k, shape (i, j, planes), as they are to be stored.
    form
        Code of sform and qform (`form_code`).
    like
        Scaling is taken from its header.
    read_planes
        How many planes are read for one that is written.
    """
    import nibabel

    kind: Any = (
        nibabel.Nifti2Header if max(shape) > np.iinfo(np.int16).max else nibabel.Nifti1Header
    )
    header = kind()
    header.set_data_dtype(dtype)
    header.set_data_shape(shape)
    header.set_xyzt_units("mm")
    header.set_sform(affine_mm, code=form)
    header.set_qform(affine_mm, code=form, strip_shears=True)
    header["magic"] = header.single_magic
    header["vox_offset"] = header.single_vox_offset
    header["scl_slope"], header["scl_inter"] = (
        (like.slope, like.intercept) if like is not None and like.is_scaled else (np.nan, np.nan)
    )
    planes = max(1, SLAB_BYTES // (4 * shape[0] * shape[1] * read_planes))
    with (
        atomic_path(output, overwrite=overwrite) as partial,
        partial.open("wb") as file,
        ExitStack() as stack,
    ):
        sink: Any = file
        if output.name.endswith(".gz"):
            # No time and no name in the header: the same volume gives the same bytes.
            sink = stack.enter_context(
                gzip.GzipFile("", "wb", compresslevel=4, fileobj=file, mtime=0)
            )
        start_of_file = io.BytesIO()
        header.write_to(start_of_file)
        sink.write(start_of_file.getvalue().ljust(int(header["vox_offset"]), b"\0"))
        for start in range(0, shape[2], planes):
            data = read(slice(start, min(start + planes, shape[2])))
            sink.write(data.astype(dtype, copy=False).tobytes("F"))
