"""Illumination: the flat field that all tiles share, learned without a blank image.

Model: ``I_i(x) = F(x) · T_i(x)`` on amplitudes, mean F = 1, as in BaSiC (Peng et al., Nature
Communications 8, 14836, 2017) without its dark field: OCT's floor is noise, which does not
follow the illumination and is subtracted in power before the fit. Where BaSiC relies on the
sparsity of many tiles, the overlaps of neighbouring tiles are used too (`mosaic.shared_field`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linumpy.device import Array, like, namespace
from linumpy.geometry.interface import depth_gradient
from linumpy.mosaic.shared_field import TileMap, fit_shared_field

MIN_SIGNAL_TO_NOISE = 2.0
_WATER_MARGIN_PX = 4


@dataclass(frozen=True)
class FlatField:
    """The learned flat field.

    Attributes
    ----------
    flat_field
        Shape of a tile's two lateral axes, mean 1.
    voxel_um
        Voxel size of the tiles it was learned on.
    overlap_residual
        Robust spread of ln brightness between overlapping tiles after correction, a cell.
    """

    flat_field: np.ndarray
    voxel_um: tuple[float, float, float]
    n_tiles: int
    n_pairs: int
    overlap_residual: float


def brightness_map(array: Array, valid: Array | None = None) -> Array:
    """Return the root of a tile's noise-free mean power along depth.

    Noise power is taken from the water above the interface, and from nothing when the tissue
    begins at the top.

    Parameters
    ----------
    array
        Tile (z, axis 1, axis 2), amplitude, NumPy or CuPy.
    valid
        Its mask, or None.

    Returns
    -------
    float32 map over axis 1 and 2; NaN where the signal's power is below `MIN_SIGNAL_TO_NOISE`
    times the uncertainty of the noise's.
    """
    xp = namespace(array)
    weight = xp.ones_like(array) if valid is None else valid.astype(xp.float32)
    count = weight.sum(axis=0)
    power = xp.square(array) * weight
    profile_weight = xp.maximum(weight.sum(axis=(1, 2)), 1)
    profile = xp.sqrt(power.sum(axis=(1, 2)) / profile_weight)
    rise = depth_gradient(xp.log(xp.maximum(profile, 1e-12))[:, None, None], 1, 2.0)
    top = max(0, int(rise[:, 0, 0].argmax()) - _WATER_MARGIN_PX)
    mean_power = power.sum(axis=0) / xp.maximum(count, 1)
    noise = 0.0
    if top >= 2:
        noise = float(power[:top].sum() / xp.maximum(weight[:top].sum(), 1))
    signal = mean_power - noise
    # Speckle power of n planes scatters by 1/sqrt(n).
    uncertainty = noise / xp.sqrt(xp.maximum(count, 1))
    good = (count > 0) & (signal > MIN_SIGNAL_TO_NOISE * uncertainty) & (signal > 0)
    return xp.where(good, xp.sqrt(xp.where(good, signal, 1)), xp.nan).astype(xp.float32)


def fit_flat_field(
    log_brightness: Sequence[TileMap],
    tile_shape: tuple[int, int],
    voxel_um: tuple[float, float, float],
    *,
    cell: int,
) -> FlatField:
    """Fit the flat field to maps of the logarithm of `brightness_map`.

    Raises
    ------
    InputError
        When fewer than two tiles are bright enough.
    """
    field = fit_shared_field(log_brightness, tile_shape, cell=cell)
    flat = np.exp(field.values)
    return FlatField(
        flat_field=(flat / flat.mean()).astype(np.float32),
        voxel_um=voxel_um,
        n_tiles=field.n_tiles,
        n_pairs=field.n_pairs,
        overlap_residual=field.overlap_residual,
    )


def fix_illumination_3d(array: Array, flat_field: Array) -> Array:
    """Divide a tile by the flat field.

    Parameters
    ----------
    array
        Tile (z, axis 1, axis 2), float32, NumPy or CuPy.
    flat_field
        Positive map over axis 1 and axis 2.
    """
    return array / like(flat_field, array)[None]
