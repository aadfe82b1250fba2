"""Cropping: each slice is cut flat at its interface, and to a fixed depth below it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linumpy.device import Array, namespace, to_host
from linumpy.errors import InputError
from linumpy.geometry.interface import find_tissue_interface


@dataclass(frozen=True)
class InterfaceCut:
    """Where a slice is cut.

    Attributes
    ----------
    interface_um
        Median depth of the interface below the top of the volume (the edge of its voxel 0).
    depth_um
        Depth kept.
    first_plane, n_planes
        The planes kept.
    """

    slice_id: int
    interface_um: float
    depth_um: float
    first_plane: int
    n_planes: int


def interface_depths(
    volume: Array, valid: Array | None, *, s_xy: int, s_z: float, max_depth_fraction: float
) -> np.ndarray:
    """Return the interface of every A-line that has one, as a flat array of voxels.

    Parameters
    ----------
    volume
        Slice or part of one (z, axis 1, axis 2), NumPy or CuPy.
    valid
        Its mask, or None.
    max_depth_fraction
        Only this share of the depth, from the top, is searched.
    """
    searched = max(3, math.ceil(volume.shape[0] * max_depth_fraction))
    mask = None if valid is None else valid[:searched]
    depth = to_host(find_tissue_interface(volume[:searched], s_xy, s_z, valid=mask, axis=0))
    return depth[np.isfinite(depth)]


def solve_interface_cut(
    depths_px: Sequence[np.ndarray],
    slice_id: int,
    n_planes: int,
    axial_um: float,
    depth_um: float,
) -> InterfaceCut:
    """Choose the planes to keep from the interfaces of all A-lines.

    Raises
    ------
    InputError
        When no A-line has an interface, or it lies at the bottom so that nothing is left.
    """
    found = np.concatenate(depths_px) if depths_px else np.zeros(0)
    if found.size == 0:
        raise InputError(f"slice z{slice_id:02d}: no A-line with data, expected an interface")
    interface = float(np.median(found))
    # A voxel belongs to the tissue when most of it lies below the face.
    first = int(np.rint(interface))
    wanted = round(depth_um / axial_um)
    kept = min(wanted, n_planes - first)
    if kept < 1:
        raise InputError(
            f"slice z{slice_id:02d}: interface at plane {first} of {n_planes}, nothing below it"
        )
    return InterfaceCut(slice_id, interface * axial_um, kept * axial_um, first, kept)


def crop_3d_mosaic_below_interface(volume: Array, first_plane: int, n_planes: int) -> Array:
    """Keep `n_planes` planes from `first_plane` on, as a contiguous array on the same device."""
    xp = namespace(volume)
    return xp.ascontiguousarray(volume[first_plane : first_plane + n_planes])
