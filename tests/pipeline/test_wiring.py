"""What processes call: scripts that only note their arguments take the place of the real ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Launch, Launcher, make_raw, read_trace
from .test_params import PROPERTIES

CPU_ONLY = {
    "estimate_xy_shift_from_metadata",
    "generate_slice_config",
    "detect_rehoming",
    "auto_exclude_slices",
    "finalise_interpolation",
    "analyze_shifts",
    "generate_pipeline_report",
}
SET = {
    "resolution": 20.0,
    "stitch_blending_method": "average",
    "crop_interface_out_depth": 400.0,
    "pyramid_resolutions": "20,40.5",
    "registration_max_translation": 99,
    "fix_illum_enabled": False,
}


def flags(values: dict[str, Any]) -> list[str]:
    return [part for name, value in values.items() for part in (f"--{name}", str(value).lower())]


def calls(log: Path) -> dict[str, list[dict[str, Any]]]:
    notes: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(log.glob("*.json")):
        note = json.loads(path.read_text(encoding="utf-8"))
        notes.setdefault(note["script"], []).append(note)
    return notes


class Failed:
    """A GPU run in which one slice fails, and the same run resumed once that is mended."""

    def __init__(self, launcher: Launcher) -> None:
        self.folder = launcher.folder
        self.output = self.folder / "output"
        arguments: list[str | Path] = [
            *("--input", make_raw(self.folder / "raw", [0, 1]), "--output", self.output),
            *("-profile", "gpu", "--axial_resolution", "1.5", "--slicing_interval_mm", "0.25"),
            *("--stage_to_array=-y,+x", "--gpu_memory", "8GB", *flags(SET)),
        ]

        def run(name: str, *more: str, fail: str = "") -> Launch:
            log = str(self.folder / name)
            return launcher.run(*arguments, *more, FAKE_LOG=log, FAKE_FAIL=fail)

        self.failed = run("failed", fail="reconstruct_slice slice_z01")
        self.states = read_trace(self.output)
        self.left = {str(p.relative_to(self.output)) for p in self.output.rglob("*")}
        self.resumed = run("resumed", "-resume")


@pytest.fixture(scope="module")
def failed(make_launcher: Callable[[str, Path], Launcher], fake_scripts: Path) -> Failed:
    return Failed(make_launcher("wiring", fake_scripts))


def test_failed_task_fails_the_run_and_names_slice_and_tile(failed: Failed) -> None:
    assert failed.failed.status == 1
    assert "reconstruct_fused:reconstruct_slice (z01)` terminated" in failed.failed.text
    assert "linum_reconstruct_slice.py: error: tile (1, 2) cannot be read" in failed.failed.text
    # Nothing that looks like a brain appears.
    assert "slices/slice_z01.ome.zarr" not in failed.left
    assert not any(name.startswith(("raw.ome.zarr", "report.html")) for name in failed.left)
    assert "register_slices" not in calls(failed.folder / "failed")


def test_resume_runs_only_what_failed_and_what_follows(failed: Failed) -> None:
    assert failed.resumed.status == 0, failed.resumed.text
    states = read_trace(failed.output)
    # Whether the other slice was done when the run failed is a matter of chance.
    done = {name for name, state in failed.states.items() if state == "COMPLETED"}
    assert "learn_models (all slices)" in done
    assert {name for name, state in states.items() if state == "CACHED"} == done
    assert {name for name, state in states.items() if state == "COMPLETED"} == {
        "reconstruct_slice (z01)",
        *({"reconstruct_slice (z00)"} - done),
        "assess_slice_quality (all slices)",
        "register_slices (all slices)",
        "auto_exclude_slices (all slices)",
        "finalise_interpolation (all slices)",
        f"stack_slices_motor ({failed.folder.name})",
        "generate_pipeline_report (report)",
    }
    assert set(states.values()) == {"COMPLETED", "CACHED"}
    assert len(states) == 15


def test_gpu_reaches_every_capable_process(failed: Failed) -> None:
    notes = calls(failed.folder / "failed") | calls(failed.folder / "resumed")
    assert len(notes) == 13
    for script, made in notes.items():
        for note in made:
            assert ("--use_gpu" in note["arguments"]) is (script not in CPU_ONLY), script
            assert "--no-use_gpu" not in note["arguments"]
            limited = "--gpu_memory 8GB" in " ".join(note["arguments"])
            assert limited is (script not in CPU_ONLY), script


def test_acquisition_parameters_reach_the_grid(failed: Failed) -> None:
    arguments = calls(failed.folder / "failed")["create_mosaic_grid_3d"][0]["arguments"]
    text = " ".join(arguments)
    assert "--from_root_directory raw -z 0" in text
    assert "--axial_resolution 1.5 --slicing_interval 250" in text
    assert "--stage_to_array=-y,+x" in arguments
    assert "--fix_galvo_shift" in arguments


def test_each_process_gets_its_own_parameters(failed: Failed) -> None:
    notes = calls(failed.folder / "failed") | calls(failed.folder / "resumed")
    for script in ("learn_models", "reconstruct_slice", "register_slices", "stack_slices_motor"):
        expected = {
            name: SET.get(name, prop["default"])
            for name, prop in PROPERTIES.items()
            if script in prop.get("stages", ())
        }
        for note in notes[script]:
            assert json.loads(note["stdin"]) == expected, script
    assert json.loads(notes["stack_slices_motor"][0]["stdin"])["pyramid_resolutions"] == "20,40.5"


def test_report_is_told_of_the_run(failed: Failed) -> None:
    note = calls(failed.folder / "resumed")["generate_pipeline_report"][0]
    told = json.loads(note["stdin"])
    assert told["nextflow"] >= "24.10"
    assert told["params"]["resolution"] == 20.0
    assert told["params"]["stage_to_array"] == "-y,+x"
    ran = {(task["process"], task["tag"]) for task in told["tasks"]}
    assert ("create_mosaic_grid_3d", "z01") in ran
    assert ("reconstruct_slice", "z01") in ran
    assert len(ran) == 14
    assert all(isinstance(task["seconds"], int) for task in told["tasks"])


def test_raw_tiles_reach_the_scripts_that_read_them(
    make_launcher: Callable[[str, Path], Launcher], fake_scripts: Path
) -> None:
    launcher = make_launcher("straight", fake_scripts)
    truth = launcher.folder / "truth"
    truth.mkdir()
    launch = launcher.run(
        *("--input", make_raw(launcher.folder / "raw tiles", [0, 1, 12]), "--truth", truth),
        *("--output", launcher.folder / "output", "--keep_mosaic_grids", "false"),
        *("--slices", "1-12", "--slicing_interval_mm", "0.25", "--fix_galvo_shift", "false"),
        *("--stage_to_array=-y,+x", "--galvo_confidence_threshold", "0.4"),
        FAKE_LOG=str(launcher.folder / "log"),
    )
    assert launch.status == 0, launch.text
    notes = calls(launcher.folder / "log")
    assert "create_mosaic_grid_3d" not in notes
    flags = "--no-fix_galvo_shift --galvo_threshold 0.4 --stage_to_array=-y,+x"
    flags += " --slicing_interval 250.0"
    (learned,) = (" ".join(note["arguments"]) for note in notes["learn_models"])
    assert learned.startswith(f"--from_root_directory raw -z 01 12 {flags} --output models")
    slices = sorted(" ".join(note["arguments"]) for note in notes["reconstruct_slice"])
    for text, slice_id in zip(slices, ("01", "12"), strict=True):
        assert text.startswith(
            f"--from_root_directory raw -z {slice_id} {flags} slices/slice_z{slice_id}.ome.zarr"
        )
    (rated,) = notes["evaluate"]
    assert "--grids" not in rated["arguments"]


def test_a_run_that_the_disk_cannot_hold_is_refused_before_it_starts(
    make_launcher: Callable[[str, Path], Launcher], fake_scripts: Path
) -> None:
    launcher = make_launcher("space", fake_scripts)
    raw = make_raw(launcher.folder / "raw", [0])
    huge = next(raw.rglob("image_*.bin"))
    with huge.open("r+b") as file:
        file.truncate(4 << 40)
    launch = launcher.run("--input", raw, "--output", launcher.folder / "out")
    assert launch.status == 1
    assert "GB will be written" in launch.text and "GB are free" in launch.text
    assert not (launcher.folder / "out" / "mosaic_grids").exists()
