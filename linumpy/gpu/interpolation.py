"""Interpolate on the device of the array: NumPy in and out, or CuPy in and out.

Thin names over `linumpy.geometry.resample` and the ``ndimage`` module of the array's own library.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from linumpy.core.device import Array, like, ndimage_of
from linumpy.geometry.resample import resize

__all__ = ["affine_transform", "map_coordinates", "resize"]


def affine_transform(
    array: Array,
    matrix: Array,
    offset: float | Sequence[float] = 0.0,
    output_shape: Sequence[int] | None = None,
    *,
    order: int = 1,
    mode: str = "constant",
    cval: float = 0.0,
) -> Array:
    """Sample `array` where an affine map sends each voxel of the output.

    Parameters
    ----------
    array
        NumPy or CuPy array of any number of axes.
    matrix
        Map from output to input voxel indices, shape (n_axes, n_axes), or (n_axes,) for a diagonal.
    offset
        Input index of the output's voxel 0, voxels.
    output_shape
        Shape of the output; the input's when None.
    order, mode, cval
        As in ``scipy.ndimage.affine_transform``: spline order, what lies outside, and its value.

    Returns
    -------
    Array of the input's kind and dtype.
    """
    given: Any = None if output_shape is None else tuple(output_shape)
    return ndimage_of(array).affine_transform(
        array,
        like(matrix, array),
        offset,
        given,
        order=order,
        mode=mode,
        cval=cval,
        prefilter=order > 1,
    )


def map_coordinates(
    array: Array,
    coordinates: Array,
    *,
    order: int = 1,
    mode: str = "constant",
    cval: float = 0.0,
) -> Array:
    """Sample `array` at given coordinates.

    Parameters
    ----------
    array
        NumPy or CuPy array of any number of axes.
    coordinates
        Voxel indices, shape (n_axes, …); moved to where `array` lies if they are elsewhere.
    order, mode, cval
        As in ``scipy.ndimage.map_coordinates``.

    Returns
    -------
    Array of the input's kind and dtype, of the shape of one coordinate.
    """
    return ndimage_of(array).map_coordinates(
        array, like(coordinates, array), order=order, mode=mode, cval=cval, prefilter=order > 1
    )
