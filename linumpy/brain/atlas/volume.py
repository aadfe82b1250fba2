"""Load brain and atlas at the voxel size of the registration."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from linumpy.core.device import Array, namespace, to_host
from linumpy.core.errors import InputError
from linumpy.geometry.resample import HALF, apply_axis_weights, resample_masked, resampling_matrices
from linumpy.io.atlas import Atlas
from linumpy.io.omezarr import Image, Triple

MAX_VOXELS = 24 * 2**20
"""Voxels of brain or atlas that are held in memory at once."""

_SLAB_BYTES = 256 * 2**20
_SAME = 1.01
_TOP = 99.5
_SAMPLES = 4_000_000


@dataclass(frozen=True)
class Volume:
    """A volume in memory, with where it lies.

    Attributes
    ----------
    data
        float32 (z, axis 1, axis 2), 0 outside the valid voxels.
    valid
        uint8 of the same shape.
    index_to_um
        4 × 4, from voxel indices to the volume's own world, um, both in the order of axes.
    """

    data: Array
    valid: Array
    index_to_um: np.ndarray

    @property
    def voxel_um(self) -> Triple:
        """Voxel size along each axis."""
        sides = np.linalg.norm(self.index_to_um[:3, :3], axis=0)
        return tuple(float(side) for side in sides)  # type: ignore[return-value]

    def coarser(self, target_um: float) -> Volume:
        """Return the volume resampled to a voxel side; axes that are coarser already stay."""
        target = [max(target_um, v) for v in self.voxel_um]
        matrices = resampling_matrices(self.data.shape, self.voxel_um, target)
        if all(matrix is None for matrix in matrices):
            return self
        xp = namespace(self.data)
        data, valid = resample_masked(self.data, self.valid, matrices)
        return Volume(
            xp.ascontiguousarray(data),
            xp.ascontiguousarray(valid),
            self.index_to_um @ _new_index(self.voxel_um, target),
        )


def _new_index(voxel_um: Sequence[float], target_um: Sequence[float]) -> np.ndarray:
    """Return the map from indices after a resampling to those before."""
    step = np.asarray(target_um) / np.asarray(voxel_um)
    matrix = np.diag([*step, 1.0])
    matrix[:3, 3] = (step - 1) / 2
    return matrix


def grid_affine(voxel_um: Sequence[float], centre_um: Sequence[float]) -> np.ndarray:
    """Return the map from indices to um of a grid along the axes, voxel 0 centred at a point."""
    matrix = np.diag([*(float(v) for v in voxel_um), 1.0])
    matrix[:3, 3] = centre_um
    return matrix


def working_voxel_um(image: Image, atlas: Atlas, level: int) -> float:
    """Return the voxel side to register at.

    Parameters
    ----------
    image
        The brain.
    atlas
        The atlas.
    level
        Pyramid level of the brain whose voxels are wanted; −1 for those of the atlas.

    Returns
    -------
    The coarser of the two voxels, made coarser yet until both volumes fit in memory, um.

    Raises
    ------
    InputError
        When the brain has no such level.
    """
    if level >= len(image.arrays):
        raise InputError(
            f"--allen_registration_level {level}: {image.path} has levels 0 to "
            f"{len(image.arrays) - 1}"
        )
    wanted = max(max(image.level_scales_um[max(level, 0)]), min(atlas.voxel_um))
    for shape, voxel in ((image.array.shape, image.voxel_um), (atlas.data.shape, atlas.voxel_um)):
        extent = math.prod(n * v for n, v in zip(shape, voxel, strict=True))
        wanted = max(wanted, (extent / MAX_VOXELS) ** (1 / 3))
    return wanted


def read_brain(image: Image, target_um: float) -> Volume:
    """Read a brain at a voxel side, from the coarsest level that is fine enough.

    Raises
    ------
    InputError
        When it holds nothing but one value, or numbers that are not finite.
    """
    level = 0
    for number, scale in enumerate(image.level_scales_um):
        if max(scale) <= target_um * _SAME:
            level = number
    array, voxel_um = image.arrays[level], image.level_scales_um[level]
    mask = _valid_level(image, level)

    def read(planes: slice) -> tuple[np.ndarray, np.ndarray | None]:
        return np.asarray(array[planes]), None if mask is None else np.asarray(mask[planes])

    data, valid, affine = _read(read, array.shape, voxel_um, target_um)
    if not np.isfinite(data).all():
        raise InputError(f"{image.path}: holds numbers that are not finite")
    if not valid.any() or data.min() == data.max():
        raise InputError(f"{image.path}: every voxel is the same; expected an image of a brain")
    placed = grid_affine(voxel_um, image.level_translations_um[level])
    return Volume(data, valid, placed @ affine)


def _valid_level(image: Image, level: int) -> Any | None:
    if image.valid is None:
        return None
    import zarr

    from linumpy.io.zarr_io import zarr_context
    from linumpy.store.remote import storage

    with zarr_context():
        group = zarr.open_group(storage(image.path), mode="r")
        name = f"labels/valid/{level}"
        return group.get(name)


def read_atlas_volume(atlas: Atlas, target_um: float) -> Volume:
    """Return an atlas at a voxel side; all of it is valid."""

    def read(planes: slice) -> tuple[np.ndarray, None]:
        return np.asarray(atlas.data[planes]), None

    data, valid, affine = _read(read, atlas.data.shape, atlas.voxel_um, target_um)
    return Volume(data, valid, atlas.index_to_um @ affine)


def _read(
    read: Callable[[slice], tuple[np.ndarray, np.ndarray | None]],
    shape: Sequence[int],
    voxel_um: Sequence[float],
    target_um: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Resample a volume slab by slab.

    Returns
    -------
    Data, mask, and the map from the new indices to the old ones.
    """
    target = [max(target_um, v) if target_um > v * _SAME else v for v in voxel_um]
    depth, *lateral = resampling_matrices(shape, voxel_um, target)
    n_out = shape[0] if depth is None else len(depth)
    sides = [n if m is None else len(m) for n, m in zip(shape[1:], lateral, strict=True)]
    out, keep = np.empty((n_out, *sides), np.float32), np.empty((n_out, *sides), np.uint8)
    planes = max(4, _SLAB_BYTES // (4 * math.prod(shape[1:])))
    step = max(1, int(planes * voxel_um[0] / target[0]))
    for start in range(0, n_out, step):
        stop = min(start + step, n_out)
        first, last, part = start, stop, None
        if depth is not None:
            used = np.flatnonzero(depth[start:stop].any(axis=0))
            first, last = int(used[0]), int(used[-1]) + 1
            part = depth[start:stop, first:last]
        data, valid = read(slice(first, last))
        data = data.astype(np.float32)
        if valid is None or valid.all():
            out[start:stop] = apply_axis_weights(data, [part, *lateral])
            keep[start:stop] = 1
        else:
            out[start:stop], keep[start:stop] = resample_masked(data, valid, [part, *lateral])
    return out, keep, _new_index(voxel_um, target)


def contrast(volume: Volume) -> Volume:
    """Return a volume scaled so that the background is 0 and bright tissue 1.

    The background is the median of what Otsu's threshold takes for it; the 99.5th percentile of
    the rest becomes 1.
    """
    xp = namespace(volume.data)
    values = to_host(volume.data[volume.valid > 0])
    # A regular sample will do for the two levels.
    values = values[:: max(1, values.size // _SAMPLES)]
    low, high = tissue_window(values)
    data = xp.clip((volume.data - np.float32(low)) / np.float32(high - low), 0, 1)
    data *= volume.valid > 0
    return replace(volume, data=data.astype(xp.float32))


def tissue_window(values: np.ndarray) -> tuple[float, float]:
    """Return the level of the background and that of bright tissue."""
    from skimage.filters import threshold_otsu

    # Bright outliers must not pull the threshold away from tissue.
    top = float(np.percentile(values, _TOP))
    limited = np.minimum(values, top)
    threshold = threshold_otsu(limited)
    below, above = values[values < threshold], values[values >= threshold]
    low = float(np.median(below)) if below.size else float(values.min())
    high = float(np.percentile(above, _TOP)) if above.size else top
    return low, high if high > low else low + 1.0


def tissue_mask(volume: Volume) -> Array:
    """Return where a volume made by `contrast` shows tissue, by Otsu's threshold."""
    from skimage.filters import threshold_otsu

    values = to_host(volume.data[volume.valid > 0])
    values = values[:: max(1, values.size // _SAMPLES)]
    return (volume.data > threshold_otsu(values)) & (volume.valid > 0)


def affine_sample(volume: Volume, um_to_um: np.ndarray, grid_um: np.ndarray,
                  shape: Sequence[int]) -> tuple[Array, Array]:  # fmt: skip
    """Sample a volume on another grid.

    Parameters
    ----------
    volume
        What to sample.
    um_to_um
        4 × 4, from the world of the new grid to the volume's, um.
    grid_um, shape
        The new grid: 4 × 4 from its indices to its world, and its size.

    Returns
    -------
    Data (0 where fewer than half of the weights are valid) and mask, uint8.
    """
    from linumpy.gpu.interpolation import affine_transform

    xp = namespace(volume.data)
    to_index = np.linalg.inv(volume.index_to_um) @ um_to_um @ grid_um
    matrix, offset = to_index[:3, :3], to_index[:3, 3].tolist()
    weight = (volume.valid > 0).astype(xp.float32)
    total = affine_transform(volume.data * weight, matrix, offset, shape)
    share = affine_transform(weight, matrix, offset, shape)
    keep = share >= HALF
    data = xp.where(keep, total / xp.where(keep, share, 1), 0).astype(xp.float32)
    return data, keep.astype(xp.uint8)
