"""Stack all slices of a brain into one volume, shard by shard, with its pyramid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.brain.align_mosaics_3d_from_shifts import Canvas, common_canvas
from linumpy.brain.brain_blocks import BrainBlocks, by_quality
from linumpy.brain.depth_parts import can_be_shared, depth_parts, useful_parts, usual_parts
from linumpy.brain.slice_planes import SliceVolume
from linumpy.brain.slice_registration import SliceRegistration
from linumpy.brain.stacking import StackedSlice, place_slices
from linumpy.brain.tissue_label import write_tissue_label
from linumpy.core.device import CPU, Device
from linumpy.core.errors import InputError
from linumpy.core.log import logger
from linumpy.core.timeline import span
from linumpy.io.omezarr import create_image
from linumpy.io.slice_layout import volume_spec
from linumpy.stage_params.brain import StackParams


@dataclass(frozen=True)
class BrainModel:
    """Where the slices went.

    Attributes
    ----------
    origin_um
        Corner of the brain: depth, and common position along axis 1 and axis 2.
    slices
        ``slice_id, z_start_px, first_plane_px, n_planes, overlap_px, interpolated,
        canvas_origin_px, rotation_deg, attenuation_from``; the last as of `SliceVolume`.
    """

    voxel_um: tuple[float, float, float]
    origin_um: tuple[float, float, float]
    slices: list[dict[str, Any]]


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
    offsets, turns = registration.offset_um, registration.rotation_deg
    fields = registration.fields_um
    for volume in slices:
        if volume.place is not None:
            offsets[volume.slice_id] = np.array(volume.place.offset_um)
            turns[volume.slice_id] = volume.place.rotation_deg
            fields.pop(volume.slice_id, None)
    lacking = [s.slice_id for s in slices if s.slice_id not in offsets]
    if lacking:
        raise InputError(f"the registration lacks slice z{lacking[0]:02d}; register all slices")
    ids = [s.slice_id for s in slices]
    reference = registration.reference_id
    if reference not in ids:
        # One that is not rotated stays as sharp on whole pixels as the reference would have.
        reference = next((k for k in ids if not turns.get(k)), ids[0])
    canvas = common_canvas(
        {s.slice_id: s.corner_um for s in slices},
        {s.slice_id: s.shape[1:] for s in slices},
        {k: offsets[k][1:].tolist() for k in ids},
        registration.voxel_um[1:],
        reference,
        {k: turns.get(k, 0.0) for k in ids},
        registration.pivot_um,
        fields,
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
        # Weighted by quality, the planes below a face count little instead of nothing.
        0 if by_quality(slices, params) else params.first_plane,
        {s.slice_id for s in slices if s.place is not None},
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
    parts: int | None = None,
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
        Where to compute, with all its GPUs.
    parts
        Each stacked by a process of its own; None for `usual_parts`.

    Returns
    -------
    Where each slice went.

    Raises
    ------
    InputError
        When the registration lacks a slice, or a slice has nothing to show.
    """
    canvas, places = brain_geometry(slices, registration, params)
    turns = registration.rotation_deg
    told = {volume.slice_id: volume.attenuation_from for volume in slices}
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
    if not can_be_shared([volume.image for volume in slices]):
        parts = 1
    count = (
        usual_parts(device, spec.shape, by_rows=True)
        if parts is None
        else useful_parts(spec.shape, parts)
    )
    with (
        create_image(output, spec, overwrite=overwrite, with_valid=True) as image,
        depth_parts(device, count) as processes,
    ):
        brain = BrainBlocks(image, slices, canvas, places, params, resolutions_um, device.first())
        with span("stack"):
            divided = processes.divide_rows(spec.shape)
            shown = processes.write(
                brain.stack, divided, [brain.pyramid], lambda part: brain.within(part).stack
            )
        # Nothing has appeared yet: a brain that lacks a slice never does.
        _check_shown(places, set().union(*shown))
        with span("label"):
            write_tissue_label(image, processes)
    return BrainModel(
        voxel_um,
        origin_um,
        [
            {
                **asdict(place),
                "canvas_origin_px": list(canvas.origin_px[place.slice_id]),
                "rotation_deg": turns.get(place.slice_id, 0.0),
                "attenuation_from": told[place.slice_id],
            }
            for place in places
        ],
    )


def _check_shown(places: Sequence[StackedSlice], shown: set[int]) -> None:
    """Refuse a brain that lacks what a slice shows.

    Raises
    ------
    InputError
        When no voxel of a slice was laid.
    """
    lacking = [place.slice_id for place in places if place.slice_id not in shown]
    if lacking:
        raise InputError(
            f"slice z{lacking[0]:02d} has no voxel of data to put into the brain; leave it out "
            "in slice_config.csv, or make it anew"
        )


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
