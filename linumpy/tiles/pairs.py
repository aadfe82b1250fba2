"""Displacement of neighbouring tiles, by correlation of their overlap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linumpy.core.device import Array, is_device_array, like, namespace, to_host
from linumpy.geometry.correlation import (
    CorrelationSurface,
    PendingSurface,
    fetch_surfaces,
    start_correlation,
)
from linumpy.geometry.correlation_peaks import (
    NOISE_RADIUS_PX,
    Peak,
    find_peak,
    pending_peaks,
)
from linumpy.geometry.flatten import flatten
from linumpy.geometry.neighbours import close_pairs
from linumpy.tiles.scan_distortion import FAST_AXIS, StepMismatch

MAX_SLABS = 24
MIN_SIDE_SHARE = 0.5
MIN_OVERLAP_SHARE = 0.03

_ALONG_SHARE = 0.25
"""Largest shift along the border that tiles share, as a share of its length."""
_SIGNAL_OVER_NOISE = 1.3
_MOST_CORRELATION = 0.999
_MIN_SLABS = 4


@dataclass(frozen=True)
class TileEvidence:
    """What registration keeps of a tile.

    Attributes
    ----------
    slabs
        Flattened depth slabs, shape (slabs, axis 1, axis 2), on the tile's device.
    slab_means
        Mean amplitude of each slab, beside them.
    """

    slabs: Array
    slab_means: Array


@dataclass(frozen=True)
class TilePair:
    """Two neighbouring tiles, by number, and where the stage puts the second from the first."""

    a: int
    b: int
    expected_px: tuple[float, float]

    @property
    def tiles(self) -> tuple[int, int]:
        """Both numbers."""
        return self.a, self.b


def sharpness(correlation: float) -> float:
    """Return ρ/√(1 − ρ²), which precision of a displacement goes with; ρ at least 0, below 1.

    Walker and Trahey, IEEE Trans. UFFC 42, 301, 1995.
    """
    rho = min(max(correlation, 0.0), _MOST_CORRELATION)
    return rho / math.sqrt(1 - rho**2)


@dataclass
class PairResult:
    """Correlation of a pair, and whether it was accepted.

    `mismatch` is what scan distortion adds to its displacement; `displacement_px` is without.
    `most_score` is the highest z-score that is believed over ρ/√(1 − ρ²), by the correlation ρ.
    """

    pair: TilePair
    surface: CorrelationSurface
    origin_px: tuple[int, int]
    peak: Peak | None
    accepted: bool = False
    residual_px: tuple[float, float] | None = None
    mismatch: StepMismatch | None = None
    most_score: float = math.inf

    @property
    def score(self) -> float:
        """The z-score of the peak, as far as its correlation bears it out."""
        assert self.peak is not None
        return min(self.peak.z_score, self.most_score * sharpness(self.peak.correlation))

    @property
    def displacement_px(self) -> np.ndarray:
        """Measured position of tile b from tile a."""
        assert self.peak is not None
        measured = np.add(self.peak.displacement_px, self.origin_px)
        if self.mismatch is not None:
            measured[FAST_AXIS] = self.mismatch.straight(measured[FAST_AXIS])
        return np.asarray(measured)

    def _seen(self, displacement_px: np.ndarray) -> np.ndarray:
        """Return where on the surface, by its own displacements, tile b shows at a position."""
        seen = np.subtract(displacement_px, self.origin_px)
        if self.mismatch is not None:
            seen[FAST_AXIS] += self.mismatch.added(displacement_px[FAST_AXIS])
        return np.asarray(seen)

    def surface_px(self, position_px: np.ndarray) -> np.ndarray:
        """Return where tiles at these corners (n_tiles, 2) match, from the surface's middle."""
        step = position_px[self.pair.b] - position_px[self.pair.a]
        return self._seen(step) - self.surface.centre_px

    def find_peak_near(self, expected_px: np.ndarray, within_px: float) -> Peak | None:
        """Search the same surface near where the other pairs expect the second tile."""
        seen = self._seen(expected_px)
        local = (float(seen[0]), float(seen[1]))
        return find_peak(self.surface, expected_px=local, within_px=within_px)


def find_pairs(stage_px: np.ndarray, tile_shape: tuple[int, int]) -> list[TilePair]:
    """List the pairs of tiles that overlap along a side, by their stage positions.

    Parameters
    ----------
    stage_px
        Tile corners, shape (n_tiles, 2), in lateral pixels.
    tile_shape
        Pixels of a tile along axis 1 and axis 2.
    """
    pairs = close_pairs(stage_px, tile_shape)
    if not len(pairs):
        return []
    shift = stage_px[pairs[:, 1]] - stage_px[pairs[:, 0]]
    share = 1 - np.abs(shift) / np.asarray(tile_shape)
    # Along a side: most of one axis is shared, and something of the other.
    beside = (share.max(axis=1) >= MIN_SIDE_SHARE) & (share.min(axis=1) >= MIN_OVERLAP_SHARE)
    return [
        TilePair(int(a), int(b), (float(step[0]), float(step[1])))
        for (a, b), step in zip(pairs[beside], shift[beside], strict=True)
    ]


