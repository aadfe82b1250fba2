"""Solve the positions of all tiles of a slice from pairs and stage together.

Every displacement of a pair (`linumpy.tiles.pairs`) pulls on its two tiles. Every reported stage
position holds its tile with the strength that the data give the stage. Outliers are left out. A
tile that no pair reaches stays where the stage, corrected for scale and rotation, put it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from linumpy.geometry.correlation_peaks import ACCEPT_Z_SCORE
from linumpy.geometry.network import (
    Design,
    NetworkSolution,
    cauchy_weights,
    deviation_sigma,
    least_deviations,
    solve_network,
)
from linumpy.geometry.pair_graph import bridges, connected_components
from linumpy.tiles.pairs import PairResult, sharpness
from linumpy.tiles.scan_distortion import StepMismatch
from linumpy.tiles.scan_shape import PEAK_BIAS_PX

SECOND_LOOK_Z_SCORE = 4.0

_LINEAR_PRIOR = 0.01
_MIN_PAIR_SIGMA_PX = 0.05
_MIN_STAGE_SIGMA_PX = 0.2
_UNKNOWN_STAGE_SIGMA_PX = 1.0
_OUTLIER_SIGMAS = 4.0
_PLAUSIBLE_PX = 2.0
_MIN_DIRECTION_PAIRS = 5
_CONFIRMED_SHARE = 0.8
_OUTLIER_FLOOR_PX = 0.75
_PEAK_WIDTH_PX = 1.0


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
    usual_sigma
        Median standard error of the pairs by their peaks, to which `pair_sigma_px` belongs.
    network, terms
        What was solved, and the linear terms in it.
    """

    position_px: np.ndarray
    component: np.ndarray
    linear: np.ndarray
    stage_sigma_px: float
    pair_sigma_px: float
    usual_sigma: float
    network: NetworkSolution
    terms: np.ndarray

    def limit_px(self, result: PairResult) -> float:
        """Return the residual from which on a pair contradicts the others."""
        own_px = self.pair_sigma_px * _peak_sigma(result) / self.usual_sigma
        return max(_OUTLIER_SIGMAS * own_px, _OUTLIER_FLOOR_PX)

    def residual(self, result: PairResult) -> np.ndarray:
        """Return measured minus solved displacement."""
        step = self.position_px[result.pair.b] - self.position_px[result.pair.a]
        return result.displacement_px - step

    def excess(self, result: PairResult) -> float:
        """Return the residual over its limit: up to 1 it is one of a good pair."""
        return float(np.hypot(*self.residual(result))) / self.limit_px(result)


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
        mismatch = StepMismatch(scan_error_px)
        for result in results:
            result.mismatch, result.residual_px = mismatch, None
    return _solve_all(stage_px, results)


def _solve_all(stage_px: np.ndarray, results: Sequence[PairResult]) -> Solution:
    """Choose pairs and solve positions from them."""
    _limit_scores(results)
    for result in results:
        result.accepted = result.peak is not None and result.peak.z_score >= ACCEPT_Z_SCORE
    solution = _reject_unconfirmed(stage_px, results)
    for result in results:
        if result.accepted:
            continue
        expected = solution.position_px[result.pair.b] - solution.position_px[result.pair.a]
        joined = solution.component[[result.pair.a, result.pair.b]]
        # Tiles held by other pairs are known better than from the stage.
        reach = 1.5 if joined[0] == joined[1] >= 0 else 3 * solution.stage_sigma_px
        peak = result.find_peak_near(expected, reach)
        # On a ridge there is always something near enough.
        if peak is not None and peak.z_score >= SECOND_LOOK_Z_SCORE and peak.has_top:
            result.peak, result.accepted = peak, True
    for _ in range(len(results)):
        accepted = [r for r in results if r.accepted]
        solution = _solve(stage_px, accepted, solution.stage_sigma_px, solution)
        worst = max(accepted, key=solution.excess, default=None)
        if worst is None or solution.excess(worst) <= 1:
            break
        worst.accepted = False
    for result in results:
        if result.accepted:
            residual = solution.residual(result)
            result.residual_px = (float(residual[0]), float(residual[1]))
    return solution


def _limit_scores(results: Sequence[PairResult]) -> None:
    """Lower z-scores to what correlations bear out.

    A z-score counts in the noise of most displacements. Where tiles share a rim of tissue this is
    agarose's, and about the match it is tissue's. Precision goes with `sharpness` and with the
    voxels shared, which are about as many in all pairs of a slice. So a score is at most what the
    median pair has at that sharpness; where most pairs share rims alone, that bounds little.
    """
    clear = [
        r.peak.z_score / sharpness(r.peak.correlation)
        for r in results
        if r.peak is not None and r.peak.z_score >= ACCEPT_Z_SCORE and r.peak.correlation > 0
    ]
    most = float(np.median(clear)) if clear else math.inf
    for result in results:
        result.most_score = most


def _reject_unconfirmed(stage_px: np.ndarray, results: Sequence[PairResult]) -> Solution:
    """Solve, and drop unlikely pairs that no loop of agreeing pairs confirms.

    What the stage does to all tiles alike (scale, rotation, backlash) makes no pair unlikely.
    """
    accepted = [r for r in results if r.accepted]
    stage_sigma = _stage_sigma(accepted, 0.5)
    # Wrong pairs seldom close a loop, so those that do measure how far the stage is off.
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
    agreeing = [r for r in accepted if solution.excess(r) <= 1]
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
    sigma = np.array([_peak_sigma(r) for r in accepted])
    usual = float(np.median(sigma)) if len(sigma) else 1.0
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
        scale=sigma / usual,
    )
    return Solution(
        position_px=stage_px + solved.deviation,
        component=connected_components(len(stage_px), pairs),
        linear=np.eye(2) + solved.linear.T / size,
        stage_sigma_px=stage_sigma,
        pair_sigma_px=solved.pair_sigma,
        usual_sigma=usual,
        network=solved,
        terms=centred / size,
    )


def _peak_sigma(result: PairResult) -> float:
    """Return the standard error of a pair, by its peak.

    A peak as wide as a pixel, in noise as smooth as itself, is found to its width over its height
    in units of that noise.
    """
    return math.hypot(_noise_px(result), PEAK_BIAS_PX)


def _noise_px(result: PairResult) -> float:
    """Return the standard error by noise; that of a maximum without a top is the peak's width."""
    assert result.peak is not None
    return _PEAK_WIDTH_PX / max(result.score, 1.0) if result.peak.has_top else _PEAK_WIDTH_PX


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


def position_sigma_px(solution: Solution, results: Sequence[PairResult]) -> float:
    """Return the standard error of positions along one axis by noise of pairs, RMS over tiles.

    One translation for each component is left out, as are tiles that only the stage holds.

    Parameters
    ----------
    solution, results
        From `solve_positions`.
    """
    accepted = [r for r in results if r.accepted]
    noise = [_noise_px(r) for r in accepted]
    least = float(np.median(noise)) if noise else _MIN_PAIR_SIGMA_PX
    pairs = [r.pair.tiles for r in accepted]
    return deviation_sigma(solution.network, pairs, least, solution.terms)


def count_pairs(n_tiles: int, results: Sequence[PairResult]) -> Mapping[int, int]:
    """Count the accepted pairs of each tile."""
    counts = dict.fromkeys(range(n_tiles), 0)
    for result in results:
        if result.accepted:
            counts[result.pair.a] += 1
            counts[result.pair.b] += 1
    return counts
