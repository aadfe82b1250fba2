"""Find parts of a slice that lie elsewhere than in the other slice of a pair: flaps and folds.

No farther off than patches are sought (`linumpy.quality.similarity.PATCH_REACH_PX`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from linumpy.core.robust import MEDIAN_TO_SIGMA, tukey
from linumpy.geometry.correlation_peaks import Peaks
from linumpy.geometry.least_squares import linear_combination, normal_equations, solve_positive

LEAST_PX = 8.0
"""At 10 µm a pixel more than smooth deformation leaves of shift and rotation: 30 µm are usual, 56
were seen of a patch."""
_CLEAR_Z_SCORE = 10.0
"""Twice what is accepted: patches of little tissue match by their rim, with 7 to 9."""
_OUTLIER = 4.0
_ALIKE_PX = 2.0
_LEAST_CLEAR = 8
_ROUNDS = 10


@dataclass(frozen=True)
class DisplacedPart:
    """Patches beside each other that match clearly, but not where the others do.

    Attributes
    ----------
    n_px
        Pixels of the patches.
    centre_px
        Their middle in the first slice.
    by_px
        Where the second slice shows them, less where shift and rotation put them.
    """

    n_px: int
    centre_px: tuple[float, float]
    by_px: tuple[float, float]


def displaced_parts(
    low: np.ndarray, side: np.ndarray, n_columns: int, peaks: Peaks
) -> tuple[DisplacedPart, ...]:
    """Return the parts of a plane that are displaced against the rest, largest first.

    Parameters
    ----------
    low, side
        First pixels and sides of patches, int (n, 2), row by row of a grid.
    n_columns
        Patches of a row.
    peaks
        Where each patch of the first slice lies in the second one.
    """
    from scipy import ndimage

    clear = peaks.found & (peaks.z_score >= _CLEAR_Z_SCORE)
    if clear.sum() < _LEAST_CLEAR:
        return ()
    centre = low + side / 2
    left = _left_by_affine(centre, np.asarray(peaks.displacement_px, float), clear)
    size = np.hypot(*left.T)
    spread = MEDIAN_TO_SIGMA * float(np.median(size[clear]))
    odd = clear & (size > max(LEAST_PX, _OUTLIER * spread))
    labels, count = ndimage.label(odd.reshape(-1, n_columns), np.ones((3, 3)))
    found = []
    for number in range(1, count + 1):
        part = np.flatnonzero(labels.ravel() == number)
        by_px = np.median(left[part], axis=0)
        part = part[np.hypot(*(left[part] - by_px).T) < _ALIKE_PX]
        if len(part):
            y, x = centre[part].mean(axis=0).tolist()
            dy, dx = left[part].mean(axis=0).tolist()
            found.append(DisplacedPart(int(side[part].prod(axis=1).sum()), (y, x), (dy, dx)))
    return tuple(sorted(found, key=lambda part: -part.n_px))


def _left_by_affine(centre: np.ndarray, moved: np.ndarray, clear: np.ndarray) -> np.ndarray:
    """Return what shift, rotation and scale leave of displacements; outliers do not count."""
    away = (centre - centre.mean(axis=0)) / max(float(np.ptp(centre)), 1.0)
    design = np.column_stack([np.ones(len(away)), away])
    left = moved - np.median(moved[clear], axis=0)
    for _ in range(_ROUNDS):
        size = np.hypot(*left.T)
        weight = clear * tukey(size, max(1.0, MEDIAN_TO_SIGMA * float(np.median(size[clear]))))
        if weight.sum() < _LEAST_CLEAR / 2:
            break
        fit = []
        for axis in (0, 1):
            normal, right = normal_equations(design, moved[:, axis], weight)
            fit.append(linear_combination(design, solve_positive(normal + 1e-6 * np.eye(3), right)))
        left = moved - np.stack(fit, axis=1)
    return left
