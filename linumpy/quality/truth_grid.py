"""Resample a run's volumes onto the truth's grid, and cut the slabs that slices are judged on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from linumpy.brain.align_mosaics_3d_from_shifts import align_mosaics_3d_from_shifts
from linumpy.brain.poses import field_over
from linumpy.core.errors import InputError
from linumpy.geometry.turned import Turn
from linumpy.quality.positions import plane_z_um, slice_z_errors, stacked_z_errors
from linumpy.quality.resample import average_volume, overlap_weights
from linumpy.quality.rotation import BlockFrame, lateral_frame, turn_volume
from linumpy.quality.run import Run
from linumpy.quality.truth import Truth

MIN_SHARE = 0.5
"""Least covered share of a voxel of the truth that counts as shown."""


@dataclass(frozen=True)
class TruthSlab:
    """The part of the truth that one slice is judged on.

    Attributes
    ----------
    start, stop
        Planes of the truth volume.
    clean
        Noise-free amplitude.
    tissue
        Tissue of which `EROSION_VOXELS` layers have been eroded.
    classes
        Labels of all voxels.
    """

    slice_id: int
    start: int
    stop: int
    clean: np.ndarray
    tissue: np.ndarray
    classes: np.ndarray


@dataclass(frozen=True)
class PlainVolume:
    """A slice volume in memory with the geometry of its image; see `linumpy.io.omezarr.Image`."""

    array: np.ndarray
    valid: np.ndarray | None
    voxel_um: tuple[float, float, float]
    translation_um: tuple[float, float, float]


def block_frame(run: Run, truth: Truth) -> BlockFrame:
    """Find the one rotation and translation between brain and block from the reference slice.

    Raises
    ------
    InputError
        When the run lacks the models of its reference slice.
    """
    registration = run.slice_registration
    if registration is None:
        raise InputError(f"{run.models / 'register_slices.json'}: no such file")
    reference = registration.reference_id
    lateral, z = lateral_frame(run, truth), slice_z_errors(run, truth)
    if lateral is None or reference not in z:
        raise InputError(
            f"{run.models}: expected register_tiles.json and "
            f"crop_3d_mosaic_below_interface.json of reference slice z{reference:02d}"
        )
    # Stacking places whole planes: take where the reference slice really went.
    depth = -stacked_z_errors(run, truth).get(reference, z[reference])
    return replace(lateral, shift_um=(depth, *lateral.shift_um[1:]))


def on_truth_grid(
    image: Any, frame: BlockFrame, clean: Any, start: int, stop: int
) -> tuple[np.ndarray, np.ndarray]:
    """Average planes of a run's volume over voxels of the truth's grid, and rotate them onto it.

    Parameters
    ----------
    image, clean
        Opened OME-Zarr of the run and of the truth.
    start, stop
        Planes of the truth.

    Returns
    -------
    Averages and covered shares of shape (stop - start, n1, n2).
    """
    corner = [
        t - v / 2 + s
        for t, v, s in zip(image.translation_um, image.voxel_um, frame.shift_um, strict=True)
    ]
    out_corner = [t - v / 2 for t, v in zip(clean.translation_um, clean.voxel_um, strict=True)]
    shape = image.array.shape
    low = out_corner[0] + start * clean.voxel_um[0] - corner[0]
    high = out_corner[0] + stop * clean.voxel_um[0] - corner[0]
    first = int(np.clip(np.floor(low / image.voxel_um[0]), 0, shape[0]))
    last = int(np.clip(np.ceil(high / image.voxel_um[0]), first, shape[0]))
    weights = [
        overlap_weights(
            last - first,
            image.voxel_um[0],
            corner[0] + first * image.voxel_um[0],
            stop - start,
            clean.voxel_um[0],
            out_corner[0] + start * clean.voxel_um[0],
        ),
        *(
            overlap_weights(
                shape[axis],
                image.voxel_um[axis],
                corner[axis],
                clean.array.shape[axis],
                clean.voxel_um[axis],
                out_corner[axis],
            )
            for axis in (1, 2)
        ),
    ]
    valid = None if image.valid is None else image.valid[first:last]
    found = average_volume(image.array[first:last], valid, weights)
    # What the frame rotates about lies, once shifted, at this pixel of the grid.
    pivot = np.add(frame.pivot_um, frame.shift_um[1:])
    pivot_px = (pivot - out_corner[1:]) / clean.voxel_um[1:] - 0.5
    return turn_volume(*found, frame.rotation_deg, pivot_px)


def slice_frame(run: Run, truth: Truth, slice_id: int, image: Any, frame: BlockFrame) -> BlockFrame:
    """Return the frame of one slice volume: its own corner to the block, by the registration.

    A slice volume's lateral translation is in stage um; its depth counts from its first plane.
    """
    registration = run.slice_registration
    assert registration is not None
    top = image.translation_um[0] - image.voxel_um[0] / 2
    depth = plane_z_um(run, truth, slice_id) - top + frame.shift_um[0]
    lateral = frame.of_slice(registration, slice_id)
    return replace(lateral, shift_um=(depth, *lateral.shift_um[1:]))


def undeformed(run: Run, slice_id: int, image: Any) -> Any:
    """Return a slice volume with its deformation undone, by the run's registration.

    Parameters
    ----------
    image
        Opened OME-Zarr, or `PlainVolume`; it comes back as it is where the slice has no field.
    """
    registration = run.slice_registration
    field = None if registration is None else registration.fields_um.get(slice_id)
    if registration is None or field is None:
        return image
    shape = image.array.shape
    corner = np.subtract(image.translation_um, np.asarray(image.voxel_um) / 2)[1:]
    corner = corner + registration.moved_um[slice_id]

    def read(planes: slice, window: tuple[slice, slice]) -> tuple[np.ndarray, np.ndarray | None]:
        box = (planes, *window)
        return image.array[box], None if image.valid is None else image.valid[box]

    found = align_mosaics_3d_from_shifts(
        read,
        shape[1:],
        (0.0, 0.0),
        slice(0, shape[0]),
        (slice(0, shape[1]), slice(0, shape[2])),
        Turn.of(np.eye(2), np.zeros(2)),
        field_over(registration, slice_id, corner, shape[1:], field.at),
    )
    assert found is not None
    data, valid = (np.asarray(part) for part in found)
    return PlainVolume(data, valid, image.voxel_um, image.translation_um)
