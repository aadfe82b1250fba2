"""Find tiles that contradict all neighbours: other tissue, transposed, or misplaced."""

from __future__ import annotations

from collections import Counter
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

MOST_MATCHES = 1
"""Neighbours that may match it all the same, by chance: three outvote one."""

BRIGHT_QUANTILE = 0.25
"""Of the brightness of overlaps that match: most that do are brighter."""


def contradicting_tiles(positions: TileRegistration) -> set[Key]:
    """Return the tiles that do not match their neighbours where these show what others match by.

    A tile contradicts its neighbours when `LEAST_NEIGHBOURS` of them or more, which others hold,
    show in the overlap with it what most overlaps that match have of brightness, without a match,
    and no more than `MOST_MATCHES` match it. Tiles in agarose and at the brain's rim lack such
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
    enough = float(np.quantile(bright, BRIGHT_QUANTILE))
    against: Counter[Key] = Counter()
    matches: Counter[Key] = Counter()
    for pair in positions.pairs:
        a, b = pair.a, pair.b
        match = pair.accepted or pair.confidence >= CLEAR
        for tile, other, mean in ((a, b, pair.overlap_mean_b), (b, a, pair.overlap_mean_a)):
            if match:
                matches[tile] += 1
            elif other in held and (mean or 0.0) >= enough:
                against[tile] += 1
    return {
        tile
        for tile, count in against.items()
        if count >= LEAST_NEIGHBOURS and matches[tile] <= MOST_MATCHES
    }
