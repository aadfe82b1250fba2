"""Depth of the cut face against the truth, a slice and an A-line at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from linumpy.quality.figure import Figure, make_figure, not_measured
from linumpy.quality.resample import average_plane
from linumpy.quality.run import Run
from linumpy.quality.truth import Truth

TARGET_VOXEL = 1.0
MAX_TILES = 60


def slice_interface(run: Run, truth: Truth) -> Figure:
    """Return ``interface_voxel``: median over slices of |cut depth - mean depth of the face|.

    The face's depth is averaged over the area that the slice's tiles truly cover.
    """
    errors = {}
    for slice_id, crop in run.crops.items():
        if slice_id not in truth.slices or slice_id not in run.tile_registrations:
            continue
        axial_um = run.tile_registrations[slice_id].voxel_um[0]
        expected = truth.interface_um(slice_id, mean_unevenness_um(truth, slice_id))
        errors[slice_id] = (crop["interface_um"] - expected) / axial_um
    if not errors:
        return not_measured(
            "no crop model of a slice that the truth knows", "voxel", target=TARGET_VOXEL
        )
    values = np.abs(list(errors.values()))
    return make_figure(
        float(np.median(values)),
        "voxel",
        len(errors),
        target=TARGET_VOXEL,
        largest=values.max(),
        slices=errors,
    )


def mean_unevenness_um(truth: Truth, slice_id: int) -> float:
    """Average a face's unevenness over all A-lines of the slice's tiles."""
    return float(np.mean([u.mean() for u in tile_unevenness(truth, slice_id).values()]))


def tile_unevenness(truth: Truth, slice_id: int) -> dict[tuple[int, int], np.ndarray]:
    """Return the face's unevenness at every raw A-line of every tile, um, by (ix, iy)."""
    known = truth.slices[slice_id]
    centres = [
        (np.arange(n) + 0.5) * pixel
        for n, pixel in zip(truth.focal_um.shape, truth.voxel_um[1:], strict=True)
    ]
    return {
        index: known.face.at(corner[0] + centres[0], corner[1] + centres[1])
        for index, corner in known.corner_um.items()
    }


def aline_interface(run: Run, truth: Truth, grids: Mapping[int, Path]) -> Figure:
    """Return ``interface_aline_voxel``: median |error| over the A-lines of focal-corrected tiles.

    Tiles are read from the native grids, resampled to the model's voxels and moved by the run's
    own focal surface, so that its error counts. At most `MAX_TILES` tiles, evenly spaced over
    the acquisition, are looked at.

    Parameters
    ----------
    grids
        Mosaic grids by slice id.
    """
    model = run.model("detect_focal_curvature")
    if model is None or "surface_um" not in model:
        return not_measured("no models/detect_focal_curvature", "voxel", target=TARGET_VOXEL)
    voxel_um = tuple(float(v) for v in model["voxel_um"])
    surface_px = np.asarray(model["surface_um"], dtype=np.float32) / np.float32(voxel_um[0])
    wanted = [
        (slice_id, index)
        for slice_id in sorted(grids)
        if slice_id in truth.slices
        for index in truth.slices[slice_id].corner_um
    ]
    if not wanted:
        return not_measured(
            "no mosaic grid of a slice that the truth knows", "voxel", target=TARGET_VOXEL
        )
    chosen = np.unique(np.linspace(0, len(wanted) - 1, min(MAX_TILES, len(wanted))).astype(int))
    errors = np.concatenate(
        [_tile_errors(grids[i], t, truth, i, voxel_um, surface_px) for i, t in
         (wanted[k] for k in chosen)]
    )  # fmt: skip
    return make_figure(
        float(np.median(np.abs(errors))) if errors.size else None,
        "voxel",
        errors.size,
        target=TARGET_VOXEL,
        tiles=len(chosen),
        median_signed=float(np.median(errors)) if errors.size else None,
        percentile_90=float(np.percentile(np.abs(errors), 90)) if errors.size else None,
    )


def _tile_errors(
    grid_path: Path,
    index: tuple[int, int],
    truth: Truth,
    slice_id: int,
    voxel_um: Sequence[float],
    surface_px: np.ndarray,
) -> np.ndarray:
    """Return found minus true interface of one tile's A-lines, voxels, those with none left out."""
    from linumpy.geometry.detect_focal_curvature import detect_focal_curvature
    from linumpy.geometry.interface import find_tissue_interface
    from linumpy.geometry.resample import resample_mosaic_grid
    from linumpy.io.grid import open_grid

    grid = open_grid(grid_path)
    tile = resample_mosaic_grid(grid.read_tile(*index), grid.info.voxel_um, voxel_um)
    moved, valid = detect_focal_curvature(tile, surface_px)
    found = np.asarray(find_tissue_interface(moved, axis=0, valid=valid), dtype=float)
    known = truth.slices[slice_id]
    fine = known.face.at(
        *(
            corner + (np.arange(n) + 0.5) * pixel
            for corner, n, pixel in zip(
                known.corner_um[index], truth.focal_um.shape, truth.voxel_um[1:], strict=True
            )
        )
    )
    rows, columns = found.shape
    uneven = average_plane(fine, truth.voxel_um[1:], (rows, columns), voxel_um[1:])
    error = found - truth.interface_um(slice_id, uneven) / voxel_um[0]
    return error[np.isfinite(error)]
