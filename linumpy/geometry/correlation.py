"""Displacement between two images by normalised cross-correlation of several planes at once.

Images are flattened first (local mean and brightness taken out), then correlated by FFT, all
planes summed, and every displacement normalised by the energy that really overlaps (Padfield,
IEEE Trans. Image Process. 21, 2706, 2012), so that a small overlap does not lose to a large one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linumpy.core.device import Array, is_device_array, namespace, to_host

_FFT_SAMPLES = 1 << 18


@dataclass(frozen=True)
class CorrelationSurface:
    """Normalised cross-correlation over a window of displacements.

    Attributes
    ----------
    values
        Shape (2·r1 + 1, 2·r2 + 1), NaN where too little overlaps.
    weight
        Same shape: root of the number of samples that overlap, 1 at most. A correlation scatters
        by the inverse.
    centre_px
        Displacement of the middle sample along axis 1 and axis 2.
    """

    values: np.ndarray
    weight: np.ndarray
    centre_px: tuple[int, int]


@dataclass(frozen=True)
class PendingSurface:
    """A correlation that may still be computed on a device; see `fetch_surfaces`.

    Attributes
    ----------
    samples
        Shape (2, …): values and weights of the surface, where they are computed.
    """

    samples: Array
    centre_px: tuple[int, int]


def start_correlation(
    first: Array,
    second: Array,
    centre_px: tuple[int, int],
    radius_px: tuple[int, int],
    *,
    min_overlap_share: float = 0.05,
    chosen: Array | None = None,
) -> PendingSurface:
    """Correlate two flattened stacks over a window of displacements; a device is not waited for.

    Parameters
    ----------
    first, second
        Shape (planes, n1, n2) each, float32, same planes; zeros count as unknown.
    centre_px, radius_px
        Middle and half width of the window. A displacement is the position of `second`'s pixel
        (0, 0) in the frame of `first`.
    min_overlap_share
        Displacements at which less than this share of the smaller image overlaps are NaN.
    chosen
        On a device, the planes to use, from `linumpy.geometry.tile_kernels.choose_slabs`; None for
        all.
    """
    size = (
        fast_length(padded_length(first.shape[1], second.shape[1], centre_px[0], radius_px[0])),
        fast_length(padded_length(first.shape[2], second.shape[2], centre_px[1], radius_px[1])),
    )
    low = (centre_px[0] - radius_px[0], centre_px[1] - radius_px[1])
    side = (2 * radius_px[0] + 1, 2 * radius_px[1] + 1)
    if is_device_array(first):
        from linumpy.geometry.tile_kernels import choose_all, correlate

        if chosen is None:
            chosen = choose_all(len(first))
        table = np.array([(*low, 0, 0, *first.shape[1:], 0, 0, *second.shape[1:])])
        samples = correlate(first, second, chosen, table, side, size, min_overlap_share)
        return PendingSurface(samples[0], centre_px)
    d1, d2 = (np.arange(begin, begin + n) for begin, n in zip(low, side, strict=True))
    window = np.ix_(d1 % size[0], d2 % size[1])
    product, energy_a, energy_b, count = (
        _back(spectrum, size)[window]
        for spectrum in _cross_spectra(to_host(first), to_host(second), size)
    )
    smaller = min(first[0].size, second[0].size) * first.shape[0]
    scale = np.sqrt(np.maximum(energy_a, 0)) * np.sqrt(np.maximum(energy_b, 0))
    good = (count > min_overlap_share * smaller) & (scale > 1e-6 * (count.max() + 1))
    # A window wider than the padded images would read wrapped displacements.
    good &= ((d1 > -second.shape[1]) & (d1 < first.shape[1]))[:, None]
    good &= (d2 > -second.shape[2]) & (d2 < first.shape[2])
    values = np.where(good, product / np.where(good, scale, 1), np.nan)
    weight = np.sqrt(np.maximum(count, 0) / max(count.max(), 1))
    return PendingSurface(np.stack([values, weight]), centre_px)


def fetch_surfaces(pending: Sequence[PendingSurface]) -> list[CorrelationSurface]:
    """Return the surfaces of correlations that were started, with one copy from a device."""
    if not pending:
        return []
    xp = namespace(pending[0].samples)
    flat = to_host(xp.concatenate([p.samples.ravel() for p in pending])).astype(np.float64)
    ends = np.cumsum([p.samples.size for p in pending])
    surfaces = []
    for p, part in zip(pending, np.split(flat, ends[:-1]), strict=True):
        values, weight = part.reshape(p.samples.shape)
        surfaces.append(CorrelationSurface(values, weight, p.centre_px))
    return surfaces


def _cross_spectra(first: np.ndarray, second: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return cross spectra summed over planes, shape (4, …).

    They are of values with values, squares with known, known with squares, known with known.
    Planes of which the same pixels are known, mostly all, share all but the first.
    """
    known_first, known_second = first != 0, second != 0
    alike: dict[bytes, list[int]] = {}
    for n, masks in enumerate(zip(known_first, known_second, strict=True)):
        alike.setdefault(b"".join(np.packbits(m).tobytes() for m in masks), []).append(n)
    total = np.zeros((4, size[0], size[1] // 2 + 1), np.complex64)

    def add(to: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
        to += a * b.conj()

    # A call of the FFT costs as much as that of a small window: those are transformed together.
    at_once = max(1, _FFT_SAMPLES // (size[0] * size[1]))
    for planes in alike.values():
        squares = [np.zeros(stack.shape[1:], np.float32) for stack in (first, second)]
        for some in (planes[k : k + at_once] for k in range(0, len(planes), at_once)):
            for a, b in zip(
                _spectrum(first[some], size), _spectrum(second[some], size), strict=True
            ):
                add(total[0], a, b)
        for n in planes:
            squares[0] += np.square(first[n])
            squares[1] += np.square(second[n])
        known_a, known_b = (_spectrum(k[planes[0]], size) for k in (known_first, known_second))
        add(total[1], _spectrum(squares[0], size), known_b)
        add(total[2], known_a, _spectrum(squares[1], size))
        add(total[3], known_a * np.float32(len(planes)), known_b)
    return total


def _spectrum(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    import scipy.fft

    return scipy.fft.rfft2(image.astype(np.float32, copy=False), s=size)


def _back(spectrum: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    import scipy.fft

    return scipy.fft.irfft2(spectrum, s=size)


def padded_length(n_first: int, n_second: int, centre: int, radius: int) -> int:
    """Return the least length at which no displacement of the window is mixed with a wrapped one.

    Images of the full length ``n_first + n_second − 1`` never wrap; for a narrow window of
    displacements much less will do.
    """
    low, high = centre - radius, centre + radius
    enough = max(n_first - low, n_second + high, n_first, n_second)
    return min(enough, n_first + n_second - 1)


def fast_length(n: int) -> int:
    """Return the next length of factors 2, 3 and 5, at which FFTs are fast on both devices."""
    while True:
        rest = n
        for factor in (2, 3, 5):
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return n
        n += 1
