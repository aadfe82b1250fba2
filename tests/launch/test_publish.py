"""Results on their way to the output folder: whole, the same as their source, not through links."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from linumpy.launch.output import Output
from linumpy.launch.publish import SMALL_NBYTES, Publisher

PLACES = ("slices/slice_z00.ome.zarr", "models/z00/register_tiles.json", "report.html")


class Run:
    """A work folder with results, the folder of links to them, and an output folder."""

    def __init__(self, root: Path) -> None:
        self.work, self.links, self.output = root / "work", root / "work/.publish/s", root / "out"
        volume = self.work / "ab/cdef" / PLACES[0]
        (volume / "0/c/empty").mkdir(parents=True)
        (volume / "zarr.json").write_text("{}")
        (volume / "0/c/1").write_bytes(bytes(range(256)) * (SMALL_NBYTES // 128))
        for place in PLACES[1:]:
            path = self.work / "12/3456" / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(place)

    def source(self, place: str) -> Path:
        return self.work / ("ab/cdef" if place == PLACES[0] else "12/3456") / place

    def publisher(self, mode: str = "copy") -> Publisher:
        publisher = Publisher(Output(str(self.output)), self.links, mode)
        for place in PLACES:
            link = self.links / place
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(self.source(place))
        return publisher

    def publish(self, mode: str = "copy") -> list[str]:
        return self.publisher(mode).finish()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    yield Run(tmp_path)


def contents(root: Path) -> dict[str, tuple[bytes, int] | None]:
    return {
        str(p.relative_to(root)): (p.read_bytes(), p.stat().st_mtime_ns) if p.is_file() else None
        for p in sorted(root.rglob("*"))
    }


def assert_published(run: Run) -> None:
    for place in PLACES:
        source, made = run.source(place), run.output / place
        if source.is_dir():
            assert contents(made) == contents(source)
        else:
            assert made.read_bytes() == source.read_bytes()
            assert made.stat().st_mtime_ns == source.stat().st_mtime_ns
    assert not list(run.output.rglob(".*"))


@pytest.mark.parametrize("mode", ["copy", "link", "symlink", "rellink"])
def test_every_place_holds_its_source(run: Run, mode: str) -> None:
    assert run.publish(mode) == []
    assert_published(run)
    for place in PLACES:
        made = run.output / place
        assert made.is_symlink() == (mode in ("symlink", "rellink"))
        if mode == "rellink":
            assert not made.readlink().is_absolute()
    if mode == "link":
        assert (run.output / PLACES[2]).samefile(run.source(PLACES[2]))
    assert not run.links.exists()


@pytest.mark.slow
def test_results_are_published_during_the_run(run: Run) -> None:
    publisher = run.publisher()
    until = time.monotonic() + 60
    while not all((run.output / place).exists() for place in PLACES):
        assert time.monotonic() < until
        time.sleep(0.05)
    # A later task makes one of them again, in another folder.
    again = run.work / "99/9999/report.html"
    again.parent.mkdir(parents=True)
    again.write_text("again")
    (run.links / "report.html").unlink()
    (run.links / "report.html").symlink_to(again)
    assert publisher.finish() == []
    assert (run.output / "report.html").read_text() == "again"


def test_what_is_the_same_is_left_alone(run: Run) -> None:
    run.publish()
    before = {p: p.stat().st_ino for p in run.output.rglob("*")}
    assert run.publish() == []
    assert {p: p.stat().st_ino for p in run.output.rglob("*")} == before


def test_what_differs_is_mended(run: Run) -> None:
    """Seen to fail where files of the same size and time count as the same."""
    run.publish()
    volume = run.output / PLACES[0]
    (volume / "surplus").touch()
    for place in PLACES[1:]:
        path = run.output / place
        found = path.stat()
        path.write_text("x" * found.st_size)
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert run.publish() == []
    assert_published(run)
    for damage in (
        lambda: shutil.rmtree(volume / "0/c/empty"),
        lambda: (volume / "0/c/1").write_bytes(b"short"),
        lambda: shutil.rmtree(volume),
        lambda: (shutil.rmtree(volume), volume.write_text("a file")),
        lambda: ((volume / "zarr.json").unlink(), (volume / "zarr.json").mkdir()),
    ):
        damage()
        assert run.publish() == []
        assert_published(run)


def victim_of(root: Path) -> Path:
    victim = root / "victim"
    (victim / "slices/slice_z00.ome.zarr").mkdir(parents=True)
    (victim / "slices/slice_z00.ome.zarr/zarr.json").write_text("mine")
    (victim / "register_tiles.json").write_text("mine")
    (victim / "report.html").write_text("mine")
    return victim


LINKS = {
    "report.html": "report.html",
    ".report.html.publishing": "report.html",
    ".report.html.replaced": "report.html",
    "slices": "slices",
    "slices/slice_z00.ome.zarr": "slices/slice_z00.ome.zarr",
    "slices/.slice_z00.ome.zarr.publishing": "slices",
    "slices/.slice_z00.ome.zarr.replaced": "slices",
    "models": ".",
    "models/z00": ".",
    ".publish": ".",
}


@pytest.mark.parametrize("mode", ["copy", "link", "symlink"])
@pytest.mark.parametrize("name", LINKS)
def test_nothing_is_published_or_removed_through_a_link(
    run: Run, tmp_path: Path, name: str, mode: str
) -> None:
    """Seen to fail where folders are made by their whole path, and leftovers entered by links."""
    victim = victim_of(tmp_path)
    before = contents(victim)
    place = run.output / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(victim / LINKS[name])
    problems = run.publish(mode)
    assert contents(victim) == before
    if name in ("slices", "models", "models/z00"):
        (problem,) = problems
        assert f"{name} is a link, or something else than a folder" in problem
    else:
        assert problems == []


def test_a_link_in_a_published_volume_is_replaced(run: Run, tmp_path: Path) -> None:
    run.publish()
    victim = victim_of(tmp_path)
    before = contents(victim)
    for name in ("zarr.json", "0/c"):
        inside = run.output / PLACES[0] / name
        shutil.rmtree(inside) if inside.is_dir() else inside.unlink()
        inside.symlink_to(victim / "report.html")
        assert run.publish() == []
        assert_published(run)
    assert contents(victim) == before


def test_volume_being_written_is_not_accessible(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen to fail where it is made with the mode that it has in the end."""
    import linumpy.launch.publish as module

    modes = []
    real = module._copy_file

    def copy_file(source: str, folder: int, name: str) -> None:
        aside = run.output / "slices/.slice_z00.ome.zarr.publishing"
        # Its own files alone: when those of other places are copied, it may have its own mode.
        if "slice_z00" in source and aside.exists():
            modes.append(aside.stat().st_mode & 0o777)
        real(source, folder, name)

    monkeypatch.setattr(module, "_copy_file", copy_file)
    monkeypatch.setattr(module, "_UMASK", 0o002)
    run.publish()
    assert modes and set(modes) == {0o700}
    assert (run.output / PLACES[0]).stat().st_mode & 0o777 == 0o775


