"""What all slices of an acquisition have in common, and how sure that is by how they scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from linumpy.core.robust import MEDIAN_TO_SIGMA

SURE = 5
"""Standard errors: of some hundred slices of nine tiles (six degrees of freedom) chance makes one,
of larger ones none."""

_FEWEST_TILES = 4
_FEWEST_SLICES = 3
_FEWEST_IN_LINE = 12
_FACE_PX = 3
"""Planes below the face that hold some water, as the faces of A-lines are not known to a voxel."""


def linear_difference(models: Sequence[Any]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the mean affine of stage and pixels minus 1, and its standard errors by chance.

    Slices share one stage and one scan: what these have in common is no chance. Errors are enlarged
    by how slices scatter (Birge, Phys. Rev. 40, 207, 1932).

    Parameters
    ----------
    models
        `TileRegistration` of slices.

    Returns
    -------
    (2, 2) each. None where too few tiles that pairs hold, or none beside each other along an axis,
    tell.
    """
    values, levers, squares, free = [], [], np.zeros(2), 0
    for model in models:
        held = [t for t in model.tiles if t.component >= 0]
        if len(held) < _FEWEST_TILES:
            continue
        stage = np.array([t.stage_corner_um for t in held], float)
        lever = ((stage - stage.mean(axis=0)) ** 2).sum(axis=0)
        if not lever.all():
            continue
        affine = np.asarray(model.stage_affine, float)
        left = np.array([t.corner_um for t in held], float) - stage @ affine.T
        # An offset and two slopes an axis are fitted.
        squares += ((left - left.mean(axis=0)) ** 2).sum(axis=0)
        free += len(held) - 3
        values.append(affine - np.eye(2))
        levers.append(lever)
    if not values:
        return None
    weight = np.array(levers)[:, None, :]
    mean = (weight * values).sum(axis=0) / weight.sum(axis=0)
    variance = np.maximum(squares / free, 1e-12)[:, None]
    scatter = (weight * (values - mean) ** 2).sum(axis=0) / max(len(values) - 1, 1)
    return mean, np.sqrt(np.maximum(scatter, variance) / weight.sum(axis=0))


def depth_remainder(tissue: Sequence[Sequence[float]]) -> tuple[np.ndarray, float] | None:
    """Return how brightness along depth departs from a line in all slices alike.

    Anatomy lies elsewhere along depth in each slice. What the planes of all slices share comes from
    the imaging: fringes, noise that depends on depth, a response of another form. A line is taken
    from each slice, as the brain's own change along depth looks like one.

    Parameters
    ----------
    tissue
        Of each slice the median amplitude of tissue in its planes from the face on, 0 where it is
        not known.

    Returns
    -------
    The median over slices of ln amplitude less a line, float64 by plane, and its standard error.
    NaN at the face and where no more than half of the slices tell. None where fewer than three
    slices tell, or no plane of more than half of them.
    """
    known = [np.asarray(planes, float) for planes in tissue]
    known = [planes for planes in known if np.count_nonzero(planes[_FACE_PX:] > 0) > 2]
    if len(known) < _FEWEST_SLICES:
        return None
    rest = np.full((len(known), max(map(len, known))), np.nan)
    for row, planes in zip(rest, known, strict=True):
        seen = _FACE_PX + np.flatnonzero(planes[_FACE_PX:] > 0)
        logarithm = np.log(planes[seen])
        row[seen] = logarithm - np.polyval(np.polyfit(seen, logarithm, 1), seen)
    told = 2 * np.isfinite(rest).sum(axis=0) > len(rest)
    if not told.any():
        return None
    middle = np.full(rest.shape[1], np.nan)
    middle[told] = np.nanmedian(rest[:, told], axis=0)
    away = rest - middle
    # Anatomy of neighbours is alike: fewer slices than there are tell independently. Deviations
    # from a common middle correlate by -1 / n where slices do not.
    beside = np.nansum(away[1:] * away[:-1]) / max(np.nansum(away**2), 1e-12)
    alike = float(np.clip(beside + 1 / len(away), 0, 0.9))
    return middle, _error_of_median(away) * float(np.sqrt((1 + alike) / (1 - alike)))


