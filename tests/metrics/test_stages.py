"""Metrics of stages: judged by limits, read from every model, reproducible."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from linumpy.intensity.compensate_psf import no_response
from linumpy.io.models import save_model
from linumpy.metrics.limits import LIMITS, Limits, worst
from linumpy.metrics.readers import READERS
from linumpy.metrics.stage_metrics import StageMetrics
from linumpy.metrics.stages import measure
from linumpy.quality.assess_slice_quality import SliceQuality
from linumpy.quality.run import Run

from .stage_models import MODELS, VOXEL, values


@pytest.mark.parametrize(
    ("limits", "value", "status"),
    [
        (Limits(30, 50), 29.9, "ok"),
        (Limits(30, 50), 30, "warning"),
        (Limits(30, 50), 50, "error"),
        # A large turn to the left is as bad as one to the right.
        (Limits(1, 2), -1.5, "warning"),
        (Limits(1, 2), -3, "error"),
        (Limits(0.4, 0.3, higher_is_better=True), 0.41, "ok"),
        (Limits(0.4, 0.3, higher_is_better=True), 0.4, "warning"),
        (Limits(0.4, 0.3, higher_is_better=True), -0.9, "error"),
        (Limits(1, 2), float("nan"), "error"),
    ],
)
def test_limits_judge(limits: Limits, value: float, status: str) -> None:
    assert limits.status(value) == status


def test_every_limit_warns_before_it_fails() -> None:
    for name, limits in LIMITS.items():
        assert (limits.error < limits.warning) is limits.higher_is_better, name
    assert worst([]) == "ok" and worst(["ok", "error", "warning"]) == "error"


@pytest.mark.parametrize("stem", MODELS)
def test_every_stage_is_measured_without_time_stamps(stem: str, tmp_path: Any) -> None:
    for folder in ("one", "two"):
        save_model(tmp_path / folder, stem, MODELS[stem])
    path = tmp_path / "one" / f"{stem}_metrics.json"
    record = json.loads(path.read_text())
    assert set(record) == {"step_name", "overall_status", "metrics", "warnings", "errors"}
    assert record["step_name"] in READERS
    assert len(record["metrics"]) >= 3
    for metric in record["metrics"].values():
        assert set(metric) == {"value", "unit", "description", "status", "limits"}
        assert metric["status"] in ("ok", "warning", "error") and metric["description"]
    statuses = [m["status"] for m in record["metrics"].values()]
    expected = worst(statuses + ["warning"] * bool(record["warnings"]))
    assert record["overall_status"] == expected
    assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_models_without_a_stage_have_no_metrics(tmp_path: Any) -> None:
    @dataclass
    class Other:
        n: int

    save_model(tmp_path, "something_else", Other(3))
    assert [p.name for p in tmp_path.iterdir()] == ["something_else.json"]
    # A model that was learned from one grid is named for it.
    stem = "mosaic_grid_3d_z03_fix_illumination_3d"
    save_model(tmp_path, stem, MODELS["fix_illumination_3d"])
    record = json.loads((tmp_path / f"{stem}_metrics.json").read_text())
    assert record["step_name"] == "fix_illumination_3d"


def test_what_is_not_a_number_is_not_measured() -> None:
    found = StageMetrics("x")
    found.add("a", float("nan"), "", "a", "rotation")
    found.add("b", None, "", "b", "rotation")
    assert found.as_json()["metrics"]["a"]["value"] is None
    assert found.overall_status == "ok"
    found.errors.append("broken")
    assert found.overall_status == "error"


def test_run_collects_metrics_of_all_stages(tmp_path: Any) -> None:
    save_model(tmp_path / "models/z03", "register_tiles", MODELS["register_tiles"])
    stem = "slice_z04_interpolated_diagnostics"
    save_model(tmp_path / "models", stem, MODELS["interpolate_missing_slice"])
    found = {place: record["step_name"] for place, record in Run(tmp_path).metrics.items()}
    assert found == {
        (stem, None): "interpolate_missing_slice",
        ("register_tiles", 3): "register_tiles",
    }


def test_dim_and_bright_slices_are_named() -> None:
    """Of slices that grow dimmer evenly none is; one that is left out counts for nothing."""

    def light(*values: float, out: int = -1) -> StageMetrics:
        slices = [
            {"slice_id": n, "score": 1.0, "exclude_reason": "dim" * (n == out), "brightness": v}
            for n, v in enumerate(values)
        ]
        return measure("assess_slice_quality", SliceQuality(VOXEL, 0.3, slices, []))

    odd = light(1.0, 1 / 3, 1.1, 0.9, 3.0, 1.0)
    assert odd.metrics["light_change"].status == "warning"
    said = "z01 has 0.33 times the light, z04 has 3 times the light of the slices around it"
    assert odd.warnings == [said]
    # Bad neighbours accuse no good one.
    (said,) = light(1.0, 1.0, 1.0, 0.45, 0.45, 1.0, 1.0).warnings
    assert "z03 has 0.45" in said and "z04 has 0.45" in said and "z05" not in said
    assert not light(0.3, 1.0, 1.0).warnings and not light(1.0, 1.0, 1.0, 0.4, 0.4, 0.4).warnings
    even = light(2.0, 1.6, 1.2, 0.9, 0.7, 0.5)
    assert even.metrics["light_change"].status == "ok" and not even.warnings
    assert light(1.0, 0.2, 1.0, 1.0, out=1).metrics["light_change"].value == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("seen", "error", "status"),
    [
        (None, 0.0, "ok"),
        (0.6, 0.0, "ok"),
        (1.3, 0.0, "ok"),
        (0.2, 0.0, "warning"),
        (-0.3, 0.0, "error"),
        (1.5, 0.0, "warning"),
        (1.5, 0.3, "ok"),
    ],
)
def test_attenuation_that_does_not_go_with_brightness_is_a_finding(
    seen: float | None, error: float, status: str
) -> None:
    model = replace(MODELS["compensate_attenuation"], exponent_seen=seen, exponent_seen_error=error)
    found = measure("compensate_attenuation", model)
    assert found is not None and found.metrics["exponent_departure"].status == status


@pytest.mark.parametrize(("error", "status"), [(0.3, "ok"), (0.6, "warning"), (2.0, "error")])
def test_attenuation_that_is_not_known_is_a_finding(error: float, status: str) -> None:
    mu = np.full((4, 2, 2), 2.0)
    model = replace(
        MODELS["compensate_attenuation"], mu_per_mm=mu, mu_error_per_mm=np.float16(error * mu)
    )
    found = measure("compensate_attenuation", model)
    assert found is not None and found.metrics["mu_error"].status == status
    assert found.metrics["mu_error"].value == pytest.approx(error, rel=1e-3)


def test_depth() -> None:
    assert values("crop_3d_mosaic_below_interface")["interface_planes"] == pytest.approx(3)
    assert values("crop_3d_mosaic_below_interface")["tilt"] == pytest.approx(50)
    stack = measure("stack_slices_motor", MODELS["stack_slices_motor"])
    assert stack is not None and stack.warnings == ["slices z00 and z04 leave a gap of 10 planes"]
    assert stack.metrics["empty_fraction"].value == pytest.approx(10 / 96)
    assert stack.metrics["n_corrected"].value == 1


@pytest.mark.parametrize(
    ("stem", "text"),
    [
        ("compensate_psf", "learned from tissue"),
        ("crop_3d_mosaic_below_interface", "z03: cut face found 3.0 planes below the top"),
        ("rehoming_report", "slice z06: a large step"),
        ("assess_slice_quality", "slice z01 is left out: low_quality"),
        ("auto_exclude_slices", "slice z04 is left out: consecutive_low_z_corr"),
        ("interpolate_missing_slice", "slice z04: the gap stays empty (low_overlap_ncc)"),
    ],
)
def test_remarks_of_stages_are_reported(stem: str, text: str) -> None:
    found = measure(stem, MODELS[stem])
    assert found is not None
    assert len(found.warnings) == 1 and text in found.warnings[0]
    assert found.overall_status != "ok"


def test_learned_from_few_tiles_is_a_warning() -> None:
    found = measure("fix_illumination_3d", MODELS["fix_illumination_3d"])
    assert found is not None and found.metrics["n_tiles"].status == "warning"
    assert found.overall_status == "warning"
    focal = measure("detect_focal_curvature", MODELS["detect_focal_curvature"])
    assert focal is not None
    assert focal.metrics["residual_rms"].value == pytest.approx(2.5)
    assert focal.metrics["residual_rms"].status == "warning"


def test_light_that_is_taken_to_be_even_is_said() -> None:
    """Not where many tiles side by side tell the flat field."""
    model = MODELS["fix_illumination_3d"]
    for n_pairs, flat, count in ((0, np.ones((4, 4)), 1), (0, model.flat_field, 0), (90, None, 0)):
        flat = model.flat_field if flat is None else flat
        found = measure("fix_illumination_3d", replace(model, n_pairs=n_pairs, flat_field=flat))
        assert found is not None and len(found.warnings) == count
        assert not count or "light is taken to be even" in found.warnings[0]


def test_a_slice_without_agarose_is_said_once() -> None:
    model = MODELS["normalize_intensities_per_slice"]
    found = measure("normalize_intensities_per_slice", replace(model, agarose_fraction=0.0))
    assert found is not None and len(found.warnings) == 1
    assert found.metrics["agarose_coverage"].status == "ok"


def test_the_axial_response_is_learned_from_few_tiles_without_alarm() -> None:
    """Few tiles show agarose: what is learned of it is judged by the profile."""
    good = replace(MODELS["compensate_psf"], n_tiles=5, medium="agarose")
    found = measure("compensate_psf", good)
    assert found is not None and found.metrics["n_tiles"].value == 5
    assert found.overall_status == "ok"
    bad = measure("compensate_psf", replace(good, residual_percent=60.0))
    assert bad is not None and bad.metrics["profile_quality"].status == "warning"
    none = measure("compensate_psf", no_response(40, (10.0, 10.0, 10.0)))
    assert none is not None and none.overall_status == "error"
    assert "no axial profile" in none.warnings[0]
