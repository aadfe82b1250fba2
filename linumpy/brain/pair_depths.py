"""Correlation of two slices by depth offset, and the offset of its maximum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from linumpy.core.device import Array, is_device_array, namespace, to_host

MIN_PLANES = 2
"""Planes that two slices must share."""

_CLEAR_CURVATURE = 0.1
_CLEAR_NOISES = 3.0
_LAGS = (1, 2)
"""Planes beside a maximum that it is compared with: of one between two planes both are alike."""
_MIN_TREND = 5
"""Planes that tell a decline to less than what it would correct."""
_LOCKING = 0.05
"""Planes that a fit of three points is off (Westerweel, Meas. Sci. Technol. 8, 1379, 1997)."""
_PIXELS_AT_ONCE = 1 << 16
"""Of a plane, so that those of all planes fit into a cache, and float32 counts them."""


def clear_maximum(
    values: np.ndarray,
    noise: np.ndarray | float,
    lags: Sequence[int] = _LAGS,
    *,
    levelled: np.ndarray | None = None,
) -> tuple[float, float] | None:
    """Return where the correlation along depth is highest, to a fraction; None if it is not clear.

    Anatomy changes slowly along depth and is alike over many planes: its maximum is flat. That of
    speckle is sharp. It is a Gaussian upon what anatomy makes of the planes around (Willert and
    Gharib, Exp. Fluids 10, 181, 1991).

    Parameters
    ----------
    values
        Correlation at each depth.
    noise
        Its standard deviation, at each depth or at all.
    lags
        Planes beside the maximum that it is compared with, in turn.
    levelled
        From `level`: values that tell the fraction; None for `values`.

    Returns
    -------
    Index into `values`, and its standard error.
    """
    best = int(values.argmax())
    noise = float(np.broadcast_to(noise, values.shape)[best])
    for lag in lags:
        if not lag <= best < len(values) - lag:
            break
        around = values[best - lag : best + lag + 1]
        before, peak, after = around[[0, lag, -1]]
        curvature = 2 * peak - before - after
        falls = np.all(np.sign(np.diff(around)) == np.repeat([1, -1], lag))
        least = max(lag * _CLEAR_CURVATURE * peak, _CLEAR_NOISES * np.sqrt(6) * noise)
        if falls and curvature >= least:
            place = best + _fraction(values if levelled is None else levelled, best)
            # Of the three planes that the fraction rests on, whatever tells that it is clear.
            beside = float(2 * peak - values[best - 1] - values[best + 1])
            return place, float(np.hypot(noise / (np.sqrt(2) * beside), _LOCKING))
    return None


def _fraction(values: np.ndarray, best: int) -> float:
    """Return how far beyond its highest plane a maximum lies."""
    near = values[best - 1 : best + 2]
    if 2 <= best < len(values) - 2:
        above = near - min(values[best - 2], values[best + 2])
        if (above > 0).all():
            near = np.log(above)
    before, peak, after = near
    curvature = 2 * peak - before - after
    return float(np.clip(0.5 * (after - before) / curvature, -1, 1)) if curvature > 0 else 0.0


def nearest_first(reach: int, highest: int, lowest: int) -> list[int]:
    """List depth shifts to try: none first, then every second one, nearest first.

    Planes that lie two apart still look alike; a slice much deeper or higher than expected would
    otherwise match nowhere.
    """
    steps = [s for k in range(0, reach + 1, 2) for s in ((k, -k) if k else (0,))]
    return [s for s in steps if lowest <= s <= highest]


def compare_planes(first: Array, second: Array) -> np.ndarray:
    """Return sums over the pixels of each plane of `first` and of `second` that may meet.

    Pixels count where both have one; a pixel of 0 is none.

    Parameters
    ----------
    first, second
        float32 (z, axis 1, axis 2), of equal planes.

    Returns
    -------
    Shape (4, planes of `first`, planes of `second`): of products, of the squares of both, and of
    pixels.
    """
    xp = namespace(first)
    sums = xp.zeros((4, len(first), len(second)))
    rows = first.shape[1]
    if not is_device_array(first):
        rows = max(1, _PIXELS_AT_ONCE // max(1, first.shape[2]))
    for start in range(0, first.shape[1], rows):
        ours, theirs = (a[:, start : start + rows].reshape(len(a), -1) for a in (first, second))
        here, there = ((a != 0).astype(xp.float32) for a in (ours, theirs))
        both = ((ours, theirs), (ours * ours, there), (here, theirs * theirs), (here, there))
        sums += xp.stack([_products(a, b) for a, b in both])
    return to_host(sums)


def _products(first: Array, second: Array) -> Array:
    """Return ``first @ second.T``; not by cuBLAS, which may be allowed to use TF32."""
    if is_device_array(first):
        return namespace(first).stack([(second * row).sum(axis=1) for row in first])
    return first @ second.T


def depth_scores(sums: np.ndarray) -> np.ndarray:
    """Return the correlation of all planes where the second ones begin at each of the first.

    Near the end of the first the last planes of the second meet nothing and do not count, as long
    as `MIN_PLANES` do.

    Parameters
    ----------
    sums
        From `compare_planes`.
    """
    n_first, n_second = sums.shape[1:]
    scores = range(_n_depths(n_first, n_second))
    product, ours, theirs, _ = np.array([_met(sums, k).sum(axis=1) for k in scores]).T
    return np.asarray(product / (np.sqrt(ours) * np.sqrt(theirs) + 1e-12))


def level(scores: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Return scores without the loss of correlation with depth, for the planes near the maximum.

    Deep planes are noisier, so that a maximum seems to lie less deep. How fast correlation falls
    shows in the planes that match each other; far from them it makes noise as high as the match.
    """
    best = int(scores.argmax())
    product, ours, theirs, _ = _met(sums, best)
    correlation = product / (np.sqrt(ours * theirs) + 1e-12)
    if len(product) < _MIN_TREND or (correlation <= 0).any():
        return scores
    slope = np.polyfit(np.arange(len(product)), np.log(correlation), 1)[0]
    return np.asarray(scores * np.exp(-slope * (np.arange(len(scores)) - best)))


def pixels_met(sums: np.ndarray) -> np.ndarray:
    """Return how many pixels meet at each of the depths of `depth_scores`, 1 at least."""
    depths = range(_n_depths(*sums.shape[1:]))
    return np.maximum(1.0, [_met(sums, k)[3].sum() for k in depths])


def _n_depths(n_first: int, n_second: int) -> int:
    return n_first - min(MIN_PLANES, n_second) + 1


def _met(sums: np.ndarray, at: int) -> np.ndarray:
    """Return the sums of the planes that meet, where the second ones begin at plane `at`."""
    planes = np.arange(min(sums.shape[2], sums.shape[1] - at))
    return np.asarray(sums[:, at + planes, planes])
