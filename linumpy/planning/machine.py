"""What there is to compute with, and how Nextflow uses it."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from linumpy.leases.nvml import list_gpus, visible_gpus
from linumpy.planning.task import Machine

LOCAL_SUBMIT_S = 0.03
LOCAL_POLL_S = 0.1
"""Nextflow's local executor: what starting a task takes it, and how often it looks."""

SLURM_SUBMIT_S = 1.0
SLURM_POLL_S = 5.0
SLURM_QUEUE_S = 2.0
SLURM_QUEUE_SIZE = 100
"""Of ``conf/slurm.config``: jobs a second, how often Nextflow looks, jobs at a time; and the least
time that SLURM keeps a job when there is room at once."""


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

    def machine(self, bandwidth: float = math.inf) -> Machine:
        """Return it as Nextflow uses it; `bandwidth` is the file system's in bytes a second."""
        if self.batch:
            return Machine(
                cores=self.cores,
                gpus=self.gpus,
                bandwidth=bandwidth,
                submit_s=SLURM_SUBMIT_S,
                poll_s=SLURM_POLL_S,
                queue_s=SLURM_QUEUE_S,
                queue_size=SLURM_QUEUE_SIZE,
            )
        return Machine(
            cores=self.cores,
            gpus=self.gpus,
            memory_bytes=self.memory_bytes,
            bandwidth=bandwidth,
            submit_s=LOCAL_SUBMIT_S,
            poll_s=LOCAL_POLL_S,
        )


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
