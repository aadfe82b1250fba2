"""Solve the depth of each slice from measured pairs, stage and interval.

Pairs are precise, but their errors add up along a chain; the stage is rough, but does not drift.
How rough it is, face by face and cut by cut, is estimated from the pairs themselves by restricted
maximum likelihood (Patterson and Thompson, Biometrika 58, 545, 1971). Cuts that the stage does not
tell, such as double ones, are found as level shifts (Harvey and Koopman, J. Bus. Econ. Stat. 10,
377, 1992); they rest on the pairs alone. A common factor of all steps is estimated as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from linumpy.brain.expected_depths import most_likely
from linumpy.core.robust import robust_spread
from linumpy.geometry.least_squares import solve_positive
from linumpy.geometry.network import Network, cauchy_weights, least_deviations
from linumpy.geometry.pair_graph import connected_components

_ROUNDS = 6
_FREE = 1000.0
"""Spreads that a cut may be off while outlier pairs are detected."""
_JUMP_SPREADS = 5.0
_CHANCE = 0.01
"""Probability of a jump where there is none, over all cuts; of taking chance for a scale."""
_UNLIKELY = 5.0
"""Spreads of the pairs' errors at which a pair has half its weight while outliers are detected."""
_GAIN = 1.92
"""Logarithm of a likelihood ratio: half of chi-square's 95 % quantile, 1 degree of freedom."""
SCALE_LIMIT = 0.05
"""Refractive indices of fresh, fixed and cleared tissue lie within 1.33–1.47: 5 % about 1.40."""
_CERTAIN = 3.0
"""Standard errors of a scale that is reported; one that slices are moved by has to be surer."""
_TOLD_APART = 6.0
"""Face errors that a scale must add up to over all slices to differ from uneven cuts."""
_STEPS = 2.0 ** np.arange(0, 8, 0.5)
"""Spreads that are tried, over the least one; finer than the data resolve."""
_FACTORS = 2.0 ** np.arange(0, 2.5, 0.5)
_LEAST_VALUE = 1e-9
_MAX_ELIMINATED = 300


@dataclass(frozen=True)
class DepthSolution:
    """How deep slices lie.

    Attributes
    ----------
    depth_um
        Shape (n_slices,), below the first slice.
    sigma
        Shape (n_slices,): standard errors of the same, given the spreads below; infinite where
        there are no pairs.
    scale, scale_sigma
        How much longer the pairs measure all steps than expected, as a share of the step, and its
        standard error. It is not part of `depth_um` where `axial_scale_is_off`.
    n_told
        Distances that are measured independently of each other. One alone tells no scale from a
        thick cut.
    pair_sigma, face_sigma, cut_sigma
        Spread of the pairs, of faces about where the stage says, and of cuts that the stage does
        not tell.
    jumps
        Slices, by number, before which a cut is off by more than that.
    expected_um
        Shape (n_slices,): the account that was taken, of those of `expected_depths`.
    """

    depth_um: np.ndarray
    sigma: np.ndarray
    expected_um: np.ndarray
    scale: float = 0.0
    scale_sigma: float = float("inf")
    n_told: int = 0
    pair_sigma: float = 0.0
    face_sigma: float = 0.0
    cut_sigma: float = 0.0
    jumps: tuple[int, ...] = ()

    @property
    def scale_is_significant(self) -> bool:
        """Whether the pairs measure all steps longer, or all shorter, beyond their errors."""
        return abs(self.scale) > _CERTAIN * self.wide_scale_sigma

    @property
    def wide_scale_sigma(self) -> float:
        """Standard error of the scale, widened for few distances; infinite for one.

        They tell only roughly how uneven cuts are. Three of it are exceeded by chance as seldom as
        three standard errors of a normal distribution (by Student's).
        """
        from scipy.special import ndtr

        if self.n_told < 2:
            return float("inf")
        return self.scale_sigma * self._quantile(ndtr(_CERTAIN)) / _CERTAIN

    def _quantile(self, probability: float) -> float:
        from scipy.special import stdtrit

        # Of the distances, one is taken up by the scale itself.
        return float(stdtrit(max(1, self.n_told - 1), probability))

    @property
    def axial_scale_is_off(self) -> bool:
        """Whether that is the axial voxel size, and not the cuts.

        Cuts that are uneven anyway may as well be thicker on average.
        """
        certain = abs(self.scale) > self._quantile(1 - _CHANCE / 2) * self.scale_sigma
        lengths_um = np.median(np.diff(self.expected_um)), np.ptp(self.expected_um)
        step, total = np.abs(self.scale) * np.array(lengths_um)
        alike = self.cut_sigma <= step and _TOLD_APART * self.face_sigma <= total
        return bool(certain and alike and abs(self.scale) <= SCALE_LIMIT)


