"""Tissue mask of a brain as an NGFF label image, made while its pyramid is written."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from linumpy.core.device import to_host
from linumpy.intensity.tissue import clean_mask, tissue_cells, trim_rim
from linumpy.io.omezarr import ImageWriter, Shape, Triple
from linumpy.io.pyramid import Box, Part
from linumpy.stage_params.bias import BiasParams

NAME = "tissue"
CELL_UM = 50.0
MAX_CELLS = 1 << 25
"""Most cells that are held: 160 MB."""

_COLOUR = (255, 170, 0, 128)


class TissueLabel:
    """The tissue mask of an image that is being written, with its pyramid.

    The mask is made from cells of about `CELL_UM`: the finest level that is at least as coarse,
    else the coarsest, shrunk by a power of two where that has more than `MAX_CELLS` voxels.

    Parameters
    ----------
    image
        With all levels added and a ``valid`` mask.
    """

    def __init__(self, image: ImageWriter) -> None:
        self._image = image
        sizes = [max(voxel) for voxel, _ in image.levels]
        level = next((n for n, um in enumerate(sizes) if um >= CELL_UM), len(sizes) - 1)
        self._data, self._valid = image.arrays[level], image.valid_arrays[level]
        shape = self._data.shape
        self._shrink = 1
        while np.prod([-(-n // self._shrink) for n in shape], dtype=float) > MAX_CELLS:
            self._shrink *= 2
        z, first, second = (v * self._shrink for v in image.levels[level][0])
        self._cell_um = (z, first, second)
        cells = [-(-n // self._shrink) for n in shape]
        self._cells = np.zeros(cells, np.float32)
        self._known = np.zeros(cells, np.float16)

    def add(self, parts: Iterable[Part]) -> None:
        """Keep what belongs to the level that the mask is made from; whole shards, as written."""
        for part in parts:
            if part.array is self._data:
                self._keep(self._cells, part)
            elif part.array is self._valid:
                self._keep(self._known, part)

    def _keep(self, cells: np.ndarray, part: Part) -> None:
        data = to_host(part.data)
        if self._shrink > 1:
            from skimage.transform import downscale_local_mean

            data = downscale_local_mean(data, (self._shrink,) * 3)
        begins = (side.start // self._shrink for side in part.window)
        box = (slice(b, b + n) for b, n in zip(begins, data.shape, strict=True))
        cells[tuple(box)] = data

    def write(self) -> None:
        """Find the tissue, and write it at every level of the image."""
        tissue = tissue_cells(self._cells, self._known, BiasParams().threshold)
        tissue = clean_mask(trim_rim(tissue, self._cells), self._known)
        volume_mm3 = float(tissue.sum() * np.prod(self._cell_um) * 1e-9)
        details = {
            "properties": [{"label-value": 1, "name": NAME, "volume_mm3": round(volume_mm3, 6)}],
            "colors": [{"label-value": 1, "rgba": list(_COLOUR)}],
        }
        for array, (voxel_um, _) in zip(
            self._image.add_label(NAME, details), self._image.levels, strict=True
        ):
            _write_level(array, voxel_um, tissue, self._cell_um)


def _write_level(array: Any, voxel_um: Triple, cells: np.ndarray, cell_um: Triple) -> None:
    """Write the cell around each voxel's centre, one shard at a time; levels share a corner."""
    nearest = [
        np.minimum(((np.arange(n) + 0.5) * voxel / cell).astype(int), n_cells - 1)
        for n, voxel, cell, n_cells in zip(array.shape, voxel_um, cell_um, cells.shape, strict=True)
    ]
    for window in _shards(array.shape, array.shards):
        places = [index[side] for index, side in zip(nearest, window, strict=True)]
        inside = cells[tuple(slice(place[0], place[-1] + 1) for place in places)]
        # Chunks that are 0 throughout are not stored.
        if inside.any():
            for axis, place in enumerate(places):
                inside = inside.take(place - place[0], axis)
            array[window] = inside.view(np.uint8)


def _shards(shape: Shape, sides: Shape) -> Iterator[Box]:
    for first in itertools.product(*(range(0, n, s) for n, s in zip(shape, sides, strict=True))):
        z, i, j = (slice(a, min(a + s, n)) for a, s, n in zip(first, sides, shape, strict=True))
        yield z, i, j
