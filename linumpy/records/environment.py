"""Record versions, machine and GPUs of a task beside its own files.

A pipeline's tasks may run in containers and on several machines, and some are cached ones of an
earlier day. So every script that a Nextflow task calls notes what it found itself.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

NOTE = ".linumpy.json"
"""Name of the note in a task's folder."""

PACKAGES = ("scipy", "SimpleITK", "nibabel", "tifffile")
"""Noted beside those of `linumpy.gpu.info`."""

_SCRIPT = "/.command.sh"


def task_folder(parent: int | None = None) -> Path | None:
    """Return the folder of the Nextflow task whose script called this process, None without one.

    The folder in which Nextflow keeps the task's records, also where the task itself runs in a
    scratch folder or a container.

    Parameters
    ----------
    parent
        Id of the process that may be a task's shell; this process's own parent if None.
    """
    try:
        command = Path(f"/proc/{parent or os.getppid()}/cmdline").read_bytes()
    except OSError:
        return None
    for word in os.fsdecode(command).split("\0"):
        if word.endswith(_SCRIPT):
            return Path(word).parent
    return None


def note_environment(folder: Path | None = None) -> None:
    """Leave a note of this process's environment, if a Nextflow task called it.

    Of several scripts in a task the last one counts, but for GPUs, which not all of them use. What
    goes wrong is passed over in silence: the work is done, and worth more than the note.

    Parameters
    ----------
    folder
        Where to leave it; the task's folder if None.
    """
    folder = folder or task_folder()
    if folder is None or not folder.is_dir():
        return
    with suppress(Exception):
        from linumpy.store.atomic import write_json

        path, found = folder / NOTE, describe_environment()
        before = read_note(folder)
        if before and not found["gpus"]:
            found["gpus"] = before["gpus"]
        write_json(path, found)


def read_note(folder: Path) -> dict[str, Any] | None:
    """Return the note in a task's folder, None where there is none that can be read."""
    try:
        found = json.loads((folder / NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    wanted = {"versions": dict, "machine": dict, "gpus": list}
    if isinstance(found, dict) and all(
        isinstance(found.get(name), kind) for name, kind in wanted.items()
    ):
        return found
    return None


def describe_environment() -> dict[str, Any]:
    """Describe what this process runs with.

    Returns
    -------
    ``versions`` by name; ``machine``: ``cpu``, ``cores``, ``memory_nbytes``, ``system`` and
    ``kernel``; ``gpus`` that the process used, each with ``name``, ``memory_nbytes``,
    ``compute_capability``, ``driver``, ``cuda_runtime``, ``cuda_driver`` and ``uuid``; none when
    it did not use any.
    """
    from linumpy.gpu.info import describe_versions

    versions = {**describe_versions(), **{name.lower(): _installed(name) for name in PACKAGES}}
    return {
        "versions": {name: found for name, found in versions.items() if found},
        "machine": describe_machine(),
        "gpus": _gpus(),
    }


def describe_machine() -> dict[str, Any]:
    """Describe the machine, without its name."""
    return {
        "cpu": _first(r"model name\s*:\s*(.+)", "/proc/cpuinfo") or platform.machine(),
        "cores": os.cpu_count(),
        "memory_nbytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "system": _first(r'PRETTY_NAME="?([^"\n]+)', "/etc/os-release") or platform.system(),
        "kernel": platform.release(),
    }


def _gpus() -> list[dict[str, Any]]:
    """Describe the GPUs that this process computed on: it sees those that it leased alone."""
    if "cupy" not in sys.modules:
        return []
    from linumpy.gpu.info import gpu_info

    info = gpu_info()
    shared = {name: info[name] for name in ("driver", "cuda_runtime", "cuda_driver")}
    # A lease names them by who they are (`linumpy.core.leases.lease`).
    leased = (info["visible_devices"] or "").split(",")
    return [
        {name: gpu[name] for name in ("name", "memory_nbytes", "compute_capability")}
        | shared
        | {"uuid": next((n for n in leased[i : i + 1] if n.startswith(("GPU-", "MIG-"))), None)}
        for i, gpu in enumerate(info["gpus"])
    ]


def _installed(package: str) -> str | None:
    # Takes longer to import than all else here, which every script does at its end.
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _first(pattern: str, path: str) -> str | None:
    try:
        found = re.search(pattern, Path(path).read_text(errors="replace"))
    except OSError:
        return None
    return found[1].strip() if found else None
