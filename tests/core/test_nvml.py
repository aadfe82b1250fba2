"""GPUs that a process may use, by its environment and the driver's library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from linumpy.core.leases.nvml import Gpu, by_uuid, compute_capabilities, list_gpus, visible_gpus

ROOT = Path(__file__).resolve().parents[2]
SAME = [Gpu(f"GPU-{n}{n}{n}{n}-5", "H", 10) for n in range(4)]
MIXED = [Gpu("GPU-5107", "small"), Gpu("GPU-fa57", "large"), Gpu("GPU-fa58", "large")]


def seen(gpus, value=None, **more):
    environment = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    asked = more.pop("asked", None)
    found = visible_gpus(gpus, {**environment, **more}, ask_cuda=asked or refuse)
    return [gpus.index(gpu) for gpu in found]


def refuse():
    raise AssertionError("CUDA need not be asked")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, [0, 1, 2, 3]),
        ("2", [2]),
        ("3, 1", [3, 1]),
        ("GPU-2222-5", [2]),
        ("GPU-11,GPU-0", [1, 0]),
        ("1,-1,2", [1]),
        ("7", []),
        ("", []),
        ("NoDevFiles", []),
        ("GPU-", []),
        ("0,0", [0]),
    ],
)
def test_visible_gpus_are_those_of_cuda(value, expected):
    assert seen(SAME, value) == expected


def test_parts_of_a_gpu_are_named_as_they_are():
    parts = [Gpu("MIG-1a", "part", 4), Gpu("MIG-2b", "part", 4)]
    assert seen(parts, "MIG-2b") == [1]
    old = "MIG-GPU-8932f937-d72c/3/0"
    assert visible_gpus(SAME, {"CUDA_VISIBLE_DEVICES": old}) == [Gpu(old)]


def test_cuda_counts_different_gpus_itself():
    # It sees the fastest first.
    def asked():
        return ["fa57", "fa58", "5107"]

    assert seen(MIXED, asked=asked) == [1, 2]
    assert seen(MIXED, "0,2", asked=lambda: ["fa57", "5107"]) == [1, 0]
    assert seen(MIXED, "GPU-5,GPU-fa58") == [0, 2]
    assert seen(MIXED, "0,2", CUDA_DEVICE_ORDER="PCI_BUS_ID") == [0, 2]
    assert seen(MIXED, CUDA_DEVICE_ORDER="PCI_BUS_ID") == [0]
    assert seen(MIXED, asked=list) == []
    assert by_uuid(["2b"], [Gpu("MIG-2b")]) == [Gpu("MIG-2b")]


class Library:
    """The management library of a machine of three GPUs: one is kept away, one is split."""

    def __init__(self):
        self.open = 0

    def nvmlInit_v2(self):
        self.open += 1
        return 0

    def nvmlShutdown(self):
        self.open -= 1
        return 0

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = 3
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, number, handle):
        handle._obj.value = 100 + number.value
        return 4 if number.value == 1 else 0

    def nvmlDeviceGetMigMode(self, handle, now, later):
        now._obj.value = int(handle.value == 102)
        return 3 if handle.value == 100 else 0

    def nvmlDeviceGetMaxMigDeviceCount(self, handle, count):
        count._obj.value = 7
        return 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, number, part):
        part._obj.value = 200 + number.value
        return 0 if number.value < 2 else 6

    def nvmlDeviceGetUUID(self, handle, text, size):
        names = {100: "GPU-whole", 200: "MIG-first", 201: "MIG-second"}
        text.value = names[handle.value].encode()
        return 0

    def nvmlDeviceGetName(self, handle, text, size):
        text.value = b"H"
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, handle, major, minor):
        major._obj.value, minor._obj.value = (8, 9) if handle.value == 102 else (9, 0)
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle, memory):
        memory._obj.total, memory._obj.free = 80, handle.value
        return 3 if handle.value == 201 else 0


def test_gpus_are_listed_with_their_memory_and_parts():
    library = Library()
    assert list_gpus(library) == [
        Gpu("GPU-whole", "H", 80, 100),
        Gpu("MIG-first", "H", 80, 200),
        Gpu("MIG-second", "H", 80, 201),
    ]
    assert library.open == 0


def test_compute_capabilities_are_those_of_cards():
    library = Library()
    assert compute_capabilities(library) == ["90", "89"]
    assert library.open == 0


CHILD = """
import json, os, subprocess, sys
from linumpy.core.leases import lease, nvml

