"""Display planes of a volume: upright, with letters where the orientation is known.

Images show rows downwards and columns to the right. A volume whose orientation is known is shown
with superior (or anterior) up and the body's left on the left; one whose orientation is not known
is shown along its own axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from linumpy.geometry.orientation import reorient

if TYPE_CHECKING:
    from linumpy.io.omezarr import Image

UPRIGHT = "IPR"
"""Index 0 runs down the body, index 1 backwards, index 2 to its right."""

UNKNOWN = "orientation unknown"
_OPPOSITE = {"R": "L", "L": "R", "A": "P", "P": "A", "S": "I", "I": "S"}
AXIS_NAMES = ("z", "axis 1", "axis 2")
_VIEWS = ("axial", "coronal", "sagittal")


@dataclass(frozen=True)
class View:
    """A way to look through a volume.

    Attributes
    ----------
    axis, rows, columns
        Of the volume as it is shown: what a slider runs along, and what runs down and right.
    name
        What such planes are called.
    top, bottom, left, right
        Letters at the edges; empty where they are not known.
    """

    axis: int
    rows: int
    columns: int
    name: str
    top: str = ""
    bottom: str = ""
    left: str = ""
    right: str = ""


def views(code: str) -> tuple[View, View, View]:
    """Return the three views of a volume shown by `upright`, the main one first.

    The second has the columns of the first, and the third its rows.

    Parameters
    ----------
    code
        Orientation of z, axis 1 and axis 2; empty when it is not known.
    """
    # (axis, rows, columns): coronal first where that has a meaning, else planes of the cut.
    places = ((1, 0, 2), (0, 1, 2), (2, 0, 1)) if code else ((0, 1, 2), (1, 0, 2), (2, 1, 0))
    first, second, third = (
        View(
            *place,
            name=_VIEWS[place[0]] if code else f"across {AXIS_NAMES[place[0]]}",
            top=_OPPOSITE[UPRIGHT[place[1]]] if code else "",
            bottom=UPRIGHT[place[1]] if code else AXIS_NAMES[place[1]],
            left=_OPPOSITE[UPRIGHT[place[2]]] if code else "",
            right=UPRIGHT[place[2]] if code else AXIS_NAMES[place[2]],
        )
        for place in places
    )
    return first, second, third


def upright(volume: np.ndarray, code: str) -> np.ndarray:
    """Return a view of a volume (z, axis 1, axis 2) on the axes of `UPRIGHT`; as it is without."""
    return np.asarray(reorient(volume, code, UPRIGHT)) if code else volume


def upright_lengths(lengths: Sequence[float], code: str) -> tuple[float, float, float]:
    """Return what belongs to axes, such as voxel sizes, in the order of `upright`."""
    first, second, third = (lengths[axis] for axis in axis_order(code))
    return (first, second, third)


def axis_order(code: str) -> tuple[int, int, int]:
    """Return which axis of the volume each axis of `upright` is."""
    if not code:
        return (0, 1, 2)
    first, second, third = (
        next(k for k, letter in enumerate(code) if letter in pair) for pair in ("SI", "AP", "RL")
    )
    return (first, second, third)


def slice_view(code: str) -> View:
    """Return the view of a slice as it was imaged: axis 1 down, axis 2 to the right."""
    if not code:
        return views("")[0]
    down, right = code[1], code[2]
    return View(0, 1, 2, "slice", _OPPOSITE[down], down, _OPPOSITE[right], right)


def central_views(image: Image, level: int, code: str) -> list[tuple[View, np.ndarray]]:
    """Read the central plane of each view of a level, float32, as `views` orders them."""
    array = image.arrays[level]
    slabs = {}
    for axis, n in enumerate(array.shape):
        part = tuple(slice(n // 2, n // 2 + 1) if k == axis else slice(None) for k in range(3))
        slab = upright(np.asarray(array[part], dtype=np.float32), code)
        shown = axis_order(code).index(axis)
        slabs[shown] = np.take(slab, 0, axis=shown)
    return [
        (view, slabs[view.axis] if view.rows < view.columns else slabs[view.axis].T)
        for view in views(code)
    ]
