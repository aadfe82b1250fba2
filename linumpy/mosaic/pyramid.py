"""Pyramids: coarser levels, each straight from level 0, written shard by shard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from linumpy.device import CPU, Device, to_device, to_host
from linumpy.errors import InputError
from linumpy.geometry.resample import apply_axis_weights, axis_weights
from linumpy.io.omezarr import ImageWriter, Triple
from linumpy.slices.layout import CHUNK_PX, SHARD_PX

DEFAULT_RESOLUTIONS_UM = (10.0, 25.0, 50.0, 100.0)


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


def write_pyramid(
    image: ImageWriter, resolutions_um: Sequence[float], *, device: Device = CPU
) -> None:
    """Write the coarser levels of an image whose level 0 is complete.

    Parameters
    ----------
    image
        Its level 0 is read a shard's worth at a time; memory stays the same however large it is.
    resolutions_um
        Voxel sizes wanted.
    """
    shape = image.array.shape
    for voxel_um in pyramid_levels(image.spec.voxel_um, resolutions_um):
        step = [target / base for target, base in zip(voxel_um, image.spec.voxel_um, strict=True)]
        size = tuple(max(1, int(n / s + 1e-6)) for n, s in zip(shape, step, strict=True))
        image.add_level(
            size,  # type: ignore[arg-type]
            voxel_um,
            image.spec.chunks,
            image.spec.shards,
        )
        for z in range(0, size[0], SHARD_PX):
            for i in range(0, size[1], SHARD_PX):
                for j in range(0, size[2], SHARD_PX):
                    start = (z, i, j)
                    stop = tuple(min(s + SHARD_PX, n) for s, n in zip(start, size, strict=True))
                    window = tuple(map(slice, start, stop))
                    image.arrays[-1][window] = _shard(image.array, step, start, stop, device)
                    if image.valid is not None:
                        share = _shard(image.valid, step, start, stop, device)
                        image.valid_arrays[-1][window] = (share >= 0.5).astype(np.uint8)


def _shard(
    array: Any,
    step: Sequence[float],
    start: tuple[int, ...],
    stop: tuple[int, ...],
    device: Device,
) -> np.ndarray:
    """Resample one shard in layers of a chunk's height, which bounds what is read at once."""
    out = np.empty([b - a for a, b in zip(start, stop, strict=True)], np.float32)
    lateral = [_needed(array.shape[a], start[a], stop[a], step[a]) for a in (1, 2)]
    for z in range(start[0], stop[0], CHUNK_PX):
        end = min(z + CHUNK_PX, stop[0])
        depth = _needed(array.shape[0], z, end, step[0])
        windows = [depth[0], lateral[0][0], lateral[1][0]]
        matrices = [depth[1], lateral[0][1], lateral[1][1]]
        block = to_device(np.asarray(array[tuple(windows)], np.float32), device)
        out[z - start[0] : end - start[0]] = to_host(apply_axis_weights(block, matrices))
    return out


def _needed(n: int, start: int, stop: int, step: float) -> tuple[slice, np.ndarray | None]:
    """Return the input range that outputs ``start … stop − 1`` rest on, and their matrix."""
    if step == 1:
        return slice(start, stop), None
    weights = axis_weights(n, stop - start, step, start)
    used = np.flatnonzero(weights.any(axis=0))
    window = slice(int(used[0]), int(used[-1]) + 1)
    return window, weights[:, window]