def solve_depths(
    n_slices: int,
    pairs: Sequence[tuple[int, int]],
    distances_um: np.ndarray,
    trust: np.ndarray,
    *,
    accounts: Sequence[np.ndarray],
    min_pair_sigma: float,
    min_face_sigma: float,
) -> DepthSolution:
    """Solve for the depth of each slice.

    Parameters
    ----------
    n_slices
        Number of slices, in the order in which they were cut.
    pairs
        Slices (a, b) of each measurement, a < b.
    distances_um
        Shape (n_pairs,): measured depth of b below a.
    trust
        Shape (n_pairs,): relative weight of each measurement.
    accounts
        Depths that are expected, shape (n_slices,) each, as of `expected_depths`; the last one is
        by the interval.
    min_pair_sigma, min_face_sigma
        Lower bound of the errors of pairs and of the stage.
    """
    if not len(pairs):
        nothing = np.full(n_slices, np.inf)
        nothing[:1] = 0
        return DepthSolution(accounts[0] - accounts[0][0], nothing, accounts[0])
    first, second = np.array(pairs).T
    nominal = accounts[-1]
    errors = np.asarray(distances_um, float) - (nominal[second] - nominal[first])
    cuts, weight, pair_sigma = _pairs_alone(
        n_slices, pairs, errors, trust, min_pair_sigma, min_face_sigma
    )
    measured = np.zeros(n_slices - 1, bool)
    for a, b in pairs:
        measured[a:b] = True
    expected = most_likely(accounts, cuts + np.diff(nominal), measured)
    moved = expected - nominal
    model = _Model(
        n_slices, pairs, errors - (moved[second] - moved[first]), expected, pair_sigma**2 / weight
    )
    jumps = _clear_jumps(cuts - np.diff(moved), measured, min_face_sigma)
    n_told = _n_independent(n_slices, pairs)
    start = _Spreads(1.0, min_face_sigma, 0.0, jumps, scaled=n_told > 1)
    with_scale = replace(model.solve(model.fit(start, min_face_sigma)), n_told=n_told)
    if with_scale.axial_scale_is_off:
        found = replace(with_scale, depth_um=with_scale.depth_um - with_scale.scale * model.slope)
    else:
        found = model.solve(model.fit(replace(start, scaled=False), min_face_sigma))
    return replace(
        found,
        depth_um=found.depth_um + expected - expected[0],
        scale=with_scale.scale,
        scale_sigma=with_scale.scale_sigma,
        n_told=n_told,
        pair_sigma=found.pair_sigma * pair_sigma,
    )


