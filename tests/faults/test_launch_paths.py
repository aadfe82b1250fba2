"""Real launches: links in input and output, links laid as a trap, digits of another locale."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.pipeline.conftest import Launcher, make_launcher, make_raw, read_trace

__all__ = ["make_launcher"]

pytestmark = pytest.mark.slow

ARABIC = "-Duser.language=ar -Duser.country=EG"


@pytest.fixture
def launcher(
    make_launcher: Callable[[str, Path], Launcher], tmp_path_factory: pytest.TempPathFactory
) -> Launcher:
    return make_launcher("paths", tmp_path_factory.mktemp("none"))


def test_links_in_input_and_output_and_arabic_digits(launcher: Launcher) -> None:
    """Seen to fail on `folder.list()` of a link, and with ids made by `String.format`."""
    here = launcher.folder
    raw, disk = make_raw(here / "raw", [0, 1]), here / "disk"
    disk.mkdir()
    (raw / "slice_z01").rename(disk / "slice")
    (raw / "slice_z01").symlink_to("../disk/slice")
    tile = raw / "slice_z00/tiles/tile_x01_y00_z00"
    tile.rename(disk / "tile")
    tile.symlink_to(disk / "tile")
    (raw / "slice_z00/up").symlink_to("..")
    (raw / "slice_z02/tiles").mkdir(parents=True)
    (raw / "lost+found").mkdir(mode=0)
    (here / "link").symlink_to("raw")
    (disk / "results").mkdir()
    (here / "out").symlink_to("disk/results")
    arguments = ("--input", "link", "--output", "out", "--mode", "2.5d", "-stub-run")
    environment = {"NXF_OPTS": ARABIC, "LC_ALL": "C.UTF-8"}
    launch = launcher.run(*arguments, **environment)
    assert launch.status == 0, launch.text
    states = read_trace(here / "out")
    slices = {name for name in states if name.startswith("reconstruct_slice_2d")}
    assert slices == {"reconstruct_slice_2d (z00)", "reconstruct_slice_2d (z01)"}
    assert (disk / "results/launch_2d.ome.zarr").exists()
    (record,) = (here / "out/pipeline_info").glob("run_*.json")
    assert record.name.isascii() and record.read_text(encoding="utf-8").isascii()
    # A file behind links changes: its slice alone is made again.
    os.utime(disk / "slice/tiles/tile_x00_y00_z01/image_00000.bin", ns=(1, 1))
    again = launcher.run(*arguments, "-resume", **environment)
    assert again.status == 0, again.text
    states = read_trace(here / "out")
    grids = {name: state for name, state in states.items() if name.startswith("create_mosaic")}
    assert grids == {
        "create_mosaic_grid_3d (z00)": "CACHED",
        "create_mosaic_grid_3d (z01)": "COMPLETED",
    }


def test_links_laid_in_an_output_folder_destroy_nothing(launcher: Launcher) -> None:
    """As another user could in a shared folder: control files are links to files of the launcher.

    Seen to fail, each on its own, with `overwrite` of Nextflow's records and with records and
    signs of life that are written in place.
    """
    here = launcher.folder
    make_raw(here / "raw", [0, 1])
    victim = here / "victim"
    (victim / "below/slices").mkdir(parents=True)
    places = ("file", "below/slices/slice_z00.ome.zarr", "below/main.nf")
    for name in places:
        (victim / name).write_text("mine", encoding="utf-8")

    def lay(output: Path, links: dict[str, str]) -> None:
        (output / "pipeline_info").mkdir(parents=True)
        for name, target in links.items():
            (output / name).symlink_to(victim / target)

    def run(output: str) -> str:
        arguments = ("--input", "raw", "--output", output, "--mode", "2.5d", "--overwrite")
        launch = launcher.run(*arguments, "-stub-run")
        assert {(victim / name).read_text(encoding="utf-8") for name in places} == {"mine"}
        return f"{launch.status} {launch.text}"

    lay(
        here / "replaced",
        dict.fromkeys(
            (
                *(".linumpy.alive", ".linumpy.alive.now", "pipeline_info/main.nf"),
                *("report.html", "ro-crate-metadata.json", "slice_config.csv"),
                *("launch_2d.ome.zarr", ".report.html.publishing", ".report.html.replaced"),
            ),
            "file",
        )
        | {".publish": "below"},
    )
    assert run("replaced").startswith("0 ")
    assert not (here / "replaced/report.html").is_symlink()
    assert not (here / "replaced/launch_2d.ome.zarr").is_symlink()

    # Nextflow writes these before, or without, asking us.
    now = datetime.now()
    moments = [now + timedelta(seconds=s) for s in range(600)]
    stamps = [moment.strftime("%Y-%m-%d_%H-%M-%S") for moment in moments]
    for kind in ("trace_{}.tsv", "report_{}.html", "timeline_{}.html"):
        output = kind.partition("_")[0]
        lay(here / output, {f"pipeline_info/{kind.format(stamp)}": "file" for stamp in stamps})
        assert "file already exists" in run(output)

    lay(here / "lock", {".linumpy.lock": "file"})
    assert ".linumpy.lock is a link" in run("lock")
    (here / "info").mkdir()
    (here / "info/pipeline_info").symlink_to(victim / "below")
    assert "pipeline_info is a link" in run("info")
    assert {path.name for path in (victim / "below").iterdir()} == {"slices", "main.nf"}
