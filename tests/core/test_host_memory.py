"""Available memory, of the machine and of the job."""

import ctypes
import os
import subprocess
import sys

import pytest

from linumpy.core import host_memory
from linumpy.core.host_memory import GRANTED, free_host_bytes, granted_host_bytes

MIB = 1 << 20
PAGES = {"SC_AVPHYS_PAGES": 2_000_000, "SC_PAGE_SIZE": 4096}
MACHINE = 2_000_000 * 4096


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """What the machine has left changes with every other process."""
    monkeypatch.setattr(os, "sysconf", PAGES.__getitem__)


def group(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / f"memory.{name}").write_text(f"{value}\n")


def left(tmp_path, cgroup, environment=None):
    proc = tmp_path / "cgroup"
    proc.write_text(cgroup)
    return free_host_bytes(environment or {}, proc=proc, groups=tmp_path / "groups")


def test_without_limits_it_is_what_the_machine_has(tmp_path):
    assert left(tmp_path, "0::/\n") == MACHINE
    nowhere = tmp_path / "nowhere"
    assert free_host_bytes({}, proc=nowhere, groups=nowhere) == MACHINE


@pytest.mark.parametrize("asked", ["", "0", "much"])
def test_without_a_grant_what_is_free_may_be_taken(asked, monkeypatch):
    monkeypatch.setattr(host_memory, "free_host_bytes", lambda environment: 5 << 30)
    assert granted_host_bytes({GRANTED: asked}) == 5 << 30


def test_a_grant_bounds_what_is_taken(monkeypatch):
    monkeypatch.setattr(host_memory, "free_host_bytes", lambda environment: 5 << 30)
    assert granted_host_bytes({GRANTED: str(3 << 30)}) == 3 << 30
    assert granted_host_bytes({GRANTED: str(7 << 30)}) == 5 << 30


def test_the_tightest_group_above_counts(tmp_path):
    groups = tmp_path / "groups"
    group(groups / "system/job_7/step_0", max="max", current=5 * MIB)
    group(groups / "system/job_7", max=90 * MIB, current=40 * MIB)
    group(groups / "system", max=400 * MIB, current=320 * MIB)
    assert left(tmp_path, "0::/system/job_7/step_0\n") == 50 * MIB
    group(groups / "system", max=400 * MIB, current=380 * MIB)
    assert left(tmp_path, "0::/system/job_7/step_0\n") == 20 * MIB
    group(groups / "system", max=300 * MIB, current=380 * MIB)
    assert left(tmp_path, "0::/system/job_7/step_0\n") == 0


def test_groups_of_the_first_version_are_read(tmp_path):
    group(tmp_path / "groups/memory/job", limit_in_bytes=64 * MIB, usage_in_bytes=4 * MIB)
    text = "9:cpu,cpuacct:/job\n4:memory:/job\n0::/other\n"
    assert left(tmp_path, text) == 60 * MIB
    # Inside a container the group's path is not there, but its root is the group.
    group(tmp_path / "groups/memory", limit_in_bytes=32 * MIB, usage_in_bytes=MIB)
    assert left(tmp_path, "4:memory:/far/away\n") == 31 * MIB


@pytest.mark.parametrize(("asked", "expected"), [("512", 512 * MIB), ("0", None), ("", None)])
def test_what_slurm_was_asked_for_is_kept_to(tmp_path, asked, expected):
    found = left(tmp_path, "0::/\n", {"SLURM_MEM_PER_NODE": asked})
    assert found == expected if expected else found > 512 * MIB


HEAPS = """
import ctypes, sys, tempfile, threading
from linumpy.core.host_memory import share_heap
if sys.argv[1] == "shared":
    share_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
barrier = threading.Barrier(7)
def work():
    libc.malloc(1000)
    barrier.wait()
threads = [threading.Thread(target=work) for _ in range(6)]
for thread in threads:
    thread.start()
barrier.wait()
with tempfile.NamedTemporaryFile() as file:
    stream = ctypes.c_void_p(libc.fopen(file.name.encode(), b"w"))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    print(file.read().count(b"<heap nr"))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="not glibc")
@pytest.mark.parametrize("how", ["shared", "own"])
def test_threads_share_a_heap_where_asked(how):
    done = subprocess.run(
        [sys.executable, "-c", HEAPS, how], capture_output=True, text=True, check=True, timeout=120
    )
    assert (int(done.stdout) == 1) == (how == "shared")
