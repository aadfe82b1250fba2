"""Convert NIfTI volumes: to OME-Zarr, to NRRD, reoriented, resampled.

As in `linumpy.io.nifti`, NIfTI's first index becomes axis 2, its second axis 1, its third depth.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.device import to_host
from linumpy.core.errors import InputError
from linumpy.geometry.orientation import ATLAS_CODE
from linumpy.io.convert import Box, Volume, native, whole_numbers, write_volume
from linumpy.io.convert_nifti_file import (
    SLAB_BYTES,
    form_code,
    nifti_name,
    obliqueness_deg,
    open_nifti,
    reoriented,
    write_nifti,
)
from linumpy.store.atomic import atomic_path, refuse_existing

_OBLIQUE_DEG = 0.5
_NRRD_TYPES = {
    ("u", 1): "uint8", ("u", 2): "uint16", ("u", 4): "uint32", ("u", 8): "uint64",
    ("i", 1): "int8", ("i", 2): "int16", ("i", 4): "int32", ("i", 8): "int64",
    ("f", 4): "float", ("f", 8): "double",
}  # fmt: skip


def convert_nifti_to_zarr(
    path: Path | str,
    output: Path | str,
    resolutions_um: list[float] | None = None,
    *,
    assume_unit: str | None = None,
    overwrite: bool = False,
) -> Volume:
    """Convert a NIfTI volume to OME-Zarr 0.5.

    Axes are put in order first, so that axis 2 runs to the right, axis 1 to anterior and depth to
    superior, which ``attributes.linumpy.orientation`` states where the file does: what
    `linumpy.io.nifti` exported comes back as it was. The rotation of a tilted volume
    cannot be stored in NGFF 0.5; its affine goes to ``attributes.linumpy.nifti_affine_mm``.

    Parameters
    ----------
    path
        ``.nii`` or ``.nii.gz`` with three axes.
    output
        OME-Zarr folder.
    resolutions_um
        Voxel sizes of the coarser levels; None for 2, 4 and 8 times the finest.
    assume_unit
        Unit where the header has none.
    overwrite
        Whether an existing image may be replaced.

    Returns
    -------
    What was written.

    Raises
    ------
    InputError
        When the file cannot be understood.
    OutputExistsError
        When `output` exists and `overwrite` is false.
    """
    from linumpy.core.log import logger

    output = refuse_existing(output, overwrite)
    output.parent.mkdir(parents=True, exist_ok=True)
    with open_nifti(path, output.parent, assume_unit=assume_unit) as nifti:
        view, affine = reoriented(nifti)
        voxel = 1000 * np.linalg.norm(affine[:3, :3], axis=0)[::-1]
        corner = 1000 * affine[:3, 3][::-1] - voxel / 2
        attributes: dict[str, Any] = {}
        if form_code(nifti.header):
            attributes["orientation"] = ATLAS_CODE
        if obliqueness_deg(affine) > _OBLIQUE_DEG:
            logger.warning(
                "%s: tilted by %.1f degrees, which NGFF 0.5 cannot store; voxels stay as they are",
                path,
                obliqueness_deg(affine),
            )
            attributes["nifti_affine_mm"] = affine.tolist()

        def read(box: Box) -> np.ndarray:
            z, i, j = box
            return nifti.values(view[j, i, z].transpose(2, 1, 0))

        volume = Volume(
            name=str(path),
            shape=view.shape[::-1],
            dtype=nifti.dtype,
            voxel_um=tuple(float(v) for v in voxel),  # type: ignore[arg-type]
            corner_um=tuple(float(c) for c in corner),  # type: ignore[arg-type]
            read=read,
            attributes=attributes,
        )
        write_volume(volume, output, resolutions_um, overwrite=overwrite)
    return volume


def reorient_nifti_to_ras(
    path: Path | str,
    output: Path | str,
    *,
    assume_unit: str | None = None,
    overwrite: bool = False,
) -> str:
    """Write a NIfTI volume with its axes in the order right, anterior, superior.

    Voxels are moved, never interpolated: every voxel keeps value and world position.

    Returns
    -------
    Where i, j, k pointed before, such as ``LPS``.

    Raises
    ------
    InputError, OutputExistsError
        As `convert_nifti_to_zarr`; also when the codes of sform and qform are 0.
    """
    import nibabel

    output = nifti_name(refuse_existing(output, overwrite))
    output.parent.mkdir(parents=True, exist_ok=True)
    with open_nifti(path, output.parent, assume_unit=assume_unit) as nifti:
        if not form_code(nifti.header):
            raise InputError(
                f"{path}: the codes of its sform and qform are 0, so that its orientation is not "
                "known; export it with linum_convert_omezarr_to_nifti.py --orientation"
            )
        view, affine = reoriented(nifti)
        write_nifti(
            output,
            view.shape,
            native(nifti.data.dtype),
            affine,
            lambda planes: view[:, :, planes],
            form=form_code(nifti.header),
            like=nifti,
            overwrite=overwrite,
        )
        return "".join(nibabel.orientations.aff2axcodes(nifti.affine_mm))


def resample_nifti(
    path: Path | str,
    output: Path | str,
    voxel_um: tuple[float, float, float],
    *,
    assume_unit: str | None = None,
    overwrite: bool = False,
) -> tuple[int, int, int]:
    """Write a NIfTI volume at another voxel size: anti-aliased, linear.

    The corner of voxel 0 stays where it is, and a last fraction of a voxel is cut off. Whole
    numbers are rounded and stay whole numbers.

    Parameters
    ----------
    path, output
        ``.nii`` or ``.nii.gz``.
    voxel_um
        Voxel size along k, j, i.

    Returns
    -------
    Voxels written along i, j, k.

    Raises
    ------
    InputError, OutputExistsError
        As `convert_nifti_to_zarr`.
    """
    from linumpy.geometry.resample import apply_axis_weights, resampling_matrices

    output = nifti_name(refuse_existing(output, overwrite))
    output.parent.mkdir(parents=True, exist_ok=True)
    with open_nifti(path, output.parent, assume_unit=assume_unit) as nifti:
        source = [float(v) * 1000 for v in nifti.voxel_mm[::-1]]
        # A size that differs by rounding alone is the same size.
        target = [s if abs(s / t - 1) < 1e-6 else t for s, t in zip(source, voxel_um, strict=True)]
        matrices = resampling_matrices(nifti.data.shape[::-1], source, target)
        shape = tuple(
            n if m is None else len(m)
            for n, m in zip(nifti.data.shape[::-1], matrices, strict=True)
        )
        scale = np.asarray(target[::-1]) / source[::-1]
        affine = nifti.affine_mm.copy()
        affine[:3, :3] *= scale
        affine[:3, 3] += nifti.affine_mm[:3, :3] @ ((scale - 1) / 2)

        def read(planes: slice) -> np.ndarray:
            depth, first = None, planes.start
            last = planes.stop
            if matrices[0] is not None:
                part = matrices[0][planes]
                used = np.flatnonzero(part.any(axis=0))
                first, last = int(used[0]), int(used[-1]) + 1
                depth = part[:, first:last]
            slab = nifti.values(nifti.data[:, :, first:last]).astype(np.float32).transpose(2, 1, 0)
            moved = to_host(apply_axis_weights(slab, [depth, *matrices[1:]])).transpose(2, 1, 0)
            return whole_numbers(moved, nifti.dtype) if nifti.dtype.kind in "ui" else moved

        write_nifti(
            output, shape[::-1], nifti.dtype, affine, read,
            form=form_code(nifti.header), overwrite=overwrite,
            read_planes=1 if matrices[0] is None else max(1, round(scale[2])),
        )  # fmt: skip
    return shape[::-1]  # type: ignore[return-value]


def convert_nifti_to_nrrd(
    path: Path | str,
    output: Path | str,
    *,
    assume_unit: str | None = None,
    overwrite: bool = False,
) -> None:
    """Convert a NIfTI volume to NRRD: the same voxels, at the same places.

    The space is left-posterior-superior in millimetres, which is what ITK and 3D Slicer use. Where
    the orientation is not known (codes 0), it is a space of 3 axes without a name.

    Parameters
    ----------
    path
        ``.nii`` or ``.nii.gz``.
    output
        ``.nrrd``, packed by gzip.

    Raises
    ------
    InputError, OutputExistsError
        As `convert_nifti_to_zarr`.
    """
    output = refuse_existing(output, overwrite)
    if output.suffix != ".nrrd":
        raise InputError(f"{output}: expected a name that ends in .nrrd")
    output.parent.mkdir(parents=True, exist_ok=True)
    with open_nifti(path, output.parent, assume_unit=assume_unit) as nifti:
        known = form_code(nifti.header) > 0
        lps = np.diag([-1.0, -1, 1] if known else [1.0, 1, 1]) @ nifti.affine_mm[:3]
        dtype = nifti.dtype.newbyteorder("<")
        fields = {
            "type": _NRRD_TYPES[dtype.kind, dtype.itemsize],
            "dimension": "3",
            **({"space": "left-posterior-superior"} if known else {"space dimension": "3"}),
            "sizes": " ".join(str(n) for n in nifti.data.shape),
            "space directions": " ".join(_vector(lps[:, axis]) for axis in range(3)),
            "kinds": "domain domain domain",
            "space units": '"mm" "mm" "mm"',
            "endian": "little",
            "encoding": "gzip",
            "space origin": _vector(lps[:, 3]),
        }
        if dtype.itemsize == 1:
            del fields["endian"]
        text = "NRRD0005\n" + "".join(f"{key}: {value}\n" for key, value in fields.items()) + "\n"
        plane_bytes = dtype.itemsize * nifti.data.shape[0] * nifti.data.shape[1]
        planes = max(1, SLAB_BYTES // plane_bytes)
        with (
            atomic_path(output, overwrite=overwrite) as partial,
            partial.open("wb") as file,
        ):
            file.write(text.encode("ascii"))
            with gzip.GzipFile("", "wb", compresslevel=4, fileobj=file, mtime=0) as packed:
                for start in range(0, nifti.data.shape[2], planes):
                    data = nifti.values(nifti.data[:, :, start : start + planes])
                    packed.write(data.astype(dtype, copy=False).tobytes("F"))


def _vector(values: np.ndarray) -> str:
    return "(" + ",".join(repr(float(v) + 0.0) for v in values) + ")"
