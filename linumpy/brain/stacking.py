"""Stacking geometry and blending: first planes of slices, and transitions between them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from linumpy.brain.slice_planes import expected_plane
from linumpy.core.device import Array, Device, namespace, to_device, to_host
from linumpy.core.errors import InputError
from linumpy.geometry.canvas import MOST_EMPTY
from linumpy.geometry.flatten import flatten
from linumpy.io.slice_layout import CHUNK_PX, SHARD_PX

BLOCK_PX = 2 * SHARD_PX
"""Lateral side of what cores put together at a time: the wider, the fewer chunks of slices that two
blocks share are decoded for both. A GPU takes several such blocks (`block_sides`)."""

GPU_NBYTES_A_PX = 16_000
"""Device memory for each pixel of what a GPU puts together: two layers of shards that are open (5
kB), three steps of 64 planes on their way (2), weights while they are interpolated (2), and what is
decoded and encoded. 10 kB were measured for slices without maps of quality, which take 5 kB more
(docs/benchmarks/2026-11-28-whole-planes.md)."""

GPU_SHARE = 0.8
"""Of free device memory, for what is put together; the rest is for pieces of the pool that are left
over between two sizes."""

FEATHER_UM = 50.0
"""Depth over which a slice fades out above its end: some axial resolutions of OCT, so that a step
of brightness shows no edge. Fading in costs the best planes, hence is `first_plane` long."""

SLAB_PX = 4 * SHARD_PX
"""Planes that are finished for all blocks before the next are begun: memory follows the coarse
shards that wait between two slabs, not the number of slices."""


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
        Planes that it shares with measured tissue above it.
    interpolated
        Whether it was made from its neighbours: it fills what they leave, and yields to them.
    """

    slice_id: int
    z_start_px: int
    first_plane_px: int
    n_planes: int
    overlap_px: int
    interpolated: bool = False

    @property
    def begin(self) -> int:
        """First plane of the brain that the slice takes part in."""
        return self.z_start_px + self.first_plane_px

    @property
    def end(self) -> int:
        """One past the last plane of the brain that the slice takes part in."""
        return self.z_start_px + self.n_planes

    @property
    def minds_faces(self) -> bool:
        """Whether it matters at which plane each of its columns begins."""
        return self.first_plane_px > 0 or self.overlap_px > 0

    def tapers(self, planes: slice, rise: int, fall: int, *, by_face: bool = False) -> np.ndarray:
        """Return what the quality of planes of the slice is multiplied by, float32.

        It rises by `hann_weights` over the first `rise` planes and falls over the last `fall`. An
        interpolated slice has 0. `by_face` is that of `weights`.
        """
        table = _taper_table(self.first_plane_px, self.n_planes, rise, fall, self.interpolated)
        return table[planes] if by_face else table[planes, 0]

    def weights(self, planes: slice, *, blend: bool, by_face: bool = False) -> np.ndarray:
        """Return the weight of planes of the slice over what lies above it, float32.

        They rise by `hann_weights` through the overlap when `blend` is true; else they are 1.

        Parameters
        ----------
        by_face
            Answer shape (planes, n_planes + 1): the weights of columns of which so many planes
            lie above the cut face. Their overlap begins so much later, and is so much shorter;
            a weight below 0 marks a plane that is not used.
        """
        table = _weight_table(
            self.first_plane_px, self.n_planes, self.overlap_px, blend, self.interpolated
        )[planes]
        return table if by_face else table[:, 0]


@functools.lru_cache(maxsize=16)
def _weight_table(
    first_plane: int, n_planes: int, overlap: int, blend: bool, interpolated: bool
) -> np.ndarray:
    table = np.ones((n_planes, n_planes + 1), np.float32)
    for face in range(n_planes + 1):
        begin = min(first_plane + face, n_planes)
        table[:begin, face] = -1
        left = min(max(0, overlap - face), n_planes - begin)
        if interpolated:
            table[begin : begin + left, face] = 0
        elif blend and overlap > face:
            table[begin : begin + left, face] = hann_weights(overlap - face)[:left]
    return table


@functools.lru_cache(maxsize=16)
def _taper_table(
    first_plane: int, n_planes: int, rise: int, fall: int, interpolated: bool
) -> np.ndarray:
    table = np.ones((n_planes, n_planes + 1), np.float32)
    rising, falling = (np.append(hann_weights(n), np.float32(1)) for n in (rise, fall))
    end = falling[np.minimum(np.arange(n_planes)[::-1], fall)]
    for face in range(n_planes + 1):
        begin = min(first_plane + face, n_planes)
        table[begin:, face] = rising[np.minimum(np.arange(n_planes - begin), rise)] * end[begin:]
        table[:begin, face] = -1
    return np.where(table > 0, np.float32(0), table) if interpolated else table


@dataclass(frozen=True)
class StackStep:
    """One read of stacking: some planes of a slice, for one lateral block of the brain.

    Attributes
    ----------
    window
        The block's pixels along axis 1 and axis 2.
    place
        The slice; None where no slice reaches.
    planes
        Planes of the slice, all within one layer of its chunks.
    finished
        Planes of the brain, a layer of shards each, to which no later step adds.
    """

    window: tuple[slice, slice]
    place: StackedSlice | None
    planes: slice
    finished: tuple[slice, ...]


