"""Accuracy of learned fields: focal surface and flat field."""

from __future__ import annotations

import numpy as np

from linumpy.intensity.fix_illumination_3d import NORMAL_95
from linumpy.quality.accuracy_metric import AccuracyMetric, make_metric, not_measured
from linumpy.quality.resample import average_plane
from linumpy.quality.run import Run
from linumpy.quality.truth import Truth

FOCAL_TARGET_VOXEL = 1.0
FLAT_FIELD_TARGET_PERCENT = 2.0


def remove_plane(values: np.ndarray) -> np.ndarray:
    """Subtract the least-squares plane (and so the mean) from a 2D map."""
    rows, columns = np.meshgrid(*(np.linspace(-1, 1, n) for n in values.shape), indexing="ij")
    terms = np.stack([np.ones(values.size), rows.ravel(), columns.ravel()], axis=1)
    coefficients, *_ = np.linalg.lstsq(terms, values.ravel(), rcond=None)
    return values - (terms @ coefficients).reshape(values.shape)


def focal_surface(surface_um: np.ndarray, true_um: np.ndarray, axial_um: float) -> AccuracyMetric:
    """Return the RMS difference of two focal surfaces without piston and plane, in voxels.

    Parameters
    ----------
    surface_um, true_um
        Same shape, um.
    axial_um
        Axial voxel of the model.
    """
    difference = remove_plane(np.asarray(surface_um, dtype=float) - true_um) / axial_um
    return make_metric(
        float(np.sqrt(np.mean(difference**2))),
        "voxel",
        difference.size,
        target=FOCAL_TARGET_VOXEL,
        largest=np.abs(difference).max(),
        uncorrected=float(np.sqrt(np.mean((remove_plane(true_um) / axial_um) ** 2))),
    )


def flat_field(
    field: np.ndarray, true_field: np.ndarray, stated_percent: float | None = None
) -> AccuracyMetric:
    """Return the RMS of (field / true field - 1) in percent, both scaled to mean 1.

    `stated_percent` is what the run says that it stays below; None if not known.
    """
    true = true_field / true_field.mean()
    ratio = (np.asarray(field, dtype=float) / np.mean(field)) / true - 1
    return make_metric(
        float(np.sqrt(np.mean(ratio**2)) * 100),
        "%",
        ratio.size,
        target=FLAT_FIELD_TARGET_PERCENT,
        largest=np.abs(ratio).max() * 100,
        uncorrected=float(np.sqrt(np.mean((1 / true - 1) ** 2)) * 100),
        stated_percent=stated_percent,
    )


def field_metrics(run: Run, truth: Truth) -> dict[str, AccuracyMetric]:
    """Return ``focal_surface_voxel`` and ``flat_field_percent`` of a run."""
    metrics = {}
    model = run.model("detect_focal_curvature")
    if model is None or "surface_um" not in model:
        metrics["focal_surface_voxel"] = not_measured(
            "no models/detect_focal_curvature", "voxel", target=FOCAL_TARGET_VOXEL
        )
    else:
        surface = np.asarray(model["surface_um"], dtype=float)
        true = on_model_grid(truth.focal_um, truth, surface.shape, model["voxel_um"])
        metrics["focal_surface_voxel"] = focal_surface(surface, true, float(model["voxel_um"][0]))
    model = run.model("fix_illumination_3d")
    if model is None or "flat_field" not in model:
        metrics["flat_field_percent"] = not_measured(
            "no models/fix_illumination_3d", "%", target=FLAT_FIELD_TARGET_PERCENT
        )
    else:
        field = np.asarray(model["flat_field"], dtype=float)
        true = on_model_grid(truth.flat_field, truth, field.shape, model["voxel_um"])
        error = model.get("error_percent")
        stated = None if error is None else NORMAL_95 * float(error)
        metrics["flat_field_percent"] = flat_field(field, true, stated)
    return metrics


def on_model_grid(
    field: np.ndarray, truth: Truth, shape: tuple[int, ...], voxel_um: tuple[float, ...]
) -> np.ndarray:
    """Average a field of the raw tile over the pixels of a model's tile."""
    rows, columns = shape
    return average_plane(field, truth.voxel_um[1:], (rows, columns), voxel_um[1:])
