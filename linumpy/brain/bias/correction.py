"""Apply a learned bias field correction to blocks of a brain."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial

import numpy as np

from linumpy.brain.bias.model import BiasModel, Fields
from linumpy.brain.bias.shares import Shares
from linumpy.brain.stacking import SLAB_PX
from linumpy.core.device import CPU, Array, Device, namespace, to_device
from linumpy.geometry.resample import apply_axis_weights
from linumpy.intensity.histogram_matching import apply_factors, matching_factors
from linumpy.io.pyramid import Box
from linumpy.io.slice_layout import SHARD_PX


def planes_at_once(device: Device) -> int:
    """Return how many planes of a block are worked on together: few stay in a core's cache."""
    return SHARD_PX if device.is_gpu else 16


def thin(window: Box, device: Device) -> Iterator[tuple[slice, Box]]:
    """Cut a block into planes that are worked on together.

    Yields
    ------
    The planes within the block, and their window in the brain.
    """
    first, last = window[0].start, window[0].stop
    for z in range(first, last, planes_at_once(device)):
        stop = min(z + planes_at_once(device), last)
        yield slice(z - first, stop - first), (slice(z, stop), *window[1:])


class Correction:
    """Correct blocks of a brain by the model learned from it.

    Parameters
    ----------
    model
        What was learned.
    reach
        Cells that the correction acts on, boolean.
    device
        Where blocks live.
    """

    def __init__(self, model: BiasModel, reach: np.ndarray, device: Device = CPU) -> None:
        self._model = model
        self._reach = reach
        self._device = device
        self._like = to_device(np.zeros(1, np.float32), device)
        # Blocks follow in columns of a slab: their planes' tables are needed repeatedly. A cache of
        # one of its methods would keep a correction alive.
        n_tables = SLAB_PX // planes_at_once(device)
        self._factors = lru_cache(n_tables)(partial(_matching_table, model, device))
        n_planes = len(model.plane_gain)
        self._shares = Shares(model.section_starts, model.section_weights, n_planes)
        self._fields = Fields(
            model.cell_shape,
            model.section_cells,
            model.section_coefficients,
            model.global_coefficients,
        )

    def __reduce__(self) -> tuple[type[Correction], tuple[BiasModel, np.ndarray, Device]]:
        """For other processes, which have devices and tables of their own."""
        return Correction, (self._model, self._reach, self._device)

    def divisor(self, window: Box) -> Array:
        """Return what a block is divided by, but for the matching of histograms; float32."""
        share, gain = self._share(window), self._gain(window)
        return 1 / (1 + self._model.strength * share * (gain - 1))

    def apply(self, data: Array, window: Box) -> Array:
        """Return a corrected block (z, axis 1, axis 2), float32, on the device it came from."""
        share = self._share(window)
        if not share.any():
            return data
        gain = self._gain(window)
        gain *= self.matching(data, window)
        gain -= 1
        gain *= share
        gain *= np.float32(self._model.strength)
        gain += 1
        gain *= data
        return gain

    def matching(self, data: Array, window: Box) -> Array | np.float32:
        """Return the factors that give a block's planes the distribution of all."""
        if not self._model.plane_quantiles.size:
            return np.float32(1)
        return apply_factors(data, *self._factors(window[0].start, window[0].stop))

    def _places(self, window: Box) -> list[np.ndarray]:
        """Return where the voxels of a block lie, in cells."""
        s = self._model.shrink_factor
        return [(np.arange(part.start, part.stop) + 0.5) / s - 0.5 for part in window]

    def _gain(self, window: Box) -> Array:
        """Return the factors of planes and fields together."""
        weights = self._shares.at(window[0])
        xp = namespace(self._like)
        gain = xp.exp(-self._fields.log_values(self._places(window), weights, self._like))
        gain *= to_device(self._model.plane_gain[window[0], None, None], self._device)
        return gain

    def _share(self, window: Box) -> Array:
        """Return the share of the correction that each voxel gets, 0 to 1."""
        cells: list[slice] = []
        matrices = []
        for place, n in zip(self._places(window), self._reach.shape, strict=True):
            place = np.clip(place, 0, n - 1)
            low = np.minimum(place.astype(int), max(0, n - 2))
            first, last = int(low[0]), min(n, int(low[-1]) + 2)
            cells.append(slice(first, last))
            matrix = np.zeros((place.size, last - first), np.float32)
            rows = np.arange(place.size)
            matrix[rows, low - first] = 1 - (place - low)
            if n > 1:
                matrix[rows, low - first + 1] = place - low
            matrices.append(matrix)
        part = self._reach[tuple(cells)]
        xp = namespace(self._like)
        if part.all() or not part.any():
            return xp.full([len(m) for m in matrices], part.flat[0], np.float32)
        share = apply_axis_weights(to_device(part.astype(np.float32), self._device), matrices)
        return xp.minimum(share, 1)


def _matching_table(model: BiasModel, device: Device, start: int, stop: int) -> tuple[int, Array]:
    source = model.plane_quantiles[start:stop]
    first, factors = matching_factors(source, model.reference_quantiles, model.threshold)
    return first, to_device(factors, device)
