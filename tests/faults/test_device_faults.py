"""No device, no driver, a lost device: the message, and the exit status."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from linumpy.core.exit_status import DEVICE_LOST, DEVICE_MEMORY, FAILED
from linumpy.io.grid import GridInfo, GridTile, create_grid

from ..conftest import SCRIPTS
from .test_signals import begin

# As much of CuPy as is asked before anything is done on a device. {count} says what its runtime
# answers to the question for the number of devices.
CUPY = """
    import types

    class CUDARuntimeError(RuntimeError):
        pass

    class OutOfMemoryError(MemoryError):
        pass

    def getDeviceCount():
        {count}

    runtime = types.SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError, getDeviceCount=getDeviceCount
    )
    memory = types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError)
    cuda = types.SimpleNamespace(runtime=runtime, memory=memory)
"""

MISSING = {
    "no CuPy": (
        "raise ModuleNotFoundError(\"No module named 'cupy'\")",
        "--use_gpu needs CuPy, which cannot be imported here (No module named 'cupy'); install",
    ),
    "CuPy for another CUDA": (
        "raise ImportError('libcudart.so.99: cannot open shared object file')",
        "(libcudart.so.99: cannot open shared object file); install the extra",
    ),
    "no driver": (
        CUPY.format(
            count="raise CUDARuntimeError('cudaErrorInsufficientDriver: CUDA driver version is "
            "insufficient for CUDA runtime version')"
        ),
        "--use_gpu: no usable GPU (cudaErrorInsufficientDriver: CUDA driver version is insuff",
    ),
    "no device": (
        CUPY.format(count="raise CUDARuntimeError('cudaErrorNoDevice: no CUDA-capable device')"),
        "--use_gpu: no usable GPU (cudaErrorNoDevice: no CUDA-capable device; CUDA_VISIBLE_DEV",
    ),
    "nought devices": (CUPY.format(count="return 0"), "the CUDA driver reports no device"),
}


def with_cupy(folder, source):
    """Make a stand-in for CuPy that an interpreter finds first, and a lease of its own."""
    (folder / "cupy").mkdir(parents=True, exist_ok=True)
    (folder / "lease").mkdir(mode=0o700, exist_ok=True)
    (folder / "cupy/__init__.py").write_text(textwrap.dedent(source))
    return {
        "PYTHONPATH": f"{folder}:{SCRIPTS.parent}:{os.environ.get('PYTHONPATH', '')}",
        "LINUMPY_LEASE_DIR": str(folder / "lease"),
        "PATH": "/usr/bin:/bin",
        "LC_ALL": "C.UTF-8",
    }


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    path = tmp_path_factory.mktemp("device") / "grid.ome.zarr"
    tiles = tuple(GridTile(x, 0, 0.1 * x, 0.0) for x in range(2))
    info = GridInfo(3, (4, 8, 8), (10.0, 10.0, 10.0), 0.2, tiles, (80.0, 80.0))
    with create_grid(path, info, overwrite=False) as writer:
        for x in range(2):
            writer.write_tile(x, 0, np.ones((4, 8, 8), np.float32))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("what", MISSING)
def test_a_gpu_that_is_not_there_is_one_line(grid, tmp_path, what):
    """Seen to fail (a traceback) without the handlers of `linumpy.core.device._visible_gpus`."""
    source, line = MISSING[what]
    out = tmp_path / "out.ome.zarr"
    done = subprocess.run(
        [sys.executable, SCRIPTS / "linum_resample_mosaic_grid.py", grid, out, "-r", "20"]
        + ["--use_gpu", "--gpu_wait", "0"],
        env=with_cupy(tmp_path / "site", source),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == FAILED, done.stderr
    assert done.stdout == "" and done.stderr.count("\n") == 1
    assert done.stderr.startswith("linum_resample_mosaic_grid.py: error: ")
    assert line in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["site"]


ENDS = {
    "cuda": ("raise RuntimeError('cudaErrorIllegalAddress: an illegal\\nmemory access')", 103),
    "ecc": ("raise RuntimeError('CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error')", 103),
    "busy": ("raise RuntimeError('cudaErrorDevicesUnavailable: busy or unavailable')", 103),
    "stuck": ("raise DeviceStuckError('GPU 1 gave no tile (0, 1) within 15 min')", 103),
    "memory": ("raise DeviceMemoryError('no room for a chunk')", 102),
}


@pytest.mark.parametrize("kind", ENDS)
def test_lost_device_ends_the_process_with_waiting_threads(tmp_path, kind):
    """Seen to hang without `leave` in `linumpy.cli.run`."""
    error, status = ENDS[kind]
    assert status in (DEVICE_LOST, DEVICE_MEMORY)
    code = f"""
        import sys, threading
        from concurrent.futures import ThreadPoolExecutor
        import cupy
        from linumpy import cli
        from linumpy.core.errors import DeviceMemoryError, DeviceStuckError

        def main():
            if {status} == 103:
                # A call of the driver that never returns.
                ThreadPoolExecutor(1).submit(threading.Event().wait)
            {error}

        sys.argv = ["linum_x.py"]
        cli.run(main)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=with_cupy(tmp_path, CUPY.format(count="return 1")),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == status, done.stderr
    assert done.stderr.startswith("linum_x.py: error: ") and done.stderr.count("\n") == 1


