"""Similarity of two slices that share tissue, at one depth or at their best match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from linumpy.brain.slice_planes import SliceVolume, Window, bin_planes, plane_of_top
from linumpy.brain.stacking import BLOCK_PX, cuts
from linumpy.core.device import Array, namespace
from linumpy.geometry.correlation_peaks import ACCEPT_Z_SCORE
from linumpy.quality.similarity import Similarity, compare_planes, match_peak
from linumpy.stage_params.quality import ComparisonParams

REACH_UM = 2000.0
SLAB_PLANES = 3
_LOOKED_AT = 4
"""Matches that are compared in full: each reads as much as a pair at its expected depth."""


class SliceComparison:
    """Two slices that are compared at one depth or another."""

    def __init__(
        self,
        fixed: SliceVolume,
        moving: SliceVolume,
        voxel_um: tuple[float, float, float],
        params: ComparisonParams,
        factor: int,
    ) -> None:
        self._fixed, self._moving = fixed, moving
        self._axial_um, self._params, self._factor = voxel_um[0], params, factor
        self._pixel_um = voxel_um[1:]
        self._top = min(params.first_plane, moving.shape[0] - 1)
        self._reach = max(1, round(REACH_UM / (factor * voxel_um[1])))
        # Consecutive slices share enough to detect a bad one; others may share a few deep
        # planes, and say something only where they match.
        self._apart = moving.slice_id - fixed.slice_id > 1
        self._windows = self._shared_windows(voxel_um)

    def _shared_windows(self, voxel_um: tuple[float, float, float]) -> tuple[Window, Window] | None:
        """Return windows of both that show the same, None where they share too little."""
        shift_px = np.rint(
            np.subtract(self._moving.corner_um, self._fixed.corner_um) / np.asarray(voxel_um[1:])
        ).astype(int)
        here, there = [], []
        for shift, n_fixed, n_moving in zip(
            shift_px.tolist(), self._fixed.shape[1:], self._moving.shape[1:], strict=True
        ):
            size = self._params.roi_size_px
            shared = middle(max(0, shift), min(n_fixed, n_moving + shift), size)
            if shared.stop - shared.start < self._factor:
                return None
            here.append(shared)
            there.append(slice(shared.start - shift, shared.stop - shift))
        return (here[0], here[1]), (there[0], there[1])

    def start_at(self, distance_um: float) -> int | None:
        """Return the plane of the fixed slice to compare from with the faces so far apart.

        Slices that share nothing are compared where they come closest, if they follow each other or
        lack no more than the thickness of a slab; else None.
        """
        start = plane_of_top(self._fixed, self._moving, distance_um, self._axial_um) + self._top
        last = max(0, self._fixed.shape[0] - SLAB_PLANES)
        # Within a slab's thickness tissue still looks alike.
        if start > last + SLAB_PLANES and self._apart:
            return None
        return min(max(0, start), last)

    def where_they_match(self) -> tuple[float, Similarity] | None:
        """Compare the slices at the depth where they match best; None where they do not.

        Returns
        -------
        Distance of the faces there, um, and what `compare_from` returns.
        """
        starts = list(range(self._fixed.shape[0] - SLAB_PLANES + 1))
        if self._windows is None or not starts:
            return None
        first, valid = slabs(self._fixed, starts, self._windows[0], self._factor)
        second, other = slabs(self._moving, [self._top], self._windows[1], self._factor)
        if other is not None:
            second = second * other
        z_scores = {}
        # Planes that lie two apart still look alike.
        for n in starts[::2]:
            planes = first[n : n + 1] if valid is None else first[n : n + 1] * valid[n : n + 1]
            peak = match_peak(planes, second, self._reach)
            if peak and peak.z_score >= ACCEPT_Z_SCORE:
                z_scores[n] = peak.z_score
        if not z_scores:
            return None
        # Planes of little tissue match anything: the clearest matches are looked at closely.
        tried: dict[int, Similarity | None] = {}

        def likeness(n: int) -> tuple[float, float]:
            if n not in tried:
                tried[n] = self.compare_from(n) if n in starts else None
            found = tried[n]
            return (-1.0, -1.0) if found is None else (found.ssim, found.edges)

        best = max(_clearest(z_scores)[:_LOOKED_AT], key=likeness)
        for step in (2, 1):
            while likeness(near := max(best - step, best + step, key=likeness)) > likeness(best):
                best = near
        found = tried[best]
        if found is None:
            return None
        top_um = self._fixed.face_to_plane_um - self._moving.face_to_plane_um
        return (best - self._top) * self._axial_um + top_um, found

    def compare_from(self, start: int) -> Similarity | None:
        """Compare the slices from one plane of the fixed slice on; None without tissue."""
        if self._windows is None:
            return None
        top = self._top
        depth = min(self._fixed.shape[0] - start, self._moving.shape[0] - top)
        offsets = spread_depths(depth, self._params.sample_depth)
        here, there = self._windows
        first, valid = slabs(self._fixed, [start + z for z in offsets], here, self._factor)
        second, other = slabs(self._moving, [top + z for z in offsets], there, self._factor)

        def deeper() -> tuple[Array, Array | None]:
            shared = top + offsets[-1] + SLAB_PLANES
            left = self._moving.shape[0] - shared
            starts = [shared + z for z in spread_depths(left, self._params.sample_depth)]
            return slabs(self._moving, starts, there, self._factor)

        return compare_planes(
            first,
            second,
            self._reach,
            (valid, other),
            deeper=deeper if top + depth + SLAB_PLANES <= self._moving.shape[0] else None,
            must_match=self._apart,
        )

    @property
    def column_um2(self) -> float:
        """Area of a pixel of the planes compared."""
        return self._factor**2 * self._pixel_um[0] * self._pixel_um[1]

    def size_um(self, by_px: tuple[float, float]) -> tuple[float, float]:
        """Return a length along axis 1 and axis 2 in pixels of the planes compared as um."""
        return by_px[0] * self._factor * self._pixel_um[0], by_px[
            1
        ] * self._factor * self._pixel_um[1]

    def place_of(
        self, centre_px: tuple[float, float], in_first: bool = True
    ) -> tuple[float, float]:
        """Return where a pixel of a slice lies by its own metadata, um (axes 1, 2)."""
        assert self._windows is not None
        own = self._fixed if in_first else self._moving
        y, x = (
            corner - moved + size * (window.start + (px + 0.5) * self._factor)
            for corner, moved, size, window, px in zip(
                own.corner_um,
                own.moved_um,
                self._pixel_um,
                self._windows[0 if in_first else 1],
                centre_px,
                strict=True,
            )
        )
        return y, x


def _clearest(z_scores: Mapping[int, float]) -> list[int]:
    """Return planes by their z-scores, highest first, without those near a higher one."""
    chosen: list[int] = []
    for n in sorted(z_scores, key=lambda n: -z_scores[n]):
        if all(abs(n - other) > SLAB_PLANES for other in chosen):
            chosen.append(n)
    return chosen


def middle(low: int, high: int, size: int) -> slice:
    """Return the middle of a range, at most so long."""
    size = max(0, min(size, high - low))
    start = low + (high - low - size) // 2
    return slice(start, start + size)


def spread_depths(n_planes: int, count: int) -> list[int]:
    """Return where slabs begin, evenly spread over some planes; fewer where they would repeat."""
    last = max(0, n_planes - SLAB_PLANES)
    return sorted({round(float(z)) for z in np.linspace(0, last, count)})


def slabs(
    volume: SliceVolume,
    starts: Sequence[int],
    window: tuple[slice, slice],
    factor: int,
) -> tuple[Array, Array | None]:
    """Return means of some planes from each start on, and where all of them have data.

    A mean over planes quietens speckle. A few rows are read at a time, of all depths together:
    chunks reach through most of a slice, and would be decoded anew for every depth.
    """
    stop = min(starts[-1] + SLAB_PLANES, volume.shape[0])
    strips, known = [], []
    for rows in cuts(window[0], BLOCK_PX):
        data, valid = volume.read(slice(starts[0], stop), (rows, window[1]))
        xp = namespace(data)
        parts = [slice(z - starts[0], z - starts[0] + SLAB_PLANES) for z in starts]
        strips.append(xp.stack([data[p].mean(axis=0, dtype=xp.float32) for p in parts]))
        if valid is not None:
            known.append(xp.stack([valid[p].min(axis=0) for p in parts]))
    xp = namespace(strips[0])
    slabs = bin_planes(xp.concatenate(strips, axis=1), factor)
    if not known:
        return slabs, None
    return slabs, bin_planes(xp.concatenate(known, axis=1).astype(xp.float32), factor) == 1
