"""Metrics of registered slices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from linumpy.brain.slice_registration import SliceRegistration
from linumpy.metrics.readers import READERS
from linumpy.metrics.stage_metrics import StageMetrics
from linumpy.metrics.stages import measure

from .stage_models import MODELS, VOXEL, slice_pair, values


def test_slices() -> None:
    found = values("register_slices")
    assert found["translation_max"] == pytest.approx(40)
    assert found["rotation_max"] == -1.5
    assert found["z_offset_std"] == pytest.approx(np.std([0, 2, 1]))
    assert found["z_step_range"] == pytest.approx(3)
    assert found["depth_residual_rms"] == pytest.approx(25 / VOXEL[0])
    assert found["residual_rms"] == pytest.approx(np.sqrt((0.6**2 + 0.8**2) / 2))
    measured = measure("register_slices", MODELS["register_slices"])
    assert measured is not None
    assert measured.warnings[0] == "rotated against most slices: z01 (-1.50 degree)"
    assert "z02 match no other" in measured.warnings[1]
    assert measured.metrics["rotation_max"].status == "warning"
    assert measured.metrics["depth_residual_rms"].status == "warning"
    assert measured.metrics["translation_max"].status == "warning"


def test_the_reference_is_named_when_it_is_the_one_that_is_rotated() -> None:
    """Seen to fail (five slices, none named) with rotations against the reference."""
    changes = {
        "slices": [
            {"slice_id": i, "offset_um": (0.0, 0.0, 0.0), "n_pairs": 1,
             "rotation_deg": 0.0 if i == 3 else -1.5}
            for i in range(6)
        ]
    }  # fmt: skip
    measured = measure("register_slices", replace(MODELS["register_slices"], **changes))
    assert measured is not None and measured.metrics["rotation_max"].value == 1.5
    assert measured.warnings[0] == "rotated against most slices: z03 (+1.50 degree)"


def _registered(depths: list[float], **changes: Any) -> StageMetrics:
    """Metrics of slices 100 um apart but for `depths`, with a pair that measured one."""
    slices = [
        {"slice_id": k, "offset_um": (z, 0.0, 0.0), "n_pairs": 1, "depth_sigma_um": 1.5 * k}
        for k, z in enumerate(depths)
    ]
    for own, z in zip(slices, changes.pop("stated", ()), strict=False):
        own["stated_z_um"] = z
    pair = slice_pair(True, (0.0, 0.0, 0.0)) | {"moving_id": len(depths) - 1}
    pairs = [pair | {"z_measured": changes.pop("z_measured", True)}]
    found = StageMetrics("register_slices")
    READERS["register_slices"][1](
        SliceRegistration(1, (10.0, 10.0, 10.0), 100.0, slices, pairs, **changes), found
    )
    return found


def test_what_fields_of_slices_leave_is_judged() -> None:
    def record(error: float, **pair: float) -> dict[str, Any]:
        fields = {"0": [[[30.0, -30.0]], [[0.0, 0.0]]], "1": [[[0.0, 0.0]], [[0.0, 0.0]]]}
        pairs = [{"fixed_id": 0, "moving_id": 1, "before_um": 40.0, "after_um": error, **pair}]
        lattice = {"origin_um": [0.0, 0.0], "step_um": [100.0, 100.0]}
        return {**lattice, "fields_um": fields, "pairs": pairs}

    good = _registered([0.0, 0.0], deformation=record(2.0)).metrics
    assert good["deformation_left"].value == 2 and good["deformation_left"].status == "ok"
    assert (
        good["deformation_rms"].value == pytest.approx(15) and good["deformation_max"].value == 30
    )
    bad = _registered([0.0, 0.0], deformation=record(12.0)).metrics
    assert bad["deformation_left"].status == "error"
    held_out = _registered([0.0, 0.0], deformation=record(2.0, error_um=12.0)).metrics
    assert held_out["deformation_left"].value == 12
    assert "deformation_left" not in _registered([0.0, 0.0]).metrics


@pytest.mark.parametrize(
    ("left_um", "status"), [(None, "ok"), (1.0, "ok"), (8.0, "warning"), (23.0, "error")]
)
def test_residual_deformation_is_flagged(left_um: float | None, status: str) -> None:
    pairs = [slice_pair(True, (0.0, 0.0, 0.0)) | {"deformation_um": left_um, "z_measured": True}]
    slices = [{"slice_id": k, "offset_um": (0.0, 0.0, 0.0), "n_pairs": 1} for k in range(2)]
    model = SliceRegistration(1, (10.0, 10.0, 10.0), 100.0, slices, pairs)
    found = measure("register_slices", model)
    assert found is not None and found.metrics["deformation_seen"].status == status
    said = [text for text in found.warnings if "elastic_enabled" in text]
    assert len(said) == (status != "ok")
    if said:
        assert f"by {left_um:.0f} um" in said[0]


def test_uneven_cuts_are_named() -> None:
    """Seen to fail without the warning."""
    even = _registered([0, 8, 3, -4, 15])
    assert even.metrics["uneven_cut"].status == "ok" and not even.warnings
    uneven = _registered([0, 0, 50, 45, 145])
    assert uneven.metrics["uneven_cut"].value == pytest.approx(0.9)
    assert uneven.metrics["uneven_cut"].status == "error"
    assert uneven.warnings == [
        "cuts are uneven before slices z02 (150 um, expected 100), z04 (200 um, expected 100)"
    ]


def test_cuts_that_the_stage_announced_are_no_error() -> None:
    """A cut of 200 um that it announced is made; one of 150 um is not: the blade cut 95 um."""
    found = _registered([0, 0, 100, 95, 95], stated=[0, 0, 100, 150, 150])
    assert found.metrics["uneven_cut"].value == pytest.approx(0.45)
    assert found.warnings == ["cuts are uneven before slices z03 (95 um, expected 150)"]
    made = _registered([0, 0, 100, 150, 150], stated=[0, 0, 100, 150, 150]).metrics
    assert made["uneven_cut"].value == made["z_offset_std"].value == 0
    assert made["z_step_range"].value == 0


@pytest.mark.parametrize(
    ("scale", "sigma", "status"),
    [(0.03, 0.002, "warning"), (-0.03, 0.002, "warning"), (0.09, 0.002, "error"),
     (0.03, 0.02, "ok"), (0.004, 0.0001, "ok")],
)  # fmt: skip
def test_steps_that_are_all_off_are_a_finding(scale: float, sigma: float, status: str) -> None:
    """Seen to fail where the metric is 0."""
    found = _registered([0, 0, 0], depth_scale=scale, depth_scale_sigma=sigma)
    assert found.metrics["depth_scale"].status == status
    said = [text for text in found.warnings if "axial resolution or slicing interval" in text]
    assert len(said) == (status != "ok")
    if said:
        sense = "thicker" if scale > 0 else "thinner"
        assert f"{100 * abs(scale):.1f} ± {100 * sigma:.1f} % {sense} than" in said[0]
        assert "where the stage says" in said[0]


def test_unknown_depths_are_flagged() -> None:
    assert _registered([0, 0, 0]).metrics["depth_sigma"].value == pytest.approx(0.3)
    assert _registered([0] * 9).metrics["depth_sigma"].status == "warning"
    found = _registered([0, 0, 0], z_measured=False)
    assert any("no pair measured a depth" in text for text in found.warnings)


def test_a_step_that_no_pair_spans_is_named() -> None:
    """By a pair that was rejected neither, nor by one whose depth was not measured."""
    pairs = [
        slice_pair(accepted, (0.0, 0.0, 0.0)) | {"z_measured": z, "fixed_id": a, "moving_id": a + 1}
        for a, accepted, z in ((0, True, True), (1, True, False), (1, False, True))
    ]
    found = measure("register_slices", replace(MODELS["register_slices"], pairs=pairs))
    assert found is not None
    assert found.metrics["unmeasured_steps"].value == 1
    assert [text for text in found.warnings if "slices z01 and z02 are" in text]
    over_both = [pair | {"moving_id": 2} for pair in pairs]
    found = measure("register_slices", replace(MODELS["register_slices"], pairs=over_both))
    assert found is not None and found.metrics["unmeasured_steps"].status == "ok"
