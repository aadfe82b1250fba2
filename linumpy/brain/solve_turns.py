"""Solve the rotations of all slices from those that pairs measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from linumpy.brain.pair_shift import PairShift
from linumpy.brain.pair_trust import relative_trust
from linumpy.brain.slice_planes import SliceVolume
from linumpy.brain.slice_registration import LEAST_SIGMA_DEG
from linumpy.brain.solve_slices import solve_slices

_MIN_TURN_SIGMA_DEG = 0.02
_NEGLIGIBLE_PX = 0.1


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
    solved = solve_slices(
        len(slices),
        links,
        np.array([[s.rotation_deg] for s in shifts]).reshape(-1, 1),
        relative_trust(shifts, [s.sigma_deg for s in shifts], LEAST_SIGMA_DEG),
        min_pair_sigma=LEAST_SIGMA_DEG,
        min_prior_sigma=_MIN_TURN_SIGMA_DEG,
        clear=clear,
        drifts=False,
    )
    turns = solved.deviation[:, 0] - solved.deviation[middle, 0]
    for n, volume in enumerate(slices):
        if abs(np.deg2rad(turns[n])) * np.hypot(*volume.shape[1:]) / 2 < _NEGLIGIBLE_PX:
            turns[n] = 0.0
    # Smaller steps are as likely to be errors of pairs.
    told = [n for n in solved.lost_zero if _moves_corners(turns[n - 1 : n + 1], slices[n])]
    return turns, tuple(slices[n].slice_id for n in told)


def _moves_corners(turns_deg: np.ndarray, volume: SliceVolume) -> bool:
    """Say whether the step between two rotations moves the corners of a slice by a pixel."""
    step = float(np.deg2rad(np.ptp(turns_deg)))
    return step * float(np.hypot(*volume.shape[1:])) / 2 >= 1
