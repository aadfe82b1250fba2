"""Crop each slice at its interface, and to a depth below it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from linumpy.core.device import Array, namespace
from linumpy.core.errors import InputError
from linumpy.geometry.interface_surface import fit_face, sample_surface
from linumpy.geometry.least_squares import least_squares
from linumpy.geometry.reflections import level_below, reflecting_bodies, reflecting_cells

_MOST_SHADOWED = 0.25
"""Of the cells. Half is where medians, by which reflections are told, break down."""


@dataclass(frozen=True)
class InterfaceCut:
    """Where a slice is cut.

    Attributes
    ----------
    interface_um
        Mean depth of the interface below the top of the volume (the edge of its voxel 0).
    depth_um
        Depth kept, from the highest point of the cut.
    first_plane, n_planes
        The planes kept.
    flat
        Whether the cut is a plane at `interface_um`; else it follows `surface_um`, and what lies
        above it in the planes kept is masked.
    tilt_um
        Fall of the surface across the slice along axis 1 and axis 2.
    used_fraction
        Share of the cells with data that the surface rests on.
    cell_um, corner_um
        Side of a cell, and stage position of the low corner of cell (0, 0), along axis 1 and
        axis 2.
    surface_um
        Depth of the interface at the cells' centres, as `interface_um`; float32 (cells along
        axis 1, along axis 2).
    reflections
        Bubbles and debris above the face: ``area_um2`` in whole cells, and ``centre_um``, a stage
        position along axis 1 and axis 2, and ``cells``, numbers along both axes of those that
        are in its shadow. Largest first.
    parts
        Cells of `reflections` that make a cell of `surface_um`, a side.
    """

    slice_id: int
    interface_um: float
    depth_um: float
    first_plane: int
    n_planes: int
    flat: bool
    tilt_um: tuple[float, float]
    used_fraction: float
    cell_um: tuple[float, float]
    corner_um: tuple[float, float]
    surface_um: np.ndarray
    reflections: list[dict[str, Any]] = field(default_factory=list)
    parts: int = 1

    @property
    def shadowed(self) -> np.ndarray:
        """Cells in the shadow of `reflections`, which are masked; bool, `parts` a cell's side.

        None where more than a quarter of the slice would be: what all of it shows is no body.
        """
        found = np.zeros([self.parts * n for n in self.surface_um.shape], bool)
        places = [cell for body in self.reflections for cell in body.get("cells", ())]
        if 0 < len(places) <= _MOST_SHADOWED * found.size:
            found[tuple(np.transpose(places))] = True
        return found


def searched_planes(n_planes: int, max_depth_fraction: float) -> int:
    """Return in how many planes from the top the interface is sought."""
    return min(n_planes, max(3, math.ceil(n_planes * max_depth_fraction)))


def solve_interface_cut(
    sums: np.ndarray,
    counts: np.ndarray,
    *,
    slice_id: int,
    n_planes: int,
    voxel_um: Sequence[float],
    corner_um: tuple[float, float],
    cell_px: int,
    s_z: float,
    depth_um: float,
    flat: bool,
    levels: np.ndarray | None = None,
) -> InterfaceCut:
    """Choose the planes to keep from the depth profiles of all cells.

    Parameters
    ----------
    sums, counts
        `interface_surface.log_profiles` of the searched planes of the whole slice.
    n_planes
        Planes of the slice.
    corner_um
        Stage position of the slice's low corner.
    cell_px
        Side of a cell.
    s_z
        Sigma of the derivative along depth, voxels.
    depth_um
        Depth wanted below the interface, everywhere.
    flat
        Whether to cut at one plane.
    levels
        Parts of cells as of `interface_surface.profiles_and_parts`, in which reflections are
        sought; none are without.

    Raises
    ------
    InputError
        When no A-line has data, or the interface lies at the bottom so that nothing is left.
    """
    if not counts.any():
        raise InputError(f"slice z{slice_id:02d}: no A-line with data, expected an interface")
    axial_um = voxel_um[0]
    cell_um = (cell_px * voxel_um[1], cell_px * voxel_um[2])
    face = fit_face(sums, counts, cell_px, voxel_um, s_z)
    seen = face.depth_px[face.has_data]
    # Over all of the slice, so that a hole in one of two tilted slices does not set them apart in
    # depth; cells at the border are smaller.
    sizes = [counts.max(axis=axes) for axes in ((0, 2), (0, 1))]
    interface = float(np.average(face.depth_px, weights=np.outer(*sizes)))
    top, bottom = (interface, interface) if flat else (float(seen.min()), float(seen.max()))
    # A voxel belongs to the tissue when most of it lies below the face.
    first, deepest = int(np.rint(top)), int(np.rint(bottom))
    below = min(round(depth_um / axial_um), n_planes - deepest)
    if below < 1:
        raise InputError(
            f"slice z{slice_id:02d}: interface at plane {deepest} of {n_planes}, nothing below it"
        )
    n_kept = deepest + below - first
    parts, reflections = 1, []
    if levels is not None:
        parts = levels.shape[1] // sums.shape[1]
        many = counts >= max(1.0, 0.5 * cell_px**2)
        profiles = np.where(many, sums / np.maximum(counts, 1), np.nan)
        reflections = _reflections(profiles, levels, parts, face.depth_px, cell_um, corner_um)
    return InterfaceCut(
        slice_id=slice_id,
        interface_um=interface * axial_um,
        depth_um=n_kept * axial_um,
        first_plane=first,
        n_planes=n_kept,
        flat=flat,
        tilt_um=_fall(face.depth_px * axial_um, face.has_data),
        used_fraction=float(face.used.sum() / face.has_data.sum()),
        cell_um=cell_um,
        corner_um=corner_um,
        surface_um=(face.depth_px * axial_um).astype(np.float32),
        reflections=reflections,
        parts=parts,
    )


def _reflections(
    profiles: np.ndarray,
    levels: np.ndarray,
    parts: int,
    depth_px: np.ndarray,
    cell_um: tuple[float, float],
    corner_um: tuple[float, float],
) -> list[dict[str, Any]]:
    """Return what reflects above the face, in cells or in parts, and the shadows of the latter."""
    centres = [np.arange(n) + 0.5 for n in levels.shape[1:]]
    depth = sample_surface(depth_px, (parts, parts), *centres)
    side_um = cell_um[0] / parts, cell_um[1] / parts
    clear = reflecting_cells(levels, depth)
    weak = np.kron(reflecting_cells(profiles, depth_px), np.ones((parts, parts), bool))
    cells = clear | weak
    if not cells.any():
        return []
    level = level_below(levels, depth)
    return reflecting_bodies(clear, cells, level, side_um, corner_um, parts)


def _fall(surface: np.ndarray, there: np.ndarray) -> tuple[float, float]:
    """Return how far the plane through a surface falls from one side to the other."""
    axes = [np.arange(n) / max(n - 1, 1) for n in surface.shape]
    grid = np.meshgrid(*axes, indexing="ij")
    design = np.column_stack([np.ones(there.sum()), grid[0][there], grid[1][there]])
    plane = least_squares(design, surface[there])
    return float(plane[1]), float(plane[2])


def cut_planes(cut: InterfaceCut, voxel_um: Sequence[float], window: tuple[slice, slice]) -> (
    np.ndarray | None
):  # fmt: skip
    """Return the first kept plane of each A-line of a part of a slice.

    Parameters
    ----------
    voxel_um
        Voxels of the slice.
    window
        Pixels of the part along axis 1 and axis 2.

    Returns
    -------
    int32 (axis 1, axis 2), counted from `first_plane`; beyond the last one in shadows. None where
    the cut is flat, and nothing shadows this part.
    """
    cell_px = [side / pixel for side, pixel in zip(cut.cell_um, voxel_um[1:], strict=True)]
    shadows = cut.shadowed
    cells = np.ix_(
        *(
            np.minimum(np.arange(part.start, part.stop) // round(size / cut.parts), n - 1)
            for part, size, n in zip(window, cell_px, shadows.shape, strict=True)
        )
    )
    shadowed = shadows[cells]
    if cut.flat:
        return np.where(shadowed, np.int32(cut.n_planes), np.int32(0)) if shadowed.any() else None
    centres = [np.arange(part.start, part.stop) + 0.5 for part in window]
    depth = sample_surface(cut.surface_um, cell_px, *centres) / voxel_um[0]
    top = np.clip(np.rint(depth).astype(np.int32) - cut.first_plane, 0, cut.n_planes)
    return np.where(shadowed, np.int32(cut.n_planes), top)


def crop_3d_mosaic_below_interface(
    volume: Array,
    valid: Array | None,
    first_plane: int,
    n_planes: int,
    top: np.ndarray | None = None,
) -> tuple[Array, Array | None]:
    """Keep `n_planes` planes from `first_plane` on, and mask what lies above the interface.

    Parameters
    ----------
    volume
        Slice or part of one (z, axis 1, axis 2), NumPy or CuPy.
    valid
        Its mask, or None.
    top
        From `cut_planes`; None for a flat cut.

    Returns
    -------
    Contiguous volume and mask on the same device. Above the interface both are 0.
    """
    xp = namespace(volume)
    planes = slice(first_plane, first_plane + n_planes)
    if top is None or not top.any():
        mask = None if valid is None else xp.ascontiguousarray(valid[planes])
        return xp.ascontiguousarray(volume[planes]), mask
    # Copies: the input may be needed again.
    data = xp.array(volume[planes], order="C")
    mask = xp.ones(data.shape, xp.uint8) if valid is None else xp.array(valid[planes], order="C")
    deepest = int(top.max())
    below = xp.arange(deepest)[:, None, None] >= xp.asarray(top)[None]
    data[:deepest] *= below
    mask[:deepest] *= below
    return data, mask
