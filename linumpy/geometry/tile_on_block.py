"""Overlap of a tile with a block of the canvas."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from linumpy.core.device import Array


@dataclass(frozen=True)
class TileOnBlock:
    """Overlap of a tile with a block of the canvas.

    Attributes
    ----------
    data, valid
        The tile (z, axis 1, axis 2) and its mask, or None.
    low, high
        Pixels of the block that the tile reaches with both samples of the interpolation, along
        axis 1 and axis 2; `high` is one past the last.
    shift
        Tile pixel minus block pixel.
    fraction
        Share of the tile pixel before, for a tile that lies between pixels.
    """

    data: Array
    valid: Array | None
    low: tuple[int, int]
    high: tuple[int, int]
    shift: tuple[int, int]
    fraction: tuple[np.float32, np.float32]
