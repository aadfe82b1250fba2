"""Convert a bare Zarr array to OME-Zarr."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.errors import InputError
from linumpy.io.convert import Box, Volume, native, write_volume
from linumpy.io.omezarr import Triple
from linumpy.io.zarr_io import zarr_context
from linumpy.store.atomic import refuse_existing
from linumpy.store.manifest import check_files
from linumpy.store.remote import RemotePath, as_path, storage


def convert_zarr_to_omezarr(
    path: Path | str,
    output: Path | str,
    voxel_um: Triple,
    resolutions_um: Sequence[float] | None = None,
    *,
    overwrite: bool = False,
) -> Volume:
    """Make an OME-Zarr 0.5 image of a bare Zarr array.

    Parameters
    ----------
    path
        Zarr array (v2 or v3) of the axes z, axis 1, axis 2; two axes are one plane.
    output
        OME-Zarr folder.
    voxel_um
        Voxel size (z, axis 1, axis 2).
    resolutions_um
        Voxel sizes of the coarser levels; None for 2, 4 and 8 times the finest.
    overwrite
        Whether an existing image may be replaced.

    Returns
    -------
    What was written.

    Raises
    ------
    InputError
        When there is no such array.
    OutputExistsError
        When `output` exists and `overwrite` is false.
    """
    import zarr

    output = refuse_existing(output, overwrite)
    path = as_path(path)
    if not isinstance(path, RemotePath):
        if not path.is_dir():
            raise InputError(f"{path}: no such Zarr array")
        check_files(path)
    with zarr_context():
        try:
            array: Any = zarr.open_array(storage(path), mode="r")
        except Exception as error:
            raise InputError(f"{path}: not a Zarr array ({error})") from error
    if array.ndim not in (2, 3) or min(array.shape) < 1:
        raise InputError(f"{path}: shape {array.shape}, expected three axes (z, axis 1, axis 2)")
    try:
        dtype = native(array.dtype)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None

    def read(box: Box) -> np.ndarray:
        data = array[box] if array.ndim == 3 else array[box[1:]][None]
        return np.asarray(data).astype(dtype, copy=False)

    volume = Volume(
        name=str(path),
        shape=(1,) * (3 - array.ndim) + tuple(array.shape),
        dtype=dtype,
        voxel_um=voxel_um,
        corner_um=(0.0, 0.0, 0.0),
        read=read,
        attributes={k: v for k, v in dict(array.attrs).items() if not k.startswith("_")},
    )
    write_volume(volume, output, resolutions_um, overwrite=overwrite)
    return volume
