"""A model of each stage, for tests of metrics."""

from __future__ import annotations

from typing import Any

import numpy as np

from linumpy.brain.align_to_ras import AlignedBrain
from linumpy.brain.auto_exclude_slices import ExclusionModel
from linumpy.brain.bias.model import BiasModel
from linumpy.brain.gaps.interpolate_missing_slice import InterpolationReport
from linumpy.brain.slice_registration import SliceRegistration
from linumpy.brain.stack_slices_motor import BrainModel
from linumpy.geometry.crop_3d_mosaic_below_interface import InterfaceCut
from linumpy.geometry.detect_focal_curvature import FocalCurvature
from linumpy.intensity.compensate_attenuation import Attenuation
from linumpy.intensity.compensate_psf import AxialResponse
from linumpy.intensity.fix_illumination_3d import FlatField
from linumpy.intensity.normalize_intensities_per_slice import Normalization
from linumpy.metrics.stages import measure
from linumpy.mosaic.detect_rehoming import RehomingReport
from linumpy.quality.assess_slice_quality import SliceQuality
from linumpy.tiles.positions import TileRegistration

VOXEL = (10.0, 5.0, 5.0)


def tile_pair(a: int, b: int, residual: Any, ratio: float = 1.0) -> dict[str, Any]:
    return {
        "a": [0, a], "b": [0, b], "accepted": residual is not None, "residual_um": residual,
        "displacement_um": residual, "expected_um": (0.0, 0.0),
        "confidence": 0.6, "overlap_mean_a": 2.0 * ratio, "overlap_mean_b": 2.0,
    }  # fmt: skip


def tile(stage: tuple[float, float], solved: tuple[float, float], component: int) -> dict[str, Any]:
    return {
        "ix": 0, "iy": 0, "stage_corner_um": stage, "corner_um": solved, "component": component,
        "n_pairs": 0,
    }  # fmt: skip


def slice_pair(accepted: bool, residual: Any, confidence: float = 0.8) -> dict[str, Any]:
    found = {"accepted": accepted, "residual_um": residual, "confidence": confidence}
    return found | {"fixed_id": 0, "moving_id": 2}


MODELS: dict[str, Any] = {
    "detect_focal_curvature": FocalCurvature(np.array([[-20.0, 30.0]]), VOXEL, 60, 90, 25.0),
    "fix_illumination_3d": FlatField(np.array([[0.7, 1.3]]), VOXEL, 30, 90, 0.05, (0.0, 0.0), 0.5),
    "compensate_psf": AxialResponse(
        "model", np.array([0.5, 1.0]), np.zeros(2), VOXEL, 3.0, 260.0, 400.0, "tissue", 1.0, 50,
        60, 4.0,
    ),
    "register_tiles": TileRegistration(
        3, VOXEL, (10, 50, 50),
        [tile((0, 0), (0, 0), 0), tile((0, 200), (15, 220), 0), tile((0, 400), (0, 400), -1)],
        [tile_pair(0, 1, (3.0, 4.0), np.exp(0.3)), tile_pair(1, 2, None)],
        [[1.0, 0.0], [0.0, 1.0]],
    ),
    "crop_3d_mosaic_below_interface": InterfaceCut(
        3, 30.0, 600.0, 3, 60, False, (30.0, -40.0), 0.8, (100.0, 100.0), (0.0, 0.0),
        np.zeros((2, 2)),
    ),
    "compensate_attenuation": Attenuation(
        3, "li", 0.3, 0.05, VOXEL, 8, np.zeros((2, 1, 1)), np.zeros((1, 1)), [1.0, 2.0], 1.7, 0.06,
    ),
    "normalize_intensities_per_slice": Normalization(3, [10.0, 14.0], [90.0, 90.0], 80.0, 0.03),
    "rehoming_report": RehomingReport(
        0.5, 0.0, 9, 1, 1, 1,
        [{"slice_id": 3, "kind": "spike"}, {"slice_id": 6, "kind": "large_step"}],
    ),
    "assess_slice_quality": SliceQuality(
        VOXEL, 0.3,
        [
            {"slice_id": 0, "score": 0.9, "exclude_reason": ""},
            {"slice_id": 1, "score": 0.1, "exclude_reason": "low_quality"},
            {"slice_id": 2, "score": None, "exclude_reason": ""},
        ],
        [{"ssim": 0.4, "edges": None}, {"ssim": 0.6, "edges": 0.5}],
    ),
    "register_slices": SliceRegistration(
        1, VOXEL, 200.0,
        [
            {"slice_id": 0, "offset_um": (0.0, 0.0, 0.0), "rotation_deg": 0.2, "n_pairs": 1},
            {"slice_id": 1, "offset_um": (20.0, 120.0, -160.0), "rotation_deg": -1.5, "n_pairs": 1},
            {"slice_id": 2, "offset_um": (10.0, 5.0, 0.0), "rotation_deg": 0.0, "n_pairs": 0},
        ],
        [
            slice_pair(True, (0.0, 3.0, 4.0)),
            slice_pair(False, None),
            slice_pair(True, (-25.0, 3.0, 4.0)) | {"z_measured": True},
        ],
    ),
    "auto_exclude_slices": ExclusionModel(
        [{"slice_id": 4, "reason": "consecutive_low_z_corr"}], [(3, 4)], 5
    ),
    "interpolate_missing_slice": InterpolationReport(
        4, "zmorph", "", "low_overlap_ncc", True, 80.0, 0, {"correlation": 0.2}, None
    ),
    "stack_slices_motor": BrainModel(
        VOXEL, (0.0, 0.0, 0.0),
        [
            {"slice_id": 0, "z_start_px": 0, "first_plane_px": 0, "n_planes": 60, "overlap_px": 0,
             "attenuation_from": 4},
            {"slice_id": 4, "z_start_px": 66, "first_plane_px": 4, "n_planes": 30, "overlap_px": 0},
        ],
    ),
    "correct_bias_field": BiasModel(
        "two_pass", 1.0, 0.1, "gpu", 4, (1, 1, 1), [0], 0.4, [0.8, 1.2],
        *(np.zeros(0) for _ in range(8)),
    ),
    "align_to_ras": AlignedBrain(
        "atlas.nrrd", (25.0,) * 3, 50.0, "PRS", False, "rigid", "MI", [[1.0]], (1.0, 1.1, 0.9),
        3.0, 0.4, None, 0.7, [],
    ),
}  # fmt: skip


def values(stem: str) -> dict[str, Any]:
    found = measure(stem, MODELS[stem])
    assert found is not None
    return {name: metric.value for name, metric in found.metrics.items()}


def grid_of_tiles(affine: Any, jitter_um: float, seed: int, side: int = 5) -> TileRegistration:
    """Return tiles whose stage has a linear error and an error of each tile, all matched."""
    rng = np.random.default_rng(seed)
    stage = 200.0 * np.array([(i, j) for i in range(side) for j in range(side)])
    solved = stage @ np.asarray(affine).T + rng.normal(0, jitter_um, stage.shape)
    # As the network solves it: by least squares.
    design = np.column_stack([stage, np.ones(len(stage))])
    fitted = np.linalg.lstsq(design, solved, rcond=None)[0][:2].T
    tiles = [tile(tuple(a), tuple(b), 0) for a, b in zip(stage, solved, strict=True)]
    pairs = [tile_pair(i, i + 1, (0.0, 0.0)) for i in range(side**2 - 1)]
    return TileRegistration(3, VOXEL, (10, 50, 50), tiles, pairs, fitted.tolist())
