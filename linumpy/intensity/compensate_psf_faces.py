"""Estimate agarose's attenuation from A-lines whose faces lie at different depths.

At one depth of the detector the axial response is the same for all A-lines, so what is left between
two of them is how far light went below their faces: ln P = a + ln h(z) − 2µ·(z − face). Where cuts
are tilted or uneven, µ follows without any model of h. What else differs between A-lines is told
apart: vignetting is the same at one place of all tiles, and the light of a slice has its own level.

A face that is measured with an error would make µ too low, by more the flatter the cut. So faces
enter twice: as what the rest of a tile says (an instrument), and as what the A-line itself says;
the two errors are independent, and where there is nothing but error the answer is very unsure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from linumpy.core.robust import robust_spread

_OUTLIER = 2.5
_ROUNDS = 6
_MIN_TILES = 6
_LEFT_OUT = 24
"""Parts of the tiles, neighbours together, that are left out in turn for the error; single tiles
where they are fewer."""

_MIN_ERROR = 0.01
"""Faces and light are never known so well that µ is surer than this, 1/mm."""

_LEAST_SPREAD = 1e-3
"""Faces that differ by less than half a micrometre say nothing, ln per 1/mm."""

_SWEEPS = 200
_CONVERGED = 1e-6


def attenuation_from_faces(
    log_level: np.ndarray,
    face_um: np.ndarray,
    place: np.ndarray,
    slice_number: np.ndarray,
    tile: np.ndarray,
) -> tuple[float, float]:
    """Return µ and its standard error, 1/mm.

    Parameters
    ----------
    log_level
        ln of each A-line's power over that of the common profile at the same depths, (n,).
    face_um
        Depth of its face.
    place
        Number of its place within a tile, from 0.
    slice_number
        Number of its slice, from 0.
    tile
        Number of its tile. The error is from how tiles differ, as neighbours share what disturbs
        them.

    Returns
    -------
    0 and infinity where too few tiles, or no differences between faces, say anything; also where a
    part of the tiles has all differences.
    """
    known = np.isfinite(log_level)
    path = 2e-3 * face_um[known]
    values = [path, *(a[known] for a in (log_level, place, slice_number, tile))]
    mu = _robust_slope(*values)
    if mu is None:
        return 0.0, np.inf
    # Where few tiles decide the slope, their residuals are small and understate its error; leaving
    # them out shows it (Bell and McCaffrey, Surv. Methodol. 28, 169, 2002).
    numbers, member = np.unique(values[-1], return_inverse=True)
    count = min(len(numbers), _LEFT_OUT)
    part = member * count // len(numbers)
    slopes = [
        _robust_slope(*(a[part != k] for a in values), least=_MIN_TILES - 1) for k in range(count)
    ]
    if None in slopes:
        return 0.0, np.inf
    error = float(np.sqrt((count - 1) * np.mean(np.square(np.array(slopes, float) - mu))))
    return mu, max(error, _MIN_ERROR)


def _robust_slope(*values: np.ndarray, least: int = _MIN_TILES) -> float | None:
    """Return µ by the A-lines that are no outliers; arguments as of `_slope`."""
    for _ in range(_ROUNDS):
        found = _slope(*values, least=least)
        if found is None:
            return None
        mu, residual = found
        keep = np.abs(residual) <= _OUTLIER * max(robust_spread(residual), 1e-9)
        if keep.all():
            break
        values = tuple(a[keep] for a in values)
    return mu


def _slope(
    path: np.ndarray,
    log_level: np.ndarray,
    place: np.ndarray,
    slice_number: np.ndarray,
    tile: np.ndarray,
    *,
    least: int,
) -> tuple[float, np.ndarray] | None:
    """Return µ and residuals, ln; None with fewer tiles than `least`, or no differences."""
    numbers, member = np.unique(tile, return_inverse=True)
    rest, alone = _of_the_others(path, member)
    if len(numbers) - alone < least:
        return None
    x, y, lever = (_within(a, (place, slice_number)) for a in (path, log_level, rest))
    common = float(lever @ x)
    if common < _LEAST_SPREAD**2 * len(x):
        return None
    mu = float(lever @ y) / common
    return mu, y - mu * x


def _of_the_others(values: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the mean of the other values of each one's tile, and how many tiles have but one."""
    count = np.bincount(member)
    total = np.bincount(member, values)[member] - values
    others = count[member] - 1
    mean = float(values.mean()) if values.size else 0.0
    return np.where(others > 0, total / np.maximum(others, 1), mean), int((count == 1).sum())


def _within(values: np.ndarray, groups: Sequence[np.ndarray]) -> np.ndarray:
    """Subtract the mean of each group, in turns, until none is left."""
    out = np.array(values, float)
    counts = [np.maximum(np.bincount(group), 1) for group in groups]
    scale = float(np.abs(out - out.mean()).max())
    for _ in range(_SWEEPS):
        largest = 0.0
        for group, count in zip(groups, counts, strict=True):
            mean = np.bincount(group, out) / count
            out -= mean[group]
            largest = max(largest, float(np.abs(mean).max()))
        if largest <= _CONVERGED * scale:
            break
    return out
