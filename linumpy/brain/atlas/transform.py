"""Transform from brain to atlas: as numbers, as NGFF metadata, as an ITK file.

Here it is a 4 × 4 matrix from the brain's world (z, axis 1, axis 2), um, to the atlas' (superior,
anterior, right), um.

The ITK file has the direction of ITK's resampling: it maps a point of the atlas to the point of the
brain that is shown there, both in LPS millimetres as ITK reads NIfTI: those of the atlas, and
those of the brain as `linum_convert_omezarr_to_nifti.py` exports it with ``--orientation`` and the
orientation that was found. So

    sitk.Resample(brain_nifti, atlas_nifti, sitk.ReadTransform("x.tfm"))

shows the brain on the atlas' grid.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.errors import InputError
from linumpy.geometry.orientation import direction_matrix
from linumpy.store.atomic import write_text

_LPS_MM = np.array([[0, 0, -1e-3, 0], [0, -1e-3, 0, 0], [1e-3, 0, 0, 0], [0, 0, 0, 1]], dtype=float)
"""From (z, y, x) um to ITK's (−x, −y, z) mm; of an atlas that is from (S, A, R) to LPS."""


def parse_rotation(text: str) -> np.ndarray:
    """Return the rotation (3 × 3, in the frame superior, anterior, right) of ``Rx Ry Rz``.

    Degrees about the fixed axes to the right, to anterior and to superior, in this order,
    positive as a right-handed screw.

    Raises
    ------
    InputError
        When it is not three numbers.
    """
    if not text.strip():
        return np.eye(3)
    try:
        angles = [float(word) for word in text.replace(",", " ").split()]
    except ValueError:
        angles = []
    if len(angles) != 3 or not np.isfinite(angles).all():
        raise InputError(
            f"--ras_initial_rotation {text!r}: expected three angles 'Rx Ry Rz' in degrees"
        )
    from scipy.spatial.transform import Rotation

    turned = Rotation.from_euler("xyz", angles, degrees=True).as_matrix()
    return np.asarray(turned[::-1, ::-1])


def ngff_affine(matrix: np.ndarray, source: str, target: str) -> dict[str, Any]:
    """Return a matrix as an NGFF coordinate transformation of type ``affine``.

    Its form is that of NGFF's coordinate systems (RFC 5): rows of three axes, four numbers each.
    NGFF 0.5 has only scale and translation in ``multiscales``; hence it is in
    ``attributes.linumpy``.

    Parameters
    ----------
    matrix
        4 × 4.
    source, target
        Names of the coordinate systems.
    """
    return {
        "type": "affine",
        "name": f"{source} to {target}",
        "input": source,
        "output": target,
        "unit": "micrometer",
        "affine": np.asarray(matrix, dtype=float)[:3].tolist(),
    }


def itk_matrix(matrix: np.ndarray, orientation: str) -> np.ndarray:
    """Return the map (4 × 4) from the atlas' LPS mm to the brain's.

    Parameters
    ----------
    matrix
        4 × 4, from brain to atlas.
    orientation
        Where z, axis 1 and axis 2 of the brain point.
    """
    anatomical = np.eye(4)
    anatomical[:3, :3] = direction_matrix(orientation)[::-1]
    return np.asarray(_LPS_MM @ anatomical @ np.linalg.inv(matrix) @ np.linalg.inv(_LPS_MM))


def write_itk(
    path: Path | str, matrix: np.ndarray, orientation: str, *, overwrite: bool = False
) -> None:
    """Write the transform as an ITK text file (``.tfm``), from atlas to brain."""
    found = itk_matrix(matrix, orientation)
    numbers = [*found[:3, :3].ravel(), *found[:3, 3]]
    lines = [
        "#Insight Transform File V1.0",
        "#Transform 0",
        "Transform: AffineTransform_double_3_3",
        "Parameters: " + " ".join(repr(float(n)) for n in numbers),
        "FixedParameters: 0 0 0",
    ]
    write_text(path, "\n".join(lines) + "\n", overwrite=overwrite)


def principal_scales(matrix: np.ndarray) -> tuple[float, float, float]:
    """Return the size in the atlas over that in the brain, along z, axis 1, axis 2."""
    sides = np.linalg.norm(np.asarray(matrix)[:3, :3], axis=0)
    return tuple(float(side) for side in sides)  # type: ignore[return-value]


def tilt_deg(matrix: np.ndarray, axes: np.ndarray) -> float:
    """Return by how many degrees a transform rotates beyond the exchange of axes `axes` (3 × 3)."""
    u, _, v = np.linalg.svd(np.asarray(matrix)[:3, :3])
    turned = u @ v @ axes.T
    return float(np.degrees(np.arccos(np.clip((np.trace(turned) - 1) / 2, -1, 1))))
