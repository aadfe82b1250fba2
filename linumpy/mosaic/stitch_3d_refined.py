"""Stitching: a slice put together from tiles at their registered positions, block by block.

Tiles lie at fractions of a pixel, so they are interpolated linearly along both lateral axes.
Overlaps are weighted means: order plays no part but in rounding, and tiles are always added in
the order of the grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from linumpy.device import Array, like, namespace

BLENDING_METHODS = ("linear", "average", "none")


def blending_weights(
    tile_shape: tuple[int, int], overlap_px: tuple[float, float], method: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return a tile's weight along axis 1 and along axis 2; their product is its weight map.

    Parameters
    ----------
    tile_shape
        Pixels of a tile.
    overlap_px
        Nominal overlap of neighbours along both axes.
    method
        ``linear``: weights rise from a tile's border over the overlap, which between two tiles
        is the solution of the Laplace equation that "diffusion" blending iterates for.
        ``average``: all tiles weigh the same. ``none``: a tile's middle wins.
    """
    profiles = []
    for n, overlap in zip(tile_shape, overlap_px, strict=True):
        distance = np.minimum(np.arange(n) + 0.5, n - np.arange(n) - 0.5)
        if method == "linear":
            profile = np.minimum(distance / max(overlap, 1.0), 1.0)
        elif method == "average":
            profile = np.ones(n)
        else:
            # So steep that the tile whose border is further away takes all but everything.
            profile = (distance / distance.max()) ** 16
        profiles.append(profile.astype(np.float32))
    return profiles[0], profiles[1]


def canvas_shape(
    position_px: np.ndarray, tile_shape: tuple[int, int]
) -> tuple[np.ndarray, tuple[int, int]]:
    """Return the canvas corner, in the frame of the tile positions, and its pixels.

    The canvas begins at the lowest tile corner and ends with the last pixel that a tile reaches
    with both samples of the interpolation.
    """
    corner = position_px.min(axis=0)
    span = position_px.max(axis=0) - corner + np.asarray(tile_shape)
    shape = np.floor(span + 1e-6).astype(int)
    return corner, (int(shape[0]), int(shape[1]))


def tiles_in_block(
    offset_px: np.ndarray,
    tile_shape: tuple[int, int],
    window: tuple[slice, slice],
) -> list[int]:
    """List the tiles, by number, that touch a block of the canvas.

    Parameters
    ----------
    offset_px
        Tile corners from the canvas corner, shape (n_tiles, 2).
    window
        The block's pixels along axis 1 and axis 2.
    """
    low = np.array([s.start for s in window])
    high = np.array([s.stop for s in window])
    touch = (offset_px < high) & (offset_px + np.asarray(tile_shape) > low)
    return np.flatnonzero(touch.all(axis=1)).tolist()


def stitch_3d_refined(
    tiles: Iterable[tuple[Array, Array | None, Sequence[float]]],
    weights: tuple[np.ndarray, np.ndarray],
    window: tuple[slice, slice],
    like_array: Array,
) -> tuple[Array, Array]:
    """Blend tiles into one block of the canvas.

    Parameters
    ----------
    tiles
        Tile (z, axis 1, axis 2), its mask or None, and its corner on the canvas in pixels.
    weights
        From `blending_weights`.
    window
        The block's pixels along axis 1 and axis 2.
    like_array
        Any array of the tiles' depth on the device to work on; fixes the block's depth.

    Returns
    -------
    Block (z, axis 1, axis 2), float32, 0 where no tile has data, and its mask (uint8).
    """
    xp = namespace(like_array)
    shape = (like_array.shape[0], *(s.stop - s.start for s in window))
    total = xp.zeros(shape, xp.float32)
    weight_sum = xp.zeros(shape, xp.float32)
    for data, valid, offset in tiles:
        placed = _place(data, valid, weights, window, offset)
        if placed is None:
            continue
        part, values, weight = placed
        total[part] += values
        weight_sum[part] += weight
    good = weight_sum > 0
    total = xp.where(good, total / xp.where(good, weight_sum, 1), 0)
    return total.astype(xp.float32), good.astype(xp.uint8)


def _place(
    data: Array,
    valid: Array | None,
    weights: tuple[np.ndarray, np.ndarray],
    window: tuple[slice, slice],
    offset: Sequence[float],
) -> tuple[tuple[slice, ...], Array, Array] | None:
    """Interpolate a tile onto the block's pixels; answer where, weighted values and weights."""
    xp = namespace(data)
    target: list[slice] = [slice(None)]
    source: list[slice] = []
    taps: list[list[tuple[int, np.float32]]] = []
    lateral = []
    for axis in (0, 1):
        n = data.shape[axis + 1]
        whole = int(np.floor(offset[axis]))
        fraction = np.float32(offset[axis] - whole)
        # Canvas pixel c reads tile samples c - whole - 1 and c - whole with weights
        # fraction and 1 - fraction.
        first = max(window[axis].start, whole + (1 if fraction > 0 else 0))
        stop = min(window[axis].stop, whole + n)
        if first >= stop:
            return None
        target.append(slice(first - window[axis].start, stop - window[axis].start))
        begin = first - whole
        source.append(slice(begin, stop - whole))
        taps.append([(0, np.float32(1) - fraction)] + ([(-1, fraction)] if fraction > 0 else []))
        profile = weights[axis]
        lateral.append(
            sum(share * profile[begin + tap : stop - whole + tap] for tap, share in taps[-1])
        )
    weight = like(lateral[0], data)[:, None] * like(lateral[1], data)[None, :]
    values: Array = None
    mask: Array = None
    for tap1, share1 in taps[0]:
        rows = slice(source[0].start + tap1, source[0].stop + tap1)
        for tap2, share2 in taps[1]:
            columns = slice(source[1].start + tap2, source[1].stop + tap2)
            part = data[:, rows, columns] * (share1 * share2)
            values = part if values is None else values + part
            if valid is not None:
                there = valid[:, rows, columns] > 0
                mask = there if mask is None else mask & there
    weight = xp.broadcast_to(weight[None], values.shape)
    if mask is not None:
        weight = xp.where(mask, weight, 0)
    return tuple(target), values * weight, weight
