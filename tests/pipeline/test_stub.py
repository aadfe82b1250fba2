"""The workflow without the work: what runs and after what, what is published, what is refused."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from linumpy.planning.plan_params import DEFAULTS
from linumpy.stage_params.declared import STAGES

from .conftest import Launch, Launcher, make_raw, read_trace
from .test_graph import check_graph, facts_of, flags

FUSED = {
    "estimate_xy_shift_from_metadata (all slices)",
    "generate_slice_config (all slices)",
    "detect_rehoming (all slices)",
    "create_mosaic_grid_3d (z00)",
    "create_mosaic_grid_3d (z02)",
    "create_mosaic_grid_3d (z110)",
    "learn_models (all slices)",
    "reconstruct_slice (z00)",
    "reconstruct_slice (z02)",
    "reconstruct_slice (z110)",
    "measure_pairs (z00)",
    "measure_pairs (z02)",
    "measure_pairs (z110)",
    "assess_slice_quality (all slices)",
    "register_slices (all slices)",
    "auto_exclude_slices (all slices)",
    "interpolate_missing_slice (z01)",
    "finalise_interpolation (all slices)",
    "stack_slices_motor (raw_tiles)",
    "analyze_shifts (all slices)",
    "convert_omezarr_to_nifti (raw_tiles)",
    "evaluate_run (accuracy)",
    "generate_pipeline_report (report)",
}
PUBLISHED = {
    "raw_tiles.ome.zarr",
    "raw_tiles.nii.gz",
    "report.html",
    "ro-crate-metadata.json",
    "accuracy.json",
    "shifts_xy.csv",
    "shifts_xy.parquet",
    "shifts_xy_clean.csv",
    "shifts_xy_clean.parquet",
    "slice_config.csv",
    "slice_config.parquet",
    "slices/slice_z01_interpolated.ome.zarr",
    "diagnostics/slice_z01_interpolated_diagnostics.json",
    "diagnostics/slice_z01_manifest.csv",
    "diagnostics/analyze_shifts.json",
    "diagnostics/rehoming_plot.png",
    "diagnostics/rehoming_report.json",
    "diagnostics/shifts_drift.png",
    "diagnostics/shifts_xy_filtered.csv",
    "z_matches.csv",
    "previews/raw_tiles.png",
    "models/detect_focal_curvature.json",
    "models/detect_focal_curvature.npz",
    "models/fix_illumination_3d.json",
    "models/fix_illumination_3d.npz",
    "models/compensate_psf.json",
    "models/compensate_psf.npz",
    "models/assess_slice_quality.json",
    "models/auto_exclude_slices.json",
    "models/register_slices.json",
    "models/stack_slices_motor.json",
} | {
    name
    for z in ("z00", "z02", "z110")
    for name in (
        f"mosaic_grids/mosaic_grid_3d_{z}.ome.zarr",
        f"slices/slice_{z}.ome.zarr",
        f"aips/aip_{z}.png",
        f"previews/slice_{z}.png",
        f"models/{z}/register_tiles.json",
        f"models/{z}/crop_3d_mosaic_below_interface.json",
        f"models/{z}/crop_3d_mosaic_below_interface.npz",
        f"models/{z}/compensate_attenuation.json",
        f"models/{z}/compensate_attenuation.npz",
        f"models/{z}/normalize_intensities_per_slice.json",
    )
}

# Of diagnostic mode, where no grid is there to be stitched without registration.
DIAGNOSED = {
    "analyze_registration_transforms (all slices)",
    "analyze_acquisition_rotation (all slices)",
    "compare_stitching (all slices)",
    "stack_motor_only (raw_tiles)",
}
DIAGNOSES = {
    "diagnostics/raw_tiles_motor_only.ome.zarr",
    "diagnostics/raw_tiles_motor_only.png",
} | {
    f"diagnostics/{name}.{suffix}"
    for name in ("registration_transforms", "acquisition_rotation", "compare_stitching")
    for suffix in ("json", "png")
}


class Stubs:
    """A launch folder with an input that has gaps in its slice ids."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self.output = launcher.folder / "output"
        # Folders of a name that the shell would take apart.
        self.raw = make_raw(launcher.folder / "raw tiles", [0, 2, 110])
        self.truth = launcher.folder / "truth"
        self.truth.mkdir()
        self.first = self.run("--truth", self.truth, "--nifti_resolution", "25")

    def run(self, *more: str | Path) -> Launch:
        places = ("--input", self.raw, "--output", self.output)
        return self.launcher.run(*places, "-stub-run", *more)

    def run_graph(self, name: str, values: dict[str, Any]) -> Path:
        """Run with parameters, compare its graph with the declared stages, return its output."""
        output, dot = self.launcher.folder / name, self.launcher.folder / f"{name}.dot"
        places = ("--input", self.raw, "--output", output)
        launch = self.launcher.run(*places, *flags(values), "-stub-run", "-with-dag", dot)
        assert launch.status == 0, launch.text
        check_graph(dot, facts_of(self.raw, values))
        return output


