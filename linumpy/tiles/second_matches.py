"""Where else two tiles match: a tile whose scan was torn matches its neighbours in two places."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from linumpy.geometry.correlation_peaks import confidence, find_peaks
from linumpy.tiles.pairs import PairResult

_OWN_PX = 4
"""About where its tiles lie, a surface shows the match that put them there."""
_PLACED_PX = 2


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


def placed_correlation(result: PairResult, position_px: np.ndarray) -> float | None:
    """Return the greatest correlation of a pair where its tiles lie, to two pixels.

    Parameters
    ----------
    result, position_px
        As of `second_matches`.

    Returns
    -------
    None where the surface does not reach, or the tiles share too little there.
    """
    values = result.surface.values
    place = np.rint(result.surface_px(position_px)).astype(int)
    place += (np.array(values.shape) - 1) // 2
    if (place < 0).any() or (place >= values.shape).any():
        return None
    low = np.maximum(place - _PLACED_PX, 0)
    near = values[low[0] : place[0] + _PLACED_PX + 1, low[1] : place[1] + _PLACED_PX + 1]
    known = near[np.isfinite(near)]
    return float(known.max()) if known.size else None
