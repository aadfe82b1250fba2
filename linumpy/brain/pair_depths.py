"""Correlation of two slices by depth offset, and the offset of its maximum."""

from __future__ import annotations

import numpy as np

from linumpy.core.device import Array, is_device_array, namespace, to_host

MIN_PLANES = 2
"""Planes that two slices must share."""

_CLEAR_CURVATURE = 0.1
_CLEAR_NOISES = 3.0


def clear_maximum(values: np.ndarray, noise: float) -> float | None:
    """Return where the correlation along depth is highest, to a fraction; None if it is not clear.

    Anatomy changes slowly along depth and is alike over many planes: its maximum is flat. That of
    speckle is sharp.

    Parameters
    ----------
    values
        Correlation at each depth.
    noise
        Its standard deviation.
    """
    best = int(values.argmax())
    if best in (0, len(values) - 1):
        return None
    before, peak, after = values[best - 1 : best + 2]
    curvature = before - 2 * peak + after
    if -curvature < max(_CLEAR_CURVATURE * peak, _CLEAR_NOISES * np.sqrt(6) * noise):
        return None
    return float(best + 0.5 * (before - after) / curvature)


def nearest_first(reach: int, highest: int, lowest: int) -> list[int]:
    """List depth shifts to try: none first, then every second one, nearest first.

    Planes that lie two apart still look alike; a slice much deeper or higher than expected would
    otherwise match nowhere.
    """
    steps = [s for k in range(0, reach + 1, 2) for s in ((k, -k) if k else (0,))]
    return [s for s in steps if lowest <= s <= highest]


def depth_scores(first: Array, second: Array) -> np.ndarray:
    """Return the correlation of `second` with the planes of `first` from each on.

    Near the end of `first` the last planes of `second` meet nothing and do not count, as long as
    `MIN_PLANES` do. The products of all planes are fetched from a device together.
    """
    xp = namespace(first)
    n, n_scores = len(second), len(first) - min(MIN_PLANES, len(second)) + 1
    met = [min(n_scores, len(first) - k) for k in range(n)]
    sums = [_plane_products(first[k : k + met[k]], second[k]) for k in range(n)]
    squares = [_plane_products(plane[None], plane) for stack in (first, second) for plane in stack]
    found = to_host(xp.concatenate([*sums, *squares])).astype(np.float64)
    energy, energies = np.split(found[sum(met) :], [len(first)])
    product, ours, theirs = np.zeros((3, n_scores))
    start = 0
    for k, count in enumerate(met):
        product[:count] += found[start : start + count]
        ours[:count] += energy[k : k + count]
        theirs[:count] += energies[k]
        start += count
    return np.asarray(product / (np.sqrt(ours) * np.sqrt(theirs) + 1e-12))


def _plane_products(planes: Array, plane: Array) -> Array:
    """Return the sum of the products of each plane's pixels with those of one plane."""
    if is_device_array(planes):
        return (planes * plane).sum(axis=(1, 2))
    one = to_host(plane)
    room = np.empty_like(one)
    return np.array([np.multiply(other, one, out=room).sum() for other in planes])
