"""Resample a brain onto the axes of an atlas, block by block, with its pyramid."""

from __future__ import annotations

import itertools
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from linumpy.brain.depth_parts import can_be_shared, depth_parts, usual_parts
from linumpy.brain.tissue_label import write_tissue_label
from linumpy.core.device import CPU, Array, Device, default_workers, namespace
from linumpy.core.log import progress
from linumpy.core.stream import stream
from linumpy.geometry.orientation import orientation_of
from linumpy.geometry.resample import HALF
from linumpy.io.omezarr import Image, ImageWriter, Shape, Triple, create_image, open_image
from linumpy.io.pyramid import Box, Part, Pyramid, write_parts
from linumpy.io.reading import reading
from linumpy.io.slice_layout import CHUNK_PX, SHARD_PX, volume_spec
from linumpy.io.usable import refuse_unusable
from linumpy.store.atomic import atomic_path
from linumpy.store.manifest import check_all, write_manifest

_EDGE = 1e-6


@dataclass(frozen=True)
class AtlasLattice:
    """Voxels along the atlas' axes (superior, anterior, right).

    Attributes
    ----------
    corner_um
        Corner of voxel 0.
    """

    shape: Shape
    voxel_um: Triple
    corner_um: Triple

    @property
    def index_to_um(self) -> np.ndarray:
        """4 × 4, from voxel indices to the atlas' coordinates."""
        matrix = np.diag([*self.voxel_um, 1.0])
        matrix[:3, 3] = np.asarray(self.corner_um) + np.asarray(self.voxel_um) / 2
        return matrix


def output_grid(shape: Sequence[int], index_to_um: np.ndarray, matrix: np.ndarray) -> AtlasLattice:
    """Return the grid that holds a whole brain in the atlas' space.

    Voxels keep their size along the axis nearest to theirs, and their corners lie at whole
    multiples of it, so that brains aligned to one atlas share one lattice.

    Parameters
    ----------
    shape, index_to_um
        The brain's grid.
    matrix
        4 × 4, from brain to atlas.
    """
    voxel_um = np.linalg.norm(index_to_um[:3, :3], axis=0)
    whole = matrix @ index_to_um
    # Which of the brain's axes lies nearest to superior, anterior, right.
    code = orientation_of(whole[[2, 1, 0], :3])
    source = [next(k for k, c in enumerate(code) if c in pair) for pair in ("SI", "AP", "RL")]
    voxel = tuple(float(voxel_um[k]) for k in source)
    corners = np.array(
        [[*(np.array(c) * np.asarray(shape) - 0.5), 1] for c in itertools.product((0, 1), repeat=3)]
    )
    reached = (whole @ corners.T)[:3]
    first = [math.floor(x / v + _EDGE) for x, v in zip(reached.min(axis=1), voxel, strict=True)]
    last = [math.ceil(x / v - _EDGE) for x, v in zip(reached.max(axis=1), voxel, strict=True)]
    size = tuple(max(1, b - a) for a, b in zip(first, last, strict=True))
    corner = tuple(a * v for a, v in zip(first, voxel, strict=True))
    return AtlasLattice(size, voxel, corner)  # type: ignore[arg-type]


def apply_to_volume(
    image: Image,
    output: Path | str,
    matrix: np.ndarray,
    attributes: dict[str, Any],
    *,
    resolutions_um: Sequence[float],
    overwrite: bool = False,
    device: Device = CPU,
    parts: int | None = None,
) -> AtlasLattice:
    """Resample the finest level of a volume into the atlas' space.

    Parameters
    ----------
    image
        The brain.
    output
        OME-Zarr to write: axes superior, anterior, right; its coordinates are the atlas'.
    matrix
        4 × 4, from the brain's world to the atlas', um.
    attributes
        For ``attributes.linumpy``.
    resolutions_um
        Voxel sizes of the pyramid.
    overwrite
        Whether an existing volume may be replaced.
    device
        Where to compute, with all its GPUs.
    parts
        Of depth of the output, each written by a process of its own; None for `usual_parts`.

    Returns
    -------
    The grid of the output.
    """
    index_to_um = np.diag([*image.voxel_um, 1.0])
    index_to_um[:3, 3] = image.translation_um
    grid = output_grid(image.array.shape, index_to_um, matrix)
    to_source = np.linalg.inv(matrix @ index_to_um) @ grid.index_to_um
    spec = volume_spec(grid.shape, grid.voxel_um, grid.corner_um, attributes)
    if not can_be_shared([image]):
        parts = 1
    count = usual_parts(device, grid.shape) if parts is None else parts
    one = device.first()
    with (
        create_image(output, spec, overwrite=overwrite, with_valid=True) as writer,
        depth_parts(device, count) as processes,
    ):
        planes = _planes_at_once(one)
        pyramid = Pyramid(writer, resolutions_um, (planes, planes, SHARD_PX), device=one)
        work = _Resampling(writer, pyramid, _Source(image, to_source, one), to_source, one)
        processes.write(work, processes.divide(grid.shape[0]), [pyramid])
        write_tissue_label(writer, processes)
    return grid


