"""Focus of a slice against the one before, by the tissue that both show, each at its own depth.

What is seen at depth z lay at z + d before the cut. The cut took the tissue above it, whose
attenuation dims all depths alike. So whatever the tissue is, the ratio of its powers along depth is
that of the axial responses, ``h(z) / h(z + d)``, up to a gain: 2 % is left on simulated slices.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from linumpy.follow.depth_step import DepthStep
from linumpy.follow.overlaps import (
    AS_WELL,
    LEAST_PLANES,
    SHIFTS,
    log_ratio,
    log_response,
    overlap_blocks,
)
from linumpy.intensity.compensate_psf import AxialResponse, compensate_psf_from_model
from linumpy.intensity.compensate_psf_profile import AxialProfile
from linumpy.slices.tile import Key
from linumpy.store.atomic import atomic_path
from linumpy.store.untrusted import read_arrays

_FACE_MARGIN_UM = 20.0
_CLEAR_CHANGE = np.log(2) / 3
"""Of a log ratio along depth: a third of what a Rayleigh length makes. Simulated slices in focus
reach 0.12 (32 pairs)."""


@dataclass(frozen=True)
class ShownTissue:
    """What a slice shows, for the next one to be compared with.

    Attributes
    ----------
    cells
        Mean amplitudes of lateral cells of each tile, float32 (z, cells, cells).
    corners_um
        Registered corners.
    cell_um
        Sides of a cell along axis 1 and axis 2.
    axial_um
        Between planes.
    face_um, deepest_um
        Mean and largest depth of its face below the top of the samples.
    """

    slice_id: int
    cells: dict[Key, np.ndarray]
    corners_um: dict[Key, np.ndarray]
    cell_um: tuple[float, float]
    axial_um: float
    face_um: float
    deepest_um: float

    def is_like(self, other: ShownTissue) -> bool:
        """Whether both have tiles, of the same voxels and size."""
        shapes = {cells.shape for shown in (self, other) for cells in shown.cells.values()}
        sides = (self.axial_um, *self.cell_um), (other.axial_um, *other.cell_um)
        return bool(self.cells and other.cells) and len(shapes) == 1 and np.allclose(*sides)

    def save(self, path: Path) -> None:
        """Write it to a file, in place of one that is there."""
        keys = sorted(self.cells)
        with atomic_path(path, overwrite=True) as made, made.open("wb") as stream:
            np.savez(
                stream,
                keys=np.array(keys),
                cells=np.array([self.cells[key] for key in keys]),
                corners_um=np.array([self.corners_um[key] for key in keys]),
                numbers=[
                    self.slice_id,
                    *self.cell_um,
                    self.axial_um,
                    self.face_um,
                    self.deepest_um,
                ],
            )

    @classmethod
    def load(cls, path: Path) -> ShownTissue:
        """Return what `save` wrote."""
        found = read_arrays(path)
        keys = [(int(a), int(b)) for a, b in found["keys"]]
        slice_id, first, second, axial, face, deepest = found["numbers"].tolist()
        cells = dict(zip(keys, found["cells"], strict=True))
        corners = dict(zip(keys, found["corners_um"], strict=True))
        return cls(int(slice_id), cells, corners, (first, second), axial, face, deepest)


def shared_log_ratio(
    before: ShownTissue,
    now: ShownTissue,
    distance_um: float,
    shift_um: tuple[float, float],
    noise_power: float,
) -> np.ndarray:
    """Return the log ratio of powers of the same tissue, by depth in this slice; NaN where unknown.

    Parameters
    ----------
    distance_um
        Between the faces.
    shift_um
        What this slice's stage positions are off against the one before.
    noise_power
        Squared mean amplitude of noise.
    """
    deeper = shared_depth_um(before, now, distance_um) / now.axial_um
    n_planes = len(next(iter(now.cells.values())))
    ratio = np.full(n_planes, np.nan)
    seen = np.arange(n_planes)
    seen = seen[
        ((seen + 0.5) * now.axial_um > now.deepest_um + _FACE_MARGIN_UM) & (seen >= -deeper)
    ]
    seen = seen[seen + deeper <= n_planes - 1]
    if len(seen) < LEAST_PLANES:
        return ratio
    low = np.minimum(np.floor(seen + deeper).astype(int), n_planes - 2)
    weight = (seen + deeper - low).astype(np.float32)[:, None, None]
    ours = {key: np.square(cells[seen]) for key, cells in now.cells.items()}
    theirs = {
        key: np.square(cells[low] * (1 - weight) + cells[low + 1] * weight)
        for key, cells in before.cells.items()
    }
    pairs = []
    for key, mine in ours.items():
        place = now.corners_um[key] + shift_um
        for other, corner in before.corners_um.items():
            step = (corner - place) / now.cell_um
            if (np.abs(step) < mine.shape[1:]).all():
                pairs.append(overlap_blocks(mine, theirs[other], step))
    if pairs:
        first, second = (
            np.concatenate(each, axis=1) - noise_power for each in zip(*pairs, strict=True)
        )
        lit = np.minimum(first.mean(axis=0), second.mean(axis=0)) > noise_power
        first, second = first[:, lit], second[:, lit]
        # What was cut off dims each place otherwise: each counts by how it changes along depth.
        found = log_ratio(first / first.mean(axis=0), second / second.mean(axis=0), 0.0)
        found[np.minimum(first.mean(axis=1), second.mean(axis=1)) <= noise_power] = np.nan
        ratio[seen] = found
    return ratio


def focus_against_before(
    before: ShownTissue,
    now: ShownTissue,
    step: DepthStep,
    profile: AxialProfile | None,
    axial: AxialResponse | None,
    usual: float,
) -> float | None:
    """Return the focus shift of a slice that cannot be compared with where it was learned.

    Parameters
    ----------
    step
        From the slice before to this one.
    profile
        Of this slice.
    axial
        Learned response; where it is not of agarose, this slice's own takes its place.
    usual
        Shift of the slice before, Rayleigh lengths.

    Returns
    -------
    The shift; None where neither the response nor the slice is of agarose.
    """
    if profile is None or step.distance_um is None or not before.is_like(now):
        return None
    known: float | None = usual
    if axial is None or axial.medium != "agarose" or axial.focus_um is None:
        if profile.medium != "agarose":
            return None
        voxel_um = (now.axial_um, *now.cell_um)
        axial, known = compensate_psf_from_model(list(now.cells.values()), voxel_um), None
    deeper_um = shared_depth_um(before, now, step.distance_um)
    ratio = shared_log_ratio(before, now, step.distance_um, step.shift_um, profile.noise_power)
    shift = shared_focus_shift(ratio, deeper_um, axial, now.axial_um, before=known)
    return None if shift is None else usual + shift


def shared_depth_um(before: ShownTissue, now: ShownTissue, distance_um: float) -> float:
    """Return by how much deeper below the top of the samples the slice before shows a place."""
    return distance_um + before.face_um - now.face_um


def shared_focus_shift(
    ratio: np.ndarray,
    deeper_um: float,
    axial: AxialResponse,
    axial_um: float,
    *,
    before: float | None,
) -> float | None:
    """Return how far a slice's focus lies below that of the slice before, in Rayleigh lengths.

    Parameters
    ----------
    ratio
        `shared_log_ratio`.
    deeper_um
        `shared_depth_um`.
    axial
        Learned from agarose.
    before
        How far the focus of the slice before lies below the one of `axial`, in Rayleigh lengths;
        None where `axial` is the response of this slice.

    Returns
    -------
    The least shift that explains the ratio about as well as any does; 0 where none explains most of
    what the ratio differs by, or where that is not clear; None where too little is shared.
    """
    known = np.isfinite(ratio)
    if known.sum() < LEAST_PLANES:
        return None
    focus, rayleigh = axial.focus_um or 0.0, axial.rayleigh_um or 1.0
    here = (np.arange(len(ratio)) + 0.5)[known] * axial_um
    there = here + deeper_um
    if before is None:
        shifts = -SHIFTS
        near = log_response(here, focus, rayleigh)
        model = [near - log_response(there, focus + s * rayleigh, rayleigh) for s in SHIFTS]
    else:
        shifts = SHIFTS - before
        far = log_response(there, focus + before * rayleigh, rayleigh)
        model = [log_response(here, focus + s * rayleigh, rayleigh) - far for s in SHIFTS]
    left = ratio[known] - np.array(model)
    left -= left.mean(axis=1, keepdims=True)
    same = int(np.abs(shifts).argmin())
    smooth = np.convolve(left[same], np.full(LEAST_PLANES, 1 / LEAST_PLANES), "valid")
    square = np.square(left).sum(axis=1)
    change = float(np.ptp(smooth))
    if change < _CLEAR_CHANGE or square.min() >= 0.5 * square[same]:
        return 0.0
    shift = float(min(shifts[square <= AS_WELL * square.min()], key=abs))
    if before is None:
        # One slice says its own response to within a third: a factor of two tells by itself.
        shift = float(np.copysign(max(abs(shift), change / np.log(2)), shift))
    return shift
