"""Accuracy of atlas alignment: tissue positions compared with the phantom's truth."""

from __future__ import annotations

from typing import Any

import numpy as np

from linumpy.core.errors import InputError
from linumpy.geometry.turned import rotation_matrix
from linumpy.quality.accuracy_metric import AccuracyMetric, make_metric, not_measured
from linumpy.quality.rotation import BlockFrame
from linumpy.quality.run import Run
from linumpy.quality.truth import TISSUE_CLASS, Truth
from linumpy.quality.truth_grid import block_frame

TARGET_VOXEL = 2.0
_UNIT = "voxel"
_LANDMARKS = 5000


def atlas_metrics(run: Run, truth: Truth) -> dict[str, AccuracyMetric]:
    """Return ``atlas_landmark_voxel``: how far tissue is from its place in the atlas.

    Landmarks are points of tissue, evenly over all that was imaged. The truth says where each lies
    in the phantom's atlas; the run's registration says where it lies in the brain, and the run's
    transform where that is in the atlas. The metric is the RMS distance in voxels of the atlas.
    """
    model = run.model("align_to_ras")
    if model is None:
        # Alignment is an option: a run without it misses nothing.
        return {"atlas_landmark_voxel": not_measured("no models/align_to_ras", _UNIT)}
    found = truth.path / "atlas.json"
    if not found.exists():
        return {"atlas_landmark_voxel": _missing("no truth of the atlas (atlas.json)")}
    try:
        frame = block_frame(run, truth)
    except InputError as error:
        return {"atlas_landmark_voxel": _missing(str(error))}
    true = _model(found)
    landmarks = landmarks_um(truth)
    matrix = np.asarray(model["matrix"], dtype=float)
    error_um = _map(matrix, in_brain_um(frame, landmarks)) - _map(true["matrix"], landmarks)
    return {"atlas_landmark_voxel": landmark_metric(error_um, true["voxel_um"], model)}


def landmark_metric(
    error_um: np.ndarray, voxel_um: np.ndarray, model: dict[str, Any]
) -> AccuracyMetric:
    """Return the RMS of errors in voxels.

    Parameters
    ----------
    error_um
        Shape (n, 3): superior, anterior, right.
    voxel_um
        Voxel of the atlas along the same.
    model
        The run's model; its orientation and scale go to the details.
    """
    error = error_um / np.asarray(voxel_um)
    distance = np.sqrt((error**2).sum(axis=1))
    return make_metric(
        float(np.sqrt((distance**2).mean())) if len(distance) else None,
        _UNIT,
        len(distance),
        target=TARGET_VOXEL,
        largest=distance.max() if len(distance) else None,
        mean_superior=error[:, 0].mean(),
        mean_anterior=error[:, 1].mean(),
        mean_right=error[:, 2].mean(),
        orientation=model.get("orientation"),
        scale=model.get("scale"),
    )


def in_brain_um(frame: BlockFrame, points_um: np.ndarray) -> np.ndarray:
    """Return where points of the block lie in the brain (z, axis 1, axis 2), um.

    Where the reference slice was rotated and shifted to is no error of registration.
    """
    pivot = np.asarray(frame.pivot_um)
    away = points_um[:, 1:] - pivot - np.asarray(frame.shift_um[1:])
    lateral = away @ rotation_matrix(frame.rotation_deg) + pivot
    return np.column_stack([points_um[:, 0] - frame.shift_um[0], lateral])


def landmarks_um(truth: Truth, most: int = _LANDMARKS) -> np.ndarray:
    """Return block positions (z, axis 1, axis 2) of tissue, evenly over the block, shape (n, 3)."""
    from linumpy.io.omezarr import open_image

    classes = open_image(truth.classes_path)
    planes = []
    for z in range(classes.array.shape[0]):
        found = np.argwhere(np.asarray(classes.array[z]) >= TISSUE_CLASS)
        planes.append(np.column_stack([np.full(len(found), z), found]))
    index = np.concatenate(planes)
    index = index[:: max(1, len(index) // most)]
    return index * np.asarray(classes.voxel_um) + np.asarray(classes.translation_um)


def _map(matrix: np.ndarray, points: np.ndarray) -> np.ndarray:
    return points @ matrix[:3, :3].T + matrix[:3, 3]


def _model(path: Any) -> dict[str, np.ndarray]:
    from linumpy.io.models import read_json

    record = read_json(path)
    try:
        matrix = np.array(record["matrix"], dtype=float).reshape(4, 4)
        return {"matrix": matrix, "voxel_um": np.array(record["voxel_um"], dtype=float)}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: lacks or misstates {error}") from error


def _missing(reason: str) -> AccuracyMetric:
    return not_measured(reason, _UNIT, target=TARGET_VOXEL)
