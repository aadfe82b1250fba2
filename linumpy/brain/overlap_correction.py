"""Read slices with the attenuation made up for that the slices below them show."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from linumpy.brain.overlap_attenuation import OverlapAttenuation, measure_overlap, sampling
from linumpy.brain.poses import stage_to_common
from linumpy.brain.slice_planes import SliceVolume, Window, plane_of_top
from linumpy.brain.slice_registration import SliceRegistration
from linumpy.core.device import Array, like, namespace
from linumpy.core.errors import InputError
from linumpy.intensity.compensate_attenuation import compensate_attenuation
from linumpy.io.models import load_model, save_model

STEM = "overlap_attenuation"

_SAME_DEPTH_PX = 2
"""Planes by which all slices together may put two closer or farther than their pair did."""
_KEPT = 8


def save_overlap(folder: Path, model: OverlapAttenuation) -> Path:
    """Write what a pair of slices showed, ``overlap_attenuation_zNN`` (JSON and NPZ)."""
    stem = f"{STEM}_z{model.fixed_id:02d}"
    save_model(folder, stem, model)
    return folder / f"{stem}.json"


def with_overlaps(
    volumes: Sequence[SliceVolume], folder: Path, registration: SliceRegistration
) -> list[SliceVolume]:
    """Return slices, those corrected whose pairs the registration bears out.

    Parameters
    ----------
    folder
        Of `save_overlap`; it may lack any slice.

    Raises
    ------
    InputError
        When a file does not fit its slice; names it.
    """
    accepted = {(p["fixed_id"], p["moving_id"]) for p in registration.pairs if p["accepted"]}
    by_id = {volume.slice_id: volume for volume in volumes if volume.place is None}
    offsets = registration.offset_um
    found: dict[int, Path] = {}
    lower: dict[int, int | None] = {}
    for path in sorted(folder.glob(f"{STEM}_z*.json")):
        model = _load(path)
        pair = (model.fixed_id, model.moving_id)
        if pair not in accepted or not all(i in by_id and i in offsets for i in pair):
            continue
        offset = _offset_px(by_id[pair[0]], by_id[pair[1]], registration)
        if abs(offset - model.offset_px) <= _SAME_DEPTH_PX:
            found[model.fixed_id], lower[model.fixed_id] = path, model.moving_id
    return corrected(volumes, found, lower, registration.voxel_um[0])


def compare_overlaps(
    volumes: Sequence[SliceVolume],
    registration: SliceRegistration,
    lower: Mapping[int, int | None],
    folder: Path,
    first_plane: int,
) -> list[SliceVolume]:
    """Return slices, corrected by those below them where a registration puts both.

    Parameters
    ----------
    lower
        The slice that tells, of each that is to be corrected.
    folder
        Where to write what they tell.
    first_plane
        As of `measure_overlap`.
    """
    by_id = {volume.slice_id: volume for volume in volumes}
    offsets, pixel_um = registration.offset_um, np.asarray(registration.voxel_um[1:])
    found: dict[int, Path] = {}
    for fixed_id, moving_id in lower.items():
        if moving_id is None or not {fixed_id, moving_id} <= set(by_id) & set(offsets):
            continue
        pair = by_id[fixed_id], by_id[moving_id]
        above, below = (stage_to_common(registration, v.slice_id) for v in pair)
        turn = sampling(*pair, np.linalg.inv(above) @ below, pixel_um)
        offset = _offset_px(*pair, registration)
        model = measure_overlap(*pair, registration.voxel_um, offset, turn, first_plane=first_plane)
        if model is not None:
            found[fixed_id] = save_overlap(folder, model)
    return corrected(volumes, found, lower, registration.voxel_um[0])


def _offset_px(fixed: SliceVolume, moving: SliceVolume, registration: SliceRegistration) -> int:
    """Return the plane of a slice that shows plane 0 of another, by all slices together."""
    offsets = registration.offset_um
    between = (moving.slice_id - fixed.slice_id) * registration.slice_interval_um
    between += float(offsets[moving.slice_id][0] - offsets[fixed.slice_id][0])
    return plane_of_top(fixed, moving, between, registration.voxel_um[0])


def corrected(
    volumes: Sequence[SliceVolume],
    found: Mapping[int, Path],
    lower: Mapping[int, int | None],
    axial_um: float,
) -> list[SliceVolume]:
    """Return slices, those corrected of which there is a file.

    Parameters
    ----------
    found
        Files of `save_overlap` by slice.
    lower
        The slices that told, by the corrected ones.
    axial_um
        Plane distance.
    """
    return [
        replace(
            volume,
            read=_Reader(volume, found[volume.slice_id], axial_um),
            attenuation_from=lower[volume.slice_id],
        )
        if volume.slice_id in found
        else volume
        for volume in volumes
    ]


def _load(path: Path) -> OverlapAttenuation:
    """Return a file's content; the latest ones are kept until they are written anew."""
    return _loaded(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=_KEPT)
def _loaded(path: Path, _changed: int) -> OverlapAttenuation:
    return load_model(path.parent, path.stem, OverlapAttenuation)


@dataclass(frozen=True)
class _Reader:
    """Read planes of a slice, corrected; to be pickled, for other processes."""

    volume: SliceVolume
    path: Path
    axial_um: float

    def __call__(self, planes: slice, window: Window) -> tuple[Array, Array | None]:
        data, valid = self.volume.read(planes, window)
        model = _load(self.path)
        size, shape = model.bin_px, np.shape(model.mu_per_mm)
        if shape != tuple(n // size for n in self.volume.shape[1:]):
            raise InputError(
                f"{self.path}: {shape} bins of {size} pixels; slice z{self.volume.slice_id:02d} "
                f"has {self.volume.shape[1:]} pixels. Measure pairs again (linum_measure_pairs.py)"
            )
        # Bins within the window, and those beside it.
        parts = tuple(
            slice(min(max(0, part.start // size - 1), n - 1), min(n, -(-part.stop // size) + 1))
            for part, n in zip(window, shape, strict=True)
        )
        mu, face = (
            like(np.asarray(array[parts], np.float32), data)
            for array in (model.mu_per_mm, model.face_px)
        )
        xp = namespace(data)
        depth = xp.arange(planes.start, planes.stop, dtype=np.float32) + np.float32(0.5)
        depth = xp.maximum(depth[:, None, None] - face, np.float32(0))
        inside = tuple(
            slice(part.start - bins.start * size, part.stop - bins.start * size)
            for part, bins in zip(window, parts, strict=True)
        )
        gain = xp.exp(mu * np.float32(self.axial_um / 1000) * depth)
        return compensate_attenuation(data, gain, (inside[0], inside[1]), size), valid
