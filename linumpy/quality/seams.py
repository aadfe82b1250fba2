"""Accuracy of seams: brightness of neighbouring corrected tiles where both show tissue."""

from __future__ import annotations

from typing import Any

import numpy as np

from linumpy.quality.accuracy_metric import AccuracyMetric, make_metric, not_measured
from linumpy.quality.run import Run
from linumpy.quality.truth import TISSUE_CLASS, Truth
from linumpy.tiles.positions import MeasuredPair

TARGET = 0.02
MIN_TISSUE_SHARE = 0.25


def seams(run: Run, truth: Truth, classes: Any | None = None) -> AccuracyMetric:
    """Return ``seams``: median |ln(brightness of one tile / of the other)| over their overlap.

    Counted are accepted pairs whose overlap holds tissue, by the truth's classes, in at least
    `MIN_TISSUE_SHARE` of its voxels down to the depth that the run kept. The brightnesses are
    those of corrected tiles before blending, which would hide a seam.

    Parameters
    ----------
    classes
        Opened OME-Zarr of the truth's classes; opened here when None.
    """
    if not run.tile_registrations:
        return not_measured("no models/zNN/register_tiles.json", "", target=TARGET)
    if classes is None:
        from linumpy.io.omezarr import open_image

        classes = open_image(truth.classes_path)
    ratios, skipped = [], 0
    for slice_id, registration in run.tile_registrations.items():
        if slice_id not in truth.slices or slice_id in run.left_out:
            continue
        depth_um = run.crops.get(slice_id, {}).get("depth_um", truth.slice_interval_um)
        for pair in registration.pairs:
            ratio = log_ratio(pair)
            if ratio is None:
                continue
            if tissue_share(classes, truth, slice_id, pair, depth_um) < MIN_TISSUE_SHARE:
                skipped += 1
                continue
            ratios.append(abs(ratio))
    return make_metric(
        float(np.median(ratios)) if ratios else None,
        "",
        len(ratios),
        target=TARGET,
        percentile_90=float(np.percentile(ratios, 90)) if ratios else None,
        pairs_without_tissue=skipped,
    )


def log_ratio(pair: MeasuredPair) -> float | None:
    """Return ln(mean of a / mean of b) of an accepted pair; None when it has no such means."""
    a, b = pair.overlap_mean_a, pair.overlap_mean_b
    if not pair.accepted or a is None or b is None or a <= 0 or b <= 0:
        return None
    return float(np.log(a / b))


def tissue_share(
    classes: Any, truth: Truth, slice_id: int, pair: MeasuredPair, depth_um: float
) -> float:
    """Return the share of tissue voxels in the box where two tiles truly overlap.

    Parameters
    ----------
    classes
        Opened OME-Zarr of the truth's classes, in block um.
    depth_um
        Depth of the box below the slice's face.
    """
    known = truth.slices[slice_id]
    if pair.a not in known.corner_um or pair.b not in known.corner_um:
        return 0.0
    corners = np.array([known.corner_um[pair.a], known.corner_um[pair.b]])
    low = np.array([known.face_um, *corners.max(axis=0)])
    high = np.array([known.face_um + depth_um, *(corners.min(axis=0) + truth.tile_fov_um)])
    voxel = np.asarray(classes.voxel_um)
    origin = np.asarray(classes.translation_um) - voxel / 2
    start = np.clip(np.rint((low - origin) / voxel), 0, classes.array.shape).astype(int)
    stop = np.clip(np.rint((high - origin) / voxel), 0, classes.array.shape).astype(int)
    if np.any(stop <= start):
        return 0.0
    box = classes.array[tuple(slice(a, b) for a, b in zip(start, stop, strict=True))]
    return float(np.mean(np.asarray(box) >= TISSUE_CLASS))
