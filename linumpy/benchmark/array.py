"""Create the benchmark's array: a synthetic mosaic grid in linumpy's storage layout."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

CODECS = ("zstd", "raw")
CHUNK_SIDE = 64
TILE_CHUNKS = (4, 8, 8)


def sample_shape(size_gib: float) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return shapes of a mosaic grid and of one tile, near `size_gib` GiB of float32.

    From 1 GiB a tile is 256 × 512 × 512; smaller grids have four smaller tiles, one chunk of
    64 × 64 × 64 each at least.
    """
    n_chunks = max(1, round(size_gib * 1024))
    tile = list(TILE_CHUNKS)
    while math.prod(tile) > 1 and 4 * math.prod(tile) > n_chunks:
        tile[tile.index(max(tile))] //= 2
    n_tiles = max(1, n_chunks // math.prod(tile))
    n_rows = math.isqrt(n_tiles)
    z, y, x = (CHUNK_SIDE * side for side in tile)
    return (z, y * n_rows, x * (n_tiles // n_rows)), (z, y, x)


def sample(shape: tuple[int, int, int], tile: tuple[int, int, int]) -> np.ndarray:
    """Return a mosaic grid of made-up values: 64 levels of noise on a decay along z; float32."""
    rng = np.random.default_rng(20261)
    depth = 1000 * np.exp(-np.arange(tile[0]) / 80)
    noise = rng.integers(0, 64, tile, dtype=np.uint16) * np.uint16(16)
    base = (noise + depth[:, None, None].astype(np.float32)).round()
    grid = np.empty(shape, np.float32)
    for row in range(shape[1] // tile[1]):
        for column in range(shape[2] // tile[2]):
            y, x = row * tile[1], column * tile[2]
            # No two tiles are the same, yet making them takes no time to speak of.
            grid[:, y : y + tile[1], x : x + tile[2]] = base + np.float32(3 * row + column)
    return grid


def create_array(
    path: Path,
    values: np.ndarray,
    chunks: tuple[int, ...],
    shards: tuple[int, ...] | None,
    codec: str,
) -> Any:
    """Create an array for `values`, in our codecs or raw."""
    import zarr
    from zarr.codecs import Crc32cCodec, ZstdCodec

    return zarr.create_array(
        path,
        shape=values.shape,
        dtype=values.dtype,
        chunks=chunks,
        shards=shards,
        compressors=[ZstdCodec(level=1), Crc32cCodec()] if codec == "zstd" else None,
        fill_value=0,
    )
