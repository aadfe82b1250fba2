"""Read slice volumes from files, with position and quality from their attributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.brain.align_mosaics_3d_from_shifts import align_mosaics_3d_from_shifts
from linumpy.brain.slice_planes import GivenPlace, SliceVolume
from linumpy.core.device import CPU, Array, Device, to_device
from linumpy.core.errors import InputError
from linumpy.intensity.quality_map import QualityMap, decode_map, weights_at
from linumpy.io.omezarr import Image, open_image
from linumpy.io.reading import reading
from linumpy.io.usable import refuse_unusable


def open_slices(paths: Sequence[Path], *, device: Device = CPU) -> list[SliceVolume]:
    """Open slice volumes, sorted by id.

    Raises
    ------
    InputError
        When there is none, two have one id, voxel sizes differ, or one is no slice volume.
    """
    if not paths:
        raise InputError("no slice volume (slice_z*.ome.zarr) to work on")
    return slice_volumes([open_image(path) for path in paths], device=device)


def slice_volumes(images: Sequence[Image], *, device: Device = CPU) -> list[SliceVolume]:
    """Return opened slice volumes as registration and stacking see them; see `open_slices`."""
    volumes = [_slice_volume(image, device) for image in images]
    seen: dict[int, Path] = {}
    for image, volume in zip(images, volumes, strict=True):
        if volume.slice_id in seen:
            raise InputError(
                f"{image.path} and {seen[volume.slice_id]} both hold slice z{volume.slice_id:02d}"
            )
        if image.voxel_um != images[0].voxel_um:
            raise InputError(
                f"{image.path}: voxel size {image.voxel_um} um, "
                f"but {images[0].path} has {images[0].voxel_um}"
            )
        seen[volume.slice_id] = image.path
    return sorted(volumes, key=lambda volume: volume.slice_id)


def _slice_volume(image: Image, device: Device) -> SliceVolume:
    attributes = image.attributes
    if attributes.get("kind") != "slice" or attributes.get("interface_um") is None:
        raise InputError(f"{image.path}: expected a slice cropped at its interface")
    corner = [t - v / 2 for t, v in zip(image.translation_um, image.voxel_um, strict=True)]
    if not np.isfinite([*corner, float(attributes["interface_um"])]).all():
        raise InputError(f"{image.path}: lies at {corner} um; expected finite numbers")

    return SliceVolume(
        slice_id=int(attributes["slice_id"]),
        shape=tuple(image.array.shape),
        corner_um=(corner[1], corner[2]),
        face_to_plane_um=corner[0] - float(attributes["interface_um"]),
        read=_Reader(image, device),
        place=_given_place(image),
        stage_z_um=_number(attributes.get("stage_z_mm"), 1e3),
        thickness_um=_number(attributes.get("slice_thickness_um"), 1.0),
        quality=_quality_reader(image, device),
        image=image,
        attenuation_from=attributes.get("attenuation_from"),
    )


@dataclass(frozen=True)
class _Reader:
    """Read planes of a slice, and their mask; to be pickled, for other processes."""

    image: Image
    device: Device

    def __call__(self, planes: slice, window: tuple[slice, slice]) -> tuple[Array, Array | None]:
        image, where = self.image, f"{self.image.path}: planes {planes.start}-{planes.stop}"
        with reading(where):
            data = self._part(image.array, (planes, *window))
            valid = None if image.valid is None else self._part(image.valid, (planes, *window))
        return refuse_unusable(data, valid, where), valid

    def _part(self, array: Any, box: tuple[slice, ...]) -> Array:
        if not self.device.is_gpu:
            return array[box]
        from linumpy.gpu.windows import read_windows

        return read_windows(array, [box])[0]


def _number(value: Any, factor: float) -> float | None:
    """Return a finite number times a factor, None for anything else."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value * factor if number and np.isfinite(value) else None


def _quality_reader(image: Image, device: Device) -> _Quality | None:
    found = decode_map(image.attributes, tuple(image.array.shape))
    return None if found is None else _Quality(found, device, image.path)


@dataclass(frozen=True)
class _Quality:
    """Return the weights of voxels of a slice; to be pickled, for other processes."""

    found: QualityMap
    device: Device
    path: Path

    def __call__(self, planes: slice, window: tuple[slice, slice]) -> Array:
        found = self.found
        if found.origin_px is None:
            return self._of_slice(planes, window)[0]
        sides = (found.shape[1], found.shape[2])
        moved = align_mosaics_3d_from_shifts(
            self._of_slice, sides, found.origin_px, planes, window, found.turn
        )
        if moved is not None:
            return moved[0]
        size = [part.stop - part.start for part in (planes, *window)]
        return to_device(np.zeros(size, np.float32), self.device)

    def _of_slice(self, planes: slice, window: tuple[slice, slice]) -> tuple[Array, None]:
        found = self.found
        try:
            cells = found.cells
        except ValueError as error:
            raise InputError(
                f"{self.path}: its quality map cannot be decoded ({error}); make the slice anew"
            ) from error
        return weights_at(cells, found.voxels_a_cell, (planes, *window), self.device), None


def _given_place(image: Image) -> GivenPlace | None:
    """Return where an interpolated slice says that it lies; None for a measured one."""
    if not image.attributes.get("interpolated"):
        return None
    try:
        placement = image.attributes["placement"]
        z, first, second = (float(value) for value in placement["offset_um"])
        place = GivenPlace((z, first, second), float(placement["rotation_deg"]))
        if not np.isfinite([*place.offset_um, place.rotation_deg]).all():
            raise ValueError(f"finite numbers: {placement}")
        return place
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{image.path}: an interpolated slice without its placement (offset_um of three "
            f"numbers, rotation_deg); lacks or misstates {error}"
        ) from error
