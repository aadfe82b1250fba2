"""Register a brain to an atlas: orientation, position and scale.

Coordinates. The brain's world is that of its OME-Zarr: (z, axis 1, axis 2) in um. The atlas' world
is that of its file with the signs of RAS, in um, here always in the order (superior, anterior,
right). The aligned brain `<subject>_ras.ome.zarr` has array axes (z, y, x) that grow to superior,
anterior and right; its translation is such that its coordinates are the atlas'. So its NIfTI
export, whose axes are (x, y, z), is RAS, and overlays the atlas in any viewer.

The way there:

1. Brain and atlas are scaled so that background is 0 and bright tissue 1.
2. At a coarse voxel (48 along the atlas) every orientation is correlated with the atlas at every
   displacement, at a few sizes (`align_to_ras_search`).
3. The best orientations are refined there and compared by mutual information over the same voxels
   of the brain: contrast may differ, even be inverted, between scattering and the atlas' modality.
4. The best one is refined from voxel to voxel (`align_to_ras_refine`): a rigid motion first, then
   what `atlas_transform` allows.
5. Level 0 is resampled once, block by block (`align_to_ras_apply`).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from linumpy.brain.atlas.refine import RefineSettings, mutual_information, refine
from linumpy.brain.atlas.search import (
    Candidate,
    coarse_voxel_um,
    search_orientations,
    search_scales,
)
from linumpy.brain.atlas.transform import parse_rotation
from linumpy.brain.atlas.volume import Volume, contrast
from linumpy.core.device import CPU, Device, default_workers, to_device
from linumpy.core.errors import InputError
from linumpy.geometry.orientation import is_mirrored, orientations, parse_orientation
from linumpy.stage_params.atlas import AlignParams

_KINDS = ("rigid", "similarity", "affine")
_REFINED = 8
_SECOND_LOOK = 3
_SAME = 1.01
_MIRROR_GAIN = 0.02


@dataclass(frozen=True)
class AlignedBrain:
    """Where a brain lies in an atlas.

    Attributes
    ----------
    orientation
        Where the brain's axes (z, axis 1, axis 2) point.
    matrix
        4 × 4, from the brain's world (z, axis 1, axis 2) to the atlas' (superior, anterior,
        right), um.
    scale
        Size in the atlas over that in the brain, along the brain's axes.
    tilt_deg
        How far the brain is rotated beyond the exchange of axes.
    likeness
        Mutual information of both, in nats, at `voxel_um`.
    margin
        By which share the next best orientation was less like the atlas when the best few were
        compared; None when only one was tried.
    overlap
        Share of the brain's tissue that lies within the atlas.
    candidates
        ``orientation, scale, correlation, likeness`` of the orientations compared closely,
        at the coarse voxel; the chosen one first.
    """

    atlas: str
    atlas_voxel_um: tuple[float, float, float]
    voxel_um: float
    orientation: str
    mirrored: bool
    transform: str
    metric: str
    matrix: list[list[float]]
    scale: tuple[float, float, float]
    tilt_deg: float
    likeness: float
    margin: float | None
    overlap: float
    candidates: list[dict[str, Any]]


@dataclass(frozen=True)
class Alignment:
    """What `align_to_ras` found.

    Attributes
    ----------
    matrix
        4 × 4, from brain to atlas, um.
    code
        Where the brain's axes point.
    margin, candidates
        As in `AlignedBrain`.
    """

    matrix: np.ndarray
    code: str
    margin: float | None
    candidates: list[dict[str, Any]]


def align_to_ras(
    brain: Volume,
    atlas: Volume,
    params: AlignParams,
    *,
    device: Device = CPU,
    only_orientation: bool = False,
) -> Alignment:
    """Find how a brain lies in an atlas.

    Parameters
    ----------
    brain, atlas
        At the voxel to register at, NumPy.
    params
        Parameters.
    device
        Where to search orientations; the refinement is ITK's, on the CPU.
    only_orientation
        Stop after the orientation is found, at the coarse voxel.

    Raises
    ------
    InputError
        When an orientation or a rotation is not understood, or nothing fits.
    """
    codes, rotation = orientation_codes(params), parse_rotation(params.rotation)
    coarse_um = coarse_voxel_um(atlas, brain)
    small, small_atlas = _at(brain, coarse_um), _at(atlas, coarse_um)
    found = search_orientations(
        _moved(small, device),
        _moved(small_atlas, device),
        codes,
        search_scales(params.scale_range),
        rotation,
    )
    best = _best_of_each(found)[:_REFINED]
    if not best:
        raise InputError(
            "no orientation of the brain finds a place in the atlas; check the voxel sizes of "
            "both (--atlas_unit), or name the orientation (--ras_input_orientation)"
        )
    settings = RefineSettings("rigid", params.metric, params.iterations)
    # Each transform begins where the one before it ended.
    kinds = _KINDS[: _KINDS.index(params.transform) + 1]
    looked = _looked_at(best, small, small_atlas, settings, kinds)
    last = looked
    if len(looked) > 1:
        # A finer voxel separates candidates that scored much the same.
        finer_um = max(coarse_um / 2, *brain.voxel_um)
        finer, finer_atlas = _at(brain, finer_um), _at(atlas, finer_um)
        first = [candidate for _, candidate in looked[:_SECOND_LOOK]]
        last = _looked_at(first, finer, finer_atlas, settings, kinds)
    chosen = last[0][1]
    return Alignment(
        matrix=chosen.matrix
        if only_orientation
        else _fine(brain, atlas, chosen.matrix, settings, kinds, coarse_um),
        code=chosen.code,
        margin=1 - last[1][0] / last[0][0] if len(last) > 1 else None,
        candidates=[
            {
                "orientation": candidate.code,
                "scale": candidate.scale,
                "correlation": candidate.score,
                "likeness": value,
            }
            for value, candidate in sorted(looked, key=lambda one: one[1].code != chosen.code)
        ],
    )


def _at(volume: Volume, voxel_um: float) -> Volume:
    return contrast(volume.coarser(voxel_um))


def _looked_at(
    candidates: Sequence[Candidate],
    brain: Volume,
    atlas: Volume,
    settings: RefineSettings,
    kinds: Sequence[str],
) -> list[tuple[float, Candidate]]:
    """Refine candidates at one voxel size; with their similarity, the best first.

    Size is refined, for a brain of another size is like nothing; shears are not, for with them
    wrong ways round look better than they are.
    """

    def look_at(candidate: Candidate) -> tuple[float, Candidate]:
        matrix = candidate.matrix
        for kind in kinds[:2]:
            matrix = refine(brain, atlas, matrix, replace(settings, kind=kind))
        return mutual_information(brain, atlas, matrix), replace(candidate, matrix=matrix)

    # ITK has one thread for each, so that its digits are the same again.
    with ThreadPoolExecutor(default_workers(CPU), "linumpy-ras") as pool:
        done = list(pool.map(look_at, candidates))
    return sorted(done, key=lambda one: -_fair(*one))


def _fine(
    brain: Volume,
    atlas: Volume,
    matrix: np.ndarray,
    settings: RefineSettings,
    kinds: Sequence[str],
    coarse_um: float,
) -> np.ndarray:
    """Refine from the coarse voxel to that of the brain, halving it."""
    voxel_um = coarse_um
    while True:
        small, small_atlas = _at(brain, voxel_um), _at(atlas, voxel_um)
        for kind in kinds:
            matrix = refine(small, small_atlas, matrix, replace(settings, kind=kind))
        if voxel_um <= max(brain.voxel_um) * _SAME:
            return matrix
        voxel_um, kinds = max(voxel_um / 2, *brain.voxel_um), kinds[-1:]


def orientation_codes(params: AlignParams) -> tuple[str, ...]:
    """Return the orientations to try."""
    if not params.orientation.strip():
        return orientations() + (orientations(mirrored=True) if params.allow_mirrored else ())
    code = parse_orientation(params.orientation, "--ras_input_orientation")
    if is_mirrored(code) and not params.allow_mirrored:
        raise InputError(
            f"--ras_input_orientation {code}: z, axis 1 and axis 2 that point so show the mirror "
            "image of a brain; if the volume is one, give --ras_allow_mirrored"
        )
    return (code,)


def _fair(value: float, candidate: Candidate) -> float:
    """Return a similarity, that of mirror images a little lower: equal halves prove nothing."""
    return value * (1 - _MIRROR_GAIN) if is_mirrored(candidate.code) else value


def _best_of_each(found: list[Candidate]) -> list[Candidate]:
    best: dict[str, Candidate] = {}
    for candidate in found:
        best.setdefault(candidate.code, candidate)
    return list(best.values())


def _moved(volume: Volume, device: Device) -> Volume:
    return replace(
        volume, data=to_device(volume.data, device), valid=to_device(volume.valid, device)
    )
