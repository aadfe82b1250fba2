"""Read slices corrected for the residual attenuation that their overlaps show."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

import numpy as np

from linumpy.brain.overlap_attenuation import OverlapAttenuation, measure_overlap
from linumpy.brain.poses import field_over, stage_to_common
from linumpy.brain.slice_planes import SliceVolume, Window, plane_of_top
from linumpy.brain.slice_registration import SliceRegistration
from linumpy.core.device import Array, like, namespace
from linumpy.core.errors import InputError
from linumpy.core.log import logger
from linumpy.geometry.shift_field import ShiftField
from linumpy.intensity.compensate_attenuation import compensate_attenuation
from linumpy.io.models import load_model, save_model

STEM = "overlap_attenuation"

_SAME_DEPTH_UM = 20.0
_SAME_PLACE_UM = 40.0
"""By how much all slices together, or a person, may put two elsewhere than their pair did: half of
a group of planes, and two bins."""
_ROUNDS = 5
"""To find what tissue a deformed slice shows: its field changes by a few per cent of a length."""
_BUDGET_BYTES = 1 << 27
"""Memory of maps that are kept: those of a slab of slices of 1300 pixels a side, some 50."""


def overlap_path(folder: Path, slice_id: int) -> Path:
    """Return the JSON file of an upper slice, ``overlap_attenuation_zNN``; an NPZ is beside it."""
    return folder / f"{STEM}_z{slice_id:02d}.json"


def save_overlap(folder: Path, model: OverlapAttenuation) -> Path:
    """Write the model of a pair of slices to its `overlap_path`."""
    path = overlap_path(folder, model.fixed_id)
    save_model(folder, path.stem, model)
    return path


def with_overlaps(
    volumes: Sequence[SliceVolume],
    folder: Path,
    registration: SliceRegistration,
    ids: Iterable[int] | None = None,
) -> list[SliceVolume]:
    """Return slices, those corrected whose pairs the registration bears out.

    Parameters
    ----------
    folder
        Of `save_overlap`; it may lack any slice.
    ids
        Slices that are read; None for all.

    Raises
    ------
    InputError
        When there is no such folder, or a file does not fit its slice; names it.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder of pairs; linum_measure_pairs.py makes it")
    accepted = {(p["fixed_id"], p["moving_id"]) for p in registration.pairs if p["accepted"]}
    by_id = {volume.slice_id: volume for volume in volumes if volume.place is None}
    offsets = registration.offset_um
    wanted = list(by_id if ids is None else ids)
    found: dict[int, tuple[int, Path]] = {}
    for path in (overlap_path(folder, slice_id) for slice_id in wanted):
        if not path.exists():
            continue
        model = _KEPT.load(path)
        pair = (model.fixed_id, model.moving_id)
        if pair not in accepted or not all(i in by_id and i in offsets for i in pair):
            continue
        _check_shape(path, model, by_id[pair[0]])
        if _still_there(model, by_id[pair[0]], by_id[pair[1]], registration):
            found[model.fixed_id] = model.moving_id, path
    logger.info("%d of %d slices corrected by their overlaps", len(found), len(wanted))
    return _corrected(volumes, found, registration.voxel_um[0])


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
        The next slice of each that is to be corrected.
    folder
        Where to write their models.
    first_plane
        As of `measure_overlap`.
    """
    by_id = {volume.slice_id: volume for volume in volumes}
    offsets = registration.offset_um
    found: dict[int, tuple[int, Path]] = {}
    for fixed_id, moving_id in lower.items():
        if moving_id is None or not {fixed_id, moving_id} <= set(by_id) & set(offsets):
            continue
        pair = by_id[fixed_id], by_id[moving_id]
        model = measure_overlap(
            *pair,
            registration.voxel_um,
            _offset_px(*pair, registration),
            _to_fixed(*pair, registration),
            _deformation_between(*pair, registration),
            first_plane=first_plane,
        )
        if model is not None:
            found[fixed_id] = moving_id, save_overlap(folder, model)
    return _corrected(volumes, found, registration.voxel_um[0])


def _still_there(
    model: OverlapAttenuation,
    fixed: SliceVolume,
    moving: SliceVolume,
    registration: SliceRegistration,
) -> bool:
    """Whether two slices lie where they were compared."""
    offset = _offset_px(fixed, moving, registration) - model.offset_px
    if abs(offset) * registration.voxel_um[0] > _SAME_DEPTH_UM:
        return False
    sides = np.multiply(moving.shape[1:], registration.voxel_um[1:])
    ends = np.array([[0, 0], [0, 1], [1, 0], [1, 1]]) * sides + moving.corner_um
    ends = np.column_stack([ends, np.ones(4)]).T
    away = (_to_fixed(fixed, moving, registration) - np.asarray(model.to_fixed)) @ ends
    return float(np.hypot(away[0], away[1]).max()) <= _SAME_PLACE_UM


def _to_fixed(
    fixed: SliceVolume, moving: SliceVolume, registration: SliceRegistration
) -> np.ndarray:
    """Return the map of a slice's stage positions to another's, by all slices together."""
    above, below = (stage_to_common(registration, v.slice_id) for v in (fixed, moving))
    return np.asarray(np.linalg.inv(above) @ below)


def _deformation_between(
    fixed: SliceVolume, moving: SliceVolume, registration: SliceRegistration
) -> ShiftField | None:
    """Return the deformation of a slice against another over pixels of the latter, px."""
    fields = registration.fields_um
    own, other = (fields.get(volume.slice_id) for volume in (fixed, moving))
    if own is None or other is None:
        return None

    def between(seen: np.ndarray) -> np.ndarray:
        place = seen
        for _ in range(_ROUNDS):
            place = seen - own.at(place)
        return other.at(place) - own.at(place)

    return field_over(registration, fixed.slice_id, fixed.corner_um, fixed.shape[1:], between)


def _offset_px(fixed: SliceVolume, moving: SliceVolume, registration: SliceRegistration) -> int:
    """Return the plane of a slice that shows plane 0 of another, by all slices together."""
    offsets = registration.offset_um
    between = (moving.slice_id - fixed.slice_id) * registration.slice_interval_um
    between += float(offsets[moving.slice_id][0] - offsets[fixed.slice_id][0])
    return plane_of_top(fixed, moving, between, registration.voxel_um[0])


def _corrected(
    volumes: Sequence[SliceVolume], found: Mapping[int, tuple[int, Path]], axial_um: float
) -> list[SliceVolume]:
    """Return slices, those corrected of which the next slice and a file were found."""
    out = []
    for volume in volumes:
        if volume.slice_id in found:
            moving_id, path = found[volume.slice_id]
            read = _Reader(volume, path, axial_um)
            volume = replace(volume, read=read, attenuation_from=moving_id)
        out.append(volume)
    return out


class _Kept:
    """The models used last, as many as the budget holds; anew where their files changed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._models: OrderedDict[tuple[Path, int], OverlapAttenuation] = OrderedDict()
        self._nbytes = 0

    def load(self, path: Path) -> OverlapAttenuation:
        """Return a file's content."""
        key = (path, path.stat().st_mtime_ns)
        with self._lock:
            model = self._models.get(key)
            if model is None:
                model = load_model(path.parent, path.stem, OverlapAttenuation)
                self._models[key] = model
                self._nbytes += _nbytes(model)
                while self._nbytes > _BUDGET_BYTES and len(self._models) > 1:
                    self._nbytes -= _nbytes(self._models.popitem(last=False)[1])
            self._models.move_to_end(key)
            return model


def _nbytes(model: OverlapAttenuation) -> int:
    return int(model.mu_per_mm.nbytes + model.face_px.nbytes)


_KEPT = _Kept()


def _check_shape(path: Path, model: OverlapAttenuation, volume: SliceVolume) -> None:
    shape = np.shape(model.mu_per_mm)
    if shape != tuple(n // model.bin_px for n in volume.shape[1:]):
        raise InputError(
            f"{path}: {shape} bins of {model.bin_px} pixels; slice z{volume.slice_id:02d} has "
            f"{volume.shape[1:]} pixels. Measure pairs again (linum_measure_pairs.py)"
        )


@dataclass(frozen=True)
class _Reader:
    """Read planes of a slice, corrected; to be pickled, for other processes."""

    volume: SliceVolume
    path: Path
    axial_um: float

    def __call__(self, planes: slice, window: Window) -> tuple[Array, Array | None]:
        data, valid = self.volume.read(planes, window)
        model = _KEPT.load(self.path)
        size, shape = model.bin_px, np.shape(model.mu_per_mm)
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
