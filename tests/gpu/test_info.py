"""What linum_gpu_info.py says: with a stand-in for CuPy on the path, and on GPUs that are there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from linumpy.gpu.info import cuda_version, driver_version

from ..conftest import SCRIPTS
from . import needs_gpu

# A CuPy whose GPUs are those of an environment variable: name, GiB, and what computing there does.
FAKE = """
import json, os
import numpy as np

GPUS = json.loads(os.environ["FAKE_GPUS"])

class CUDARuntimeError(RuntimeError):
    pass

class Device:
    now = 0
    def __init__(self, index=None):
        self.id = Device.now if index is None else index
    def __enter__(self):
        Device.now = self.id
    def __exit__(self, *_):
        Device.now = 0

def count():
    if GPUS is None:
        raise CUDARuntimeError("cudaErrorInsufficientDriver")
    return len(GPUS)

def properties(index):
    name, gib, _ = GPUS[index]
    return {"name": name.encode(), "totalGlobalMem": gib << 30, "major": 9, "minor": 0}

class runtime:
    CUDARuntimeError = CUDARuntimeError
    getDeviceCount = staticmethod(count)
    getDeviceProperties = staticmethod(properties)
    driverGetVersion = staticmethod(lambda: 13000)
    runtimeGetVersion = staticmethod(lambda: 12090)

class cuda:
    pass

cuda.runtime, cuda.Device = runtime, Device
int64 = np.int64

def arange(*arguments, **options):
    what = GPUS[Device.now][2]
    if what == "fails":
        raise OSError("libnvrtc.so.12: cannot open shared object file")
    return np.arange(*arguments, **options) + (what == "miscounts")
"""


def gpu_info(tmp_path: Path, gpus: object, *arguments: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "cupy.py").write_text(FAKE, encoding="utf-8")
    paths = [str(tmp_path), str(SCRIPTS.parent)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    environment |= {"FAKE_GPUS": json.dumps(gpus), "CUDA_VISIBLE_DEVICES": "5,6"}
    return subprocess.run(
        [sys.executable, SCRIPTS / "linum_gpu_info.py", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )


TWO = [["H200", 140, "works"], ["L4", 22, "works"]]


def test_gpus_are_named_with_their_memory(tmp_path: Path) -> None:
    done = gpu_info(tmp_path, TWO)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "CUDA     12.9; the driver can 13.0" in lines
    assert "visible  CUDA_VISIBLE_DEVICES=5,6" in lines
    assert "GPU 0    H200, 140.0 GiB, compute capability 9.0" in lines
    assert "GPU 1    L4, 22.0 GiB, compute capability 9.0" in lines
    assert not any("problem" in line or "no GPU" in line for line in lines)


def test_json_has_the_same_content(tmp_path: Path) -> None:
    done = gpu_info(tmp_path, TWO, "--json", "--use_gpu")
    assert done.returncode == 0, done.stderr
    info = json.loads(done.stdout)
    assert [(g["index"], g["name"], g["memory_nbytes"]) for g in info["gpus"]] == [
        (0, "H200", 140 << 30),
        (1, "L4", 22 << 30),
    ]
    assert (info["cuda_runtime"], info["cuda_driver"]) == ("12.9", "13.0")
    assert info["visible_devices"] == "5,6"
    assert info["problem"] is None
    assert info["versions"]["linumpy"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gpus", "said"),
    [
        (None, "cudaErrorInsufficientDriver"),
        ([], "no device"),
        ([TWO[0], ["L4", 22, "fails"]], "GPU 1 cannot be used (OSError: libnvrtc.so.12"),
        ([["L4", 22, "miscounts"]], "GPU 0 cannot be used (DeviceError: the sum"),
    ],
)
def test_an_unusable_gpu_is_an_error_when_one_is_asked_for(
    tmp_path: Path, gpus: object, said: str
) -> None:
    assert gpu_info(tmp_path, gpus).returncode == 0
    done = gpu_info(tmp_path, gpus, "--use_gpu", "--json")
    assert done.returncode == 1
    assert said in json.loads(done.stdout)["problem"]
    assert done.stderr.startswith("linum_gpu_info.py: error: ") and said in done.stderr


def test_without_cupy_there_is_no_gpu(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.modules['cupy'] = None\n"
         "from linumpy.gpu.info import format_info, gpu_info; print(format_info(gpu_info()))"],
        capture_output=True, text=True, check=True, cwd=SCRIPTS.parent,
    )  # fmt: skip
    assert "no GPU: device cuda:0 needs CuPy" in done.stdout
    assert "install the extra" in done.stdout


def test_versions_are_read_as_nvidia_writes_them(tmp_path: Path) -> None:
    assert [cuda_version(n) for n in (11080, 12090, 13000)] == ["11.8", "12.9", "13.0"]
    file = tmp_path / "version"
    assert driver_version(file) is None
    for line in (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Sat Feb 24 2024",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build",
    ):
        file.write_text(f"{line}\nGCC version:  gcc version 12.2.0\n", encoding="utf-8")
        assert driver_version(file) == line.split("  ")[1].strip()


@needs_gpu
def test_the_gpus_of_this_machine() -> None:
    import cupy

    from linumpy.gpu.info import gpu_info as describe

    info = describe(compute=True)
    assert info["problem"] is None
    assert len(info["gpus"]) == cupy.cuda.runtime.getDeviceCount()
    total = cupy.cuda.runtime.memGetInfo()[1]
    assert abs(info["gpus"][0]["memory_nbytes"] - total) < 0.1 * total
    assert info["versions"]["cupy"] == cupy.__version__
    assert info["driver"] is not None and info["cuda_driver"] is not None
