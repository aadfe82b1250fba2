"""Likeness of brain and truth, beside what an ideal reconstruction of the same tiles reaches.

Speckle and attenuation keep even a perfect reconstruction from equalling the clean volume, so
the run's correlation is divided by that of an ideal run: true positions, surfaces and fields on
the same raw data with the same resampling and blending. Blurring alone raises a correlation, so
the agreement of overlapping slices and the sharpness stand beside it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from linumpy.errors import InputError
from linumpy.quality.figure import AT_LEAST, Figure, make_figure, not_measured
from linumpy.quality.positions import plane_z_um, slice_z_errors, stacked_z_errors
from linumpy.quality.resample import average_volume, overlap_weights
from linumpy.quality.rotation import BlockFrame, lateral_frame, turn_volume
from linumpy.quality.run import Run
from linumpy.quality.truth import TISSUE_CLASS, Truth

TARGET = 0.95
EROSION_VOXELS = 2
MIN_VOXELS = 50
MIN_SHARE = 0.5


@dataclass(frozen=True)
class TruthSlab:
    """The part of the truth that one slice is judged on.

    Attributes
    ----------
    start, stop
        Planes of the truth volume.
    clean
        Noise-free amplitude.
    tissue
        Tissue of which `EROSION_VOXELS` layers have been taken off.
    """

    slice_id: int
    start: int
    stop: int
    clean: np.ndarray
    tissue: np.ndarray


@dataclass(frozen=True)
class SliceScore:
    """How a run's slab compares with the truth."""

    pearson: float
    sharpness: float
    coverage: float
    n_voxels: int


def pearson(a: np.ndarray, b: np.ndarray) -> float:
    """Return the Pearson correlation of two flat arrays, NaN when one of them is constant."""
    if a.size == 0 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    a = np.asarray(a, dtype=float) - np.mean(a, dtype=float)
    b = np.asarray(b, dtype=float) - np.mean(b, dtype=float)
    return float(np.dot(a, b) / np.sqrt(np.dot(a, a) * np.dot(b, b)))


def sharpness(volume: np.ndarray, mask: np.ndarray) -> float:
    """Return the RMS lateral step between neighbouring voxels over their standard deviation.

    Invariant under gain and offset; a blur lowers it, seams and noise raise it.

    Parameters
    ----------
    volume, mask
        Same shape (z, axis 1, axis 2); only steps between two voxels of the mask count.
    """
    values = volume[mask]
    spread = float(values.std()) if values.size else 0.0
    if spread == 0:
        return float("nan")
    squares = []
    for axis in (1, 2):
        step = np.diff(volume, axis=axis)
        length = volume.shape[axis]
        low = mask.take(range(length - 1), axis=axis)
        both = low & mask.take(range(1, length), axis=axis)
        squares.append(step[both].astype(float) ** 2)
    joined = np.concatenate(squares)
    return float(np.sqrt(joined.mean())) / spread if joined.size else float("nan")


def score_slab(
    volume: np.ndarray, share: np.ndarray, slab: TruthSlab, mask: np.ndarray
) -> SliceScore:
    """Compare one slab of a run, already on the truth's grid, with the truth.

    Voxels of `mask` that the run left empty say nothing: they count as the mean of the others,
    and so cost correlation by their share.

    Parameters
    ----------
    volume, share
        From `resample.average_volume`.
    mask
        Voxels to compare.
    """
    there = share >= MIN_SHARE
    covered = there[mask]
    if not covered.any():
        return SliceScore(0.0, 0.0, 0.0, int(mask.sum()))
    filled = np.where(there, volume, volume[there & mask].mean())
    return SliceScore(
        pearson=pearson(filled[mask], slab.clean[mask]),
        sharpness=sharpness(volume, mask & there),
        coverage=float(covered.mean()),
        n_voxels=int(mask.sum()),
    )


def truth_slabs(truth: Truth) -> tuple[list[TruthSlab], Any]:
    """Cut the truth volumes into one slab a slice, from its face to the next motor step.

    Returns
    -------
    The slabs, and the opened clean volume (for its grid).
    """
    from scipy.ndimage import binary_erosion

    from linumpy.io.omezarr import open_image

    clean, classes = open_image(truth.clean_path), open_image(truth.classes_path)
    if clean.array.shape != classes.array.shape:
        raise InputError(f"{truth.path}: clean and classes have different shapes")
    nz = clean.array.shape[0]
    voxel, corner = clean.voxel_um[0], clean.translation_um[0] - clean.voxel_um[0] / 2
    slabs = []
    for slice_id, known in truth.slices.items():
        edges = np.array([known.face_um, known.face_um + truth.slice_interval_um])
        start, stop = (int(i) for i in np.clip(np.rint((edges - corner) / voxel), 0, nz))
        if stop <= start:
            continue
        low, high = max(0, start - EROSION_VOXELS), min(nz, stop + EROSION_VOXELS)
        tissue = np.asarray(classes.array[low:high]) >= TISSUE_CLASS
        # The volume's own border is no border of tissue.
        core = binary_erosion(tissue, iterations=EROSION_VOXELS, border_value=1)
        slabs.append(
            TruthSlab(
                slice_id,
                start,
                stop,
                np.asarray(clean.array[start:stop]),
                core[start - low : stop - low],
            )
        )
    return slabs, clean


