"""Deformation of slices in the registration model: fields from pairs, and their record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from linumpy.brain.local_fit import LEAST_FIELD_PX
from linumpy.brain.pair_shift import PairParts, PairShift
from linumpy.brain.slice_planes import SliceVolume
from linumpy.brain.solve_deformation import MatchedPlaces, solve_deformation
from linumpy.geometry.shift_field import ShiftField
from linumpy.geometry.turned import rotation_matrix

_DIGITS = 3
_MIN_SIGMA_UM = 0.1


def deformation_record(
    slices: Sequence[SliceVolume],
    shifts: Sequence[PairShift],
    offsets_um: np.ndarray,
    turns_deg: np.ndarray,
    pivot_um: np.ndarray,
    lateral_um: np.ndarray,
) -> dict[str, Any] | None:
    """Solve for the fields of all slices; return them as plain JSON.

    Parameters
    ----------
    slices
        In order.
    shifts
        Accepted pairs.
    offsets_um, turns_deg
        Solved place of each slice: (n, 2) and (n,).
    pivot_um
        The point that slices are rotated about.
    lateral_um
        Pixel sizes.

    Returns
    -------
    See `SliceRegistration.deformation`; None where no parts of any pair were measured, or where
    they show no deformation (`LEAST_FIELD_PX`): slices then need not be bent.
    """
    number = {volume.slice_id: n for n, volume in enumerate(slices)}

    def common(n: int, points: np.ndarray) -> np.ndarray:
        away = points - pivot_um
        return np.asarray(away @ rotation_matrix(turns_deg[n]).T + pivot_um + offsets_um[n])

    matches, parts = [], []
    for shift in shifts:
        if shift.parts is not None:
            fixed, moving = number[shift.fixed_id], number[shift.moving_id]
            places = common(fixed, shift.parts.fixed_um), common(moving, shift.parts.moving_um)
            matches.append(MatchedPlaces((fixed, moving), *places, shift.parts.noise_um))
            parts.append(shift.parts)
    least_um = LEAST_FIELD_PX * float(lateral_um.max())
    # Pairs whose parts match no better than the whole are not deformed.
    rest_um = [0.0 if shift.parts is None else shift.parts.rest_um for shift in shifts]
    if not matches or np.median(rest_um) < least_um:
        return None
    ends = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    corners = {
        n: common(n, np.asarray(volume.corner_um) + ends * lateral_um * volume.shape[1:])
        for n, volume in enumerate(slices)
    }
    sigma_um, length_um = _typical(parts)
    step_um = float(np.median([each.step_um for each in parts]))
    solution = solve_deformation(
        matches, corners, step_um=step_um, sigma_um=sigma_um, length_um=length_um
    )
    some = next(iter(solution.fields.values()))
    return {
        "origin_um": list(some.origin),
        "step_um": list(some.step),
        "fields_um": {
            str(slices[n].slice_id): np.round(field.values, _DIGITS).tolist()
            for n, field in solution.fields.items()
        },
        "pairs": [
            {
                "fixed_id": slices[pair[0]].slice_id,
                "moving_id": slices[pair[1]].slice_id,
                "before_um": solution.before_um[pair],
                "after_um": solution.after_um[pair],
                "error_um": solution.error_um[pair],
            }
            for pair in solution.before_um
        ],
        "sigma_um": sigma_um,
        "length_um": length_um,
    }


def _typical(parts: Sequence[PairParts]) -> tuple[float, float]:
    """Return standard deviation and length of a slice's field: half of a pair's variance."""
    sigma = float(np.median([each.field_um for each in parts])) / np.sqrt(2)
    return max(sigma, _MIN_SIGMA_UM), float(np.median([each.length_um for each in parts]))


def fields_of(record: Mapping[str, Any] | None) -> dict[int, ShiftField]:
    """Return the fields of a record by slice id; none without a record.

    Raises
    ------
    ValueError
        When a field is not what it should be; names its slice.
    """
    if record is None:
        return {}
    (a, b), (c, d) = record["origin_um"], record["step_um"]
    if not (np.isfinite([a, b, c, d]).all() and min(c, d) > 0):
        raise ValueError(f"deformation: origin {(a, b)}, step {(c, d)} um; expected a lattice")
    fields = {}
    for name, entry in record["fields_um"].items():
        values = np.asarray(entry, float)
        if values.ndim != 3 or len(values) != 2 or not np.isfinite(values).all():
            raise ValueError(
                f"deformation of slice {name}: shape {values.shape}; "
                "expected finite numbers (2, n1, n2)"
            )
        fields[int(name)] = ShiftField((float(a), float(b)), (float(c), float(d)), values)
    return fields
