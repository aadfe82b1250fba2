import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from linumpy.core.errors import OutputExistsError
from linumpy.store import atomic
from linumpy.store.atomic import atomic_path, write_json, write_text


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    path = tmp_path / "deep" / "a.txt"
    with pytest.raises(RuntimeError), atomic_path(path) as partial:
        partial.write_text("half")
        assert not path.exists()
        raise RuntimeError
    assert list(path.parent.iterdir()) == []
    write_text(path, "whole")
    assert path.read_text() == "whole"


def test_existing_outputs_are_refused_before_anything_is_written(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(OutputExistsError, match="--overwrite"), atomic_path(path):
        pytest.fail("must not begin")
    with pytest.raises(OutputExistsError):
        write_text(path, "new", overwrite=False)
    assert path.read_text() == "old"


@pytest.mark.parametrize("old", ["file", "folder"])
@pytest.mark.parametrize("new", ["file", "folder"])
def test_any_output_replaces_any_other_with_overwrite(tmp_path, old, new):
    path = tmp_path / "out"
    if old == "file":
        path.write_text("old")
    else:
        path.mkdir()
        (path / "inner").write_text("old")
    with atomic_path(path, overwrite=True, directory=new == "folder") as partial:
        target = partial / "fresh" if new == "folder" else partial
        target.write_text("new")
    assert path.is_dir() == (new == "folder")
    assert ((path / "fresh") if new == "folder" else path).read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("exchange", [True, False])
def test_the_old_folder_comes_back_when_the_new_ones_place_cannot_be_kept(
    tmp_path, monkeypatch, exchange
):
    path = tmp_path / "out"
    path.mkdir()
    (path / "inner").write_text("old")
    if not exchange:
        monkeypatch.setattr(atomic, "_renameat2", lambda: None)
    original = os.fsync

    def fsync(descriptor):
        if Path(f"/proc/self/fd/{descriptor}").readlink() == tmp_path:
            assert (path / "inner").read_text() == "new"
            raise OSError(errno.EIO, "no")
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with (
        pytest.raises(OSError, match="no"),
        atomic_path(path, overwrite=True, directory=True) as partial,
    ):
        (partial / "inner").write_text("new")
    assert (path / "inner").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_every_file_and_folder_is_synchronised_before_the_rename(tmp_path, monkeypatch):
    synced = []
    original = os.fsync

    def fsync(descriptor):
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        original(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with atomic_path(tmp_path / "out", directory=True) as partial:
        (partial / "sub").mkdir()
        (partial / "sub" / "a").write_text("1")
        names = {str(partial), str(partial / "sub"), str(partial / "sub" / "a")}
        assert not synced
    assert names <= set(synced)
    assert synced[-1] == str(tmp_path)


def test_a_killed_writer_leaves_nothing_that_looks_finished(tmp_path):
    code = (
        "import sys, time\n"
        "from linumpy.store.atomic import atomic_path\n"
        "with atomic_path(sys.argv[1], directory=True) as partial:\n"
        "    (partial / 'a').write_text('half')\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    path = tmp_path / "out.ome.zarr"
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    time.sleep(0.05)
    assert not path.exists()
    assert all(p.name.startswith(".") for p in tmp_path.iterdir())


def test_json_holds_no_nan(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_writer_killed_while_it_replaces_leaves_the_old_image(tmp_path):
    """Between begin and end the old folder stays as it was, whatever the moment of the kill."""
    code = (
        "import sys\n"
        "from linumpy.io.omezarr import ImageSpec, create_image\n"
        "spec = ImageSpec((64, 64, 64), (1.0,) * 3, (0.5,) * 3, (16,) * 3, (32,) * 3)\n"
        "with create_image(sys.argv[1], spec, overwrite=True) as image:\n"
        "    print('ready', flush=True)\n"
        "    while True:\n"
        "        image.array[:] = 1\n"
    )
    path = tmp_path / "out.ome.zarr"
    path.mkdir()
    (path / "zarr.json").write_text("old")
    for pause in (0.0, 0.03, 0.1):
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout.readline() == "ready\n"
        time.sleep(pause)
        child.kill()
        child.wait()
        assert [p.name for p in path.iterdir()] == ["zarr.json"]
        assert (path / "zarr.json").read_text() == "old"
    left = sorted(p.name for p in tmp_path.iterdir())
    assert left[-1] == "out.ome.zarr" and all(
        n.startswith(".out.ome.zarr.partial-") for n in left[:-1]
    )


def test_a_link_is_replaced_and_what_it_points_to_is_kept(tmp_path):
    target = tmp_path / "precious"
    target.mkdir()
    (target / "a").write_text("1")
    link = tmp_path / "out"
    link.symlink_to(target)
    with pytest.raises(OutputExistsError), atomic_path(link):
        pass
    with atomic_path(link, overwrite=True, directory=True) as partial:
        (partial / "b").write_text("2")
    assert not link.is_symlink() and (link / "b").read_text() == "2"
    assert (target / "a").read_text() == "1"


def test_a_link_to_nowhere_counts_as_an_output(tmp_path):
    link = tmp_path / "out"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(OutputExistsError), atomic_path(link):
        pass


def test_an_interrupt_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt), atomic_path(tmp_path / "a", directory=True) as partial:
        (partial / "x").write_text("half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_folder_that_another_thread_makes_meanwhile_is_taken(tmp_path, monkeypatch):
    """Seen to fail with one look: "expected a folder"."""
    folder, look = tmp_path / "records", Path.is_dir

    def slow(path, **options):
        found = look(path, **options)
        if path == folder and not found:
            folder.mkdir()
        return found

    monkeypatch.setattr(Path, "is_dir", slow)
    write_json(folder / "a.json", {})
    assert (folder / "a.json").read_text() == "{}\n"
