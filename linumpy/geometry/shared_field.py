"""Fit a smooth field that all tiles share, separately from the tissue below it.

Focal curvature (added to depths) and the logarithm of the flat field (added to logarithms of
brightness) obey the same model. A tile's map ``m_i`` at its pixel ``x`` is

    m_i(x) = f(x) + g(p_i + x) + l_i + noise

with the shared field ``f``, the tissue ``g`` at stage position ``p_i + x`` and a level ``l_i`` of
the tile's own.
Two sources determine ``f``:

* **overlaps**: where tiles i and j show the same tissue, ``g`` cancels in ``m_i − m_j``. What is
  left, ``f(x) − f(x − s)`` beside the levels, fixes the slopes of the field near the tile borders;
* **tiles**: each tile fitted alone answers ``f`` plus its own tissue; over many tiles the robust
  mean of the answers tends to ``f`` (`linumpy.geometry.tile_fits`).

Both are weighed by how well they are seen to agree among themselves. Tiles are also weighed by how
well they agree with overlaps: their scatter does not show what tissue has in common in all of them,
as where a brain lies in the middle of four tiles. The field is a polynomial,
as optical aberrations and vignetting are, with a prior that its high degrees are small. How well
``g`` cancels depends on knowing where tiles lie: positions should be registered ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linumpy.core.device import Array, to_host
from linumpy.core.errors import InputError
from linumpy.core.robust import MEDIAN_TO_SIGMA, tukey
from linumpy.geometry.field_basis import FieldBasis, LineTerms, term_degrees
from linumpy.geometry.least_squares import (
    column_products,
    invert_positive,
    linear_combination,
    normal_equations,
    solve_positive,
)
from linumpy.geometry.neighbours import close_pairs
from linumpy.geometry.tile_fits import TileEvidence, fit_tiles, robust_sigma
from linumpy.geometry.tile_levels import TileLevels

_ITERATIONS = 20
_SMALL_STEP = 3e-3
"""Of a standard error; steps become smaller by a factor of four to seven each time."""
_EXCESS = np.geomspace(1, 1e4, 41)
"""Factors of the tiles' variance that are compared; with the last they count for nothing."""


@dataclass(frozen=True)
class TileMap:
    """A tile's map on cells of `cell` pixels.

    Attributes
    ----------
    values
        Shape (cells along axis 1, cells along axis 2); NaN where the tile says nothing.
    group
        Tiles of one group (a slice) may overlap each other.
    corner_px
        Position of the tile's low corner in pixels.
    """

    values: np.ndarray
    group: int
    corner_px: tuple[float, float]

    @property
    def is_known(self) -> bool:
        """Whether more than half of the tile says something."""
        return bool(np.isfinite(self.values).mean() > 0.5)


@dataclass(frozen=True)
class SharedField:
    """The fitted field and what it rests on.

    Attributes
    ----------
    values
        Shape of a tile, mean 0.
    n_tiles, n_pairs
        Maps and overlapping pairs used.
    overlap_residual, tile_residual
        Robust spread of the overlap differences and of the maps about the fit.
    error
        Standard error of `values`, RMS over a tile; None of a single tile.
    """

    values: np.ndarray
    n_tiles: int
    n_pairs: int
    overlap_residual: float
    tile_residual: float
    error: float | None = None