def block_frame(run: Run, truth: Truth) -> BlockFrame:
    """Find the one turn and translation between brain and block from the reference slice.

    Raises
    ------
    InputError
        When the run lacks the models of its reference slice.
    """
    registration = run.slice_registration
    if registration is None:
        raise InputError(f"{run.models / 'register_slices.json'}: no such file")
    reference = registration.reference_id
    lateral, z = lateral_frame(run, truth), slice_z_errors(run, truth)
    if lateral is None or reference not in z:
        raise InputError(
            f"{run.models}: expected register_tiles.json and "
            f"crop_3d_mosaic_below_interface.json of reference slice z{reference:02d}"
        )
    # Stacking places whole planes: take where the reference slice really went.
    depth = -stacked_z_errors(run, truth).get(reference, z[reference])
    return replace(lateral, shift_um=(depth, *lateral.shift_um[1:]))


def on_truth_grid(
    image: Any, frame: BlockFrame, clean: Any, start: int, stop: int
) -> tuple[np.ndarray, np.ndarray]:
    """Average planes of a run's volume over voxels of the truth's grid, and turn them onto it.

    Parameters
    ----------
    image, clean
        Opened OME-Zarr of the run and of the truth.
    start, stop
        Planes of the truth.

    Returns
    -------
    Averages and covered shares of shape (stop - start, n1, n2).
    """
    corner = [
        t - v / 2 + s
        for t, v, s in zip(image.translation_um, image.voxel_um, frame.shift_um, strict=True)
    ]
    out_corner = [t - v / 2 for t, v in zip(clean.translation_um, clean.voxel_um, strict=True)]
    shape = image.array.shape
    low = out_corner[0] + start * clean.voxel_um[0] - corner[0]
    high = out_corner[0] + stop * clean.voxel_um[0] - corner[0]
    first = int(np.clip(np.floor(low / image.voxel_um[0]), 0, shape[0]))
    last = int(np.clip(np.ceil(high / image.voxel_um[0]), first, shape[0]))
    weights = [
        overlap_weights(
            last - first,
            image.voxel_um[0],
            corner[0] + first * image.voxel_um[0],
            stop - start,
            clean.voxel_um[0],
            out_corner[0] + start * clean.voxel_um[0],
        ),
        *(
            overlap_weights(
                shape[axis],
                image.voxel_um[axis],
                corner[axis],
                clean.array.shape[axis],
                clean.voxel_um[axis],
                out_corner[axis],
            )
            for axis in (1, 2)
        ),
    ]
    valid = None if image.valid is None else image.valid[first:last]
    found = average_volume(image.array[first:last], valid, weights)
    # What the frame turns about lies, once shifted, at this pixel of the grid.
    pivot = np.add(frame.pivot_um, frame.shift_um[1:])
    pivot_px = (pivot - out_corner[1:]) / clean.voxel_um[1:] - 0.5
    return turn_volume(*found, frame.rotation_deg, pivot_px)


