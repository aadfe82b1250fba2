"""Find tiles that contradict their neighbours: other tissue, transposed, or misplaced."""

from __future__ import annotations

import math
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

BRIGHT_QUANTILE = 0.25
"""Of the brightness of overlaps that match: most that do are brighter."""

MOST_BY_CHANCE = 1e-3
"""Good tiles of a slice that may be taken for odd ones."""


def contradicting_tiles(positions: TileRegistration) -> set[Key]:
    """Return the tiles that do not match their neighbours where these show what others match by.

    A tile contradicts its neighbours when `LEAST_NEIGHBOURS` of them or more, which others hold,
    show in the overlap with it what most overlaps that match have of brightness, without a match.
    It must match too few to be by chance (binomial), given the share of the slice's other bright
    pairs that match. Tiles in agarose and at the brain's rim are not judged, nor are those of a
    slice whose pairs often fail.
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
    tried: list[tuple[Key, Key, bool]] = []
    for pair in positions.pairs:
        a, b = pair.a, pair.b
        match = pair.accepted or pair.confidence >= CLEAR
        if min(pair.overlap_mean_a or 0.0, pair.overlap_mean_b or 0.0) >= enough:
            tried.append((a, b, match))
        for tile, other, mean in ((a, b, pair.overlap_mean_b), (b, a, pair.overlap_mean_a)):
            if match:
                matches[tile] += 1
            elif other in held and (mean or 0.0) >= enough:
                against[tile] += 1

    def by_chance(tile: Key) -> float:
        others = [match for a, b, match in tried if tile not in (a, b)]
        share = float(np.mean(others)) if others else 0.0
        n = against[tile] + matches[tile]
        return sum(
            math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(matches[tile] + 1)
        )

    return {
        tile
        for tile, count in against.items()
        if count >= LEAST_NEIGHBOURS and by_chance(tile) < MOST_BY_CHANCE / len(positions.tiles)
    }
