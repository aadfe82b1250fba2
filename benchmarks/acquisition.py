#!/usr/bin/env python
"""Make a mosaic grid of a given size, with content for every stage to measure.

Water noise lies above a bright, curved face; overlapping tiles show the same texture at the
places where they truly are, a pixel or two from where the stage says; a flat field shades them.
Values keep so few bits that zstd stores them in about 37 % of their size, as it does OCT.
"""

from __future__ import annotations

import argparse
import math
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.io.grid import GridInfo, GridTile, create_grid

VOXEL_UM = 5.0
OVERLAP_FRACTION = 0.2
SLICE_INTERVAL_UM = 200.0
STAGE_ERROR_PX = 2
WATER = 40.0
AGAROSE = 120.0
TISSUE = 450.0
FACE_SHARE = 0.2
CURVATURE_SHARE = 0.05
SHADING = 0.3
DECAY_SHARE = 0.35
# Bits of a float32's mantissa that are kept.
KEPT_BITS = 6
TILE_SHAPES = (
    (1.0, (256, 512, 512)),
    (1 / 4, (256, 256, 256)),
    (1 / 32, (128, 128, 128)),
    (0.0, (64, 64, 64)),
)


def tile_shape(size_gib: float) -> tuple[int, int, int]:
    """Return the voxels of a tile (z, axis 1, axis 2) of a grid of about `size_gib` GiB."""
    return next(shape for least, shape in TILE_SHAPES if size_gib >= least)


def grid_shape(n_tiles: int) -> tuple[int, int]:
    """Return rows and columns, as square as so many tiles allow."""
    rows = next(n for n in range(math.isqrt(n_tiles), 0, -1) if n_tiles % n == 0)
    return rows, n_tiles // rows


def n_tiles(size_gib: float) -> int:
    """Return how many tiles make `size_gib` GiB of float32: a power of two, four at least."""
    wanted = size_gib * 2**30 / (4 * math.prod(tile_shape(size_gib)))
    return max(4, 2 ** round(math.log2(max(wanted, 1))))


@dataclass(frozen=True)
class Truth:
    """What the content was made from.

    Attributes
    ----------
    corners_px
        Where tiles truly lie, shape (n_tiles, 2), pixels.
    curvature_px
        How much deeper each A-line of a tile shows the face than its middle does, voxels.
    flat_field
        Shading of a tile.
    """

    corners_px: np.ndarray
    curvature_px: np.ndarray
    flat_field: np.ndarray


