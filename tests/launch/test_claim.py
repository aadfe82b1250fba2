"""The output folder: one launch at a time, nothing through links, reasons at launch."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from linumpy.core.errors import InputError
from linumpy.launch.claim import ALIVE, FOLDERS, LOCK, Claim, refuse_other_machine, this_machine
from linumpy.launch.output import Output
from tests.pipeline.conftest import REPOSITORY

SCRIPT = REPOSITORY / "linumpy" / "launch" / "__main__.py"
RUN = "pipeline_info/run_2026-01-02_03-04-05.json"


def asked(output: Path, **more: Any) -> dict[str, Any]:
    return {
        "output": str(output),
        "brain": "brain.ome.zarr",
        "session": "s-1",
        "resume": False,
        "overwrite": False,
        "publish_mode": "copy",
        "work_dir": None,
        "needs": None,
    } | more


def begin(output: Path) -> dict[str, Any]:
    return {
        "action": "begin",
        "time": "2026-01-02_03-04-05",
        "project": str(REPOSITORY),
        "work_dir": None,
        "mend": False,
        "links": str(output.parent / "links"),
        "mode": "copy",
        "engine": None,
        "images": [],
        "record": {"revision": {}},
    }


def refusal(output: Path, **more: Any) -> str:
    with pytest.raises(InputError) as caught:
        Claim(asked(output, **more)).release()
    return str(caught.value)


class Keeper:
    """The process that Nextflow starts."""

    def __init__(self, output: Path, command: tuple[str, ...] = (), **more: Any) -> None:
        self.process = subprocess.Popen(
            [*command, sys.executable, "-I", "-S", str(SCRIPT), "keep"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.claimed = self.ask(**asked(output, **more))

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return dict(json.loads(self.process.stdout.readline()))

    def end(self) -> str:
        _, said = self.process.communicate(timeout=60)
        return said


@contextmanager
def kept(output: Path, **more: Any) -> Iterator[Keeper]:
    keeper = Keeper(output, **more)
    try:
        yield keeper
    finally:
        keeper.end()


def test_one_launch_at_a_time(tmp_path: Path) -> None:
    """Seen to fail without `_take_lock`."""
    with kept(tmp_path) as first:
        assert "error" not in first.claimed
        with kept(tmp_path) as second:
            assert "another run is writing there" in second.claimed["error"]
            assert second.process.wait(60) == 0
        # One that was refused takes nothing away.
        assert (tmp_path / ALIVE).exists() and (tmp_path / LOCK).read_text() == "s-1\n"
        assert first.end() == ""
    assert not (tmp_path / ALIVE).exists()
    with kept(tmp_path, session="s-2") as third:
        assert "error" not in third.claimed
    assert (tmp_path / LOCK).read_text() == "s-2\n"


def test_folder_is_kept_through_signals_until_the_launch_ends(tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to all processes, and a launch then has tasks to end."""
    import signal

    with kept(tmp_path) as keeper:
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            keeper.process.send_signal(number)
        assert keeper.ask(**begin(tmp_path)) == {}
        assert "another run is writing" in refusal(tmp_path)
    assert keeper.process.returncode == 0
    assert {p.name for p in tmp_path.iterdir()} == {LOCK, "pipeline_info"}


def victims(folder: Path) -> Path:
    (folder / "below").mkdir(parents=True)
    (folder / "file").write_text("mine\n")
    (folder / "below/main.nf").write_text("mine too\n")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def put_link(place: Path, target: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)


