"""Each limited metric has an input that raises it, and one that does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from linumpy.metrics.stages import measure

from .stage_models import MODELS, slice_pair, tile, tile_pair


def _pairs(*shares: bool, **changes: Any) -> list[dict[str, Any]]:
    return [slice_pair(accepted, (0.0, 0.0, 0.0)) | changes for accepted in shares]


def _slices(**last: Any) -> list[dict[str, Any]]:
    """Return three slices of which the last is odd."""
    even = {"offset_um": (0.0, 0.0, 0.0), "rotation_deg": 0.0, "n_pairs": 1}
    return [even | {"slice_id": k} | (last if k == 2 else {}) for k in range(3)]


def _known(sigma_um: float) -> list[dict[str, Any]]:
    """Return slices whose depths have a standard error."""
    return [entry | {"depth_sigma_um": sigma_um} for entry in _slices()]


def _lit(*brightness: float) -> list[dict[str, Any]]:
    return [
        {"slice_id": n, "score": 0.9, "exclude_reason": "", "brightness": each}
        for n, each in enumerate(brightness)
    ]


_SQUARE = [tile((500.0 * i, 500.0 * j), (500.0 * i, 500.0 * j), 0) for i in (0, 1) for j in (0, 1)]
_ALONE = [tile((0, 0), (0, 0), -1)] * 5
_CLEAR = [tile_pair(0, 1, (0.0, 0.0))] * 3
_ROW = [tile((0.0, 250.0 * j), (0.0, 250.0 * j), 0) | {"iy": j} for j in (0, 1)]


def _torn(off_px: float, confidence: float = 0.9) -> dict[str, Any]:
    """Return two tiles, and a pair of them that was rejected."""
    pair = tile_pair(0, 1, None) | {"displacement_um": (0.0, 250 - 5 * off_px)}
    return {"tiles": _ROW, "pairs": [*_CLEAR, pair | {"confidence": confidence}]}


EACH_SIDE: dict[tuple[str, str], tuple[dict[str, Any], dict[str, Any]]] = {
    ("detect_focal_curvature", "n_tiles"): ({"n_tiles": 60}, {"n_tiles": 20}),
    ("detect_focal_curvature", "residual_rms"): (
        {"residual_rms_um": 10.0}, {"residual_rms_um": 25.0},
    ),
    ("fix_illumination_3d", "n_tiles"): ({"n_tiles": 60}, {"n_tiles": 20}),
    ("fix_illumination_3d", "overlap_residual"): (
        {"overlap_residual": 0.05}, {"overlap_residual": 0.2},
    ),
    ("fix_illumination_3d", "field_bound"): ({"error_percent": 0.9}, {"error_percent": 1.1}),
    ("compensate_psf", "profile_quality"): ({"residual_percent": 4.0}, {"residual_percent": 60.0}),
    ("compensate_psf", "response_error"): ({"error_percent": 9.0}, {"error_percent": 11.0}),
    ("compensate_psf", "noise_excess"): ({"noise_excess": 1.0}, {"noise_excess": 1.2}),
    ("compensate_psf", "response_max"): (
        {"response": np.array([0.5, 1.0])}, {"response": np.array([0.01, 0.07])},
    ),
    ("register_tiles", "clear_accepted_share"): (
        {"pairs": [*_CLEAR, tile_pair(1, 2, (0.0, 0.0))]},
        {"pairs": [*_CLEAR, tile_pair(1, 2, None)]},
    ),
    # What a bent scan makes, and B-scans that were lost.
    ("register_tiles", "torn_pairs"): (_torn(2.0), _torn(12.0)),
    ("register_tiles", "stage_linear"): (
        {"tiles": _SQUARE},
        {
            "tiles": [t | {"corner_um": tuple(1.01 * c for c in t["stage_corner_um"])}
                      for t in _SQUARE],
            "stage_affine": [[1.01, 0.0], [0.0, 1.01]],
        },
    ),
    ("register_tiles", "held_by_stage_share"): ({"tiles": _SQUARE}, {"tiles": _ALONE}),
    ("register_tiles", "confidence"): (
        {"pairs": _CLEAR}, {"pairs": [p | {"confidence": 0.35} for p in _CLEAR]},
    ),
    ("register_tiles", "residual_rms"): (
        {"pairs": _CLEAR}, {"pairs": [tile_pair(0, 1, (0.0, 40.0))] * 3},
    ),
    ("register_tiles", "position_bound"): ({"pair_sigma_um": 1.0}, {"pair_sigma_um": 2.0}),
    ("register_tiles", "stretch_bound"): (
        {"tiles": _SQUARE, "scan_sigma_um": 0.3}, {"tiles": _SQUARE, "scan_sigma_um": 1.0},
    ),
    ("register_tiles", "galvo_confidence"): (
        {"galvo_confidence": 0.9}, {"galvo_confidence": 0.64},
    ),
    ("register_tiles", "seam"): (
        {"pairs": [tile_pair(0, 1, (0.0, 0.0), 1.05)]},
        {"pairs": [tile_pair(0, 1, (0.0, 0.0), 1.2)]},
    ),
    ("crop_3d_mosaic_below_interface", "mask_coverage"): (
        {"used_fraction": 0.8}, {"used_fraction": 0.02},
    ),
    ("compensate_attenuation", "tissue_coverage"): (
        {"tissue_fraction": 0.3}, {"tissue_fraction": 0.07},
    ),
    ("compensate_attenuation", "capped_share"): (
        {"capped_fraction": 0.05}, {"capped_fraction": 0.2},
    ),
    ("compensate_attenuation", "exponent_departure"): (
        {"exponent_seen": 0.6}, {"exponent_seen": 0.2},
    ),
    ("normalize_intensities_per_slice", "agarose_coverage"): (
        {"agarose_fraction": 0.2}, {"agarose_fraction": 0.03},
    ),
    ("assess_slice_quality", "excluded_share"): (
        {"slices": [{"slice_id": 0, "score": 0.9, "exclude_reason": ""}]}, {},
    ),
    ("assess_slice_quality", "light_change"): (
        {"slices": _lit(1.0, 0.6, 1.2, 1.0)}, {"slices": _lit(1.0, 0.45, 1.0, 1.0)},
    ),
    ("register_slices", "accepted_share"): (
        {"pairs": _pairs(True, True)}, {"pairs": _pairs(True, False, False)},
    ),
    ("register_slices", "confidence"): (
        {"pairs": _pairs(True)}, {"pairs": _pairs(True, confidence=0.35)},
    ),
    ("register_slices", "shift_sigma"): (
        {"pairs": _pairs(True, sigma_um=1.0)}, {"pairs": _pairs(True, sigma_um=6.0)},
    ),
    ("register_slices", "turn_sigma"): (
        {"pairs": _pairs(True, sigma_deg=0.05)}, {"pairs": _pairs(True, sigma_deg=0.15)},
    ),
    ("register_slices", "residual_rms"): (
        {"pairs": _pairs(True)}, {"pairs": _pairs(True, residual_um=(0.0, 40.0, 40.0))},
    ),
    ("register_slices", "depth_residual_rms"): (
        {"pairs": _pairs(True, z_measured=True)},
        {"pairs": _pairs(True, z_measured=True, residual_um=(15.0, 0.0, 0.0))},
    ),
    ("register_slices", "unmeasured_steps"): (
        {"pairs": _pairs(True, z_measured=True)},
        {"pairs": _pairs(True, z_measured=True, moving_id=1)},
    ),
    ("register_slices", "translation_max"): (
        {"slices": _slices()}, {"slices": _slices(offset_um=(0.0, 200.0, 0.0))},
    ),
    ("register_slices", "lean"): (
        {"slices": [_slices()[0] | {"slice_id": k} for k in range(12)]},
        {"slices": [_slices()[0] | {"slice_id": k, "offset_um": (0.0, 5.0 * k, 0.0)}
                    for k in range(12)]},
    ),
    ("register_slices", "rotation_max"): (
        {"slices": _slices()}, {"slices": _slices(rotation_deg=1.5)},
    ),
    ("register_slices", "z_offset_std"): (
        {"slices": _slices()}, {"slices": _slices(offset_um=(300.0, 0.0, 0.0))},
    ),
    ("register_slices", "z_step_range"): (
        {"slices": _slices()}, {"slices": _slices(offset_um=(200.0, 0.0, 0.0))},
    ),
    ("register_slices", "depth_sigma"): (
        {"slices": _known(3.0)}, {"slices": _known(15.0)},
    ),
    ("register_slices", "uneven_cut"): (
        {"slices": _slices()}, {"slices": _slices(offset_um=(80.0, 0.0, 0.0))},
    ),
    ("auto_exclude_slices", "excluded_share"): ({"excluded": []}, {}),
    ("stack_slices_motor", "empty_fraction"): (
        {},
        {"slices": [{"slice_id": k, "z_start_px": 100 * k, "first_plane_px": 0, "n_planes": 30,
                     "overlap_px": 0} for k in (0, 1)]},
    ),
    ("correct_bias_field", "mask_coverage"): ({"tissue_fraction": 0.4}, {"tissue_fraction": 0.03}),
    ("align_to_ras", "overlap"): ({"overlap": 0.9}, {"overlap": 0.7}),
    ("align_to_ras", "margin"): ({"margin": 0.1}, {"margin": 0.01}),
}  # fmt: skip
"""Changes of `MODELS` that leave a limited metric good, and that make it a finding.

Metrics that need a fit are tested by themselves: ``deformation_seen``, ``mu_error``."""


@pytest.mark.parametrize(("stem", "name"), EACH_SIDE)
def test_each_limited_metric_is_raised_by_one_input_and_not_by_another(
    stem: str, name: str
) -> None:
    statuses = []
    for changes in EACH_SIDE[stem, name]:
        found = measure(stem, replace(MODELS[stem], **changes))
        assert found is not None
        statuses.append(found.metrics[name].status)
    assert statuses[0] == "ok" and statuses[1] in ("warning", "error")


def test_no_limited_metric_lacks_inputs_of_both_sides() -> None:
    limited = {
        (stem, name)
        for stem, model in MODELS.items()
        if (found := measure(stem, model)) is not None
        for name, metric in found.metrics.items()
        if metric.limits is not None
    }
    assert limited - set(EACH_SIDE) == {("register_slices", "deformation_seen")}
