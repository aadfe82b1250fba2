"""Anatomical orientation in the metadata of an OME-Zarr volume."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from linumpy.geometry.orientation import parse_orientation

if TYPE_CHECKING:
    from linumpy.io.omezarr import Image

_LETTERS = {
    "right-to-left": "L", "left-to-right": "R", "anterior-to-posterior": "P",
    "posterior-to-anterior": "A", "inferior-to-superior": "S", "superior-to-inferior": "I",
}  # fmt: skip


def stated_orientation(image: Image) -> str:
    """Return where the axes (z, axis 1, axis 2) of a volume point; empty where nothing states it.

    It is in ``attributes.linumpy.orientation``, or in NGFF's anatomical orientation of axes.

    Raises
    ------
    InputError
        When it is no orientation; names the file.
    """
    code = image.attributes.get("orientation") or _orientation_of_axes(image.axes)
    return parse_orientation(str(code), f"{image.path}: orientation") if code else ""


def _orientation_of_axes(axes: Sequence[Any]) -> str:
    """Return the code of NGFF axes that carry an anatomical orientation; empty without."""
    values = [
        axis.get("orientation", {}).get("value", "") if isinstance(axis, dict) else ""
        for axis in axes
    ]
    return "".join(_LETTERS.get(value, "") for value in values)
