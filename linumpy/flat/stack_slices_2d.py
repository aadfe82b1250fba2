"""Stack the images of all slices into one volume: one plane a slicing interval.

Projections of neighbours share tissue if they reach deeper than a cut; where they do not, the
brain's outline and its tracts still go on from slice to slice. What goes on obliquely looks like a
shift, though: volumes, which are compared at equal depth, are registered more truly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from linumpy.brain.align_mosaics_3d_from_shifts import (
    Canvas,
    align_mosaics_3d_from_shifts,
    common_canvas,
)
from linumpy.brain.register_slices import SliceVolume, motor_registration, register_slices
from linumpy.brain.slice_registration import SliceRegistration
from linumpy.core.device import CPU, Array, Device, default_workers
from linumpy.core.errors import InputError
from linumpy.core.log import progress
from linumpy.core.stream import stream
from linumpy.flat.pictures import find_pictures, open_pictures
from linumpy.io.models import load_model, model_place, save_model
from linumpy.io.omezarr import ImageSpec, Triple, create_image
from linumpy.io.pyramid import Part, Pyramid, write_parts
from linumpy.params import build
from linumpy.stage_params.flat import Stack2dParams
from linumpy.store.atomic import together

CHUNK_PX = 128
SHARD_PX = 512

_Step = tuple[SliceVolume, tuple[slice, slice]]


def align_pictures(
    pictures: Sequence[SliceVolume], voxel_um: Triple, params: Stack2dParams
) -> SliceRegistration:
    """Find how images lie, from neighbours that look alike, or trust the stage.

    Parameters
    ----------
    pictures, voxel_um
        From `open_pictures`.
    """
    if not params.align:
        return motor_registration(pictures, voxel_um, voxel_um[0])
    # Planes of one image all show the same: there is no depth to step along.
    found = register_slices(pictures, voxel_um, 0.0, params.registration())
    return replace(found, slice_interval_um=voxel_um[0])


def stack_slices_2d(
    pictures: Sequence[SliceVolume],
    voxel_um: Triple,
    registration: SliceRegistration,
    output: Path | str,
    *,
    resolutions_um: Sequence[float],
    overwrite: bool = False,
    device: Device = CPU,
) -> None:
    """Stack images into one volume with its pyramid.

    Planes lie at ``(id − first id) · interval``: a slice that is missing leaves its plane empty
    and invalid. Images are moved by linear interpolation; the reference stays on whole pixels.

    Parameters
    ----------
    pictures, voxel_um
        From `open_pictures`.
    registration
        How all of them lie.
    output
        The volume's OME-Zarr folder.
    resolutions_um
        Voxel sizes of the pyramid; an axis that is coarser than a level stays as it is.

    Raises
    ------
    InputError
        When the registration lacks a slice or was made for other pixels.
    """
    canvas = _canvas(pictures, voxel_um, registration)
    ids = [p.slice_id for p in pictures]
    first, second = (c + v / 2 for c, v in zip(canvas.corner_um, voxel_um[1:], strict=True))
    spec = ImageSpec(
        shape=(ids[-1] - ids[0] + 1, *canvas.shape),
        voxel_um=voxel_um,
        translation_um=(0.0, first, second),
        chunks=(1, CHUNK_PX, CHUNK_PX),
        shards=(1, SHARD_PX, SHARD_PX),
        attributes={"kind": "brain_2d", "slice_ids": ids, "slice_interval_um": voxel_um[0]},
    )
    steps: list[_Step] = [(p, window) for p in pictures for window in _blocks(canvas.shape)]

    def move(step: _Step) -> tuple[Array, Array] | None:
        picture, window = step
        return align_mosaics_3d_from_shifts(
            picture.read,
            picture.shape[1:],
            canvas.origin_px[picture.slice_id],
            slice(0, 1),
            window,
            canvas.turns.get(picture.slice_id),
        )

    with create_image(output, spec, overwrite=overwrite, with_valid=True) as image:
        pyramid = Pyramid(image, resolutions_um, (1, SHARD_PX, SHARD_PX), device=device)

        def add(step: _Step, block: tuple[Array, Array] | None) -> list[Part]:
            picture, lateral = step
            plane = picture.slice_id - ids[0]
            window = (slice(plane, plane + 1), *lateral)
            if block is None:
                return pyramid.add(window, None)
            found = [Part(image.array, window, block[0]), Part(image.valid, window, block[1])]
            return found + pyramid.add(window, *block)

        done = stream(
            steps,
            move,
            add,
            lambda _, parts: write_parts(parts),
            readers=1 if device.is_gpu else default_workers(device),
        )
        for _ in progress(done, len(steps), "stack"):
            pass


def _canvas(
    pictures: Sequence[SliceVolume], voxel_um: Triple, registration: SliceRegistration
) -> Canvas:
    offsets, rotations = registration.offset_um, registration.rotation_deg
    ids = [p.slice_id for p in pictures]
    lacking = [i for i in ids if i not in offsets]
    if lacking:
        raise InputError(f"the registration lacks slice z{lacking[0]:02d}; register all slices")
    if tuple(registration.voxel_um) != tuple(voxel_um):
        raise InputError(
            f"the registration was made for voxels of {registration.voxel_um} um, the slices have "
            f"{voxel_um}; register them again"
        )
    return common_canvas(
        {p.slice_id: p.corner_um for p in pictures},
        {p.slice_id: p.shape[1:] for p in pictures},
        {k: offsets[k][1:].tolist() for k in ids},
        voxel_um[1:],
        registration.reference_id if registration.reference_id in ids else ids[0],
        {k: rotations[k] for k in ids},
        registration.pivot_um,
    )


def _blocks(shape: tuple[int, int]) -> list[tuple[slice, slice]]:
    rows, columns = (
        [slice(low, min(low + SHARD_PX, n)) for low in range(0, n, SHARD_PX)] for n in shape
    )
    return [(row, column) for row in rows for column in columns]


@together()
def stack_folder_2d(
    folder: Path,
    output: Path,
    values: Mapping[str, Any],
    *,
    shifts: Path | None = None,
    config: Path | None = None,
    registration: Path | None = None,
    output_model: Path | None = None,
    overwrite: bool = False,
    device: Device = CPU,
) -> SliceRegistration:
    """Register and stack the images of a folder; see `stack_slices_2d`.

    Parameters
    ----------
    registration
        JSON of how slices lie, found before; it is looked for when None.
    output_model
        JSON to write it to.
    """
    from linumpy.brain.output import resolutions

    params = build(Stack2dParams, values)
    resolutions_um = resolutions(values)
    pictures, voxel_um = open_pictures(find_pictures(folder, config), shifts, device=device)
    if registration is not None:
        model = load_model(*model_place(registration), SliceRegistration)
    else:
        model = align_pictures(pictures, voxel_um, params)
    stack_slices_2d(
        pictures,
        voxel_um,
        model,
        output,
        resolutions_um=resolutions_um,
        overwrite=overwrite,
        device=device,
    )
    if output_model is not None:
        save_model(*model_place(output_model), model)
    return model