def bin_map(values: Array, cell: int) -> np.ndarray:
    """Reduce a map to medians over square cells of `cell` pixels; a rest at the end is dropped.

    A cell of which less than half is finite becomes NaN.

    Parameters
    ----------
    values
        Map over axis 1 and axis 2, NumPy or CuPy.

    Returns
    -------
    float64 array on the host: loading a GPU's library for sorting takes longer than sorting the
    maps of a whole slice here.
    """
    host = to_host(values)
    n1, n2 = host.shape[0] // cell, host.shape[1] // cell
    cells = host[: n1 * cell, : n2 * cell].reshape(n1, cell, n2, cell)
    # Numbers come before NaN.
    pixels = np.sort(cells.transpose(0, 2, 1, 3).reshape(n1, n2, -1), axis=-1)
    count = cell * cell - np.isnan(pixels).sum(axis=-1)

    def at(place: np.ndarray) -> np.ndarray:
        inside = np.clip(place, 0, cell * cell - 1)[..., None]
        return np.take_along_axis(pixels, inside, axis=-1)[..., 0].astype(np.float64)

    median = (at((count - 1) // 2) + at(count // 2)) / 2
    good = 2 * np.isfinite(pixels).sum(axis=-1) >= cell * cell
    return np.where(good, median, np.nan)


def fit_shared_field(
    maps: Sequence[TileMap],
    tile_shape: tuple[int, int],
    *,
    cell: int,
    degree: int = 6,
    lines: Sequence[LineTerms] = (),
) -> SharedField:
    """Fit the field that all maps share.

    Parameters
    ----------
    maps
        Binned maps of tiles, with positions; at least two that say something. A single map tells
        no field from its tissue: then the field is 0.
    tile_shape
        Pixels of a tile along axis 1 and 2.
    cell
        Pixels a cell side, as given to `bin_map`.
    degree
        Highest degree of the polynomial.
    lines
        Terms beside the polynomial.

    Raises
    ------
    InputError
        When fewer than two of several maps have enough finite cells.
    """
    if len(maps) == 1:
        return SharedField(np.zeros(tile_shape), 1, 0, 0.0, 0.0)
    kept = [m for m in maps if m.is_known]
    if len(kept) < 2:
        raise InputError(
            f"{len(kept)} of {len(maps)} tiles show enough signal; "
            "expected at least 2 to learn from"
        )
    centres = [(np.arange(n) + 0.5) * cell - 0.5 for n in kept[0].values.shape]
    u1, u2 = np.meshgrid(*centres, indexing="ij")
    model = FieldBasis(tile_shape, degree, tuple(lines))
    terms = model.evaluate(u1, u2)
    tiles = fit_tiles([m.values for m in kept], terms, n_groups=len({m.group for m in kept}))
    rows, differences, pair_of_row, pairs = _overlap_equations(kept, terms, model, cell)
    if len(differences):
        n_pairs = len(pairs)
        size = max(float(linear_combination(terms, tiles.mean).std()), robust_sigma(differences))
        overlaps = _Overlaps(rows, differences, pair_of_row, pairs, model.prior(size))
        theta, overlap_sigma, information = overlaps.with_tiles(tiles, len(term_degrees(degree)))
    else:
        theta, information = tiles.mean, invert_positive(tiles.covariance)
        overlap_sigma, n_pairs = 0.0, 0
    centred = (terms - terms.mean(axis=(0, 1))).reshape(-1, len(theta))
    spread = column_products(centred, centred) / len(centred)
    variance = float((solve_positive(information, np.eye(len(theta))) * spread).sum())
    full = np.meshgrid(*(np.arange(n, dtype=float) for n in tile_shape), indexing="ij")
    field = linear_combination(model.evaluate(full[0], full[1]), theta)
    return SharedField(
        values=field - field.mean(),
        n_tiles=len(kept),
        n_pairs=n_pairs,
        overlap_residual=overlap_sigma,
        tile_residual=tiles.residual,
        error=math.sqrt(variance),
    )


def _overlap_equations(
    maps: Sequence[TileMap], terms: np.ndarray, model: FieldBasis, cell: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return basis differences, map differences and pair number of every cell in an overlap.

    And the tiles of each pair.
    """
    rows, differences, pair_of_row = [], [], []
    pairs: list[tuple[int, int]] = []
    corners = np.array([m.corner_px for m in maps]).reshape(-1, 2)
    for a, b in close_pairs(corners, model.shape).tolist():
        first, second = maps[a], maps[b]
        if first.group != second.group:
            continue
        shift = np.subtract(second.corner_px, first.corner_px) / cell
        found = _overlap_cells(first.values, second.values, shift)
        if found is None:
            continue
        at_first, at_second, difference = found
        centre = [(c + 0.5) * cell - 0.5 for c in at_first]
        good = np.isfinite(difference)
        if good.sum() < 4:
            continue
        rows.append(model.evaluate(centre[0][good], centre[1][good]) - terms[at_second][good])
        differences.append(difference[good])
        pair_of_row.append(np.full(len(rows[-1]), len(pairs)))
        pairs.append((a, b))
    if not rows:
        return np.zeros((0, 0)), np.zeros(0), np.zeros(0, dtype=int), np.zeros((0, 2), dtype=int)
    return (
        np.concatenate(rows),
        np.concatenate(differences),
        np.concatenate(pair_of_row),
        np.array(pairs),
    )


def _overlap_cells(
    first: np.ndarray, second: np.ndarray, shift: np.ndarray
) -> tuple[list[np.ndarray], tuple[slice, slice], np.ndarray] | None:
    """Compare each cell of `second` with the interpolated value of `first` at the same tissue.

    Returns
    -------
    Where they lie in `first`, in cells along either axis; which cells of `second` they are; and the
    differences. None where they share less than two cells along an axis.
    """
    shape = first.shape
    inside = [
        slice(max(0, math.ceil(-s)), min(n - 1, math.floor(n - 1 - s)) + 1)
        for n, s in zip(shape, shift.tolist(), strict=True)
    ]
    if any(part.stop - part.start < 2 for part in inside):
        return None
    at_second = inside[0], inside[1]
    c1, c2 = np.mgrid[at_second]
    x1, x2 = c1 + shift[0], c2 + shift[1]
    l1, l2 = np.minimum(x1.astype(int), shape[0] - 2), np.minimum(x2.astype(int), shape[1] - 2)
    f1, f2 = x1 - l1, x2 - l2
    value = (
        (1 - f1) * (1 - f2) * first[l1, l2]
        + (1 - f1) * f2 * first[l1, l2 + 1]
        + f1 * (1 - f2) * first[l1 + 1, l2]
        + f1 * f2 * first[l1 + 1, l2 + 1]
    )
    return [x1, x2], at_second, value - second[at_second]


@dataclass(frozen=True)
class _Overlaps:
    """Equations of all overlaps, and the prior.

    Attributes
    ----------
    rows, differences, pair_of_row, pairs
        From `_overlap_equations`.
    prior
        Inverse covariance of the coefficients beforehand.
    """

    rows: np.ndarray
    differences: np.ndarray
    pair_of_row: np.ndarray
    pairs: np.ndarray
    prior: np.ndarray

    def with_tiles(
        self, tiles: TileEvidence, n_polynomial: int
    ) -> tuple[np.ndarray, float, np.ndarray]:
        """Solve for the field from overlaps and tiles together.

        The covariance of the tiles' polynomial is enlarged by the factor, at least 1, under which
        their mean and the overlaps are likeliest (variance components: Patterson and Thompson,
        Biometrika 58, 545, 1971). It is found first with tiles that hardly count: where they count
        by their scatter, overlaps that all contradict them seem to err by as much, and a tilt that
        all faces have in common is the field's. Robust weights change with it; from then on it only
        grows.

        Returns
        -------
        The coefficients, the spread of the differences, and the coefficients' information matrix.
        """
        excess, settled = float(_EXCESS[-1]), False
        while True:
            larger = np.ones(len(tiles.mean))
            larger[:n_polynomial] = math.sqrt(excess)
            information = invert_positive(tiles.covariance * larger[:, None] * larger)
            theta, sigma, overlaps, share = self._solve(tiles.mean, information)
            # The tiles' mean less what overlaps and prior say without it, by the same equations.
            left = tiles.mean - theta
            left = left + solve_positive(
                overlaps + self.prior, linear_combination(information, left)
            )
            alone = invert_positive(share * overlaps + self.prior)
            part = slice(0, n_polynomial)
            found = _likeliest_excess(left[part], tiles.covariance[part, part], alone[part, part])
            if settled and found <= excess:
                return theta, sigma, share * overlaps + information + self.prior
            excess, settled = found, True

    def _solve(
        self, tile_mean: np.ndarray, tile_information: np.ndarray
    ) -> tuple[np.ndarray, float, np.ndarray, float]:
        """Solve robustly.

        Returns
        -------
        The coefficients, the spread of the differences, the weights that overlaps had as an
        information matrix, and its share that is information: weights are for the usual pair, and
        pairs that err more take some away.
        """
        theta = tile_mean
        of_tiles = linear_combination(tile_information, tile_mean)
        levels = TileLevels(self.pairs)
        for _ in range(_ITERATIONS):
            residual = self.differences - linear_combination(self.rows, theta)
            residual = residual - levels.of_pairs[self.pair_of_row]
            sigma = robust_sigma(residual)
            weight = tukey(residual, sigma)
            # Neighbouring cells of a pair err together (the pair's true shift is not the nominal
            # one): the scatter of pair means says how many independent cells a pair is worth.
            sums = np.bincount(self.pair_of_row, weight * residual)
            count = np.bincount(self.pair_of_row, weight**2)
            expected = sigma**2 * np.maximum(count, 1e-9) * levels.left
            design_effect = max(1.0, MEDIAN_TO_SIGMA**2 * float(np.median(sums**2 / expected)))
            weight = weight / (sigma**2 * design_effect)
            of_overlaps, right = normal_equations(self.rows, self.differences, weight)
            taken = levels.eliminate(self._sums(weight), np.bincount(self.pair_of_row, weight))
            of_overlaps, right = of_overlaps - taken[0], right - taken[1]
            normal = of_overlaps + tile_information + self.prior
            step = solve_positive(normal, right + of_tiles) - theta
            theta = theta + step
            levels.solve(theta, invert_positive(normal))
            size = float((step * linear_combination(normal, step)).sum())
            if levels.settled and size < _SMALL_STEP**2 * len(step):
                break
        all_pairs = float((sums**2).sum() / expected.sum())
        return theta, sigma, of_overlaps, min(1.0, design_effect / max(all_pairs, 1.0))

    def _sums(self, weight: np.ndarray) -> np.ndarray:
        """Return weighted sums over each pair of all columns of `rows` and of `differences`."""
        columns = (*self.rows.T, self.differences)
        return np.array([np.bincount(self.pair_of_row, weight * c) for c in columns]).T


def _likeliest_excess(difference: np.ndarray, own: np.ndarray, other: np.ndarray) -> float:
    """Return the factor of `own` by which a difference of covariance own + other is likeliest."""
    best, found = -np.inf, 1.0
    for excess in _EXCESS.tolist():
        factor = np.linalg.cholesky(excess * own + other)
        white = np.linalg.solve(factor, difference)
        likelihood = -float(np.log(factor.diagonal()).sum() + 0.5 * (white**2).sum())
        if likelihood > best:
            best, found = likelihood, excess
    return found
