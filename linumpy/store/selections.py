"""Basic selections of arrays, resolved to plain slices."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from linumpy.core.errors import InputError


def resolve(
    array: Any, selection: Any
) -> tuple[tuple[int | slice, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the selection with plain rising slices, the axes of the result to flip, its shape."""
    parts = selection if isinstance(selection, tuple) else (selection,)
    if selection is None:
        parts = ()
    dots = [axis for axis, part in enumerate(parts) if part is Ellipsis]
    missing = array.ndim - len(parts) + len(dots)
    if len(dots) > 1 or missing < 0:
        raise InputError(f"{array.store_path}: selection {selection} for {array.ndim} axes")
    fill = (slice(None),) * missing
    at = dots[0] if dots else len(parts)
    resolved: list[int | slice] = []
    flips: list[int] = []
    shape: list[int] = []
    for part, side in zip((*parts[:at], *fill, *parts[at + 1 :]), array.shape, strict=True):
        if isinstance(part, slice):
            chosen = range(*part.indices(side))
            if chosen.step < 0:
                flips.append(len(shape))
                chosen = chosen[::-1]
            shape.append(len(chosen))
            stop = chosen[-1] + 1 if chosen else chosen.start
            resolved.append(slice(chosen.start, stop, chosen.step))
            continue
        try:
            if isinstance(part, bool | np.bool_):
                raise TypeError
            resolved.append(range(side)[part])
        except (TypeError, IndexError):
            raise InputError(
                f"{array.store_path}: selection {selection} for the shape {array.shape}"
            ) from None
    return tuple(resolved), tuple(flips), tuple(shape)


def as_box(parts: tuple[int | slice, ...]) -> tuple[slice, ...]:
    """Return what `resolve` returns with a slice of one voxel for each integer."""
    return tuple(p if isinstance(p, slice) else slice(p, p + 1) for p in parts)


Part = tuple[tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]
"""A stored object that a box touches: its place among them, its own part, and that of the whole."""


def parts_of(box: tuple[slice, ...], outer: tuple[int, ...]) -> Iterator[Part]:
    """Take a box apart into the stored objects that it touches.

    Parameters
    ----------
    box
        Slices with a step of 1, within the array.
    outer
        Voxels of a stored object along each axis.
    """
    axes = []
    for part, side in zip(box, outer, strict=True):
        found = []
        for k in range(part.start // side, -(-part.stop // side)):
            low, high = max(part.start, k * side), min(part.stop, (k + 1) * side)
            found.append(
                (
                    k,
                    slice(low - k * side, high - k * side),
                    slice(low - part.start, high - part.start),
                )
            )
        axes.append(found if part.stop > part.start else [])
    for chosen in product(*axes):
        yield tuple(zip(*chosen, strict=True))
