"""Bound the size of shared canvases against wrong positions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from linumpy.core.errors import InputError

MOST_EMPTY = 100
"""Most pixels of a canvas for each pixel that is put on it."""


def check_canvas(
    corners_px: Mapping[str, Sequence[float]], canvas_px: Sequence[float], covered_px: float
) -> None:
    """Refuse a canvas that is all but empty, as one wrong position or unit makes it.

    Parameters
    ----------
    corners_px
        Where the images lie along axis 1 and axis 2, by the name that users gave them.
    canvas_px
        Pixels of the canvas along axis 1 and axis 2; need not be whole numbers yet.
    covered_px
        Pixels of the images that the canvas must at least hold.

    Raises
    ------
    InputError
        Naming the image that is farthest from the middle (the median) of all.
    """
    sides = [float(side) for side in canvas_px]
    if math.prod(sides) <= MOST_EMPTY * covered_px:
        return
    corners = np.array(list(corners_px.values()), float)
    away_px = np.abs(corners - np.median(corners, axis=0)).max(axis=1)
    farthest = int(away_px.argmax())
    raise InputError(
        f"{list(corners_px)[farthest]} lies {away_px[farthest]:.6g} px from the middle of all, "
        f"which makes a canvas of {sides[0]:.6g} x {sides[1]:.6g} px for images of "
        f"{covered_px:.6g} px; expected at most {MOST_EMPTY} times as many. Are positions and "
        "voxel sizes in their units?"
    )