# ---- a reader's own threads, with nothing of CUDA ----------------------------------------------


class Kvikio:
    """Reads of kvikio that end as told."""

    def __init__(self, ends):
        self.ends = list(ends)
        self.waited = 0

    def get(self):
        self.waited += 1
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end


@pytest.mark.parametrize(
    ("end", "kind", "text"),
    [
        (
            RuntimeError("cudaErrorIllegalAddress: an illegal memory access"),
            RuntimeError,
            "Illegal",
        ),
        (RuntimeError("CUDA_ERROR_OUT_OF_MEMORY: out of memory"), RuntimeError, "OUT_OF_MEMORY"),
        (3, "InputError", "3 bytes read at 8, expected 16: cut short"),
    ],
    ids=["lost", "memory", "short"],
)
def test_failed_device_is_not_reported_as_a_bad_file(tmp_path, end, kind, text):
    """Seen to fail (an `InputError`) without the look at `exit_status` in `fetch._finished`."""
    from linumpy.gpu.fetch import Run, _finished
    from linumpy.gpu.objects import LocalObject

    run = Run(LocalObject(str(tmp_path / "c")), 8, 16, 0)
    found = _finished(run, Kvikio([end]))
    assert type(found).__name__ == (kind if isinstance(kind, str) else kind.__name__)
    assert text in str(found)


def test_reads_are_all_waited_for_though_one_failed(tmp_path):
    """Memory that a read still writes to must not be freed: seen to fail with `or` over futures."""
    from linumpy.core.errors import InputError
    from linumpy.gpu.fetch import PinnedFetch, Run
    from linumpy.gpu.objects import LocalObject

    class Slow(PinnedFetch):
        done = 0

        def _read(self, run, first, size, target):
            if run.offset:
                time.sleep(0.05)
                Slow.done += 1
            else:
                raise InputError(f"{run.stored.name}: odd")

    fetch = Slow(0)
    runs = [Run(LocalObject("x"), n, 16, 16 * n) for n in range(5)]
    wait = fetch.start(runs, np.empty(80, np.uint8))
    with pytest.raises(InputError, match="x: odd"):
        wait()
    assert Slow.done == 4
    fetch.close()


WATCHED = """
    import sys, threading, time
    from linumpy import cli
    from linumpy.core import watchdog
    from linumpy.store.atomic import atomic_path
    from linumpy.core.start_up import end_now

    watchdog.EVERY_S, watchdog.LONGEST_S, watchdog._TICK_S = 0.1, 1.0, 0.1

    def main():
        with atomic_path({out!r}) as new:
            new.write_text("half")
            watchdog.watch({synchronize}, "GPU 0", end_now)
            print("ready", flush=True)
            {rest}

    sys.argv = ["linum_x.py"]
    cli.run(main)
"""


def watched(tmp_path, synchronize, rest):
    code = WATCHED.format(out=str(tmp_path / "out"), synchronize=synchronize, rest=rest)
    return begin("-c", textwrap.dedent(code))


@pytest.mark.slow
def test_a_gpu_that_gives_no_answer_ends_the_process(tmp_path):
    """Its main thread waits for good. Seen to hang without `watch`."""
    child = watched(tmp_path, "threading.Event().wait", "threading.Event().wait()")
    _, said = child.communicate(timeout=300)
    assert child.returncode == DEVICE_LOST
    assert said == ("linum_x.py: error: GPU 0 did not finish its work within 0.0167 min\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("synchronize", ["lambda: not time.sleep(0.5)", "lambda: False"])
def test_a_gpu_that_answers_is_left_alone(tmp_path, synchronize):
    """Seen to fail where waits for one answer after the other are added up."""
    child = watched(tmp_path, synchronize, "time.sleep(4)")
    assert child.communicate(timeout=300)[1] == "" and child.returncode == 0
    assert (tmp_path / "out").read_text() == "half"


REST = "[time.sleep(0.05) for _ in range(60)]"


@pytest.mark.slow
def test_a_process_that_was_suspended_is_left_alone(tmp_path):
    """Seen to fail with the time of a clock."""
    child = watched(tmp_path, "lambda: bool([time.sleep(0.05) for _ in range(10)])", REST)
    for _ in range(3):
        child.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        child.send_signal(signal.SIGCONT)
        time.sleep(0.2)
    assert child.communicate(timeout=300)[1] == "" and child.returncode == 0
