#!/usr/bin/env python
"""Plain reference implementation: Zarr, NumPy and scipy.ndimage, tile by tile, one process.

What a scientist in a hurry would write, and no worse: nothing is read twice without need, all
loops over pixels are vectorised, float32 stays float32. Outputs have the layout, the codecs and
the masks of linumpy's, so that both encode and write the same bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec

INTERFACE_BOX_PX = 3
INTERFACE_SIGMA_PX = 2.0
TARGET_UM = 10.0
DEPTH_UM = 600.0
UPPER_PERCENTILE = 99.9
SCALE_QUANTILE = 0.9


class Grid:
    """A mosaic grid: array and the geometry in its metadata."""

    def __init__(self, path: Path) -> None:
        group = zarr.open_group(path, mode="r")
        self.attributes: dict[str, Any] = dict(group.attrs)
        self.info = dict(self.attributes["linumpy"])
        self.array: Any = group["0"]
        self.tile_shape = tuple(self.info["tile_shape_px"])
        self.voxel_um = self.info["voxel_um"][0]
        self.keys = [(tile["ix"], tile["iy"]) for tile in self.info["tiles"]]

    def tiles(self) -> Iterator[tuple[tuple[int, int], np.ndarray]]:
        """Yield every tile with its place in the grid."""
        for key in self.keys:
            yield key, self.array[window(key, self.tile_shape)]

    def corners_px(self, voxel_um: float) -> np.ndarray:
        """Return where the stage put the tiles, in whole pixels of a size, from the lowest."""
        centre = np.array([[t["stage_x_mm"], t["stage_y_mm"]] for t in self.info["tiles"]])
        corners = np.rint(centre * 1e3 / voxel_um).astype(int)
        return corners - corners.min(axis=0)


def window(key: tuple[int, int], shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Return where a tile lies in the grid's array."""
    _, t1, t2 = shape
    return (
        slice(None),
        slice(key[0] * t1, (key[0] + 1) * t1),
        slice(key[1] * t2, (key[1] + 1) * t2),
    )


def create(
    path: Path, shape: tuple[int, ...], chunks: tuple[int, ...], shards: tuple[int, ...]
) -> tuple[Any, Any]:
    """Create an image and its mask with the codecs of linumpy."""
    group = zarr.create_group(path, overwrite=True)

    def array(name: str, dtype: str) -> Any:
        return group.create_array(
            name,
            shape=shape,
            dtype=dtype,
            chunks=chunks,
            shards=shards,
            compressors=[ZstdCodec(level=1), Crc32cCodec()],
            fill_value=0,
        )

    return array("0", "f4"), array("labels/valid/0", "u1")


def create_grid(path: Path, grid: Grid, tile_shape: tuple[int, ...]) -> Any:
    """Create a grid of as many tiles of another shape."""
    rows, columns = (1 + max(k[axis] for k in grid.keys) for axis in (0, 1))
    shape = (tile_shape[0], rows * tile_shape[1], columns * tile_shape[2])
    chunks = tuple(64 if n % 64 == 0 else n for n in tile_shape)
    return create(path, shape, chunks, tile_shape)


def flush(path: Path) -> None:
    """Wait until everything is on the disk, as linumpy does before it shows an output."""
    for file in path.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)


def aip(source: Path, output: Path) -> None:
    """Write the mean over depth of every tile."""
    grid = Grid(source)
    shape = (1, *grid.tile_shape[1:])
    image, mask = create_grid(output, grid, shape)
    for key, tile in grid.tiles():
        image[window(key, shape)] = tile.mean(axis=0)[None]
        mask[window(key, shape)] = 1


def shrink(tile: np.ndarray, factor: float) -> np.ndarray:
    """Resample a tile: smoothed against aliasing, then linear."""
    from scipy.ndimage import gaussian_filter, zoom

    smooth = gaussian_filter(tile, (factor - 1) / 2, mode="mirror")
    return zoom(smooth, 1 / factor, order=1, mode="mirror", grid_mode=True)


def resample(source: Path, output: Path) -> None:
    """Bring a grid to the working resolution."""
    grid = Grid(source)
    factor = TARGET_UM / grid.voxel_um
    shape = tuple(int(n / factor) for n in grid.tile_shape)
    image, mask = create_grid(output, grid, shape)
    for key, tile in grid.tiles():
        image[window(key, shape)] = shrink(tile, factor)
        mask[window(key, shape)] = 1


def interface(volume: np.ndarray) -> np.ndarray:
    """Return the depth of the steepest rise of brightness in every A-line, voxels."""
    from scipy.ndimage import gaussian_filter1d, uniform_filter

    smooth = uniform_filter(np.log(np.maximum(volume, 1)), (1, INTERFACE_BOX_PX, INTERFACE_BOX_PX))
    return gaussian_filter1d(smooth, INTERFACE_SIGMA_PX, axis=0, order=1).argmax(axis=0)


def smooth_surface(depth: np.ndarray) -> np.ndarray:
    """Fit a quadratic surface to the mean interface of the tiles; mean 0."""
    u, v = np.meshgrid(*(np.linspace(-1, 1, n) for n in depth.shape), indexing="ij")
    terms = np.stack([np.ones_like(u), u, v, u * u, u * v, v * v], axis=-1).reshape(-1, 6)
    fit = np.linalg.lstsq(terms, depth.ravel(), rcond=None)[0]
    surface = (terms @ fit).reshape(depth.shape)
    return (surface - surface.mean()).astype(np.float32)


