"""Worker processes: what they return, and how each way of their end is told."""

import atexit
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from linumpy.core.device import CPU
from linumpy.core.errors import DeviceMemoryError, DeviceStuckError, LinumpyError
from linumpy.core.exit_status import DEVICE_LOST, HOST_MEMORY, exit_status
from linumpy.core.worker_process import Setting, WorkerProcess, end_all

SETTING = Setting(CPU, None, 1.0, verbose=False)


def answer(slice_id):
    match slice_id:
        case 1:
            return DeviceMemoryError("z01: no room")
        case 2:
            raise RuntimeError("cudaErrorIllegalAddress: an illegal memory access")
        case 3:
            os.kill(os.getpid(), signal.SIGKILL)
        case 4:
            os._exit(DEVICE_LOST)
        case 5:
            os._exit(7)
        case 6:
            raise ZeroDivisionError("by nothing")
    return slice_id, os.getpid()


def begin():
    return answer


def begin_badly():
    raise LinumpyError("models: no such folder")


def test_works_in_another_process_until_it_is_closed():
    with WorkerProcess(SETTING, begin) as process:
        first, second = process(10, "z10"), process(11, "z11")
    assert first[0] == 10 and second[0] == 11
    assert first[1] == second[1] != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(first[1], 0)


def begin_to_meet(folder, number, count):
    """Have a process leave only when all have been told to, and say so."""

    def wait_for_all():
        (folder / f"told {number}").touch()
        gives_up_s = time.monotonic() + 15
        while len(list(folder.glob("told *"))) < count and time.monotonic() < gives_up_s:
            time.sleep(0.02)
        if len(list(folder.glob("told *"))) == count:
            (folder / f"met {number}").touch()

    atexit.register(wait_for_all)
    return answer


def test_processes_end_together(tmp_path):
    """Seen to fail where the first is waited for before the next is told."""
    processes = [WorkerProcess(SETTING, partial(begin_to_meet, tmp_path, n, 3)) for n in range(3)]
    for process in processes:
        process(10, "z10")
    end_all(processes)
    assert sorted(path.name for path in tmp_path.glob("met *")) == ["met 0", "met 1", "met 2"]
    for process in processes:
        process.end()
        with pytest.raises(OSError, match="closed"):
            process.send(11)


def test_short_memory_is_an_answer_and_the_next_slice_goes_on():
    with WorkerProcess(SETTING, begin) as process:
        short = process(1, "z01")
        assert isinstance(short, DeviceMemoryError) and str(short) == "z01: no room"
        assert process(10, "z10")[0] == 10


@pytest.mark.parametrize(
    ("slice_id", "kind", "text", "status"),
    [
        (2, DeviceStuckError, "cudaErrorIllegalAddress", DEVICE_LOST),
        (3, MemoryError, "z03: its process was killed", HOST_MEMORY),
        (4, DeviceStuckError, "z04: its process lost the GPU", DEVICE_LOST),
        (5, LinumpyError, "z05: its process ended with status 7", 1),
        (6, LinumpyError, "ZeroDivisionError: by nothing", 1),
    ],
)
def test_every_end_is_told_by_its_status(slice_id, kind, text, status):
    with WorkerProcess(SETTING, begin) as process, pytest.raises(kind, match=text) as found:
        process(slice_id, f"z{slice_id:02d}")
    assert exit_status(found.value) == status


def test_what_keeps_it_from_beginning_is_told():
    with WorkerProcess(SETTING, begin_badly) as process:
        for _ in range(2):
            with pytest.raises(LinumpyError, match="models: no such folder"):
                process(1, "z01")


ORPHAN = """
import os, signal, sys
from tests.core.test_worker_process import SETTING, begin
from linumpy.core.worker_process import WorkerProcess

if __name__ == "__main__":
    process = WorkerProcess(SETTING, begin)
    print(process(10, "z10")[1], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_ends_with_a_killed_parent(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(ORPHAN)
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    child, ends_s = int(done.stdout), time.monotonic() + 30
    while is_alive(child):
        assert time.monotonic() < ends_s, f"{child} lives on"
        time.sleep(0.05)


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


RECORDED = """
import os
from tests.core.test_worker_process import SETTING, begin
from linumpy.core.timeline import span
from linumpy.core.worker_process import WorkerProcess

if __name__ == "__main__":
    with span("here"), WorkerProcess(SETTING, begin) as process:
        print(process(10, "z10")[1], flush=True)
"""


def test_writes_a_timeline_of_its_own(tmp_path):
    script, timeline = tmp_path / "parent.py", tmp_path / "t.json"
    script.write_text(RECORDED)
    done = subprocess.run(
        [sys.executable, script],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "LINUMPY_TIMELINE": str(timeline),
        },
        stdout=subprocess.PIPE,
        timeout=60,
        check=True,
    )
    of_worker = json.loads(timeline.with_name(f"t.json.{int(done.stdout)}").read_text())
    of_parent = json.loads(timeline.read_text())
    assert [s["step"] for s in of_parent["spans"]] == ["here"]
    assert of_parent["began_s"] <= of_worker["began_s"] < of_parent["began_s"] + 60
