"""Stacking: all slices of a brain in one volume, written shard by shard, with its pyramid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from linumpy.cli import logger, progress
from linumpy.device import CPU, Array, Device, to_device, to_host
from linumpy.errors import InputError
from linumpy.io.omezarr import Image, create_image, open_image
from linumpy.mosaic.pyramid import write_pyramid
from linumpy.mosaic.stacking import StackedSlice, blend_planes, host_blank, place_slices
from linumpy.params import param
from linumpy.registration.align_mosaics_3d_from_shifts import (
    Canvas,
    align_mosaics_3d_from_shifts,
    common_canvas,
)
from linumpy.registration.register_slices import SliceRegistration, SliceVolume
from linumpy.slices.layout import SHARD_PX, volume_spec


@dataclass(frozen=True)
class StackParams:
    """Parameters of stacking."""

    first_plane: int = param(
        4,
        "moving_slice_first_index",
        "planes at the top of a slice that are not trusted, for an uneven cut",
        minimum=0,
    )
    blend: bool = param(
        True, "stack_blend_enabled", "pass over from slice to slice by a Hann window"
    )


@dataclass(frozen=True)
class BrainModel:
    """Where the slices went.

    Attributes
    ----------
    origin_um
        Corner of the brain: depth, and common position along axis 1 and axis 2.
    slices
        ``slice_id, z_start_px, first_plane_px, n_planes, overlap_px, canvas_origin_px``.
    """

    voxel_um: tuple[float, float, float]
    origin_um: tuple[float, float, float]
    slices: list[dict[str, Any]]


def open_slices(paths: Sequence[Path], *, device: Device = CPU) -> list[SliceVolume]:
    """Open slice volumes, sorted by id.

    Raises
    ------
    InputError
        When there is none, two have one id, voxel sizes differ, or one is no slice volume.
    """
    if not paths:
        raise InputError("no slice volume (slice_z*.ome.zarr) to work on")
    images = [open_image(path) for path in paths]
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

    def read(planes: slice, window: tuple[slice, slice]) -> tuple[Array, Array | None]:
        try:
            data = to_device(image.array[(planes, *window)], device)
            valid = (
                None if image.valid is None else to_device(image.valid[(planes, *window)], device)
            )
        except Exception as error:
            raise InputError(
                f"{image.path}: planes {planes.start}-{planes.stop} cannot be read "
                f"({type(error).__name__}: {error})"
            ) from error
        return data, valid

    return SliceVolume(
        slice_id=int(attributes["slice_id"]),
        shape=tuple(image.array.shape),
        corner_um=(corner[1], corner[2]),
        face_to_plane_um=corner[0] - float(attributes["interface_um"]),
        read=read,
    )


def brain_geometry(
    slices: Sequence[SliceVolume],
    registration: SliceRegistration,
    params: StackParams,
) -> tuple[Canvas, list[StackedSlice]]:
    """Place all slices on one canvas and in depth.

    Raises
    ------
    InputError
        When the registration lacks a slice.
    """
    offsets = registration.offsets_um()
    lacking = [s.slice_id for s in slices if s.slice_id not in offsets]
    if lacking:
        raise InputError(f"the registration lacks slice z{lacking[0]:02d}; register all slices")
    ids = [s.slice_id for s in slices]
    reference = registration.reference_id if registration.reference_id in ids else ids[0]
    canvas = common_canvas(
        {s.slice_id: s.corner_um for s in slices},
        {s.slice_id: s.shape[1:] for s in slices},
        {k: offsets[k][1:].tolist() for k in ids},
        registration.voxel_um[1:],
        reference,
    )
    places = place_slices(
        ids,
        {s.slice_id: s.shape[0] for s in slices},
        {
            s.slice_id: (s.slice_id - ids[0]) * registration.slice_interval_um
            + float(offsets[s.slice_id][0])
            + s.face_to_plane_um
            for s in slices
        },
        registration.voxel_um[0],
        params.first_plane,
    )
    for above, place in zip(places, places[1:], strict=False):
        if place.begin > above.end:
            logger.warning(
                "slices z%02d and z%02d leave a gap of %d planes",
                above.slice_id,
                place.slice_id,
                place.begin - above.end,
            )
    return canvas, places


def stack_slices_motor(
    slices: Sequence[SliceVolume],
    registration: SliceRegistration,
    output: Path | str,
    params: StackParams,
    *,
    resolutions_um: Sequence[float],
    overwrite: bool = False,
    device: Device = CPU,
) -> BrainModel:
    """Stack slices into one brain.

    Parameters
    ----------
    slices
        From `open_slices`.
    registration
        Offsets of all slices.
    output
        The brain's OME-Zarr folder.
    resolutions_um
        Voxel sizes of the pyramid.
    overwrite
        Whether an existing brain may be replaced.
    device
        Where to compute.

    Returns
    -------
    Where each slice went.
    """
    canvas, places = brain_geometry(slices, registration, params)
    voxel_um = registration.voxel_um
    n_planes = max(place.end for place in places)
    origin_um = (slices[0].face_to_plane_um, *canvas.corner_um)
    spec = volume_spec(
        (n_planes, *canvas.shape),
        voxel_um,
        origin_um,
        {
            "kind": "brain",
            "slice_ids": [place.slice_id for place in places],
            "slice_interval_um": registration.slice_interval_um,
        },
    )
    readers = {volume.slice_id: volume for volume in slices}
    with create_image(output, spec, overwrite=overwrite, with_valid=True) as image:
        windows = list(_shard_windows(spec.shape))
        for z_range, window in progress(windows, len(windows), "stack"):
            block, mask = _block(places, readers, canvas, z_range, window, params, device)
            image.array[(z_range, *window)] = to_host(block)
            image.valid[(z_range, *window)] = to_host(mask)  # type: ignore[index]
        write_pyramid(image, resolutions_um, device=device)
    return BrainModel(
        voxel_um,
        origin_um,
        [
            {**asdict(place), "canvas_origin_px": list(canvas.origin_px[place.slice_id])}
            for place in places
        ],
    )


def _shard_windows(
    shape: tuple[int, int, int],
) -> Iterator[tuple[slice, tuple[slice, slice]]]:
    for z in range(0, shape[0], SHARD_PX):
        for i in range(0, shape[1], SHARD_PX):
            for j in range(0, shape[2], SHARD_PX):
                stops = [min(k + SHARD_PX, n) for k, n in zip((z, i, j), shape, strict=True)]
                yield slice(z, stops[0]), (slice(i, stops[1]), slice(j, stops[2]))


def _block(
    places: Sequence[StackedSlice],
    readers: Mapping[int, SliceVolume],
    canvas: Canvas,
    z_range: slice,
    window: tuple[slice, slice],
    params: StackParams,
    device: Device,
) -> tuple[Array, Array]:
    """Blend one shard of the brain from the slices that reach it."""

    def parts() -> Iterator[tuple[StackedSlice, int, Array, Array]]:
        for place in places:
            first = max(place.first_plane_px, z_range.start - place.z_start_px)
            stop = min(place.n_planes, z_range.stop - place.z_start_px)
            if first >= stop:
                continue
            volume = readers[place.slice_id]
            found = align_mosaics_3d_from_shifts(
                volume.read,
                volume.shape[1:],
                canvas.origin_px[place.slice_id],
                slice(first, stop),
                window,
            )
            if found is not None:
                yield place, first, *found

    lateral = (window[0].stop - window[0].start, window[1].stop - window[1].start)
    return blend_planes(parts(), z_range, lateral, host_blank(device), blend=params.blend)


def z_matches(places: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of ``z_matches.csv``: each slice and the one above it."""
    return [
        {
            "fixed_id": above["slice_id"],
            "moving_id": place["slice_id"],
            "overlap_voxels": place["overlap_px"],
            "moving_z_start": place["z_start_px"],
        }
        for above, place in zip(places, places[1:], strict=False)
    ]
