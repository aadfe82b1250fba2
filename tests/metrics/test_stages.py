"""Metrics of stages: judged by limits, read from every model, reproducible."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from linumpy.brain.align_to_ras import AlignedBrain
from linumpy.brain.auto_exclude_slices import ExclusionModel
from linumpy.brain.bias.model import BiasModel
from linumpy.brain.gaps.interpolate_missing_slice import InterpolationReport
from linumpy.brain.slice_registration import SliceRegistration
from linumpy.brain.stack_slices_motor import BrainModel
from linumpy.geometry.crop_3d_mosaic_below_interface import InterfaceCut
from linumpy.geometry.detect_focal_curvature import FocalCurvature
from linumpy.intensity.compensate_attenuation import Attenuation
from linumpy.intensity.compensate_psf import AxialResponse, no_response
from linumpy.intensity.fix_illumination_3d import FlatField
from linumpy.intensity.normalize_intensities_per_slice import Normalization
from linumpy.io.models import save_model
from linumpy.metrics.limits import LIMITS, Limits, worst
from linumpy.metrics.readers import READERS
from linumpy.metrics.stage_metrics import StageMetrics
from linumpy.metrics.stages import measure
from linumpy.mosaic.detect_rehoming import RehomingReport
from linumpy.quality.assess_slice_quality import SliceQuality
from linumpy.quality.run import Run
from linumpy.tiles.positions import TileRegistration
from linumpy.tiles.scan_distortion import ScanDistortion

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


def test_tiles() -> None:
    found = values("register_tiles")
    assert found["accepted_share"] == 0.5
    assert found["held_by_stage_share"] == pytest.approx(1 / 3)
    assert found["residual_rms"] == pytest.approx(np.sqrt((0.6**2 + 0.8**2) / 2))
    assert found["stage_error_rms"] == pytest.approx(np.sqrt((3**2 + 4**2) / 6))
    assert found["seam"] == pytest.approx(0.3)
    measured = measure("register_tiles", MODELS["register_tiles"])
    assert measured is not None and measured.metrics["seam"].status == "error"


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


@pytest.mark.parametrize("confidence", [0.6, 0.9])
def test_tiles_that_lost_b_scans_are_named(confidence: float) -> None:
    """A pair that is not beyond doubt may match elsewhere by chance."""
    row = [tile((0, 250 * j), (0, 250 * j), 0) | {"iy": j} for j in range(3)]
    torn = tile_pair(1, 2, None) | {"displacement_um": (0, 190), "confidence": confidence}
    model = replace(MODELS["register_tiles"], tiles=row, pairs=[tile_pair(0, 1, (0, 0)), torn])
    found = measure("register_tiles", model)
    assert found is not None and found.metrics["torn_pairs"].value == (confidence > 0.8)
    assert found.warnings == [
        "tiles match beside where all others put them: (0, 1) and (0, 2) (60 um)"
    ] * (confidence > 0.8)
    # Where only the stage says how two parts of the mosaic lie, it may be the one that is off.
    apart = [*row[:2], row[2] | {"component": 1}]
    found = measure("register_tiles", replace(model, tiles=apart))
    assert found is not None and found.metrics["torn_pairs"].value == 0


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


@pytest.mark.parametrize(
    ("affine", "status"),
    [
        ([[1.0, 0.0], [0.0, 1.0]], "ok"),
        ([[1.003, 0.0], [0.0, 0.998]], "ok"),
        ([[1.01, 0.0], [0.0, 1.0]], "warning"),
        ([[1.0, -0.009], [0.009, 1.0]], "warning"),
        ([[1.0, 0.0], [0.03, 1.0]], "error"),
    ],
)
def test_stage_off_in_scale_rotation_or_shear_is_flagged(affine: Any, status: str) -> None:
    """Seen to fail without the limit."""
    found = measure("register_tiles", grid_of_tiles(affine, 0.5, seed=7))
    assert found is not None and found.metrics["stage_linear"].status == status


@pytest.mark.parametrize(
    ("sigma_um", "bound_um", "status"),
    [(None, None, "ok"), (0.4, 0.784, "ok"), (1.6, 3.136, "warning"), (6.0, 11.76, "error")],
)
def test_tiles_that_may_be_off_are_a_finding(
    sigma_um: float | None, bound_um: float | None, status: str
) -> None:
    """Seen to fail without the limit, and where a stretch of all tiles counts, too."""
    model = replace(MODELS["register_tiles"], pair_sigma_um=sigma_um, scan_sigma_um=10.0)
    found = measure("register_tiles", model)
    assert found is not None
    metric = found.metrics["position_bound"]
    assert metric.status == status
    assert metric.value == (None if bound_um is None else pytest.approx(bound_um))


@pytest.mark.parametrize(
    ("sigma_um", "percent", "status"),
    [
        (None, None, "ok"),
        (0.3, 0.2352, "ok"),
        (0.4, 0.3136, "warning"),
        (2.0, 1.568, "warning"),
        (3.0, 2.352, "error"),
    ],
)
def test_a_stretch_that_overlaps_do_not_show_is_a_finding(
    sigma_um: float | None, percent: float | None, status: str
) -> None:
    """Of tiles at 0 and 500 um, 250 um RMS from their middle. A tile that no pair joins counts not.

    Seen to fail without the limit, and with all tiles.
    """
    tiles = [tile((500.0 * i, 0.0), (500.0 * i, 0.0), -1 if i == 9 else 0) for i in (0, 1, 9)]
    model = replace(MODELS["register_tiles"], tiles=tiles, scan_sigma_um=sigma_um)
    found = measure("register_tiles", model)
    assert found is not None
    metric = found.metrics["stretch_bound"]
    assert metric.status == status
    assert metric.value == (None if percent is None else pytest.approx(percent))


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


def test_a_bent_scan_is_measured() -> None:
    error_um = np.linspace(-20, 20, 96)
    found = measure("scan_distortion", ScanDistortion(error_um, VOXEL, 96, -0.02, 0.4, 0.01))
    assert found is not None and found.overall_status == "ok"
    assert found.metrics["largest"].value == pytest.approx(4.0)
    assert found.metrics["position_sigma"].value == 0.4


@pytest.mark.parametrize("seed", range(20))
def test_errors_of_single_tiles_are_no_linear_error(seed: int) -> None:
    """25 um an axis make slopes of up to 2 % by chance; seen to fail without standard errors."""
    found = measure("register_tiles", grid_of_tiles(np.eye(2), 25.0, seed))
    assert found is not None and found.metrics["stage_linear"].status == "ok"


@pytest.mark.parametrize(
    ("n_rejected", "n_dim", "status"),
    [(0, 0, "ok"), (3, 20, "ok"), (10, 0, "warning"), (18, 0, "error")],
)
def test_clear_rejected_pairs_are_flagged(n_rejected: int, n_dim: int, status: str) -> None:
    """Pairs of bare agarose, which match nothing, are not counted.

    Seen to fail without the limit.
    """
    model = grid_of_tiles(np.eye(2), 0.5, seed=7)
    model.pairs[:n_rejected] = [replace(p, accepted=False) for p in model.pairs[:n_rejected]]
    agarose = [{**tile_pair(0, 1, None), "confidence": 0.1} for _ in range(n_dim)]
    found = measure("register_tiles", replace(model, pairs=model.pairs + agarose))
    assert found is not None and found.metrics["clear_accepted_share"].status == status