def lean(
    ids: Sequence[int], across_um: np.ndarray, jumps: Sequence[int] = ()
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return how far slices lie aside of each other, one after the other, and its standard error.

    Slices lie aside by errors of their own, and by those of all slices before, as of a stage that
    drifts. Neighbours tell the sum of both; slices farther apart show how the second grows, which
    few slices hardly tell: its own standard error counts, too. An unknown jump counts as drift.

    Parameters
    ----------
    ids
        Slice ids, in order.
    across_um
        (slices, 2): where slices lie against the stage.
    jumps
        Slices from which on the stage's zero is another: their step is taken as the median one.

    Returns
    -------
    (2,) each, um a slice. None where fewer than eleven steps are no jumps.
    """
    n = len(ids)
    jumped = np.isin(ids[1:], jumps)
    n_told = n - 1 - int(jumped.sum())
    if n_told < _FEWEST_IN_LINE - 1:
        return None
    place = np.asarray(ids, float) - np.mean(ids)
    if jumped.any():
        apart = np.diff(ids)[:, None]
        steps = np.diff(across_um, axis=0) / apart
        steps[jumped] = np.median(steps[~jumped], axis=0)
        across_um = np.concatenate([across_um[:1], across_um[0] + np.cumsum(steps * apart, axis=0)])
    slope = median_slopes(place, across_um)
    rest = across_um - place[:, None] * slope
    # Steps that are taken as the median one add nothing.
    near = _mean_square_steps(rest, 1) * (n - 1) / n_told
    # Two distances: jumps at even steps look like errors of single slices at one of them.
    walk = np.maximum(*(_walk(rest, near, n // part) for part in (4, 3)))
    square = (place**2).sum()
    # Of a line through n places with errors of their own, and through those of a random walk.
    variance = near / 2 / square + walk * 6 / (5 * n)
    # All places beyond a jump share what its step is off by: the errors of both slices beside it.
    for at in 1 + np.flatnonzero(jumped):
        variance = variance + near * (place[at:].sum() / square) ** 2
    return slope, np.sqrt(variance)


def _walk(rest: np.ndarray, near: np.ndarray, apart: int) -> np.ndarray:
    """Return the variance that a step adds, by slices so far apart, with its standard error."""
    far = _mean_square_steps(rest, apart)
    # So many stretches tell of it, independently; a mean square of n normal errors is known to
    # the root of 2 / n.
    error = far * np.sqrt(2 * apart / len(rest))
    return np.asarray((np.maximum(0, far - near) + error) / (apart - 1))


def _mean_square_steps(rest: np.ndarray, apart: int) -> np.ndarray:
    return np.asarray(((rest[apart:] - rest[:-apart]) ** 2).mean(axis=0))


def median_slopes(places: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the median slope of each column over places, of all pairs; 0 for a lone one.

    Theil, 1950; Sen, JASA 63, 1379, 1968.
    """
    first, second = np.triu_indices(len(places), k=1)
    if not len(first):
        return np.zeros(values.shape[1])
    steps = (places[second] - places[first])[:, None]
    return np.asarray(np.median((values[second] - values[first]) / steps, axis=0))


def _error_of_median(deviations: np.ndarray) -> float:
    """Return the standard error of medians over the first axis, all alike, by deviations from them.

    From the median deviation, of few values, too (Croux & Rousseeuw, Computational Statistics 1,
    411, 1992). 1.2533 is the error of a median over that of a mean.
    """
    n = len(deviations)
    spread = MEDIAN_TO_SIGMA * n / (n - 1) * float(np.nanmedian(np.abs(deviations)))
    return 1.2533 * spread / float(np.sqrt(n))
