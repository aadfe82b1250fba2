"""Tissue mask of a brain as an NGFF label image, made from its pyramid."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from linumpy.brain.depth_parts import DepthParts
from linumpy.core.timeline import span
from linumpy.intensity.tissue import clean_mask, tissue_cells, trim_rim
from linumpy.io.omezarr import ImageWriter, Shape, Triple
from linumpy.io.pyramid import Box
from linumpy.stage_params.bias import BiasParams

NAME = "tissue"
CELL_UM = 50.0
MAX_CELLS = 1 << 25
"""Most cells that are held: 160 MB."""

THREADS = 8
"""Of a process, to write the mask: each takes up to 34 MB for a shard."""

_COLOUR = (255, 170, 0, 128)


def write_tissue_label(image: ImageWriter, processes: DepthParts | None = None) -> None:
    """Find the tissue of an image, and write it at every level.

    The mask is made from cells of about `CELL_UM`: the finest level that is at least as coarse,
    else the coarsest, shrunk by a power of two where that has more than `MAX_CELLS` voxels.

    Parameters
    ----------
    image
        With all levels written, and a ``valid`` mask.
    processes
        That write the mask; this one when None.
    """
    sizes = [max(voxel) for voxel, _ in image.levels]
    level = next((n for n, um in enumerate(sizes) if um >= CELL_UM), len(sizes) - 1)
    shape, shrink = image.arrays[level].shape, 1
    while np.prod([-(-n // shrink) for n in shape], dtype=float) > MAX_CELLS:
        shrink *= 2
    z, first, second = (v * shrink for v in image.levels[level][0])
    with span("read", "tissue mask"):
        cells = _read_cells(image.arrays[level], shrink, np.float32)
        known = _read_cells(image.valid_arrays[level], shrink, np.float16)
    with span("compute", "tissue mask"):
        tissue = tissue_cells(cells, known, BiasParams().threshold)
        tissue = clean_mask(trim_rim(tissue, cells), known)
    volume_mm3 = float(tissue.sum() * z * first * second * 1e-9)
    details = {
        "properties": [{"label-value": 1, "name": NAME, "volume_mm3": round(volume_mm3, 6)}],
        "colors": [{"label-value": 1, "rgba": list(_COLOUR)}],
    }
    arrays = zip(image.add_label(NAME, details), image.levels, strict=True)
    shards = [
        (array, voxel_um, window)
        for array, (voxel_um, _) in arrays
        for window in _shards(array.shape, array.shards)
    ]
    write = partial(_write_shard, tissue, (z, first, second))
    with span("write", "tissue mask"):
        (processes or DepthParts()).spread(write, shards, "tissue mask", threads=THREADS)


def _read_cells(array: Any, shrink: int, dtype: Any) -> np.ndarray:
    """Read an array shard by shard, shrunk to the means of so many voxels along each axis."""
    cells = np.zeros([-(-n // shrink) for n in array.shape], dtype)
    for window in _shards(array.shape, array.shards):
        data = array[window]
        if shrink > 1:
            from skimage.transform import downscale_local_mean

            data = downscale_local_mean(data, (shrink,) * 3)
        box = (
            slice(w.start // shrink, w.start // shrink + n)
            for w, n in zip(window, data.shape, strict=True)
        )
        cells[tuple(box)] = data
    return cells


def _write_shard(cells: np.ndarray, cell_um: Triple, shard: tuple[Any, Triple, Box]) -> None:
    """Write the cell around each voxel's centre; levels share a corner."""
    array, voxel_um, window = shard
    places = [
        np.minimum(((np.arange(side.start, side.stop) + 0.5) * voxel / cell).astype(int), n - 1)
        for side, voxel, cell, n in zip(window, voxel_um, cell_um, cells.shape, strict=True)
    ]
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
