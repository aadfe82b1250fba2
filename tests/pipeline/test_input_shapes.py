"""Acquisitions of odd shapes, from raw tiles to the report: real runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorstore

from .conftest import REPOSITORY, Launch, Launcher

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def launcher(make_launcher: Callable[[str, Path], Launcher], scripts_folder: Path) -> Launcher:
    return make_launcher("shapes", scripts_folder)


def simulate(launcher: Launcher, folder: Path, *options: str) -> Path:
    """Simulate one slice and return its folder of raw tiles."""
    subprocess.run(
        [sys.executable, REPOSITORY / "scripts" / "linum_phantom.py", folder]
        + ["--preset", "tiny", "--seed", "5", "--n_slices", "1", *options],
        env=launcher.environment(),
        stdin=subprocess.DEVNULL,
        check=True,
    )
    return folder / "raw"


def brain_shape(path: Path) -> tuple[int, ...]:
    store = {"driver": "file", "path": f"{path}/0/"}
    return tuple(tensorstore.open({"driver": "zarr3", "kvstore": store}).result().shape)


def check_ends(launch: Launch, output: Path, brain: str) -> str:
    """Check a run that made a brain, and return its report."""
    assert launch.status == 0, launch.text
    assert f"linum_nextflow.py: made {output}/{brain} in " in launch.text
    assert f"see the report: {output}/report.html" in launch.text
    return (output / "report.html").read_text(encoding="utf-8")


def test_one_tile_becomes_a_brain(launcher: Launcher, tmp_path: Path) -> None:
    """Seen to fail where models need two tiles, and with a finding that it has no neighbour."""
    raw = simulate(launcher, tmp_path / "one", "--tiles_x", "1", "--tiles_y", "1")
    output = tmp_path / "out"
    launch = launcher.run("--input", raw, "--output", output, "-profile", "test")
    page = check_ends(launch, output, "one.ome.zarr")
    assert brain_shape(output / "one.ome.zarr")[1:] == (64, 64)
    flat = json.loads((output / "models/fix_illumination_3d.json").read_text(encoding="utf-8"))
    assert (flat["n_tiles"], flat["n_pairs"]) == (1, 0)
    assert "match no neighbour" not in page


def test_one_row_of_slice_17_in_folders_of_other_languages(
    launcher: Launcher, tmp_path: Path
) -> None:
    """Seen to fail with names of ASCII alone."""
    raw = simulate(launcher, tmp_path / "row", "--tiles_x", "3", "--tiles_y", "1")
    mine = tmp_path / "Gehirn Nº 3, мозг 脳"
    (raw / "slice_z00").rename(raw / "slice_z17")
    raw.rename(mine)
    for tile in sorted((mine / "slice_z17").rglob("tile_*_z00")):
        tile.rename(tile.with_name(tile.name.replace("_z00", "_z17")))
    output = tmp_path / "выход"
    asked = ("--input", mine, "--output", output, "--subject_name", "brain", "-profile", "test")
    page = check_ends(launcher.run(*asked), output, "brain.ome.zarr")
    assert [path.name for path in (output / "slices").iterdir()] == ["slice_z17.ome.zarr"]
    shape = brain_shape(output / "brain.ome.zarr")
    assert shape[1] > 150 and 60 <= shape[2] <= 70
    assert re.search(r"<b>z17</b>", page) and "3 tiles in 1 slice" in page
