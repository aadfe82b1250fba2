"""Bilinear sampling of rotated or deformed planes; valid where all four samples are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from linumpy.core.device import Array, is_device_array, namespace, to_host
from linumpy.geometry.shift_field import ShiftField

Window = tuple[slice, slice]


def rotation_matrix(rotation_deg: float) -> np.ndarray:
    """Return the matrix that rotates axis 1 towards axis 2 by an angle, float64."""
    angle = np.deg2rad(rotation_deg)
    cos, sin = np.cos(angle), np.sin(angle)
    return np.array([[cos, -sin], [sin, cos]])


@dataclass(frozen=True)
class Turn:
    """Where pixels of an output plane lie in a source plane.

    Attributes
    ----------
    matrix
        Rows (a, b) and (c, d): output pixel (i, j) lies at source pixel
        (a·i + b·j + shift[0], c·i + d·j + shift[1]), pixels counted at their centres.
    shift
        As there.
    """

    matrix: tuple[tuple[float, float], tuple[float, float]]
    shift: tuple[float, float]

    @classmethod
    def about(cls, rotation_deg: float, centre_px: Sequence[float] | np.ndarray) -> Turn:
        """Return the sampling that rotates a plane about a point of it."""
        inverse = rotation_matrix(-rotation_deg)
        shift = np.asarray(centre_px) - inverse @ np.asarray(centre_px)
        return cls.of(inverse, shift)

    @classmethod
    def of(cls, matrix: np.ndarray, shift: np.ndarray) -> Turn:
        """Return the same from arrays."""
        (a, b), (c, d) = matrix.tolist()
        return cls(((a, b), (c, d)), (float(shift[0]), float(shift[1])))

    def at(self, points: np.ndarray) -> np.ndarray:
        """Return source pixels of output pixels, shape (n, 2)."""
        return np.asarray(points @ np.array(self.matrix).T + np.array(self.shift))


def bend_of(field: ShiftField, turn: Turn, output: Window, xp: Any = np) -> Array:
    """Return what a field adds to the places of a rotation, source pixels, (2, rows, columns)."""
    rows, columns = (np.arange(part.start, part.stop, dtype=float) for part in output)
    moved = field.on_grid(rows, columns, xp)
    return xp.stack([a * moved[0] + b * moved[1] for a, b in turn.matrix])


@dataclass(frozen=True)
class Samples:
    """Which four pixels of a source window give each pixel of an output window.

    Attributes
    ----------
    index
        Flat index, in the source window, of the sample with the lower indices.
    row
        Pixels from there to the sample below.
    near, far
        An axis: shares of the lower and of the higher sample, float32.
    inside
        Where all four samples lie in the source window.
    """

    index: Array
    row: int
    near: tuple[Array, Array]
    far: tuple[Array, Array]
    inside: Array


def find_samples(
    turn: Turn, output: Window, source: Window, xp: Any = np, bend: Array | None = None
) -> Samples:
    """Return how pixels of `output` are interpolated from pixels of `source`.

    The place of a pixel depends on nothing but its own indices: any window gives the same bits.

    Parameters
    ----------
    bend
        What is added to the places that the rotation gives, float64 (2, rows, columns) of `output`;
        None for nothing.
    """
    i = xp.arange(output[0].start, output[0].stop, dtype=xp.float64)[:, None]
    j = xp.arange(output[1].start, output[1].stop, dtype=xp.float64)[None, :]
    held, low, near, far = [], [], [], []
    for axis in (0, 1):
        a, b = turn.matrix[axis]
        place = (a * i + b * j) + turn.shift[axis]
        if bend is not None:
            place = place + bend[axis]
        base = xp.floor(place)
        share = (place - base).astype(xp.float32)
        held.append((base >= source[axis].start) & (base < source[axis].stop - 1))
        low.append(base.astype(xp.int64) - source[axis].start)
        near.append(1 - share)
        far.append(share)
    row = source[1].stop - source[1].start
    inside = held[0] & held[1]
    index = xp.where(inside, low[0] * row + low[1], 0)
    return Samples(index, row, (near[0], near[1]), (far[0], far[1]), inside)


def sample_planes(planes: Array, samples: Samples) -> Array:
    """Return planes (z, …) of the source window at the output's pixels, float32.

    Values where `samples.inside` is false mean nothing.
    """
    xp = namespace(planes)
    out = xp.empty((len(planes), *samples.index.shape), xp.float32)
    if min(planes.shape[1:]) < 2:
        out[:] = 0
        return out
    (near1, near2), (far1, far2) = samples.near, samples.far
    room = xp.empty(samples.index.shape, xp.float32)
    for plane, result in zip(planes, out, strict=True):
        flat = xp.ascontiguousarray(plane, dtype=xp.float32).ravel()
        blends = []
        for start in (samples.row, 0):
            one = _take(flat[start:], samples.index)
            other = _take(flat[start + 1 :], samples.index)
            one *= near2
            xp.multiply(far2, other, out=room)
            one += room
            blends.append(one)
        lower, upper = blends
        upper *= near1
        lower *= far1
        xp.add(upper, lower, out=result)
    return out


def sample_mask(mask: Array, samples: Samples) -> Array:
    """Return where all four samples of each pixel are inside and valid, bool, shape (z, …)."""
    xp = namespace(mask)
    out = xp.zeros((len(mask), *samples.index.shape), bool)
    if min(mask.shape[1:]) < 2:
        return out
    for plane, result in zip(mask, out, strict=True):
        there = xp.zeros(plane.shape, bool)
        good = plane > 0
        there[:-1, :-1] = good[:-1, :-1] & good[1:, :-1] & good[:-1, 1:] & good[1:, 1:]
        xp.logical_and(_take(there.ravel(), samples.index), samples.inside, out=result)
    return out


def warp_planes(
    planes: Array, turn: Turn, shape: tuple[int, int], field: ShiftField | None = None
) -> Array:
    """Return flattened planes sampled at other planes' pixels; 0 where no data are known.

    Parameters
    ----------
    planes
        Shape (z, axis 1, axis 2), float32.
    turn
        Where pixels of the result lie in `planes`.
    shape
        Rows and columns of the result.
    field
        What is added to the pixels of the result before `turn`, px; None for nothing.
    """
    xp = namespace(planes)
    output = (slice(0, shape[0]), slice(0, shape[1]))
    source = (slice(0, planes.shape[1]), slice(0, planes.shape[2]))
    bend = None if field is None else bend_of(field, turn, output, xp)
    samples = find_samples(turn, output, source, xp, bend)
    out = sample_planes(planes, samples)
    out *= sample_mask(planes != 0, samples)
    return out


def turn_planes(
    planes: Array, rotation_deg: float, centre_px: Sequence[float] | np.ndarray
) -> Array:
    """Return flattened planes rotated about a point, in place of the old; zeros are unknown.

    Parameters
    ----------
    planes
        Shape (z, axis 1, axis 2), float32.
    rotation_deg
        Positive from axis 1 towards axis 2.
    centre_px
        The point that stays, in pixels counted at their centres.
    """
    shape = (planes.shape[1], planes.shape[2])
    return warp_planes(planes, Turn.about(rotation_deg, centre_px), shape)


def _take(flat: Array, index: Array) -> Array:
    if is_device_array(flat):
        return flat[index]
    # Without clipping NumPy goes through a buffer; all indices of pixels that count are in range.
    return np.take(to_host(flat), to_host(index), mode="clip")