def _planes_at_once(device: Device) -> int:
    """Return the planes of a piece: on the CPU threads share small ones, a GPU takes a shard."""
    return SHARD_PX if device.is_gpu else CHUNK_PX


@dataclass(frozen=True)
class _Resampling:
    """Write some planes of the output, whole layers of shards."""

    writer: ImageWriter
    pyramid: Pyramid
    source: _Source
    to_source: np.ndarray
    device: Device

    def __call__(self, planes: slice) -> None:
        windows = list(_windows(planes, self.writer.spec.shape))
        with ThreadPoolExecutor(default_workers(self.device), "linumpy-ras") as pool:
            self.pyramid.each = map if self.device.is_gpu else pool.map
            done = stream(
                windows,
                self.source.read,
                self._resample,
                lambda _, parts: write_parts(parts),
                depth=1,
            )
            shown = progress(done, len(windows), "align to RAS") if planes.start == 0 else done
            for _ in shown:
                pass
        self.pyramid.each = map
        self.pyramid.leave()

    def _resample(self, window: Box, read: _Read | None) -> list[Part]:
        if read is None:
            return self.pyramid.add(window, None)

        def piece(part: Box) -> tuple[Array, Array]:
            shape = [s.stop - s.start for s in part]
            to_part = _from(self.to_source, part, read.box)
            return resample_block(read.data, read.valid, to_part, shape)

        xp = namespace(read.data)
        pieces = list(self.pyramid.each(piece, _pieces(window, _planes_at_once(self.device))))
        out, keep = (xp.concatenate(parts) for parts in zip(*pieces, strict=True))
        if not keep.any():
            return self.pyramid.add(window, None)
        parts = [Part(self.writer.array, window, out), Part(self.writer.valid, window, keep)]
        return [*parts, *self.pyramid.add(window, out, keep)]


class _Read(NamedTuple):
    """A part of the brain, read for one window of the output."""

    data: Array
    valid: Array
    box: Box


def _windows(planes: slice, shape: Shape) -> Iterator[Box]:
    sides = (range(0, n, SHARD_PX) for n in shape[1:])
    for start in itertools.product(range(planes.start, planes.stop, SHARD_PX), *sides):
        first, second, third = (
            slice(a, min(a + SHARD_PX, n)) for a, n in zip(start, shape, strict=True)
        )
        yield first, second, third


def _pieces(window: Box, planes: int) -> Iterator[Box]:
    for start in range(window[0].start, window[0].stop, planes):
        yield slice(start, min(start + planes, window[0].stop)), window[1], window[2]


def _from(to_source: np.ndarray, window: Box, box: Box) -> np.ndarray:
    """Return the map from indices of an output window to those of a part of the source."""
    moved = to_source.copy()
    moved[:3, 3] += to_source[:3, :3] @ [s.start for s in window]
    moved[:3, 3] -= [s.start for s in box]
    return moved


