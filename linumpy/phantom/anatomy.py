"""The block: a scaled human brain in agarose, as smooth functions of block position.

Arrays are in storage order (axis 2, axis 1, depth); positions are µm in the block.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from linumpy.core.errors import InputError
from linumpy.core.extras import extra_advice
from linumpy.phantom.lattice import (
    Stream,
    make_key,
    smooth_field,
    spline_taps,
    take_taps,
)
from linumpy.phantom.params import PhantomParams

CLASSES = ("water", "agarose", "grey", "white")
"""Tissue classes; the position is the label in the truth volume."""

ANATOMY_AXES = "PRS"
"""Where block depth, axis 1 and axis 2 point in the brain: posterior, right, superior.

A proper rotation of the template's right-anterior-superior axes: the block is not mirrored.
"""

_TEXTURE_RADIUS = 2.0
_BRAIN_THRESHOLD = 0.2


@dataclass(frozen=True)
class Template:
    """Tissue probabilities of a brain, cropped to its bounding box.

    Attributes
    ----------
    grey, white
        uint8 (superior, right, posterior), 255 = certain.
    voxel_mm
        Voxel size along the three axes, of the brain as it was.
    """

    grey: np.ndarray
    white: np.ndarray
    voxel_mm: tuple[float, float, float]


def template_folder() -> Path:
    """Return the folder of the nilearn package that holds the MNI152 maps.

    Raises
    ------
    InputError
        When nilearn is not installed.
    """
    # The package is only located, not imported: importing it takes a second and many modules.
    spec = importlib.util.find_spec("nilearn")
    if spec is None or spec.origin is None:
        raise InputError(
            "the phantom's anatomy comes with the package nilearn, which is not installed; "
            f"{extra_advice('demo')}"
        )
    return Path(spec.origin).parent / "datasets" / "data"


def load_template(folder: Path | None = None) -> Template:
    """Read the grey and white matter probabilities of the MNI152 brain.

    Parameters
    ----------
    folder
        Where the two NIfTI files lie; nilearn's data folder when absent.

    Raises
    ------
    InputError
        When nilearn or one of its two files is missing or unreadable.
    """
    import nibabel
    from nibabel.filebasedimages import ImageFileError

    folder = folder or template_folder()
    maps, voxel = [], (1.0, 1.0, 1.0)
    for tissue in ("gm", "wm"):
        path = folder / f"mni_icbm152_{tissue}_tal_nlin_sym_09a_converted.nii.gz"
        if not path.is_file():
            raise InputError(
                f"{path}: missing; expected the MNI152 map of nilearn; {extra_advice('demo')}"
            )
        try:
            image = nibabel.as_closest_canonical(nibabel.load(path))
            data = np.asanyarray(image.dataobj)
        except (ImageFileError, OSError, EOFError) as error:
            raise InputError(f"{path}: not a readable NIfTI file ({error})") from error
        right, anterior, superior = (float(v) for v in image.header.get_zooms()[:3])
        voxel = (superior, right, anterior)
        # Canonical order is (right, anterior, superior); posterior = anterior reversed.
        maps.append(np.ascontiguousarray(data.transpose(2, 0, 1)[:, :, ::-1]))
    grey, white = maps
    inside = grey.astype(np.uint16) + white > 255 * _BRAIN_THRESHOLD
    box = []
    for axis in range(3):
        others = tuple(a for a in range(3) if a != axis)
        found = np.flatnonzero(inside.any(axis=others))
        # One voxel of what lies around keeps the soft edge.
        box.append(slice(max(int(found[0]) - 1, 0), int(found[-1]) + 2))
    return Template(grey[tuple(box)], white[tuple(box)], voxel)


@dataclass(frozen=True)
class Properties:
    """Scattering of a grid of positions, float32 (n2, n1, nz) each.

    Attributes
    ----------
    power
        Squared RMS amplitude at the focus without attenuation.
    mu_per_mm
        Attenuation coefficient µ of P ∝ exp(−2µz).
    grey, white
        Volume fractions; the rest is agarose.
    """

    power: np.ndarray
    mu_per_mm: np.ndarray
    grey: np.ndarray
    white: np.ndarray


class Anatomy:
    """The block of one acquisition: the template placed and scaled, with texture.

    Parameters
    ----------
    template
        The brain.
    params
        Mosaic and depth that decide its scale; amplitudes and attenuation of the classes.
    seed
        Seed of the texture.
    """

    def __init__(self, template: Template, params: PhantomParams, seed: int) -> None:
        self.params = params
        # Zeros around, so that a tap outside the brain finds agarose.
        self._grey, self._white = (
            np.pad(m.astype(np.float32) / 255, 4) for m in (template.grey, template.white)
        )
        extent_mm = [n * v for n, v in zip(template.grey.shape, template.voxel_mm, strict=True)]
        mosaic = params.mosaic_um
        self.scale_um_per_mm = params.brain_fill * min(
            mosaic[1] / extent_mm[0], mosaic[0] / extent_mm[1]
        )
        scales = (1.0, 1.0, params.depth_scale)
        self._voxel_um = [
            v * self.scale_um_per_mm * s for v, s in zip(template.voxel_mm, scales, strict=True)
        ]
        # The middle of the brain lies in the middle of what is imaged, along each axis.
        self._centre_um = (mosaic[1] / 2, mosaic[0] / 2, params.block_depth_um / 2)
        self._texture_keys = [make_key(seed, Stream.TEXTURE, octave) for octave in range(2)]

    def _fractions(
        self, positions: tuple[np.ndarray, np.ndarray, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        taps = []
        for axis, position in enumerate(positions):
            size = self._grey.shape[axis]
            index = (position - self._centre_um[axis]) / self._voxel_um[axis] + (size - 1) / 2
            taps.append(spline_taps(np.clip(index, 2, size - 3)))
        low = [int(first.min()) for first, _ in taps]
        window = tuple(
            slice(start, int(first.max()) + weights.shape[-1])
            for start, (first, weights) in zip(low, taps, strict=True)
        )
        inside = [(first - start, w) for (first, w), start in zip(taps, low, strict=True)]
        return take_taps(self._grey[window], inside), take_taps(self._white[window], inside)

    def _texture(self, positions: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
        """Return the logarithm of the texture, unit variance: a fine and a coarser octave."""
        total: np.ndarray | None = None
        for key, scale_um, share in zip(self._texture_keys, (1.0, 3.0), (0.6, 0.4), strict=True):
            step = self.params.texture_um * scale_um / _TEXTURE_RADIUS
            octave = smooth_field(
                key, (positions[0] / step, positions[1] / step, positions[2] / step),
                _TEXTURE_RADIUS,
            )  # fmt: skip
            octave *= np.float32(np.sqrt(share))
            total = octave if total is None else np.add(total, octave, out=total)
        assert total is not None
        return total

    def properties(
        self, axis2_um: np.ndarray, axis1_um: np.ndarray, depth_um: np.ndarray
    ) -> Properties:
        """Return what lies at block positions.

        Parameters
        ----------
        axis2_um, axis1_um
            Lateral positions: 1-d each, for a rectilinear grid, or 2-d of one shape.
        depth_um
            Depths at each of them, 1-d.
        """
        p = self.params
        positions = (axis2_um, axis1_um, depth_um)
        grey, white = self._fractions(positions)
        tissue = grey + white
        # The two maps are independent estimates and may add up to a little more than one.
        excess = np.maximum(tissue, 1)
        grey, white, tissue = grey / excess, white / excess, np.minimum(tissue, 1)
        if p.backscatter_exponent > 0:
            return self._scatter_by_law(grey, white, tissue, positions)
        base, rise_grey, rise_white = (
            np.float32(v)
            for v in (
                p.agarose_amplitude**2,
                p.grey_amplitude**2 - p.agarose_amplitude**2,
                p.white_amplitude**2 - p.agarose_amplitude**2,
            )
        )
        power = grey * rise_grey
        power += white * rise_white
        power += base
        if p.texture_rms > 0 and tissue.any():
            texture = self._texture(positions)
            texture *= tissue
            texture *= np.float32(2 * p.texture_rms)
            power *= np.exp(texture, out=texture)
        mu = grey * np.float32(p.grey_mu_per_mm - p.agarose_mu_per_mm)
        mu += white * np.float32(p.white_mu_per_mm - p.agarose_mu_per_mm)
        mu += np.float32(p.agarose_mu_per_mm)
        return Properties(power, mu, grey, white)

    def _scatter_by_law(
        self,
        grey: np.ndarray,
        white: np.ndarray,
        tissue: np.ndarray,
        positions: tuple[np.ndarray, np.ndarray, np.ndarray],
    ) -> Properties:
        """Return properties whose backscatter is a power of µ in every voxel of tissue.

        With a fixed phase function and scattering dominant the exponent is 1 (Vermeer et al. 2014,
        doi:10.1364/BOE.5.000322); Klett (1981, doi:10.1364/AO.20.000211) gives 0.67 to 1 for lidar.
        """
        p = self.params
        b = p.backscatter_exponent
        # What is not tissue counts as grey matter of share 0: the ratio is never 0 / 0.
        share = np.maximum(tissue, np.float32(1e-6))
        mu = (grey * np.float32(p.grey_mu_per_mm) + white * np.float32(p.white_mu_per_mm)) / share
        if p.texture_rms > 0 and tissue.any():
            # The texture of the power is `texture_rms` at any exponent.
            mu *= np.exp(self._texture(positions) * np.float32(2 * p.texture_rms / b))
        power = np.power(mu / np.float32(p.grey_mu_per_mm), np.float32(b))
        power *= np.float32(p.grey_amplitude**2)
        agarose = 1 - tissue
        power = power * tissue + agarose * np.float32(p.agarose_amplitude**2)
        mu = mu * tissue + agarose * np.float32(p.agarose_mu_per_mm)
        return Properties(power, mu, grey, white)


def labels(properties: Properties) -> np.ndarray:
    """Return the class with the largest fraction, uint8 indices into `CLASSES`."""
    grey, white = properties.grey, properties.white
    agarose = 1 - grey - white
    out = np.where(grey >= white, np.uint8(2), np.uint8(3))
    out[agarose > np.maximum(grey, white)] = 1
    return out