@pytest.fixture(scope="module")
def stubs(
    make_launcher: Callable[[str, Path], Launcher], tmp_path_factory: pytest.TempPathFactory
) -> Stubs:
    # An empty folder: a stub run needs no script at all.
    return Stubs(make_launcher("stubs", tmp_path_factory.mktemp("none")))


def files_of(output: Path) -> set[str]:
    found = {
        str(p.relative_to(output)) for p in output.rglob("*") if p.is_file() or p.suffix == ".zarr"
    }
    return {name for name in found if not name.startswith(("pipeline_info", "."))}


def test_every_process_runs_once_a_slice(stubs: Stubs) -> None:
    assert stubs.first.status == 0, stubs.first.text
    assert read_trace(stubs.output) == dict.fromkeys(FUSED, "COMPLETED")


def test_output_has_its_layout(stubs: Stubs) -> None:
    assert files_of(stubs.output) == PUBLISHED
    records = {path.name.split("_")[0] for path in (stubs.output / "pipeline_info").iterdir()}
    assert records == {"trace", "report", "timeline", "dag", "run", "main.nf"}
    assert f"Brain:  {stubs.output}/raw_tiles.ome.zarr" in stubs.first.text


def test_finished_results_are_not_replaced_unasked(stubs: Stubs) -> None:
    before = {p: p.stat().st_mtime_ns for p in stubs.output.rglob("*") if p.is_file()}
    launch = stubs.run()
    assert launch.status == 1
    session = (stubs.output / ".linumpy.lock").read_text(encoding="utf-8").strip()
    assert f"raw_tiles.ome.zarr: exists already; continue that run with -resume {session}" in (
        launch.text
    )
    assert {p: p.stat().st_mtime_ns for p in before} == before


