"""Common frame of a gap: positions of the neighbours, and of what lies between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linumpy.brain.gaps.match import PlaneStack
from linumpy.brain.poses import entry_of, stage_to_common
from linumpy.brain.register_slices import SliceVolume
from linumpy.brain.slice_registration import SliceRegistration
from linumpy.core.device import to_host
from linumpy.geometry.zmorph import planar, sample_plane
from linumpy.stage_params.gaps import InterpolateParams

_BAND_PX = 512


@dataclass(frozen=True)
class Neighbour:
    """A slice beside a gap, and how it lies in the common frame.

    Attributes
    ----------
    to_common
        Map from its pixels to common positions, um.
    top_um
        Depth of its plane 0 below the first slice's face.
    """

    volume: SliceVolume
    to_common: np.ndarray
    top_um: float

    @classmethod
    def of(cls, volume: SliceVolume, model: SliceRegistration) -> Neighbour:
        """Place a slice by the registration.

        Raises
        ------
        InputError
            When the registration lacks it.
        """
        entry = entry_of(model, volume.slice_id)
        lateral = np.asarray(model.voxel_um[1:])
        pixels = planar(np.diag(lateral), volume.corner_um + lateral / 2)
        first_id = min(e["slice_id"] for e in model.slices)
        face = (volume.slice_id - first_id) * model.slice_interval_um + entry["offset_um"][0]
        return cls(
            volume,
            stage_to_common(model, volume.slice_id) @ pixels,
            float(face + volume.face_to_plane_um),
        )

    def corners_um(self) -> np.ndarray:
        """Return the common positions of its outermost pixels' outer corners, shape (4, 2)."""
        n1, n2 = self.volume.shape[1:]
        ends = np.array([[i, j, 1] for i in (-0.5, n1 - 0.5) for j in (-0.5, n2 - 0.5)])
        return np.asarray((self.to_common @ ends.T)[:2].T)


@dataclass(frozen=True)
class Gap:
    """Planes that neither neighbour shows.

    Attributes
    ----------
    upper, lower
        The neighbours.
    upper_plane, lower_plane
        Last plane of the upper one, and first trusted plane of the lower one.
    end_um
        Depth at which the upper one ends, below the first slice's nominal face.
    gap_um
        Depth from there to the beginning of the lower one.
    n_planes
        Whole planes that fill it, from the upper one's end on; 0 when they meet.
    axial_um
        Plane distance.
    """

    upper: Neighbour
    lower: Neighbour
    upper_plane: int
    lower_plane: int
    end_um: float
    gap_um: float
    n_planes: int
    axial_um: float

    @property
    def span_planes(self) -> float:
        """Distance from the upper neighbour's last plane to the lower one's first, planes."""
        return self.gap_um / self.axial_um + 1.0


def find_gap(upper: Neighbour, lower: Neighbour, axial_um: float, params: InterpolateParams) -> Gap:
    """Return the gap between two neighbours of a missing slice."""
    lower_plane = min(params.first_plane, lower.volume.shape[0] - 1)
    end_um = upper.top_um + upper.volume.shape[0] * axial_um
    gap_um = lower.top_um + lower_plane * axial_um - end_um
    # Stacking rounds both ends to planes: one too many is cut off there, one too few is a hole.
    n_planes = max(0, math.ceil(gap_um / axial_um - 1e-6))
    last = upper.volume.shape[0] - 1
    return Gap(upper, lower, last, lower_plane, end_um, gap_um, n_planes, axial_um)


@dataclass(frozen=True)
class Lattice:
    """Pixels of the common frame.

    Attributes
    ----------
    corner_um
        Common position of the low corner.
    pixel_um
        Pixel along axis 1 and axis 2.
    shape
        Pixels.
    """

    corner_um: tuple[float, float]
    pixel_um: tuple[float, float]
    shape: tuple[int, int]

    @property
    def to_common(self) -> np.ndarray:
        """Map from pixels to common positions, um."""
        pixel = np.asarray(self.pixel_um)
        return planar(np.diag(pixel), self.corner_um + pixel / 2)

    def reduced(self, factor: int) -> Lattice:
        """Return the same extent with pixels `factor` times as large."""
        n1, n2 = (-(-n // factor) for n in self.shape)
        pixel = (self.pixel_um[0] * factor, self.pixel_um[1] * factor)
        return Lattice(self.corner_um, pixel, (n1, n2))


def common_grid(gap: Gap, pixel_um: Sequence[float]) -> Lattice:
    """Return the smallest grid that holds both neighbours, on whole pixels of an unturned one."""
    pixel = np.asarray(pixel_um, float)
    corners = [side.corners_um() for side in (gap.upper, gap.lower)]
    anchor = corners[0][0]
    every = np.concatenate(corners)
    low = np.floor((every.min(axis=0) - anchor) / pixel + 1e-9)
    high = np.ceil((every.max(axis=0) - anchor) / pixel - 1e-9)
    corner = anchor + low * pixel
    shape = (high - low).astype(int)
    return Lattice(
        (float(corner[0]), float(corner[1])),
        (float(pixel[0]), float(pixel[1])),
        (int(shape[0]), int(shape[1])),
    )


def read_reduced(
    side: Neighbour, planes: slice, grid: Lattice, factor: int, sigma_px: float
) -> PlaneStack:
    """Read planes of a neighbour on a grid of the common frame, a band of rows at a time.

    Parameters
    ----------
    side
        The slice.
    planes
        Its planes.
    grid
        A grid whose pixels are about `factor` times the slice's.
    factor
        Pixels of the slice that are averaged before they are moved onto the grid.
    sigma_px
        Smoothing on the grid.
    """
    n1, n2 = side.volume.shape[1:]
    rows, columns = n1 // factor, n2 // factor
    count = planes.stop - planes.start
    small = np.zeros((count, rows, columns), np.float32)
    known = np.zeros_like(small)
    step = max(1, _BAND_PX // factor)
    for start in range(0, rows, step):
        stop = min(rows, start + step)
        window = (slice(start * factor, stop * factor), slice(0, columns * factor))
        data, valid = side.volume.read(planes, window)
        data, valid = to_host(data), None if valid is None else to_host(valid)
        shape = (count, stop - start, factor, columns, factor)
        there = np.ones(data.shape, np.float32) if valid is None else (valid > 0)
        share = there.astype(np.float32).reshape(shape).mean(axis=(2, 4))
        mean = (data * there).astype(np.float32).reshape(shape).mean(axis=(2, 4))
        known[:, start:stop] = share > 0.5
        small[:, start:stop] = mean / np.maximum(share, 1e-3)
    # Pixel r of the small planes is centred on pixel (r + 1/2) · factor − 1/2 of the slice.
    inner = planar(np.eye(2) * factor, np.full(2, (factor - 1) / 2))
    to_source = np.linalg.inv(side.to_common @ inner) @ grid.to_common
    moved = [
        sample_plane(plane, mask, to_source, grid.shape)
        for plane, mask in zip(small, known, strict=True)
    ]
    return PlaneStack.of(
        np.stack([to_host(data) for data, _ in moved]),
        np.stack([to_host(mask) for _, mask in moved]),
        planes.start,
        sigma_px,
    )
