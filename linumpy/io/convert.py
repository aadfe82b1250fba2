"""Shared parts of conversions: read volumes box by box, write OME-Zarr."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.device import to_host
from linumpy.core.errors import InputError
from linumpy.io.axes import MICROMETRES_PER_UNIT
from linumpy.io.omezarr import ImageSpec, Shape, Triple, create_image

CHUNK_PX = 64
SHARDS_PX = (64, 256, 256)
"""Flat shards: what comes plane by plane is written after 64 planes."""

DEFAULT_FACTORS = (2, 4, 8)
_BOX_BYTES = 128 * 2**20

Box = tuple[slice, slice, slice]


@dataclass(frozen=True)
class Volume:
    """A volume somewhere on disk.

    Attributes
    ----------
    name
        Its file, for messages.
    shape, dtype
        Voxels along z, axis 1, axis 2, and their type.
    voxel_um, corner_um
        Voxel size, and world position of the corner of voxel 0.
    read
        Returns the voxels of a box.
    attributes
        What else is known; goes to ``attributes.linumpy``.
    """

    name: str
    shape: Shape
    dtype: np.dtype
    voxel_um: Triple
    corner_um: Triple
    read: Callable[[Box], np.ndarray]
    attributes: dict[str, Any] = field(default_factory=dict)


def parse_voxel_um(text: str) -> Triple:
    """Read a voxel size: one number for all axes, or three (z, axis 1, axis 2), in um.

    Raises
    ------
    InputError
        When it is neither.
    """
    try:
        sides = [float(part) for part in text.split(",")]
    except ValueError:
        sides = []
    if len(sides) == 1:
        sides *= 3
    if len(sides) != 3 or not all(0 < side < math.inf for side in sides):
        raise InputError(f"--resolution {text!r}: expected a voxel size in um, or three (z,y,x)")
    return (sides[0], sides[1], sides[2])


def unit_um(unit: str, where: str) -> float:
    """Return how many micrometres a unit has, by its NGFF name.

    Raises
    ------
    InputError
        When it is unknown; begins with `where`.
    """
    if unit not in MICROMETRES_PER_UNIT:
        known = ", ".join(MICROMETRES_PER_UNIT)
        raise InputError(f"{where}: unit {unit!r}; expected one of {known}")
    return MICROMETRES_PER_UNIT[unit]


def native(dtype: Any) -> np.dtype:
    """Return a type in the machine's byte order; booleans become uint8.

    Raises
    ------
    InputError
        When it is none that images have.
    """
    kind: np.dtype = np.dtype(dtype)
    if kind.kind == "b":
        return np.dtype(np.uint8)
    if kind.kind not in "uif" or kind.itemsize > 8:
        raise InputError(f"voxels of type {kind}; expected whole or real numbers")
    return kind.newbyteorder("=")


def boxes(shape: Sequence[int], itemsize: int, unit: Sequence[int] = SHARDS_PX) -> Iterator[Box]:
    """Cut a volume into boxes of whole `unit`s, each of a bounded number of bytes.

    They are as wide as the volume where that fits, so that planes are read in one piece.
    """
    columns = max(1, _BOX_BYTES // (itemsize * unit[0] * unit[1]) // unit[2]) * unit[2]
    columns = min(columns, shape[2])
    rows = max(1, _BOX_BYTES // (itemsize * unit[0] * columns) // unit[1]) * unit[1]
    for z in range(0, shape[0], unit[0]):
        for i in range(0, shape[1], rows):
            for j in range(0, shape[2], columns):
                yield (
                    slice(z, min(z + unit[0], shape[0])),
                    slice(i, min(i + rows, shape[1])),
                    slice(j, min(j + columns, shape[2])),
                )


def default_levels(voxel_um: Triple) -> list[float]:
    """Return the resolutions of a pyramid: twice, four and eight times the finest voxel side."""
    return [factor * min(voxel_um) for factor in DEFAULT_FACTORS]


def write_volume(
    volume: Volume,
    output: Path | str,
    resolutions_um: Sequence[float] | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Write a volume as OME-Zarr 0.5 with its pyramid, box by box.

    Coarser levels hold anti-aliased means, rounded where voxels are whole numbers. Voxels that are
    not finite become 0, and a warning counts them.

    Parameters
    ----------
    volume
        What to write.
    output
        OME-Zarr folder.
    resolutions_um
        Voxel sizes of the coarser levels; None for `default_levels`.
    overwrite
        Whether an existing image may be replaced.

    Raises
    ------
    InputError
        When a box cannot be read; names the file.
    OutputExistsError
        When `output` exists and `overwrite` is false.
    """
    from linumpy.core.log import logger, progress
    from linumpy.core.stream import stream
    from linumpy.io.pyramid import Part, Pyramid

    dtype = native(volume.dtype)
    whole = dtype.kind in "ui"
    spec = ImageSpec(
        shape=volume.shape,
        voxel_um=volume.voxel_um,
        translation_um=tuple(  # type: ignore[arg-type]
            c + v / 2 for c, v in zip(volume.corner_um, volume.voxel_um, strict=True)
        ),
        chunks=(CHUNK_PX,) * 3,
        shards=SHARDS_PX,
        dtype=dtype.name,
        attributes=volume.attributes,
    )

    def read(box: Box) -> np.ndarray:
        try:
            return np.ascontiguousarray(volume.read(box))
        except Exception as error:
            raise InputError(
                f"{volume.name}: planes {box[0].start}-{box[0].stop} cannot be read "
                f"({type(error).__name__}: {error})"
            ) from error

    unknown = 0
    with create_image(output, spec, overwrite=overwrite) as image:
        resolutions = default_levels(spec.voxel_um) if resolutions_um is None else resolutions_um
        pyramid = Pyramid(image, resolutions, SHARDS_PX)

        def compute(box: Box, data: np.ndarray) -> list[Part]:
            nonlocal unknown
            bad = 0 if data.dtype.kind in "ui" else int(data.size - np.isfinite(data).sum())
            if bad:
                unknown += bad
                data = np.nan_to_num(data, posinf=0, neginf=0)
            parts = pyramid.add(box, _float32(data))
            if whole:
                parts = [
                    Part(p.array, p.window, whole_numbers(to_host(p.data), dtype)) for p in parts
                ]
            return [Part(image.array, box, data), *parts]

        def write(_: Box, parts: list[Part]) -> None:
            for part in parts:
                part.array[part.window] = part.data.astype(part.array.dtype, copy=False)

        places = list(boxes(volume.shape, max(4, np.dtype(spec.dtype).itemsize)))
        done = stream(places, read, compute, write, readers=1)
        for _ in progress(done, len(places), "convert"):
            pass
    if unknown:
        logger.warning(
            "%s: %d voxels are not finite; they are 0 in %s", volume.name, unknown, output
        )


