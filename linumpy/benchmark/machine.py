"""Describe a benchmark's machine: hardware, versions, GPUDirect Storage, page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.core.device import Device, locate
from linumpy.gpu.fetch import n_threads
from linumpy.gpu.info import cuda_version, driver_version
from linumpy.gpu.info import describe_versions as describe_versions


def describe_machine(folder: Path, use_gpu: bool) -> dict[str, Any]:
    """Return the machine's CPU, memory, GPU, and the file system of `folder`."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    machine: dict[str, Any] = {
        "cpu": _first(r"model name\s*:\s*(.+)", "/proc/cpuinfo") or platform.processor(),
        "cores": n_threads(),
        "memory_nbytes": pages,
        "system": platform.platform(),
        "filesystem": filesystem_of(folder),
    }
    if use_gpu:
        locate(Device("cuda"))
        import cupy

        properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
        machine |= {
            "gpu": properties["name"].decode(),
            "gpu_memory_nbytes": int(properties["totalGlobalMem"]),
            "driver": driver_version(),
            "cuda_driver": cuda_version(cupy.cuda.runtime.driverGetVersion()),
            "cuda_runtime": cuda_version(cupy.cuda.runtime.runtimeGetVersion()),
        }
    return machine


def _first(pattern: str, path: str) -> str | None:
    try:
        found = re.search(pattern, Path(path).read_text(errors="replace"))
    except OSError:
        return None
    return found.group(1).strip() if found else None


def filesystem_of(folder: Path) -> str | None:
    """Return the type of the file system that a folder lies in."""
    folder = folder.resolve()
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return None
    # Of two mounts on one place the later hides the earlier.
    found = [
        (len(mount[1]), number, mount[2])
        for number, mount in enumerate(mounts)
        if folder.is_relative_to(mount[1])
    ]
    return max(found)[2] if found else None


def gds_state() -> tuple[bool, str]:
    """Say whether kvikio reads natively, by GPUDirect Storage, and why not.

    Returns
    -------
    Whether it can, and the reason where it cannot.
    """
    import kvikio.cufile_driver
    import kvikio.defaults

    reasons = []
    try:
        version = kvikio.cufile_driver.libcufile_version()
        if version == (0, 0):
            reasons.append("libcufile is not installed, or older than 1.8")
        available = bool(kvikio.cufile_driver.get("is_gds_available"))
    except RuntimeError as error:
        return False, f"the cuFile driver cannot be asked ({error})"
    if not available:
        reasons.append("the cuFile driver reports no GPUDirect Storage")
    if not Path("/proc/driver/nvidia-fs").exists():
        reasons.append("the kernel module nvidia-fs is not loaded")
    if not os.access("/run/udev", os.R_OK):
        reasons.append("/run/udev cannot be read")
    if (mode := os.environ.get("KVIKIO_COMPAT_MODE")) is not None:
        reasons.append(f"KVIKIO_COMPAT_MODE={mode}")
    elif available and kvikio.defaults.is_compat_mode_preferred():
        reasons.append("kvikio prefers its compatibility mode")
    return available, "; ".join(reasons)


def drop_page_cache(files: Iterable[Path]) -> None:
    """Ask the kernel to forget its copies of files, written to the disk first."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def resident_fraction(files: Iterable[Path]) -> float | None:
    """Return which part of files the kernel says it holds in memory; None if it does not say."""
    resident = total = 0
    libc = ctypes.CDLL(None, use_errno=True)
    for path in files:
        size = path.stat().st_size
        if not size:
            continue
        pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            content = np.frombuffer(mapped, np.uint8)
            status = libc.mincore(
                ctypes.c_void_p(content.ctypes.data),
                ctypes.c_size_t(size),
                ctypes.c_void_p(pages.ctypes.data),
            )
            # The mapping can be closed only when nothing refers to it.
            del content
        if status:
            return None
        resident += int((pages & 1).sum())
        total += len(pages)
    return resident / total if total else 0.0


def cold_state(files: list[Path]) -> dict[str, Any]:
    """Drop files from the page cache and say how far that went.

    Returns
    -------
    ``resident``: the fraction that is still in memory, None if unknown; ``works``: whether cold
    rates are cold; ``note``: what to think of them if not.
    """
    drop_page_cache(files)
    resident = resident_fraction(files)
    if resident is None:
        return {"works": False, "resident": None, "note": "the kernel does not say what it caches"}
    if resident > 0.01:
        note = (
            f"{100 * resident:.0f} % of the files stayed in memory, as the kernel says "
            "(tmpfs, or a file system that ignores the request): cold rates are not cold"
        )
        return {"works": False, "resident": resident, "note": note}
    return {"works": True, "resident": resident, "note": ""}