before = dict(os.environ)
nvml.list_gpus = lambda: [nvml.Gpu(f"GPU-{n}{n}{n}{n}-5", "H", 8 << 30) for n in range(4)]
ask, further = json.loads(sys.argv[1])
try:
    held = lease.hold(lease.Ask(**ask))
    assert lease.hold() is held
    names = [gpu.uuid[4] for gpu in held.gpus]
    told = [names, os.environ.get("CUDA_VISIBLE_DEVICES"), held.memory_limit()]
except lease.DeviceError as error:
    told = str(error)
print(json.dumps(told), flush=True)
for kind, *rest in further:
    environment = dict(os.environ) if kind == "started by it" else before
    subprocess.run([sys.executable, sys.argv[0], json.dumps(rest)], env=environment)
"""


@pytest.fixture
def holds(tmp_path):
    """Run a process that takes GPUs, and others while it holds them; answers what each got."""
    (tmp_path / "child.py").write_text(CHILD)

    def run(ask, *further, **environment):
        ours = ("CUDA_VISIBLE_DEVICES", "LINUMPY_LEASED_GPUS")
        kept = {name: value for name, value in os.environ.items() if name not in ours}
        folder = {"PYTHONPATH": str(ROOT), "LINUMPY_LEASE_DIR": str(tmp_path / "lease")}
        done = subprocess.run(
            [sys.executable, tmp_path / "child.py", json.dumps([ask, further])],
            env={**kept, **folder, **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


def test_a_process_gets_its_gpus_by_name_and_those_it_starts_have_them_too(holds):
    mine, started, other = holds(
        {"wait_s": 0},
        ["started by it", {"wait_s": 0}, []],
        ["another", {"wait_s": 0, "count": 2}, []],
    )
    assert mine == [["0"], "GPU-0000-5", None]
    assert started == mine
    assert other == [["1", "2"], "GPU-1111-5,GPU-2222-5", None]


@pytest.mark.parametrize("value", ["3", "GPU-3333"])
def test_only_what_is_visible_is_taken(holds, value):
    mine, other = holds({"wait_s": 0}, ["another", {"wait_s": 0}, []], CUDA_VISIBLE_DEVICES=value)
    assert mine[:2] == [["3"], "GPU-3333-5"]
    assert other.startswith("no GPU was free") and "child.py (pid" in other


def test_processes_that_see_different_gpus_agree_on_their_names(holds):
    ask = {"wait_s": 0}
    further = [["another", ask, []]]
    mine, middle, last = holds(ask, ["another", ask, further], CUDA_VISIBLE_DEVICES="GPU-2,1")
    assert (mine[0], middle[0]) == (["2"], ["1"])
    assert last.startswith("no GPU was free")


def test_a_share_of_a_gpu_leaves_room_for_cuda(holds):
    (mine,) = holds({"tasks": 4})
    assert mine[2] == (2 << 30) - 600_000_000
    (mine,) = holds({"tasks": 16})
    # Never less than half of the share.
    assert mine[2] == 1 << 28


def test_empty_visibility_is_left_to_cuda(holds):
    assert holds({}, CUDA_VISIBLE_DEVICES="9") == [[[], "9", None]]
    assert holds({"count": 2}, CUDA_VISIBLE_DEVICES="1") == ["--gpu_count 2: 1 GPUs are visible"]
