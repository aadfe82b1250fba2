"""Correlation of brain and truth, compared with an ideal reconstruction of the same tiles.

Speckle and attenuation keep even a perfect reconstruction from equalling the clean volume, so
the run's correlation is divided by that of an ideal run: true positions, surfaces and fields on
the same raw data with the same resampling and blending. Blurring alone raises a correlation, so
the agreement of overlapping slices and the sharpness are reported beside it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from linumpy.core.errors import InputError
from linumpy.quality.accuracy_metric import AT_LEAST, AccuracyMetric, make_metric, not_measured
from linumpy.quality.bound import Bound
from linumpy.quality.correlation_table import BOUND_TARGET, MIN_VOXELS, CorrelationTable
from linumpy.quality.positions import slice_z_errors
from linumpy.quality.rotation import BlockFrame
from linumpy.quality.run import Run
from linumpy.quality.similarity import pearson
from linumpy.quality.truth import TISSUE_CLASS, Truth
from linumpy.quality.truth_grid import (
    MIN_SHARE,
    TruthSlab,
    block_frame,
    on_truth_grid,
    slice_frame,
    undeformed,
)

TARGET = 0.95
EROSION_VOXELS = 2


@dataclass(frozen=True)
class SliceScore:
    """How a run's slab compares with the truth."""

    pearson: float
    sharpness: float
    coverage: float
    n_voxels: int


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
                np.asarray(classes.array[start:stop]),
            )
        )
    return slabs, clean


def compare_runs(run: Run, ideal: Run, truth: Truth) -> dict[str, AccuracyMetric]:
    """Return ``correlation`` and the metrics reported beside it.

    `correlation` is the median over slices of the run's Pearson correlation with the truth over
    the ideal run's, as are ``sharpness`` and ``overlap_ncc``. ``correlation_absolute`` is the
    run's correlation as it is, ``correlation_of_placed`` and ``correlation_of_bound`` the same over
    those of `bound`.
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
    table = CorrelationTable(clean.voxel_um[0])
    bound = Bound(ideal, truth, frames[1], clean)
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
        table.add(slab, mask, {"run": ours, "ideal": best, **bound.planes(slab)})
        ratios[slab.slice_id] = pair[0].pearson / pair[1].pearson
        sharp.append(pair[0].sharpness / pair[1].sharpness)
    if not ratios:
        return unmeasured("no slice of the ideal run shows tissue")
    ours_ncc, best_ncc = (
        slice_overlap_ncc(each, truth, frame, clean)
        for each, frame in zip((run, ideal), frames, strict=True)
    )
    return {
        "correlation": make_metric(
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
        **table.metrics(),
        "sharpness": make_metric(
            float(np.median(sharp)), "of ideal", len(sharp), comparison=AT_LEAST
        ),
        "overlap_ncc": _ncc_metric(ours_ncc, best_ncc),
    }


def _ncc_metric(ours: Sequence[float], best: Sequence[float]) -> AccuracyMetric:
    if not ours or not best:
        return not_measured(
            "no two consecutive slice volumes overlap", "of ideal", comparison=AT_LEAST
        )
    return make_metric(
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
            on_truth_grid(undeformed(run, i, image), f, clean, start, stop)
            for i, image, f in zip((upper, lower), images, frames, strict=True)
        )
        both = (share_a >= MIN_SHARE) & (share_b >= MIN_SHARE)
        if both.sum() >= MIN_VOXELS:
            value = pearson(a[both], b[both])
            if np.isfinite(value):
                found.append(value)
    return found


def unmeasured(reason: str) -> dict[str, AccuracyMetric]:
    """Return the metrics of `compare_runs` when there is nothing to compare."""
    return {
        "correlation": not_measured(reason, "of ideal", target=TARGET, comparison=AT_LEAST),
        "correlation_absolute": not_measured(reason, "", comparison=AT_LEAST),
        **{
            f"correlation_of_{best}": not_measured(
                reason, f"of {best}", target=BOUND_TARGET, comparison=AT_LEAST
            )
            for best in ("placed", "bound")
        },
        "sharpness": not_measured(reason, "of ideal", comparison=AT_LEAST),
        "overlap_ncc": not_measured(reason, "of ideal", comparison=AT_LEAST),
    }