def compare_runs(run: Run, ideal: Run, truth: Truth) -> dict[str, Figure]:
    """Return ``correlation`` and, beside it, ``sharpness`` and ``overlap_ncc``.

    `correlation` is the median over slices of the run's Pearson correlation with the truth over
    the ideal run's; the other two are the run's value over the ideal run's.
    """
    from linumpy.io.omezarr import open_image

    for each in (run, ideal):
        if each.brain_path is None:
            return unmeasured(f"no brain volume in {each.path.name}")
    slabs, clean = truth_slabs(truth)
    images = [open_image(each.brain_path) for each in (run, ideal)]  # type: ignore[arg-type]
    frames = [block_frame(each, truth) for each in (run, ideal)]
    ratios: dict[int, float] = {}
    sharp: list[float] = []
    scores: dict[int, tuple[SliceScore, SliceScore]] = {}
    for slab in slabs:
        ours, best = (
            on_truth_grid(image, frame, clean, slab.start, slab.stop)
            for image, frame in zip(images, frames, strict=True)
        )
        mask = slab.tissue & (best[1] >= MIN_SHARE)
        if mask.sum() < MIN_VOXELS:
            continue
        pair = (score_slab(*ours, slab, mask), score_slab(*best, slab, mask))
        if not pair[1].pearson > 0:
            # Too little contrast for even the ideal run to be like the truth: nothing to rate.
            continue
        scores[slab.slice_id] = pair
        ratios[slab.slice_id] = pair[0].pearson / pair[1].pearson
        sharp.append(pair[0].sharpness / pair[1].sharpness)
    if not ratios:
        return unmeasured("no slice of the ideal run shows tissue")
    ours_ncc, best_ncc = (
        slice_overlap_ncc(each, truth, frame, clean)
        for each, frame in zip((run, ideal), frames, strict=True)
    )
    return {
        "correlation": make_figure(
            float(np.median(list(ratios.values()))),
            "of ideal",
            len(ratios),
            target=TARGET,
            comparison=AT_LEAST,
            pearson=float(np.median([s[0].pearson for s in scores.values()])),
            pearson_ideal=float(np.median([s[1].pearson for s in scores.values()])),
            coverage=float(np.median([s[0].coverage for s in scores.values()])),
            slices=ratios,
        ),
        "sharpness": make_figure(
            float(np.median(sharp)), "of ideal", len(sharp), comparison=AT_LEAST
        ),
        "overlap_ncc": _ncc_figure(ours_ncc, best_ncc),
    }


def _ncc_figure(ours: Sequence[float], best: Sequence[float]) -> Figure:
    if not ours or not best:
        return not_measured(
            "no two consecutive slice volumes overlap", "of ideal", comparison=AT_LEAST
        )
    return make_figure(
        float(np.median(ours) / np.median(best)),
        "of ideal",
        len(ours),
        comparison=AT_LEAST,
        ncc=float(np.median(ours)),
        ncc_ideal=float(np.median(best)),
    )


def slice_overlap_ncc(run: Run, truth: Truth, frame: BlockFrame, clean: Any) -> list[float]:
    """Correlate consecutive slice volumes of a run where they show the same tissue.

    Each slice is put on the truth's grid by the run's own registration; compared are the planes
    from the lower slice's face down to where the upper one ends.
    """
    from linumpy.io.omezarr import open_image

    registration = run.slice_registration
    if registration is None:
        return []
    placed = slice_z_errors(run, truth)
    ids = [i for i in run.slice_paths if i in placed]
    voxel, corner = clean.voxel_um[0], clean.translation_um[0] - clean.voxel_um[0] / 2
    found = []
    for upper, lower in itertools.pairwise(ids):
        images = [open_image(run.slice_paths[i]) for i in (upper, lower)]
        frames = [
            slice_frame(run, truth, i, image, frame)
            for i, image in zip((upper, lower), images, strict=True)
        ]
        tops = [
            image.translation_um[0] - image.voxel_um[0] / 2 + f.shift_um[0]
            for image, f in zip(images, frames, strict=True)
        ]
        bottom = tops[0] + images[0].array.shape[0] * images[0].voxel_um[0]
        start = max(0, int(np.ceil((tops[1] - corner) / voxel)))
        stop = min(clean.array.shape[0], int(np.floor((bottom - corner) / voxel)))
        if stop <= start:
            continue
        (a, share_a), (b, share_b) = (
            on_truth_grid(image, f, clean, start, stop)
            for image, f in zip(images, frames, strict=True)
        )
        both = (share_a >= MIN_SHARE) & (share_b >= MIN_SHARE)
        if both.sum() >= MIN_VOXELS:
            value = pearson(a[both], b[both])
            if np.isfinite(value):
                found.append(value)
    return found


def slice_frame(run: Run, truth: Truth, slice_id: int, image: Any, frame: BlockFrame) -> BlockFrame:
    """Return the frame of one slice volume: its own corner to the block, by the registration.

    A slice volume's lateral translation is in stage um; its depth counts from its first plane.
    """
    registration = run.slice_registration
    assert registration is not None
    top = image.translation_um[0] - image.voxel_um[0] / 2
    depth = plane_z_um(run, truth, slice_id) - top + frame.shift_um[0]
    lateral = frame.of_slice(registration, slice_id)
    return replace(lateral, shift_um=(depth, *lateral.shift_um[1:]))


def unmeasured(reason: str) -> dict[str, Figure]:
    """Return the figures of `compare_runs` when there is nothing to compare."""
    return {
        "correlation": not_measured(reason, "of ideal", target=TARGET, comparison=AT_LEAST),
        "sharpness": not_measured(reason, "of ideal", comparison=AT_LEAST),
        "overlap_ncc": not_measured(reason, "of ideal", comparison=AT_LEAST),
    }
