"""Estimate and correct focal curvature: the surface of equal path length is not flat.

The surface is learned from the interfaces of many tiles of an acquisition and corrected by
moving every A-line along depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from linumpy.core.device import Array, is_device_array, to_host
from linumpy.geometry.banded import row_blocks
from linumpy.geometry.shared_field import TileMap, fit_shared_field


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
    n_tiles, n_pairs
        Tiles and overlaps it was learned from.
    residual_rms_um
        Robust spread of single tiles' faces about the surface, their own unevenness included.
    """

    surface_um: np.ndarray
    voxel_um: tuple[float, float, float]
    n_tiles: int
    n_pairs: int
    residual_rms_um: float

    def in_whole_planes(self) -> FocalCurvature:
        """Return the surface rounded to planes.

        Half-way between two planes the mean of two samples of speckle has up to a tenth less power
        than they have. A flat field learned from that would hold the surface's contour lines.
        """
        step_um = np.float32(self.voxel_um[0])
        return replace(self, surface_um=np.rint(self.surface_um / step_um) * step_um)


def fit_focal_curvature(
    interfaces: Sequence[TileMap],
    tile_shape: tuple[int, int],
    voxel_um: tuple[float, float, float],
    *,
    cell: int,
) -> FocalCurvature:
    """Fit the focal surface to interface maps in voxels (see `geometry.shared_field`).

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


def correct_focal_curvature(
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
    if is_device_array(array):
        from linumpy.geometry.kernels import shifted_along_depth

        return shifted_along_depth(array, surface_px, valid)
    surface = to_host(surface_px).astype(np.float32)
    samples = _Samples(to_host(array))
    masks = None if valid is None else _Samples(to_host(valid))
    full = [True] * len(array) if valid is None else [bool(plane.min() > 0) for plane in valid]
    out, inside = np.empty(array.shape, np.float32), np.empty(array.shape, np.uint8)
    for rows in row_blocks(array.shape[1], 4 * array.shape[2]):
        _shift_rows(rows, surface[rows], samples, masks, full, out, inside)
    return out, inside


class _Samples:
    """Looks voxels up by their place in memory, from which planes are the same step apart."""

    def __init__(self, array: np.ndarray) -> None:
        self.shape = array.shape
        self._flat = np.ascontiguousarray(array).reshape(-1)

    def fetch(self, start: int, places: np.ndarray, out: np.ndarray) -> None:
        """Copy the voxels that lie `places` behind voxel `start`."""
        # The places are known to exist; no other mode of NumPy's looks them up as fast.
        np.take(self._flat[start:], places, out=out, mode="wrap")


def _shift_rows(
    rows: slice,
    surface: np.ndarray,
    samples: _Samples,
    masks: _Samples | None,
    full: Sequence[bool],
    out: np.ndarray,
    inside: np.ndarray,
) -> None:
    """Move some rows of A-lines.

    The lower of the two samples of one output voxel is the upper one of the next, so each plane
    takes one look-up, and one table of places serves all planes but those near the ends.
    """
    n_planes, n_rows, n_columns = samples.shape
    plane_size, corner = n_rows * n_columns, rows.start * n_columns
    whole = np.floor(surface)
    fraction = surface - whole
    rest, is_whole = 1 - fraction, fraction == 0
    depth = whole.astype(np.intp)
    shallow, deep = int(depth.min()), int(depth.max())
    lateral = np.arange(depth.size).reshape(depth.shape)
    places = (depth - shallow) * plane_size + lateral
    mask = np.empty(depth.shape, np.uint8)

    def fetch(plane: int, values: np.ndarray, known: np.ndarray) -> bool:
        """Fetch what lies the surface below `plane`; answers whether all of it is data."""
        first, last = plane + shallow, plane + deep
        if first >= 0 and last < n_planes:
            start, where = first * plane_size + corner, places
            whole_plane = all(full[first : last + 1])
            known[...] = True
        else:
            at = (depth + plane).clip(0, n_planes - 1)
            start, where = corner, at * plane_size + lateral
            whole_plane = False
            np.equal(at, depth + plane, out=known)
        samples.fetch(start, where, values)
        if masks is not None and not whole_plane:
            masks.fetch(start, where, mask)
            known &= mask > 0
        return whole_plane

    upper, lower = np.empty_like(surface), np.empty_like(surface)
    upper_known, lower_known = np.empty(depth.shape, bool), np.empty(depth.shape, bool)
    upper_full = fetch(0, upper, upper_known)
    for plane in range(n_planes):
        lower_full = fetch(plane + 1, lower, lower_known)
        target = out[plane, rows]
        upper *= rest
        np.multiply(lower, fraction, out=target)
        target += upper
        if upper_full and lower_full:
            inside[plane, rows] = 1
        else:
            upper_known &= lower_known | is_whole
            inside[plane, rows] = upper_known
            target *= upper_known
        upper, lower = lower, upper
        upper_known, lower_known = lower_known, upper_known
        upper_full = lower_full
