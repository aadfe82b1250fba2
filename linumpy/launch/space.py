"""Compare the expected size of a run with the free space of its disks."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from linumpy.core.errors import InputError


class Need(NamedTuple):
    """Bytes that a run writes to its output and to its work folder."""

    published: float
    worked: float


def needed(params: Mapping[str, Any], found: Mapping[str, Any]) -> Need:
    """Estimate what a run writes.

    Raw tiles are written once as grids unless they go straight to the slices, and once more where
    grids are published as copies; single stages write a few grids more.

    Parameters
    ----------
    params
        All parameters of the workflow.
    found
        Its input (`linumpy.launch.discover.find_input`).
    """
    makes_grids = found["kind"] == "raw" and not goes_straight(params, found)
    is_copied = makes_grids and params["keep_mosaic_grids"] and params["publish_mode"] == "copy"
    worked = makes_grids + (0.5 if params["fused"] else 3)
    return Need(is_copied * found["bytes"], worked * found["bytes"])


def goes_straight(params: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether raw tiles go straight to the slices, as grids of them are neither kept nor needed."""
    return found["kind"] == "raw" and params["fused"] and not params["keep_mosaic_grids"]


def refuse_full(output: Path, work: Path | None, need: Need) -> None:
    """Refuse to start what the disks cannot hold.

    Parameters
    ----------
    output, work
        Existing folders; no `work` where it is not on this machine: a bucket is never full.
    need
        From `needed`.

    Raises
    ------
    InputError
        With what will be written, and what is free.
    """
    is_shared = work is not None and work.stat().st_dev == output.stat().st_dev
    _refuse(f"--output {output}", output, need.published + need.worked * is_shared)
    if work is not None:
        _refuse(f"the work folder {work} (-work-dir)", work, need.worked)


def _refuse(what: str, folder: Path, nbytes: float) -> None:
    free = shutil.disk_usage(folder).free
    if free < nbytes:
        raise InputError(
            f"{what}: about {nbytes / 1e9:.1f} GB will be written, {free / 1e9:.1f} GB are free"
        )
