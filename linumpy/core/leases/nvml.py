"""List GPUs before CUDA starts, through NVML, the driver's management library.

Asking makes no CUDA context and takes milliseconds. What is decided here can still be said in
``CUDA_VISIBLE_DEVICES``, which CUDA reads once, when it starts.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "CUDA_VISIBLE_DEVICES"

_TEXT_NBYTES = 96
_SUCCESS = 0
_NOT_STARTED = 3


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a part of one that its administrator split off (MIG).

    Attributes
    ----------
    uuid
        Its name, the same in every process and container.
    model
        What it is.
    total_nbytes, free_nbytes
        Its memory, and the free part; 0 where the driver does not report it.
    """

    uuid: str
    model: str = ""
    total_nbytes: int = 0
    free_nbytes: int = 0


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class _Nvml:
    """Calls of the library that answer None where it has no answer."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def call(self, name: str, *arguments: Any) -> bool:
        function = getattr(self._library, name, None)
        return function is not None and function(*arguments) == _SUCCESS

    def count(self, name: str, *arguments: Any) -> int:
        found = ctypes.c_uint()
        return found.value if self.call(name, *arguments, ctypes.byref(found)) else 0

    def handle(self, name: str, *arguments: Any) -> ctypes.c_void_p | None:
        found = ctypes.c_void_p()
        return found if self.call(name, *arguments, ctypes.byref(found)) else None

    def text(self, name: str, handle: ctypes.c_void_p) -> str:
        room = ctypes.create_string_buffer(_TEXT_NBYTES)
        found = self.call(name, handle, room, ctypes.c_uint(_TEXT_NBYTES))
        return room.value.decode("ascii", "replace") if found else ""

    def describe(self, handle: ctypes.c_void_p) -> Gpu:
        memory = _Memory()
        self.call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        uuid = self.text("nvmlDeviceGetUUID", handle)
        return Gpu(uuid, self.text("nvmlDeviceGetName", handle), memory.total, memory.free)

    def parts(self, handle: ctypes.c_void_p) -> list[ctypes.c_void_p] | None:
        """Return the parts of a split GPU; None for a whole one."""
        now, later = ctypes.c_uint(), ctypes.c_uint()
        asked = self.call("nvmlDeviceGetMigMode", handle, ctypes.byref(now), ctypes.byref(later))
        if not asked or now.value != 1:
            return None
        numbers = range(self.count("nvmlDeviceGetMaxMigDeviceCount", handle))
        name = "nvmlDeviceGetMigDeviceHandleByIndex"
        found = [self.handle(name, handle, ctypes.c_uint(n)) for n in numbers]
        return [part for part in found if part is not None]


def compute_capabilities(library: Any = None) -> list[str]:
    """Return those of the GPUs of this machine, as ``90`` for 9.0; `library` as in `list_gpus`."""
    if library is None:
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return []
    nvml = _Nvml(library)
    if not nvml.call("nvmlInit_v2"):
        return []
    try:
        found = []
        for number in range(nvml.count("nvmlDeviceGetCount_v2")):
            handle = nvml.handle("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(number))
            major, minor = ctypes.c_int(), ctypes.c_int()
            parts = ctypes.byref(major), ctypes.byref(minor)
            if handle and nvml.call("nvmlDeviceGetCudaComputeCapability", handle, *parts):
                found.append(f"{major.value}{minor.value}")
        return found
    finally:
        nvml.call("nvmlShutdown")


def list_gpus(library: Any = None) -> list[Gpu]:
    """Return the GPUs that this process may use, in the order of the bus.

    Parameters
    ----------
    library
        The management library; the driver's own when None.

    Returns
    -------
    None of those that a container or a batch system keeps from the process; empty without a driver.
    """
    if library is None:
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return []
    nvml = _Nvml(library)
    if not nvml.call("nvmlInit_v2"):
        return []
    try:
        gpus: list[Gpu] = []
        for number in range(nvml.count("nvmlDeviceGetCount_v2")):
            handle = nvml.handle("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(number))
            if handle is None:
                continue
            parts = nvml.parts(handle)
            gpus += [nvml.describe(part) for part in ([handle] if parts is None else parts)]
        return [gpu for gpu in gpus if gpu.uuid]
    finally:
        nvml.call("nvmlShutdown")


def visible_gpus(
    gpus: Sequence[Gpu],
    environment: Mapping[str, str] = os.environ,
    *,
    ask_cuda: Callable[[], list[str]] | None = None,
) -> list[Gpu]:
    """Return the GPUs that CUDA would see, in its order.

    Parameters
    ----------
    gpus
        From `list_gpus`.
    environment
        ``CUDA_VISIBLE_DEVICES`` names GPUs by number or by UUID (its beginning is enough), up to
        the first name that there is not. Unset, GPUs that differ from CUDA's first are left out.
    ask_cuda
        Returns what `by_uuid` takes. It is asked where models differ, because CUDA then counts
        them from the fastest on; by default in a process of its own.
    """
    preset = environment.get(VARIABLE)
    names = None if preset is None else [name.strip() for name in preset.split(",")]
    mixed = len({gpu.model for gpu in gpus}) > 1
    counted = names is None or any(name.isdigit() for name in names)
    if mixed and counted and environment.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        found = by_uuid((ask_cuda or _ask_cuda)(), gpus)
    elif names is None:
        found = list(gpus)
    else:
        found = []
        for name in names:
            gpu = _named(name, gpus)
            if gpu is None or gpu in found:
                break
            found.append(gpu)
    return found if names is not None else [g for g in found if g.model == found[0].model]


def by_uuid(uuids: Sequence[str], gpus: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs of some CUDA UUIDs; CUDA does not report which are parts of a GPU."""
    known = {gpu.uuid.partition("-")[2]: gpu for gpu in gpus}
    return [known[uuid] for uuid in uuids if uuid in known]