def test_a_place_that_cannot_be_written_is_named_and_the_rest_published(run: Run) -> None:
    (run.output / "models").mkdir(parents=True)
    (run.output / "models/z00").write_text("in the way")
    (problem,) = run.publish()
    assert problem.startswith(f"{run.output}/{PLACES[1]}: cannot be published from {run.links}/")
    assert (run.output / PLACES[2]).exists() and (run.output / PLACES[0]).exists()


def test_a_source_that_is_gone_is_named(run: Run) -> None:
    run.source(PLACES[2]).unlink()
    (problem,) = run.publish()
    assert "report.html: cannot be published" in problem and "No such file" in problem


@pytest.mark.parametrize("far", [False, True])
def test_files_that_nextflow_brought_are_moved(
    run: Run, far: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a work folder on an object store; also onto another file system."""
    real = os.rename

    def rename(old: Any, new: Any, **more: Any) -> None:
        if far and "src_dir_fd" not in more:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        real(old, new, **more)

    monkeypatch.setattr(os, "rename", rename)
    publisher = run.publisher()
    for place in PLACES:
        link = run.links / place
        source = link.resolve()
        link.unlink()
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, link)
    assert publisher.finish() == []
    assert_published(run)


def test_remains_of_a_killed_launch_are_removed_and_other_files_stay(run: Run) -> None:
    for name in (".a.publishing", "slices/.b.replaced", "models/z00/.c.publishing"):
        (run.output / name / "inside").mkdir(parents=True)
    for name in (".notes", "x.publishing", "slices/v.ome.zarr/.d.publishing", ".git/.e.replaced"):
        (run.output / name).mkdir(parents=True)
    run.publisher().finish(give_up=True)
    left = {p.name for p in run.output.rglob("*") if p.name.endswith(("publishing", "replaced"))}
    assert left == {"x.publishing", ".d.publishing", ".e.replaced"}
