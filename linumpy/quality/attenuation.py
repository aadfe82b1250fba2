"""Accuracy of attenuation coefficients, compared with the phantom's."""

from __future__ import annotations

import numpy as np

from linumpy.quality.accuracy_metric import AccuracyMetric, make_metric, not_measured
from linumpy.quality.run import Run
from linumpy.quality.slice_truth import (
    CLASS_NAMES,
    has_slice_truth,
    slice_truth_frame,
    tissue_of,
    truth_block,
)
from linumpy.quality.truth import Truth

TARGET_PERCENT = 10.0
UPPER_SHARE = 2 / 3
_STEM = "compensate_attenuation"


def attenuation_metrics(run: Run, truth: Truth) -> dict[str, AccuracyMetric]:
    """Return ``attenuation_grey_percent`` and ``attenuation_white_percent``.

    Over all slices, and in each A-line over the upper two thirds of the kept depth, the median of
    the run's µ is compared with the median of the true µ of the same voxels. Voxels at borders of
    classes and in tiles without light are left out; what is left may still mix classes, and the
    true µ is that of the mixture.
    """
    from linumpy.io.omezarr import open_image

    volume = truth.mu_path if truth.mu_path.exists() else None
    tissue = None if volume else tissue_of(truth)
    if volume is None and tissue is None:
        return _none("the truth lacks the classes' attenuation")
    found: dict[int, list[np.ndarray]] = {label: [] for label in CLASS_NAMES}
    stated: dict[int, list[np.ndarray]] = {label: [] for label in CLASS_NAMES}
    medians: dict[int, dict[int, float]] = {label: {} for label in CLASS_NAMES}
    for slice_id, model in run.slice_models(_STEM).items():
        if not has_slice_truth(run, truth, slice_id):
            continue
        mu = np.asarray(model["mu_per_mm"], float)
        image = open_image(run.slice_paths[slice_id])
        frame = slice_truth_frame(run, truth, slice_id, image)
        rows, columns = ((np.arange(n) + 0.5) * int(model["bin_px"]) for n in mu.shape[1:])
        lateral = frame.lateral_um(rows, columns)
        true, label = truth_block(truth, frame.depth_um, volume).sample(frame.depth_um, lateral)
        if tissue is not None:
            # Without a volume of µ, it follows from the amplitude.
            true = tissue.mu(true)
        label[:, frame.is_disturbed(rows, columns)] = 0
        first = (mu > 0).argmax(axis=0)
        planes = np.arange(len(mu))[:, None, None]
        upper = (mu > 0) & (planes < first + UPPER_SHARE * (len(mu) - first))
        for number in CLASS_NAMES:
            chosen = upper & (label == number)
            pair = np.stack([mu[chosen], true[chosen]])
            found[number].append(pair)
            if "mu_error_per_mm" in model and np.shape(model["mu_error_per_mm"]) == mu.shape:
                error = np.asarray(model["mu_error_per_mm"], float)[chosen]
                stated[number].append(error / pair[0])
            if pair.size:
                middle = np.median(pair, axis=1)
                medians[number][slice_id] = float(100 * (middle[0] / middle[1] - 1))
    if not any(found.values()):
        return _none(f"no models/zNN/{_STEM} of a slice in the truth")
    return {
        f"attenuation_{name}_percent": _metric(
            np.concatenate(found[n], axis=1), medians[n], np.concatenate([*stated[n], []])
        )
        for n, name in CLASS_NAMES.items()
    }


def _metric(pair: np.ndarray, slices: dict[int, float], stated: np.ndarray) -> AccuracyMetric:
    if not pair.size:
        return not_measured("the slices show none of it", "%", target=TARGET_PERCENT)
    ours, true = np.median(pair, axis=1)
    ratio = pair[0] / pair[1]
    return make_metric(
        float(100 * abs(ours / true - 1)),
        "%",
        pair.shape[1],
        target=TARGET_PERCENT,
        signed=float(100 * (ours / true - 1)),
        stated_percent=float(100 * np.median(stated)) if stated.size else None,
        median_per_mm=float(ours),
        true_per_mm=float(true),
        ratio_quartiles=np.percentile(ratio, [25, 50, 75]),
        slices=slices,
    )


def _none(reason: str) -> dict[str, AccuracyMetric]:
    return {
        f"attenuation_{name}_percent": not_measured(reason, "%", target=TARGET_PERCENT)
        for name in CLASS_NAMES.values()
    }
