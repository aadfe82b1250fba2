"""Measured displacement of one slice against another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from linumpy.geometry.correlation_peaks import confidence


@dataclass(frozen=True)
class PairParts:
    """Places that show the same in two slices, and how their displacement varies.

    Attributes
    ----------
    fixed_um, moving_um
        Stage positions in both, float64 (n, 2).
    noise_um
        Error of each, along one axis, as if places were independent.
    field_um, length_um
        Standard deviation of the deformation between both along one axis, and its length as of
        Matérn's covariance of smoothness 3/2.
    step_um
        Distance of places.
    rest_um
        Deformation over all that both share, RMS along one axis: what shift and rotation leave.
    """

    fixed_um: np.ndarray
    moving_um: np.ndarray
    noise_um: float
    field_um: float
    length_um: float
    step_um: float
    rest_um: float = 0.0


@dataclass(frozen=True)
class PairShift:
    """How far a moving slice is off, against a fixed one, from where the motors put it.

    Attributes
    ----------
    shift_um
        z, axis 1, axis 2: where the moving slice's point `centre_um` lies in the fixed slice's
        frame, minus `centre_um`; along z how much deeper than the slicing interval says.
    rotation_deg
        Rotation of the moving slice against the fixed one, positive from axis 1 towards axis 2.
    centre_um
        Stage position in the moving slice, middle of what was compared.
    correlation, z_score
        Of the peak, and how far it stands out; 0 where there is none.
    agreement
        Share of the parts of the planes that by themselves match where the whole does, or where
        their neighbours do.
    z_measured
        Whether the depth was.
    z_sigma_um
        Its standard error by the noise of the correlation; 0 where it is not known.
    plane_fixed, plane_moving
        Planes of both that show the same.
    reason
        Why the pair is rejected; empty where it is accepted.
    sigma_um, sigma_deg
        What the deformation between both makes of shift, along one axis, and rotation: standard
        errors. 0 where no parts were measured.
    parts
        What was measured of parts of the planes; None where too few match.
    """

    fixed_id: int
    moving_id: int
    shift_um: np.ndarray
    correlation: float = 0.0
    z_score: float = 0.0
    z_measured: bool = False
    rotation_deg: float = 0.0
    centre_um: tuple[float, float] = (0.0, 0.0)
    agreement: float = 0.0
    plane_fixed: int = 0
    plane_moving: int = 0
    reason: str = ""
    sigma_um: float = 0.0
    sigma_deg: float = 0.0
    parts: PairParts | None = None
    z_sigma_um: float = 0.0

    @property
    def confidence(self) -> float:
        """By the peak alone: between 0, the height of noise, and 1; at least one half to accept."""
        return confidence(self.z_score)