def test_one_launch_at_a_time(stubs: Stubs) -> None:
    """Seen to fail without the lock of `claim_output`."""
    with (stubs.output / ".linumpy.lock").open("r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        launch = stubs.run("--overwrite")
    assert launch.status == 1
    assert f"--output {stubs.output}: another run is writing there" in launch.text
    assert "Submitted process" not in launch.text


def test_raw_tiles_go_straight_to_the_slices_where_no_grid_is_kept(stubs: Stubs) -> None:
    values = {"keep_mosaic_grids": False, "diagnostic_mode": True, "truth": f"{stubs.truth}"}
    output = stubs.run_graph("straight", values)
    expected = {name for name in FUSED if not name.startswith(("create", "convert"))}
    assert read_trace(output) == dict.fromkeys(expected | DIAGNOSED, "COMPLETED")
    made = {name for name in PUBLISHED if not name.startswith("mosaic_grids")}
    assert files_of(output) == (made - {"raw_tiles.nii.gz"}) | DIAGNOSES


def test_slices_are_grouped_by_their_ids(stubs: Stubs) -> None:
    output = stubs.launcher.folder / "groups"
    arguments = ("--input", stubs.raw, "--output", output, "--slices_per_task", "3", "-stub-run")
    launch = stubs.launcher.run(*arguments)
    assert launch.status == 0, launch.text
    ran = {name for name in read_trace(output) if name.startswith("reconstruct_slice")}
    assert ran == {"reconstruct_slice (z00-z02)", "reconstruct_slice (z110)"}
    assert files_of(output) == PUBLISHED - {"raw_tiles.nii.gz", "accuracy.json"}


def test_chained_mode_from_published_grids(stubs: Stubs) -> None:
    """Grids in, one slice left out by its table, two chosen: a task a stage and slice."""
    grids = stubs.output / "mosaic_grids"
    for slice_id in ("00", "02", "110"):
        (grids / f"mosaic_grid_3d_z{slice_id}.ome.zarr" / "zarr.json").write_text("{}")
    (grids / "shifts_xy.csv").write_text("fixed_id,moving_id\n", encoding="utf-8")
    (grids / "slice_config.csv").write_text(
        "slice_id,use\n00,true\n2.0,no\n110,\n", encoding="utf-8"
    )
    output, dot = stubs.launcher.folder / "chained", stubs.launcher.folder / "chained.dot"
    launch = stubs.launcher.run(
        *("--input", stubs.output, "--output", output, "--fused", "false", "-stub-run"),
        *("--subject_name", "sub-1", "--slices", "0-2,110", "-with-dag", dot),
    )
    assert launch.status == 0, launch.text
    run = {**DEFAULTS, "fused": False, "raw": False, "straight": False}
    run |= {"shifts_found": True, "config_found": False}
    check_graph(dot, run)
    stages = {name for name, stage in STAGES.items() if stage.per == "slice" and stage.is_in(run)}
    assert {"fix_illumination_3d", "align_mosaics_3d_from_shifts"} < stages
    expected = {f"{stage} (z{z})" for stage in stages for z in ("00", "110")} | {
        # Which slices were not chosen is put into the table.
        "generate_slice_config (all slices)",
        "learn_models (all slices)",
        "measure_pairs (z00)",
        "measure_pairs (z110)",
        "detect_rehoming (all slices)",
        "assess_slice_quality (all slices)",
        "register_slices (all slices)",
        "auto_exclude_slices (all slices)",
        "finalise_interpolation (all slices)",
        "analyze_shifts (all slices)",
        "stack_slices_motor (sub-1)",
        "generate_pipeline_report (report)",
    }
    assert read_trace(output) == dict.fromkeys(expected, "COMPLETED")
    fused_only = {"accuracy.json", "shifts_xy.csv", "shifts_xy.parquet"}
    same = {
        name.replace("raw_tiles", "sub-1")
        for name in PUBLISHED - fused_only
        if "z02" not in name
        and "z01" not in name
        and not name.startswith(("mosaic_grids", "previews/slice"))
        and not name.endswith(".nii.gz")
    }
    assert files_of(output) == same


def test_pictures_instead_of_volumes(stubs: Stubs) -> None:
    output = stubs.launcher.folder / "pictures"
    arguments = ("--input", stubs.raw, "--mode", "2.5d", "--keep_mosaic_grids", "false")
    launch = stubs.launcher.run(*arguments, "--output", output, "-stub-run")
    assert launch.status == 0, launch.text
    expected = {
        "estimate_xy_shift_from_metadata (all slices)",
        "generate_slice_config (all slices)",
        "detect_rehoming (all slices)",
        "estimate_illumination (all slices)",
        "stack_slices_2d (raw_tiles)",
        "generate_pipeline_report (report)",
    } | {f"reconstruct_slice_2d ({z})" for z in ("z00", "z02", "z110")}
    assert read_trace(output) == dict.fromkeys(expected, "COMPLETED")
    assert "slice_config.csv" in files_of(output)
    assert "raw_tiles_2d.ome.zarr" in files_of(output)
    again = stubs.launcher.run(*arguments, "--output", output, "-stub-run")
    assert "raw_tiles_2d.ome.zarr: exists already" in again.text


def test_every_step_beside_the_straight_way(stubs: Stubs) -> None:
    """All that is off unless asked for, and the last of several files of one name."""
    manual = stubs.launcher.folder / "manual"
    manual.mkdir()
    on = ("correct_bias_field", "align_to_ras_enabled", "diagnostic_mode", "export_manual_align")
    given = {
        "truth": str(stubs.truth),
        "manual_transforms_dir": str(manual),
        "nifti_resolution": 50,
    }
    output = stubs.run_graph("all", {**dict.fromkeys(on, True), **given})
    more = {
        "refine_manual_transforms (all slices)",
        "export_manual_align (all slices)",
        "correct_bias_field (raw_tiles)",
        "download_allen (25 um)",
        "align_to_ras (raw_tiles)",
    } | {f"stitch_motor_only ({z})" for z in ("z00", "z02", "z110")}
    assert read_trace(output) == dict.fromkeys(FUSED | DIAGNOSED | more, "COMPLETED")
    assert {
        "raw_tiles_ras.ome.zarr",
        "raw_tiles_ras_transform.tfm",
        "models/align_to_ras.json",
        "models/correct_bias_field.json",
        "manual_align/manual_align_metadata.json",
        "diagnostics/compare_stitching.json",
    } <= files_of(output)


def test_every_step_can_be_disabled(stubs: Stubs) -> None:
    """Single stages need grids, though they are not kept."""
    switches = (
        *("detect_rehoming", "assess_quality_enabled", "auto_exclude_enabled"),
        *("interpolate_missing_slices", "analyze_shifts", "compensate_psf_enabled"),
        *("compensate_attenuation_enabled", "fix_curvature_enabled", "fix_illum_enabled"),
    )
    off = dict.fromkeys((*switches, "fused", "keep_mosaic_grids"), False)
    output = stubs.run_graph("least", off)
    names = {name.split(" ")[0] for name in read_trace(output)}
    assert not names & {
        "detect_rehoming", "assess_slice_quality", "auto_exclude_slices", "analyze_shifts",
        "interpolate_missing_slice", "compensate_psf_from_model", "compensate_attenuation_inplace",
    }  # fmt: skip
    assert {"register_slices", "stack_slices_motor", "finalise_interpolation"} <= names
    ran = {name for name in read_trace(output) if name.startswith("create_mosaic_grid_3d")}
    assert ran == {f"create_mosaic_grid_3d ({z})" for z in ("z00", "z02", "z110")}
    assert not (output / "mosaic_grids").exists()
