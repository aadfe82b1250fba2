"""Relative brightness of tiles, from overlaps with their neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from linumpy.geometry.neighbours import shared_windows
from linumpy.geometry.network import solve_network
from linumpy.geometry.pair_graph import connected_components

_BRIGHTNESS_PRIOR, _BRIGHTNESS_SIGMA = 3.0, 0.05
"""Of logarithms: how far tiles may be apart, and the least error of a pair."""


def overlap_means(
    first: np.ndarray, second: np.ndarray, displacement_px: Sequence[float]
) -> tuple[float, float] | None:
    """Return the means of two projections over the tissue that both show.

    Parameters
    ----------
    first, second
        Depth means of two tiles, NaN where invalid.
    displacement_px
        Position of the second from the first.

    Returns
    -------
    None where they share no valid pixel.
    """
    here, there = shared_windows(first.shape, np.rint(displacement_px).astype(int).tolist())
    a, b = first[here], second[there]
    both = np.isfinite(a) & np.isfinite(b)
    if not both.any():
        return None
    return float(a[both].mean()), float(b[both].mean())


def tile_brightness(
    n_tiles: int, pairs: Sequence[tuple[int, int]], means: Sequence[tuple[float, float]]
) -> np.ndarray:
    """Return how bright each tile is against the others, by what neighbours show of one place.

    Parameters
    ----------
    n_tiles
        Number of tiles.
    pairs
        Tiles (a, b) of each pair.
    means
        Mean amplitudes of both over their overlap (`overlap_means`).

    Returns
    -------
    Shape (n_tiles,): 1 is the median; NaN for a tile without a pair.
    """
    bright = np.full(n_tiles, np.nan)
    shown = [n for n, mean in enumerate(means) if min(mean) > 0]
    if not shown:
        return bright
    ratios = np.log([[means[n][1] / means[n][0]] for n in shown])
    joined = [pairs[n] for n in shown]
    solution = solve_network(
        n_tiles, joined, ratios, prior_sigma=_BRIGHTNESS_PRIOR, min_pair_sigma=_BRIGHTNESS_SIGMA
    )
    known = connected_components(n_tiles, joined) >= 0
    level = solution.deviation[:, 0]
    bright[known] = np.exp(level[known] - np.median(level[known]))
    return bright
