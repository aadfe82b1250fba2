"""Remove slow changes of brightness from planes before correlation."""

from __future__ import annotations

import functools

import numpy as np

from linumpy.core.device import Array, is_device_array
from linumpy.geometry.banded import Band, multiply

FLATTEN_SIGMA_PX = 6.0
_SMOOTH_SIGMA_PX = 0.6
_BAND_ROWS = 16


def flatten(planes: Array, valid: Array | None = None, sigma_px: float = FLATTEN_SIGMA_PX) -> Array:
    """Take the local mean and brightness out of images.

    Parameters
    ----------
    planes
        Shape (planes, axis 1, axis 2), float32 amplitudes, NumPy or CuPy.
    valid
        Mask of the same shape, or None.
    sigma_px
        Of the window of the local mean.

    Returns
    -------
    ``(smoothed − mean) / mean`` with Gaussian windows; 0 where invalid or dark. Each plane is
    flattened by itself.
    """
    if is_device_array(planes):
        from linumpy.geometry.tile_kernels import flatten_planes

        wide, narrow = (_taps(sigma) for sigma in (sigma_px, _SMOOTH_SIGMA_PX))
        return flatten_planes(planes, valid, wide.tolist(), narrow.tolist())
    out = np.zeros(planes.shape, np.float32)
    known: _Shares | None = None
    for n, plane in enumerate(planes):
        there = None if valid is None else valid[n] > 0
        if there is None or there.all():
            shares = None
        elif not there.any():
            continue
        else:
            # The planes of a slice often have one mask.
            if known is None or not np.array_equal(known.there, there):
                known = _Shares(there, sigma_px)
            shares = known
        _flatten_plane(np.ascontiguousarray(plane, np.float32), shares, sigma_px, out[n])
    return out


class _Shares:
    """A mask, and what it is through both windows."""

    def __init__(self, there: np.ndarray, sigma_px: float) -> None:
        self.there = there
        self.weight = there.astype(np.float32)
        self.wide, self.narrow = (
            np.maximum(_blur(self.weight, sigma), np.float32(1e-6))
            for sigma in (sigma_px, _SMOOTH_SIGMA_PX)
        )


def _flatten_plane(
    plane: np.ndarray, shares: _Shares | None, sigma_px: float, out: np.ndarray
) -> None:
    if shares is not None:
        plane = plane * shares.weight
    mean, smooth = _blur(plane, sigma_px), _blur(plane, _SMOOTH_SIGMA_PX)
    good = mean > 0
    # A mask that is 1 all over is so through the windows.
    if shares is not None:
        mean /= shares.wide
        smooth /= shares.narrow
        good &= shares.there
    np.divide(smooth, mean, out=out, where=good)
    np.subtract(out, 1, out=out, where=good)


def _taps(sigma: float) -> np.ndarray:
    """Return a Gaussian window from its middle on; it ends at three sigmas."""
    taps = np.exp(-0.5 * (np.arange(int(3 * sigma + 0.5) + 1) / sigma) ** 2)
    return taps / (taps[0] + 2 * taps[1:].sum())


@functools.lru_cache(maxsize=32)
def _window_bands(n: int, sigma: float) -> list[Band]:
    """Return a Gaussian window along an axis of `n` pixels as a matrix; the border is repeated."""
    half = _taps(sigma)
    taps = np.concatenate([half[:0:-1], half])
    reach = len(half) - 1
    bands = []
    for first in range(0, n, _BAND_ROWS):
        stop = min(first + _BAND_ROWS, n)
        low, high = max(0, first - reach), min(n, stop + reach)
        weights = np.zeros((stop - first, high - low))
        for row in range(first, stop):
            pixels = np.clip(np.arange(row - reach, row + reach + 1), 0, n - 1)
            np.add.at(weights[row - first], pixels - low, taps)
        bands.append(Band(first, stop, low, high, weights.astype(np.float32)))
    return bands


def _blur(image: np.ndarray, sigma: float) -> np.ndarray:
    """Return an image seen through a Gaussian window.

    Products with matrices take a tenth of the time of a running sum in double precision.
    """
    half_way, out = np.empty_like(image), np.empty_like(image)
    for source, target in ((image, half_way), (half_way.T, out.T)):
        for band in _window_bands(len(source), sigma):
            multiply(band, source[None, band.low : band.high], target[None, band.start : band.stop])
    return out
