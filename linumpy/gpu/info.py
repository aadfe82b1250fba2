"""Report versions and the GPUs that the device policy can use."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

from linumpy.core.device import Device, locate
from linumpy.core.errors import DeviceError

PACKAGES = {
    "numpy": ("numpy",),
    "zarr": ("zarr",),
    "zarrs": ("zarrs",),
    "numcodecs": ("numcodecs",),
    "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "kvikio": ("kvikio-cu13", "kvikio-cu12", "kvikio"),
    "nvcomp": ("nvidia-libnvcomp-cu13", "nvidia-libnvcomp-cu12"),
}
_SHOWN = {"cupy": "CuPy", "kvikio": "kvikio", "nvcomp": "nvCOMP"}
_DRIVER = Path("/proc/driver/nvidia/version")


def gpu_info(compute: bool = False) -> dict[str, Any]:
    """Describe the GPUs that a task with ``--use_gpu`` could use here.

    Parameters
    ----------
    compute
        Also compute something small on each GPU. That takes some hundred MiB of device memory for
        a moment, and finds what counting GPUs does not: missing libraries, a card that hangs on to
        an error, one that is too old for the installed CuPy.

    Returns
    -------
    ``versions`` of linumpy, Python and packages; ``driver`` (of the kernel), ``cuda_driver`` and
    ``cuda_runtime``, None where unknown; ``visible_devices`` (``CUDA_VISIBLE_DEVICES``); ``gpus``,
    each with ``index``, ``name``, ``memory_nbytes`` and ``compute_capability``; ``problem``: why
    none, or not all, can be used, None if they can.
    """
    info: dict[str, Any] = {
        "versions": describe_versions(),
        "driver": driver_version(),
        "cuda_driver": None,
        "cuda_runtime": None,
        "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "gpus": [],
        "problem": None,
    }
    try:
        locate(Device("cuda", 0))
    except DeviceError as error:
        return info | {"problem": str(error)}
    import cupy

    info["cuda_driver"] = cuda_version(cupy.cuda.runtime.driverGetVersion())
    info["cuda_runtime"] = cuda_version(cupy.cuda.runtime.runtimeGetVersion())
    for index in range(cupy.cuda.runtime.getDeviceCount()):
        try:
            info["gpus"].append(_describe(cupy, index))
            if compute:
                _compute(cupy, index)
        # What a broken installation raises is anything: the runtime's, the compiler's, an OSError.
        except Exception as error:
            problem = f"GPU {index} cannot be used ({type(error).__name__}: {error})"
            info["problem"] = "; ".join(filter(None, [info["problem"], problem]))
    return info


def _describe(cupy: Any, index: int) -> dict[str, Any]:
    """Return name and size of a GPU, from the driver alone."""
    properties = cupy.cuda.runtime.getDeviceProperties(index)
    return {
        "index": index,
        "name": properties["name"].decode(),
        "memory_nbytes": int(properties["totalGlobalMem"]),
        "compute_capability": f"{properties['major']}.{properties['minor']}",
    }


def _compute(cupy: Any, index: int) -> None:
    with cupy.cuda.Device(index):
        total = int((cupy.arange(1000, dtype=cupy.int64) * 2).sum())
    if total != 999_000:
        raise DeviceError(f"the sum of 0, 2, … 1998 is {total} there")


def format_info(info: dict[str, Any]) -> str:
    """Return what `gpu_info` found as lines for a person."""
    versions = info["versions"]
    lines = [f"linumpy  {versions['linumpy']}, Python {versions['python']}"]
    lines += [f"{name:8} {versions[key] or 'not installed'}" for key, name in _SHOWN.items()]
    if info["cuda_runtime"]:
        lines.append(f"CUDA     {info['cuda_runtime']}; the driver can {info['cuda_driver']}")
    lines.append(f"driver   {info['driver'] or 'not seen'}")
    if info["visible_devices"] is not None:
        lines.append(f"visible  CUDA_VISIBLE_DEVICES={info['visible_devices']}")
    lines += [
        f"GPU {gpu['index']:<4} {gpu['name']}, {gpu['memory_nbytes'] / 2**30:.1f} GiB, "
        f"compute capability {gpu['compute_capability']}"
        for gpu in info["gpus"]
    ]
    if info["problem"]:
        lines.append(f"{'problem' if info['gpus'] else 'no GPU'}: {info['problem']}")
    return "\n".join(lines)


def describe_versions() -> dict[str, str | None]:
    """Return the versions of Python and of the packages that do the work; None if not installed."""
    from linumpy import __version__

    versions: dict[str, str | None] = {"linumpy": __version__, "python": platform.python_version()}
    for name, candidates in PACKAGES.items():
        versions[name] = next(filter(None, map(_installed, candidates)), None)
    return versions


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def driver_version(path: Path = _DRIVER) -> str | None:
    """Return the version of NVIDIA's kernel driver, None where there is none."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"Kernel Module.*?\s(\d+\.\d+[.\d]*)", text)
    return found[1] if found else None


def cuda_version(number: int) -> str:
    """Return CUDA's version in its usual form: 12090 is 12.9."""
    return f"{number // 1000}.{number % 1000 // 10}"
