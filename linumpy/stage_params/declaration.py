"""Declaration of a stage, from which the workflow's lists of stages derive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MB = 1_000_000


@dataclass(frozen=True)
class Memory:
    """Host memory of a task: a base, and how many of each thing it holds.

    Figures were fitted to measured peaks (docs/scale.md).

    Attributes
    ----------
    base_bytes
        The interpreter with what it imports.
    tiles, raw_tiles
        Tiles at the microscope's voxel, a core; more of them when they are read raw.
    resting
        Tiles of this many slices at the working voxel, up to the budget of the engine's store;
        -1 for those that are learned from.
    slices
        Slice volumes.
    blocks, layers
        Blocks of the brain, and whole layers of it, one shard deep.
    pictures, all_pictures
        Images of one slice, and of each.
    """

    base_bytes: int
    tiles: float = 0.0
    raw_tiles: float = 0.0
    resting: int = 0
    slices: float = 0.0
    blocks: float = 0.0
    layers: float = 0.0
    pictures: float = 0.0
    all_pictures: float = 0.0


TABLE, FIGURE = Memory(120 * MB), Memory(250 * MB)
"""Memory of what reads tables, and of what draws them, too."""


@dataclass(frozen=True)
class Declaration:
    """One stage as a process of the workflow.

    Attributes
    ----------
    name
        Of the process; ``scripts/linum_<name>.py`` and ``modules/<name>.nf`` are called like it.
    after
        Stages whose results it reads, directly or in the end; those not in a run do not count.
    when
        What a run's parameters must be for it to be part of the run. True and False mean
        any value that counts as such. Facts of the input count as parameters:
        ``raw`` (tiles as the microscope wrote them), ``straight`` (these without mosaic grids),
        ``shifts_found`` and ``config_found`` (tables that are there).
    per
        ``run``, ``slice``, ``group`` (of ``slices_per_task`` slices), ``gap`` or ``pairs``, a group
        of slices that are measured against the next ones: what it has a task for.
    work
        What its time grows with: ``grid``, ``resampled``, ``slices``, ``brain`` (bytes of
        samples), ``learned`` (bytes of the tiles that are learned from), ``items`` (slices), or
        ``table`` for what takes no longer with more.
    label
        Of its module; decides what it asks for (``conf/base.config``).
    memory
        Of a task.
    on_gpu, gpu_tasks, gpu_forks
        Whether it computes on a GPU where one is asked for, how many tasks fit on it, and how many
        of these are its own at a time; the rest is for others. None for all.
    least_gpu_bytes
        Device memory that a task takes at least, however many would fit.
    parts
        Whether processes divide the depth of its volume among GPUs and cores.
    params
        Dataclasses of its parameters, which its script has flags for.
    learns
        Stems of the models that it writes.
    """

    name: str
    after: tuple[str, ...] = ()
    when: Mapping[str, Any] = field(default_factory=dict)
    per: str = "run"
    work: str = "table"
    label: str = "light"
    memory: Memory = TABLE
    on_gpu: bool = True
    gpu_tasks: int = 1
    gpu_forks: int | None = None
    least_gpu_bytes: int = 0
    parts: bool = False
    params: tuple[type[Any], ...] = ()
    learns: tuple[str, ...] = ()

    @property
    def forks_a_gpu(self) -> int:
        """How many of its tasks a GPU has at a time."""
        return self.gpu_tasks if self.gpu_forks is None else self.gpu_forks

    def is_in(self, run: Mapping[str, Any]) -> bool:
        """Whether it is part of a run with such parameters and facts."""
        return all(
            bool(run[name]) == wanted if isinstance(wanted, bool) else run[name] == wanted
            for name, wanted in self.when.items()
        )


# What several stages read.
SHIFTS = ("estimate_xy_shift_from_metadata", "detect_rehoming")
CHOSEN = ("generate_slice_config",)
CONFIG = (*CHOSEN, "detect_rehoming")
GRIDS = (*CHOSEN, "create_mosaic_grid_3d")
VOLUMES = ("reconstruct_slice", "normalize_intensities_per_slice")
REGISTRATION = ("register_slices", "refine_manual_transforms")
BRAIN = ("stack_slices_motor", "correct_bias_field")

IN_3D, IN_2D = {"mode": "3d"}, {"mode": "2.5d"}
FUSED, CHAINED = {**IN_3D, "fused": True}, {**IN_3D, "fused": False}
