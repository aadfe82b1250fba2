"""Measure the displacement of each part of a plane by correlation of small windows.

Windows overlap by half (one quarter of a window is the farthest that is searched: Keane and
Adrian, Appl. Sci. Res. 49, 191, 1992).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from linumpy.core.device import Array, namespace, to_host
from linumpy.geometry.correlated_windows import Windows, correlate_windows
from linumpy.geometry.correlation_peaks import ACCEPT_Z_SCORE, NOISE_RADIUS_PX, find_peaks

_MIN_KNOWN_SHARE = 0.3


@dataclass(frozen=True)
class LocalShifts:
    """Windows that match by themselves.

    Attributes
    ----------
    place_px
        Where the texture of the windows has its middle in the fixed plane, float64 (n, 2), pixels
        counted at their centres: at the border of tissue a window measures the shift of its inside.
    shift_px
        How far from there the moving plane shows the same, float64 (n, 2).
    sigma_px
        How uncertain that is, up to a common factor, float64 (n,): a low or wide peak tells less.
    compared
        How many windows hold something to compare, matching or not.
    """

    place_px: np.ndarray
    shift_px: np.ndarray
    sigma_px: np.ndarray
    compared: int


def measure_local_shifts(
    fixed: Array, moving: Array, *, window_px: int, step_px: float, reach_px: int
) -> LocalShifts:
    """Measure how far windows of two stacks on one pixel grid lie apart.

    Parameters
    ----------
    fixed, moving
        Flattened planes of one shape, NumPy or CuPy; zeros are unknown.
    window_px
        Side of a window.
    step_px
        Distance of windows, about: whole windows are spread evenly.
    reach_px
        Largest displacement.
    """
    radius = max(reach_px + 2, NOISE_RADIUS_PX)
    rows, columns = (_starts(n, window_px, step_px) for n in fixed.shape[1:])
    blocks = np.array([(i, j) for i in rows for j in columns], int).reshape(-1, 2)
    known = [
        _cut((stack != 0).sum(axis=0), blocks, window_px).sum(axis=(1, 2))
        for stack in (fixed, moving)
    ]
    least = (_MIN_KNOWN_SHARE * len(fixed) * window_px**2) ** 2
    blocks = blocks[to_host(known[0] * known[1]) > least]
    windows = Windows.around(blocks, np.full_like(blocks, window_px), fixed.shape[1:], radius)
    surfaces = correlate_windows(moving, fixed, windows, (radius, radius), min_overlap_share=0.25)
    # What is deformed within a window matches over several pixels.
    peaks = find_peaks(*surfaces, within_px=float(reach_px), highest=True)
    good = peaks.found & (peaks.z_score >= ACCEPT_Z_SCORE)
    texture = _cut((fixed * fixed).sum(axis=0), blocks[good], window_px)
    return LocalShifts(
        blocks[good] + _middles(texture),
        peaks.displacement_px[good],
        peaks.sigma_px[good],
        len(blocks),
    )


def _cut(plane: Array, blocks: np.ndarray, window_px: int) -> Array:
    """Return windows of a plane, whose first pixels are `blocks` (n, 2), shape (n, …)."""
    xp = namespace(plane)
    along = np.arange(window_px)
    i, j = (xp.asarray(blocks[:, axis, None] + along) for axis in (0, 1))
    return plane[i[:, :, None], j[:, None, :]]


def _middles(windows: Array) -> np.ndarray:
    """Return the centres of mass of windows, counted from their first pixels, (n, 2)."""
    xp = namespace(windows)
    windows = windows.astype(xp.float64)
    along = xp.arange(windows.shape[1])
    sums = [(windows.sum(axis=3 - axis) * along).sum(axis=1) for axis in (1, 2)]
    return np.asarray(to_host(xp.stack(sums, axis=1) / windows.sum(axis=(1, 2))[:, None]))


def _starts(length: int, window_px: int, step_px: float) -> list[int]:
    """Spread windows evenly from one border to the other."""
    room = length - window_px
    if room < 0:
        return []
    return np.rint(np.linspace(0, room, round(room / step_px) + 1)).astype(int).tolist()
