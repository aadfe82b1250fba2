"""Register one pair of slices, from their volumes to a transform file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.device import CPU, Device
from linumpy.core.errors import InputError
from linumpy.store.atomic import refuse_existing, write_text

STEM = "register_pairwise"
OFFSETS_NAME = "offsets.txt"


@dataclass(frozen=True)
class PairwiseRegistration:
    """Registration of one slice with another.

    Attributes
    ----------
    shift_um, rotation_deg, centre_um
        z, axis 1, axis 2: where the moving slice's point `centre_um` lies in the fixed slice's
        frame, minus that point; and the rotation of the moving slice. Zero when nothing was found.
    z_correlation
        Correlation of the planes that match best.
    confidence
        Between 0 and 1; one half where pairs are accepted.
    plane_fixed, plane_moving
        Those planes.
    reason
        Why the pair is not accepted; empty if it is.
    """

    fixed_id: int
    moving_id: int
    voxel_um: tuple[float, float, float]
    shift_um: tuple[float, float, float]
    rotation_deg: float
    centre_um: tuple[float, float]
    z_correlation: float
    agreement: float
    confidence: float
    accepted: bool
    reason: str
    z_measured: bool
    plane_fixed: int
    plane_moving: int


def register_pairwise(
    fixed: Path,
    moving: Path,
    output: Path,
    values: Mapping[str, Any],
    *,
    shifts: Path | None = None,
    overwrite: bool = False,
    device: Device = CPU,
) -> PairwiseRegistration:
    """Register one slice on another, as `register_slices` does with each pair.

    Written are ``transform.tfm``, an ITK Euler transform that takes stage positions in the fixed
    slice to those of the same tissue in the moving one (um; identity when nothing was found),
    ``offsets.txt`` with the planes of both that match, and ``register_pairwise.json``.

    Parameters
    ----------
    fixed, moving
        Slice volumes, `moving` the later one.
    output
        Folder to write to.
    values
        Parameters under their pipeline names.
    shifts
        ``shifts_xy.csv``, for slices with nominal positions only, and for corrections.

    Raises
    ------
    InputError
        When the volumes are not two slices in order.
    """
    from linumpy.brain.manual.transforms import FILE_NAME, write_transform
    from linumpy.brain.register_pairwise import register_pair
    from linumpy.brain.slice_folder import load_slices
    from linumpy.geometry.turned import rotation_matrix
    from linumpy.io.models import save_model
    from linumpy.params import build
    from linumpy.stage_params.brain import RegisterParams

    for name in (FILE_NAME, OFFSETS_NAME, f"{STEM}.json"):
        refuse_existing(output / name, overwrite)
    params = build(RegisterParams, values)
    volumes, voxel_um, interval_um = load_slices([fixed, moving], shifts, device=device)
    first, second = volumes
    if load_slices([fixed], None)[0][0].slice_id != first.slice_id:
        raise InputError(
            f"{moving}: slice z{first.slice_id:02d} comes before z{second.slice_id:02d}; "
            "expected the fixed slice first"
        )
    found = register_pair(first, second, voxel_um, interval_um, params)
    model = PairwiseRegistration(
        found.fixed_id,
        found.moving_id,
        voxel_um,
        (float(found.shift_um[0]), float(found.shift_um[1]), float(found.shift_um[2])),
        found.rotation_deg,
        found.centre_um,
        found.correlation,
        found.agreement,
        found.confidence * found.agreement,
        not found.reason,
        found.reason,
        found.z_measured,
        found.plane_fixed,
        found.plane_moving,
    )
    # From the fixed slice to the moving one: the other way round than measured.
    centre = np.asarray(found.centre_um)
    matrix = np.eye(3)
    matrix[:2, :2] = rotation_matrix(-found.rotation_deg)
    matrix[:2, 2] = centre - matrix[:2, :2] @ (centre + found.shift_um[1:])
    write_transform(output / FILE_NAME, matrix, found.centre_um, overwrite=overwrite)
    write_text(
        output / OFFSETS_NAME,
        f"{found.plane_fixed} {found.plane_moving}\n",
        overwrite=overwrite,
    )
    save_model(output, STEM, model)
    return model