class Content:
    """Tiles of a made-up slice; any one can be made alone, from any thread.

    Parameters
    ----------
    shape
        Voxels of a tile (z, axis 1, axis 2).
    grid
        Rows and columns of tiles.
    seed
        Of everything random.
    """

    def __init__(self, shape: tuple[int, int, int], grid: tuple[int, int], seed: int = 1) -> None:
        self.shape, self.grid = shape, grid
        rng = np.random.default_rng(seed)
        self._rng_seed = seed
        lateral = np.array(shape[1:])
        index = np.stack(np.meshgrid(*map(np.arange, grid), indexing="ij"), -1).reshape(-1, 2)
        self.nominal_px = index * lateral * (1 - OVERLAP_FRACTION)
        wobble = rng.integers(-STAGE_ERROR_PX, STAGE_ERROR_PX + 1, index.shape)
        corners = np.rint(self.nominal_px).astype(int) + wobble
        self._world_corner = corners - corners.min(axis=0)
        u1, u2 = np.meshgrid(*(np.linspace(-1, 1, n) for n in shape[1:]), indexing="ij")
        radius = (u1**2 + u2**2) / 2
        self.truth = Truth(
            corners_px=corners.astype(float),
            curvature_px=(CURVATURE_SHARE * shape[0] * radius).astype(np.float32),
            flat_field=(1 - SHADING * radius).astype(np.float32),
        )
        canvas = self._world_corner.max(axis=0) + lateral
        self._texture, self._face = _world(rng, tuple(canvas), shape[0])
        # Amplitude of speckle follows Rayleigh's distribution; its mean is 1 here.
        plane = shape[1] * shape[2]
        self._speckle = rng.rayleigh(math.sqrt(2 / math.pi), 4 * plane + (1 << 20)).astype("f4")

    @property
    def info(self) -> GridInfo:
        """The grid's geometry, with the positions that the stage reports."""
        fov_um = tuple(n * VOXEL_UM for n in self.shape[1:])
        centre_mm = (self.nominal_px * VOXEL_UM + np.array(fov_um) / 2) / 1e3
        rows, columns = self.grid
        tiles = tuple(
            GridTile(n // columns, n % columns, float(x), float(y))
            for n, (x, y) in enumerate(centre_mm[: rows * columns])
        )
        return GridInfo(
            slice_id=1,
            tile_shape_px=self.shape,
            voxel_um=(VOXEL_UM,) * 3,
            overlap_fraction=OVERLAP_FRACTION,
            tiles=tiles,
            tile_fov_um=(fov_um[0], fov_um[1]),
            slice_interval_um=SLICE_INTERVAL_UM,
        )

    def tile(self, number: int) -> np.ndarray:
        """Return a tile, float32 (z, axis 1, axis 2)."""
        depth, *lateral = self.shape
        low = self._world_corner[number]
        window = tuple(slice(a, a + n) for a, n in zip(low, lateral, strict=True))
        face = self._face[window] + self.truth.curvature_px
        decay = DECAY_SHARE * depth
        brightness = self._texture[window] * self.truth.flat_field * np.exp(face / decay)
        brightness = brightness.astype(np.float32)
        out = np.empty(self.shape, np.float32)
        plane = out[0].size
        rng = np.random.default_rng((self._rng_seed, number))
        starts = rng.integers(0, self._speckle.size - plane, (depth, 2))
        share, noise = np.empty_like(out[0]), np.empty_like(out[0])
        for z in range(depth):
            first, second = (self._speckle[s : s + plane].reshape(out[0].shape) for s in starts[z])
            np.subtract(z + 0.5, face, out=share)
            np.clip(share, 0, np.exp(-z / decay), out=share)
            share *= brightness
            share *= first
            np.multiply(second, WATER, out=noise)
            np.add(share, noise, out=out[z])
        out.view(np.uint32)[...] &= np.uint32(0xFFFFFFFF << (23 - KEPT_BITS) & 0xFFFFFFFF)
        return out


def _world(
    rng: np.random.Generator, canvas: tuple[int, ...], depth: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return brightness and face depth (voxels) of the tissue at each pixel of the slice."""
    from scipy.ndimage import gaussian_filter, zoom

    def smooth(cells: int) -> np.ndarray:
        coarse = rng.standard_normal([max(4, -(-n // cells)) for n in canvas])
        fine = zoom(coarse, [n / m for n, m in zip(canvas, coarse.shape, strict=True)], order=1)
        return fine / fine.std()

    grain = gaussian_filter(rng.standard_normal(canvas), 1.5)
    tissue = 1 / (1 + np.exp(-4 * smooth(200)))
    texture = np.exp(0.35 * grain / grain.std() + 0.2 * smooth(25))
    brightness = (AGAROSE + TISSUE * tissue) * texture
    face = FACE_SHARE * depth + 0.006 * depth * smooth(150)
    return brightness.astype(np.float32), face.astype(np.float32)


def write_grid(path: Path, content: Content) -> None:
    """Write a grid in our layout, tiles in threads."""
    info = content.info
    with create_grid(path, info, overwrite=True) as grid:

        def write(number: int) -> None:
            tile = info.tiles[number]
            grid.write_tile(tile.ix, tile.iy, content.tile(number))

        _in_threads(write, len(info.tiles))


def write_foreign_grid(path: Path, content: Content) -> None:
    """Write a grid as others do: Zarr v2, OME-Zarr 0.4, one zstd chunk a tile, no positions."""
    import numcodecs
    import zarr

    info = content.info
    group = zarr.create_group(path, zarr_format=2, overwrite=True)
    axes = [{"name": name, "type": "space", "unit": "micrometer"} for name in "zyx"]
    scale = [{"type": "scale", "scale": list(info.voxel_um)}]
    datasets = [{"path": "0", "coordinateTransformations": scale}]
    multiscales: Any = [{"version": "0.4", "axes": axes, "datasets": datasets}]
    group.attrs["multiscales"] = multiscales
    array = group.create_array(
        "0",
        shape=info.shape,
        chunks=info.tile_shape_px,
        dtype="f4",
        compressors=numcodecs.Zstd(level=1),
        fill_value=0,
        chunk_key_encoding={"name": "v2", "separator": "/"},
    )

    def write(number: int) -> None:
        tile = info.tiles[number]
        window = tuple(
            slice(k * n, (k + 1) * n)
            for k, n in zip((0, tile.ix, tile.iy), info.tile_shape_px, strict=True)
        )
        array[window] = content.tile(number)

    _in_threads(write, len(info.tiles))


def _in_threads(work: Any, count: int) -> None:
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(work, range(count)))


def main() -> None:
    """Make a grid."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, help="grid to write (*.ome.zarr)")
    parser.add_argument("--size", type=float, default=4.0, help="GiB, as float32 (default: 4)")
    parser.add_argument("--tiles", type=int, help="so many tiles of that size's shape instead")
    parser.add_argument("--whole_tile_chunks", action="store_true", help="write as others do")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    count = args.tiles or n_tiles(args.size)
    content = Content(tile_shape(args.size), grid_shape(count), args.seed)
    (write_foreign_grid if args.whole_tile_chunks else write_grid)(args.output, content)


if __name__ == "__main__":
    main()
