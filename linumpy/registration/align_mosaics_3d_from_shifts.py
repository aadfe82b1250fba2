"""Common space: slices moved onto one canvas by their registered offsets, to sub-pixel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from linumpy.device import Array, namespace

Window = tuple[slice, slice]
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
        Where each slice's pixel (0, 0) lies on it, by slice id.
    """

    corner_um: tuple[float, float]
    shape: tuple[int, int]
    origin_px: Mapping[int, tuple[float, float]]


def common_canvas(
    corners_um: Mapping[int, Sequence[float]],
    shapes: Mapping[int, tuple[int, int]],
    offsets_um: Mapping[int, Sequence[float]],
    lateral_um: Sequence[float],
    reference_id: int,
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
        The slice that is not interpolated.
    """
    pixel = np.asarray(lateral_um)
    position = {k: np.add(corners_um[k], offsets_um[k]) / pixel for k in corners_um}
    anchor = position[reference_id]
    relative = {k: p - anchor for k, p in position.items()}
    low = np.floor(np.min(list(relative.values()), axis=0) + 1e-9)
    high = np.ceil(np.max([relative[k] + shapes[k] for k in relative], axis=0) - 1e-9)
    shape = (high - low).astype(int)
    corner = (anchor + low) * pixel
    origin = {k: (float(r[0] - low[0]), float(r[1] - low[1])) for k, r in relative.items()}
    return Canvas((float(corner[0]), float(corner[1])), (int(shape[0]), int(shape[1])), origin)


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
    """

    source: Window
    inner: Window
    shares: tuple[tuple[np.float32, np.float32], ...]


def place_block(
    shape: tuple[int, int], origin_px: Sequence[float], window: Window
) -> Placement | None:
    """Return how a slice reaches a block; None when it does not.

    Parameters
    ----------
    shape
        Lateral pixels of the slice.
    origin_px
        Where the slice's pixel (0, 0) lies on the canvas.
    window
        The block's pixels on the canvas.
    """
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
    good = None if valid is None or valid.all() else valid > 0
    for axis in (0, 1):
        here, previous = placement.shares[axis]
        if previous > 0:
            tail = (slice(None),) * (axis + 1) + (slice(1, None),)
            head = (slice(None),) * (axis + 1) + (slice(None, -1),)
            moved = here * data[tail]
            moved += previous * data[head]
            data = moved
            good = None if good is None else good[tail] & good[head]
    return data, good


def align_mosaics_3d_from_shifts(
    read: ReadPlanes,
    shape: tuple[int, int],
    origin_px: Sequence[float],
    planes: slice,
    window: Window,
) -> tuple[Array, Array] | None:
    """Return one block of a slice on the canvas, interpolated linearly along both lateral axes.

    Parameters
    ----------
    read
        Reads planes within a window of the slice: data and mask (or None).
    shape
        Lateral pixels of the slice.
    origin_px
        Where the slice's pixel (0, 0) lies on the canvas.
    planes
        Planes of the slice wanted.
    window
        The block's pixels on the canvas.

    Returns
    -------
    Block (planes, axis 1, axis 2), float32, and its mask (uint8); None when the slice does not
    reach the block. A pixel is valid when all samples that it was interpolated from are.
    """
    placement = place_block(shape, origin_px, window)
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
