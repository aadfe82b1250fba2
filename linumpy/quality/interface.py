"""Accuracy of the cut face, by slice and by A-line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from linumpy.quality.accuracy_metric import AccuracyMetric, make_metric, not_measured
from linumpy.quality.resample import average_plane
from linumpy.quality.run import Run
from linumpy.quality.truth import TISSUE_CLASS, Truth

TARGET_VOXEL = 1.0
MAX_TILES = 60
BELOW_FACE_UM = 60.0


def slice_interface(run: Run, truth: Truth) -> AccuracyMetric:
    """Return ``interface_voxel``: median over slices of |cut depth - mean depth of the face|.

    The face's depth is averaged over the area that the slice's tiles truly cover. Slices that
    are to be left out of the brain do not count.
    """
    errors = {}
    for slice_id in _rated_slices(run, truth):
        crop = run.crops[slice_id]
        axial_um = run.tile_registrations[slice_id].voxel_um[0]
        expected = truth.interface_um(slice_id, mean_unevenness_um(truth, slice_id))
        errors[slice_id] = (crop["interface_um"] - expected) / axial_um
    if not errors:
        return not_measured("no crop model of a slice in the truth", "voxel", target=TARGET_VOXEL)
    values = np.abs(list(errors.values()))
    return make_metric(
        float(np.median(values)),
        "voxel",
        len(errors),
        target=TARGET_VOXEL,
        largest=values.max(),
        slices=errors,
    )


def surface_interface(run: Run, truth: Truth) -> AccuracyMetric:
    """Return ``interface_surface_voxel``: RMS error of the cut's surface over tissue.

    The surface of each slice is compared at the centres of its cells, moved to the block by the
    slice's true place, where tissue lies just below the true face. A flat cut is a surface too.
    """
    errors: dict[int, np.ndarray] = {}
    beside: dict[int, float] = {}
    if truth.classes_path.is_dir():
        for slice_id in _rated_slices(run, truth):
            found = _surface_errors(run, truth, slice_id)
            if found is not None and found[1].any():
                error, tissue = found
                errors[slice_id] = error[tissue]
                beside[slice_id] = _rms(error[~tissue])
    if not errors:
        return not_measured(
            "no surface in a crop model of a slice in the truth", "voxel",
            target=TARGET_VOXEL,
        )  # fmt: skip
    values = np.concatenate(list(errors.values()))
    return make_metric(
        _rms(values),
        "voxel",
        values.size,
        target=TARGET_VOXEL,
        largest=np.abs(values).max(),
        mean=values.mean(),
        slices={i: _rms(e) for i, e in errors.items()},
        agarose=beside,
    )


def _rated_slices(run: Run, truth: Truth) -> list[int]:
    """Return the slices with a cut that are good in the truth."""
    return [
        i
        for i in run.crops
        if i in run.tile_registrations and i in truth.slices and not truth.slices[i].bad
    ]


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2))) if values.size else 0.0


def _surface_errors(run: Run, truth: Truth, slice_id: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return found minus true depth of a slice's cells, voxels, and which have tissue below."""
    model = run.model(f"z{slice_id:02d}/crop_3d_mosaic_below_interface")
    if model is None or "surface_um" not in model:
        return None
    known, registration = truth.slices[slice_id], run.tile_registrations[slice_id]
    surface_um = np.asarray(model["surface_um"], dtype=float)
    sides = [
        corner + (np.arange(n) + 0.5) * cell
        for corner, n, cell in zip(
            model["corner_um"], surface_um.shape, model["cell_um"], strict=True
        )
    ]
    shifts = [
        known.frame_corner_um(t.index) - t.corner_um
        for t in registration.tiles
        if t.index in known.corner_um
    ]
    if not shifts:
        return None
    own = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1) + np.mean(shifts, axis=0)
    block = known.to_block_um(own)
    uneven = known.face.at_each(block)
    error = surface_um - truth.interface_um(slice_id, uneven)
    if model.get("flat"):
        error = model["interface_um"] - truth.interface_um(slice_id, uneven)
    tissue = _tissue_below(truth, block, known.face_um + uneven + BELOW_FACE_UM)
    return error / registration.voxel_um[0], tissue


def _tissue_below(truth: Truth, block_um: np.ndarray, depth_um: np.ndarray) -> np.ndarray:
    """Return at which block positions (..., 2) and depths the truth's class is tissue."""
    from linumpy.io.omezarr import open_image

    classes = open_image(truth.classes_path)
    points = np.concatenate([depth_um[..., None], block_um], axis=-1)
    origin = np.asarray(classes.translation_um) - np.asarray(classes.voxel_um) / 2
    index = np.floor((points - origin) / classes.voxel_um).astype(int)
    inside = np.all((index >= 0) & (index < classes.array.shape), axis=-1)
    index = np.clip(index, 0, np.asarray(classes.array.shape) - 1)
    low, high = int(index[..., 0].min()), int(index[..., 0].max()) + 1
    slab = np.asarray(classes.array[low:high])
    return inside & (slab[index[..., 0] - low, index[..., 1], index[..., 2]] >= TISSUE_CLASS)


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
    return {index: known.unevenness_um(index, centres) for index in known.corner_um}


def aline_interface(run: Run, truth: Truth, grids: Mapping[int, Path]) -> AccuracyMetric:
    """Return ``interface_aline_voxel``: median |error| over the A-lines of focal-corrected tiles.

    Tiles are read from the native grids, resampled to the model's voxels and moved by the run's
    own focal surface, so that its error counts. Tiles without light do not count. At most
    `MAX_TILES` tiles, evenly spaced over the acquisition, are measured.

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
        if slice_id in truth.slices and not truth.slices[slice_id].bad
        for index in truth.slices[slice_id].corner_um
        if index not in truth.slices[slice_id].dark
    ]
    if not wanted:
        return not_measured("no mosaic grid of a slice in the truth", "voxel", target=TARGET_VOXEL)
    chosen = np.unique(np.linspace(0, len(wanted) - 1, min(MAX_TILES, len(wanted))).astype(int))
    errors = np.concatenate(
        [_tile_errors(grids[i], t, truth, i, voxel_um, surface_px) for i, t in
         (wanted[k] for k in chosen)]
    )  # fmt: skip
    return make_metric(
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
    from linumpy.geometry.detect_focal_curvature import correct_focal_curvature
    from linumpy.geometry.interface import find_tissue_interface
    from linumpy.geometry.resample import resample_mosaic_grid
    from linumpy.io.grid import open_grid

    grid = open_grid(grid_path)
    tile = resample_mosaic_grid(grid.read_tile(*index), grid.info.voxel_um, voxel_um)
    moved, valid = correct_focal_curvature(tile, surface_px)
    found = np.asarray(find_tissue_interface(moved, axis=0, valid=valid), dtype=float)
    known = truth.slices[slice_id]
    centres = [
        (np.arange(n) + 0.5) * pixel
        for n, pixel in zip(truth.focal_um.shape, truth.voxel_um[1:], strict=True)
    ]
    fine = known.unevenness_um(index, centres)
    rows, columns = found.shape
    uneven = average_plane(fine, truth.voxel_um[1:], (rows, columns), voxel_um[1:])
    error = found - truth.interface_um(slice_id, uneven) / voxel_um[0]
    return error[np.isfinite(error)]
