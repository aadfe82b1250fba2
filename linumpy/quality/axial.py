"""Accuracy along depth: equal brightness of tissue after axial and attenuation correction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from linumpy.quality.accuracy_metric import AccuracyMetric, make_metric, not_measured
from linumpy.quality.run import Run
from linumpy.quality.slice_truth import (
    CLASS_NAMES,
    has_slice_truth,
    slice_truth_frame,
    truth_block,
)
from linumpy.quality.truth import Truth

TARGET_PERCENT = 5.0
STEP_UM = 50.0
FACE_UM = 20.0
"""The face itself is left out: its voxels are partly water."""

_STEM = "normalize_intensities_per_slice"
_ROWS = 256
_MIN_SHARE = 0.1


def axial_flatness(run: Run, truth: Truth) -> AccuracyMetric:
    """Return ``axial_flatness_percent``.

    In steps of depth below each A-line's first voxel, the mean amplitude of tissue over the mean of
    its true amplitude; the metric is the largest departure from the mean of these ratios, over all
    slices. What normalisation took off each plane is put back first.
    """
    sums = {
        slice_id: _sums(run, truth, slice_id, model)
        for slice_id, model in run.slice_models(_STEM).items()
        if has_slice_truth(run, truth, slice_id)
    }
    if not sums:
        return not_measured(
            f"no slice with models/zNN/{_STEM} in the truth", "%", target=TARGET_PERCENT
        )
    steps = max(part.shape[1] for part in sums.values())
    # Slices are scaled each by itself: what they show of one class is brought together first.
    level = {i: part[0].sum() / max(part[1].sum(), 1e-12) for i, part in sums.items()}
    total = np.zeros((3, steps))
    for slice_id, part in sums.items():
        scale = np.array([1 / max(level[slice_id], 1e-12), 1, 1])
        total[:, : part.shape[1]] += part * scale[:, None]
    ratio, used = _ratio(total)
    if used.sum() < 2:
        return not_measured("too little tissue in the slices", "%", target=TARGET_PERCENT)
    each = {}
    for slice_id, part in sums.items():
        own, known = _ratio(part)
        if known.sum() > 1:
            each[slice_id] = float(_departure(own[known]))
    return make_metric(
        float(_departure(ratio[used])),
        "%",
        int(total[2].sum()),
        target=TARGET_PERCENT,
        depth_um=(np.flatnonzero(used) + 0.5) * STEP_UM + FACE_UM,
        ratio=ratio[used] / ratio[used].mean(),
        slices=each,
    )


def _departure(ratio: np.ndarray) -> float:
    return float(100 * np.abs(ratio / ratio.mean() - 1).max())


def _ratio(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ratio by depth, and which depths hold enough tissue."""
    used = sums[2] > _MIN_SHARE * max(sums[2].max(), 1)
    return sums[0] / np.maximum(sums[1], 1e-12), used


def _sums(run: Run, truth: Truth, slice_id: int, model: Mapping[str, Any]) -> np.ndarray:
    """Return amplitude, true amplitude and number of tissue voxels, summed by depth step."""
    from linumpy.io.omezarr import open_image

    image = open_image(run.slice_paths[slice_id])
    frame = slice_truth_frame(run, truth, slice_id, image)
    block = truth_block(truth, frame.depth_um)
    floor = np.asarray(model["floor"], np.float32)[:, None, None]
    scale = np.float32(model["scale"])
    n_planes, n_rows, n_columns = image.array.shape
    axial_um = image.voxel_um[0]
    steps = max(1, int((n_planes * axial_um - FACE_UM) // STEP_UM))
    sums = np.zeros((3, steps))
    columns = np.arange(n_columns) + 0.5
    planes = np.arange(n_planes)[:, None, None]
    for start in range(0, n_rows, _ROWS):
        rows = slice(start, min(start + _ROWS, n_rows))
        data = np.asarray(image.array[:, rows], np.float32)
        valid = (
            np.ones(data.shape, bool)
            if image.valid is None
            else np.asarray(image.valid[:, rows]) > 0
        )
        pixels = (np.arange(rows.start, rows.stop) + 0.5, columns)
        lateral = frame.lateral_um(*pixels)
        amplitude, label = block.sample(frame.depth_um, lateral)
        label[:, frame.is_disturbed(*pixels)] = 0
        depth = (planes - valid.argmax(axis=0) + 0.5) * axial_um - FACE_UM
        step = np.floor(depth / STEP_UM).astype(int)
        # Voxels at 0 were cut off by normalisation: what they were is lost.
        chosen = valid & np.isin(label, list(CLASS_NAMES)) & (data > 0)
        chosen &= (step >= 0) & (step < steps)
        for row, values in enumerate((data * scale + floor, amplitude, np.ones_like(data))):
            sums[row] += np.bincount(step[chosen], values[chosen], steps)
    return sums
