"""Slices that one task works on: few enough that all GPUs or cores have work, and time suffices."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

MOST_SLICES = 16
"""By then starting and ending a process is a small part of its time."""

GROUPS_EACH = 2
"""Groups of a GPU or core at least: with one, all would wait for the slowest."""

JOBS = 8
"""GPUs that a scheduler is taken to give at a time."""

BYTES_AN_HOUR = 200e9
"""A third of what a core of a busy machine takes (7 s a GiB, linumpy/planning/stage_times.json)."""


def slices_per_task(
    given: Mapping[str, Any], n_slices: int, nbytes: float, cores: int | None = None
) -> int:
    """Return how many slice ids a task takes, as given or chosen.

    A choice is a power of two, so that few more or fewer slices change nothing.

    Parameters
    ----------
    given
        ``slices_per_task``, ``use_gpu``, ``gpu_count``, ``slurm_time_h``.
    n_slices, nbytes
        Of the whole input.
    cores
        Of this machine; None to look.
    """
    asked = given.get("slices_per_task") or "auto"
    if asked != "auto":
        return int(asked)
    workers = os.cpu_count() or 1 if cores is None else cores
    if given.get("use_gpu"):
        workers = given.get("gpu_count", 1) or JOBS
    hours = given.get("slurm_time_h") or 1
    most = min(MOST_SLICES, int(hours * BYTES_AN_HOUR * n_slices / max(nbytes, 1)))
    size = 1
    # A last group of half the size or more counts as one.
    while 2 * size <= most and (n_slices + size) // (2 * size) >= GROUPS_EACH * workers:
        size *= 2
    return size
