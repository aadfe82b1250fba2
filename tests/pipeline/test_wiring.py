"""What processes call: scripts that only note their arguments take the place of the real ones."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rocrate.rocrate import ROCrate

from linumpy.core.exit_status import DEVICE_MEMORY

from .conftest import REPOSITORY, Launch, Launcher, make_raw, read_trace
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
    """A GPU run in which one slice fails, and the same run resumed once that is mended.

    Another task runs out of device memory the first time that it is tried.
    """

    def __init__(self, launcher: Launcher) -> None:
        self.folder = launcher.folder
        self.output = self.folder / "output"
        arguments: list[str | Path] = [
            *("--input", make_raw(self.folder / "raw", [0, 1]), "--output", self.output),
            *(
                "-profile",
                "gpu",
                "--skip_preflight",
                "--axial_resolution",
                "1.5",
                "--slicing_interval_mm",
                "0.25",
            ),
            *("--stage_to_array=-y,+x", "--gpu_memory", "8GB", *flags(SET)),
        ]

        def run(name: str, *more: str, fail: str = "", once: str = "") -> Launch:
            log = str(self.folder / name)
            return launcher.run(*arguments, *more, FAKE_LOG=log, FAKE_FAIL=fail, FAKE_ONCE=once)

        out_of_memory = f"learn_models {DEVICE_MEMORY}"
        self.failed = run("failed", fail="reconstruct_slice slice_z01", once=out_of_memory)
        self.states = read_trace(self.output)
        self.crate = ROCrate(str(self.output))
        self.left = {str(p.relative_to(self.output)) for p in self.output.rglob("*")}
        self.resumed = run("resumed", "-resume")


@pytest.fixture(scope="module")
def failed(make_launcher: Callable[[str, Path], Launcher], fake_scripts: Path) -> Failed:
    return Failed(make_launcher("wiring", fake_scripts))


def test_failed_task_fails_the_run_and_names_slice_and_tile(failed: Failed) -> None:
    assert failed.failed.status == 1
    assert "reconstruct_fused:reconstruct_slice (z01)` terminated" in failed.failed.text
    assert "linum_reconstruct_slice.py: error: tile (1, 2) cannot be read" in failed.failed.text
    said, _, command = failed.failed.text.splitlines()[-3:]
    assert said.endswith("error: reconstruct_slice (z01): tile (1, 2) cannot be read")
    assert command.endswith(" -resume")
    # Nothing that looks like a brain appears.
    assert "slices/slice_z01.ome.zarr" not in failed.left
    assert not any(name.startswith(("raw.ome.zarr", "report.html")) for name in failed.left)
    assert "register_slices" not in calls(failed.folder / "failed")


def test_only_what_ran_out_of_memory_is_tried_again_with_less(failed: Failed) -> None:
    notes = calls(failed.folder / "failed")
    first, second = sorted(notes["learn_models"], key=lambda note: note["began"])
    assert second["arguments"] == [*first["arguments"], "--gpu_batch", "0.5"]
    assert "status (102) -- Execution is retried" in failed.failed.text
    assert failed.failed.text.count("Execution is retried") == 1
    wrong = [note for note in notes["reconstruct_slice"] if "01.ome" in note["arguments"][1]]
    assert len(wrong) == 1


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
        "measure_pairs (z00)",
        "assess_slice_quality (all slices)",
        "register_slices (all slices)",
        "auto_exclude_slices (all slices)",
        "finalise_interpolation (all slices)",
        f"stack_slices_motor ({failed.folder.name})",
        "generate_pipeline_report (report)",
    }
    assert set(states.values()) == {"COMPLETED", "CACHED"}
    assert len(states) == 16


def test_both_launches_are_on_record(failed: Failed) -> None:
    info = failed.output / "pipeline_info"
    first, second = (json.loads(path.read_text()) for path in sorted(info.glob("run_*.json")))
    assert (first["status"], second["status"]) == ("failed", "completed")
    assert (first["resumed"], second["resumed"]) == (False, True)
    assert first["session"] == second["session"]
    (wrong,) = first["failed_tasks"]
    assert wrong == {"process": "reconstruct_slice", "tag": "z01", "exit": 1, "attempt": 1}
    assert "tile (1, 2) cannot be read" in first["error"]
    for record, launch in ((first, "failed"), (second, "resumed")):
        told = {(t["process"], t["tag"]) for t in record["tasks"] if t["status"] != "CACHED"}
        # The fakes note how often they were called.
        assert sum(len(n) for n in calls(failed.folder / launch).values()) == sum(
            t["status"] != "CACHED" for t in record["tasks"]
        )
        assert ("reconstruct_slice", "z01") in told
        assert record["command_line"].startswith("linum_nextflow.py -c ")
        assert record["params"]["resolution"] == 20.0
        assert record["profile"] == "gpu"
        assert record["versions"]["nextflow"] == "24.10.0"
        assert record["wall_s"] > max(t["duration_s"] for t in record["tasks"])
    attempts = [(t["attempt"], t["exit"]) for t in first["tasks"] if t["process"] == "learn_models"]
    assert attempts == [(1, DEVICE_MEMORY), (2, 0)]
    cached = [t for t in second["tasks"] if t["status"] == "CACHED"]
    assert {"learn_models", "create_mosaic_grid_3d"} <= {t["process"] for t in cached}


def test_the_record_names_the_sources(failed: Failed) -> None:
    git = ["git", "-C", str(REPOSITORY)]
    done = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
    record = json.loads(next((failed.output / "pipeline_info").glob("run_*.json")).read_text())
    # Without a repository there is no revision; with one, a commit may come meanwhile.
    known = subprocess.run(
        [*git, "cat-file", "-e", str(record["revision"]["commit"])], capture_output=True
    )
    assert (done.returncode == 0) is (known.returncode == 0)
    assert record["revision"]["modified"] in ((True, False) if done.returncode == 0 else (None,))


def test_a_failed_run_leaves_a_crate_without_results(failed: Failed) -> None:
    (action,) = failed.crate.get_by_type("CreateAction")
    assert action["actionStatus"].endswith("/FailedActionStatus")
    assert action["error"].startswith("reconstruct_slice (z01): linum_reconstruct_slice.py: error:")
    assert "result" not in action.properties()
    (action,) = ROCrate(str(failed.output)).get_by_type("CreateAction")
    assert action["actionStatus"].endswith("/CompletedActionStatus")
    results = {entity.id for entity in action["result"]}
    assert {f"{failed.folder.name}.ome.zarr/", "report.html", "slice_config.csv"} <= results
    assert str(failed.folder) not in (failed.output / "ro-crate-metadata.json").read_text()


def test_report_states_how_the_run_ended(failed: Failed) -> None:
    page = (failed.output / "report.html").read_text(encoding="utf-8")
    assert "of them cached from an earlier launch" in page
    assert "Table of tasks (16)" in page
    assert "<dt>Wall time</dt>" in page


def test_gpu_reaches_every_capable_process(failed: Failed) -> None:
    notes = calls(failed.folder / "failed") | calls(failed.folder / "resumed")
    assert len(notes) == 14
    for script, made in notes.items():
        for note in made:
            assert ("--use_gpu" in note["arguments"]) is (script not in CPU_ONLY), script
            assert "--no-use_gpu" not in note["arguments"]
            limited = "--gpu_memory 8GB" in " ".join(note["arguments"])
            assert limited is (script not in CPU_ONLY), script
            share = {"measure_pairs": 4, "reconstruct_slice": 2}.get(script, 1)
            stated = f"--gpu_tasks {share}" in " ".join(note["arguments"])
            assert stated is (script not in CPU_ONLY), script


@pytest.mark.slow
@pytest.mark.parametrize("grids", [True, False])
def test_learning_has_all_gpus_where_no_grids_are_made(
    make_launcher: Callable[[str, Path], Launcher], fake_scripts: Path, grids: bool
) -> None:
    launcher = make_launcher(f"two-gpus-{grids}", fake_scripts)
    log = launcher.folder / "log"
    launch = launcher.run(
        *("--input", make_raw(launcher.folder / "raw", [0]), "--output", launcher.folder / "o"),
        *("-profile", "gpu", "--skip_preflight", "--gpu_count", "2"),
        *("--keep_mosaic_grids", str(grids).lower()),
        FAKE_LOG=str(log),
    )
    assert launch.status == 0, launch.text
    given = {
        script: ["--gpu_count 2" in " ".join(note["arguments"]) for note in notes]
        for script, notes in calls(log).items()
    }
    assert given["learn_models"] == [not grids]
    assert given["stack_slices_motor"] == [True]
    assert not any(given["reconstruct_slice"])


def test_acquisition_parameters_reach_the_grid(failed: Failed) -> None:
    arguments = calls(failed.folder / "failed")["create_mosaic_grid_3d"][0]["arguments"]
    text = " ".join(arguments)
    assert "--from_root_directory raw -z 0" in text
    assert "--axial_resolution 1.5 --slicing_interval 250" in text
    assert "--stage_to_array=-y,+x" in arguments
    assert "--fix_galvo_shift" in arguments


def test_each_process_gets_its_own_parameters(failed: Failed) -> None:
    notes = calls(failed.folder / "failed") | calls(failed.folder / "resumed")
    scripts = ("learn_models", "reconstruct_slice", "measure_pairs", "register_slices")
    for script in (*scripts, "stack_slices_motor"):
        expected = {
            name: SET.get(name, prop["default"])
            for name, prop in PROPERTIES.items()
            if script in prop.get("stages", ())
        }
        for note in notes[script]:
            told = json.loads(note["stdin"])
            if script == "measure_pairs":
                # The table of shifts that was made up has no row.
                assert told.pop("shifts_rows") == []
            assert told == expected, script
    assert json.loads(notes["stack_slices_motor"][0]["stdin"])["pyramid_resolutions"] == "20,40.5"


def test_report_gets_the_run(failed: Failed) -> None:
    note = calls(failed.folder / "resumed")["generate_pipeline_report"][0]
    told = json.loads(note["stdin"])
    assert told["nextflow"] >= "24.10"
    assert told["params"]["resolution"] == 20.0
    assert told["params"]["stage_to_array"] == "-y,+x"
    ran = {(task["process"], task["tag"]) for task in told["tasks"]}
    assert ("create_mosaic_grid_3d", "z01") in ran
    assert ("reconstruct_slice", "z01") in ran
    assert len(ran) == 15
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
