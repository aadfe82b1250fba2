"""Registration of all slices of a brain: offsets, rotations, deformation, and their pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from linumpy.brain.deformation_model import fields_of
from linumpy.brain.local_fit import LEAST_NOISE_PX
from linumpy.brain.slice_planes import SliceVolume as SliceVolume
from linumpy.brain.slice_planes import expected_plane as expected_plane
from linumpy.geometry.pair_graph import bridges, connected_components
from linumpy.geometry.shift_field import ShiftField

LEAST_SIGMA_DEG = 0.005
"""Standard error of a rotation that no pair is better than."""


@dataclass(frozen=True)
class SliceRegistration:
    """The model: how all slices lie, and the pairs that this rests on.

    A point p of a slice, as the stage reports it (um, axis 1 and axis 2), lies at the common
    position ``R(rotation_deg) · (p − pivot_um) + pivot_um + offset_um[1:]``; R rotates axis 1
    towards axis 2. A slice's face lies at ``(id − first id) · interval + offset z``.

    Attributes
    ----------
    slices
        ``slice_id, offset_um (z, axis 1, axis 2), rotation_deg, n_pairs``; ``moved_um``, what
        was added to the position in the slice's own metadata before all this; ``depth_sigma_um``,
        the standard error of its depth below the first slice, None where no pair measured any;
        ``stated_z_um``, what stage or slice thickness say of offset z.
    pairs
        ``fixed_id, moving_id``; ``shift_um, rotation_deg``: where the moving slice's point
        ``centre_um`` lies in the fixed slice's frame, minus that point, and how far the moving
        slice is rotated against the fixed one, ``shift_um`` None when nothing was found;
        ``correlation, z_correlation`` (both the correlation of the planes that match best),
        ``agreement, confidence, accepted, reason, z_measured, plane_fixed, plane_moving``;
        ``z_sigma_um``: standard error of the depth by noise, 0 where it is not known;
        ``sigma_um, sigma_deg``: uncertainty of shift and rotation by deformation, 0 where no parts
        of the planes were measured; ``deformation_um``, the residual of shift and rotation an axis,
        RMS, None likewise; ``residual_um, residual_deg``: measured minus solved, of accepted pairs.
    pivot_um
        The point that slices are rotated about: the middle of the reference slice.
    jumps, turned
        Slices from which on the motors' zero is another, and from which on all are rotated.
    depth_scale, depth_scale_sigma
        How much longer pairs measure all distances of faces than stage and interval state, as a
        share of the distance, and its standard error, widened where few distances are measured;
        None where pairs do not determine it.
    depth_scale_kept
        Whether slices lie as far apart as pairs measure, for all that.
    deformation
        Smooth fields of slices, None without: ``origin_um, step_um`` of a lattice of common
        positions, ``fields_um`` by slice id, (2, n1, n2): what belongs at the common position x is
        seen where shift and rotation put x + field. ``pairs``: what neighbours are off against each
        other, an axis, ``before_um`` and ``after_um``, and ``error_um`` at places held out;
        ``sigma_um, length_um`` of a field.
    """

    reference_id: int
    voxel_um: tuple[float, float, float]
    slice_interval_um: float
    slices: list[dict[str, Any]]
    pairs: list[dict[str, Any]]
    pivot_um: tuple[float, float] = (0.0, 0.0)
    jumps: tuple[int, ...] = ()
    turned: tuple[int, ...] = ()
    depth_scale: float | None = None
    depth_scale_sigma: float | None = None
    depth_scale_kept: bool = False
    deformation: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        """Refuse a model that would place slices anywhere."""
        for entry in self.slices:
            numbers = [*entry["offset_um"], entry.get("rotation_deg", 0.0)]
            if len(numbers) != 4 or not np.isfinite(np.asarray(numbers, float)).all():
                raise ValueError(
                    f"slice {entry['slice_id']}: offset_um {entry['offset_um']}, rotation_deg "
                    f"{numbers[-1]}; expected three finite numbers and one"
                )
        ids = [entry["slice_id"] for entry in self.slices]
        if len(set(ids)) < len(ids):
            raise ValueError(f"slices {ids}: expected each once")
        fields_of(self.deformation)

    @property
    def first_id(self) -> int:
        """Lowest slice id."""
        return min(entry["slice_id"] for entry in self.slices)

    @property
    def offset_um(self) -> dict[int, np.ndarray]:
        """Offset (z, axis 1, axis 2) by slice id."""
        return {s["slice_id"]: np.asarray(s["offset_um"], float) for s in self.slices}

    @property
    def rotation_deg(self) -> dict[int, float]:
        """Rotation about `pivot_um` by slice id, positive from axis 1 towards axis 2."""
        return {s["slice_id"]: float(s.get("rotation_deg", 0.0)) for s in self.slices}

    @property
    def moved_um(self) -> dict[int, np.ndarray]:
        """Correction of the positions of a slice's tiles (axis 1, axis 2), by slice id."""
        return {s["slice_id"]: np.asarray(s.get("moved_um", (0.0, 0.0))) for s in self.slices}

    @property
    def shift_sigma_um(self) -> float | None:
        """Standard error of the least sure slice's shift, an axis, by its best pair.

        By what windows show of deformation, enlarged by how badly loops of pairs close (the root of
        χ² over its degrees of freedom, at least 1); None where no pair tells.
        """
        return self._least_sure("sigma_um", "residual_um", LEAST_NOISE_PX * max(self.voxel_um[1:]))

    @property
    def turn_sigma_deg(self) -> float | None:
        """The same of the rotation against the slice that it was measured against."""
        return self._least_sure("sigma_deg", "residual_deg", LEAST_SIGMA_DEG)

    def _least_sure(self, sigma: str, residual: str, least: float) -> float | None:
        pairs = [p for p in self.pairs if p["accepted"] and p.get(sigma)]
        if not pairs:
            return None
        sigmas = [float(np.hypot(p[sigma], least)) for p in pairs]
        best: dict[int, float] = {}
        for pair, own in zip(pairs, sigmas, strict=True):
            for slice_id in (pair["fixed_id"], pair["moving_id"]):
                best[slice_id] = min(own, best.get(slice_id, np.inf))
        # Errors of a pair's windows that they have in common show in loops alone, by which all
        # standard errors are enlarged (Birge, Phys. Rev. 40, 207, 1932).
        number = {slice_id: n for n, slice_id in enumerate(sorted(best))}
        links = [(number[p["fixed_id"]], number[p["moving_id"]]) for p in pairs]
        loops = len(links) - len(number) + 1 + int(connected_components(len(number), links).max())
        if not loops:
            return max(best.values())
        # Of three residuals the first is that of the depth.
        left = [np.atleast_1d(p[residual])[-2:] / s for p, s in zip(pairs, sigmas, strict=True)]
        closed = ~bridges(len(number), links)
        ratio = np.sqrt(np.square(left).mean(axis=1)[closed].sum() / loops)
        return float(max(best.values()) * max(ratio, 1.0))

    @property
    def fields_um(self) -> dict[int, ShiftField]:
        """Deformation over common positions by slice id; empty where none was solved for."""
        return fields_of(self.deformation)
