"""Solve the rotations of all slices from those that pairs measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from linumpy.brain.pair_shift import PairShift
from linumpy.brain.pair_trust import relative_trust, usual_sigma
from linumpy.brain.rigid import half_diagonal_px
from linumpy.brain.slice_planes import SliceVolume
from linumpy.brain.slice_registration import LEAST_SIGMA_DEG
from linumpy.brain.solve_slices import solve_slices

_MIN_TURN_SIGMA_DEG = 0.02
_NEGLIGIBLE_PX = 0.1
_REPORTED_PX = 1.0


def solve_turns(
    slices: Sequence[SliceVolume],
    links: Sequence[tuple[int, int]],
    shifts: Sequence[PairShift],
    middle: int,
    clear: np.ndarray,
) -> tuple[np.ndarray, tuple[int, ...]]:
    """Return the rotation of each slice against the middle one, and where it lasts.

    Parameters
    ----------
    slices, links, shifts
        In order; of each pair the numbers of its slices, and what it measured.
    middle
        Number of the slice that is not rotated.
    clear
        From `linumpy.brain.pair_trust.clear_alone`.

    Returns
    -------
    Degrees, (n_slices,), and the ids of slices from which on all are rotated. A rotation that
    moves no corner by a tenth of a pixel is none: to interpolate would cost more.
    """
    stated_deg = [s.sigma_deg for s in shifts]
    solved = solve_slices(
        len(slices),
        links,
        np.array([[s.rotation_deg] for s in shifts]).reshape(-1, 1),
        relative_trust(shifts, stated_deg, LEAST_SIGMA_DEG),
        min_pair_sigma=LEAST_SIGMA_DEG,
        stated_pair_sigma=usual_sigma(stated_deg, LEAST_SIGMA_DEG),
        min_prior_sigma=_MIN_TURN_SIGMA_DEG,
        clear=clear,
        drifts=False,
    )
    turns = solved.deviation[:, 0] - solved.deviation[middle, 0]
    for n, volume in enumerate(slices):
        if _corners_moved_px(turns[n], volume) < _NEGLIGIBLE_PX:
            turns[n] = 0.0
    # Smaller steps are as likely to be errors of pairs.
    told = [
        n
        for n in solved.lost_zero
        if _corners_moved_px(turns[n] - turns[n - 1], slices[n]) >= _REPORTED_PX
    ]
    return turns, tuple(slices[n].slice_id for n in told)


def _corners_moved_px(turn_deg: float, volume: SliceVolume) -> float:
    """Return how far a rotation moves the corners of a slice."""
    return float(abs(np.deg2rad(turn_deg))) * half_diagonal_px(volume.shape)
