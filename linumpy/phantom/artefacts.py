"""Artefacts in the light's path: debris on a face, bubbles in the water, tears in the tissue.

All belong to one slice and lie still while its tiles are imaged, hence two tiles that overlap
show the same. Positions are block positions without deformation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from linumpy.phantom.lattice import Stream, generator, make_key
from linumpy.phantom.params import PhantomParams

_DEBRIS_RADIUS_UM = (40.0, 150.0)
_DEBRIS_THICKNESS_UM = 30.0
_BUBBLE_RADIUS_UM = (150.0, 400.0)
_TEAR_WIDTH_UM = (40.0, 120.0)
_TEAR_LENGTH_UM = (600.0, 2000.0)
_EDGE_UM = 20.0
"""Over this distance an outline goes from nothing to all."""

BUBBLE_AMPLITUDE = 30.0
"""Of a bubble's top over that of grey matter. Water to air reflects 2 % of the light (Fresnel); of
tissue, the order of 1e-5 returns from one sample."""

BUBBLE_TRANSMISSION = 0.02
DEBRIS_AMPLITUDE = (2.0, 6.0)
"""Of a particle over that of grey matter."""

DEBRIS_TRANSMISSION = (0.02, 0.4)
"""Share of the signal power that is left below a particle."""


@dataclass(frozen=True)
class Artefact:
    """One disturbance of one slice.

    Attributes
    ----------
    kind
        ``debris``, ``bubble`` or ``tear``.
    centre_um
        Block position, (axis 1, axis 2).
    radius_um
        Of a disc; half the width of a tear.
    angle_deg, length_um, bend_um
        Of a tear: direction from axis 1 towards axis 2, length, and how far its ends lie beside
        the line through its middle.
    amplitude, transmission
        Brightness over that of grey matter; share of the signal power left below.
    height_share
        How far above the mean face a bubble's top lies, over the gap.
    """

    kind: str
    centre_um: tuple[float, float]
    radius_um: float
    angle_deg: float = 0.0
    length_um: float = 0.0
    bend_um: float = 0.0
    amplitude: float = 0.0
    transmission: float = 1.0
    height_share: float = 0.0

    def cover(self, axis1_um: np.ndarray, axis2_um: np.ndarray) -> np.ndarray:
        """Return how much of it lies at block positions of one shape, 0 to 1."""
        first, second = axis1_um - self.centre_um[0], axis2_um - self.centre_um[1]
        if self.kind != "tear":
            distance = np.hypot(first, second) - self.radius_um
        else:
            angle = np.deg2rad(self.angle_deg)
            along = first * np.cos(angle) + second * np.sin(angle)
            across = second * np.cos(angle) - first * np.sin(angle)
            half = self.length_um / 2
            across = across - self.bend_um * np.square(along / half)
            distance = np.maximum(np.abs(across) - self.radius_um, np.abs(along) - half)
        return np.clip(0.5 - distance / _EDGE_UM, 0, 1).astype(np.float32)


def slice_artefacts(params: PhantomParams, seed: int, slice_id: int) -> tuple[Artefact, ...]:
    """Draw the artefacts of a slice, anywhere over the mosaic."""
    found = []
    means = (params.debris_per_slice, params.bubbles_per_slice, params.tears_per_slice)
    for number, (kind, mean) in enumerate(zip(("debris", "bubble", "tear"), means, strict=True)):
        if not mean:
            continue
        rng = generator(make_key(seed, Stream.ARTEFACT, slice_id, number))
        for _ in range(int(rng.poisson(mean))):
            centre = rng.random(2) * params.mosaic_um
            found.append(draw_artefact(kind, (float(centre[0]), float(centre[1])), rng))
    return tuple(found)


def draw_artefact(kind: str, place: tuple[float, float], rng: np.random.Generator) -> Artefact:
    """Draw debris, a bubble or a tear with its centre at a block position."""
    if kind == "debris":
        return Artefact(
            kind,
            place,
            rng.uniform(*_DEBRIS_RADIUS_UM),
            amplitude=rng.uniform(*DEBRIS_AMPLITUDE),
            transmission=rng.uniform(*DEBRIS_TRANSMISSION),
        )
    if kind == "bubble":
        return Artefact(
            kind,
            place,
            rng.uniform(*_BUBBLE_RADIUS_UM),
            amplitude=BUBBLE_AMPLITUDE,
            transmission=BUBBLE_TRANSMISSION,
            height_share=rng.uniform(0.2, 0.9),
        )
    length = rng.uniform(*_TEAR_LENGTH_UM)
    return Artefact(
        kind,
        place,
        rng.uniform(*_TEAR_WIDTH_UM) / 2,
        angle_deg=rng.uniform(0, 180),
        length_um=length,
        bend_um=rng.uniform(-0.2, 0.2) * length,
    )


def disturb(
    power: np.ndarray,
    artefacts: tuple[Artefact, ...],
    position_um: tuple[np.ndarray, np.ndarray],
    depth_um: np.ndarray,
    grey_power: float,
    gap_um: float,
) -> None:
    """Change the power of some A-lines by the artefacts of their slice, in place.

    Parameters
    ----------
    power
        float32 (rows, columns, samples).
    position_um
        Block position of each A-line along axis 1 and axis 2, (rows, columns).
    depth_um
        Depth of each sample below the face, negative in water, (rows, columns, samples).
    grey_power
        Power of grey matter at the focus.
    gap_um
        Optical depth of the mean face.
    """
    for artefact in artefacts:
        cover = artefact.cover(*position_um)
        if not cover.any():
            continue
        cover = cover[..., None]
        if artefact.kind == "tear":
            power *= 1 - cover
            continue
        # A bubble is a mirror as thick as the axial response, debris a layer on the face.
        thickness = _DEBRIS_THICKNESS_UM if artefact.kind == "debris" else _EDGE_UM / 2
        top = -artefact.height_share * gap_um
        if artefact.kind == "debris":
            top -= thickness
        below = np.clip((depth_um - top) / thickness, 0, 1)
        power *= 1 - cover * below * (1 - np.float32(artefact.transmission))
        layer = np.exp(-4 * np.square((depth_um - top) / thickness - 0.5))
        power += cover * layer * np.float32(grey_power * artefact.amplitude**2)