def cuts(whole: slice, side: int) -> Iterator[slice]:
    """Cut a range at the multiples of `side`."""
    start = whole.start
    while start < whole.stop:
        stop = min(whole.stop, (start // side + 1) * side)
        yield slice(start, stop)
        start = stop


def place_slices(
    ids: Sequence[int],
    n_planes: Mapping[int, int],
    face_um: Mapping[int, float],
    axial_um: float,
    first_plane: int,
    interpolated: Collection[int] = (),
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
        Planes not used at the top of every measured slice but the first.
    interpolated
        Slices that were made from their neighbours, all of whose planes are used.

    Returns
    -------
    Places, the first slice's plane 0 at plane 0. Depths are rounded from the whole sum, so that
    roundings do not add up.

    Raises
    ------
    InputError
        When slices are so far apart that the brain is all but empty; names the first such.
    """
    top = face_um[ids[0]]
    placed: list[StackedSlice] = []
    measured = 0
    for n, slice_id in enumerate(ids):
        start = max(0, round((face_um[slice_id] - top) / axial_um))
        made = slice_id in interpolated
        skipped = 0 if n == 0 or made else min(first_plane, n_planes[slice_id] - 1)
        end = start + n_planes[slice_id]
        deepest = MOST_EMPTY * max(n_planes.values()) * (slice_id - ids[0] + 1)
        if end > deepest:
            raise InputError(
                f"slice z{slice_id:02d} would end {end} planes below the top of slice "
                f"z{ids[0]:02d}; expected at most {deepest}, {MOST_EMPTY} times the planes of a "
                "slice for each id. Are slice interval and voxel size in their units?"
            )
        overlap = max(0, min(measured, end) - (start + skipped))
        placed.append(StackedSlice(slice_id, start, skipped, n_planes[slice_id], overlap, made))
        measured = measured if made else max(measured, end)
    return placed


def hann_weights(n: int) -> np.ndarray:
    """Return the weight of the new slice over `n` planes of overlap: a raised cosine, float32.

    Planes are sampled at their centres, so that weights are symmetric and never 0 or 1.
    """
    t = (np.arange(n) + 0.5) / n
    return (0.5 * (1 - np.cos(np.pi * t))).astype(np.float32)


def stack_steps(
    places: Sequence[StackedSlice],
    shape: Sequence[int],
    reaches: Callable[[StackedSlice, tuple[slice, slice]], bool],
    planes: slice | None = None,
    sides: tuple[int, int] = (BLOCK_PX, BLOCK_PX),
    rows: slice | None = None,
) -> Iterator[StackStep]:
    """Plan in which order slices are read, so that each is read about once.

    Slab by slab, and in a slab block by block, the slices follow each other in order of depth. Of
    a block only the layers of shards are open that the slice in hand reaches.

    Parameters
    ----------
    places
        In the order in which slices are laid over each other.
    shape
        Voxels of the brain.
    reaches
        Whether a slice has pixels in a lateral block.
    planes
        Which of the brain, whole layers of shards; None for all.
    sides
        Of a block, pixels.
    rows
        Which of the brain, whole blocks; None for all.
    """
    for slab in cuts(planes or slice(0, shape[0]), SLAB_PX):
        for i in cuts(rows or slice(0, shape[1]), sides[0]):
            for j in cuts(slice(0, shape[2]), sides[1]):
                there = [place for place in places if reaches(place, (i, j))]
                yield from _block_steps(there, slab, (i, j))


def _block_steps(
    places: Sequence[StackedSlice], slab: slice, window: tuple[slice, slice]
) -> Iterator[StackStep]:
    layers = list(cuts(slab, SHARD_PX))
    reads: list[tuple[StackedSlice, slice]] = []
    last = [-1] * len(layers)
    for place in places:
        first = max(place.first_plane_px, slab.start - place.z_start_px)
        stop = min(place.n_planes, slab.stop - place.z_start_px)
        for planes in cuts(slice(first, stop), CHUNK_PX):
            begin, end = place.z_start_px + planes.start, place.z_start_px + planes.stop
            for n, layer in enumerate(layers):
                if layer.start < end and begin < layer.stop:
                    last[n] = len(reads)
            reads.append((place, planes))
    empty = tuple(layer for layer, n in zip(layers, last, strict=True) if n < 0)
    if empty:
        yield StackStep(window, None, slice(0, 0), empty)
    for n, (place, planes) in enumerate(reads):
        finished = tuple(layer for layer, m in zip(layers, last, strict=True) if m == n)
        yield StackStep(window, place, planes, finished)


def block_sides(plane: tuple[int, int], free_bytes: int) -> tuple[int, int]:
    """Return the lateral sides of what a GPU puts together at a time, as its free memory allows.

    It decodes a thousand chunks about as fast as a few. So blocks are whole planes where there is
    room, else as many whole rows of `BLOCK_PX`, else a part of a row. In all of these the cells of
    a pyramid come in the same order, and so its sums keep their bits.

    Parameters
    ----------
    plane
        Pixels of the brain's planes.
    free_bytes
        Device memory.
    """
    room_px = GPU_SHARE * free_bytes / GPU_NBYTES_A_PX
    rows, columns = (BLOCK_PX * -(-side // BLOCK_PX) for side in plane)
    if plane[0] * plane[1] <= room_px:
        return rows, columns
    side = min(BLOCK_PX, plane[0])
    fitting = int(room_px / (side * plane[1]))
    if fitting:
        return BLOCK_PX * fitting, columns
    return BLOCK_PX, BLOCK_PX * max(1, int(room_px / (side * BLOCK_PX)))


def places_within(places: Sequence[StackedSlice], planes: slice) -> list[StackedSlice]:
    """Return the slices that take part in some planes of the brain."""
    return [place for place in places if place.begin < planes.stop and planes.start < place.end]


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

    Raises
    ------
    DeviceError
        When `use_gpu` is set and there is no usable GPU.
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
