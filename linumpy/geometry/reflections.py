"""Find bubbles and debris by what they reflect in the water above a cut face."""

from __future__ import annotations

from typing import Any

import numpy as np

from linumpy.core.robust import robust_spread

_LEAST_LOG = 0.25
"""Mean over a cell of ln amplitude, above that of other cells' water: a quarter more light, or a
twelvefold amplitude on a tenth of the area."""

_OUTLIER = 8.0
_LEAST_ABOVE_PX = 2
_NEAR_PX = 5
"""Nearer than that to its face, the crest of an uneven one shows, too."""

_SHADED_LOG = 0.5
"""Tissue of 10 per mm attenuates by no more over five voxels of 10 um; debris shades more of what
lies below it."""

_BELOW_PX = 5
_DARKER_LOG = 0.5
"""Of a shadow, in mean ln amplitude below the median of the cells around: 40 % less. Thin debris
and ghosts of the optics take less light away."""

_LEAST_UM2 = 2500.0
"""As of `quality.foreign_bodies`: one part alone may be speckle."""

_AROUND_CELLS = 2
_MIN_CELLS = 16


def reflecting_cells(level: np.ndarray, depth_px: np.ndarray) -> np.ndarray:
    """Return which cells show something above the cut face that most cells do not.

    Water scatters next to nothing. Cells are compared at equal distances from their faces, so that
    the blur of the face and the optics of the microscope, which all cells share, are no reflection.

    Parameters
    ----------
    level
        Mean ln amplitude (z, cells along axis 1, along axis 2), NaN where unknown, as of
        `interface_surface.profiles_and_parts`.
    depth_px
        Depth of the face at the cells' centres, voxels.

    Returns
    -------
    Boolean (cells along axis 1, along axis 2).
    """
    # Of a slope or a bump the highest part counts.
    face = np.floor(lowest_near(depth_px)).astype(int)
    found = np.zeros(depth_px.shape, bool)
    under = np.ceil(depth_px).astype(int) + np.arange(_BELOW_PX)[:, None, None]
    shown = np.take_along_axis(level, np.minimum(under, len(level) - 1), axis=0)
    below = np.max(np.where(np.isfinite(shown), shown, -np.inf), axis=0)
    flat, column = level.ravel(), np.arange(face.size).reshape(face.shape)
    for above in range(_LEAST_ABOVE_PX, int(face.max(initial=0)) + 1):
        plane = face - above
        at = flat[np.maximum(plane, 0) * face.size + column].astype(np.float32)
        there = np.isfinite(at) & (plane >= 0)
        if there.sum() < _MIN_CELLS:
            break
        excess = at - np.median(at[there])
        odd = there & (excess > _LEAST_LOG)
        if odd.any():
            spread = robust_spread(excess[there])
            odd &= excess > _OUTLIER * spread
            found |= odd & (at > below + _SHADED_LOG) if above < _NEAR_PX else odd
    return found


def lowest_near(values: np.ndarray) -> np.ndarray:
    """Return the least of each cell of a map and the up to eight around it."""
    for axis in (0, 1):
        cells = np.moveaxis(values, axis, 0)
        least = cells.copy()
        np.minimum(least[1:], cells[:-1], out=least[1:])
        np.minimum(least[:-1], cells[1:], out=least[:-1])
        values = np.moveaxis(least, 0, axis)
    return values


def level_below(level: np.ndarray, depth_px: np.ndarray) -> np.ndarray:
    """Return each cell's mean ln amplitude below its face, NaN without data.

    Parameters are those of `reflecting_cells`.
    """
    total, number = np.zeros((2, *depth_px.shape))
    for z, plane in enumerate(level):
        known = (z >= depth_px) & np.isfinite(plane)
        total += np.where(known, plane, 0)
        number += known
    return np.where(number > 0, total / np.maximum(number, 1), np.nan)


def reflecting_bodies(
    clear: np.ndarray,
    cells: np.ndarray,
    level: np.ndarray,
    cell_um: tuple[float, float],
    corner_um: tuple[float, float],
    parts: int = 1,
) -> list[dict[str, Any]]:
    """Return the connected regions of `reflecting_cells`, largest first.

    Parameters
    ----------
    clear, cells
        Cells that reflect, by themselves and together with others.
    level
        From `level_below`.
    cell_um, corner_um
        Side of a cell, and stage position of the low corner of cell (0, 0), along both axes.
    parts
        Cells that make one of about 160 um, a side: no farther apart, they are of one body.

    Returns
    -------
    ``area_um2``, in whole cells, ``centre_um``, a stage position, and ``cells`` of each: numbers
    along both axes of the clear ones that are darker below the face than most cells around.
    """
    # It takes longer to be imported than all else of a cut takes.
    from scipy import ndimage

    def shadowed(body: np.ndarray) -> np.ndarray:
        around = ndimage.binary_dilation(body, np.ones((3, 3)), _AROUND_CELLS * parts)
        others = level[around & ~cells & np.isfinite(level)]
        usual = np.median(others) if len(others) else -np.inf
        return body & clear & (level < usual - _DARKER_LOG)

    joined = ndimage.binary_dilation(cells, np.ones((3, 3)), parts // 2) if parts > 1 else cells
    labels, count = ndimage.label(joined, np.ones((3, 3)))
    labels *= cells
    numbers = range(1, count + 1)
    sizes = ndimage.sum_labels(cells, labels, numbers)
    centres = ndimage.center_of_mass(labels > 0, labels, numbers)
    bodies: list[dict[str, Any]] = [
        {
            "area_um2": float(size * cell_um[0] * cell_um[1]),
            "centre_um": [
                float(corner + (c + 0.5) * side)
                for corner, c, side in zip(corner_um, centre, cell_um, strict=True)
            ],
            "cells": np.argwhere(shadowed(labels == number)).tolist(),
        }
        for number, size, centre in zip(numbers, sizes, centres, strict=True)
    ]
    # What shades the tissue below it is no speckle.
    bodies = [body for body in bodies if body["cells"] or body["area_um2"] >= _LEAST_UM2]
    return sorted(bodies, key=lambda body: -body["area_um2"])
