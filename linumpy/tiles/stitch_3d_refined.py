"""Stitch the tiles of a slice at their registered positions, block by block.

Tiles lie at fractions of a pixel, so they are interpolated linearly along both lateral axes.
Overlaps are weighted means: order plays no part but in rounding, and tiles are always added in
the order of the grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from linumpy.core.device import Array, is_device_array
from linumpy.geometry.tile_on_block import TileOnBlock

_LEAST_WEIGHT, _MOST_WEIGHT = 1e-9, 1e9
"""Products of two, and of a voxel with them, are still float32 numbers of full precision."""

_VOXELS_AT_ONCE = 1 << 16
"""Of a block, on the host: some arrays of as many voxels stay in a core's cache."""


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
            steep = _MOST_WEIGHT * (distance / distance.max()) ** 16
            profile = np.maximum(steep, _LEAST_WEIGHT)
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
        Tile (z, axis 1, axis 2), float32, its mask (0 where there is no data) or None, and its
        corner on the canvas in pixels.
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
    placed = (place_tile(data, valid, offset, window) for data, valid, offset in tiles)
    parts = [part for part in placed if part is not None]
    shape = (like_array.shape[0], *(s.stop - s.start for s in window))
    if is_device_array(like_array):
        from linumpy.geometry.tile_kernels import stitch_block

        return stitch_block(parts, weights, shape, like_array)
    return _blend(parts, weights, shape)


def place_tile(
    data: Array, valid: Array | None, offset_px: Sequence[float], window: tuple[slice, slice]
) -> TileOnBlock | None:
    """Place a tile on a block; None where it does not reach any of its pixels."""
    low, high, shift, fraction = [], [], [], []
    for axis in (0, 1):
        whole = int(np.floor(offset_px[axis]))
        share = np.float32(offset_px[axis] - whole)
        # Canvas pixel c reads tile samples c - whole - 1 and c - whole with weights
        # share and 1 - share.
        first = max(window[axis].start, whole + (1 if share > 0 else 0))
        stop = min(window[axis].stop, whole + data.shape[axis + 1])
        if first >= stop:
            return None
        low.append(first - window[axis].start)
        high.append(stop - window[axis].start)
        shift.append(window[axis].start - whole)
        fraction.append(share)
    return TileOnBlock(
        data,
        valid,
        (low[0], low[1]),
        (high[0], high[1]),
        (shift[0], shift[1]),
        (fraction[0], fraction[1]),
    )


class _Taps:
    """How a tile's samples add up to weighted pixels of a block, one axis after the other."""

    def __init__(self, part: TileOnBlock, weights: tuple[np.ndarray, np.ndarray]) -> None:
        self.part = part
        self.at = (slice(None), *(slice(*ends) for ends in zip(part.low, part.high, strict=True)))
        self.rows, self.columns = (
            slice(low + shift, high + shift)
            for low, high, shift in zip(part.low, part.high, part.shift, strict=True)
        )
        # A tile between pixels needs the sample before each pixel as well.
        self.before = tuple(int(share > 0) for share in part.fraction)
        lateral, scaled = [], []
        for profile, share, inside in zip(
            weights, part.fraction, (self.rows, self.columns), strict=True
        ):
            now, before = np.float32(1) - share, share
            weight: np.ndarray = now * profile[inside]
            if share > 0:
                weight = weight + before * profile[inside.start - 1 : inside.stop - 1]
            lateral.append(weight)
            scaled.append((now * weight, before * weight))
        self.weight = lateral[0][:, None] * lateral[1]
        self._row_taps = tuple(tap[:, None] for tap in scaled[0])
        self._column_taps = scaled[1]

    def values(
        self, planes: slice, scratch: np.ndarray, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Return weighted pixels of some planes, in `out` or else in `scratch` (two buffers)."""
        data, rows, columns = self.part.data, self.rows, self.columns
        wide = slice(columns.start - self.before[1], columns.stop)
        shape = (planes.stop - planes.start, rows.stop - rows.start, wide.stop - wide.start)
        here, other = (_shaped(buffer, shape) for buffer in scratch)
        np.multiply(data[planes, rows, wide], self._row_taps[0], out=here)
        if self.before[0]:
            above = slice(rows.start - 1, rows.stop - 1)
            np.multiply(data[planes, above, wide], self._row_taps[1], out=other)
            here += other
        if not self.before[1]:
            return np.multiply(here, self._column_taps[0], out=here if out is None else out)
        now = np.multiply(here[..., 1:], self._column_taps[0], out=other[..., 1:])
        left = np.multiply(here[..., :-1], self._column_taps[1], out=here[..., :-1])
        return np.add(now, left, out=now if out is None else out)

    def there(self, planes: slice) -> np.ndarray | bool:
        """Return where all samples of a pixel have data; True for everywhere, False for nowhere."""
        if self.part.valid is None:
            return True
        rows, columns = self.rows, self.columns
        seen = self.part.valid[
            planes,
            rows.start - self.before[0] : rows.stop,
            columns.start - self.before[1] : columns.stop,
        ]
        if seen.min():
            return True
        if not seen.max():
            return False
        mask = seen > 0
        if self.before[0]:
            mask = mask[:, 1:] & mask[:, :-1]
        return mask[..., 1:] & mask[..., :-1] if self.before[1] else mask


def _shaped(buffer: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return buffer[: int(np.prod(shape))].reshape(shape)


def _blend(
    parts: Sequence[TileOnBlock], weights: tuple[np.ndarray, np.ndarray], shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Blend on the host, a few planes at a time.

    What every voxel is made of does not depend on which planes and pixels are done with it.
    """
    total, good = np.zeros(shape, np.float32), np.zeros(shape, np.uint8)
    taps = [_Taps(part, weights) for part in parts]
    at_once = max(1, min(shape[0], _VOXELS_AT_ONCE // max(1, shape[1] * shape[2])))
    scratch = np.empty((2, at_once * (shape[1] + 1) * (shape[2] + 1)), np.float32)
    # Sums of weights by the tiles that have data all over some planes: the same for most planes.
    known: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = {}
    for first in range(0, shape[0], at_once):
        planes = slice(first, min(first + at_once, shape[0]))
        there = [tap.there(planes) for tap in taps]
        used = tuple(n for n, mask in enumerate(there) if mask is not False)
        if not used:
            continue
        block = total[planes]
        for n in used:
            # The first tile need not be added to zeros where it reaches the whole block.
            alone = n == used[0] and block[taps[n].at].shape == block.shape
            values = taps[n].values(planes, scratch, block if alone else None)
            if there[n] is not True:
                values *= there[n]
            if not alone:
                block[taps[n].at] += values
        if all(there[n] is True for n in used):
            if used not in known:
                known[used] = _divisor(taps, used, there, (1, *shape[1:]))
            divisor, filled = known[used]
        else:
            divisor, filled = _divisor(taps, used, there, block.shape)
        block /= divisor
        good[planes] = filled
    return total, good


def _divisor(
    taps: Sequence[_Taps],
    used: Sequence[int],
    there: Sequence[np.ndarray | bool],
    shape: tuple[int, ...],
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of the weights, 1 where there are none, and where there are some."""
    sums = np.zeros(shape, np.float32)
    for n in used:
        sums[taps[n].at] += taps[n].weight if there[n] is True else taps[n].weight * there[n]
    filled = sums > 0
    sums[~filled] = 1
    return sums, filled