def source_box(to_source: np.ndarray, window: Box, shape: Sequence[int]) -> Box | None:
    """Return the voxels of the source that an output window rests on, None for none."""
    ends = itertools.product(*((s.start, s.stop - 1) for s in window))
    corners = np.array([[*corner, 1] for corner in ends])
    reached = (to_source @ corners.T)[:3]
    box = []
    for low, high, n in zip(reached.min(axis=1), reached.max(axis=1), shape, strict=True):
        first, last = max(0, math.floor(low)), min(n, math.floor(high) + 2)
        if first >= last:
            return None
        box.append(slice(first, last))
    return box[0], box[1], box[2]


def resample_block(
    data: Array, valid: Array, to_source: np.ndarray, shape: Sequence[int]
) -> tuple[Array, Array]:
    """Sample a block linearly where an affine map sends the voxels of another.

    Parameters
    ----------
    data, valid
        float32 and uint8 (z, axis 1, axis 2), NumPy or CuPy.
    to_source
        4 × 4, from indices of the result to those of `data`.
    shape
        Of the result.

    Returns
    -------
    float32 block, 0 where fewer than half of the weights fall on valid voxels, and the mask
    (uint8) of where that is not so. Invalid voxels lend nothing to their neighbours.
    """
    from linumpy.gpu.interpolation import affine_transform

    xp = namespace(data)
    matrix, offset = to_source[:3, :3], to_source[:3, 3].tolist()

    def sample(array: Array) -> Array:
        return affine_transform(array, matrix, offset, shape, mode="grid-constant")

    if _all_inside(to_source, shape, data.shape) and bool(valid.all()):
        return sample(data), xp.ones(tuple(shape), xp.uint8)
    weight = (valid > 0).astype(xp.float32)
    share = sample(weight)
    total = sample(data * weight)
    keep = share >= HALF
    total *= keep
    total /= xp.where(keep, share, 1)
    return total, keep.astype(xp.uint8)


def _all_inside(to_source: np.ndarray, shape: Sequence[int], inside: Sequence[int]) -> bool:
    """Whether no voxel of a block reaches beyond the outermost centres of its source."""
    ends = itertools.product(*((0, n - 1) for n in shape))
    reached = np.array([[*corner, 1] for corner in ends]) @ to_source[:3].T
    return bool((reached >= 0).all() and (reached <= np.array(inside) - 1).all())


class _Source:
    """The brain, read part by part to where it is computed on."""

    def __init__(self, image: Image, to_source: np.ndarray, device: Device) -> None:
        self._image = image
        self._to_source = to_source
        self._device = device

    def read(self, window: Box) -> _Read | None:
        """Read what an output window rests on; None where that is nothing."""
        image = self._image
        box = source_box(self._to_source, window, image.array.shape)
        if box is None:
            return None
        with reading(f"{image.path}: voxels {box}"):
            data = self._part(image.array, box)
            valid = None if image.valid is None else self._part(image.valid, box)
        xp = namespace(data)
        data = data.astype(xp.float32, copy=False)
        data = refuse_unusable(data, valid, f"{image.path}: voxels {box}")
        if valid is None:
            valid = xp.ones(data.shape, xp.uint8)
        return _Read(data, valid, box)

    def _part(self, array: Any, box: Box) -> Array:
        if not self._device.is_gpu:
            return np.asarray(array[box])
        from linumpy.gpu.windows import read_windows

        return read_windows(array, [box])[0]


def store_transform(
    image: Image, output: Path | str, attributes: dict[str, Any], *, overwrite: bool = False
) -> None:
    """Write a volume again with more metadata; its voxels stay as they are.

    Files are hard links to those of the input where the file system allows it, copies elsewhere.

    Parameters
    ----------
    image
        The brain; it is not changed.
    output
        OME-Zarr to write.
    attributes
        Added to ``attributes.linumpy``.
    """
    import zarr

    check_all(image.path)
    with atomic_path(output, overwrite=overwrite, directory=True) as partial:
        partial.rmdir()
        shutil.copytree(image.path, partial, copy_function=_link)
        for name in ("zarr.json", ".zattrs"):
            # What is written to must not be the input's own file.
            mine = partial / name
            if mine.exists():
                mine.unlink()
                shutil.copy2(image.path / name, mine)
        group = zarr.open_group(partial, mode="r+")
        group.attrs["linumpy"] = {**image.attributes, **attributes}
        write_manifest(partial)
    open_image(output)


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target
