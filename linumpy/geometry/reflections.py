"""Find bubbles and debris by what they reflect in the water above a cut face."""

from __future__ import annotations

from typing import Any

import numpy as np

_LEAST_LOG = 0.25
"""Mean over a cell of ln amplitude, above that of other cells' water: a quarter more light, or a
twelvefold amplitude on a tenth of the area."""

_OUTLIER = 8.0
_LEAST_ABOVE_PX = 2
_NEAR_PX = 5
"""Nearer than that to its face, uneven tissue shows, too, but no brighter than below the face."""

_BELOW_PX = 5
_DARKER_LOG = 0.5
"""Of a shadow, in mean ln amplitude below the median of the cells around: 40 % less. Thin debris
and ghosts of the optics take less light away."""

_AROUND_CELLS = 2
_MIN_CELLS = 16
_ROBUST_SIGMA = 1.4826


def reflecting_cells(
    sums: np.ndarray, counts: np.ndarray, depth_px: np.ndarray, cell_px: int
) -> np.ndarray:
    """Return which cells show something above the cut face that most cells do not.

    Water scatters next to nothing. Cells are compared at equal distances from their faces, so that
    the blur of the face and the optics of the microscope, which all cells share, are no reflection.

    Parameters
    ----------
    sums, counts
        `interface_surface.log_profiles` of the whole slice, (z, cells along axis 1, along axis 2).
    depth_px
        Depth of the face at the cells' centres, voxels.
    cell_px
        Side of a cell.

    Returns
    -------
    Boolean (cells along axis 1, along axis 2).
    """
    from scipy.ndimage import minimum_filter

    known = counts >= max(1.0, 0.5 * cell_px**2)
    level = np.where(known, sums / np.maximum(counts, 1), np.nan)
    # Of a slope or a bump the highest part counts.
    face = np.floor(minimum_filter(depth_px, 3, mode="nearest")).astype(int)
    found = np.zeros(depth_px.shape, bool)
    under = np.ceil(depth_px).astype(int) + np.arange(_BELOW_PX)[:, None, None]
    shown = np.take_along_axis(level, np.minimum(under, len(level) - 1), axis=0)
    below = np.max(np.where(np.isfinite(shown), shown, -np.inf), axis=0)
    for above in range(_LEAST_ABOVE_PX, int(face.max(initial=0)) + 1):
        plane = face - above
        at = np.take_along_axis(level, np.maximum(plane, 0)[None], axis=0)[0]
        there = np.isfinite(at) & (plane >= 0)
        if there.sum() < _MIN_CELLS:
            break
        excess = at - np.median(at[there])
        spread = _ROBUST_SIGMA * float(np.median(np.abs(excess[there])))
        odd = there & (excess > max(_LEAST_LOG, _OUTLIER * spread))
        found |= odd & (at > below) if above < _NEAR_PX else odd
    return found


def level_below(sums: np.ndarray, counts: np.ndarray, depth_px: np.ndarray) -> np.ndarray:
    """Return each cell's mean ln amplitude below its face, NaN without data.

    Parameters are those of `reflecting_cells`.
    """
    below = np.arange(len(sums))[:, None, None] >= depth_px
    number = (counts * below).sum(axis=0)
    return np.where(number > 0, (sums * below).sum(axis=0) / np.maximum(number, 1), np.nan)


def reflecting_bodies(
    cells: np.ndarray,
    level: np.ndarray,
    cell_um: tuple[float, float],
    corner_um: tuple[float, float],
) -> list[dict[str, Any]]:
    """Return the connected regions of `reflecting_cells`, largest first.

    Parameters
    ----------
    level
        From `level_below`.
    cell_um, corner_um
        Side of a cell, and stage position of the low corner of cell (0, 0), along both axes.

    Returns
    -------
    ``area_um2``, in whole cells, ``centre_um``, a stage position, and ``cells`` of each: numbers
    along both axes of those that are darker below the face than most cells around.
    """
    from scipy import ndimage

    def shadowed(body: np.ndarray) -> np.ndarray:
        around = ndimage.binary_dilation(body, np.ones((3, 3)), _AROUND_CELLS)
        others = level[around & ~cells & np.isfinite(level)]
        usual = np.median(others) if len(others) else -np.inf
        return body & (level < usual - _DARKER_LOG)

    labels, count = ndimage.label(cells, np.ones((3, 3)))
    numbers = range(1, count + 1)
    sizes = ndimage.sum_labels(cells, labels, numbers)
    centres = ndimage.center_of_mass(labels > 0, labels, numbers)
    bodies = [
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
    return sorted(bodies, key=lambda body: -body["area_um2"])
