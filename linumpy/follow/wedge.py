"""How far the tilt of a face is known: uneven faces fall across a small mosaic by chance."""

from __future__ import annotations

import numpy as np

from linumpy.geometry.least_squares import least_squares

SURE = float(np.sqrt(2 * np.log(1000)))
"""A fall in any direction is larger than so many standard errors an axis once in 1000 slices."""


def fall_error_um(surface_um: np.ndarray) -> float:
    """Return the standard error of a face's fall across the slice, along each axis.

    The face is taken as a random field of Gaussian covariance. Variance and length follow from
    what is left about its plane: from its variance over its mean squared step. The plane takes up
    a part of a field that is long for the mosaic; `_moments` says how much.

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
    step = float(np.mean([np.mean(np.square(np.diff(left, axis=axis))) for axis in (0, 1)]))
    if step == 0 or variance < 1e-12:
        return 0.0
    lengths = np.geomspace(0.5, max(n1, n2) / 2, 30)
    of_field = np.array([_moments(n1, n2, float(length)) for length in lengths])
    ratio = np.log(of_field[:, 0] / of_field[:, 1])
    of_variance, _, of_fall = of_field[np.argmin(np.abs(ratio - np.log(variance / step)))]
    return float(np.sqrt(variance * of_fall / of_variance))


def _moments(n1: int, n2: int, length: float) -> tuple[float, float, float]:
    """Return what a field of variance 1 leaves about its plane on average, and its fall's variance.

    What is left: its variance, and its mean squared step from cell to cell.
    """
    mean_1, slope_1, step_1, unit_1 = _axis_moments(n1, length)
    mean_2, slope_2, step_2, unit_2 = _axis_moments(n2, length)
    variance = 1 - (mean_1 * mean_2 + slope_1 * mean_2 + mean_1 * slope_2) / (n1 * n2)
    steps, falls = [], []
    for n, m, mean, slope, step, unit in (
        (n1, n2, mean_2, slope_1, step_1, unit_1),
        (n2, n1, mean_1, slope_2, step_2, unit_2),
    ):
        of_plane = unit**2 / m * slope * mean
        with_plane = 2 * unit * step * mean / ((n - 1) * m)
        steps.append(-2 * np.expm1(-0.5 / length**2) - with_plane + of_plane)
        falls.append(of_plane * n**2)
    return float(variance), float(np.mean(steps)), float(np.mean(falls))


def _axis_moments(n: int, length: float) -> tuple[float, float, float, float]:
    """Return variances of mean and slope along an axis, both of unit norm; of slope and ends.

    The last is the slope's step from cell to cell.
    """
    cell = np.arange(n, dtype=np.float64)
    covariance = np.exp(-np.square((cell[:, None] - cell) / length) / 2)
    along = (cell - cell.mean()) / np.linalg.norm(cell - cell.mean())
    to_ends = covariance[:, -1] - covariance[:, 0]
    return (
        float(covariance.sum() / n),
        float(along @ covariance @ along),
        float(along @ to_ends),
        float(along[1] - along[0]),
    )
