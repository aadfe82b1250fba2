"""Detect bad samples of a raw tile: absurd sizes, zeros, no order along depth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from linumpy.core.device import Array, namespace, to_host
from linumpy.io.usable import LARGEST, usable

DYNAMIC_RANGE = 1e6
"""Ratio of amplitudes, 120 dB. Fourier-domain OCT has a sensitivity of 90 to 115 dB below a mirror
(Leitgeb et al., Opt. Express 11, 889, 2003; Choma et al., ibid. 11, 2183, 2003): from noise to the
brightest reflection there is less."""

SPIKE = 100.0
"""Ratio to all six neighbours. A point reflection is spread over several samples by the window of
the spectrum (with Hann's the next depth sample has half the amplitude) and by the focal spot; even
where the resolution is 0.6 samples, the next one has more than a hundredth."""

N_LOOKED_AT = 1 << 16
"""Samples of a tile's distribution: its quantiles are then known to 0.2 %."""

GARBLED, NOT_FINITE, SPIKES, ZEROS = "garbled", "nan", "spikes", "zeros"
LINES = "lines"
"""Flag of a tile with planes that `linumpy.mosaic.fixed_lines` interpolates."""


def flag_word(flag: str) -> str:
    """Return a flag without its count."""
    return flag.partition(":")[0]


def is_lines(flag: str) -> bool:
    """Say whether a flag tells of lines."""
    return flag_word(flag) == LINES


@dataclass(frozen=True)
class SampleCheck:
    """A defect of the samples of a tile.

    Attributes
    ----------
    usable
        Boolean like the tile; None where every sample is usable.
    flags
        ``garbled``, ``nan:<samples>``, ``spikes:<samples>``, ``zeros:<A-lines>``; see
        `check_samples`.
    """

    usable: Array | None
    flags: tuple[str, ...]


def check_samples(volume: Array) -> SampleCheck:
    """Find the samples of a tile that are not measurements.

    - ``garbled``: sizes without order, as of another byte order, another type or a shifted file.
      Random exponents span tens of decades; amplitudes lie within `DYNAMIC_RANGE`. All of the tile
      is unusable.
    - ``nan:<n>``: n samples are not finite, or beyond `linumpy.io.usable.LARGEST`.
    - ``spikes:<n>``: n samples are above the tile's median by more than `DYNAMIC_RANGE`, or above
      all of their neighbours by more than `SPIKE`, as after one flipped bit of the exponent.
    - ``zeros:<n>``: n A-lines are exactly 0, as where a file was preallocated and not written to
      its end. Detectors have noise: no A-line of theirs is 0 throughout. An A-line beside them
      that is partly 0 counts, too.

    Parameters
    ----------
    volume
        float32 tile (z, A-line, B-scan), NumPy or CuPy.
    """
    xp = namespace(volume)
    median = _median_size(volume)
    if median is None:
        return SampleCheck(xp.zeros(volume.shape, bool), (GARBLED,))
    good = usable(volume)
    flags = []
    n_bad = int(volume.size - xp.count_nonzero(good))
    if n_bad:
        flags.append(f"{NOT_FINITE}:{n_bad}")
    n_spikes = _mask_spikes(volume, good, median)
    if n_spikes:
        flags.append(f"{SPIKES}:{n_spikes}")
    lines = _zero_lines(volume)
    if lines is not None:
        good &= ~lines
        flags.append(f"{ZEROS}:{int(xp.count_nonzero(lines))}")
    return SampleCheck(good if flags else None, tuple(flags))


def _median_size(volume: Array) -> float | None:
    """Return the median magnitude of a tile without zeros; None where sizes have no order."""
    n_a, n_b = volume.shape[1:]
    step = max(1, int(np.sqrt(volume.size / N_LOOKED_AT)))
    some = to_host(volume[:, :: min(step, n_a), :: min(step, n_b)])
    with np.errstate(invalid="ignore"):
        sizes = np.abs(some.astype(float)).ravel()
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    # Programs that take logarithms clip at a tiny value: it says as little as 0.
    if sizes.size and sizes.min() < sizes.max():
        sizes = sizes[sizes > sizes.min()]
    if not sizes.size:
        return LARGEST
    low, median, high = np.quantile(sizes, (0.1, 0.5, 0.9))
    ordered = high <= DYNAMIC_RANGE * low and 1 / LARGEST <= median <= LARGEST
    return float(median) if ordered else None


def _mask_spikes(volume: Array, good: Array, median: float) -> int:
    """Take spikes out of a mask, and return how many there are."""
    xp = namespace(volume)
    bright = volume.dtype.type(min(SPIKE * median, LARGEST))
    if bool(volume.max() <= bright):
        return 0
    # NaN compares false; infinity is not good.
    places = xp.argwhere((volume > bright) & good)
    if not len(places):
        return 0
    sizes = volume[tuple(places.T)]
    spike = sizes > DYNAMIC_RANGE * median
    around = xp.zeros(len(places), volume.dtype)
    for axis, length in enumerate(volume.shape):
        for step in (-1, 1):
            beside = places.copy()
            beside[:, axis] += step
            inside = (beside[:, axis] >= 0) & (beside[:, axis] < length)
            beside[:, axis] = beside[:, axis].clip(0, length - 1)
            index = tuple(beside.T)
            around = xp.maximum(around, xp.where(inside & good[index], volume[index], 0))
    # With nothing around there is nothing to compare with.
    spike |= (around > 0) & (sizes > SPIKE * around)
    good[tuple(places[spike].T)] = False
    return int(xp.count_nonzero(spike))


def _zero_lines(volume: Array) -> Array | None:
    """Return which A-lines are 0, or partly 0 beside one that is; None where none is 0."""
    xp = namespace(volume)
    # One plane shows where to look: what is 0 throughout is 0 there.
    lines: Array = volume[len(volume) // 2] == 0
    if not bool(lines.any()):
        return None
    places = xp.nonzero(lines)
    lines[places] = ~(volume[:, places[0], places[1]] != 0).any(axis=0)
    if not bool(lines.any()):
        return None
    if bool(lines.all()):
        return lines
    n_zero = volume.shape[0] - xp.count_nonzero(volume, axis=0)
    usual = xp.median(n_zero[~lines])
    near = lines.copy()
    near[1:] |= lines[:-1]
    near[:-1] |= lines[1:]
    # The first A-line of a B-scan follows the last one of the B-scan before.
    near[0, 1:] |= lines[-1, :-1]
    near[-1, :-1] |= lines[0, 1:]
    zero: Array = lines | (near & (n_zero > usual))
    return zero
