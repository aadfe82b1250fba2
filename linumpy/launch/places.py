"""Validate the output folder and the GPU that a run asks for."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from linumpy.core.leases.nvml import list_gpus, visible_gpus
from linumpy.launch.names import is_address

_EXECUTOR = re.compile(r"\bexecutor\s*=\s*(['\"])(?!local\1)\w+\1|\bexecutor\s*\{[^}]*name\s*=")
_DEVICES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")


def place_problems(asked: Mapping[str, Any], root: Path) -> list[str]:
    """Return what is wrong with the output folder, and the GPU that is not there.

    Parameters
    ----------
    asked
        ``input``, ``output``, ``work_dir``, ``publish_mode``, ``use_gpu`` and ``gpu_count`` where
        they are known; ``configs``, files that may give tasks to other machines.
    root
        Folder of the input, where it really lies.
    """
    found = []
    output, work = _local(asked.get("output")), _local(asked.get("work_dir"))
    if output is not None and (output == root or root in output.parents):
        found.append(
            f"--output {asked['output']}: lies inside --input {asked['input']}, and would mix "
            "results with raw data; name a folder outside of it"
        )
    if asked.get("publish_mode") == "link" and output is not None and work is not None:
        devices = [nearest(folder).stat().st_dev for folder in (output, work)]
        if devices[0] != devices[1]:
            found.append(
                f"--publish_mode link: impossible from {work} to {output} (they are on two file "
                "systems, across which there are no hard links); use another mode, or another "
                "-work-dir"
            )
    count = int(asked.get("gpu_count", 1))
    if not asked.get("use_gpu") or not count or not runs_here(asked.get("configs") or ()):
        return found
    preset = os.environ.get("CUDA_VISIBLE_DEVICES")
    told = "" if preset is None else f" (CUDA_VISIBLE_DEVICES is {preset!r})"
    listed = list_gpus() if count > 1 else []
    visible = len(visible_gpus(listed)) if listed else count
    if not has_gpu():
        found.append(
            f"--use_gpu: no NVIDIA GPU is visible on this machine{told}; leave it out, or let a "
            "batch system run the tasks (docs/hpc.md)"
        )
    elif visible < count:
        found.append(
            f"--gpu_count {count}: {visible} GPUs are visible on this machine{told}; expected as "
            "many at least, for steps that use all of them"
        )
    return found


def _local(text: Any) -> Path | None:
    return None if not text or is_address(str(text)) else Path(text).resolve()


def nearest(folder: Path) -> Path:
    """Return the folder, or the nearest above it that is there."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def runs_here(configs: Sequence[str]) -> bool:
    """Whether no config of the user's hands tasks to another executor than this machine."""
    if os.environ.get("NXF_EXECUTOR", "local") != "local":
        return False
    for config in configs:
        try:
            text = Path(config).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return False
        if _EXECUTOR.search(text):
            return False
    return True


def has_gpu() -> bool:
    """Whether there is a GPU that tasks of this machine could use, or no way to find out."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    return bool(list_gpus()) or any(map(os.path.exists, _DEVICES))