def tile_evidence(
    array: Array, valid: Array | None = None, line_gain: np.ndarray | None = None
) -> TileEvidence:
    """Reduce a tile to flattened depth slabs for `correlate_pair`.

    Parameters
    ----------
    array
        Corrected tile (z, axis 1, axis 2), float32, NumPy or CuPy.
    valid
        Its mask, or None.
    line_gain
        What it is divided by, over axis 1 and axis 2; None for nothing.
    """
    thickness = -(-array.shape[0] // MAX_SLABS)
    if is_device_array(array):
        from linumpy.geometry.tile_kernels import slab_means

        slabs, there = slab_means(array, valid, thickness)
    else:
        slabs, there = _slab_means(
            to_host(array), None if valid is None else to_host(valid), thickness
        )
    if line_gain is not None:
        slabs /= like(line_gain, slabs)
    # A mask that leaves nothing out must not round differently from none: files always have one.
    if there is None or bool(there.all()):
        return TileEvidence(flatten(slabs), slabs.mean(axis=(1, 2)))
    xp = namespace(slabs)
    weight = xp.maximum(there.sum(axis=(1, 2)), 1).astype(xp.float32)
    return TileEvidence(flatten(slabs, there), slabs.sum(axis=(1, 2)) / weight)


def _slab_means(
    array: np.ndarray, valid: np.ndarray | None, thickness: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return means over slabs of `thickness` planes, and where a slab has data (None: all over).

    Planes left at the end are not used.
    """
    n_slabs = array.shape[0] // thickness
    slabs = np.zeros((n_slabs, *array.shape[1:]), np.float32)
    there = None if valid is None else np.ones(slabs.shape, np.uint8)
    for n, slab in enumerate(slabs):
        planes = slice(n * thickness, (n + 1) * thickness)
        if valid is None or valid[planes].min():
            for plane in array[planes]:
                slab += plane
            slab /= thickness
            continue
        assert there is not None
        count = np.zeros(slab.shape, np.float32)
        for plane, mask in zip(array[planes], valid[planes] > 0, strict=True):
            slab += plane * mask
            count += mask
        there[n] = count > 0
        slab /= np.maximum(count, 1)
    return slabs, there


@dataclass(frozen=True)
class PendingPair:
    """A pair's correlation that may still be computed on a device; see `finish_pairs`."""

    pair: TilePair
    surface: PendingSurface
    origin_px: tuple[int, int]
    within_px: float


def correlate_pair(first: TileEvidence, second: TileEvidence, pair: TilePair) -> PairResult:
    """Correlate two tiles where the stage says that they overlap, with room for its error.

    The window searched reaches three quarters of the nominal overlap to either side: an error of
    the stage larger than that leaves too little in common to be recognised. Along the border, where
    tiles share more, correlations are known farther, up to a quarter of it: noise is estimated from
    them, no match is looked for there.
    """
    return finish_pairs([start_pair(first, second, pair)])[0]


def start_pair(
    first: TileEvidence,
    second: TileEvidence,
    pair: TilePair,
    strip: tuple[int, int] | None = None,
) -> PendingPair:
    """Start what `correlate_pair` does; a device is not waited for.

    Parameters
    ----------
    first, second, pair
        As there.
    strip
        First pixel of tile a along the fast axis that counts, and the one after the last; None for
        all that the tiles share.
    """
    shape = first.slabs.shape[1:]
    expected = np.asarray(pair.expected_px)
    overlap = np.asarray(shape) - np.abs(expected)
    across = int(np.clip(0.75 * overlap.min(), 4, 64))
    along = max(across, int(min(NOISE_RADIUS_PX, _ALONG_SHARE * overlap.max())))
    shares = overlap / shape
    reaches = (across, along) if shares[0] < shares[1] else (along, across)
    windows, starts = [], []
    for axis, reach in enumerate(reaches):
        d, n = expected[axis], shape[axis]
        start_a = int(np.clip(np.floor(d) - reach, 0, n))
        stop_a = int(np.clip(np.ceil(d) + n + reach, 0, n))
        start_b = int(np.clip(np.floor(-d) - reach, 0, n))
        stop_b = int(np.clip(np.ceil(-d) + n + reach, 0, n))
        if strip is not None and axis == FAST_AXIS:
            start_a, stop_a = strip
            start_b = int(np.clip(np.floor(start_a - d) - reach, 0, n))
            stop_b = int(np.clip(np.ceil(stop_a - d) + reach, 0, n))
        windows.append((slice(start_a, stop_a), slice(start_b, stop_b)))
        starts.append(start_a - start_b)
    centre = tuple(int(np.rint(d - s)) for d, s in zip(expected, starts, strict=True))
    part_a = first.slabs[:, windows[0][0], windows[1][0]]
    part_b = second.slabs[:, windows[0][1], windows[1][1]]
    chosen: Array | None = None
    if is_device_array(part_a):
        from linumpy.geometry.tile_kernels import choose_slabs

        chosen = choose_slabs(first.slab_means, second.slab_means, _SIGNAL_OVER_NOISE, _MIN_SLABS)
    else:
        common = _common_slabs(to_host(first.slab_means), to_host(second.slab_means))
        part_a, part_b = part_a[common], part_b[common]
    surface = start_correlation(
        part_a,
        part_b,
        centre,  # type: ignore[arg-type]
        reaches,
        chosen=chosen,
    )
    return PendingPair(pair, surface, (starts[0], starts[1]), math.hypot(across, across))


def finish_pairs(pending: Sequence[PendingPair]) -> list[PairResult]:
    """Return the results of pairs that were started; a device is waited for."""
    started = [p.surface for p in pending]
    peaks = pending_peaks(started, [p.within_px for p in pending])
    found = zip(pending, fetch_surfaces(started), peaks, strict=True)
    return [PairResult(p.pair, surface, p.origin_px, peak) for p, surface, peak in found]


def _common_slabs(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Choose the slabs where both tiles rise above their noise; the brightest if hardly any do."""
    noise = min(first.min(), second.min())
    signal = np.minimum(first, second)
    chosen = np.flatnonzero(signal > _SIGNAL_OVER_NOISE * noise)
    if len(chosen) < _MIN_SLABS:
        chosen = np.sort(np.argsort(signal)[-_MIN_SLABS:])
    return chosen
