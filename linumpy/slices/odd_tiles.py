"""Find tiles that contradict all neighbours: other tissue, transposed, or misplaced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from linumpy.slices.tile import Key

if TYPE_CHECKING:
    from linumpy.tiles.positions import TileRegistration

CLEAR = 0.5
"""Confidence from which a match is accepted (`linumpy.geometry.correlation.confidence`)."""

LEAST_NEIGHBOURS = 3
"""Neighbours that must contradict a tile. Below that one wrong neighbour and one dim overlap would
do; a tile at a straight border of the mosaic has three."""


def contradicting_tiles(positions: TileRegistration) -> set[Key]:
    """Return the tiles that match no neighbour where all of them show what others match by.

    A tile contradicts its neighbours when `LEAST_NEIGHBOURS` of them or more, which others hold,
    show in the overlap with it at least the median brightness of the overlaps that matched, and
    none of its pairs has a clear match. Tiles in agarose and at the brain's rim lack such
    overlaps, and are not judged.
    """
    held = {tile.index for tile in positions.tiles if tile.component >= 0}
    bright = [
        mean
        for pair in positions.pairs
        if pair.accepted
        for mean in (pair.overlap_mean_a, pair.overlap_mean_b)
        if mean is not None
    ]
    if not bright:
        return set()
    median = float(np.median(bright))
    against: dict[Key, int] = {}
    matched: set[Key] = set()
    for pair in positions.pairs:
        a, b = pair.a, pair.b
        if pair.accepted or pair.confidence >= CLEAR:
            matched |= {a, b}
        for tile, other, mean in ((a, b, pair.overlap_mean_b), (b, a, pair.overlap_mean_a)):
            if other in held and (mean or 0.0) >= median:
                against[tile] = against.get(tile, 0) + 1
    return {
        tile
        for tile, count in against.items()
        if count >= LEAST_NEIGHBOURS and tile not in matched and tile not in held
    }