def _named(name: str, gpus: Sequence[Gpu]) -> Gpu | None:
    """Return the GPU of a number, a UUID or the only one whose UUID begins so."""
    if name.isdigit():
        return gpus[int(name)] if int(name) < len(gpus) else None
    if not name.startswith(("GPU-", "MIG-")):
        return None
    found = [gpu for gpu in gpus if gpu.uuid.startswith(name)]
    if not found and name.startswith("MIG-"):
        # Older drivers name parts in a way of their own, by their GPU and two numbers.
        return Gpu(name)
    return found[0] if len(found) == 1 else None


def started_uuids() -> list[str] | None:
    """Return what `by_uuid` takes of the GPUs that CUDA sees here; None when it has not started."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD)
    except OSError:
        return None
    return _cuda_uuids(driver)


def _cuda_uuids(driver: Any) -> list[str] | None:
    count, device = ctypes.c_int(), ctypes.c_int()
    status = driver.cuDeviceGetCount(ctypes.byref(count))
    if status != _SUCCESS:
        return None if status == _NOT_STARTED else []
    found = []
    for number in range(count.value):
        raw = (ctypes.c_ubyte * 16)()
        if driver.cuDeviceGet(ctypes.byref(device), number) != _SUCCESS:
            continue
        # The second version names the part of a split GPU.
        get = getattr(driver, "cuDeviceGetUuid_v2", None) or driver.cuDeviceGetUuid
        if get(ctypes.byref(raw), device) == _SUCCESS:
            text = bytes(raw).hex()
            ends = (0, 8, 12, 16, 20, 32)
            parts = [text[a:b] for a, b in zip(ends, ends[1:], strict=False)]
            found.append("-".join(parts))
    return found


def _ask_cuda() -> list[str]:
    """Return the UUIDs that CUDA sees, from a process that ends at once."""
    import subprocess

    code = (
        "import ctypes, linumpy.core.leases.nvml as nvml\n"
        "driver = ctypes.CDLL('libcuda.so.1')\n"
        "driver.cuInit(0)\n"
        "print(*(nvml._cuda_uuids(driver) or []))"
    )
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-c", code]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout.split()
    return []
