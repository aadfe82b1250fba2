"""Quality map of a slice: coarse weights of its voxels for blending.

The attenuation stage knows gain, signal and noise of every bin; stacking needs their outcome. The
map is stored in the slice's attributes, 16 bits a cell on a logarithmic scale: with 8, rounding
of float32 that changed the code of one cell changed the brain by 0.6 % there.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from linumpy.core.device import CPU, Array, Device, is_device_array, namespace, to_device, to_host
from linumpy.geometry.turned import Turn

QUALITY_ATTRIBUTE = "quality_map"
"""Of a corrected slice: what `encode_map` returns."""

NOTHING = 65535
_OCTAVES = 32
_STEPS_AN_OCTAVE = (NOTHING + 1) / _OCTAVES
_CELL = 2
_LEAST = np.float32(2.0**-40)


def encode_weights(weights: Array) -> Array:
    """Return weights from 0 to 1 as uint16: −2048·log2, `NOTHING` for 0."""
    xp = namespace(weights)
    code = xp.rint(xp.log2(xp.maximum(weights, _LEAST)) * np.float32(-_STEPS_AN_OCTAVE))
    code = xp.clip(code, 0, NOTHING - 1)
    return xp.where(weights > 0, code, NOTHING).astype(np.uint16)


def decode_weights(code: np.ndarray) -> np.ndarray:
    """Return what `encode_weights` was given, float32, rounded to 0.02 %; 5 % from uint8."""
    nothing = np.iinfo(code.dtype).max
    weights = np.exp2(code.astype(np.float32) * np.float32(-_OCTAVES / (nothing + 1)))
    return np.where(code == nothing, np.float32(0), weights)


def encode_map(code: Array, bin_px: int, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return a slice's map for its attributes.

    Parameters
    ----------
    code
        `encode_weights` over (z, bins along axis 1, bins along axis 2), NumPy or CuPy.
    bin_px
        Pixels of a bin.
    shape
        Voxels of the slice.
    """
    host = to_host(code)
    # Cells of two bins and two planes; the mean of codes is that of logarithms.
    padded = np.pad(host, [(0, -n % _CELL) for n in host.shape], mode="edge")
    number = np.zeros([n // _CELL for n in padded.shape], np.uint8)
    total = np.zeros(number.shape, np.uint32)
    for z, i, j in np.ndindex(_CELL, _CELL, _CELL):
        part = padded[z::_CELL, i::_CELL, j::_CELL]
        known = part != NOTHING
        number += known
        total += part * known
    mean = total / np.maximum(number, 1)
    cells = np.where(2 * number >= _CELL**3, np.rint(mean), NOTHING).astype("<u2")
    # Level 6 takes three times as long for 4 % fewer bytes.
    packed = zlib.compress(_by_byte(cells).tobytes(), 1)
    return {
        "voxels_a_cell": [_CELL, _CELL * bin_px, _CELL * bin_px],
        "cells": list(cells.shape),
        "shape": [int(n) for n in shape],
        "codes": base64.b64encode(packed).decode("ascii"),
    }


def _by_byte(cells: np.ndarray) -> np.ndarray:
    """Return all low bytes, then all high ones, which compress better apart."""
    return cells.reshape(-1, 1).view(np.uint8).T


@dataclass(frozen=True)
class QualityMap:
    """Weights of a slice's voxels, as its attributes hold them.

    Attributes
    ----------
    codes
        Compressed, as of `encode_map`.
    n_cells
        Of each axis.
    voxels_a_cell
        Sides of a cell.
    shape
        Voxels of the slice that the map was made of.
    origin_px, turn
        Where that slice's pixel (0, 0) lies in the image, and how the image lies in the slice, once
        it was moved onto a canvas; None and None where it was not.
    """

    codes: str
    n_cells: tuple[int, ...]
    voxels_a_cell: tuple[int, ...]
    shape: tuple[int, ...]
    origin_px: tuple[float, float] | None = None
    turn: Turn | None = None

    @cached_property
    def cells(self) -> np.ndarray:
        """Weights of cells, float32 (z, cells along axis 1, cells along axis 2).

        Raises
        ------
        ValueError
            When the codes are not those of so many cells.
        """
        return _decode_cells(self.codes, self.n_cells)

    def __getstate__(self) -> dict[str, Any]:
        """Leave what was decoded: other processes decode faster than they receive."""
        return {name: value for name, value in vars(self).items() if name != "cells"}


def _decode_cells(codes: str, n_cells: tuple[int, ...]) -> np.ndarray:
    try:
        packed = base64.b64decode(codes, validate=True)
        data = zlib.decompressobj().decompress(packed, 2 * int(np.prod(n_cells)) + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    low, *high = np.frombuffer(data, np.uint8).reshape(-1, *n_cells)
    # Slices made before have eight bits a cell.
    return decode_weights(low + (high[0].astype(np.uint16) << 8) if high else low)


def decode_map(attributes: Mapping[str, Any], shape: tuple[int, ...]) -> QualityMap | None:
    """Return the map that an image of this shape carries; None where it has none that fits."""
    record = attributes.get(QUALITY_ATTRIBUTE)
    try:
        own = tuple(int(n) for n in record["shape"])  # type: ignore[index]
        placed = record.get("placed")  # type: ignore[union-attr]
        expected = own if placed is None else tuple(int(n) for n in placed["canvas"])
        if expected != tuple(shape):
            return None
        size = tuple(int(n) for n in record["voxels_a_cell"])  # type: ignore[index]
        cells = tuple(int(n) for n in record["cells"])  # type: ignore[index]
        if min(size) < 1 or any(-(-n // s) != c for n, s, c in zip(own, size, cells, strict=True)):
            return None
        codes = record["codes"]  # type: ignore[index]
        if not isinstance(codes, str):
            return None
        origin, turn = (None, None) if placed is None else _decode_place(placed)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return QualityMap(codes, cells, size, own, origin, turn)


def _decode_place(placed: Mapping[str, Any]) -> tuple[tuple[float, float], Turn | None]:
    first, second = (float(value) for value in placed["origin_px"])
    turn = None
    if placed["turn"] is not None:
        matrix, shift = (np.array(part, dtype=float) for part in placed["turn"])
        if matrix.shape != (2, 2) or shift.shape != (2,) or not np.isfinite([*matrix, shift]).all():
            raise ValueError("no rotation")
        turn = Turn.of(matrix, shift)
    if not np.isfinite([first, second]).all():
        raise ValueError("no place")
    return (first, second), turn


def placed_map(
    attributes: Mapping[str, Any],
    shape: tuple[int, ...],
    canvas: tuple[int, int],
    origin_px: tuple[float, float],
    turn: Turn | None,
) -> dict[str, Any] | None:
    """Return a slice's record once the slice is moved onto a canvas; None where it has none.

    The map stays that of the slice, so that weights are interpolated as its voxels are.

    Parameters
    ----------
    attributes, shape
        Of the slice.
    canvas
        Pixels of the canvas.
    origin_px
        Position of the slice's pixel (0, 0) on the canvas.
    turn
        How the canvas lies in the slice, when that is rotated.
    """
    if decode_map(attributes, shape) is None:
        return None
    placed = {
        "canvas": [int(shape[0]), *(int(n) for n in canvas)],
        "origin_px": [float(value) for value in origin_px],
        "turn": None if turn is None else [[list(row) for row in turn.matrix], list(turn.shift)],
    }
    return {**attributes[QUALITY_ATTRIBUTE], "placed": placed}


def weights_at(
    cells: np.ndarray, voxels_a_cell: tuple[int, ...], box: tuple[slice, ...], device: Device = CPU
) -> Array:
    """Return weights of a box of voxels, linear between the centres of cells, float32.

    Parameters
    ----------
    cells, voxels_a_cell
        From `decode_map`.
    box
        Planes and pixels of the slice.
    device
        Where the answer is made; only the cells that it needs are copied there.
    """
    # Each voxel by itself, so that its bits do not depend on the box.
    places = [
        np.clip((np.arange(part.start, part.stop) + 0.5) / size - 0.5, 0, n - 1)
        for part, size, n in zip(box, voxels_a_cell, cells.shape, strict=True)
    ]
    lows = [
        np.minimum(place.astype(int), max(n - 2, 0))
        for place, n in zip(places, cells.shape, strict=True)
    ]
    needed = tuple(slice(int(low[0]), int(low[-1]) + 2) for low in lows)
    out = to_device(np.ascontiguousarray(cells[needed]), device)
    xp = namespace(out)
    for axis, (place, low, part) in enumerate(zip(places, lows, needed, strict=True)):
        share = xp.asarray((place - low).astype(np.float32).reshape(-1, *(1,) * (2 - axis)))
        first = low - part.start
        second = np.minimum(first + 1, out.shape[axis] - 1)
        out = _between(out, axis, xp.asarray(first), xp.asarray(second), share)
    return out


def _between(cells: Array, axis: int, first: Array, second: Array, share: Array) -> Array:
    """Interpolate along an axis; on the host plane by plane, which stay in the cache."""
    if axis == 0 or is_device_array(cells):
        xp = namespace(cells)
        near, far = (xp.take(cells, places, axis=axis) for places in (first, second))
        between: Array = near * (1 - share) + far * share
        return between
    sides = [len(first) if k == axis else n for k, n in enumerate(cells.shape)]
    out = np.empty(sides, cells.dtype)
    for plane, mixed in zip(cells, out, strict=True):
        plane.take(first, axis=axis - 1, out=mixed, mode="clip")
        mixed *= 1 - share
        mixed += plane.take(second, axis=axis - 1) * share
    return out
