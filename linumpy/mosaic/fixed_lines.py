"""Remove what the microscope's own surfaces reflect: bright planes at fixed depths of a tile."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from linumpy.core.device import Array, namespace, to_host

_ALINES_A_SIDE = 32
"""Looked at: the quartiles of a thousand are known to 4 %."""

_AROUND = 10
"""Planes above and below that a plane is compared with."""

_STEADIER = 0.5
_BRIGHTER = 2.0
_MOST_SHARE = 0.25
"""Of a tile's planes; where more are steady, none can be told from what is imaged."""


def fixed_lines(volume: Array) -> np.ndarray:
    """Return which planes a reflection at a fixed depth outshines, and those beside them.

    What many scatterers send back adds up to speckle, and noise has the same law: amplitudes
    have a Rayleigh distribution, whose quartiles differ by 0.77 of the median at any brightness
    (Goodman, Speckle Phenomena in Optics, 2007). A surface of the optics gives all A-lines of a
    tile the same amplitude. So such a plane is brighter than most around it, and varies less by
    itself: by less than half, in the ratio of quartiles to median. Averaged data, which vary less
    everywhere, are compared with themselves.

    Parameters
    ----------
    volume
        float32 tile (z, axis 1, axis 2), NumPy or CuPy.

    Returns
    -------
    Boolean (z,), on the host; the same for either kind of array.
    """
    xp = namespace(volume)
    rows, columns = (slice(None, None, max(1, n // _ALINES_A_SIDE)) for n in volume.shape[1:])
    looked_at = volume[:, rows, columns].reshape(len(volume), -1)
    ordered = xp.sort(looked_at, axis=1)
    quarters = [quarter * looked_at.shape[1] // 4 for quarter in (1, 2, 3)]
    low, level, high = to_host(ordered[:, quarters]).astype(float).T
    spread = (high - low) / np.maximum(level, np.finfo(np.float32).tiny)
    # Where the detector saturates, there is one value.
    varies = (low < level) & (level < high)
    steady = varies & (spread < _STEADIER * _around(spread))
    found = steady & (level > _BRIGHTER * _around(level))
    # The window of the spectrum spreads a reflection over the planes beside it.
    found[1:] |= found[:-1].copy()
    found[:-1] |= found[1:].copy()
    return found & (found.mean() <= _MOST_SHARE)


def _around(values: np.ndarray) -> np.ndarray:
    """Return the median of each plane's and its neighbours' values, mirrored at the ends."""
    mirrored = np.pad(values, _AROUND, mode="symmetric")
    return np.asarray(np.median(sliding_window_view(mirrored, 2 * _AROUND + 1), axis=1))


def without_lines(volume: Array, lines: np.ndarray) -> Array:
    """Return the tile with planes interpolated between the nearest that show no line."""
    kept = np.flatnonzero(~lines)
    out = volume.copy()
    for plane in np.flatnonzero(lines):
        after = min(int(np.searchsorted(kept, plane)), len(kept) - 1)
        before = max(after - 1, 0) if kept[after] > plane else after
        above, below = kept[before], kept[after]
        share = np.float32((plane - above) / max(below - above, 1))
        out[plane] = volume[above] + (volume[below] - volume[above]) * np.clip(share, 0, 1)
    return out
