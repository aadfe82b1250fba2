"""Where else two tiles match: a tile whose scan was torn matches its neighbours in two places."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from linumpy.geometry.correlation_peaks import confidence, find_peaks
from linumpy.tiles.pairs import PairResult

_OWN_PX = 4
"""About where its tiles lie, a surface shows the match that put them there."""


def second_matches(
    results: Sequence[PairResult], position_px: np.ndarray
) -> list[tuple[np.ndarray, float] | None]:
    """Return the best match of each pair elsewhere than where its tiles lie.

    Parameters
    ----------
    results
        Pairs with their surfaces.
    position_px
        Solved tile corners, shape (n_tiles, 2).

    Returns
    -------
    How far tile b lies there from where it was put, pixels along both axes, and the confidence;
    None without a peak.
    """
    found: list[tuple[np.ndarray, float] | None] = [None] * len(results)
    alike: dict[tuple[int, ...], list[int]] = {}
    for number, result in enumerate(results):
        alike.setdefault(result.surface.values.shape, []).append(number)
    for shape, numbers in alike.items():
        own = np.array([results[n].surface_px(position_px) for n in numbers])
        i, j = (np.arange(m) - (m - 1) // 2 for m in shape)
        away = np.maximum(np.abs(i - own[:, :1])[:, :, None], np.abs(j - own[:, 1:])[:, None, :])
        values = np.stack([results[n].surface.values for n in numbers]).astype(float)
        values[away <= _OWN_PX] = np.nan
        weight = np.stack([results[n].surface.weight for n in numbers])
        peaks = find_peaks(values, weight)
        for place, number in enumerate(numbers):
            if peaks.found[place]:
                off_px = peaks.displacement_px[place] - own[place]
                found[number] = off_px, confidence(float(peaks.z_score[place]))
    return found


def ridge_share(result: PairResult, position_px: np.ndarray) -> float | None:
    """Return how high a pair's correlation stays from its peak to where its tiles lie.

    Along a border that is all they share, tiles match nearly as well anywhere. Two parts of a torn
    tile make two peaks, with a valley between.

    Parameters
    ----------
    result, position_px
        As of `second_matches`.

    Returns
    -------
    The least correlation on the straight line, as far as it was searched, over that of the peak;
    None without a peak.
    """
    if result.peak is None:
        return None
    values = result.surface.values
    peak_px = np.subtract(result.peak.displacement_px, result.surface.centre_px)
    placed_px = result.surface_px(position_px)
    n_steps = 1 + math.ceil(np.abs(placed_px - peak_px).max())
    way = peak_px + np.linspace(0, 1, n_steps + 1)[:, None] * (placed_px - peak_px)
    at = np.rint(way).astype(int) + (np.array(values.shape) - 1) // 2
    at = at[((at >= 0) & (at < values.shape)).all(axis=1)]
    along = values[tuple(at.T)]
    along = along[np.isfinite(along)]
    return float(along.min() / along[0]) if along.size and along[0] > 0 else None
