"""Remove what the microscope's own surfaces reflect: bright planes at one depth in all tiles."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from linumpy.core.device import Array

_LEAST_ALINES = 16
_AROUND = 10
"""Planes above and below that a plane is compared with."""

_STEADIER = 1 / 3
"""Of the spread of speckle that is not averaged: a reflection four times as strong as the light
around it. Averages over lateral structure vary less by chance."""

_BRIGHTER = 2.0
_MOST_PLANES = 4
"""Next to each other. The response of the optics is a few samples wide; a layer of tissue that is
steadier than what is around it is thicker, or not that flat."""


def steady_planes(volume: np.ndarray) -> np.ndarray:
    """Return which planes of a tile are brighter than those around them, and far steadier.

    What many scatterers send back adds up to speckle, and noise has the same law: amplitudes
    have a Rayleigh distribution, whose interquartile range is 0.77 of the median at any brightness
    (Goodman, Speckle Phenomena in Optics, 2007). A surface of the optics gives all A-lines
    of a tile nearly the same amplitude. That ratio is compared with its median over the planes
    around, so that averaged data, which vary less everywhere, are compared with themselves.

    Parameters
    ----------
    volume
        Some A-lines of a tile (z, axis 1, axis 2). Samples that are not finite or 0 do not count.

    Returns
    -------
    Boolean (z,). A plane that has one value, as where the detector saturates, is none.
    """
    values = np.where(np.isfinite(volume) & (volume > 0), volume, np.inf)
    ordered = np.sort(values.reshape(len(volume), -1), axis=1)
    count = np.isfinite(ordered).sum(axis=1)
    places = [(quarter * count // 4).clip(0, ordered.shape[1] - 1) for quarter in (1, 2, 3)]
    quartiles = np.take_along_axis(ordered, np.stack(places, axis=1), axis=1).astype(float)
    low, level, high = np.where(count >= _LEAST_ALINES, quartiles.T, np.nan)
    spread = (high - low) / level
    varies = (low < level) & (level < high)
    steady = varies & (spread < _STEADIER * _around(spread))
    found = steady & (level > _BRIGHTER * _around(level))
    for first, end in _runs(found):
        if end - first > _MOST_PLANES:
            found[first:end] = False
    return np.asarray(found)


def _around(values: np.ndarray) -> np.ndarray:
    """Return the median of each plane's and its neighbours' values, mirrored at the ends."""
    mirrored = np.pad(values, _AROUND, mode="symmetric")
    windows = sliding_window_view(mirrored, 2 * _AROUND + 1)
    known = np.isfinite(windows).any(axis=1)
    found = np.full(len(values), np.nan)
    found[known] = np.nanmedian(windows[known], axis=1)
    return found


def _runs(found: np.ndarray) -> Iterable[tuple[int, int]]:
    """Return first plane and end of each run of planes."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], found.astype(np.int8), [0]])))
    return zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def fixed_lines(tiles: Iterable[np.ndarray]) -> np.ndarray:
    """Return the planes that are steady in more than half of some tiles, and those beside them.

    A bubble or a dish is in few tiles. A cut face that reflects like a mirror and is square to the
    beam is taken for a line, too: its bright planes go, the step from water to tissue stays. The
    window of the spectrum spreads a reflection over the planes beside it.

    Parameters
    ----------
    tiles
        As `steady_planes` takes them, of one slice.

    Returns
    -------
    Boolean (z,).
    """
    seen = np.array([steady_planes(tile) for tile in tiles])
    found = 2 * seen.sum(axis=0) > len(seen)
    wider = found.copy()
    wider[1:] |= found[:-1]
    wider[:-1] |= found[1:]
    return np.zeros_like(found) if wider.all() else wider


def without_lines(
    volume: Array, lines: np.ndarray, usable: Array | None
) -> tuple[Array, Array | None]:
    """Return a tile with planes interpolated between the nearest of the others.

    Parameters
    ----------
    volume
        Tile (z, axis 1, axis 2), NumPy or CuPy.
    lines
        Planes to interpolate, not all.
    usable
        Which samples count; None for all. What is interpolated counts where both sources do.

    Returns
    -------
    Tile and what is usable of it.
    """
    kept = np.flatnonzero(~lines)
    out = volume.copy()
    counts = None if usable is None else usable.copy()
    for plane in np.flatnonzero(lines):
        after = int(np.searchsorted(kept, plane))
        above = kept[max(after - 1, 0)]
        below = kept[min(after, len(kept) - 1)]
        share = np.float32((plane - above) / (below - above) if below > above else 0)
        out[plane] = volume[above] + (volume[below] - volume[above]) * share
        if counts is not None and usable is not None:
            counts[plane] = usable[above] & usable[below]
    return out, counts
