"""Solve one smooth lateral field a slice from the deformation between all pairs of a stack.

A pair measures the relative deformation of its two slices, not which of them is deformed. All
pairs are solved together for the smallest and smoothest fields that explain them: a slice's field
is a random one of zero mean with Matérn's covariance of smoothness 1, whose precision on a lattice
is sparse (Lindgren, Rue and Lindström, J. R. Stat. Soc. B 73, 423, 2011). Variance and length are
those that the pairs found. So nothing adds up along the stack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from linumpy.core.robust import robust_spread
from linumpy.geometry.network import cauchy_weights
from linumpy.geometry.shift_field import ShiftField, lattice_weights

_ROUNDS = 8
_MIN_NOISE_UM = 0.5
_TOLERANCE = 1e-5
_MAX_STEPS = 2000


@dataclass(frozen=True)
class MatchedPlaces:
    """Places that show the same in two slices, in common positions.

    Attributes
    ----------
    pair
        Numbers of the fixed and of the moving slice.
    fixed_um, moving_um
        Where both are put by shift and rotation, float64 (n, 2).
    noise_um
        Standard error along one axis.
    """

    pair: tuple[int, int]
    fixed_um: np.ndarray
    moving_um: np.ndarray
    noise_um: float


@dataclass(frozen=True)
class DeformationSolution:
    """Fields of slices.

    Attributes
    ----------
    fields
        By number: what is added to a common position to find what belongs there in the rigidly
        placed slice, um. Slices without a pair have none.
    before_um, after_um
        What pairs of slices are off against each other without and with the fields, along one
        axis, root mean square, and by pair of numbers.
    error_um
        What fields solved without a quarter of the places are off at those, likewise. Fields follow
        the errors of the places that they are solved from: `after_um` does not tell those.
    """

    fields: Mapping[int, ShiftField]
    before_um: Mapping[tuple[int, int], float]
    after_um: Mapping[tuple[int, int], float]
    error_um: Mapping[tuple[int, int], float]


def solve_deformation(
    matches: Sequence[MatchedPlaces],
    corners_um: Mapping[int, np.ndarray],
    *,
    step_um: float,
    sigma_um: float,
    length_um: float,
) -> DeformationSolution:
    """Solve for the fields of all slices that pairs join.

    Parameters
    ----------
    matches
        From all pairs.
    corners_um
        By number of slice: common positions of its four corners, (4, 2).
    step_um
        Distance of nodes.
    sigma_um, length_um
        Standard deviation of a slice's field along one axis, and the length of its covariance.

    Returns
    -------
    Fields, with the shift and rotation that they have over their slices: without, neighbours would
    no longer match over their tissue, which is but a part of a slice.
    """
    numbers = sorted({n for match in matches for n in match.pair})
    if not numbers:
        return DeformationSolution({}, {}, {}, {})
    lattice = _Lattice.over(np.concatenate([corners_um[n] for n in numbers]), step_um)
    system = _System(matches, numbers, lattice, lattice.precision(sigma_um, length_um))
    values = np.zeros((len(numbers), lattice.size, 2))
    for _ in range(_ROUNDS):
        values = system.solve(values)
    errors = system.held_out_um(values)
    return DeformationSolution(
        {number: lattice.field(row) for number, row in zip(numbers, values, strict=True)},
        system.left_um(np.zeros_like(values)),
        system.left_um(values),
        errors,
    )


@dataclass(frozen=True)
class _Lattice:
    origin: tuple[float, float]
    step: tuple[float, float]
    shape: tuple[int, int]

    @classmethod
    def over(cls, points: np.ndarray, step_um: float) -> _Lattice:
        low = points.min(axis=0)
        counts = np.ceil((points.max(axis=0) - low) / step_um).astype(int) + 1
        origin = (float(low[0]), float(low[1]))
        return cls(origin, (step_um, step_um), (int(counts[0]), int(counts[1])))

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]

    def field(self, values: np.ndarray) -> ShiftField:
        return ShiftField(self.origin, self.step, values.T.reshape(2, *self.shape).copy())

    def precision(self, sigma: float, length: float) -> Any:
        """Return the precision matrix of a field at the nodes, sparse.

        With κ the inverse length and G the graph Laplacian of the lattice it is
        ``h²/(4πκ²σ²) · (κ² + G/h²)²``. At √2 over the length of a covariance of smoothness 3/2
        both fall off alike.
        """
        import scipy.sparse

        def chain(n: int) -> Any:
            degree = np.full(n, 2.0)
            degree[[0, -1]] = 1.0 if n > 1 else 0.0
            side = -np.ones(n - 1)
            return scipy.sparse.diags_array([side, degree, side], offsets=[-1, 0, 1])

        step, kappa = self.step[0], np.sqrt(2) / length
        laplacian = scipy.sparse.kronsum(chain(self.shape[1]), chain(self.shape[0]))
        root = scipy.sparse.identity(self.size) * kappa**2 + laplacian / step**2
        return (root @ root * (step**2 / (4 * np.pi * (kappa * sigma) ** 2))).tocsr()

    def design(self, points: np.ndarray) -> Any:
        """Return what values at the nodes make of points (n, 2), sparse (n, nodes)."""
        import scipy.sparse

        index, weight = lattice_weights(points, self.origin, self.step, self.shape)
        rows = np.repeat(np.arange(len(points)), index.shape[1])
        return scipy.sparse.csr_array(
            (weight.ravel(), (rows, index.ravel())), shape=(len(points), self.size)
        )


class _System:
    """Normal equations of all pairs and fields."""

    def __init__(
        self,
        matches: Sequence[MatchedPlaces],
        numbers: Sequence[int],
        lattice: _Lattice,
        precision: Any,
    ) -> None:
        import scipy.sparse

        self._matches, self._lattice = matches, lattice
        place = {number: n for n, number in enumerate(numbers)}
        self._pairs = [(place[match.pair[0]], place[match.pair[1]]) for match in matches]
        self._prior = scipy.sparse.block_diag([precision] * len(numbers), format="csr")

    def _designs(self, values: np.ndarray) -> tuple[list[Any], list[np.ndarray]]:
        """Return what pairs see of the fields, and what they measured of it.

        A place t of the tissue lies at t + u in a slice with field u: the fields count at t.
        """
        designs, measured = [], []
        for match, (fixed, _) in zip(self._matches, self._pairs, strict=True):
            here = match.fixed_um - self._lattice.field(values[fixed]).at(match.fixed_um)
            designs.append(self._lattice.design(here))
            measured.append(match.moving_um - match.fixed_um)
        return designs, measured

    def _left(
        self, designs: Sequence[Any], measured: Sequence[np.ndarray], values: np.ndarray
    ) -> list[np.ndarray]:
        return [
            error - design @ (values[moving] - values[fixed])
            for design, error, (fixed, moving) in zip(designs, measured, self._pairs, strict=True)
        ]

    def solve(self, values: np.ndarray, kept: Sequence[np.ndarray] | None = None) -> np.ndarray:
        """Return the next values at the nodes, (slices, nodes, 2), of values before.

        `kept` says of each pair which places count; None: all.
        """
        import scipy.sparse
        from scipy.sparse.linalg import LinearOperator, cg

        designs, measured = self._designs(values)
        left = self._left(designs, measured, values)
        n_slices, n_nodes = values.shape[:2]
        blocks: dict[tuple[int, int], Any] = {}
        right = np.zeros_like(values)
        for n, (design, error, pair) in enumerate(zip(designs, measured, self._pairs, strict=True)):
            weight = self._weight(n, left[n])
            weighted = design.T * (weight if kept is None else weight * kept[n])
            normal = weighted @ design
            for one, sign in zip(pair, (-1, 1), strict=True):
                right[one] += sign * (weighted @ error)
                for other, second in zip(pair, (-1, 1), strict=True):
                    blocks[one, other] = blocks.get((one, other), 0) + sign * second * normal
        table = [[blocks.get((i, j)) for j in range(n_slices)] for i in range(n_slices)]
        for i in range(n_slices):
            if table[i][i] is None:
                table[i][i] = scipy.sparse.csr_array((n_nodes, n_nodes))
        matrix = (scipy.sparse.block_array(table) + self._prior).tocsr()
        scale = 1 / matrix.diagonal()
        ease = LinearOperator(matrix.shape, matvec=lambda v: scale * v.ravel())
        solved = [
            cg(
                matrix,
                right[..., axis].ravel(),
                x0=values[..., axis].ravel(),
                rtol=_TOLERANCE,
                maxiter=_MAX_STEPS,
                M=ease,
            )[0]
            for axis in (0, 1)
        ]
        return np.stack(solved, axis=-1).reshape(values.shape)

    def _weight(self, n: int, rest: np.ndarray) -> np.ndarray:
        """Return the inverse variances of a pair's places by what is left of them."""
        # At first all of it is spread, and the fields stay smooth; wrong places then stand out.
        spread = max(robust_spread(rest), self._matches[n].noise_um, _MIN_NOISE_UM)
        return np.asarray(cauchy_weights(rest, spread) / spread**2)

    def held_out_um(self, values: np.ndarray) -> dict[tuple[int, int], float]:
        """Return what places are off that are predicted from the others; see `error_um`.

        Every other place along both axes is held out at once, so that those next to it remain.
        """
        designs, measured = self._designs(values)
        weights = [self._weight(n, r) for n, r in enumerate(self._left(designs, measured, values))]
        parts = [_every_other(match.fixed_um, self._lattice.step[0]) for match in self._matches]
        off = [np.zeros(part.shape) for part in parts]
        for held in range(4):
            others = self.solve(values, [part != held for part in parts])
            for square, part, rest in zip(
                off, parts, self._left(designs, measured, others), strict=True
            ):
                square[part == held] = np.mean(rest[part == held] ** 2, axis=1)
        return {
            match.pair: float(np.sqrt(np.average(square, weights=weight)))
            for match, square, weight in zip(self._matches, off, weights, strict=True)
        }

    def left_um(self, values: np.ndarray) -> dict[tuple[int, int], float]:
        """Return the root mean square of what each pair is off, along one axis."""
        left = self._left(*self._designs(values), values)
        return {
            match.pair: float(np.sqrt(np.mean(rest**2)))
            for match, rest in zip(self._matches, left, strict=True)
        }


def _every_other(places_um: np.ndarray, step_um: float) -> np.ndarray:
    """Part places (n, 2), at least a step apart, in four, so that neighbours differ."""
    from scipy.spatial import cKDTree

    nearest = cKDTree(places_um).query(places_um, k=2)[0][:, 1]
    cell = np.rint(places_um / max(step_um, float(np.median(nearest)))).astype(int) % 2
    return np.asarray(2 * cell[:, 0] + cell[:, 1])
