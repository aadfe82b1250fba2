"""Foreign bodies in the water above a slice: debris on its face, bubbles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from linumpy.follow.overlaps import known_median
from linumpy.follow.verdict import STOP, Reason
from linumpy.geometry.crop_3d_mosaic_below_interface import InterfaceCut
from linumpy.geometry.interface_surface import sample_surface
from linumpy.slices.tile import Key

SIGNAL_OVER_WATER = 16.0
"""Power over that of water from which something lies there: four times the amplitude."""
ABOVE_FACE_UM = 40.0
_MARGIN_UM = 30.0
"""About the axial resolution, the unevenness of a face, and a voxel together."""
_MIRROR_MARGIN_UM = 10.0
_BELOW_MIRROR_UM = 50.0
"""A mirror is taken for the face where it is large, and shines through the axial response."""
_LEAST_BLOCKS = 2
MIRROR = 45**0.5
"""Amplitude over that of the face from which it is a mirror: water to air reflects 2 % of the power
(Fresnel), of tissue the order of 1e-5 returns from one sample, a ratio of amplitudes of 45. The
middle between both, as ratios go."""


@dataclass(frozen=True)
class Foreign:
    """What lies above a tile's face.

    Attributes
    ----------
    height_um
        Of the brightest block above the face.
    ratio
        Amplitude of that block over the water's.
    is_mirror
        Whether it is far brighter than the slice.
    """

    height_um: float
    ratio: float
    is_mirror: bool

    @property
    def kind(self) -> str:
        """``bubble`` or ``debris``."""
        return "bubble" if self.is_mirror or self.height_um > ABOVE_FACE_UM else "debris"


def foreign_bodies(
    powers: Mapping[Key, np.ndarray],
    corners_um: Mapping[Key, np.ndarray],
    block_um: tuple[float, float],
    cut: InterfaceCut,
    axial_um: float,
) -> dict[Key, Foreign]:
    """Return the tiles that show something in the water above the face.

    Parameters
    ----------
    powers
        Mean power of lateral blocks of the tiles, flattened (z, n1, n2).
    corners_um
        Registered corners.
    block_um
        Sides of a block along axis 1 and axis 2.
    cut
        Face of the slice.
    """
    faces, above = {}, {}
    for key, power in powers.items():
        places = [
            (np.arange(n) + 0.5) * side + corner - low
            for n, side, corner, low in zip(
                power.shape[1:], block_um, corners_um[key], cut.corner_um, strict=True
            )
        ]
        faces[key] = sample_surface(cut.surface_um, cut.cell_um, *places)
        depth = (np.arange(len(power)) + 0.5) * axial_um
        above[key] = depth[:, None, None] < faces[key] - _MARGIN_UM
    tissue = max(_tissue(power, faces[key], axial_um) for key, power in powers.items())
    # Below all faces there is nothing to look for.
    deepest = max(float(face.max()) for face in faces.values()) - _MIRROR_MARGIN_UM
    n_planes = max(1, int(np.ceil(deepest / axial_um)))
    above = {key: here[:n_planes] for key, here in above.items()}
    waters = {key: power[:n_planes] for key, power in powers.items()}
    water = _water(waters, above)
    found = {}
    for key, power in waters.items():
        with np.errstate(all="ignore"):
            ratio = np.where(above[key], power / water[:, None, None], 0.0)
        ratio = np.nan_to_num(ratio, nan=0.0, posinf=0.0)
        depth = (np.arange(len(power)) + 0.5)[:, None, None] * axial_um
        # Tissue may be as bright beside tiles of agarose, but is not above its face.
        over = np.where(depth < faces[key] - _MIRROR_MARGIN_UM, power, 0)
        is_mirror = float(over.max()) > MIRROR**2 * tissue
        if not is_mirror and (ratio.max(axis=0) > SIGNAL_OVER_WATER).sum() < _LEAST_BLOCKS:
            continue
        place = (over if is_mirror else ratio).argmax()
        plane, i, j = np.unravel_index(int(place), power.shape)
        height = float(faces[key][i, j] - (plane + 0.5) * axial_um)
        brightest = float(power[plane, i, j] / np.nanmedian(water))
        found[key] = Foreign(height, float(np.sqrt(brightest)), is_mirror)
    return found


def _tissue(power: np.ndarray, face_um: np.ndarray, axial_um: float) -> float:
    """Return the power of a tile's bright blocks below the face: above it they may be mirrors."""
    depth = (np.arange(len(power)) + 0.5)[:, None, None] * axial_um
    below = np.where(depth > face_um + _BELOW_MIRROR_UM, power, 0)
    return float(np.percentile(below.max(axis=0), 99))


def _water(powers: Mapping[Key, np.ndarray], above: Mapping[Key, np.ndarray]) -> np.ndarray:
    """Return the usual power above the face at each depth: what all tiles share is the optics'."""
    planes = np.concatenate(
        [np.where(above[k], p, np.nan).reshape(len(p), -1) for k, p in powers.items()], axis=1
    )
    water = known_median(planes, 1)
    known = np.isfinite(planes).any(axis=1)
    # Zeros of a detector that clips are no noise.
    floor = np.nanmedian(water) if np.isfinite(water).any() else np.nan
    return np.where(known, np.fmax(water, floor), np.nan)


def foreign_reasons(found: Mapping[Key, Foreign], names: Mapping[Key, str]) -> list[Reason]:
    """Return the reasons against a slice that foreign bodies are."""
    reasons = []
    for kind in ("bubble", "debris"):
        keys = sorted(key for key, each in found.items() if each.kind == kind)
        if keys:
            worst = max((found[key] for key in keys), key=lambda each: each.ratio)
            text = f"{worst.height_um:.0f} um above the face, {worst.ratio:.0f} times the water"
            tiles = tuple(names[key] for key in keys)
            limit = float(np.sqrt(SIGNAL_OVER_WATER))
            reasons.append(Reason(kind, STOP, text, tiles, round(worst.ratio, 1), limit))
    return reasons
