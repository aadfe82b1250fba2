"""Resample slices onto one common canvas, as registered, with sub-pixel precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import cached_property

import numpy as np

from linumpy.core.device import Array, namespace
from linumpy.geometry.canvas import check_canvas
from linumpy.geometry.shift_field import ShiftField
from linumpy.geometry.turned import (
    Samples,
    Turn,
    Window,
    bend_of,
    find_samples,
    rotation_matrix,
    sample_mask,
    sample_planes,
)

ReadPlanes = Callable[[slice, Window], tuple[Array, Array | None]]


@dataclass(frozen=True)
class Canvas:
    """The lateral frame that all slices of a brain share.

    Attributes
    ----------
    corner_um
        Common position of its low corner along axis 1 and axis 2.
    shape
        Pixels.
    origin_px
        Its position of the low corner of each slice's pixel (0, 0), by slice id.
    turns
        How pixels of the canvas lie in slices that are rotated or deformed, by slice id.
    fields
        What is added to pixels of the canvas before that, of deformed slices, px.
    """

    corner_um: tuple[float, float]
    shape: tuple[int, int]
    origin_px: Mapping[int, tuple[float, float]]
    turns: Mapping[int, Turn] = dataclass_field(default_factory=dict)
    fields: Mapping[int, ShiftField] = dataclass_field(default_factory=dict)

    def place(self, slice_id: int, shape: tuple[int, int], window: Window) -> Placement | None:
        """Return how a slice of some lateral pixels reaches a window; None when it does not."""
        return place_block(
            shape,
            self.origin_px[slice_id],
            window,
            self.turns.get(slice_id),
            self.fields.get(slice_id),
        )


def common_canvas(
    corners_um: Mapping[int, Sequence[float]],
    shapes: Mapping[int, tuple[int, int]],
    offsets_um: Mapping[int, Sequence[float]],
    lateral_um: Sequence[float],
    reference_id: int,
    rotations_deg: Mapping[int, float] | None = None,
    pivot_um: Sequence[float] = (0.0, 0.0),
    fields_um: Mapping[int, ShiftField] | None = None,
) -> Canvas:
    """Return the smallest canvas that holds all slices and keeps the reference on whole pixels.

    Parameters
    ----------
    corners_um
        Stage position of each slice's low corner along axis 1 and axis 2.
    shapes
        Lateral pixels of each slice.
    offsets_um
        What registration adds to the stage positions along axis 1 and axis 2.
    lateral_um
        Pixel sizes.
    reference_id
        The slice that is not interpolated; it must not be rotated.
    rotations_deg
        Rotations of slices about the pivot, positive from axis 1 towards axis 2; None for none.
    pivot_um
        The pivot's stage position.
    fields_um
        Deformation of slices over common positions; those it moves off the canvas are cut there.

    Raises
    ------
    InputError
        When the slices are so far apart that the canvas is all but empty; names the farthest.
    """
    pixel = np.asarray(lateral_um)
    turned = {k: r for k, r in (rotations_deg or {}).items() if k in corners_um and r}
    position, ends = {}, {}
    for k, corner in corners_um.items():
        sides = np.array([[0, 0], [0, 1], [1, 0], [1, 1]]) * np.multiply(shapes[k], pixel)
        if k in turned:
            points = np.asarray(corner) + sides - pivot_um
            points = points @ rotation_matrix(turned[k]).T + pivot_um + offsets_um[k]
            position[k], ends[k] = points[0] / pixel, points / pixel
        else:
            position[k] = np.add(corner, offsets_um[k]) / pixel
            ends[k] = position[k] + np.array([[0, 0], shapes[k]])
    anchor = position[reference_id]
    relative = {k: p - anchor for k, p in position.items()}
    low = np.floor(np.min([(e - anchor).min(axis=0) for e in ends.values()], axis=0) + 1e-9)
    high = np.ceil(np.max([(e - anchor).max(axis=0) for e in ends.values()], axis=0) - 1e-9)
    check_canvas(
        {f"slice z{k:02d}": p for k, p in relative.items()},
        high - low,
        max(math.prod(shape) for shape in shapes.values()),
    )
    shape = (high - low).astype(int)
    corner = (anchor + low) * pixel
    origin = {k: (float(r[0] - low[0]), float(r[1] - low[1])) for k, r in relative.items()}
    bent = {k: f for k, f in (fields_um or {}).items() if k in corners_um and f.values.any()}
    turns = {k: _turn_of(origin[k], turned.get(k, 0.0), pixel) for k in turned | bent}
    return Canvas(
        (float(corner[0]), float(corner[1])),
        (int(shape[0]), int(shape[1])),
        origin,
        turns,
        {k: _on_canvas(f, corner, pixel) for k, f in bent.items()},
    )


def _on_canvas(field_um: ShiftField, corner_um: np.ndarray, pixel_um: np.ndarray) -> ShiftField:
    """Return a field of common positions in pixels of the canvas, counted at their centres."""
    origin = (np.asarray(field_um.origin) - corner_um) / pixel_um - 0.5
    step = np.asarray(field_um.step) / pixel_um
    return ShiftField(
        (float(origin[0]), float(origin[1])),
        (float(step[0]), float(step[1])),
        field_um.values / pixel_um[:, None, None],
    )


def _turn_of(origin_px: Sequence[float], rotation_deg: float, pixel_um: np.ndarray) -> Turn:
    """Return where pixels of the canvas lie in a slice, both counted at their centres."""
    inverse = rotation_matrix(-rotation_deg) * pixel_um[None, :] / pixel_um[:, None]
    return Turn.of(inverse, inverse @ (0.5 - np.asarray(origin_px)) - 0.5)


@dataclass(frozen=True)
class Placement:
    """How a slice reaches a block of the canvas.

    Attributes
    ----------
    source
        Pixels of the slice that the block rests on.
    inner
        Pixels of the block that they give.
    shares
        An axis: weight of the pixel itself, and of the one before it.
    turn
        How the canvas lies in the slice, when that is rotated; shares then mean nothing.
    output
        Pixels of the canvas that `inner` are.
    field
        What is added to those before the rotation, of a deformed slice, px.
    """

    source: Window
    inner: Window
    shares: tuple[tuple[np.float32, np.float32], ...]
    turn: Turn | None = None
    output: Window = (slice(0, 0), slice(0, 0))
    field: ShiftField | None = None

    @cached_property
    def bend(self) -> Array | None:
        """What a deformed slice adds to the rotated places, source pixels, (2, rows, columns).

        Computed on the host for either device: both then sample at the same places, to the bit.
        """
        if self.field is None or self.turn is None:
            return None
        return bend_of(self.field, self.turn, self.output)

    @cached_property
    def samples(self) -> Samples:
        """How a rotated slice is sampled on the CPU: the same for all of its planes."""
        assert self.turn is not None
        return find_samples(self.turn, self.output, self.source, bend=self.bend)


def place_block(
    shape: tuple[int, int],
    origin_px: Sequence[float],
    window: Window,
    turn: Turn | None = None,
    field: ShiftField | None = None,
) -> Placement | None:
    """Return how a slice reaches a block; None when it does not.

    Parameters
    ----------
    shape
        Lateral pixels of the slice.
    origin_px
        Position of the slice's pixel (0, 0) on the canvas.
    window
        The block's pixels on the canvas.
    turn
        How the canvas lies in the slice, when that is rotated or deformed.
    field
        What is added to pixels of the canvas before the rotation, when the slice is deformed.
    """
    if turn is not None:
        return _place_turned(shape, window, turn, field)
    inner, source, shares = [], [], []
    for axis in (0, 1):
        whole = int(np.floor(origin_px[axis]))
        fraction = np.float32(origin_px[axis] - whole)
        before = 1 if fraction > 0 else 0
        first = max(window[axis].start, whole + before)
        stop = min(window[axis].stop, whole + shape[axis])
        if first >= stop:
            return None
        inner.append(slice(first - window[axis].start, stop - window[axis].start))
        source.append(slice(first - whole - before, stop - whole))
        shares.append((np.float32(1) - fraction, fraction))
    return Placement((source[0], source[1]), (inner[0], inner[1]), tuple(shares))


def _place_turned(
    shape: tuple[int, int], window: Window, turn: Turn, field: ShiftField | None
) -> Placement | None:
    """Return the part of a block that may show a rotated slice, and what of the slice it needs."""
    # Between nodes a field is at most (5/4)² times as large as at them, and a rotation adds √2.
    margin = 0 if field is None else math.ceil(25 / 16 * math.sqrt(2) * np.abs(field.values).max())
    # Where the slice's corners lie on the canvas bounds the block, and the block's the slice.
    inverse = np.linalg.inv(np.array(turn.matrix))
    ends = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    slice_on_canvas = (ends * (np.array(shape) - 1) - turn.shift) @ inverse.T
    output = []
    for axis in (0, 1):
        first = int(np.floor(slice_on_canvas[:, axis].min())) - margin
        stop = int(np.ceil(slice_on_canvas[:, axis].max())) + 1 + margin
        first, stop = max(window[axis].start, first), min(window[axis].stop, stop)
        if first >= stop:
            return None
        output.append(slice(first, stop))
    starts = np.array([part.start for part in output])
    block_in_slice = turn.at(starts + ends * np.array([p.stop - p.start - 1 for p in output]))
    source = []
    for axis in (0, 1):
        # One pixel more than is needed: the corners are computed in another order.
        first = max(0, int(np.floor(block_in_slice[:, axis].min())) - 1 - margin)
        stop = min(shape[axis], int(np.floor(block_in_slice[:, axis].max())) + 3 + margin)
        if stop - first < 2:
            return None
        source.append(slice(first, stop))
    inner = [
        slice(part.start - whole.start, part.stop - whole.start)
        for part, whole in zip(output, window, strict=True)
    ]
    one = (np.float32(1), np.float32(0))
    return Placement(
        (source[0], source[1]),
        (inner[0], inner[1]),
        (one, one),
        turn,
        (output[0], output[1]),
        field,
    )


def interpolate(
    data: Array, valid: Array | None, placement: Placement
) -> tuple[Array, Array | None]:
    """Interpolate planes of a slice linearly along both lateral axes.

    Parameters
    ----------
    data, valid
        Planes (z, axis 1, axis 2) of the placement's `source`, and their mask or None.

    Returns
    -------
    The pixels of the placement's `inner`, and where all samples that they rest on are valid
    (bool); None if that is everywhere.
    """
    if placement.turn is not None:
        samples = _samples(data, placement)
        return sample_planes(data, samples), _turned_mask(data, valid, samples)
    good = None if valid is None or valid.all() else valid > 0
    for axis in (0, 1):
        here, previous = placement.shares[axis]
        if previous > 0:
            tail, head = _neighbours(axis)
            moved = here * data[tail]
            moved += previous * data[head]
            data = moved
            good = None if good is None else good[tail] & good[head]
    return data, good


def interpolate_mask(valid: Array, placement: Placement) -> Array:
    """Return where `interpolate` finds all samples of a mask valid, bool, all planes."""
    if placement.turn is not None:
        return sample_mask(valid, _samples(valid, placement))
    good = valid > 0
    for axis in (0, 1):
        if placement.shares[axis][1] > 0:
            tail, head = _neighbours(axis)
            good = good[tail] & good[head]
    return good


def _neighbours(axis: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    lead = (slice(None),) * (axis + 1)
    return (*lead, slice(1, None)), (*lead, slice(None, -1))


def _samples(array: Array, placement: Placement) -> Samples:
    xp = namespace(array)
    if xp is np:
        return placement.samples
    assert placement.turn is not None
    bend = None if placement.bend is None else xp.asarray(placement.bend)
    return find_samples(placement.turn, placement.output, placement.source, xp, bend)


def _turned_mask(data: Array, valid: Array | None, samples: Samples) -> Array | None:
    xp = namespace(data)
    if valid is not None and not valid.all():
        return sample_mask(valid, samples)
    if samples.inside.all():
        return None
    return xp.broadcast_to(samples.inside, (len(data), *samples.inside.shape))


def align_mosaics_3d_from_shifts(
    read: ReadPlanes,
    shape: tuple[int, int],
    origin_px: Sequence[float],
    planes: slice,
    window: Window,
    turn: Turn | None = None,
    field: ShiftField | None = None,
) -> tuple[Array, Array] | None:
    """Return one block of a slice on the canvas, interpolated linearly along both lateral axes.

    Parameters
    ----------
    read
        Reads planes within a window of the slice: data and mask (or None).
    shape
        Lateral pixels of the slice.
    origin_px
        Position of the slice's pixel (0, 0) on the canvas.
    planes
        Planes of the slice wanted.
    window
        The block's pixels on the canvas.
    turn
        How the canvas lies in the slice, when that is rotated or deformed.
    field
        What is added to pixels of the canvas before the rotation, when the slice is deformed.

    Returns
    -------
    Block (planes, axis 1, axis 2), float32, and its mask (uint8); None when the slice does not
    reach the block. A pixel is valid when all samples that it was interpolated from are.
    """
    placement = place_block(shape, origin_px, window, turn, field)
    if placement is None:
        return None
    data, good = interpolate(*read(planes, placement.source), placement)
    xp = namespace(data)
    size = (data.shape[0], *(w.stop - w.start for w in window))
    out = xp.zeros(size, xp.float32)
    mask = xp.zeros(size, xp.uint8)
    part = (slice(None), *placement.inner)
    out[part] = data if good is None else xp.where(good, data, 0)
    mask[part] = True if good is None else good
    return out, mask
