"""Stacking geometry and blending: where slices begin in depth, and how they pass over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from linumpy.device import CPU, Array, Device, namespace, to_device, to_host
from linumpy.registration.correlation import flatten
from linumpy.registration.register_slices import expected_plane


@dataclass(frozen=True)
class StackedSlice:
    """A slice's place in the brain.

    Attributes
    ----------
    z_start_px
        Plane of the brain where the slice's plane 0 lies.
    first_plane_px
        Planes at its top that are not used.
    n_planes
        Planes that it has.
    overlap_px
        Planes that it shares with what lies above it.
    """

    slice_id: int
    z_start_px: int
    first_plane_px: int
    n_planes: int
    overlap_px: int

    @property
    def begin(self) -> int:
        """First plane of the brain that the slice takes part in."""
        return self.z_start_px + self.first_plane_px

    @property
    def end(self) -> int:
        """One past the last plane of the brain that the slice takes part in."""
        return self.z_start_px + self.n_planes


def place_slices(
    ids: Sequence[int],
    n_planes: Mapping[int, int],
    face_um: Mapping[int, float],
    axial_um: float,
    first_plane: int,
) -> list[StackedSlice]:
    """Place slices in depth.

    Parameters
    ----------
    ids
        Slice ids in order; gaps in them advance the depth like slices do.
    n_planes
        Planes of each slice.
    face_um
        Depth at which each slice's plane 0 begins.
    axial_um
        Plane distance.
    first_plane
        Planes not used at the top of every slice but the first.

    Returns
    -------
    Places, the first slice's plane 0 at plane 0. Depths are rounded from the whole sum, so that
    roundings do not add up.
    """
    top = face_um[ids[0]]
    placed: list[StackedSlice] = []
    cursor = 0
    for n, slice_id in enumerate(ids):
        start = max(0, round((face_um[slice_id] - top) / axial_um))
        skipped = 0 if n == 0 else min(first_plane, n_planes[slice_id] - 1)
        end = start + n_planes[slice_id]
        overlap = max(0, min(cursor, end) - (start + skipped))
        placed.append(StackedSlice(slice_id, start, skipped, n_planes[slice_id], overlap))
        cursor = max(cursor, end)
    return placed


def hann_weights(n: int) -> np.ndarray:
    """Return the weight of the new slice over `n` planes of overlap: a raised cosine, float32.

    Planes are sampled at their centres, so that weights are symmetric and never 0 or 1.
    """
    t = (np.arange(n) + 0.5) / n
    return (0.5 * (1 - np.cos(np.pi * t))).astype(np.float32)


def blend_planes(
    parts: Iterable[tuple[StackedSlice, int, Array, Array]],
    z_range: slice,
    lateral: tuple[int, int],
    like_array: Array,
    *,
    blend: bool,
) -> tuple[Array, Array]:
    """Lay slices over each other, in order, into one block of the brain.

    Parameters
    ----------
    parts
        Slice, first of its planes given, those planes, and their mask; in order of depth.
    z_range
        Planes of the brain that the block holds.
    lateral
        Pixels of the block.
    like_array
        Any array on the device to work on.
    blend
        Whether slices pass over by `hann_weights`; else the new slice replaces the old one.

    Returns
    -------
    Block (planes, axis 1, axis 2), float32, 0 where there is no data, and its mask (uint8).
    """
    xp = namespace(like_array)
    shape = (z_range.stop - z_range.start, *lateral)
    out = xp.zeros(shape, xp.float32)
    mask = xp.zeros(shape, xp.uint8)
    for place, first, data, valid in parts:
        low = place.z_start_px + first - z_range.start
        window = slice(low, low + data.shape[0])
        weight = np.ones(data.shape[0], np.float32)
        if blend and place.overlap_px:
            ramp = hann_weights(place.overlap_px)
            position = np.arange(data.shape[0]) + first - place.first_plane_px
            inside = position < place.overlap_px
            weight[inside] = ramp[position[inside]]
        share = xp.asarray(weight)[:, None, None]
        old, new = mask[window] > 0, valid > 0
        share = xp.where(old, share, xp.float32(1))
        mixed = (1 - share) * out[window] + share * data
        out[window] = xp.where(new, mixed, out[window])
        mask[window] = old | new
    return out, mask


def find_z_overlap(
    fixed: Array,
    moving: Array,
    interval_um: float,
    axial_um: float,
    search_um: float,
    *,
    id_step: int = 1,
    use_gpu: bool = False,
) -> tuple[int, float]:
    """Find how many planes two slices share, by correlating the end of one with the other's top.

    Parameters
    ----------
    fixed, moving
        Slices (z, axis 1, axis 2) on one canvas, NumPy or CuPy.
    interval_um
        Slicing interval.
    axial_um
        Plane distance.
    search_um
        How far the overlap may be from the expected one.
    id_step
        Difference of the slice ids.
    use_gpu
        Move NumPy arrays to the GPU for the computation.

    Returns
    -------
    Planes of overlap (0 when the slices cannot meet), and the correlation there.
    """
    if use_gpu and namespace(fixed).__name__ == "numpy":
        gpu = Device("cuda")
        fixed, moving = to_device(fixed, gpu), to_device(moving, gpu)
    xp = namespace(fixed)
    first, second = flatten(fixed.astype(xp.float32)), flatten(moving.astype(xp.float32))
    expected = fixed.shape[0] - expected_plane(id_step, interval_um, axial_um, 0)
    reach = round(search_um / axial_um)
    low = max(1, expected - reach)
    high = min(fixed.shape[0], moving.shape[0], expected + reach)
    best = (max(0, expected), float("nan"))
    for overlap in range(low, high + 1):
        a, b = first[-overlap:], second[:overlap]
        score = float(
            to_host((a * b).sum() / xp.sqrt((a * a).sum() * (b * b).sum() + xp.float32(1e-12)))
        )
        if not best[1] >= score:
            best = (overlap, score)
    return best


def host_blank(device: Device = CPU) -> Array:
    """Return an empty array on `device`, to name it to functions that take arrays."""
    return to_device(np.empty(0, np.float32), device)
