"""Where each tile of a slice really lies: measured between neighbours, solved for all at once.

Neighbouring tiles are correlated over their overlap on many depth slabs. Every pair's
displacement then pulls on its two tiles, every reported stage position holds its tile with the
strength that the data say the stage deserves, and outliers are left out. A tile that no pair
reaches stays where the stage, corrected for scale and rotation, put it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from linumpy.core.device import Array, is_device_array, namespace, to_host
from linumpy.geometry.correlation import (
    ACCEPT_Z_SCORE,
    CorrelationSurface,
    Peak,
    PendingSurface,
    fetch_surfaces,
    find_peak,
    flatten,
    start_correlation,
)
from linumpy.geometry.neighbours import close_pairs
from linumpy.geometry.network import (
    Design,
    bridges,
    cauchy_weights,
    connected_components,
    least_deviations,
    solve_network,
)
from linumpy.tiles.scan_distortion import FAST_AXIS, pair_mismatch

MAX_SLABS = 24
MIN_SIDE_SHARE = 0.5
MIN_OVERLAP_SHARE = 0.03
SECOND_LOOK_Z_SCORE = 4.0
_SIGNAL_OVER_NOISE = 1.3
_MIN_SLABS = 4
_LINEAR_PRIOR = 0.01
_MIN_PAIR_SIGMA_PX = 0.05
_MIN_STAGE_SIGMA_PX = 0.2
_UNKNOWN_STAGE_SIGMA_PX = 1.0
_OUTLIER_SIGMAS = 4.0
_PLAUSIBLE_PX = 2.0
_MIN_DIRECTION_PAIRS = 5
_CONFIRMED_SHARE = 0.8
_OUTLIER_FLOOR_PX = 0.75
_BRIGHTNESS_PRIOR, _BRIGHTNESS_SIGMA = 3.0, 0.05
"""Of logarithms: how far tiles may be apart, and how closely a pair is believed."""


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


@dataclass
class PairResult:
    """A pair's correlation and what became of it.

    `mismatch_px` is what scan distortion adds to its displacement; `displacement_px` is without.
    """

    pair: TilePair
    surface: CorrelationSurface
    origin_px: tuple[int, int]
    peak: Peak | None
    accepted: bool = False
    residual_px: tuple[float, float] | None = None
    mismatch_px: tuple[float, float] = (0.0, 0.0)

    @property
    def displacement_px(self) -> np.ndarray:
        """Measured position of tile b from tile a."""
        assert self.peak is not None
        measured = np.add(self.peak.displacement_px, self.origin_px)
        return np.asarray(measured - self.mismatch_px)

    def find_peak_near(self, expected_px: np.ndarray, within_px: float) -> Peak | None:
        """Search the same surface near where the other pairs expect the second tile."""
        seen = np.add(expected_px, self.mismatch_px) - self.origin_px
        local = (float(seen[0]), float(seen[1]))
        return find_peak(self.surface, expected_px=local, within_px=within_px)


@dataclass(frozen=True)
class Solution:
    """Solved positions.

    Attributes
    ----------
    position_px
        Shape (n_tiles, 2): tile corners, in the frame of the stage positions.
    component
        Connected component of accepted pairs a tile belongs to; −1 if only the stage holds it.
    linear
        The stage's 2×2 correction, identity for a perfect stage.
    stage_sigma_px, pair_sigma_px
        Spread of the stage's errors and of the pairs', as the data show them.
    """

    position_px: np.ndarray
    component: np.ndarray
    linear: np.ndarray
    stage_sigma_px: float
    pair_sigma_px: float

    @property
    def limit_px(self) -> float:
        """The residual from which on a pair contradicts the others."""
        return max(_OUTLIER_SIGMAS * self.pair_sigma_px, _OUTLIER_FLOOR_PX)

    def residual(self, result: PairResult) -> np.ndarray:
        """Return measured minus solved displacement."""
        step = self.position_px[result.pair.b] - self.position_px[result.pair.a]
        return result.displacement_px - step

    def agrees(self, result: PairResult) -> bool:
        """Whether the residual is one of a good pair."""
        return bool(np.hypot(*self.residual(result)) <= self.limit_px)


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


def tile_evidence(array: Array, valid: Array | None = None) -> TileEvidence:
    """Reduce a tile to flattened depth slabs for `correlate_pair`.

    Parameters
    ----------
    array
        Corrected tile (z, axis 1, axis 2), float32, NumPy or CuPy.
    valid
        Its mask, or None.
    """
    thickness = -(-array.shape[0] // MAX_SLABS)
    if is_device_array(array):
        from linumpy.geometry.tile_kernels import slab_means

        slabs, there = slab_means(array, valid, thickness)
    else:
        slabs, there = _slab_means(
            to_host(array), None if valid is None else to_host(valid), thickness
        )
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


def correlate_pair(first: TileEvidence, second: TileEvidence, pair: TilePair) -> PairResult:
    """Correlate two tiles where the stage says that they overlap, with room for its error.

    The window searched reaches three quarters of the nominal overlap to either side: an error of
    the stage larger than that leaves too little in common to be recognised.
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
    reach = int(np.clip(0.75 * overlap.min(), 4, 64))
    windows, starts = [], []
    for axis in (0, 1):
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
        (reach, reach),
        chosen=chosen,
    )
    return PendingPair(pair, surface, (starts[0], starts[1]))


