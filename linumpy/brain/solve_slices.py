"""Solve the positions of all slices from pairs and motor positions.

Pairs are precise but some are wrong, and their small errors add up along a chain; motors are
rough, and hold their zero for a while. So all are solved at once. First the pairs alone, by least
absolute deviations, which a minority of wrong ones cannot bend. What the motors then seem to be off
by is cut into stretches where their zero held; at last pairs and motors, each stretch with a zero
of its own, by least squares from which outliers of both are weighed out. How rough both are is the
likeliest of what they say together: slices that match weakly tell by their loops how far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from linumpy.core.robust import robust_spread
from linumpy.geometry.least_squares import linear_combination
from linumpy.geometry.network import (
    Network,
    borne_out,
    cauchy_weights,
    hardly_held,
    least_deviations,
    pair_noise,
)
from linumpy.geometry.pair_graph import connected_components

_ROUNDS_ALONE = 3
_FINAL_ROUNDS = 12
_WINDOW = 5
_JUMP_SIGMA = 4.0
_FREE_ZERO = 1e-12
_WEAK_PRIOR = 30.0
_UNLIKELY = 5.0
_LEAST_LIKELY = 1e-3
_MOST_WRONG = 0.5
_CLEARLY_GOOD = 0.5
_LEAST_VALUE = 1e-6
_STEPS = 2.0 ** (np.arange(41) / 4)


@dataclass(frozen=True)
class SliceSolution:
    """Deviations of slices from what the motors say.

    Attributes
    ----------
    deviation
        Shape (n_slices, k).
    residual
        Shape (n_pairs, k): measured minus solved differences.
    pair_sigma
        Standard deviation of a pair of median trust.
    weight
        Shape (n_pairs,): 1 for a pair that agrees with the others, towards 0 for one that does
        not.
    jumps
        Slices, by number, before which the level of the deviations changed: the motors are believed
        about differences within a stretch, not from one to the next.
    lost_zero
        Those of them that neither roughness nor a drift of the stage explains.
    """

    deviation: np.ndarray
    residual: np.ndarray
    pair_sigma: float
    weight: np.ndarray
    jumps: tuple[int, ...]
    lost_zero: tuple[int, ...] = ()


def solve_slices(
    n_slices: int,
    pairs: Sequence[tuple[int, int]],
    errors: np.ndarray,
    trust: np.ndarray,
    *,
    min_pair_sigma: float,
    min_prior_sigma: float,
    stated_pair_sigma: float | None = None,
    clear: np.ndarray | None = None,
    drifts: bool = True,
) -> SliceSolution:
    """Solve for the deviations of slices.

    Parameters
    ----------
    n_slices
        Number of slices, in the order in which they were imaged.
    pairs
        Slices (a, b) of each measurement.
    errors
        Shape (n_pairs, k): measured minus reported difference, b minus a.
    trust
        Shape (n_pairs,): relative weight of each measurement, as an inverse variance.
    min_pair_sigma, min_prior_sigma
        Lower bound of the errors of pairs and of motors.
    stated_pair_sigma
        What pairs say that they are off by; by default the lower bound. It counts as much as one
        loop, so that pairs which close none are believed.
    clear
        Shape (n_pairs,): which pairs are believed though no others confirm them; by default none.
    drifts
        Whether what the motors are off by may drift: then every change of its level begins a
        stretch, else those alone that are no drift.
    """
    k = errors.shape[1]
    if not len(pairs):
        zeros = np.zeros((n_slices, k))
        return SliceSolution(zeros, np.zeros((0, k)), min_pair_sigma, np.zeros(0), ())
    network = Network(n_slices, pairs)
    trust = trust / (np.median(trust[trust > 0]) if trust.any() else 1.0)
    spread = max(robust_spread(errors), min_prior_sigma)
    # Of pairs that contradict each other, those are right that need less of the motors; what
    # several say alike is right whatever it needs.
    likely = cauchy_weights(errors, _UNLIKELY / 3 * spread)
    free = np.full(n_slices, hardly_held(min_pair_sigma))
    heard = trust * np.maximum(likely, _LEAST_LIKELY)
    sure = borne_out(network, pairs, errors, free, min_pair_sigma, heard)
    if clear is not None:
        sure |= clear
    largest = float(np.linalg.norm(errors[sure], axis=1).max(initial=spread))
    if largest <= _UNLIKELY * spread:
        largest = spread
    weak = np.full(n_slices, 1 / (_WEAK_PRIOR * largest) ** 2)
    trusted = trust * np.where(sure, 1.0, likely)
    spreads = _Spreads(
        pair=min_pair_sigma,
        motor=min_prior_sigma,
        least_pair=min_pair_sigma,
        least_motor=min_prior_sigma,
        stated_pair=max(min_pair_sigma, stated_pair_sigma or 0.0),
        # Pairs are no worse than pairs and motors together.
        most_pair=max(min_pair_sigma, robust_spread(errors)),
    )
    alone, spreads = _pairs_alone(network, pairs, errors, trust, trusted, weak, spreads)
    group = connected_components(n_slices, pairs)
    held = group >= 0
    members = [np.flatnonzero(group == n) for n in range(int(group.max()) + 1)]
    # Steps from slice to slice measure how rough the motors are, whatever drifts slowly.
    steps = np.concatenate([np.diff(alone[m], axis=0) for m in members])
    spreads = replace(spreads, motor=max(robust_spread(steps) / np.sqrt(2), min_prior_sigma))
    # Of the pairs' variances the slices keep as much as pairs are independent (Foster, 1949).
    n_free = sum(len(m) - 1 for m in members)
    step_sigma = spreads.pair * np.sqrt(n_free / len(pairs))
    found = [(m, _Levels(alone[m], spreads.motor, step_sigma)) for m in members]
    lost_zero = tuple(sorted(int(m[at]) for m, levels in found for at in levels.lost_zero()))
    jumps = lost_zero
    if drifts:
        jumps = tuple(sorted(int(m[at]) for m, levels in found for at in levels.jumps()))
    solved = _with_motors(pairs, errors, trust, alone, held, jumps, spreads)
    return replace(solved, lost_zero=lost_zero)


@dataclass(frozen=True)
class _Spreads:
    """Standard deviations of pairs of median trust and of motors, and between what they lie."""

    pair: float
    motor: float
    least_pair: float
    least_motor: float
    stated_pair: float
    most_pair: float


def _pairs_alone(
    network: Network,
    pairs: Sequence[tuple[int, int]],
    errors: np.ndarray,
    trust: np.ndarray,
    trusted: np.ndarray,
    weak: np.ndarray,
    spreads: _Spreads,
) -> tuple[np.ndarray, _Spreads]:
    """Return what pairs alone say of the deviations, with the pairs' spread.

    Motors may not pull yet: what they take from the pairs would count as the pairs' error, and so
    let them pull more. Few loops cannot tell pairs that are all rough from some that are wrong, so
    half of the loops have to be right.
    """
    alone = least_deviations(network, errors, weak, spreads.least_pair, trusted)
    for _ in range(_ROUNDS_ALONE):
        left = np.sqrt(trust)[:, None] * (errors - network.differences(alone))
        noise = pair_noise(
            network.n_items, pairs, left, spreads.stated_pair, most_wrong=_MOST_WRONG
        )
        spreads = replace(
            spreads, pair=float(np.clip(noise, spreads.least_pair, spreads.most_pair))
        )
        weight = trusted * cauchy_weights(left, spreads.pair)
        alone = network.solve(weight / spreads.pair**2, weak, errors)
    return alone, spreads


class _Levels:
    """Lasting changes of the level of deviations of slices joined by pairs.

    Compared are medians over some slices before and after: one slice that is off is no jump.
    Between slices that no pair joins nothing is known but that the motors held.

    Parameters
    ----------
    values
        Shape (n, k).
    sigma
        Roughness of the motors, by the steps between values.
    step_sigma
        What a pair is off by: its errors add up along the slices, and look like a drift.
    """

    def __init__(self, values: np.ndarray, sigma: float, step_sigma: float) -> None:
        self._sigma, self._n, steps = sigma, len(values), np.diff(values, axis=0)
        self._steps, self._n_known = np.linalg.norm(steps, axis=1), max(1, steps.size)
        self._changes = np.zeros(values.shape)
        for at in range(1, self._n):
            before, after = values[max(0, at - _WINDOW) : at], values[at : at + _WINDOW]
            if min(len(before), len(after)) == 1 and self._n > 3:
                # A slice at the end that is off is as likely to be off alone.
                continue
            change = np.median(after, axis=0) - np.median(before, axis=0)
            rough = sigma**2 * (1 / len(before) + 1 / len(after))
            walk = step_sigma**2 * (1 + _walked(len(before)) + _walked(len(after)))
            self._changes[at] = change / np.sqrt(rough + walk)

    def jumps(self) -> list[int]:
        """Return the slices before which the level changes; a drift is cut into stretches."""
        scores = np.linalg.norm(self._changes, axis=1)
        jumps: list[int] = []
        while scores.max() >= _JUMP_SIGMA:
            at = int(scores.argmax())
            # The medians change about the jump as well: it is where the step is.
            near = np.arange(max(1, at - 2), min(self._n, at + 3))
            at = int(near[self._steps[near - 1].argmax()])
            if at in jumps:
                break
            jumps.append(at)
            scores[max(0, at - _WINDOW) : at + _WINDOW + 1] = 0
        return jumps

    def lost_zero(self) -> list[int]:
        """Return those jumps that stand out from the changes elsewhere, or from the other steps.

        Few steps hardly tell how rough the motors are (Student's distribution).
        """
        from scipy.special import ndtr, stdtrit

        limit = float(stdtrit(self._n_known, ndtr(_JUMP_SIGMA)))
        inner = np.arange(2, self._n - 1)

        def stands_out(at: int) -> bool:
            elsewhere = self._changes[inner[abs(inner - at) > _WINDOW]]
            change = np.linalg.norm(self._changes[max(1, at - 2) : at + 3], axis=1).max()
            if len(elsewhere) > _WINDOW:
                return bool(change >= limit * max(1.0, robust_spread(elsewhere)))
            return bool(change >= limit and self._steps[at - 1] >= limit * np.sqrt(2) * self._sigma)

        return [at for at in self.jumps() if stands_out(at)]


def _walked(n: int) -> float:
    """Return the variance of the mean of a random walk of n values with steps of variance 1."""
    return (n - 1) * (2 * n - 1) / (6 * n)


def _with_motors(
    pairs: Sequence[tuple[int, int]],
    errors: np.ndarray,
    trust: np.ndarray,
    start: np.ndarray,
    held: np.ndarray,
    jumps: tuple[int, ...],
    spreads: _Spreads,
) -> SliceSolution:
    """Solve for all, pairs and motors, with the likeliest spreads of both."""
    n_slices = len(start)
    stretch = np.searchsorted(np.array(jumps, int), np.arange(n_slices), side="right")
    levels = np.eye(len(jumps) + 1)[stretch]
    # The unknowns: what each motor is off by about the zero of its stretch, and the zeros.
    network = Network(n_slices, pairs, levels)
    # One zero is as good as any other: the first stretch keeps its own.
    anchor = np.full(len(jumps) + 1, _FREE_ZERO)
    anchor[0] = 1.0
    zeros = _medians(start, stretch, held)
    unknown = np.vstack([start - zeros[stretch], zeros])
    weights = _weights(network, errors, trust, unknown, spreads)
    spreads = _likeliest(network, levels, errors, trust, weights, spreads)
    for _ in range(_FINAL_ROUNDS):
        pair, motor = _weights(network, errors, trust, unknown, spreads)
        prior = np.concatenate([motor, anchor]) / spreads.motor**2
        unknown = network.solve(trust * pair / spreads.pair**2, prior, errors)
    deviation = unknown[:n_slices] + linear_combination(levels, unknown[n_slices:])
    residual = errors - network.differences(unknown)
    weight, _ = _weights(network, errors, trust, unknown, spreads)
    return SliceSolution(deviation, residual, spreads.pair, weight, jumps)


def _weights(
    network: Network,
    errors: np.ndarray,
    trust: np.ndarray,
    unknown: np.ndarray,
    spreads: _Spreads,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights of pairs and of motors by what they are off by."""
    left = np.sqrt(trust)[:, None] * (errors - network.differences(unknown))
    pair = cauchy_weights(left, spreads.pair)
    return pair, cauchy_weights(unknown[: network.n_items], spreads.motor)


def _likeliest(
    network: Network,
    levels: np.ndarray,
    errors: np.ndarray,
    trust: np.ndarray,
    weights: tuple[np.ndarray, np.ndarray],
    spreads: _Spreads,
) -> _Spreads:
    """Return the likeliest standard deviations of pairs and of motors.

    The likelihood is the restricted one, in which zeros that are free count as lost (Patterson and
    Thompson, Biometrika 58, 545, 1971). Pairs are expected to be off by what they state, as if one
    loop more of them said so. Steps of a sixth are finer than what any data tells.

    Parameters
    ----------
    network, levels
        Equations, and the zero that each slice's motor counts from, shape (n_slices, n_stretches).
    weights
        Of pairs, which are used where they are as likely right as not, and of motors.
    spreads
        Between what the standard deviations lie.
    """
    good = weights[0] >= _CLEARLY_GOOD
    root = np.sqrt(trust[good])[:, None]
    errors, k = root * errors[good], errors.shape[1]
    rows = np.arange(len(errors))
    design = np.zeros((len(errors), len(levels)))
    design[rows, network.second[good]] = root[:, 0]
    design[rows, network.first[good]] = -root[:, 0]
    free, values, _ = np.linalg.svd(design @ levels, full_matrices=False)
    free = free[:, values > _LEAST_VALUE]
    errors = errors - free @ (free.T @ errors)
    motors = design / np.sqrt(weights[1])
    told, values, _ = np.linalg.svd(motors - free @ (free.T @ motors), full_matrices=False)
    known = values > _LEAST_VALUE
    squares = ((told[:, known].T @ errors) ** 2).sum(axis=1)
    # What pairs say against each other is of their own errors alone.
    n_left = len(errors) - free.shape[1] - int(known.sum()) + 1
    left = (errors**2).sum() - squares.sum() + k * spreads.stated_pair**2
    pair, motor = spreads.least_pair * _STEPS, spreads.least_motor * _STEPS
    pair = pair[pair <= spreads.most_pair]
    variance = pair[:, None, None] ** 2 + motor[:, None] ** 2 * values[known] ** 2
    cost = (k * np.log(variance) + squares / variance).sum(axis=-1)
    cost += (k * n_left * np.log(pair**2) + left / pair**2)[:, None]
    best = np.unravel_index(cost.argmin(), cost.shape)
    return replace(spreads, pair=float(pair[best[0]]), motor=float(motor[best[1]]))


def _medians(deviation: np.ndarray, stretch: np.ndarray, held: np.ndarray) -> np.ndarray:
    out = np.zeros((int(stretch.max()) + 1, deviation.shape[1]))
    for n in range(len(out)):
        members = held & (stretch == n)
        if members.any():
            out[n] = np.median(deviation[members], axis=0)
    return out
