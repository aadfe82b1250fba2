"""Focal curvature: the surface of equal path length is not flat, so a flat face looks curved.

The surface is learned from the interfaces of many tiles of an acquisition and taken off by
moving every A-line along depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linumpy.device import Array, like, namespace
from linumpy.mosaic.shared_field import TileMap, fit_shared_field


@dataclass(frozen=True)
class FocalCurvature:
    """The learned surface.

    Attributes
    ----------
    surface_um
        Shape of a tile's two lateral axes: how much deeper than on average an A-line shows its
        tissue, micrometres, mean 0.
    voxel_um
        Voxel size of the tiles it was learned on.
    """

    surface_um: np.ndarray
    voxel_um: tuple[float, float, float]
    n_tiles: int
    n_pairs: int
    residual_rms_um: float


def fit_focal_curvature(
    interfaces: Sequence[TileMap],
    tile_shape: tuple[int, int],
    voxel_um: tuple[float, float, float],
    *,
    cell: int,
) -> FocalCurvature:
    """Fit the focal surface to interface maps in voxels (see `mosaic.shared_field`).

    Raises
    ------
    InputError
        When fewer than two tiles show an interface.
    """
    field = fit_shared_field(interfaces, tile_shape, cell=cell)
    return FocalCurvature(
        surface_um=(field.values * voxel_um[0]).astype(np.float32),
        voxel_um=voxel_um,
        n_tiles=field.n_tiles,
        n_pairs=field.n_pairs,
        residual_rms_um=field.tile_residual * voxel_um[0],
    )


def detect_focal_curvature(
    array: Array, surface_px: Array, valid: Array | None = None
) -> tuple[Array, Array]:
    """Move every A-line up by the focal surface, by linear interpolation along depth.

    ``out[z] = in[z + surface]``, without wrapping round: what would come from beyond the ends is
    0 and masked.

    Parameters
    ----------
    array
        Tile (z, axis 1, axis 2), float32, NumPy or CuPy.
    surface_px
        Surface over axis 1 and axis 2, voxels; may be fractional and negative.
    valid
        Mask of the tile, or None when all of it is data.

    Returns
    -------
    The moved tile and its mask (uint8), on the device of `array`. A voxel is valid when both
    samples that it was interpolated from are.
    """
    xp = namespace(array)
    surface = like(surface_px, array).astype(xp.float32)
    whole = xp.floor(surface)
    fraction = (surface - whole)[None]
    low = xp.arange(array.shape[0], dtype=xp.int32)[:, None, None] + whole.astype(xp.int32)[None]
    last = array.shape[0] - 1
    needs_high = fraction > 0
    inside = (low >= 0) & (low + needs_high <= last)
    at_low, at_high = xp.clip(low, 0, last), xp.clip(low + 1, 0, last)
    if valid is not None:
        mask = valid > 0
        inside &= xp.take_along_axis(mask, at_low, axis=0)
        inside &= xp.take_along_axis(mask, at_high, axis=0) | ~needs_high
    out = (1 - fraction) * xp.take_along_axis(array, at_low, axis=0)
    out += fraction * xp.take_along_axis(array, at_high, axis=0)
    return xp.where(inside, out, 0).astype(xp.float32), inside.astype(xp.uint8)