def put_hard_link(place: Path, target: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    os.link(target, place)


OWN = (LOCK, f".{LOCK}.new", ALIVE, f".{ALIVE}.new", f"{ALIVE}.now", f".{ALIVE}.now.new")
OWN += ("pipeline_info/main.nf", "pipeline_info/.main.nf.new", RUN)


@pytest.mark.slow
@pytest.mark.parametrize("put", [put_link, put_hard_link])
@pytest.mark.parametrize("name", OWN)
def test_no_file_is_written_through_a_link(
    tmp_path: Path, name: str, put: Callable[[Path, Path], None]
) -> None:
    """Seen to fail where the lock is opened without O_NOFOLLOW, or files are opened in place."""
    victim, output = victims(tmp_path / "victim"), tmp_path / "out"
    before = contents(victim)
    put(output / name, victim / "file")
    with kept(output) as keeper:
        if name == LOCK:
            assert f"--output {output}: {LOCK} is a link" in keeper.claimed["error"]
        else:
            assert "error" not in keeper.claimed
            assert keeper.ask(**begin(output)) == {}
            for place, text in {RUN: '{"revision": ', "pipeline_info/main.nf": "#!"}.items():
                assert (output / place).read_text().startswith(text)
                assert not (output / place).is_symlink()
    assert contents(victim) == before


@pytest.mark.parametrize("name", FOLDERS)
def test_no_folder_of_results_may_be_a_link(tmp_path: Path, name: str) -> None:
    """Seen to fail without `_refuse_in_the_way`."""
    victim, output = victims(tmp_path / "victim"), tmp_path / "out"
    before = contents(victim)
    put_link(output / name, victim / "below")
    assert f"--output {output}: {name} is a link" in refusal(output)
    assert contents(victim) == before


def test_a_folder_that_becomes_a_link_later_is_not_written_through(tmp_path: Path) -> None:
    """Seen to fail where places are opened by their whole path."""
    victim, output = victims(tmp_path / "victim"), tmp_path / "out"
    before = contents(victim)
    with kept(output) as keeper:
        put_link(output / "pipeline_info", victim / "below")
        assert "pipeline_info is a link" in keeper.ask(**begin(output))["error"]
    assert contents(victim) == before


def test_the_output_itself_and_what_is_above_may_be_links(tmp_path: Path) -> None:
    """Seen to fail where the output is opened without following links."""
    (tmp_path / "disk/results").mkdir(parents=True)
    (tmp_path / "home").symlink_to("disk")
    (tmp_path / "disk/out").symlink_to("results")
    with kept(tmp_path / "home/out") as keeper:
        assert "error" not in keeper.claimed
    assert (tmp_path / "disk/results" / LOCK).read_text() == "s-1\n"


def test_other_kinds_of_files_do_not_hang_a_launch(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LOCK)
    assert f"{LOCK} is a link, or something else than a file" in refusal(tmp_path)
    (tmp_path / LOCK).unlink()
    os.mkfifo(tmp_path / ALIVE)
    with kept(tmp_path) as keeper:
        assert "error" not in keeper.claimed


def test_finished_brains_are_not_replaced_unasked(tmp_path: Path) -> None:
    Claim(asked(tmp_path)).release()
    (tmp_path / "brain.ome.zarr").mkdir()
    said = refusal(tmp_path, session="s-2")
    assert "brain.ome.zarr: exists already; continue that run with -resume s-1, " in said
    for option in ("resume", "overwrite"):
        Claim(asked(tmp_path, **{option: True})).release()


def sign(output: Path, age_s: float, machine: str = "elsewhere 1") -> None:
    output.mkdir(exist_ok=True)
    (output / ALIVE).write_text(f"{machine} session 2\n")
    moment = time.time() - age_s
    os.utime(output / ALIVE, (moment, moment))


def test_a_launch_on_another_machine_is_noticed_without_locks(tmp_path: Path) -> None:
    """Seen to fail with an age of 0 s in `refuse_other_machine`."""
    sign(tmp_path, 5)
    assert "a run on elsewhere was writing there" in refusal(tmp_path)
    sign(tmp_path, 200)
    Claim(asked(tmp_path)).release()
    sign(tmp_path, 5, this_machine())
    Claim(asked(tmp_path)).release()
    sign(tmp_path, 5, this_machine())
    with pytest.raises(InputError, match="was writing there"):
        refuse_other_machine(Output(str(tmp_path)), True)


def test_file_system_without_locks_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", no_locks)
    claim = Claim(asked(tmp_path))
    assert "its file system has no locks (No locks available)" in claim.warnings[0]
    assert "was writing there" in refusal(tmp_path)
    claim.release()


def test_a_launch_that_finds_another_ones_sign_stops_its_nextflow(tmp_path: Path) -> None:
    """Its parent is Nextflow; here a shell, which says what it got."""
    code = (
        f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\n"
        "import linumpy.launch.claim as c\n"
        f"claim = c.Claim({asked(tmp_path)!r}, 0.05)\n"
        f"open({str(tmp_path / ALIVE)!r}, 'w').write('elsewhere 1 session 2')\n"
        "claim._beat.join()\n"
    )
    done = subprocess.run(
        ["bash", "-c", 'trap "echo stopped" TERM; "$@"; true', "bash", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "stopped\n"
    assert (
        f"--output {tmp_path}: a run on elsewhere writes there too; this one stops" in done.stderr
    )


def test_clock_set_back_is_reported_at_launch(tmp_path: Path) -> None:
    """Seen to fail without `_refuse_earlier_clock`, and where a negative age is young."""
    sign(tmp_path, -3600)
    assert f"{ALIVE} of a run on elsewhere is dated 3600 s from now: the clock of" in refusal(
        tmp_path
    )
    (tmp_path / ALIVE).unlink()
    (tmp_path / "pipeline_info").mkdir()
    for hours, refused in ((-1, False), (1, True)):
        moment = datetime.now(UTC) + timedelta(hours=hours)
        for started in (moment.isoformat(), moment.isoformat().replace("+00:00", "Z")):
            (tmp_path / RUN).write_text(json.dumps({"started": started}))
            if refused:
                assert "the clock was set back, or was wrong then" in refusal(tmp_path)
            else:
                Claim(asked(tmp_path)).release()
    for bad in ("", "[]", '{"started": 3}', "{}"):
        (tmp_path / RUN).write_text(bad)
        Claim(asked(tmp_path)).release()


def test_links_across_file_systems_are_reported_at_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen to fail without `_refuse_impossible_links`."""
    work, output = tmp_path / "work", tmp_path / "out"
    Claim(asked(output, publish_mode="link", work_dir=str(work))).release()
    real = os.link

    def link(*_: Any, **__: Any) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", link)
    said = refusal(output, publish_mode="link", work_dir=str(work))
    assert said.startswith(f"--publish_mode link: impossible from {work} to {output} (they are on")
    Claim(asked(output, publish_mode="symlink", work_dir=str(work))).release()
    monkeypatch.setattr(os, "link", real)
    assert not list(work.iterdir())
    assert {p.name for p in output.iterdir()} == {LOCK}


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no second file system here")
def test_real_hard_links_across_file_systems(tmp_path: Path) -> None:
    import shutil
    import tempfile

    work = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        if work.stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("one file system")
        said = refusal(tmp_path, publish_mode="link", work_dir=str(work))
        assert "they are on two file systems, across which there are no hard links" in said
    finally:
        shutil.rmtree(work)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be a second user")
def test_second_user_is_rejected_at_launch(tmp_path: Path) -> None:
    """Seen to fail without the check of folders in `_refuse_in_the_way`."""
    import shutil
    import tempfile

    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv")
    # Below folders that everybody may enter.
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    output = folder / "out"
    second = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    if subprocess.run([*second, sys.executable, "-c", ""], capture_output=True).returncode:
        pytest.skip("the second user may not run this Python")

    def said() -> str:
        keeper = Keeper(output, second)
        keeper.end()
        return str(keeper.claimed.get("error"))

    try:
        assert said() == f"--output {output}: cannot be made (Permission denied)"
        Claim(asked(output)).release()
        assert "cannot be written to: it belongs to user root, this is nobody" in said()
        output.chmod(0o777)
        (output / LOCK).chmod(0o644)
        assert f"{LOCK} cannot be written to: it belongs to user root" in said()
        (output / LOCK).unlink()
        (output / "slices").mkdir(mode=0o755)
        assert "slices cannot be written to: it belongs to user root" in said()
        (output / "slices").chmod(0o777)
        assert said() == "None"
        output.chmod(0o1777)
        (output / "report.html").touch()
        assert "report.html cannot be replaced, as the folder has the sticky bit" in said()
    finally:
        shutil.rmtree(folder)


def test_a_work_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = refusal(tmp_path / "out", work_dir=str(tmp_path / "file"))
    assert said.startswith(f"the work folder {tmp_path / 'file'} (-work-dir): cannot be written to")


def test_places_that_are_no_folders(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot be made; expected a folder" in refusal(tmp_path / "file")
    assert "cannot be made; expected a folder" in refusal(tmp_path / "file/out")
    (tmp_path / "slices").touch()
    assert "slices is a link, or something else than a folder" in refusal(tmp_path)


def test_files_are_on_the_disk_before_they_replace_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen to fail without each of the two fsync, and with the rename before the first."""
    calls: list[str] = []
    for name in ("fsync", "rename"):
        real = getattr(os, name)

        def call(*words: Any, name: str = name, real: Any = real, **more: Any) -> Any:
            is_file = name == "rename" or Path(f"/proc/self/fd/{words[0]}").is_file()
            kind = "file" if is_file else "folder"
            calls.append(f"{name} {kind}")
            return real(*words, **more)

        monkeypatch.setattr(os, name, call)
    Output(str(tmp_path)).write(RUN, "{}")
    assert calls == ["fsync file", "rename file", "fsync folder"]
    assert (tmp_path / RUN).read_text() == "{}"
