"""Leases of GPUs: real processes, simulated devices."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from linumpy.core.errors import DeviceError, InputError
from linumpy.core.leases import book
from linumpy.core.leases.book import Book
from linumpy.core.leases.lease import PARTS, Ask, take
from linumpy.core.leases.nvml import Gpu

ROOT = Path(__file__).resolve().parents[2]
GIB = 1 << 30
TWO = [Gpu("GPU-aaaaaaaa-1", "H", 80 * GIB), Gpu("GPU-bbbbbbbb-2", "H", 80 * GIB)]

# Leases, tells, and ends when told. What it tells is one write, so that lines never mix.
HOLDER = """
import json, os, sys, time
from pathlib import Path
from linumpy.core.leases.lease import Ask, take
from linumpy.core.leases.nvml import Gpu

ask, names, folder, log, hold_s = json.loads(sys.argv[1])
gpus = [Gpu(name, "H", 80 << 30) for name in names]
lease = take(Ask(**ask), gpus, Path(folder))
file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def tell(what):
    held = {gpu.uuid: Ask(**ask).parts(gpu) for gpu in lease.gpus}
    line = [time.monotonic(), what, os.getpid(), held]
    os.write(file, json.dumps(line).encode() + b"\\n")

tell("begin")
time.sleep(hold_s)
tell("end")
"""


def start(folder, log, hold_s, ask=None, gpus=TWO, prefix=()):
    words = json.dumps([ask or {}, [gpu.uuid for gpu in gpus], str(folder), str(log), hold_s])
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", HOLDER, words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(processes):
    for process in processes:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said


def events(log):
    return sorted(json.loads(line) for line in log.read_text().splitlines())


def wait_for(log, what, count):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if log.exists():
            found = [e for e in events(log) if e[1] == what]
            if len(found) >= count:
                return found
        time.sleep(0.01)
    raise AssertionError(f"{count} × {what} did not come")


def most_at_once(log):
    """Return, by device, the most parts that were out at a time."""
    parts, now = {}, {}
    for _, what, pid, held in events(log):
        for uuid, size in held.items():
            out = now.setdefault(uuid, {})
            if what == "begin":
                out[pid] = size
            else:
                del out[pid]
            parts[uuid] = max(parts.get(uuid, 0), sum(out.values()))
    return parts


@pytest.mark.slow
def test_many_processes_never_hold_more_than_there_is(tmp_path):
    log = tmp_path / "log"
    kinds = [{"tasks": 1}, {"tasks": 4}, {"tasks": 6}, {"memory_bytes": 30 * GIB}]
    finish([start(tmp_path / "lease", log, 0.05, kinds[n % 4]) for n in range(24)])
    parts = most_at_once(log)
    assert set(parts) == {gpu.uuid for gpu in TWO}
    assert max(parts.values()) <= PARTS
    assert len(events(log)) == 48
    with take(Ask(), TWO, tmp_path / "lease"):
        # The files of those that ended are cleared away.
        assert len(list((tmp_path / "lease").glob("task.*"))) == 1


@pytest.mark.parametrize(("ask", "most"), [({"tasks": 4}, 4), ({"tasks": 6}, 6), ({}, 1)])
def test_as_many_tasks_as_there_may_be_run_at_a_time(tmp_path, ask, most):
    held = [take(Ask(**ask), TWO, tmp_path) for _ in range(2 * most)]
    by_device = [sum(lease.gpus == (gpu,) for lease in held) for gpu in TWO]
    assert by_device == [most, most]
    with pytest.raises(DeviceError):
        take(Ask(**ask, wait_s=0), TWO, tmp_path)
    held.pop().release()
    with take(Ask(**ask, wait_s=0), TWO, tmp_path):
        pass
    for lease in held:
        lease.release()


def test_memory_bounds_the_tasks_where_it_is_the_larger_share(tmp_path):
    ask = Ask(tasks=6, memory_bytes=30 * GIB, wait_s=0)
    assert [ask.parts(gpu) for gpu in TWO] == [PARTS * 3 // 8] * 2
    held = [take(ask, TWO[:1], tmp_path) for _ in range(2)]
    with pytest.raises(DeviceError):
        take(ask, TWO[:1], tmp_path)
    # A quarter is left, for one that needs less.
    held.append(take(Ask(memory_bytes=20 * GIB, wait_s=0), TWO[:1], tmp_path))
    for lease in held:
        lease.release()


def test_of_a_killed_process_nothing_stays_taken(tmp_path):
    log = tmp_path / "log"
    holder = start(tmp_path, log, 600, gpus=TWO[:1])
    wait_for(log, "begin", 1)
    waiting = start(tmp_path, log, 600, gpus=TWO[:1])
    while len(list(tmp_path.glob("task.*"))) < 2:
        time.sleep(0.01)
    with pytest.raises(DeviceError) as caught:
        take(Ask(wait_s=0.2), TWO[:1], tmp_path)
    said = str(caught.value)
    assert (
        f"GPU-aaaaaaaa is held by -c (pid {holder.pid} on {os.uname().nodename}, since 20" in said
    )
    assert "(100%); 1 wait before this one" in said and "--gpu_wait" in said
    # One that waits, and one that holds.
    waiting.send_signal(signal.SIGKILL)
    waiting.communicate()
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    with take(Ask(wait_s=0), TWO[:1], tmp_path) as lease:
        assert lease.gpus == tuple(TWO[:1])


@pytest.mark.slow
def test_small_tasks_do_not_starve_a_whole_device(tmp_path):
    log = tmp_path / "log"
    small = {"tasks": 4}
    first = [start(tmp_path, log, 1.0 + 0.5 * n, small, TWO[:1]) for n in range(3)]
    wait_for(log, "begin", 3)
    whole = start(tmp_path, log, 0.1, {"tasks": 1}, TWO[:1])
    while len(list(tmp_path.glob("task.*"))) < 4:
        time.sleep(0.01)
    # There is room for one more at once, but it came after.
    later = [start(tmp_path, log, 0.1, small, TWO[:1]) for _ in range(3)]
    finish([*first, whole, *later])
    order = [pid for _, what, pid, _ in events(log) if what == "begin"]
    assert order.index(whole.pid) == 3


def test_who_waits_for_one_device_does_not_keep_the_others_idle(tmp_path):
    held = [take(Ask(tasks=4), TWO, tmp_path) for _ in range(3)]
    assert [lease.gpus[0] for lease in held] == [TWO[0], TWO[1], TWO[0]]
    log = tmp_path / "log"
    whole = start(tmp_path, log, 0.0, {"tasks": 1})
    while len(list(tmp_path.glob("task.*"))) < 4:
        time.sleep(0.01)
    # The second device, of which more is free, is kept for it.
    with take(Ask(tasks=4, wait_s=0), TWO, tmp_path) as lease:
        assert lease.gpus == (TWO[0],)
    with pytest.raises(DeviceError):
        take(Ask(tasks=4, wait_s=0), TWO[1:], tmp_path)
    held[1].release()
    finish([whole])
    for lease in held:
        lease.release()


def test_several_devices_are_taken_together(tmp_path):
    three = [*TWO, Gpu("GPU-cccccccc-3", "H", 80 * GIB, 5)]
    with take(Ask(count=2), three, tmp_path) as lease:
        # Of equals the one with the most free memory, in the order offered.
        assert lease.gpus == (three[0], three[2])
        with take(Ask(wait_s=0), three, tmp_path) as other:
            assert other.gpus == (three[1],)
        with pytest.raises(DeviceError, match="no GPU was free"):
            take(Ask(count=2, wait_s=0), three, tmp_path)
    with pytest.raises(DeviceError, match="--gpu_count 4: 3 GPUs are visible"):
        take(Ask(count=4), three, tmp_path)


@pytest.mark.slow
def test_waiting_is_logged(tmp_path, caplog):
    log = tmp_path / "log"
    holder = start(tmp_path, log, 2.0, gpus=TWO[:1])
    wait_for(log, "begin", 1)
    with caplog.at_level("INFO", "linumpy"), take(Ask(), TWO[:1], tmp_path):
        pass
    assert re.search(r"waiting for a GPU: GPU-aaaaaaaa is held by -c \(pid \d+", caplog.text)
    assert re.search(r"got GPU-aaaaaaaa after [1-9]", caplog.text)
    finish([holder])


def can_unshare():
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    command = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not can_unshare(), reason="needs root and namespaces")
def test_containers_that_share_the_folder_share_the_gpus(tmp_path):
    log = tmp_path / "log"
    apart = ("unshare", "--pid", "--fork", "--mount-proc")
    processes = [start(tmp_path, log, 0.3, gpus=TWO[:1], prefix=apart) for _ in range(4)]
    finish(processes)
    found = events(log)
    # Each is a first process, and they took turns all the same.
    assert {pid for _, _, pid, _ in found} == {1}
    assert [what for _, what, _, _ in found] == ["begin", "end"] * 4


def test_the_folder_is_the_users_alone_and_local(tmp_path, monkeypatch):
    monkeypatch.delenv(book.VARIABLE, raising=False)
    assert book.lease_folder({}) == Path(f"/tmp/linumpy-lease-{os.geteuid()}")
    assert book.lease_folder({"LINUMPY_LEASE_DIR": "/x"}) == Path("/x")

    def refusal(path):
        monkeypatch.setattr(book, "lease_folder", lambda: path)
        with pytest.raises(InputError, match="LINUMPY_LEASE_DIR") as caught:
            take(Ask(), TWO)
        return str(caught.value)

    mine = tmp_path / "mine"
    mine.mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(mine)
    assert "link: " in refusal(tmp_path / "link")
    mine.chmod(0o777)
    assert "is not yours alone" in refusal(mine)
    (tmp_path / "file").write_text("")
    assert "file: " in refusal(tmp_path / "file")
    mine.chmod(0o700)
    monkeypatch.setattr(book, "_filesystem", lambda _: "nfs4")
    assert "lies on nfs4" in refusal(mine)


def test_the_kind_of_file_system_is_read_from_the_kernels_list(tmp_path):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "35 22 0:52 / /home rw,relatime shared:1 - nfs4 server:/home rw\n"
    )
    kind = book._filesystem
    assert [kind(os.makedev(*n), mounts) for n in ((8, 1), (0, 52), (9, 9))] == ["ext4", "nfs4", ""]
    assert kind(1, tmp_path / "none") == ""


@pytest.mark.parametrize("name", ["lock", "task.000000000007"])
def test_links_and_pipes_in_the_folder_are_refused(tmp_path, name):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "lease").mkdir()
    place = tmp_path / "lease" / name
    place.symlink_to(victim)
    with pytest.raises(InputError, match=name):
        take(Ask(wait_s=0), TWO, tmp_path / "lease")
    place.unlink()
    os.mkfifo(place)
    with pytest.raises(InputError, match=f"{name}: expected a file"):
        take(Ask(wait_s=0), TWO, tmp_path / "lease")
    assert victim.read_text() == "precious"


def test_a_folder_for_many_users_has_files_that_all_can_lock(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    with take(Ask(), TWO, shared):
        assert {path.stat().st_mode & 0o777 for path in shared.iterdir()} == {0o644}
    with take(Ask(), TWO, tmp_path / "own"):
        assert {path.stat().st_mode & 0o777 for path in (tmp_path / "own").iterdir()} == {0o600}
        assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700


def test_removed_lock_file_does_not_lock(tmp_path):
    inside, before = [], Book(tmp_path)
    late = threading.Event()

    def wait():
        with Book(tmp_path) as book, book.locked(time.monotonic() + 60):
            inside.append("late")
        late.set()

    with before.locked(time.monotonic()):
        waiting = threading.Thread(target=wait)
        waiting.start()
        # It has the file open, and tries.
        time.sleep(0.3)
        (tmp_path / "lock").unlink()
        new = Book(tmp_path).locked(time.monotonic())
        new.__enter__()
    assert not late.wait(0.3) and inside == []
    new.__exit__(None, None, None)
    waiting.join(timeout=60)
    assert inside == ["late"]


@pytest.mark.slow
def test_a_lock_that_is_never_freed_is_an_error(tmp_path):
    with (
        Book(tmp_path) as book,
        book.locked(time.monotonic()),
        pytest.raises(DeviceError, match="lock: locked by a process that does not go on"),
    ):
        take(Ask(wait_s=0), TWO, tmp_path)
