"""Mistakes of a launch, and what the user reads last of each."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.launch.test_preflight import INFO_NBYTES, acquisition

from .conftest import Launch, Launcher

NEXT = "Next:  correct this, then give the same command again"


@pytest.fixture(scope="module")
def launcher(make_launcher: Callable[[str, Path], Launcher], scripts_folder: Path) -> Launcher:
    return make_launcher("mistakes", scripts_folder)


def refused(launch: Launch) -> list[str]:
    """Return the problems at the end of a launch that started nothing."""
    assert launch.status == 1
    *_, end = re.split(r"^linum_nextflow\.py: error: ", launch.text, flags=re.MULTILINE)
    head, *lines, advice = end.strip().splitlines()
    assert advice == NEXT
    assert "Submitted process" not in launch.text
    if not lines:
        return [head]
    problems = [line[2:] for line in lines if not line.startswith("    ")]
    assert head == f"{len(problems)} problems, nothing was started:"
    return [head, *(line.strip() for line in lines)]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path | None]:
    """Give a folder on another disk, None where there is none."""
    place = Path("/dev/shm")
    if not os.access(place, os.W_OK) or place.stat().st_dev == tmp_path.stat().st_dev:
        yield None
    else:
        with tempfile.TemporaryDirectory(dir=place) as folder:
            yield Path(folder)


def test_all_mistakes_of_one_launch_are_read_last(
    launcher: Launcher, tmp_path: Path, elsewhere: Path | None
) -> None:
    """Seen to fail where the first kind of problem ends the search."""
    raw = acquisition(tmp_path / "raw", {n: (3, 2) for n in range(4)})
    short = raw / "slice_z01/tiles/tile_x02_y01_z01/image_00000.bin"
    short.write_bytes(bytes(100))
    gone = raw / "slice_z02/tiles/tile_x00_y00_z02/image_00000.bin"
    gone.unlink()
    twin = raw / "slice_z00/tiles/tile_x00_y001_z00"
    (twin.parent / "tile_x01_y00_z00").rename(twin)
    asked: list[str | Path] = ["--input", raw, "--output", raw / "results", "--use_gpu"]
    asked += ["--resolution", "0.01", "--slicing_interval_mm", "200", "--axial_resolution", "0.005"]
    asked += ["--stage_to_array=-x,+y"]
    if elsewhere is not None:
        asked += ["--publish_mode", "link", "-work-dir", elsewhere]
    _, *lines = refused(launcher.run(*asked, CUDA_VISIBLE_DEVICES=""))
    expected = [
        f"{twin} and {twin.parent}/tile_x00_y01_z00: two tiles at grid index x 0, y 1",
        f"--input {raw}: 2 tiles in 2 slices (z01, z02) cannot be read; copy these tiles anew",
        f"{short}: 100 bytes, expected {INFO_NBYTES}",
        f"{gone.parent}: ",
        f"--output {raw}/results: lies inside --input {raw}",
        "--use_gpu: no NVIDIA GPU is visible on this machine",
        "--axial_resolution 0.005: expected 0.1 to 100 um (0.005 mm would be 5 um)",
        "--slicing_interval_mm 200: expected 0.005 to 5 mm (200 um would be 0.2 mm)",
        "--resolution 0.01: expected ",
        "--stage_to_array -x,+y: contradicts the headers of 2 of 2 slices",
    ]
    if elsewhere is not None:
        expected.append(f"--publish_mode link: impossible from {elsewhere}")
    for start in expected:
        assert sum(line.startswith(start) for line in lines) == 1, (start, lines)
    assert len(lines) == len(expected)
    # Nextflow itself makes a folder for its trace before it asks.
    assert not (raw / "results").exists()


def test_subjects_and_units_of_nothing_are_read_last(launcher: Launcher, tmp_path: Path) -> None:
    """Seen to fail where two subjects are merged without a word."""
    for name in ("sub-01", "sub-02"):
        acquisition(tmp_path / "bids" / name / "raw", {int(name[-1]): (2, 2)})
    root = tmp_path / "bids"
    asked = ("--input", root, "--output", tmp_path / "out", "--resolution", "0")
    assert refused(launcher.run(*asked))[1:] == [
        f"--input {root}: holds 2 subjects (sub-01, sub-02); name one of them",
        "--resolution 0: expected 0.5 to 400 um, or -1 for the voxels of the tiles",
    ]


def test_a_full_disk_is_read_last(launcher: Launcher, tmp_path: Path) -> None:
    """By the plan, from headers and the sizes of sparse files. Seen to fail without the plan."""
    large = {"nx": 12000, "ny": 12000, "width": 2400, "height": 2400}
    raw = acquisition(tmp_path / "raw", {n: (9, 9) for n in range(4)}, **large)
    nbytes = 4 * 150 * (12000 + 20) * 12000
    try:
        for path in raw.rglob("image_00000.bin"):
            os.truncate(path, nbytes)
    except OSError:
        pytest.skip("no sparse files of 86 GB here")
    launch = launcher.run("--input", raw, "--output", tmp_path / "out")
    disk = r"\S+out and \S+work: [\d.]+ TB will be written, [\d.]+ [GTM]B are free"
    assert any(re.fullmatch(disk, line) for line in refused(launch)), launch.text
    assert not (tmp_path / "out" / "mosaic_grids").exists()


def test_forgotten_dashes_are_read_last(launcher: Launcher, tmp_path: Path) -> None:
    """Seen to fail where Nextflow is asked."""
    launch = launcher.run("-input", tmp_path, "--output", tmp_path / "out")
    assert launch.status == 1
    assert launch.text.splitlines()[-1] == (
        "linum_nextflow.py: error: -input: parameters of the pipeline have two dashes (--input); "
        "one dash is for options of Nextflow"
    )
