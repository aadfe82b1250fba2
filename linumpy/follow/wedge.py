"""How far the tilt of a face is known: uneven faces fall across a small mosaic by chance."""

from __future__ import annotations

import numpy as np

from linumpy.geometry.least_squares import least_squares

SURE = float(np.sqrt(2 * np.log(1000)))
"""A fall in any direction is larger than so many standard errors an axis once in 1000 slices."""


def fall_error_um(surface_um: np.ndarray) -> float:
    """Return the standard error of a face's fall across the slice, along each axis.

    What is left of the surface about its plane is taken as a random field of Gaussian covariance,
    whose length follows from its slope: of variance s² and length l, over an area A, the fall of
    the plane through it varies by ``12 · s² · 2πl² / A``.

    Parameters
    ----------
    surface_um
        Depth of the face at the centres of cells, (axis 1, axis 2).
    """
    n1, n2 = surface_um.shape
    if min(n1, n2) < 3:
        return 0.0
    first, second = np.indices(surface_um.shape)
    design = np.column_stack([np.ones(n1 * n2), first.ravel(), second.ravel()])
    depth = surface_um.ravel().astype(np.float64)
    left = (depth - design @ least_squares(design, depth)).reshape(n1, n2)
    variance = float(np.mean(np.square(left)))
    slope = float(np.mean([np.mean(np.square(np.diff(left, axis=axis))) for axis in (0, 1)]))
    if slope == 0:
        return 0.0
    length_2 = variance / slope
    return float(np.sqrt(12 * variance * 2 * np.pi * length_2 / (n1 * n2)))
