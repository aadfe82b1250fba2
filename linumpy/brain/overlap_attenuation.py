"""Residual attenuation of a slice, measured from its overlap with the next.

What lies deep in one slice lies near the top of the next. So the ratio of both amplitudes is what
the correction of the upper slice left of the loss, whatever attenuation has to do with backscatter:
the tissue itself cancels. A column whose µ was estimated too low by Δµ is too dim by exp(−Δµ·z) at
a depth z below its face. The lower slice has lost some light, too: where both lack the same, Δµ
comes out too small.

The ratio also holds speckle and noise. Both halves of the shared planes, every other few of them,
have their own: what of each lateral scale both agree on is kept (a Wiener filter whose signal is
the covariance of the halves).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from linumpy.brain.align_mosaics_3d_from_shifts import align_mosaics_3d_from_shifts
from linumpy.brain.kriging import fit_displacement
from linumpy.brain.local_fit import LEAST_NOISE_PX, WINDOW_PX
from linumpy.brain.pair_shift import PairParts, PairShift
from linumpy.brain.poses import map_of
from linumpy.brain.slice_planes import SliceVolume, Window
from linumpy.core.device import CPU, Array, Device, namespace, to_host
from linumpy.core.robust import MEDIAN_TO_SIGMA
from linumpy.geometry.shift_field import ShiftField
from linumpy.geometry.turned import Turn, rotation_matrix
from linumpy.intensity.compensate_attenuation_methods import box_sums
from linumpy.intensity.quantiles import otsu_threshold
from linumpy.intensity.tissue import NORMALISED_RANGE, two_media
from linumpy.io.slice_layout import CHUNK_PX

_BIN_UM = 20.0
"""About as wide as a beam that keeps its focus over a slice: no shadow is narrower."""
_GROUP_UM = 40.0
"""Planes that go to one half together: several axial resolutions, which share their speckle."""
_MIN_GROUPS = 2
_MIN_BINS = 256
_OUTLIER_SIGMA = 4.0
_VOXELS_AT_ONCE = 1 << 22
_VOXELS_AT_ONCE_ON_A_GPU = 1 << 25
"""There each strip costs a few hundred launches, however small it is."""


@dataclass(frozen=True)
class OverlapAttenuation:
    """What is to be added to the attenuation of a slice.

    Attributes
    ----------
    fixed_id, moving_id
        The slice, and the one below that shows its deep tissue.
    offset_px
        Plane of the slice that shows what plane 0 of the one below shows.
    bin_px
        Pixels a side of the lateral bins.
    to_fixed
        Map of the next slice's stage positions to those of the slice, 3 × 3 as in `poses`, by
        which they were compared.
    kept
        Share that is kept of each lateral scale, the finest first: 1, 2, 4, … bins.
    mu_per_mm
        float16 over the bins, 1/mm; 0 where nothing is known. Its median is about 0, as slices
        have no scale in common.
    face_px
        float16 over the bins: plane at which their columns begin.
    """

    fixed_id: int
    moving_id: int
    offset_px: int
    bin_px: int
    to_fixed: list[list[float]]
    kept: list[float]
    mu_per_mm: np.ndarray
    face_px: np.ndarray

    def __post_init__(self) -> None:
        """Refuse a model that slices cannot be corrected by."""
        shapes = np.shape(self.mu_per_mm), np.shape(self.face_px)
        if self.bin_px < 1 or len(shapes[0]) != 2 or shapes[0] != shapes[1]:
            raise ValueError(
                f"bins of {self.bin_px} pixels, mu_per_mm {shapes[0]}, face_px {shapes[1]}; "
                "expected maps of one shape (n1, n2), and bins of a pixel at least"
            )
        place = np.asarray(self.to_fixed, float)
        if place.shape != (3, 3) or not np.isfinite(place).all():
            raise ValueError(f"to_fixed {self.to_fixed}; expected 3 × 3 finite numbers")


def pair_place(
    fixed: SliceVolume, moving: SliceVolume, shift: PairShift, lateral_um: np.ndarray
) -> tuple[np.ndarray, ShiftField | None]:
    """Return where a slice lies against the next one, as the pair was measured.

    Returns
    -------
    Map of the moving slice's stage positions to those of the fixed one, and the deformation between
    both over pixels of the fixed one; None where parts do not tell.
    """
    to_fixed = map_of(shift.rotation_deg, shift.shift_um[1:], np.asarray(shift.centre_um))
    if shift.parts is None:
        return to_fixed, None
    turn = sampling(fixed, moving, to_fixed, lateral_um)
    return to_fixed, _field(fixed, moving, shift.parts, turn, lateral_um)


def sampling(
    fixed: SliceVolume, moving: SliceVolume, to_fixed: np.ndarray, lateral_um: np.ndarray
) -> Turn:
    """Return where pixels of one slice lie in another.

    Parameters
    ----------
    to_fixed
        Map of the moving slice's stage positions to those of the fixed one, as in `poses`.
    """
    back = np.linalg.inv(to_fixed)
    first = back @ [*(np.asarray(fixed.corner_um) + lateral_um / 2), 1.0]
    return Turn.of(
        back[:2, :2] * lateral_um[None, :] / lateral_um[:, None],
        (first[:2] - moving.corner_um) / lateral_um - 0.5,
    )


def _field(
    fixed: SliceVolume, moving: SliceVolume, parts: PairParts, turn: Turn, lateral_um: np.ndarray
) -> ShiftField:
    """Return the deformation between both slices over pixels of the fixed one."""
    places = (parts.fixed_um - fixed.corner_um) / lateral_um - 0.5
    source = (parts.moving_um - moving.corner_um) / lateral_um - 0.5
    moved = (source - turn.shift) @ np.linalg.inv(np.array(turn.matrix)).T - places
    step = WINDOW_PX / 2
    rows, columns = (step * np.arange(-(-n // step) + 1) for n in fixed.shape[1:])
    area = np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1).reshape(-1, 2)
    found = fit_displacement(
        places, moved, area, window_px=WINDOW_PX, least_noise_px=LEAST_NOISE_PX
    )
    away = area - area.mean(axis=0)
    turned = away @ rotation_matrix(float(np.rad2deg(found.turn_rad))).T - away
    values = found.field_px + found.shift_px + turned
    return ShiftField((0.0, 0.0), (step, step), values.T.reshape(2, len(rows), len(columns)))


def measure_overlap(
    fixed: SliceVolume,
    moving: SliceVolume,
    voxel_um: tuple[float, float, float],
    offset_px: int,
    to_fixed: np.ndarray,
    field: ShiftField | None = None,
    *,
    first_plane: int,
    device: Device = CPU,
) -> OverlapAttenuation | None:
    """Measure what attenuation the correction of a slice lacks, by the slice below.

    Parameters
    ----------
    fixed, moving
        Corrected slices, `moving` the lower one.
    offset_px
        Plane of the fixed slice that shows plane 0 of the moving one.
    to_fixed, field
        How the slices lie against each other, as of `pair_place`.
    first_plane
        Planes below the moving slice's face that are not trusted.
    device
        On which the slices are read.

    Returns
    -------
    None where they share too few planes, or too little tissue.
    """
    count = min(fixed.shape[0] - offset_px, moving.shape[0])
    group = max(1, round(_GROUP_UM / voxel_um[0]))
    size = max(1, round(_BIN_UM / voxel_um[1]))
    if offset_px < 1 or count - first_plane < _MIN_GROUPS * group:
        return None
    n1, n2 = (n // size * size for n in fixed.shape[1:])
    most = _VOXELS_AT_ONCE_ON_A_GPU if device.is_gpu else _VOXELS_AT_ONCE
    rows = max(CHUNK_PX, most // ((offset_px + count) * n2))
    rows = -(-rows // size) * size
    turn = sampling(fixed, moving, to_fixed, np.asarray(voxel_um[1:]))
    strips = [
        _Strip(fixed, moving, (slice(start, min(start + rows, n1)), slice(0, n2)))
        for start in range(0, n1, rows)
    ]
    found = [
        strip.sums(offset_px, count, turn, field, first_plane, group, size) for strip in strips
    ]
    sums, face = (np.concatenate(parts, axis=-2) for parts in zip(*found, strict=True))
    sums[:, _DEPTH] *= np.float32(voxel_um[0] / 1000)
    solved = solve(sums)
    if solved is None:
        return None
    mu, kept = solved
    return OverlapAttenuation(
        fixed.slice_id,
        moving.slice_id,
        offset_px,
        size,
        to_fixed.tolist(),
        kept,
        mu.astype(np.float16),
        face.astype(np.float16),
    )


_UPPER, _LOWER, _DEPTH, _WEIGHT = range(4)


@dataclass(frozen=True)
class _Strip:
    """Some rows of a slice, with what the slice below shows there."""

    fixed: SliceVolume
    moving: SliceVolume
    window: Window

    def sums(
        self,
        offset: int,
        count: int,
        turn: Turn,
        field: ShiftField | None,
        first_plane: int,
        group: int,
        size: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return sums over the planes of each half and over bins, and the bins' first planes.

        Returns
        -------
        float32 (2, 4, bins, bins): weighted amplitudes of the upper and of the lower slice,
        weighted depth below the face (planes), and weights; and float32 (bins, bins).
        """
        data, valid = self.fixed.read(slice(0, offset + count), self.window)
        xp = namespace(data)
        known = xp.ones(data.shape, bool) if valid is None else valid > 0
        face = (~known).sum(axis=0).astype(np.float32)
        sides = [(part.stop - part.start) // size for part in self.window]
        sums = np.zeros((2, 4, *sides), np.float32)
        below = align_mosaics_3d_from_shifts(
            self.moving.read, self.moving.shape[1:], (0, 0), slice(0, count), self.window, turn,
            field,
        )  # fmt: skip
        if below is not None:
            there = below[1] > 0
            used = known[offset:] & there
            used[:first_plane] = False
            used[first_plane:] &= there[: count - first_plane]
            weight = used.astype(np.float32)
            if self.fixed.quality is not None:
                weight *= self.fixed.quality(slice(offset, offset + count), self.window)
            middles = xp.arange(offset, offset + count, dtype=np.float32) + np.float32(0.5)
            total = xp.zeros((2, 4, *face.shape), np.float32)
            for start in range(0, count, group):
                part, half = slice(start, start + group), total[start // group % 2]
                w = weight[part]
                half[_UPPER] += (w * data[offset:][part]).sum(axis=0)
                half[_LOWER] += (w * below[0][part]).sum(axis=0)
                half[_DEPTH] += (
                    w * xp.maximum(middles[part, None, None] - face, np.float32(0.5))
                ).sum(axis=0)
                half[_WEIGHT] += w.sum(axis=0)
            for half, out in zip(total, sums, strict=True):
                out[:] = to_host(_bins(half, size))
        return sums, _first_planes(to_host(face), offset + count, size)


def _first_planes(face: np.ndarray, n_planes: int, size: int) -> np.ndarray:
    """Return the mean first plane of the columns of each bin that show anything; 0 without any."""
    there = (face < n_planes).astype(np.float32)
    total, number = _bins(np.stack([face * there, there]), size)
    return np.asarray(total / np.maximum(number, 1))


def _bins(values: Array, size: int) -> Array:
    """Sum over lateral bins; sides are multiples of `size`."""
    n, n1, n2 = values.shape
    return values.reshape(n, n1 // size, size, n2 // size, size).sum(axis=(2, 4))


def solve(sums: np.ndarray) -> tuple[np.ndarray, list[float]] | None:
    """Return what µ lacks from sums over both halves of the shared planes.

    Parameters
    ----------
    sums
        float32 (2, 4, bins, bins): of amplitudes of the upper and of the lower slice, of depth
        (mm) below the face of the upper one, each times weights, and of these.

    Returns
    -------
    Δµ in 1/mm, float32 over the bins, and the share of each scale; None for too little tissue.
    """
    weight = sums[:, _WEIGHT]
    known = (sums[:, :3] > 0).all(axis=(0, 1)) & (weight > 0).all(axis=0)
    if known.sum() < _MIN_BINS:
        return None
    safe = np.where(known, sums, np.float32(1))
    # Agarose is dark in both slices; debris on the lower one is bright in that alone.
    level = np.log(np.minimum(safe[:, _UPPER], safe[:, _LOWER]).sum(axis=0))
    level -= np.log(safe[:, _WEIGHT].sum(axis=0))
    bright = level > otsu_threshold(level[known])
    if two_media(np.exp(level[known & ~bright]), np.exp(level[known & bright]), NORMALISED_RANGE):
        known &= bright
    depth = safe[:, _DEPTH] / safe[:, _WEIGHT]
    ratio = np.log(safe[:, _LOWER] / safe[:, _UPPER])
    # Slices have no scale in common: what the ratio is in the middle says nothing.
    halves = (ratio - np.median(ratio[:, known])) / depth
    weight = np.where(known, weight * depth**2, np.float32(0))
    both = _mean(halves, weight)
    spread = np.float32(MEDIAN_TO_SIGMA) * np.median(np.abs(both[known]))
    known &= np.abs(both) <= _OUTLIER_SIGMA * spread
    if known.sum() < _MIN_BINS:
        return None
    weight = np.where(known, weight, np.float32(0))
    total = weight.sum(axis=0)
    out = np.zeros_like(both)
    kept = []
    width, fine = 1, (*halves, both)
    while True:
        last = 2 * width >= min(both.shape)
        coarse = (np.float32(0),) * 3 if last else _smooth(halves, weight, 2 * width + 1)
        one, other, mean = (f - c for f, c in zip(fine, coarse, strict=True))
        variance = float((total * mean**2).sum(dtype=np.float64))
        common = float((total * one * other).sum(dtype=np.float64))
        kept.append(min(max(common / variance, 0.0), 1.0) if variance > 0 else 0.0)
        out += np.float32(kept[-1]) * mean
        if last:
            break
        width, fine = 2 * width, coarse
    return np.where(known, out, np.float32(0)), kept


def _mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    total = weights.sum(axis=0)
    return np.asarray((values * weights).sum(axis=0) / np.where(total > 0, total, 1))


def _smooth(halves: np.ndarray, weights: np.ndarray, width: int) -> tuple[np.ndarray, ...]:
    """Return weighted means over lateral boxes, of each half and of both."""
    sums, share = (np.asarray(box_sums(part, width)) for part in (halves * weights, weights))
    # Filters that sum as they go leave a little where there is nothing.
    least = np.float32(1e-6) * weights.max()
    both = sums.sum(axis=0), share.sum(axis=0)
    return tuple(s / np.maximum(w, least) for s, w in (*zip(sums, share, strict=True), both))
