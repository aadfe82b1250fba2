"""Cores, memory and GPUs of the machine, and how Nextflow uses them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from linumpy.core.leases.nvml import list_gpus, visible_gpus

LOCAL_S = (0.03, 0.05)
SLURM_S = (1.0, 4.5)
"""Seconds between two tasks that Nextflow starts, and from a task's end until it is seen, with the
time that SLURM keeps a job at least; of the local executor, and of ``conf/slurm.config``."""


@dataclass(frozen=True)
class Resources:
    """What there is to compute with.

    Attributes
    ----------
    gpu_bytes
        Memory of one GPU; None where it is not known.
    batch
        Whether a batch system hands it out, rather than all being one machine.
    """

    cores: int
    memory_bytes: int
    gpus: int = 0
    gpu_bytes: int | None = None
    batch: bool = False

    def handing_s(self, *, light: bool) -> tuple[float, float]:
        """Return the seconds between the starts of two tasks, and those one takes beside its own.

        Parameters
        ----------
        light
            Whether Nextflow runs the task beside itself where others are jobs.
        """
        return SLURM_S if self.batch and not light else LOCAL_S


def this_machine(environment: Mapping[str, str] = os.environ) -> Resources:
    """Return what this machine has, and of its GPUs those that are visible."""
    gpus = visible_gpus(list_gpus(), environment)
    return Resources(
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        gpus=len(gpus),
        gpu_bytes=min((gpu.total_nbytes for gpu in gpus if gpu.total_nbytes), default=None),
    )


def has_slurm() -> bool:
    """Whether jobs can be handed to SLURM from here."""
    return shutil.which("sbatch") is not None
