"""Axes of NGFF images: units, places of voxels, and one volume of an image with more axes."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.errors import InputError
from linumpy.core.log import logger

AXES = ("z", "y", "x")
OPTIONS = {"t": "--time", "c": "--channel"}
"""Options that choose along the axes that volumes do not have."""

MICROMETRES_PER_UNIT = {
    "micrometer": 1.0,
    "millimeter": 1e3,
    "nanometer": 1e-3,
    "centimeter": 1e4,
    "meter": 1e6,
}

Triple = tuple[float, float, float]
Choice = Mapping[str, int | None]


class VolumeOf:
    """One volume of an array with more axes: behaves like a Zarr array with z, y, x.

    Parameters
    ----------
    array
        Zarr array, the last three axes of which are z, y, x.
    index
        Place along each of the axes before.
    """

    def __init__(self, array: Any, index: tuple[int, ...]) -> None:
        self._array = array
        self._index = index
        self.ndim = 3
        self.dtype = array.dtype
        self.shape: tuple[int, int, int] = tuple(array.shape[-3:])
        self.chunks: tuple[int, int, int] = tuple(array.chunks[-3:])
        self.shards = None if array.shards is None else tuple(array.shards[-3:])
        self.size = prod(self.shape)
        self.nbytes = self.size * self.dtype.itemsize

    def __getitem__(self, key: Any) -> np.ndarray:
        inner = key if isinstance(key, tuple) else (key,)
        found: np.ndarray = self._array[(*self._index, *inner)]
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[:], dtype=dtype)

    def __len__(self) -> int:
        return self.shape[0]


def axis_names(multiscale: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of an image's axes."""
    axes = multiscale.get("axes", [])
    return tuple(str(axis.get("name") if isinstance(axis, dict) else axis) for axis in axes)


def leading_index(
    path: Path, ngff: Mapping[str, Any], shape: tuple[int, ...], choice: Choice
) -> tuple[int, ...]:
    """Return the place of the chosen volume along the axes before z, y, x.

    Parameters
    ----------
    path
        The image, for messages.
    ngff
        Its NGFF attributes.
    shape
        Of its finest level.
    choice
        Wanted time (``t``) and channel (``c``); None takes the only one.

    Returns
    -------
    One place an axis; none for an image of z, y, x.

    Raises
    ------
    InputError
        When there are several and none is chosen, or there is no such place or axis.
    """
    names = axis_names(ngff["multiscales"][0])
    if names[-3:] != AXES or not set(names[:-3]) <= set(OPTIONS) or len(shape) != len(names):
        raise InputError(f"{path}: axes {names}, expected {AXES}, with t and c before")
    unknown = [axis for axis, place in choice.items() if place is not None and axis not in names]
    if unknown:
        raise InputError(f"{path}: axes {names}, expected no {OPTIONS[unknown[0]]}")
    index = []
    for name, size in zip(names[:-3], shape, strict=False):
        wanted = choice.get(name)
        if wanted is None and size == 1:
            wanted = 0
        if wanted is None or not 0 <= wanted < size:
            labels = channel_names(ngff) if name == "c" else []
            known = f" ({', '.join(labels)})" if labels else ""
            raise InputError(
                f"{path}: {size} places along axis {name}{known}, chosen: {wanted}; "
                f"expected {OPTIONS[name]} 0 to {size - 1}"
            )
        index.append(wanted)
    return tuple(index)


def channel_names(ngff: Mapping[str, Any]) -> list[str]:
    """Return the names of an image's channels, where its ``omero`` metadata have them."""
    omero = ngff.get("omero")
    channels = omero.get("channels", []) if isinstance(omero, dict) else []
    return [str(c["label"]) for c in channels if isinstance(c, dict) and c.get("label")]


_assumed: set[str] = set()


def _tell_assumed(path: Path, unit: str) -> None:
    """Say once of a volume that its unit was named for it."""
    if str(path) not in _assumed:
        _assumed.add(str(path))
        logger.info("%s: names no unit; taken to be %s, by --assume_unit", path, unit)


def axis_units(path: Path, multiscale: Mapping[str, Any], assume_unit: str | None) -> Triple:
    """Return the micrometres in the unit of z, y and x.

    Raises
    ------
    InputError
        When one is missing or unknown, or the axes are others.
    """
    axes = multiscale.get("axes", [])[-3:]
    if axis_names(multiscale)[-3:] != AXES:
        raise InputError(f"{path}: axes {axis_names(multiscale)}, expected {AXES}")
    factors = []
    for axis in axes:
        unit = axis.get("unit") if isinstance(axis, dict) else None
        if not unit and assume_unit:
            _tell_assumed(path, assume_unit)
            unit = assume_unit
        if not unit:
            raise InputError(
                f"{path}: axis {axis!r} has no unit; name it with --assume_unit "
                f"({', '.join(MICROMETRES_PER_UNIT)})"
            )
        if unit not in MICROMETRES_PER_UNIT:
            raise InputError(
                f"{path}: unit {unit!r}; expected one of {', '.join(MICROMETRES_PER_UNIT)}"
            )
        factors.append(MICROMETRES_PER_UNIT[unit])
    return (factors[0], factors[1], factors[2])


def dataset_transform(
    path: Path, multiscale: Mapping[str, Any], dataset: Mapping[str, Any], unit_um: Triple
) -> tuple[Triple, Triple]:
    """Return voxel size and centre of voxel 0 of a level along z, y and x, um.

    Raises
    ------
    InputError
        When a scale is not positive.
    """
    scale, translation = [1.0] * 3, [0.0] * 3
    steps = [
        *dataset.get("coordinateTransformations", []),
        *multiscale.get("coordinateTransformations", []),
    ]
    for step in steps:
        if step["type"] == "scale":
            factors = step["scale"][-3:]
            scale = [a * b for a, b in zip(scale, factors, strict=True)]
            translation = [a * b for a, b in zip(translation, factors, strict=True)]
        elif step["type"] == "translation":
            moved = step["translation"][-3:]
            translation = [a + b for a, b in zip(translation, moved, strict=True)]
    if not all(0 < s < float("inf") for s in scale):
        raise InputError(f"{path}/{dataset['path']}: scale {scale}, expected positive numbers")
    return (
        tuple(s * u for s, u in zip(scale, unit_um, strict=True)),  # type: ignore[return-value]
        tuple(t * u for t, u in zip(translation, unit_um, strict=True)),
    )
