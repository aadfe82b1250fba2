"""Host memory available to this process, within the limits of machine and job."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_LIMITS = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""Of glibc's ``malloc.h``."""

_MAPPED_NBYTES, _FREE_NBYTES = 1 << 20, 4 << 20

GRANTED = "LINUMPY_MEMORY"
"""Environment variable by which the workflow says how many bytes a task asked for."""


def free_host_bytes(
    environment: Mapping[str, str] = os.environ,
    *,
    proc: Path = Path("/proc/self/cgroup"),
    groups: Path = Path("/sys/fs/cgroup"),
) -> int:
    """Return how many bytes the process can take before the machine, or its job's limit, is full.

    Limits are those of the control groups that the process is in (containers, and most batch
    systems), and what SLURM was asked for, should it only watch over that.

    Parameters
    ----------
    environment
        Of the process; ``SLURM_MEM_PER_NODE`` is in MiB.
    proc
        The file that names the process's groups.
    groups
        Where the groups' files are.
    """
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found = [free, *_left_in_groups(proc, groups)]
    asked = environment.get("SLURM_MEM_PER_NODE", "")
    # 0 asks for all that a node has.
    if asked.isdigit() and int(asked) > 0:
        found.append(int(asked) << 20)
    return max(0, min(found))


def granted_host_bytes(environment: Mapping[str, str] = os.environ) -> int:
    """Return how many bytes the process should take: what is free, at most what its task asked for.

    It bounds what can be made smaller: the number of processes, not the memory of one.
    """
    asked = environment.get(GRANTED, "")
    free = free_host_bytes(environment)
    return min(free, int(asked)) if asked.isdigit() and int(asked) > 0 else free


def trim_heap() -> None:
    """Return free memory of the C library to the system, where it is glibc.

    Each thread that begins may get a heap of its own, which keeps what was freed.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def share_heap() -> None:
    """Let threads that begin from now on share one heap of the C library, where it is glibc.

    Each heap keeps up to 64 MB of free memory at its end, which `trim_heap` does not return.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def map_arrays() -> None:
    """Have the C library return large arrays to the system when they are freed, where it is glibc.

    By itself it raises the size from which it does so up to 32 MB. Beneath what lives on, freed
    arrays then stay with the process: by chance, and the more the longer it works.
    """
    with suppress(AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _MAPPED_NBYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _FREE_NBYTES)


def _left_in_groups(proc: Path, groups: Path) -> list[int]:
    """Return what each limited group above the process has left."""
    left: list[int] = []
    with suppress(OSError):
        for line in proc.read_text(encoding="ascii").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            folder = groups / controllers / path.lstrip("/") if controllers else groups / path[1:]
            while groups in (folder, *folder.parents):
                left += _left(folder)
                folder = folder.parent
    return left


def _left(folder: Path) -> list[int]:
    """Return what a group has left, as a list of one; of none where it has no limit."""
    for limit, usage in _LIMITS:
        # "max" is no number, and says that there is none.
        with suppress(OSError, ValueError):
            return [int((folder / limit).read_text()) - int((folder / usage).read_text())]
    return []
