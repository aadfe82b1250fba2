"""Find and read the slice images of the 2.5D flow in a folder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linumpy.brain.register_slices import SliceVolume
from linumpy.brain.slice_folder import placed_by_table, used_ids
from linumpy.core.device import CPU, Array, Device, namespace
from linumpy.core.errors import InputError
from linumpy.flat.stitch_2d import KIND
from linumpy.io.omezarr import Image, Triple, open_image
from linumpy.io.reading import reading
from linumpy.io.usable import refuse_unusable

PLANES = 2
"""As many as registration asks of two slices in common."""

Window = tuple[slice, slice]

_NAME = re.compile(r"slice_2d_z(\d+)\.ome\.zarr")


def find_pictures(folder: Path, config: Path | None = None) -> list[Path]:
    """List the images of a folder, without those that the slice configuration leaves out.

    Raises
    ------
    InputError
        When the folder holds no image, two are named for one slice, none is used, or one is
        wanted that is not there.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder of slices")
    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):
        match = _NAME.fullmatch(path.name)
        if match and (other := found.setdefault(int(match.group(1)), path)) != path:
            raise InputError(f"{other} and {path} are named for one slice; expected one")
    if not found:
        found = _freely_named(folder)
    return [found[i] for i in used_ids(found, folder, config)]


def _freely_named(folder: Path) -> dict[int, Path]:
    """Return the images of a folder by the ids in their metadata."""
    found: dict[int, Path] = {}
    for path in sorted(folder.glob("*.zarr")):
        image = open_image(path)
        if image.attributes.get("kind") == KIND and (
            (other := found.setdefault(_slice_id(image), path)) is not path
        ):
            raise InputError(f"{other} and {path} both hold slice z{_slice_id(image):02d}")
    if not found:
        raise InputError(
            f"{folder}: no slice_2d_z*.ome.zarr and no other image of linum_stitch_2d.py in it"
        )
    return found


def open_pictures(
    paths: Sequence[Path], shifts: Path | None = None, *, device: Device = CPU
) -> tuple[list[SliceVolume], Triple]:
    """Open images where the stage left them, sorted by slice, as volumes that are all one plane.

    Parameters
    ----------
    shifts
        ``shifts_xy.csv``: places the slices of acquisitions that recorded no stage positions, and
        takes glitches that it was cleaned of off the others'.

    Returns
    -------
    The slices, each of `PLANES` planes that show the same; and their voxel size, as deep as the
    slicing interval.

    Raises
    ------
    InputError
        When one is no image, two have one id, or pixel sizes or slicing intervals differ.
    """
    images = [open_image(path) for path in paths]
    for image in images:
        if image.attributes.get("kind") != KIND or image.array.shape[0] != 1:
            raise InputError(f"{image.path}: expected a slice of linum_stitch_2d.py")
        if image.voxel_um[1:] != images[0].voxel_um[1:]:
            raise InputError(
                f"{image.path}: pixels of {image.voxel_um[1:]} um, "
                f"but {images[0].path} has {images[0].voxel_um[1:]}"
            )
    images.sort(key=_slice_id)
    for one, other in zip(images, images[1:], strict=False):
        if _slice_id(one) == _slice_id(other):
            raise InputError(f"{one.path} and {other.path} both hold slice z{_slice_id(one):02d}")
    slices = [_slice_volume(image, device) for image in images]
    if shifts is not None:
        slices = placed_by_table(slices, [image.attributes for image in images], shifts)
    return slices, (_interval_um(images), *images[0].voxel_um[1:])


def _slice_id(image: Image) -> int:
    return int(image.attributes["slice_id"])


def _slice_volume(image: Image, device: Device) -> SliceVolume:
    first, second = (
        t - v / 2 for t, v in zip(image.translation_um[1:], image.voxel_um[1:], strict=True)
    )

    def part(array: Any, planes: slice, window: Window) -> Array:
        box = (slice(0, 1), *window)
        if device.is_gpu:
            from linumpy.gpu.windows import read_windows

            plane = read_windows(array, [box])[0]
        else:
            plane = array[box]
        return namespace(plane).repeat(plane, planes.stop - planes.start, axis=0)

    def read(planes: slice, window: Window) -> tuple[Array, Array | None]:
        with reading(f"{image.path}:"):
            data = part(image.array, planes, window)
            valid = None if image.valid is None else part(image.valid, planes, window)
        return refuse_unusable(data, valid, str(image.path)), valid

    return SliceVolume(
        slice_id=_slice_id(image),
        shape=(PLANES, int(image.array.shape[1]), int(image.array.shape[2])),
        corner_um=(first, second),
        face_to_plane_um=0.0,
        read=read,
    )


def _interval_um(images: Sequence[Image]) -> float:
    """Return the slicing interval of all images; one alone is as deep as it was projected."""
    found = {image.attributes.get("slice_interval_um") for image in images}
    known = [float(interval) for interval in found if interval is not None]
    if len(known) == len(found) == 1:
        return known[0]
    if len(images) == 1:
        return images[0].voxel_um[0]
    raise InputError(
        f"{images[0].path.parent}: slicing intervals {sorted(map(str, found))} um; expected one, "
        "from metadata.json or --slicing_interval when the slices are made"
    )