def _pairs_alone(
    n_slices: int,
    pairs: Sequence[tuple[int, int]],
    errors: np.ndarray,
    trust: np.ndarray,
    min_pair_sigma: float,
    min_cut_sigma: float,
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return each cut's error by the pairs alone, weights of the pairs, and their spread."""
    column = np.asarray(errors, float)[:, None]
    usual = max(robust_spread(column), min_cut_sigma)
    free = np.full(n_slices, 1 / (_FREE * usual) ** 2)
    network = Network(n_slices, pairs)
    # Of pairs that contradict each other, those are right that need less of the stage.
    likely = np.asarray(trust, float) * cauchy_weights(column, _UNLIKELY / 3 * usual)
    depths = least_deviations(network, column, free, min_pair_sigma, likely)
    # Solved depths take most of the pairs' errors along; the others have to speak for all.
    unknown = _n_independent(n_slices, pairs)
    share = np.sqrt(len(pairs) / max(len(pairs) - unknown, 1))
    weight = np.asarray(trust, float) / np.median(trust)
    pair_sigma = min_pair_sigma
    good = np.ones(len(pairs))
    for _ in range(_ROUNDS):
        residual = column - network.differences(depths)
        if len(pairs) > unknown:
            pair_sigma = max(share * robust_spread(residual), min_pair_sigma)
        good = cauchy_weights(residual, pair_sigma)
        depths = network.solve(weight * good / pair_sigma**2, free, column)
    return np.diff(depths[:, 0]), weight * good, pair_sigma


def _n_independent(n_slices: int, pairs: Sequence[tuple[int, int]]) -> int:
    """Return how many distances pairs measure that do not follow from each other."""
    group = connected_components(n_slices, pairs)
    return int((group >= 0).sum()) - len(np.unique(group[group >= 0]))


def _clear_jumps(cuts: np.ndarray, measured: np.ndarray, sigma: float) -> tuple[int, ...]:
    """Return slices before which the cut is far from what most cuts are."""
    known = cuts[measured]
    away = cuts - np.median(known)
    spread = max(robust_spread(known - np.median(known)), np.sqrt(2) * sigma)
    found = np.flatnonzero(measured & (np.abs(away) > _JUMP_SPREADS * spread))
    return tuple(int(n) + 1 for n in found)


@dataclass(frozen=True)
class _Spreads:
    """What the slices' deviations are made of: standard deviations, and the cuts that are free.

    `pair` is a factor of the pairs' standard deviations.
    """

    pair: float
    face: float
    cut: float
    jumps: tuple[int, ...]
    scaled: bool


class _Model:
    """Slices' deviations as a Gaussian process that pairs observe.

    A deviation is the sum of an error of the face, a random walk of the cuts, a share of the
    expected depth, and steps at jumps.
    """

    def __init__(
        self,
        n_slices: int,
        pairs: Sequence[tuple[int, int]],
        errors: np.ndarray,
        expected: np.ndarray,
        variance: np.ndarray,
    ) -> None:
        self.errors, self.expected, self.variance = errors, expected, variance
        self._first, self._second = np.array(pairs).T
        self._n = n_slices
        # Row: slice; column: the cut before slice 1, 2, …
        self._below = np.tri(n_slices, n_slices - 1, -1)
        self._measured = np.asarray(self._differences(self._below).any(axis=0))
        self.slope = expected - expected[0]
        self._jump = _FREE * max(robust_spread(errors), 1.0)
        self._face_weight = np.ones(n_slices)
        self._cut_weight = np.ones(n_slices - 1)
        # Pairs determine orthogonal combinations of depths, each with unit variance, and the rest.
        scaled = self._differences(np.eye(n_slices)) / np.sqrt(variance)[:, None]
        left, values, right = np.linalg.svd(scaled, full_matrices=False)
        known = values > _LEAST_VALUE * values.max()
        self._told = values[known, None] * right[known]
        self._tells = left[:, known].T @ (errors / np.sqrt(variance))
        self._walked = self._told @ self._below
        self._of_faces = self._told @ self._told.T
        self._of_cuts = self._walked @ self._walked.T
        self._n_left = len(pairs) - int(known.sum())
        self._left = float((errors**2 / variance).sum() - (self._tells**2).sum())

    def _differences(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(values[self._second] - values[self._first])

    def _covariance(self, spreads: _Spreads) -> np.ndarray:
        """Return the covariance of all deviations."""
        out = np.diag(spreads.face**2 / self._face_weight)
        if spreads.cut:
            out += (self._below * (spreads.cut**2 / self._cut_weight)) @ self._below.T
        if spreads.scaled:
            out += SCALE_LIMIT**2 * np.outer(self.slope, self.slope)
        for jump in spreads.jumps:
            step = self._below[:, jump - 1, None]
            out += self._jump**2 * step * step.T
        return out

    def _of_pairs(self, covariance: np.ndarray, factor: float) -> np.ndarray:
        """Return the covariance of what pairs measure."""
        out = self._differences(self._differences(covariance).T)
        return out + np.diag(factor**2 * self.variance)

    def _told_covariance(self, spreads: _Spreads) -> np.ndarray:
        """Return the covariance of the combinations of depths that pairs determine."""
        covariance = spreads.face**2 * self._of_faces + spreads.cut**2 * self._of_cuts
        if spreads.scaled:
            slope = SCALE_LIMIT * (self._told @ self.slope)
            covariance += np.outer(slope, slope)
        steps = self._jump * self._walked[:, [jump - 1 for jump in spreads.jumps]]
        covariance += steps @ steps.T
        covariance.flat[:: len(covariance) + 1] += spreads.pair**2
        return covariance

    def _log_likelihood(self, spreads: _Spreads) -> float:
        """Return the logarithm of the pairs' likelihood, but for a constant.

        What pairs say of depths, and what they say against each other, are independent.
        """
        lower = np.linalg.cholesky(self._told_covariance(spreads))
        white = np.linalg.solve(lower, self._tells)
        depths = 2 * np.log(lower.diagonal()).sum() + white @ white
        factor = spreads.pair**2
        return -0.5 * float(depths + self._n_left * np.log(factor) + self._left / factor)

    def fit(self, spreads: _Spreads, min_face: float) -> _Spreads:
        """Return the likeliest spreads, and the jumps that are clear beside them."""
        self._face_weight[:], self._cut_weight[:] = 1, 1
        for _ in range(self._n):
            spreads = self._fit_spreads(spreads, min_face)
            more = self._further_jumps(spreads)
            if not more:
                break
            spreads = replace(spreads, jumps=tuple(sorted({*spreads.jumps, *more})))
        return spreads

    def _fit_spreads(self, spreads: _Spreads, min_face: float) -> _Spreads:
        held = self._climb(replace(spreads, cut=0.0), min_face, [0.0])
        # A random walk leaves the stage permanently: it has to be estimated.
        cuts = [step * min_face for step in _STEPS / 2]
        walking = self._climb(replace(held[1], cut=cuts[0]), min_face, cuts)
        return walking[1] if walking[0] > held[0] + _GAIN else held[1]

    def _climb(
        self, spreads: _Spreads, min_face: float, cuts: Sequence[float]
    ) -> tuple[float, _Spreads]:
        """Return the highest likelihood and its spreads, found one after the other in turn."""
        # Where no pairs close a loop, none contradicts another: their noise looks like uneven cuts.
        factors = _FACTORS if self._n_left else _FACTORS[:1]
        choices = {"face": list(_STEPS * min_face), "cut": list(cuts), "pair": list(factors)}
        best = (self._log_likelihood(spreads), spreads)
        while True:
            before = best[0]
            for name, values in choices.items():
                at = values.index(getattr(best[1], name))
                for value in values[max(0, at - 1) : at + 2]:
                    other = replace(best[1], **{name: value})
                    best = max(best, (self._log_likelihood(other), other), key=_first)
            if best[0] <= before:
                return best

    def _further_jumps(self, spreads: _Spreads) -> list[int]:
        """Return the cut that the rest of the model explains least, if that is clear."""
        from scipy.special import ndtri

        steps = self._walked
        both = np.column_stack([self._tells, steps])
        solved = np.linalg.solve(self._told_covariance(spreads), both)
        pull, size = steps.T @ solved[:, 0], np.einsum("ij,ij->j", steps, solved[:, 1:])
        score = np.where(self._measured, pull**2 / np.maximum(size, 1e-30), 0.0)
        score[[jump - 1 for jump in spreads.jumps]] = 0
        best = int(score.argmax())
        # Any of the cuts may be far off by chance (Bonferroni).
        least = ndtri(1 - _CHANCE / 2 / int(self._measured.sum())) ** 2
        return [best + 1] if score[best] > least else []

    def solve(self, spreads: _Spreads) -> DepthSolution:
        """Return the best linear prediction; slices and cuts that are off lose their pull."""
        for _ in range(_ROUNDS):
            of_pairs = self._of_pairs(self._covariance(spreads), spreads.pair)
            pull = _solve(of_pairs, self.errors)
            back = np.zeros(self._n)
            np.add.at(back, self._second, pull)
            np.subtract.at(back, self._first, pull)
            face = back[:, None] * spreads.face**2 / self._face_weight[:, None]
            self._face_weight = cauchy_weights(face, spreads.face)
            if spreads.cut:
                cut = (self._below.T @ back)[:, None] * spreads.cut**2
                cut /= self._cut_weight[:, None]
                self._cut_weight = cauchy_weights(cut, spreads.cut)
        covariance = self._covariance(spreads)
        cross = self._differences(covariance)
        slope = self._differences(self.slope)
        inverse = _solve(
            self._of_pairs(covariance, spreads.pair),
            np.column_stack([self.errors, slope, cross]),
        )
        deviation = cross.T @ inverse[:, 0]
        left = covariance - cross.T @ inverse[:, 2:]
        spread = left.diagonal() + left[0, 0] - left[0] - left[:, 0]
        scale, scale_sigma = 0.0, float("inf")
        if spreads.scaled:
            scale = SCALE_LIMIT**2 * float(slope @ inverse[:, 0])
            told = float(slope @ inverse[:, 1])
            scale_sigma = SCALE_LIMIT * float(np.sqrt(max(0.0, 1 - SCALE_LIMIT**2 * told)))
        return DepthSolution(
            deviation - deviation[0],
            np.sqrt(np.maximum(spread, 0)),
            self.expected,
            scale=scale,
            scale_sigma=scale_sigma,
            pair_sigma=spreads.pair,
            face_sigma=spreads.face,
            cut_sigma=spreads.cut,
            jumps=spreads.jumps,
        )


def _first(rated: tuple[float, _Spreads]) -> float:
    return rated[0]


def _solve(covariance: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Solve positive equations: few of them with bits that depend on the numbers alone."""
    if len(covariance) <= _MAX_ELIMINATED:
        return solve_positive(covariance, right)
    return np.asarray(np.linalg.solve(covariance, right))
