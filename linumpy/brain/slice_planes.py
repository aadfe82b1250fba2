"""Slice volumes as registration and stacking read them, and the planes that a pair compares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from linumpy.core.device import Array, namespace
from linumpy.geometry.flatten import FLATTEN_SIGMA_PX, flatten
from linumpy.io.omezarr import Image
from linumpy.io.slice_layout import CHUNK_PX

Window = tuple[slice, slice]

LOCAL_SIGMA_PX = 4.0
"""Of the local mean that pairs are freed of: as wide as a bin of the attenuation, so that shadows
which are wider are no texture."""

_STRIP_VOXELS = 1 << 24
"""Voxels that are read at once to be binned, about."""

_CONTRAST = 1e-5
"""What rounding makes of a constant image, against its brightness, is less."""


@dataclass(frozen=True)
class KnownPlanes:
    """Whole planes of a slice at one factor, by number; `coarse` also by the further factor."""

    binned: dict[int, tuple[Array, Array | None]] = field(default_factory=dict)
    coarse: dict[tuple[int, int], Array] = field(default_factory=dict)


@dataclass(frozen=True)
class GivenPlace:
    """Where a slice lies that is in common position already, as one made by interpolation is.

    Attributes
    ----------
    offset_um
        What is added to its own position: z, axis 1, axis 2.
    rotation_deg
        Its rotation about the pivot of the brain.
    """

    offset_um: tuple[float, float, float]
    rotation_deg: float = 0.0


@dataclass(frozen=True)
class SliceVolume:
    """A cropped slice as registration and stacking see it.

    Attributes
    ----------
    shape
        Planes and lateral pixels.
    corner_um
        Stage position of the low corner along axis 1 and axis 2.
    face_to_plane_um
        Depth below the mean cut face at which plane 0 begins: a fraction of a voxel, but negative
        and as large as the cut is uneven where the slice was cropped above all of its face.
    read
        Reads planes ``start … stop − 1`` within a lateral window, as amplitudes and mask.
    place
        Of a slice that was interpolated; None for a measured one, which registration places.
    quality
        Weights of voxels when slices are blended, float32; None where nothing is known of them.
    moved_um
        What of `corner_um` was added to the position in the slice's own metadata, by a table.
    image
        That `read` reads; None for one in memory.
    known
        What pairs made of its planes before, by factor; None where each pair starts anew.
    attenuation_from
        The next slice, by whose overlap residual attenuation was corrected; None without.
    stage_z_um, thickness_um
        Height of the stage and thickness of the slice by its own metadata; None where they tell
        none.
    """

    slice_id: int
    shape: tuple[int, int, int]
    corner_um: tuple[float, float]
    face_to_plane_um: float
    read: Callable[[slice, Window], tuple[Array, Array | None]]
    place: GivenPlace | None = None
    moved_um: tuple[float, float] = (0.0, 0.0)
    stage_z_um: float | None = None
    thickness_um: float | None = None
    quality: Callable[[slice, Window], Array] | None = None
    image: Image | None = None
    known: Callable[[int], KnownPlanes] | None = None
    attenuation_from: int | None = None

    def moved(self, by_um: tuple[float, float]) -> SliceVolume:
        """Return the slice at another place: its own, to which a vector is added."""
        corner = tuple(
            at - before + now
            for at, before, now in zip(self.corner_um, self.moved_um, by_um, strict=True)
        )
        return replace(self, corner_um=(corner[0], corner[1]), moved_um=by_um)

    def whole(self) -> Window:
        """Return the window of all lateral pixels."""
        return slice(0, self.shape[1]), slice(0, self.shape[2])


def expected_plane(id_step: int, interval_um: float, axial_um: float, moving_plane: int) -> int:
    """Return the fixed slice's plane that shows what `moving_plane` of a later slice shows.

    Missing slices count: the step is between ids, not between present slices.
    """
    return round(id_step * interval_um / axial_um) + moving_plane


def plane_of_top(
    fixed: SliceVolume, moving: SliceVolume, distance_um: float, axial_um: float
) -> int:
    """Return the fixed slice's plane that shows the moving one's plane 0, for a distance of faces.

    Under tilted cuts, slices begin several planes above their mean faces, each as far as its own
    tilt says.
    """
    apart_um = distance_um + moving.face_to_plane_um - fixed.face_to_plane_um
    return expected_plane(1, apart_um, axial_um, 0)


class Planes:
    """Planes ``low … high − 1`` of a slice for a pair, read and flattened once.

    Parameters
    ----------
    volume
        The slice.
    low, high
        First plane and one past the last.
    factor
        Pixels of a side that are one for the search over the whole plane.
    """

    def __init__(self, volume: SliceVolume, low: int, high: int, factor: int) -> None:
        self.volume, self.low, self.high, self.factor = volume, low, high, factor
        self._whole: tuple[Array, Array | None] | None = None
        planes = KnownPlanes() if volume.known is None else volume.known(factor)
        self._binned, self._coarse = planes.binned, planes.coarse
        self._window: tuple[Window, int, Array] | None = None

    @property
    def count(self) -> int:
        """How many planes there are."""
        return self.high - self.low

    def known(self, plane: int) -> float:
        """Return the share of a plane's pixels that are valid and of more than one value."""
        return float((abs(self.coarse(plane, 1)) > _CONTRAST).mean())

    def coarse(self, start: int, count: int, extra: int = 1) -> Array:
        """Return flattened whole planes, binned by the factor and `extra` times that."""
        wanted = range(start, start + count)
        lacking = [plane for plane in wanted if (extra, plane) not in self._coarse]
        parts = [_bin_both(*self._bin(plane), extra) for plane in lacking]
        if parts:
            xp = namespace(parts[0][0])
            valid = None
            if parts[0][1] is not None:
                valid = xp.concatenate([share for _, share in parts])
            data = xp.concatenate([data for data, _ in parts])
            flat = flatten_tissue(data, valid, LOCAL_SIGMA_PX)
            for plane, image in zip(lacking, flat, strict=True):
                self._coarse[extra, plane] = image
        xp = namespace(self._coarse[extra, start])
        return xp.stack([self._coarse[extra, plane] for plane in wanted])

    def _bin(self, plane: int) -> tuple[Array, Array | None]:
        if plane not in self._binned:
            # A chunk is decoded whole: all planes of its layer are binned, so that it is once.
            layer = plane - plane % CHUNK_PX
            planes = slice(max(self.low, layer), min(self.high, layer + CHUNK_PX))
            if self.factor == 1 or self.volume.known is not None:
                planes = slice(plane, plane + 1)
            data, valid = self._bin_planes(planes)
            for n, each in enumerate(range(planes.start, planes.stop)):
                share = None if valid is None else valid[n : n + 1]
                self._binned[each] = data[n : n + 1], share
        return self._binned[plane]

    def _bin_planes(self, planes: slice) -> tuple[Array, Array | None]:
        """Bin whole planes in strips: all of a large slice is needed here, but only coarsely."""
        whole = self.volume.whole()
        n1, n2 = self.volume.shape[1:]
        rows = max(CHUNK_PX, _STRIP_VOXELS // ((planes.stop - planes.start) * n2))
        rows = self.factor * -(-rows // self.factor)
        strips = [
            _bin_both(
                *self._read(planes, (slice(first, min(first + rows, n1)), whole[1])), self.factor
            )
            for first in range(0, n1, rows)
        ]
        if len(strips) == 1:
            # A view of a slice that is kept takes no memory of its own.
            return strips[0]
        xp = namespace(strips[0][0])
        data = xp.concatenate([strip for strip, _ in strips], axis=1)
        shares = [share for _, share in strips if share is not None]
        return data, xp.concatenate(shares, axis=1) if shares else None

    def within(self, window: Window, start: int, count: int) -> Array:
        """Return flattened planes of a window, at full resolution."""
        if self._window is not None:
            known, first, planes = self._window
            if known == window and first <= start and start + count <= first + len(planes):
                return planes[start - first : start - first + count]
        planes = flatten_tissue(*self._read(slice(start, start + count), window), LOCAL_SIGMA_PX)
        self._window = (window, start, planes)
        return planes

    def _read(self, planes: slice, window: Window) -> tuple[Array, Array | None]:
        if self.factor > 1:
            return self.volume.read(planes, window)
        if self._whole is None:
            self._whole = self.volume.read(slice(self.low, self.high), self.volume.whole())
        data, valid = self._whole
        part = (slice(planes.start - self.low, planes.stop - self.low), *window)
        return data[part], None if valid is None else valid[part]


def flatten_tissue(planes: Array, valid: Array | None, sigma_px: float = FLATTEN_SIGMA_PX) -> Array:
    """Flatten planes so that what is dimmer than their mean counts less.

    Agarose holds about nothing once a slice is normalised. Divided by its own brightness its noise
    would outweigh the texture of tissue, above all where there is little of it, or deep in a slice.

    Parameters
    ----------
    planes, valid, sigma_px
        As of `linumpy.geometry.flatten.flatten`.

    Returns
    -------
    ``(smoothed − mean) / (mean + M)`` with Gaussian windows and the plane's own mean M.
    """
    xp = namespace(planes)
    planes = planes.astype(xp.float32)
    if valid is None:
        level = planes.mean(axis=(1, 2), keepdims=True)
    else:
        there = valid > 0
        total = xp.where(there, planes, 0).sum(axis=(1, 2), keepdims=True)
        level = total / xp.maximum(there.sum(axis=(1, 2), keepdims=True), 1)
    return flatten(planes + level.astype(xp.float32), valid, sigma_px)


def _bin_both(data: Array, valid: Array | None, factor: int) -> tuple[Array, Array | None]:
    if factor == 1:
        return data, valid
    return bin_planes(data, factor), None if valid is None else bin_planes(valid, factor) > 0.5


def bin_planes(planes: Array, factor: int) -> Array:
    """Return means over squares of `factor` pixels a side, float32; a rest at the end is lost."""
    xp = namespace(planes)
    n1, n2 = planes.shape[1] // factor, planes.shape[2] // factor
    blocks = planes[:, : n1 * factor, : n2 * factor].astype(xp.float32)
    return blocks.reshape(len(planes), n1, factor, n2, factor).mean(axis=(2, 4))
