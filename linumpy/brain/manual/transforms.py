"""Read and write manual transforms as ITK files: position of one slice's points in the next.

``slice_zNN/transform.tfm`` aligns slice NN with the slice before it. As ITK's resampling has it,
the map leads from the output to the input: it takes a stage position in the slice before (fixed)
to the stage position of the same tissue in slice NN (moving), um. So +tx moves what the moving
slice shows towards lower positions. ITK's x is array axis 2, its y axis 1, its z depth.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from linumpy.core.errors import InputError
from linumpy.geometry.zmorph import planar
from linumpy.store.atomic import atomic_path

FILE_NAME = "transform.tfm"

_FOLDER_NAME = re.compile(r"slice_z(\d+)")
_RIGID = 1e-4
_PROBE_UM = 1000.0


def write_transform(
    path: Path, matrix: np.ndarray, centre_um: Sequence[float], *, overwrite: bool = False
) -> None:
    """Write a rigid planar map as an ITK Euler transform in 3D that rotates about z.

    Parameters
    ----------
    path
        The ``.tfm`` file.
    matrix
        Map (3 × 3) from stage positions in the fixed slice to those in the moving one, um.
    centre_um
        Point that the rotation is written about, axis 1 and axis 2.
    overwrite
        Whether an existing file may be replaced.
    """
    import SimpleITK as sitk

    first, second = (float(c) for c in centre_um)
    transform = sitk.Euler3DTransform()
    transform.SetCenter((second, first, 0.0))
    # From x to y is from axis 2 to axis 1: the other way round than here.
    transform.SetRotation(0.0, 0.0, -float(np.arctan2(matrix[1, 0], matrix[0, 0])))
    moved = matrix @ (first, second, 1.0)
    transform.SetTranslation((float(moved[1] - second), float(moved[0] - first), 0.0))
    with atomic_path(path, overwrite=overwrite) as partial:
        # ITK chooses the format by the suffix.
        written = partial.with_name(partial.name + ".tfm")
        sitk.WriteTransform(transform, str(written))
        written.replace(partial)


def read_transform(path: Path) -> np.ndarray:
    """Read an ITK transform as a rigid planar map.

    Any linear transform in 2D or 3D is taken that rotates about z and shifts in the plane.

    Returns
    -------
    Map (3 × 3) from stage positions in the fixed slice to those in the moving one, um.

    Raises
    ------
    InputError
        When the file cannot be read, or what it holds is not such a map; names the file.
    """
    import SimpleITK as sitk

    try:
        transform = sitk.ReadTransform(str(path))
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise InputError(f"{path}: cannot be read as an ITK transform ({reason})") from error
    size = transform.GetDimension()
    points = np.vstack([np.zeros(size), np.eye(size), np.ones(size)]) * _PROBE_UM
    moved = np.array([transform.TransformPoint(point.tolist()) for point in points])
    linear = (moved[1 : size + 1] - moved[0]).T / _PROBE_UM
    straight = np.allclose(moved[-1] - moved[0], linear @ points[-1], atol=1e-3)
    if not straight or not np.isfinite(moved).all():
        raise InputError(f"{path}: a {transform.GetName()}, expected a rotation and a shift")
    flat = linear[:2, :2]
    if size == 3:
        upright = np.eye(3)
        upright[:2, :2] = flat
        if not np.allclose(linear, upright, atol=_RIGID) or abs(moved[0, 2]) > 1e-3:
            raise InputError(
                f"{path}: tilts the slice or moves it in depth; expected a rotation about z and a "
                "shift in the plane"
            )
    if not np.allclose(flat @ flat.T, np.eye(2), atol=_RIGID) or np.linalg.det(flat) < 0:
        raise InputError(f"{path}: stretches or mirrors; expected a rotation and a shift")
    return planar(flat[::-1, ::-1], moved[0, 1::-1])


def find_transforms(folder: Path, ids: Sequence[int]) -> dict[int, Path]:
    """Return the manual transforms of a folder by the id of their moving slice, sorted.

    Parameters
    ----------
    folder
        Holds ``slice_zNN/transform.tfm``.
    ids
        Slices that there are, in order.

    Raises
    ------
    InputError
        When the folder holds none, one is of a slice that is not there, of the first slice (which
        has none before it), or is given twice.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder of manual transforms")
    found: dict[int, Path] = {}
    for entry in sorted(folder.iterdir()):
        match = _FOLDER_NAME.match(entry.name)
        path = entry / FILE_NAME
        if match is None or not path.exists():
            continue
        slice_id = int(match.group(1))
        if slice_id in found:
            raise InputError(f"{found[slice_id]} and {path} are of one slice; expected one")
        if slice_id not in ids:
            raise InputError(
                f"{path}: there is no slice z{slice_id:02d} in use; "
                f"there are {', '.join(f'z{i:02d}' for i in ids)}"
            )
        if slice_id == min(ids):
            raise InputError(f"{path}: z{slice_id:02d} is the first slice; none lies before it")
        found[slice_id] = path
    if not found:
        raise InputError(f"{folder}: no slice_zNN/{FILE_NAME} in it")
    return dict(sorted(found.items()))
