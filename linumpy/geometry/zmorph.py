"""Morph one plane into another: structures move along powers of the map between them.

A planar affine map T takes a point of the upper plane to where the same structure lies in the
lower one. A share s of the way down, structures lie at T^s of their upper place: the upper plane
is sampled through T^(−s), the lower one through T^(1−s), and both are mixed. Maps are 3 × 3
matrices that act on (axis 1, axis 2, 1).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from linumpy.core.device import Array, namespace, ndimage_of

_FULLY_VALID = 1 - 1e-4


def affine_power(matrix: np.ndarray, exponent: float) -> np.ndarray:
    """Return a real power of a planar affine map, so that T^a followed by T^b is T^(a + b).

    The power is taken of the whole 3 × 3 matrix (Schur–Padé; Higham and Lin, SIAM J. Matrix
    Anal. Appl. 32, 1056, 2011). So the translation needs no formula of its own, and maps for
    which one would divide by zero (translations, shears) are like all others.

    Parameters
    ----------
    matrix
        Shape (3, 3), last row (0, 0, 1).
    exponent
        Any real number; 0 gives the identity, −1 the inverse.

    Raises
    ------
    ValueError
        When the map mirrors, or has no real power for another reason.
    """
    from scipy.linalg import fractional_matrix_power

    matrix = np.asarray(matrix, float)
    eigenvalues = np.linalg.eigvals(matrix[:2, :2])
    if np.linalg.det(matrix[:2, :2]) <= 0:
        raise ValueError("an affine map that mirrors has no real powers")
    if any(abs(value.imag) < 1e-12 and value.real <= 0 for value in eigenvalues):
        raise ValueError("an affine map that rotates by half a circle has no unique powers")
    power = np.real(fractional_matrix_power(matrix, exponent))
    power[2] = (0, 0, 1)
    return np.asarray(power)


def planar(
    matrix: Sequence[Sequence[float]] | np.ndarray, offset: Sequence[float] | np.ndarray
) -> np.ndarray:
    """Return the map p → matrix · p + offset as a 3 × 3 matrix."""
    out = np.eye(3)
    out[:2, :2], out[:2, 2] = matrix, offset
    return out


def turn_about(rotation_deg: float, pivot: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the rotation about a pivot, positive from axis 1 towards axis 2."""
    angle = np.deg2rad(rotation_deg)
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    pivot = np.asarray(pivot, float)
    return planar(rotation, pivot - rotation @ pivot)


def source_window(
    to_source: Sequence[np.ndarray], shape: tuple[int, int], source_shape: tuple[int, int]
) -> tuple[slice, slice] | None:
    """Return the pixels of a plane that a block rests on; None when it reaches none.

    Parameters
    ----------
    to_source
        Maps from pixels of the block to pixels of the plane; all of them count.
    shape, source_shape
        Pixels of the block and of the plane.
    """
    far = np.subtract(shape, 1)
    corners = np.array([[0, 0], [0, far[1]], [far[0], 0], far]).T
    points = np.vstack([corners, np.ones(4)])
    reached = np.concatenate([(matrix @ points)[:2] for matrix in to_source], axis=1)
    # One pixel more on each side: counted from the window, a place can be rounded across its edge.
    low = np.maximum(np.floor(reached.min(axis=1)).astype(int) - 1, 0)
    high = np.minimum(np.ceil(reached.max(axis=1)).astype(int) + 2, source_shape)
    if (low >= high).any():
        return None
    return slice(int(low[0]), int(high[0])), slice(int(low[1]), int(high[1]))


def sample_plane(
    data: Array,
    valid: Array | None,
    to_source: np.ndarray,
    shape: tuple[int, ...],
) -> tuple[Array, Array]:
    """Sample a plane linearly where a map sends each pixel of a block.

    Parameters
    ----------
    data, valid
        Plane (axis 1, axis 2), NumPy or CuPy, and its mask or None.
    to_source
        Map from pixels of the block to pixels of the plane.
    shape
        Pixels of the block.

    Returns
    -------
    Values (float32) and mask (bool): true where all that a value rests on is valid.
    """
    xp, ndimage = namespace(data), ndimage_of(data)
    good = xp.ones(data.shape, xp.float32) if valid is None else (valid > 0).astype(xp.float32)
    moved = []
    for plane in (data.astype(xp.float32) * good, good):
        moved.append(
            ndimage.affine_transform(
                plane,
                xp.asarray(to_source[:2, :2]),
                to_source[:2, 2].tolist(),
                shape,
                order=1,
                mode="constant",
                cval=0.0,
            )
        )
    return moved[0], moved[1] > _FULLY_VALID


def mix(
    upper: tuple[Array, Array],
    lower: tuple[Array, Array],
    share: float,
    weights: tuple[Array, Array] | None = None,
) -> tuple[Array, Array]:
    """Mix two sampled planes.

    Parameters
    ----------
    upper, lower
        Values and mask of each.
    share
        How far down, 0–1: the weight of the lower plane.
    weights
        Further weights of each, positive; None for none.

    Returns
    -------
    Values (float32, 0 where neither is valid) and mask (uint8). Where only one plane is valid it
    counts whole.
    """
    xp = namespace(upper[0])
    first = np.float32(1 - share) * upper[1].astype(xp.float32)
    second = np.float32(share) * lower[1].astype(xp.float32)
    if weights is not None:
        first, second = first * weights[0], second * weights[1]
    # At either end the weight of the only valid plane may be 0.
    lone = (upper[1] != lower[1]).astype(xp.float32)
    first = xp.where(lone > 0, upper[1].astype(xp.float32), first)
    second = xp.where(lone > 0, lower[1].astype(xp.float32), second)
    total = first + second
    there = total > 0
    mixed = (first * upper[0] + second * lower[0]) / xp.where(there, total, np.float32(1))
    return xp.where(there, mixed, np.float32(0)).astype(xp.float32), there.astype(xp.uint8)


def edge_weight(foreground: np.ndarray) -> np.ndarray:
    """Return how deep in the tissue each pixel lies, from 1 outside on, for mixing.

    Parameters
    ----------
    foreground
        Where a plane shows tissue, shape (axis 1, axis 2).

    Returns
    -------
    Distance to the tissue's edge in pixels, smoothed by 2 px, plus 1; float32.
    """
    from scipy.ndimage import distance_transform_edt, gaussian_filter

    if not foreground.any():
        return np.ones(foreground.shape, np.float32)
    # The image's border is no edge of the tissue, but it is the end of what is known.
    distance = distance_transform_edt(np.pad(foreground, 1))[1:-1, 1:-1]
    return np.asarray(gaussian_filter(distance, 2.0) + 1, dtype=np.float32)
