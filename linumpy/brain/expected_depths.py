"""Expected depths of slices from metadata: stage height, slice thickness, interval.

None of them is trusted alone. The height may be constant, in another unit, missing, or start anew
with each session; a slice's thickness may be that of the cut before it or after it. So there are
several accounts of the depths, and pairs decide between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from linumpy.brain.slice_planes import SliceVolume
from linumpy.core.robust import robust_spread
from linumpy.io.raw_interval import LIKELY_CUT

_SAME_UM = 1.0
_GAIN = 2.0
"""By how much the logarithm of likelihood has to be better to prefer a less direct account."""
_MIN_SIGMA_UM = 3.0
"""Of the difference of two faces that lie within 2 um each of where the stage says."""


def expected_depths(slices: Sequence[SliceVolume], interval_um: float) -> list[np.ndarray]:
    """Return accounts of how deep the faces of slices lie, the most direct one first.

    Parameters
    ----------
    slices
        In order of their ids.
    interval_um
        Slicing interval.

    Returns
    -------
    Shape (n_slices,) each, um below the face of the first slice; accounts that agree to a
    micrometre are given once. The last one is ``(id − first id) · interval``, or agrees with it.
    """
    ids = np.array([volume.slice_id for volume in slices])
    nominal = np.diff(ids) * interval_um
    accounts = []
    stage = _stage_steps([volume.stage_z_um for volume in slices], ids, interval_um)
    if stage is not None:
        accounts.append(stage)
    accounts.extend(_thickness_steps([v.thickness_um for v in slices], ids, interval_um))
    accounts.append(nominal)
    found: list[np.ndarray] = []
    for steps in accounts:
        depths = np.concatenate([[0.0], np.cumsum(steps)])[: len(ids)]
        if not any(np.abs(depths - other).max(initial=0.0) < _SAME_UM for other in found):
            found.append(depths)
    return found


def _stage_steps(
    heights_um: Sequence[float | None], ids: np.ndarray, interval_um: float
) -> np.ndarray | None:
    """Return the distances of consecutive faces by the stage, None where it has no information.

    Later slices are deeper: this gives the sign. Steps that no cut makes, as to another zero, and
    those from or to a slice without a height count as so many intervals, but for a gap that is
    known as a whole.
    """
    known = [n for n, z in enumerate(heights_um) if z is not None]
    if len(known) < 2 or interval_um <= 0:
        return None
    moves = np.diff([heights_um[n] or 0.0 for n in known])
    cuts = np.diff(ids[known])
    usual = float(np.median(moves / cuts))
    if not LIKELY_CUT[0] <= abs(usual) / interval_um <= LIKELY_CUT[1]:
        return None
    moves = moves * np.sign(usual)
    low, high = (cuts * interval_um * share for share in LIKELY_CUT)
    out = np.diff(ids) * interval_um
    for first, last, move, likely in zip(
        known, known[1:], moves, (low <= moves) & (moves <= high), strict=False
    ):
        if likely:
            # Slices without a height lie evenly between those that have one.
            out[first:last] *= move / out[first:last].sum()
    return out


def _thickness_steps(
    thickness_um: Sequence[float | None], ids: np.ndarray, interval_um: float
) -> list[np.ndarray]:
    """Return the distances of faces by the slices' thickness: of the cut before, of that after.

    Only differences between slices are informative: a common value is the interval.
    """
    known = [t for t in thickness_um if t is not None]
    if len(known) < 2 or np.ptp(known) < _SAME_UM:
        return []
    usual = float(np.median(known))
    extra = np.array([0.0 if t is None else t - usual for t in thickness_um])
    nominal = np.diff(ids) * interval_um
    low, high = (interval_um * share for share in LIKELY_CUT)
    return [
        nominal + (np.clip(interval_um + part, low, high) - interval_um)
        for part in (extra[1:], extra[:-1])
    ]


def most_likely(
    accounts: Sequence[np.ndarray], cuts_um: np.ndarray, measured: np.ndarray
) -> np.ndarray:
    """Return the account that pairs bear out best.

    Parameters
    ----------
    accounts
        From `expected_depths`.
    cuts_um
        Shape (n_slices − 1,): distances of consecutive faces by the pairs alone.
    measured
        Which of them pairs span.

    Returns
    -------
    The first account, unless another is clearly more likely (of Cauchy errors, so that few cuts
    that an account misses count little).
    """
    if len(accounts) == 1 or not measured.any():
        return accounts[0]
    off = np.array([cuts_um - np.diff(depths) for depths in accounts])[:, measured]
    # A common factor of all steps, as of the axial voxel, speaks against none of them.
    off = off - np.median(off, axis=1, keepdims=True)
    sigma = max(_MIN_SIGMA_UM, min(robust_spread(row) for row in off))
    cost = np.log1p((off / sigma) ** 2).sum(axis=1)
    best = 0
    for n in range(1, len(accounts)):
        if cost[n] < cost[best] - _GAIN:
            best = n
    return accounts[best]


def expected_steps(
    accounts: Sequence[np.ndarray], number: Mapping[int, int], fixed_id: int, moving_id: int
) -> list[float]:
    """Return how far two faces may be apart by all accounts, um, each distance once."""
    steps = [float(d[number[moving_id]] - d[number[fixed_id]]) for d in accounts]
    return [s for n, s in enumerate(steps) if all(abs(s - t) >= _SAME_UM for t in steps[:n])]