def _float32(data: np.ndarray) -> np.ndarray:
    """Return real numbers as float32; what is too large for it becomes its largest number."""
    if data.dtype.itemsize > 4 and data.dtype.kind == "f":
        limit = float(np.finfo(np.float32).max)
        data = data.clip(-limit, limit)
    return data.astype(np.float32, copy=False)


def whole_numbers(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Round to whole numbers of a type; what is beyond its range becomes the nearest in it.

    Rounded to float32 or float64, the largest numbers of wide types lie beyond their range: cast
    as they are, they would come out as negative numbers.
    """
    limits = np.iinfo(dtype)
    rounded = np.rint(values)
    with np.errstate(invalid="ignore"):
        out: np.ndarray = rounded.astype(dtype)
    out[rounded >= float(limits.max)] = limits.max
    out[rounded <= float(limits.min)] = limits.min
    return out


def read_resolutions(text: str | None) -> list[float] | None:
    """Read ``--pyramid_resolutions``.

    Raises
    ------
    InputError
        When it is no list of positive sizes.
    """
    if text is None:
        return None
    try:
        sizes = [float(part) for part in text.split(",")]
    except ValueError:
        sizes = [0.0]
    if not all(0 < size < math.inf for size in sizes):
        raise InputError(f"--pyramid_resolutions {text!r}: expected sizes in um")
    return sizes