def flatten(tile: np.ndarray, surface: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Move every A-line up by the surface, linearly interpolated; answer the mask too."""
    whole = np.floor(surface)
    fraction = surface - whole
    low = np.arange(len(tile))[:, None, None] + whole.astype(int)
    inside = (low >= 0) & (low + 1 < len(tile))
    low = np.clip(low, 0, len(tile) - 2)
    moved = (1 - fraction) * np.take_along_axis(tile, low, axis=0)
    moved += fraction * np.take_along_axis(tile, low + 1, axis=0)
    moved[~inside] = 0
    return moved, inside.astype(np.uint8)


def focal(source: Path, output: Path) -> None:
    """Correct the focal curvature of a grid: one pass to measure, one to correct."""
    grid = Grid(source)
    surface = smooth_surface(np.mean([interface(tile) for _, tile in grid.tiles()], axis=0))
    image, mask = create_grid(output, grid, grid.tile_shape)
    for key, tile in grid.tiles():
        moved, inside = flatten(tile, surface)
        image[window(key, grid.tile_shape)] = moved
        mask[window(key, grid.tile_shape)] = inside


def fused(source: Path, output: Path) -> None:
    """Make a slice of a grid; positions are the stage's, and models the tiles' plain means."""
    grid = Grid(source)
    factor = TARGET_UM / grid.voxel_um
    tiles = [shrink(tile, factor) for _, tile in grid.tiles()]
    start = time.perf_counter()
    depth = np.mean([interface(tile) for tile in tiles], axis=0)
    surface = smooth_surface(depth)
    learning = time.perf_counter() - start
    masks = []
    flat = np.zeros(surface.shape, np.float32)
    for number, tile in enumerate(tiles):
        tiles[number], inside = flatten(tile, surface)
        masks.append(inside)
        flat += tiles[number].mean(axis=0)
    flat /= flat.mean()
    for tile in tiles:
        tile /= flat
    mosaic = [tile.mean(axis=0) for tile in tiles]
    np.save(output.with_suffix(".aip.npy"), mosaic)
    overlap = grid.info["overlap_fraction"]
    volume, valid = stitch(tiles, masks, grid.corners_px(TARGET_UM), overlap)
    del tiles, masks
    # All faces lie at their mean depth by now.
    top = round(depth.mean())
    stop = top + round(DEPTH_UM / TARGET_UM)
    volume, valid = volume[top:stop], valid[top:stop]
    normalize(volume, valid)
    image, mask = create(output, volume.shape, (64, 64, 64), (256, 256, 256))
    image[...] = volume
    mask[...] = valid
    print(json.dumps({"learning_s": learning}))


def stitch(
    tiles: list[np.ndarray], masks: list[np.ndarray], corners: np.ndarray, overlap: float
) -> tuple[np.ndarray, np.ndarray]:
    """Blend tiles at whole pixels, with weights that rise linearly over the overlap."""
    depth, *lateral = tiles[0].shape
    shape = (depth, *(corners.max(axis=0) + lateral))
    total, weights = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    ramps = []
    for n in lateral:
        distance = np.minimum(np.arange(n) + 0.5, n - np.arange(n) - 0.5)
        ramps.append(np.minimum(distance / (overlap * n), 1))
    weight = (ramps[0][:, None] * ramps[1]).astype(np.float32)
    for tile, mask, (row, column) in zip(tiles, masks, corners, strict=True):
        place = (
            slice(None),
            slice(row, row + lateral[0]),
            slice(column, column + lateral[1]),
        )
        part = weight * mask
        total[place] += tile * part
        weights[place] += part
    valid = weights > 0
    np.divide(total, weights, out=total, where=valid)
    return total, valid.astype(np.uint8)


def normalize(volume: np.ndarray, valid: np.ndarray) -> None:
    """Clip each plane between its agarose and an upper percentile; tissue becomes 0 to 1."""
    from scipy.ndimage import gaussian_filter

    projection = gaussian_filter(volume.mean(axis=0), 1)
    agarose = projection < (projection.min() + projection.max()) / 2
    floors, spans = [], []
    for plane, there in zip(volume, valid > 0, strict=True):
        floor = np.median(plane[there & agarose]) if (there & agarose).any() else 0
        cap = max(np.percentile(plane[there], UPPER_PERCENTILE), floor) if there.any() else floor
        np.clip(plane, floor, cap, out=plane)
        plane -= floor
        plane[~there] = 0
        floors.append(floor)
        spans.append(cap - floor)
    volume /= max(np.quantile(spans, SCALE_QUANTILE), 1e-6)


STAGES = {"aip": aip, "resample": resample, "focal": focal, "fused": fused}


def main() -> None:
    """Run one stage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("input", type=Path, help="mosaic grid")
    parser.add_argument("output", type=Path, help="Zarr folder to write; replaced if there")
    args = parser.parse_args()
    shutil.rmtree(args.output, ignore_errors=True)
    STAGES[args.stage](args.input, args.output)
    flush(args.output)


if __name__ == "__main__":
    main()
