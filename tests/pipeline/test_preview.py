"""``-preview`` says what a run will take, and runs nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import REPOSITORY, Launch, Launcher


@pytest.fixture(scope="module")
def launcher(make_launcher: Callable[[str, Path], Launcher], scripts_folder: Path) -> Launcher:
    return make_launcher("preview", scripts_folder)


@pytest.fixture(scope="module")
def raw(launcher: Launcher) -> Path:
    folder = launcher.folder / "phantom"
    script = REPOSITORY / "scripts" / "linum_phantom.py"
    subprocess.run(
        [sys.executable, script, folder, "--preset", "tiny", "--seed", "8"],
        env=launcher.environment(),
        stdin=subprocess.DEVNULL,
        timeout=300,
        check=True,
    )
    return folder / "raw"


def preview(launcher: Launcher, scripts: Path, *arguments: str | Path) -> Launch:
    """Preview with the working tree's planner on PATH, where linumpy's own launcher puts it."""
    path = f"{scripts}:{launcher.environment()['PATH']}"
    # The launcher's own folder comes first on PATH; here it need not hold the newest script.
    return launcher.run(*arguments, "-preview", PATH=path)


@pytest.fixture(scope="module")
def previewed(launcher: Launcher, scripts_folder: Path, raw: Path) -> Launch:
    options = ("--input", raw, "--output", "out", "--resolution", "20", "--slices", "1-2")
    return preview(launcher, scripts_folder, *options)


def test_preview_prints_the_plan(previewed: Launch, raw: Path) -> None:
    assert previewed.status == 0, previewed.text
    assert f"Input  {raw}" in previewed.text
    assert "raw tiles: 2 slices (z1-2), 18 tiles" in previewed.text
    assert "voxels of 20 x 20 x 20 um" in previewed.text
    assert re.search(r"  out and /.*/work: \d+", previewed.text)
    assert re.search(r"\n  reconstruct_slice +2 ", previewed.text)
    assert "Time  about" in previewed.text


def test_preview_runs_and_claims_nothing(previewed: Launch, launcher: Launcher) -> None:
    assert "Brain:" not in previewed.text
    assert not (launcher.folder / "out" / ".linumpy.lock").exists()
    assert not list((launcher.folder / "work").glob("??"))
    made = {path.name for path in (launcher.folder / "out").iterdir()}
    assert made <= {"pipeline_info"}


def test_the_plan_has_the_processes_of_nextflows_own_graph(
    previewed: Launch, launcher: Launcher
) -> None:
    (graph,) = (launcher.folder / "out" / "pipeline_info").glob("dag_*.mmd")
    drawn = set(re.findall(r"v\d+\(\[(\w+)\]\)", graph.read_text()))
    table = previewed.text.partition("\nProcess ")[2].partition("\nTime ")[0]
    planned = set(re.findall(r"^  (\w+) +\d+ ", table, re.M))
    # No slice is missing between two others, so that nothing is interpolated, and none has failed.
    assert drawn - planned == {"interpolate_missing_slice", "check_slices"}
    assert planned <= drawn


def test_preview_ends_with_what_is_wrong(
    launcher: Launcher, scripts_folder: Path, raw: Path
) -> None:
    for path in raw.rglob("metadata.json"):
        content = json.loads(path.read_text())
        del content["axial_resolution_um"]
        path.write_text(json.dumps(content))
    launch = preview(launcher, scripts_folder, "--input", raw, "--output", "out2")
    assert launch.status != 0
    said = (
        "linum_nextflow.py: error: axial resolution unknown (slices 0-2): write "
        f'"axial_resolution_um" to {raw}/slice_z00/metadata.json, or give --axial_resolution UM'
    )
    assert launch.text.splitlines()[-2:] == [
        said,
        "Next:  correct this, then give the same command again",
    ]
