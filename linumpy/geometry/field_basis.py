"""The terms of a smooth field over a tile: a polynomial, and cosines of lines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_POLYNOMIAL_WAVES = 3
"""Half waves a tile that a polynomial of degree 6 holds to a few percent."""


@dataclass(frozen=True)
class LineTerms:
    """Cosines along one axis, beside the polynomial: long waves of the gain of lines.

    Attributes
    ----------
    axis
        0 or 1 of a map.
    half_waves
        The most half waves a tile; those that the polynomial holds are left out.
    sigma
        Standard deviation of the orthonormal coefficients about 0.
    """

    axis: int
    half_waves: int
    sigma: float

    def waves(self) -> np.ndarray:
        """Return the half waves a tile of the terms."""
        return np.arange(_POLYNOMIAL_WAVES + 1, self.half_waves + 1)

    def evaluate(self, shape: tuple[int, int], u1: np.ndarray, u2: np.ndarray) -> np.ndarray:
        """Evaluate the terms as `basis` does."""
        n = shape[self.axis]
        phase = (np.pi / n) * ((u1, u2)[self.axis] + 0.5)
        return np.stack([np.sqrt(2 / n) * np.cos(k * phase) for k in self.waves()], axis=-1)


@dataclass(frozen=True)
class FieldBasis:
    """The terms of a field: a polynomial, then cosines of lines.

    Attributes
    ----------
    shape
        Pixels of a tile.
    degree
        Highest degree of the polynomial.
    lines
        The cosines.
    """

    shape: tuple[int, int]
    degree: int
    lines: tuple[LineTerms, ...] = ()

    def evaluate(self, u1: np.ndarray, u2: np.ndarray) -> np.ndarray:
        """Evaluate all terms at pixel positions, as `basis` does."""
        polynomial = basis(self.shape, u1, u2, self.degree)
        if not self.lines:
            return polynomial
        waves = [line.evaluate(self.shape, u1, u2) for line in self.lines]
        return np.concatenate([polynomial, *waves], axis=-1)

    def prior(self, size: float) -> np.ndarray:
        """Return the inverse variances of the coefficients of a field of this size."""
        smooth = (term_degrees(self.degree) ** 2 / (2 * size)) ** 2
        waves = [np.full(len(line.waves()), line.sigma**-2.0) for line in self.lines]
        return np.diag(np.concatenate([smooth, *waves]))


def basis(shape: tuple[int, int], u1: np.ndarray, u2: np.ndarray, degree: int) -> np.ndarray:
    """Evaluate the field's basis at pixel positions.

    Parameters
    ----------
    shape
        Pixels of a tile.
    u1, u2
        Pixel-centre coordinates along axis 1 and 2, any one shape.
    degree
        Highest degree of both axes together.

    Returns
    -------
    Array of `u1`'s shape with one further axis: products of Legendre polynomials without their
    constant, in the order of `term_degrees`.
    """
    from numpy.polynomial.legendre import legvander

    one = legvander(2 * (u1 + 0.5) / shape[0] - 1, degree)
    two = legvander(2 * (u2 + 0.5) / shape[1] - 1, degree)
    return np.stack([one[..., k1] * two[..., k2] for k1, k2 in _terms(degree)], axis=-1)


def _terms(degree: int) -> list[tuple[int, int]]:
    pairs = [(k1, total - k1) for total in range(1, degree + 1) for k1 in range(total + 1)]
    return pairs


def term_degrees(degree: int) -> np.ndarray:
    """Return the total degree of each basis term."""
    return np.array([k1 + k2 for k1, k2 in _terms(degree)])
