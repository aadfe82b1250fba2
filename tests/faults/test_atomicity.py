"""Outputs appear whole or not at all, however the run ends."""

import errno
import fcntl
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from linumpy.core.errors import LinumpyError, OutputExistsError
from linumpy.store import aside, atomic
from linumpy.store.atomic import atomic_path, together, write_text
from tests.conftest import run_script
from tests.faults import kill_points
from tests.faults.kill_points import NEW, OLD, SCENARIOS, UNTOUCHED

PATIENCE_S = 300


@pytest.fixture
def quick(tmp_path):
    """A folder in memory where there is one: thousands of fsyncs would wait for the disk."""
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path
    ) as name:
        yield Path(name)


def faults_at_every_call(fault, scenario, folder):
    done = subprocess.run(
        [sys.executable, "-m", kill_points.__name__, fault, scenario, folder / "place"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    *met, untouched = found
    assert untouched["status"] == UNTOUCHED and len(met) > 5
    for one in found:
        before, then = one["before"], one["then"]
        # The next run of the output succeeds, and nothing is left.
        assert (one["again"], one["after"], one["hidden"]) == (0, NEW, []), one
        assert then in (before, NEW) or (then == "nothing" and one["cleaned"] == before), one
        # Who finds the main output finds the other.
        assert then != NEW or "two" not in scenario or one["side"] == NEW, one
    return met


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_kill_at_any_call_leaves_the_old_or_the_new(scenario, quick):
    """Seen to fail without `clean` in `atomic_path`, and where `_swap` removes what was first."""
    met = faults_at_every_call("kill", scenario, quick)
    assert all(one["status"] == -signal.SIGKILL for one in met)
    # There is none for a moment only where the kernel cannot exchange, and folders are replaced.
    torn = [one for one in met if one["then"] == "nothing" != one["before"]]
    assert len(torn) == (scenario.endswith("-") and scenario != "file onto file -")


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.slow
def test_signal_at_any_call_leaves_no_staging_directory(scenario, quick):
    """Seen to fail without `discard` in `atomic_path`."""
    for one in faults_at_every_call("stop", scenario, quick):
        assert (one["status"], one["left"]) == (1, []), one


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_an_error_of_any_call_leaves_what_was(scenario, quick):
    """Seen to fail without `_swap_back`."""
    for one in faults_at_every_call("EIO", scenario, quick):
        assert one["left"] == [], one
        # Python asks again whether a folder exists; a link kept of a replaced file is not needed.
        assert one["then"] == (NEW if one["status"] == 0 else one["before"]), one


@pytest.mark.parametrize("scenario", [name for name in SCENARIOS if "onto" in name])
@pytest.mark.slow
def test_a_disk_that_cannot_be_written_to_any_more_keeps_what_was(scenario, quick):
    """Nothing can be undone then. Seen to fail without `_is_needed`: what was there is removed."""
    for one in faults_at_every_call("EROFS", scenario, quick):
        assert one["status"] == 0 or one["cleaned"] in (one["before"], NEW), one


def begin_writer(path, more="time.sleep(600)"):
    """Start a process that is writing an output; returns when it is."""
    code = (
        "import sys, time\n"
        "from linumpy.store.atomic import atomic_path\n"
        "with atomic_path(sys.argv[1], overwrite=True, directory=True) as partial:\n"
        "    (partial / 'a').write_text('half')\n"
        "    print('ready', flush=True)\n"
        f"    {more}\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "ready\n"
    return child


def hidden(folder):
    return sorted(p for p in folder.iterdir() if p.name.startswith("."))


def test_staging_of_a_live_run_stays_and_of_a_killed_one_is_removed(tmp_path, caplog):
    """Seen to fail without the lock: then the living writer's folder is removed."""
    path, other = tmp_path / "out", tmp_path / "out2"
    child, neighbour = begin_writer(path), begin_writer(other)
    try:
        mine, its = hidden(tmp_path)
        with caplog.at_level(logging.INFO, "linumpy"):
            write_text(path, "1")
        assert f"{mine}: left as it is: another run is writing to it" in caplog.text
        assert hidden(tmp_path) == [mine, its]
        assert (mine / "out" / "a").read_text() == "half"
    finally:
        for each in (child, neighbour):
            each.kill()
            each.wait()
    write_text(path, "2")
    # Of its own output alone.
    assert hidden(tmp_path) == [its] and path.read_text() == "2"


def test_staging_of_unknown_owner_is_kept_and_logged(tmp_path, caplog):
    """Seen to fail where a folder without a lock is taken for a leftover."""
    path = tmp_path / "out"
    target = tmp_path / "elsewhere"
    target.mkdir()
    names = [f".out.{kind}-{number:012x}" for number, kind in enumerate(["partial"] * 3)]
    file, folder, link = (tmp_path / name for name in names)
    replaced = tmp_path / f".out.replaced-{3:012x}"
    file.write_text("1")
    link.symlink_to(target)
    for each in (folder, replaced):
        each.mkdir()
        (each / "precious").write_text("1")
    with caplog.at_level(logging.INFO, "linumpy"):
        write_text(path, "new")
    assert hidden(tmp_path) == sorted([file, folder, link, replaced])
    assert all((each / "precious").exists() for each in (folder, replaced))
    assert caplog.text.count("left as it is") == 4


def test_names_that_look_alike_are_others(tmp_path):
    made = [".out.partial-0123", ".xout.partial-0123456789ab", ".out.partial-0123456789abc", "a"]
    for name in made:
        (tmp_path / name).mkdir()
    write_text(tmp_path / "out", "new")
    write_text(tmp_path / "o.t", "new")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*made, "out", "o.t"])


MOUNTS = """\
1 0 8:1 / / rw - ext4 /dev/sda rw
2 1 0:5 / /data rw - nfs4 server:/data rw,vers=4.2,local_lock=none
3 1 0:6 / /near rw - nfs server:/near rw,vers=3,local_lock=flock
4 1 0:7 / /old rw - nfs server:/old rw,nolock,vers=3,local_lock=all
5 1 0:8 / /lustre rw - lustre mgs:/l rw,flock,lazystatfs
6 1 0:9 / /lustre/b rw - lustre mgs:/b rw,localflock
7 1 0:10 / /home/a\\040b rw - fuse.sshfs host:/ rw
8 1 0:11 / /beegfs rw - beegfs beegfs_nodev rw
9 2 0:12 / /data rw - fuse.other x rw
"""


@pytest.mark.parametrize(
    ("place", "seen"),
    [
        ("/work/x", True),
        ("/near/x", False),
        ("/old/x", False),
        ("/nearby/x", True),
        ("/lustre/x", True),
        ("/lustre/b/x", False),
        ("/home/a b/x", False),
        ("/beegfs/x", False),
        ("/data/x", False),
    ],
)
def test_where_locks_of_other_machines_are_seen(place, seen, tmp_path):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    assert aside._sees_all_locks(Path(place), mounts) == seen
    mounts.write_text(MOUNTS.rpartition("9 2")[0])
    assert aside._sees_all_locks(Path("/data/x"), mounts)


def test_a_writer_on_another_machine_is_left_alone_where_its_lock_is_not_seen(
    tmp_path, monkeypatch, caplog
):
    """Seen to fail without the comparison of boots."""
    path = tmp_path / "out"
    child = begin_writer(path)
    child.kill()
    child.wait()
    (left,) = hidden(tmp_path)
    elsewhere = tmp_path / "boot_id"
    elsewhere.write_text("another\n")
    with monkeypatch.context() as patch, caplog.at_level(logging.INFO, "linumpy"):
        patch.setattr(aside, "_BOOT_ID", elsewhere)
        patch.setattr(aside, "_DISK_KINDS", ())
        patch.setattr(aside, "_SHARED_KINDS", ())
        write_text(path, "1")
        assert hidden(tmp_path) == [left]
        assert "another machine may be writing to it" in caplog.text
    # This machine after a new start: the disk is its own.
    with monkeypatch.context() as patch:
        patch.setattr(aside, "_BOOT_ID", elsewhere)
        patch.setattr(aside, "_DISK_KINDS", (filesystem(tmp_path),))
        write_text(path, "2")
    assert hidden(tmp_path) == []


def filesystem(path):
    return subprocess.run(
        ["findmnt", "-no", "FSTYPE", "--target", path], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_without_locks_outputs_are_written_and_leftovers_stay(tmp_path, monkeypatch):
    path = tmp_path / "out"
    locking = fcntl.flock

    def refuse(descriptor, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    write_text(path, "1")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    with atomic_path(path, overwrite=True, directory=True) as partial:
        # The server is there again for another run.
        monkeypatch.setattr(fcntl, "flock", locking)
        write_text(path, "2")
        assert partial.is_dir() and path.read_text() == "2"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_slower_run_does_not_replace_what_appeared_meanwhile(tmp_path, monkeypatch):
    """Seen to fail with a plain rename in `_swap`."""
    for number, exchange in enumerate((True, False)):
        path = tmp_path / str(number)
        if not exchange:
            monkeypatch.setattr(atomic, "_renameat2", lambda: None)
        with pytest.raises(OutputExistsError, match="--overwrite"), atomic_path(path) as partial:
            partial.write_text("slow")
            write_text(path, "fast")
        assert path.read_text() == "fast"
    assert hidden(tmp_path) == []


def test_a_write_that_a_store_did_not_finish_is_never_published(tmp_path):
    """Seen to fail without the look for `_UNFINISHED` names."""
    path = tmp_path / "out.zarr"
    name = f"0.{'0a' * 16}.partial"
    with (
        pytest.raises(LinumpyError, match=rf"out.zarr/c/{name}: was not written to its end"),
        atomic_path(path, directory=True) as partial,
    ):
        (partial / "c").mkdir()
        (partial / "c" / name).write_text("half")
    assert list(tmp_path.iterdir()) == []
    with atomic_path(path, directory=True) as partial:
        (partial / "my.partial").write_text("whole")
    assert [p.name for p in path.iterdir()] == ["my.partial"]


def test_zarr_names_unfinished_files_as_expected(tmp_path, monkeypatch):
    import zarr

    seen = []
    replace = os.replace

    def watch(source, target, **kwargs):
        seen.append(Path(source).name)
        return replace(source, target, **kwargs)

    monkeypatch.setattr(os, "replace", watch)
    monkeypatch.setattr(os, "rename", watch)
    zarr.create_array(tmp_path / "a", shape=(4,), dtype="u1", overwrite=True)[:] = np.uint8(1)
    assert len(seen) > 1 and all(atomic._UNFINISHED.fullmatch(name) for name in seen)


def test_outputs_that_go_together_appear_in_reverse(tmp_path):
    """Seen to fail where the outputs are published in the order in which they were begun."""
    main, side = tmp_path / "main", tmp_path / "side"
    with pytest.raises(ZeroDivisionError), together():
        write_text(main, "1")
        write_text(side, "1")
        assert not main.exists() and not side.exists()
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    order = []
    publish = atomic._Output.publish
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            atomic._Output, "publish", lambda one: order.append(one.path.name) or publish(one)
        )
        with together():
            with atomic_path(main) as partial:
                with together():
                    write_text(side, "2")
                    with suppress(ZeroDivisionError), atomic_path(tmp_path / "failed") as failed:
                        failed.write_text("3")
                        raise ZeroDivisionError
                partial.write_text("2")
            assert not side.exists()
    assert order == ["side", "main"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["main", "side"]


def limited(nbytes):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))

    return limit


@pytest.mark.parametrize("kind", ["image", "text", "npz"])
def test_a_quota_on_file_sizes_is_one_line_and_leaves_what_was(kind, tmp_path):
    """Seen to fail where `is_of_disk` knows none: then there is a traceback."""
    writes = {
        "image": "from linumpy.io.omezarr import ImageSpec, create_image\n"
        "    spec = ImageSpec((64,) * 3, (1.0,) * 3, (0.5,) * 3, (32,) * 3, (64,) * 3)\n"
        "    noise = np.random.default_rng(1).random((64,) * 3, 'f4')\n"
        "    with create_image(path, spec, overwrite=True) as image:\n"
        "        image.array[:] = noise\n",
        "text": "from linumpy.store.atomic import write_text\n"
        "    write_text(path, 'x' * 200_000)\n",
        "npz": "from linumpy.io.models import save_model\n"
        "    from dataclasses import make_dataclass\n"
        "    kind = make_dataclass('Model', [('a', np.ndarray)])\n"
        "    save_model(path.parent, 'out', kind(np.ones(100_000)))\n",
    }
    file = tmp_path / "linum_test.py"
    file.write_text(
        "import sys\nfrom pathlib import Path\nimport numpy as np\nfrom linumpy.cli import run\n"
        f"def main():\n    path = Path(sys.argv[1])\n    {writes[kind]}\nrun(main)\n"
    )
    folder = tmp_path / "outputs"
    folder.mkdir()
    name = "out.npz" if kind == "npz" else "out"
    (folder / name).write_text(OLD)
    done = subprocess.run(
        [sys.executable, file, folder / "out"],
        capture_output=True,
        text=True,
        preexec_fn=limited(100_000),
        timeout=PATIENCE_S,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr and "File too large" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [p.name for p in folder.iterdir()] == [name]
    assert (folder / name).read_text() == OLD


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    target = tmp_path / "file"
    target.write_text("1")
    done = run_script("phantom", target / "out", "--preset", "tiny", check=False)
    assert done.returncode == 1
    assert f"error: {target}: expected a folder" in done.stderr
    assert "Traceback" not in done.stderr and target.read_text() == "1"
