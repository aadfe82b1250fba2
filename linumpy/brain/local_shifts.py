"""Measure the displacement of each part of a plane by correlation of small windows.

Windows overlap by half (one quarter of a window is the farthest that is searched: Keane and
Adrian, Appl. Sci. Res. 49, 191, 1992). Every window counts alike, whatever its contrast.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from linumpy.core.device import Array, namespace, to_host
from linumpy.geometry.correlation import (
    ACCEPT_Z_SCORE,
    fetch_surfaces,
    find_peak,
    start_correlation,
)

NOISE_RADIUS_PX = 24
"""Nearer, what peaks are compared with is the flank of the peak itself."""

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
    compared
        How many windows hold something to compare, matching or not.
    """

    place_px: np.ndarray
    shift_px: np.ndarray
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
    xp = namespace(fixed)
    blocks = [(i, j) for i in rows for j in columns]
    known = [
        xp.count_nonzero(fixed[:, i : i + window_px, j : j + window_px])
        * xp.count_nonzero(moving[:, i : i + window_px, j : j + window_px])
        for i, j in blocks
    ]
    least = (_MIN_KNOWN_SHARE * len(fixed) * window_px**2) ** 2
    if not blocks:
        return LocalShifts(np.zeros((0, 2)), np.zeros((0, 2)), 0)
    full = to_host(xp.stack([xp.asarray(k) for k in known])) > least
    used = [block for block, enough in zip(blocks, full, strict=True) if enough]
    pending = []
    for block in used:
        wide, lead = [], []
        for at, n in zip(block, fixed.shape[1:], strict=True):
            low = max(0, at - radius)
            wide.append(slice(low, min(n, at + window_px + radius)))
            lead.append(at - low)
        part = fixed[:, block[0] : block[0] + window_px, block[1] : block[1] + window_px]
        pending.append(
            start_correlation(
                moving[:, wide[0], wide[1]],
                part,
                (lead[0], lead[1]),
                (radius, radius),
                min_overlap_share=0.25,
            )
        )
    texture = to_host((fixed * fixed).sum(axis=0)).astype(np.float64)
    places, shifts = [], []
    for block, surface in zip(used, fetch_surfaces(pending), strict=True):
        middle = np.array(surface.centre_px, float)
        peak = find_peak(surface, expected_px=surface.centre_px, within_px=float(reach_px))
        if peak is not None and peak.z_score >= ACCEPT_Z_SCORE:
            places.append(np.array(block) + _middle_of(texture, block, window_px))
            shifts.append(np.array(peak.displacement_px) - middle)
    return LocalShifts(
        np.array(places, float).reshape(-1, 2), np.array(shifts, float).reshape(-1, 2), len(used)
    )


def _middle_of(texture: np.ndarray, block: tuple[int, int], window_px: int) -> np.ndarray:
    """Return the centre of mass of a window, counted from its first pixel."""
    part = texture[block[0] : block[0] + window_px, block[1] : block[1] + window_px]
    along = np.arange(window_px)
    sums = [(part.sum(axis=1 - axis) * along).sum() for axis in (0, 1)]
    return np.array(sums) / part.sum()


def _starts(length: int, window_px: int, step_px: float) -> list[int]:
    """Spread windows evenly from one border to the other."""
    room = length - window_px
    if room < 0:
        return []
    return np.rint(np.linspace(0, room, round(room / step_px) + 1)).astype(int).tolist()
