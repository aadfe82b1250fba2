"""Write pyramids: coarser levels, each straight from level 0 while its blocks are in memory.

Along each axis a level is a matrix times level 0 (`linumpy.geometry.resample`). So a cell of
level 0 adds a small product to each coarse shard that rests on it, and a shard is finished with
the last such cell. Nothing is read back, and only shards that are begun take memory.

A shard is the sum of what each band of level 0 gives, `BAND_PX` long along its first two axes, in
the order of the bands. So processes that have bands of their own give the same bits as one that has
all: each leaves its sums of a shard that also rests on another's bands in a file (`Pyramid.leave`),
from which one of them finishes the shard (`Pyramid.take`).
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import numpy as np

from linumpy.core.device import (
    CPU,
    Array,
    Device,
    is_device_array,
    namespace,
    to_device,
    to_host,
)
from linumpy.core.errors import InputError, LinumpyError
from linumpy.geometry.resample import HALF, apply_axis_weights, axis_band
from linumpy.io.omezarr import ImageWriter, Shape, Triple
from linumpy.io.slice_layout import SHARD_PX

BAND_PX = (SHARD_PX, 2 * SHARD_PX)
"""Planes and rows of level 0 that are summed up on their own."""

DEFAULT_RESOLUTIONS_UM = (10.0, 25.0, 50.0, 100.0)

Box = tuple[slice, slice, slice]

_Band = tuple[int, int]


class Part(NamedTuple):
    """Data that are ready to be written: ``array[window] = data``."""

    array: Any
    window: Box
    data: Array


def write_parts(parts: list[Part]) -> None:
    """Write parts, whole shards each, and let go of them; those on a GPU are encoded there."""
    on_gpu: dict[int, list[Part]] = {}
    while parts:
        part = parts.pop(0)
        if is_device_array(part.data):
            on_gpu.setdefault(id(part.array), []).append(part)
        else:
            part.array[part.window] = part.data
    for together in on_gpu.values():
        from linumpy.gpu.windows import write_windows

        windows = [part.window for part in together]
        write_windows(together[0].array, windows, [part.data for part in together])


def pyramid_levels(voxel_um: Triple, resolutions_um: Sequence[float]) -> list[Triple]:
    """Return the voxel sizes of the levels above level 0.

    Resolutions finer than level 0 along every axis are left out; along an axis that is already
    coarser than a level, the level keeps the axis as it is.
    """
    if any(not r > 0 for r in resolutions_um):
        raise InputError(
            f"pyramid_resolutions {list(resolutions_um)}: expected sizes in um above 0"
        )
    levels: list[Triple] = []
    for resolution in sorted(set(resolutions_um)):
        target = tuple(max(float(resolution), v) for v in voxel_um)
        if target != tuple(voxel_um):
            levels.append(target)  # type: ignore[arg-type]
    return levels


@dataclass(frozen=True)
class _Share:
    """What one cell gives to one coarse shard, along one axis: `weights` to `rows` of it."""

    shard: int
    rows: slice
    weights: np.ndarray


class _Axis:
    """One axis of a level: the shares of each cell, and the cells that each shard rests on."""

    def __init__(self, n: int, n_out: int, step: float, cell: int, shard: int) -> None:
        self.shares: list[list[_Share]] = [[] for _ in range(0, n, cell)]
        self.n_cells: list[int] = []
        for index, first in enumerate(range(0, n_out, shard)):
            low, band = axis_band(n, min(shard, n_out - first), step, first)
            begin, high = low // cell, -(-(low + band.shape[1]) // cell)
            # Whole cells: a matrix of all of the axis would be as long as the brain.
            matrix = np.zeros((len(band), min(n, high * cell) - begin * cell), np.float32)
            matrix[:, low - begin * cell :][:, : band.shape[1]] = band
            self.n_cells.append(0)
            for place in range(begin, high):
                part = matrix[:, (place - begin) * cell : (place + 1 - begin) * cell]
                used = np.flatnonzero(part.any(axis=1))
                if used.size:
                    rows = slice(int(used[0]), int(used[-1]) + 1)
                    # A copy: a view would keep the matrix alive.
                    self.shares[place].append(_Share(index, rows, part[rows].copy()))
                    self.n_cells[index] += 1

    def rows_of_bands(self, cells_a_band: int) -> dict[tuple[int, int], slice]:
        """Return the rows of each shard that rest on each band of so many cells."""
        found: dict[tuple[int, int], slice] = {}
        for place, shares in enumerate(self.shares):
            for share in shares:
                key, rows = (share.shard, place // cells_a_band), share.rows
                known = found.get(key, rows)
                first, stop = min(known.start, rows.start), max(known.stop, rows.stop)
                found[key] = slice(first, stop)
        return found


@dataclass
class _Shard:
    """A coarse shard that is begun.

    Attributes
    ----------
    n_cells
        Cells that have come.
    totals, lacks
        Weighted sum of the image, and weight of the voxels without data, by the band of level 0
        that they are of, for the planes and rows that rest on it; none for all 0.
    """

    n_cells: int = 0
    totals: dict[_Band, Array] = field(default_factory=dict)
    lacks: dict[_Band, Array] = field(default_factory=dict)


class _Level:
    """One coarser level: where its shards lie, and those that are begun."""

    def __init__(self, image: ImageWriter, voxel_um: Triple, cell: Shape) -> None:
        shape, base_um = image.spec.shape, image.spec.voxel_um
        steps = [target / base for target, base in zip(voxel_um, base_um, strict=True)]
        size = [max(1, int(n / s + 1e-6)) for n, s in zip(shape, steps, strict=True)]
        self.shape: Shape = (size[0], size[1], size[2])
        self.shards = image.spec.shards
        self.array = image.add_level(self.shape, voxel_um, image.spec.chunks, self.shards)
        self.valid = image.valid_arrays[-1] if image.valid is not None else None
        self.axes = [
            _Axis(*one) for one in zip(shape, self.shape, steps, cell, self.shards, strict=True)
        ]
        self.begun: dict[tuple[int, ...], _Shard] = {}
        self._cells_a_band = [max(1, px // side) for px, side in zip(BAND_PX, cell, strict=False)]
        self._rows = [
            axis.rows_of_bands(n) for axis, n in zip(self.axes, self._cells_a_band, strict=False)
        ]

    def shares(self, cell: Sequence[int]) -> Iterator[tuple[_Share, ...]]:
        """Return what a cell gives to each shard: one share an axis."""
        return itertools.product(*(axis.shares[k] for axis, k in zip(self.axes, cell, strict=True)))

    def window(self, key: Sequence[int]) -> Box:
        """Return the voxels of a shard."""
        first, second, third = (
            slice(k * side, min((k + 1) * side, n))
            for k, side, n in zip(key, self.shards, self.shape, strict=True)
        )
        return first, second, third

    def add(
        self,
        key: tuple[int, ...],
        cell: tuple[int, ...],
        rows: Box,
        total: Array | None,
        lack: Array | None,
    ) -> bool:
        """Add what one cell gives; whether the shard is finished."""
        shard = self.begun.setdefault(key, _Shard())
        band = (cell[0] // self._cells_a_band[0], cell[1] // self._cells_a_band[1])
        there = self._there(key, band)
        for sums, array in ((shard.totals, total), (shard.lacks, lack)):
            if array is None:
                continue
            if band not in sums:
                sums[band] = namespace(array).zeros([s.stop - s.start for s in there], np.float32)
            first, second = (
                slice(row.start - begin.start, row.stop - begin.start)
                for row, begin in zip(rows, there[:2], strict=False)
            )
            sums[band][first, second, rows[2]] += array
        shard.n_cells += 1
        return shard.n_cells == self.n_cells(key)

    def _there(self, key: Sequence[int], band: _Band) -> Box:
        """Return the voxels of a shard that rest on a band."""
        planes, rows = (self._rows[n][key[n], band[n]] for n in range(2))
        return planes, rows, slice(0, self.window(key)[2].stop - self.window(key)[2].start)

    def n_cells(self, key: Sequence[int]) -> int:
        """Return how many cells a shard rests on."""
        return prod(axis.n_cells[k] for axis, k in zip(self.axes, key, strict=True))

    def finish(self, key: tuple[int, ...]) -> Iterator[Part]:
        """Return a finished shard of image and mask, and forget it."""
        shard = self.begun.pop(key)
        total, lack = self._sum(key, shard.totals), self._sum(key, shard.lacks)
        if total is None:
            return
        yield Part(self.array, self.window(key), total)
        if self.valid is not None:
            mask = namespace(total).ones(total.shape, np.uint8)
            if lack is not None:
                mask = (lack <= 1 - HALF).astype(np.uint8)
            yield Part(self.valid, self.window(key), mask)

    def _sum(self, key: tuple[int, ...], bands: Mapping[_Band, Array]) -> Array | None:
        """Return the sum over all bands, in their order."""
        whole: Array | None = None
        for band, part in sorted(bands.items()):
            if whole is None:
                shape = [side.stop - side.start for side in self.window(key)]
                whole = namespace(part).zeros(shape, np.float32)
            whole[self._there(key, band)] += part
        return whole


class Pyramid:
    """The coarser levels of an image, growing while its level 0 passes by.

    Parameters
    ----------
    image
        Gets the levels, empty at first.
    resolutions_um
        Voxel sizes wanted.
    cell
        Voxels of level 0 that are worked on at a time, along each axis.
    device
        Where its blocks will live.
    each
        Applies a function to all items and returns the results in order: `map`, or that of a
        pool of threads. Sums are made in the order of the cells all the same.
    """

    def __init__(
        self,
        image: ImageWriter,
        resolutions_um: Sequence[float],
        cell: Shape,
        *,
        device: Device = CPU,
        each: Callable[..., Iterable[Any]] = map,
    ) -> None:
        self._cell = cell
        self._device = device
        self.each = each
        self._folder = image.path.with_name(f"{image.path.name}.shared")
        self._levels = [
            _Level(image, voxel_um, cell)
            for voxel_um in pyramid_levels(image.spec.voxel_um, resolutions_um)
        ]

    def add(self, window: Box, data: Array | None, valid: Array | None = None) -> list[Part]:
        """Add one block of level 0.

        Parameters
        ----------
        window
            Its voxels: whole cells, but for the image's far ends. Each cell is to come once.
        data
            Block (z, axis 1, axis 2), float32, 0 where there is no data; None if there is none
            at all.
        valid
            Its mask (uint8), on the same device; None if all of `data` count.

        Returns
        -------
        Shards of the coarser levels that are finished with it.
        """
        ranges = (
            range(part.start // side, -(-part.stop // side))
            for part, side in zip(window, self._cell, strict=True)
        )

        def products(cell: tuple[int, ...]) -> list[Any]:
            box = self._box(cell, window)
            return self._products(
                cell,
                None if data is None else data[box],
                None if valid is None else valid[box],
            )

        parts: list[Part] = []
        for given in self.each(products, itertools.product(*ranges)):
            for level, key, cell, rows, total, lack in given:
                if level.add(key, cell, rows, total, lack):
                    parts.extend(level.finish(key))
        return parts

    def leave(self) -> None:
        """Leave what is known of shards that also rest on other processes' bands in files."""
        for number, level in enumerate(self._levels):
            for key, shard in level.begun.items():
                self._folder.mkdir(exist_ok=True)
                kinds = {"total": shard.totals, "lack": shard.lacks}
                sums = {
                    f"{kind} {band[0]} {band[1]}": to_host(array)
                    for kind, of in kinds.items()
                    for band, array in of.items()
                }
                first = min(band for of in kinds.values() for band in of)
                name = " ".join(map(str, (number, *key, *first)))
                sums["n_cells"] = np.array(shard.n_cells)
                np.savez(self._folder / f"{name}.npz", **sums)  # type: ignore[arg-type]
            level.begun.clear()

    def shared(self) -> list[tuple[int, ...]]:
        """Return the shards that processes left sums of: level, and place among its shards."""
        found = (path.stem.split()[:-2] for path in self._folder.glob("*.npz"))
        return sorted({tuple(map(int, numbers)) for numbers in found})

    def take(self, shared: tuple[int, ...]) -> list[Part]:
        """Finish a shard from what all processes left of it.

        Raises
        ------
        LinumpyError
            When one has not left its part.
        """
        number, *place = shared
        level, key = self._levels[number], tuple(place)
        shard = level.begun[key] = _Shard()
        for path in self._folder.glob(" ".join(map(str, (*shared, "*.npz")))):
            with np.load(path, allow_pickle=False) as sums:
                shard.n_cells += int(sums["n_cells"])
                for name in sums.files:
                    kind, *band = name.split()
                    if kind != "n_cells":
                        of = shard.totals if kind == "total" else shard.lacks
                        of[int(band[0]), int(band[1])] = to_device(sums[name], self._device)
        if shard.n_cells != level.n_cells(key):
            raise LinumpyError(
                f"shard {key} of level {number + 1}: {shard.n_cells} of {level.n_cells(key)} "
                "cells have come"
            )
        return list(level.finish(key))

    def remove_shared(self) -> None:
        """Remove what `leave` left."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _box(self, cell: Sequence[int], window: Box) -> Box:
        """Return the voxels of a cell within a block."""
        first, second, third = (
            slice(k * side - w.start, min((k + 1) * side, w.stop) - w.start)
            for k, side, w in zip(cell, self._cell, window, strict=True)
        )
        return first, second, third

    def _products(
        self, cell: tuple[int, ...], data: Array | None, valid: Array | None
    ) -> list[tuple[_Level, tuple[int, ...], tuple[int, ...], Box, Array | None, Array | None]]:
        """Return what a cell adds to the shards of all levels."""
        missing = None if valid is None else valid == 0
        if missing is not None and not missing.any():
            missing = None
        elif missing is not None and missing.all():
            data = None
        if missing is not None and data is not None:
            missing = missing.astype(np.float32)
        found = []
        for level in self._levels:
            for shares in level.shares(cell):
                matrices = [share.weights for share in shares]
                total = None if data is None else apply_axis_weights(data, matrices)
                lack = None
                if data is None:
                    z, i, j = (matrix.sum(axis=1) for matrix in matrices)
                    lack = to_device(z[:, None, None] * i[:, None] * j, self._device)
                elif missing is not None:
                    lack = apply_axis_weights(missing, matrices)
                rows = tuple(share.rows for share in shares)
                key = tuple(share.shard for share in shares)
                found.append((level, key, cell, rows, total, lack))
        return found  # type: ignore[return-value]
