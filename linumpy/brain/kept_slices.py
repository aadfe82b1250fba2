"""Slice volumes that the pairs of a group share: decoded once, the latest kept in memory."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from threading import Lock

import numpy as np

from linumpy.brain.pair_match import coarse_factor
from linumpy.brain.slice_planes import KnownPlanes, SliceVolume, Window
from linumpy.core.device import (
    Array,
    Device,
    cores_a_gpu,
    default_workers,
    free_gpu_bytes,
    is_device_array,
)

BUDGET_BYTES = 1 << 30
"""Host memory of kept slices, and as much a worker; on a GPU half of what is free."""

MAX_PAIRS = 4
"""Pairs in hand at once, each with the memory of some planes of two slices."""

SLICES = 3
"""Slices that one worker needs: one and the two next ones make its pairs. Two more have the pairs
of one slice more in hand."""


def pair_workers(device: Device, processes: int = 1) -> int:
    """Return how many pairs of slices each of some processes measures at once.

    On a GPU, too, it is more than one: half of a pair's time goes into solves on the host.
    """
    cores = cores_a_gpu() if device.is_gpu else default_workers(device)
    return max(1, min(cores // processes, MAX_PAIRS))


@dataclass
class _Kept:
    """A decoded slice, and by factor what pairs made of its planes."""

    data: Array
    valid: Array | None
    known: dict[int, KnownPlanes] = field(default_factory=dict)


class _Keeper:
    """The slices decoded last, as many as fit."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._lock = Lock()
        self._turns: dict[int, Lock] = {}
        self._latest: OrderedDict[int, _Kept] = OrderedDict()

    def of(self, volume: SliceVolume) -> _Kept:
        """Return a slice, decoded unless it is kept; threads that want the same wait for one."""
        with self._lock:
            turn = self._turns.setdefault(volume.slice_id, Lock())
        with turn:
            with self._lock:
                if volume.slice_id in self._latest:
                    self._latest.move_to_end(volume.slice_id)
                    return self._latest[volume.slice_id]
                while len(self._latest) >= self._count:
                    self._latest.popitem(last=False)
            kept = _Kept(*volume.read(slice(0, volume.shape[0]), volume.whole()))
            for array in (kept.data, kept.valid):
                if array is not None and not is_device_array(array):
                    np.asarray(array).setflags(write=False)
            with self._lock:
                self._latest[volume.slice_id] = kept
            return kept


@dataclass(frozen=True)
class _Reader:
    """Read a slice, and what is known of its planes, from the keeper."""

    keeper: _Keeper
    volume: SliceVolume

    def __call__(self, planes: slice, window: Window) -> tuple[Array, Array | None]:
        kept = self.keeper.of(self.volume)
        part = (planes, *window)
        return kept.data[part], None if kept.valid is None else kept.valid[part]

    def known(self, factor: int) -> KnownPlanes:
        return self.keeper.of(self.volume).known.setdefault(factor, KnownPlanes())


def keep_slices(
    volumes: Sequence[SliceVolume], device: Device, workers: int = 1
) -> tuple[list[SliceVolume], int]:
    """Return slices that are decoded once for all pairs of neighbours measured in their order.

    Slices are returned as they are where those that are in hand do not fit into the budget: they
    would be decoded again and again. What readers return must not be changed.

    Returns
    -------
    The slices, and how many workers may have pairs in hand: on a GPU as many as slices are kept
    for, on the host `workers`.
    """
    # Pairs come in order: what a later one needs was not decoded long before.
    count = min(SLICES + workers, _room(volumes, device, workers))
    if count < SLICES + (0 if device.is_gpu else workers // 2):
        return list(volumes), workers
    if device.is_gpu:
        workers = min(workers, 2 * (count - SLICES) + 1)
    keeper = _Keeper(count)
    readers = [_Reader(keeper, volume) for volume in volumes]
    kept = [
        replace(volume, read=reader, known=reader.known)
        for volume, reader in zip(volumes, readers, strict=True)
    ]
    return kept, workers


def _room(volumes: Sequence[SliceVolume], device: Device, workers: int) -> int:
    """Return how many of the largest slices may be kept."""
    budget = free_gpu_bytes() // 2 if device.is_gpu else (1 + workers) * BUDGET_BYTES

    def nbytes(shape: tuple[int, int, int]) -> float:
        factor = coarse_factor(shape)
        # Amplitude and mask; flattened planes, and binned ones that are no view.
        return math.prod(shape) * (5 + (4 if factor == 1 else 8 / factor**2))

    return int(budget / max((nbytes(volume.shape) for volume in volumes), default=1.0))