def finish_pairs(pending: Sequence[PendingPair]) -> list[PairResult]:
    """Return the results of pairs that were started, with one copy from a device."""
    surfaces = fetch_surfaces([p.surface for p in pending])
    return [
        PairResult(p.pair, surface, p.origin_px, find_peak(surface))
        for p, surface in zip(pending, surfaces, strict=True)
    ]


def _common_slabs(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Choose the slabs where both tiles rise above their noise; the brightest if hardly any do."""
    noise = min(first.min(), second.min())
    signal = np.minimum(first, second)
    chosen = np.flatnonzero(signal > _SIGNAL_OVER_NOISE * noise)
    if len(chosen) < _MIN_SLABS:
        chosen = np.sort(np.argsort(signal)[-_MIN_SLABS:])
    return chosen


def solve_positions(
    stage_px: np.ndarray,
    results: Sequence[PairResult],
    scan_error_px: np.ndarray | None = None,
) -> Solution:
    """Solve all tile positions of a slice, and mark in `results` which pairs were accepted.

    Parameters
    ----------
    stage_px
        Reported tile corners, shape (n_tiles, 2), lateral pixels.
    results
        One entry a pair, from `correlate_pair`; `accepted`, `peak` and `residual_px` are set.
    scan_error_px
        Scan distortion at each pixel of a tile's fast axis; None takes the scan to be straight.
    """
    if scan_error_px is not None:
        expected = np.array([r.pair.expected_px for r in results]).reshape(-1, 2)
        away = pair_mismatch(scan_error_px, expected).tolist()
        for result, (first, second) in zip(results, away, strict=True):
            result.mismatch_px, result.residual_px = (first, second), None
    return _solve_all(stage_px, results)


def _solve_all(stage_px: np.ndarray, results: Sequence[PairResult]) -> Solution:
    """Choose pairs and solve positions from them."""
    for result in results:
        result.accepted = result.peak is not None and result.peak.z_score >= ACCEPT_Z_SCORE
    solution = _reject_unconfirmed(stage_px, results)
    for result in results:
        if result.accepted:
            continue
        expected = solution.position_px[result.pair.b] - solution.position_px[result.pair.a]
        joined = solution.component[[result.pair.a, result.pair.b]]
        # Tiles that other pairs hold are known better than the stage knows them.
        reach = 1.5 if joined[0] == joined[1] >= 0 else 3 * solution.stage_sigma_px
        peak = result.find_peak_near(expected, reach)
        if peak is not None and peak.z_score >= SECOND_LOOK_Z_SCORE:
            result.peak, result.accepted = peak, True
    for _ in range(len(results)):
        accepted = [r for r in results if r.accepted]
        solution = _solve(stage_px, accepted, solution.stage_sigma_px, solution)
        worst = max(
            accepted,
            key=lambda r: float(np.hypot(*solution.residual(r))),
            default=None,
        )
        if worst is None or solution.agrees(worst):
            break
        worst.accepted = False
    for result in results:
        if result.accepted:
            residual = solution.residual(result)
            result.residual_px = (float(residual[0]), float(residual[1]))
    return solution


def _reject_unconfirmed(stage_px: np.ndarray, results: Sequence[PairResult]) -> Solution:
    """Solve, and drop unlikely pairs that no loop of agreeing pairs confirms.

    What the stage does to all tiles alike (scale, rotation, backlash) makes no pair unlikely.
    """
    accepted = [r for r in results if r.accepted]
    stage_sigma = _stage_sigma(accepted, 0.5)
    # Wrong pairs seldom close a loop, so that those that do tell how far the stage is off.
    confirmed, _ = _by_loops(_solve(stage_px, accepted, stage_sigma), accepted)
    stage_sigma = max(stage_sigma, _stage_sigma(confirmed, _CONFIRMED_SHARE))
    limit = max(_OUTLIER_SIGMAS * np.sqrt(2) * stage_sigma, _PLAUSIBLE_PX)
    while True:
        solution = _solve(stage_px, accepted, stage_sigma)
        own = _own_errors(accepted)
        far = {
            r.pair for r, error in zip(accepted, own, strict=True) if np.abs(error).max() > limit
        }
        unlikely = [r for r in _by_loops(solution, accepted)[1] if r.pair in far]
        if not unlikely:
            return solution
        # What contradicted them may be right.
        for result in unlikely:
            result.accepted = False
        accepted = [r for r in accepted if r.accepted]


def _by_loops(
    solution: Solution, accepted: Sequence[PairResult]
) -> tuple[list[PairResult], list[PairResult]]:
    """Return the agreeing pairs that a loop of such pairs confirms, and those that none does."""
    agreeing = [r for r in accepted if solution.agrees(r)]
    alone = bridges(len(solution.position_px), [r.pair.tiles for r in agreeing])
    parts: tuple[list[PairResult], list[PairResult]] = ([], [])
    for result, bridge in zip(agreeing, alone, strict=True):
        parts[int(bridge)].append(result)
    return parts


def _solve(
    stage_px: np.ndarray,
    accepted: Sequence[PairResult],
    stage_sigma: float,
    start: Solution | None = None,
) -> Solution:
    """Solve from accepted pairs; the stage's linear error is a term shared by all tiles."""
    pairs = [r.pair.tiles for r in accepted]
    centred = stage_px - stage_px.mean(axis=0)
    size = max(float(np.abs(centred).max()), 1.0)
    solved = solve_network(
        len(stage_px),
        pairs,
        _stage_errors(accepted),
        prior_sigma=stage_sigma,
        min_pair_sigma=_MIN_PAIR_SIGMA_PX,
        terms=centred / size,
        term_sigma=_LINEAR_PRIOR * size,
        # Of pairs that contradict each other, those are right that ask less of the stage.
        trust=1.0 if start else cauchy_weights(_own_errors(accepted), stage_sigma),
        start=start.position_px - stage_px if start else None,
    )
    return Solution(
        position_px=stage_px + solved.deviation,
        component=connected_components(len(stage_px), pairs),
        linear=np.eye(2) + solved.linear.T / size,
        stage_sigma_px=stage_sigma,
        pair_sigma_px=solved.pair_sigma,
    )


def _expected(accepted: Sequence[PairResult]) -> np.ndarray:
    return np.array([r.pair.expected_px for r in accepted]).reshape(-1, 2)


def _stage_errors(accepted: Sequence[PairResult]) -> np.ndarray:
    """Return measured minus expected displacements, shape (n_pairs, 2)."""
    return np.array([r.displacement_px for r in accepted]).reshape(-1, 2) - _expected(accepted)


def _own_errors(accepted: Sequence[PairResult]) -> np.ndarray:
    """Return what the stage's linear error (scale, rotation, shear) leaves of the pairs' errors.

    Fitted by least absolute deviations, so that neither direction of steps nor wrong pairs decide.
    """
    steps, errors = _expected(accepted), _stage_errors(accepted)
    size = float(np.abs(steps).max(initial=1.0))
    design = Design(steps / size)

    prior = np.full(2, 1 / (_LINEAR_PRIOR * size) ** 2)
    linear = least_deviations(design, errors, prior, _MIN_STAGE_SIGMA_PX)
    return errors - design.differences(linear)


def _stage_sigma(pairs: Sequence[PairResult], share: float) -> float:
    """Return how far the stage is off, as a standard deviation an axis.

    Each direction of steps has its own: backlash moves every other row as a whole, so that half of
    the pairs of one direction are off. A share s of the lengths of normal 2D vectors is below
    √(−2·ln(1 − s)) standard deviations.

    Parameters
    ----------
    pairs
        Pairs to tell it from.
    share
        Of the pairs: those that need less of the stage are sure to be right.
    """
    if not pairs:
        return _UNKNOWN_STAGE_SIGMA_PX
    length = np.linalg.norm(_own_errors(pairs), axis=1)
    along = np.abs(_expected(pairs)).argmax(axis=1)
    groups = [length[along == axis] for axis in (0, 1)]
    if min(map(len, groups)) < _MIN_DIRECTION_PAIRS:
        groups = [length]
    spread = max(float(np.quantile(group, share)) for group in groups)
    # A pair has the errors of two tiles.
    return max(spread / np.sqrt(-4 * np.log1p(-share)), _MIN_STAGE_SIGMA_PX)


def overlap_means(
    first: np.ndarray, second: np.ndarray, displacement_px: Sequence[float]
) -> tuple[float, float] | None:
    """Return the means of two projections over the tissue that both show.

    Parameters
    ----------
    first, second
        Depth means of two tiles, NaN where invalid.
    displacement_px
        Position of the second from the first.
    """
    windows_a, windows_b = [], []
    for d, n in zip(np.rint(displacement_px).astype(int), first.shape, strict=True):
        windows_a.append(slice(max(0, d), min(n, n + d)))
        windows_b.append(slice(max(0, -d), min(n, n - d)))
    a, b = first[tuple(windows_a)], second[tuple(windows_b)]
    both = np.isfinite(a) & np.isfinite(b)
    if not both.any():
        return None
    return float(a[both].mean()), float(b[both].mean())


def tile_brightness(
    n_tiles: int, pairs: Sequence[tuple[int, int]], means: Sequence[tuple[float, float]]
) -> np.ndarray:
    """Return how bright each tile is against the others, by what neighbours show of one place.

    Parameters
    ----------
    n_tiles
        Number of tiles.
    pairs
        Tiles (a, b) of each pair.
    means
        Mean amplitudes of both over their overlap (`overlap_means`).

    Returns
    -------
    Shape (n_tiles,): 1 is the median; NaN for a tile without a pair.
    """
    bright = np.full(n_tiles, np.nan)
    shown = [n for n, mean in enumerate(means) if min(mean) > 0]
    if not shown:
        return bright
    ratios = np.log([[means[n][1] / means[n][0]] for n in shown])
    joined = [pairs[n] for n in shown]
    solution = solve_network(
        n_tiles, joined, ratios, prior_sigma=_BRIGHTNESS_PRIOR, min_pair_sigma=_BRIGHTNESS_SIGMA
    )
    known = connected_components(n_tiles, joined) >= 0
    level = solution.deviation[:, 0]
    bright[known] = np.exp(level[known] - np.median(level[known]))
    return bright


def count_pairs(n_tiles: int, results: Sequence[PairResult]) -> Mapping[int, int]:
    """Count the accepted pairs of each tile."""
    counts = dict.fromkeys(range(n_tiles), 0)
    for result in results:
        if result.accepted:
            counts[result.pair.a] += 1
            counts[result.pair.b] += 1
    return counts
