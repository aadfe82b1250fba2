"""Every default stage once, from raw tiles with a gap to the report; `make test` runs it."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorstore

from .conftest import Launch, Launcher, read_trace

pytestmark = pytest.mark.end_to_end

# Slices so far apart that the one left out leaves planes to fill; the stage is exact, because
# slices that share no tissue cannot correct it.
PHANTOM = ("--preset", "tiny", "--seed", "23", "--missing_slices", "1")
APART = ("--slice_interval_um", "240", "--slice_offset_rms_um", "0")
TASKS = {
    "estimate_xy_shift_from_metadata": 1,
    "generate_slice_config": 1,
    "detect_rehoming": 1,
    "analyze_shifts": 1,
    "create_mosaic_grid_3d": 2,
    "learn_models": 1,
    "reconstruct_slice": 2,
    "measure_pairs": 2,
    "assess_slice_quality": 1,
    "register_slices": 1,
    "auto_exclude_slices": 1,
    "interpolate_missing_slice": 1,
    "finalise_interpolation": 1,
    "stack_slices_motor": 1,
    "evaluate_run": 1,
    "generate_pipeline_report": 1,
}
MET = (
    *("tile_positions_px", "slice_xy_px", "slice_z_voxel", "slice_rotation_deg"),
    *("interface_voxel", "interface_surface_voxel", "focal_surface_voxel"),
    *("flat_field_percent", "attenuation_grey_percent", "axial_flatness_percent", "seams"),
)


@pytest.fixture(scope="module")
def run(
    make_launcher: Callable[[str, Path], Launcher], scripts_folder: Path
) -> tuple[Path, Launch]:
    """Output folder and launch."""
    launcher = make_launcher("default_run", scripts_folder)
    phantom, output = launcher.folder / "phantom", launcher.folder / "output"
    subprocess.run(
        [sys.executable, scripts_folder / "linum_phantom.py", phantom, *PHANTOM, *APART],
        env=launcher.environment(),
        stdin=subprocess.DEVNULL,
        check=True,
    )
    launch = launcher.run(
        *("--input", phantom / "raw", "--truth", phantom / "truth"),
        *("--output", output, "-profile", "test"),
    )
    assert launch.status == 0, launch.text
    return output, launch


def test_every_default_stage_runs_once_a_slice(run: tuple[Path, Launch]) -> None:
    states = read_trace(run[0])
    assert set(states.values()) == {"COMPLETED"}
    assert Counter(name.split(" ")[0] for name in states) == TASKS


def test_gap_is_filled(run: tuple[Path, Launch]) -> None:
    output, _ = run
    with (output / "slice_config.csv").open(newline="", encoding="utf-8") as file:
        rows = {row["slice_id"]: row for row in csv.DictReader(file)}
    assert rows["01"]["interpolated"] == "true"
    assert rows["01"]["interpolation_method_used"] == "zmorph"
    model = json.loads((output / "models/stack_slices_motor.json").read_text(encoding="utf-8"))
    placed = {row["slice_id"]: row for row in model["slices"]}
    assert placed[1]["interpolated"] and placed[1]["n_planes"] >= 1
    # 480 um lie between the faces.
    assert abs(placed[2]["z_start_px"] - placed[0]["z_start_px"] - 48) <= 2
    store = {"driver": "file", "path": f"{output}/phantom.ome.zarr/0/"}
    brain = tensorstore.open({"driver": "zarr3", "kvstore": store}).result().read().result()
    assert brain.shape[0] == placed[2]["z_start_px"] + placed[2]["n_planes"]
    # As much tissue in the planes that were made as above them.
    assert np.isfinite(brain).all()
    tissue = (brain > 0.25).mean(axis=(1, 2))
    first = placed[1]["z_start_px"]
    made = tissue[first : first + placed[1]["n_planes"]]
    np.testing.assert_allclose(made, tissue[first - 10], rtol=0.25)


def test_accuracy_targets_are_met(run: tuple[Path, Launch]) -> None:
    figures = json.loads((run[0] / "accuracy.json").read_text(encoding="utf-8"))
    missed = {name: figures[name] for name in MET if not figures[name]["passed"]}
    assert not missed
    assert figures["gaps_filled"]["value"] == 1


def test_report_shows_the_tasks(run: tuple[Path, Launch]) -> None:
    page = (run[0] / "report.html").read_text(encoding="utf-8")
    for word in ("interpolate_missing_slice", f"Table of tasks ({sum(TASKS.values())})"):
        assert word in page, word


def test_report_gets_folders_and_sees_what_was_published(run: tuple[Path, Launch]) -> None:
    """Seen to fail (65 inputs) where each file is an input."""
    output, _ = run
    scripts = (output.parent / "work").glob("*/*/.command.sh")
    (task,) = (s.parent for s in scripts if "linum_generate_pipeline_report" in s.read_text())
    inputs = list((task / "staged").iterdir())
    folders = {
        "models", "models/z00", "models/z02", "slices", "aips", "previews", "diagnostics",
        "mosaic_grids",
    }  # fmt: skip
    shown = {str(path.relative_to(task / "run")) for path in _links(task / "run")}
    assert folders <= {str(Path(name).parent) for name in shown}
    assert len(inputs) < len(shown) / 2
    assert all((task / "run" / name).exists() for name in shown)
    lacking = {name for name in shown if not (output / name).exists()}
    assert not lacking


def _links(folder: Path) -> list[Path]:
    """Return the links below a folder, not what lies in what they link to."""
    found = []
    for entry in folder.iterdir():
        found += [entry] if entry.is_symlink() else _links(entry)
    return found
