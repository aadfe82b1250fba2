"""Scan distortion along the fast axis, told from the scale of the stage.

A fast axis bent by d(x) makes all pairs along it wrong by one constant: tile b's left border lies
on tile a's right one, so that a pair measures s + d(left) − d(right) where the tile moved by s.
As steps are all alike, that cannot be told from a stage whose scale is off in one direction, by
(d(left) − d(right)) / s. What decides is which of the two is likely:

- Stages are the better rulers. Screw and linear-motor stages are specified to some 0.01 to 0.1 % of
  their travel, in both directions alike; a galvanometer's scan has a linearity of 0.1 to some
  percent at its turning points, and its fast axis alone is driven near its limits.
- A pixel size that is wrong, or a stage turned against the scan, changes both directions alike.

So the slow axis says what scale there is, and what the fast axis differs from it by is distortion,
if it stands out from how much single positions of the stage err. Where the stage jitters by more
than a few tenths of a percent of a mosaic's length it is no ruler, and pairs are followed.
"""

from __future__ import annotations

import numpy as np

from linumpy.geometry.least_squares import (
    column_products,
    least_squares,
    linear_combination,
    solve_positive,
)

FAST_AXIS = 0
"""Of the lateral axes: A-lines follow one another along axis 1 of a tile."""

LEAST_ANISOTROPY = 0.003
"""A few times what stages are specified to."""

_SIGNIFICANT = 4.0
_MIN_POSITIONS = 3
"""Tiles along either axis: of two rows, backlash looks like scale."""


def scan_anisotropy(stage_px: np.ndarray, position_px: np.ndarray) -> float:
    """Return by how much scale along the fast axis exceeds that along the slow one.

    Parameters
    ----------
    stage_px, position_px
        Reported and solved corners of tiles that pairs join, shape (n, 2).

    Returns
    -------
    Ratio of pixels to stage, less that of the slow axis; 0 where it does not stand out from the
    errors of single positions, or where the slow axis is farther from the nominal pixel size.
    """
    centred = stage_px - stage_px.mean(axis=0)
    spread = np.abs(centred).max(axis=0, initial=0.0)
    if not _spans(centred, spread):
        return 0.0
    moved = position_px - stage_px
    moved = moved - moved.mean(axis=0)
    linear = least_squares(centred, moved)
    residual = moved - linear_combination(centred, linear)
    free = residual.size - 6
    variance = float(np.square(residual).sum()) / free
    shape = solve_positive(column_products(centred, centred), np.eye(2)).diagonal()
    fast, slow = (float(linear[axis, axis]) for axis in (FAST_AXIS, 1 - FAST_AXIS))
    difference = fast - slow
    error = np.sqrt(variance * shape.sum())
    # Student's t as a normal number (Wallace, Ann. Math. Stat. 30, 1124, 1959).
    t = abs(difference) / max(error, 1e-12)
    normal = (8 * free + 1) / (8 * free + 3) * np.sqrt(free * np.log1p(t * t / free))
    likely = abs(difference) > LEAST_ANISOTROPY and abs(fast) > abs(slow)
    return difference if likely and normal > _SIGNIFICANT else 0.0


def _spans(centred: np.ndarray, spread: np.ndarray) -> bool:
    """Whether tiles lie in enough rows and columns."""
    if min(spread) <= 0:
        return False
    # Steps are at least half a tile: neighbours in a sorted row are far closer than that.
    for axis in (0, 1):
        values = np.sort(centred[:, axis])
        gaps = np.diff(values)
        if 1 + int((gaps > 0.5 * gaps.max()).sum()) < _MIN_POSITIONS:
            return False
    return True


def pair_mismatch(expected_px: np.ndarray, anisotropy: float) -> np.ndarray:
    """Return what distortion adds to the displacements of pairs, shape (n, 2).

    Parameters
    ----------
    expected_px
        The stage's displacements, shape (n, 2).
    anisotropy
        From `scan_anisotropy`.
    """
    out = np.zeros(expected_px.shape)
    along = np.abs(expected_px).argmax(axis=1) == FAST_AXIS
    if along.any():
        steps = expected_px[along, FAST_AXIS]
        # The same borders meet in all pairs.
        out[along, FAST_AXIS] = np.sign(steps) * np.median(np.abs(steps)) * anisotropy
    return out
