"""Weights of a slice's voxels for blending: a small map that goes along with the slice.

The attenuation stage knows gain, signal and noise of every bin; stacking needs their outcome. The
map is stored in the slice's attributes, eight bits a cell on a logarithmic scale.
"""

from __future__ import annotations

import base64
import functools
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from linumpy.device import Array, namespace, to_host
from linumpy.geometry.resample import apply_axis_weights

QUALITY_ATTRIBUTE = "quality_map"
"""Of a corrected slice: what `encode_map` returns."""

NOTHING = 255
_STEPS_AN_OCTAVE = 8
_CELL = 2
_LEAST = np.float32(2.0**-40)


def encode_weights(weights: Array) -> Array:
    """Return weights from 0 to 1 as uint8: −8·log2, `NOTHING` for 0."""
    xp = namespace(weights)
    code = xp.rint(xp.log2(xp.maximum(weights, _LEAST)) * np.float32(-_STEPS_AN_OCTAVE))
    code = xp.clip(code, 0, NOTHING - 1)
    return xp.where(weights > 0, code, NOTHING).astype(np.uint8)


def decode_weights(code: np.ndarray) -> np.ndarray:
    """Return what `encode_weights` was given, float32, rounded to 5 %."""
    weights = np.exp2(code.astype(np.float32) / np.float32(-_STEPS_AN_OCTAVE))
    return np.where(code == NOTHING, np.float32(0), weights)


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
    z, i, j = (n // _CELL for n in padded.shape)
    parts = padded.reshape(z, _CELL, i, _CELL, j, _CELL).astype(np.uint16)
    known = parts != NOTHING
    number = known.sum(axis=(1, 3, 5))
    mean = (parts * known).sum(axis=(1, 3, 5)) / np.maximum(number, 1)
    cells = np.where(2 * number >= _CELL**3, np.rint(mean), NOTHING).astype(np.uint8)
    return _record(cells, (_CELL, _CELL * bin_px, _CELL * bin_px), shape)


def _record(
    cells: np.ndarray, voxels_a_cell: tuple[int, ...], shape: tuple[int, ...]
) -> dict[str, Any]:
    return {
        "voxels_a_cell": [int(n) for n in voxels_a_cell],
        "cells": list(cells.shape),
        "shape": [int(n) for n in shape],
        "codes": base64.b64encode(zlib.compress(cells.tobytes(), 6)).decode("ascii"),
    }


def decode_map(
    attributes: Mapping[str, Any], shape: tuple[int, ...]
) -> tuple[np.ndarray, tuple[int, ...]] | None:
    """Return weights (cells) and voxels a cell; None where a slice of this shape has no map."""
    found = _codes(attributes, shape)
    return None if found is None else (decode_weights(found[0]), found[1])


def moved_map(
    attributes: Mapping[str, Any],
    shape: tuple[int, ...],
    sides: tuple[int, int],
    in_slice: Callable[[np.ndarray], np.ndarray],
) -> dict[str, Any] | None:
    """Return a slice's map once the slice is moved onto a canvas; None where it has none.

    Parameters
    ----------
    attributes, shape
        Of the slice.
    sides
        Pixels of the canvas.
    in_slice
        Returns where pixels of the canvas, shape (n, 2), lie in the slice, counted at centres.
    """
    found = _codes(attributes, shape)
    if found is None:
        return None
    codes, size = found
    cells = [-(-n // s) for n, s in zip(sides, size[1:], strict=True)]
    centres = [(np.arange(n) + 0.5) * s - 0.5 for n, s in zip(cells, size[1:], strict=True)]
    pixels = np.stack(np.meshgrid(*centres, indexing="ij"), axis=-1).reshape(-1, 2)
    place = np.floor((in_slice(pixels) + 0.5) / np.asarray(size[1:])).astype(int)
    inside = ((place >= 0) & (place < codes.shape[1:])).all(axis=1)
    row, column = np.where(inside[:, None], place, 0).T
    moved = np.where(inside, codes[:, row, column], np.uint8(NOTHING))
    moved = moved.reshape(len(codes), *cells)
    return _record(moved, size, (shape[0], *sides))


def _codes(
    attributes: Mapping[str, Any], shape: tuple[int, ...]
) -> tuple[np.ndarray, tuple[int, ...]] | None:
    record = attributes.get(QUALITY_ATTRIBUTE)
    if not isinstance(record, Mapping) or tuple(record.get("shape", ())) != tuple(shape):
        return None
    try:
        size = tuple(int(n) for n in record["voxels_a_cell"])
        cells = tuple(int(n) for n in record["cells"])
        if min(size) < 1 or any(
            -(-n // s) != c for n, s, c in zip(shape, size, cells, strict=True)
        ):
            return None
        packed = base64.b64decode(record["codes"], validate=True)
        opener = zlib.decompressobj()
        data = opener.decompress(packed, int(np.prod(cells)) + 1)
        codes = np.frombuffer(data, np.uint8).reshape(cells)
    except (KeyError, TypeError, ValueError, zlib.error):
        return None
    return codes, size


def weights_at(cells: Array, voxels_a_cell: tuple[int, ...], box: tuple[slice, ...]) -> Array:
    """Return weights of a box of voxels, linear between the centres of cells, float32.

    Parameters
    ----------
    cells, voxels_a_cell
        From `decode_map`; the cells NumPy or CuPy.
    box
        Planes and pixels of the slice.
    """
    parts: list[slice] = []
    matrices: list[np.ndarray | None] = []
    for part, size, n in zip(box, voxels_a_cell, cells.shape, strict=True):
        low = max(0, part.start // size - 1)
        high = min(n, -(-part.stop // size) + 1)
        parts.append(slice(low, high))
        matrices.append(
            between_cells(part.start - low * size, part.stop - part.start, high - low, size)
        )
    xp = namespace(cells)
    return apply_axis_weights(xp.ascontiguousarray(cells[tuple(parts)]), matrices)


@functools.lru_cache(maxsize=128)
def between_cells(first: int, n_voxels: int, n_cells: int, size: int) -> np.ndarray:
    """Return the matrix (voxels, cells) that interpolates; constant beyond the outer cells."""
    place = np.clip((first + np.arange(n_voxels) + 0.5) / size - 0.5, 0, n_cells - 1)
    low = np.minimum(place.astype(int), max(n_cells - 2, 0))
    weights = np.zeros((n_voxels, n_cells))
    rows = np.arange(n_voxels)
    weights[rows, np.minimum(low + 1, n_cells - 1)] = place - low
    weights[rows, low] += 1 - (place - low)
    weights.setflags(write=False)
    return weights
