"""Export a package for manual alignment: images of slices and pairs, current transforms.

Images are NPZ files of three arrays: ``aip`` (the image, float32), ``scale`` (its pixel, um)
and ``center_pos`` (where its middle lies, um: stage positions across, depth below the first
slice's face along z). Rows and columns are axis 1 and axis 2 in ``aips``, depth and axis 2 in
``aips_xz``, depth and axis 1 in ``aips_yz``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linumpy.brain.manual.refine import shared_planes
from linumpy.brain.manual.transforms import FILE_NAME, write_transform
from linumpy.brain.poses import entry_of, stage_to_common
from linumpy.brain.register_slices import SliceVolume
from linumpy.brain.slice_registration import SliceRegistration
from linumpy.core.device import CPU, Device, to_host
from linumpy.core.log import progress
from linumpy.io.slice_layout import SHARD_PX
from linumpy.stage_params.gaps import ExportManualParams
from linumpy.store.atomic import atomic_path, write_json

FOLDERS = ("aips", "aips_xz", "aips_yz")
METADATA = "manual_align_metadata.json"

_CONVENTION = (
    "transforms/slice_zNN/transform.tfm maps a stage position in the slice before (fixed, output) "
    "to that of the same tissue in slice NN (moving, input), micrometre; x is array axis 2, y is "
    "array axis 1. Give a folder of changed ones as manual_transforms_dir."
)


@dataclass(frozen=True)
class Picture:
    """An image and its position.

    Attributes
    ----------
    data
        float32, rows and columns.
    pixel_um
        Pixel along rows and columns.
    centre_um
        Position of its middle along rows and columns.
    """

    data: np.ndarray
    pixel_um: tuple[float, float]
    centre_um: tuple[float, float]

    def shrunk(self, rows: int, columns: int) -> Picture:
        """Average squares of pixels; a rest at the end is lost, and the middle moves with it."""
        n1, n2 = (max(1, n // f) for n, f in zip(self.data.shape, (rows, columns), strict=True))
        rows, columns = min(rows, self.data.shape[0]), min(columns, self.data.shape[1])
        data = self.data[: n1 * rows, : n2 * columns].reshape(n1, rows, n2, columns)
        lost = np.subtract(self.data.shape, (n1 * rows, n2 * columns)) / 2
        centre = np.subtract(self.centre_um, lost * self.pixel_um)
        return Picture(
            data.mean(axis=(1, 3), dtype=np.float32),
            (self.pixel_um[0] * rows, self.pixel_um[1] * columns),
            (float(centre[0]), float(centre[1])),
        )

    def save(self, path: Path) -> None:
        """Write as NPZ."""
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(
            path,
            aip=self.data.astype(np.float32),
            scale=np.array(self.pixel_um),
            center_pos=np.array(self.centre_um),
        )


def export_manual_align(
    volumes: Sequence[SliceVolume],
    model: SliceRegistration,
    output: Path,
    params: ExportManualParams,
    *,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write a package for alignment by hand.

    Parameters
    ----------
    volumes
        Slices in order.
    model
        Where they lie by the automatic registration: what a person begins with.
    output
        Folder to write.
    params
        How coarse images are, and how thick the slabs of pairs.
    overwrite
        Whether an existing package may be replaced.

    Returns
    -------
    What ``manual_align_metadata.json`` holds.
    """
    factor = 2**params.level
    with atomic_path(output, overwrite=overwrite, directory=True) as folder:
        slices = []
        for volume in progress(volumes, len(volumes), "slices"):
            for name, picture in zip(FOLDERS, projections(volume, model), strict=True):
                rows = factor if name == "aips" else 1
                picture.shrunk(rows, factor).save(folder / name / f"{_stem(volume.slice_id)}.npz")
            slices.append(_described(volume, model))
        pairs = []
        for fixed, moving in zip(volumes, volumes[1:], strict=False):
            pairs.append(_export_pair(fixed, moving, model, folder, params))
        metadata = {
            "convention": _CONVENTION,
            "unit": "micrometer",
            "level": params.level,
            "voxel_um": list(model.voxel_um),
            "slice_interval_um": model.slice_interval_um,
            "slices": slices,
            "pairs": pairs,
        }
        write_json(folder / METADATA, metadata)
    return metadata


def projections(volume: SliceVolume, model: SliceRegistration) -> tuple[Picture, Picture, Picture]:
    """Return the means of a slice over depth, over axis 1 and over axis 2, read block by block.

    Masked voxels do not count.
    """
    nz, n1, n2 = volume.shape
    sums = [np.zeros(shape) for shape in ((n1, n2), (nz, n2), (nz, n1))]
    counts = [np.zeros_like(total) for total in sums]
    for i in range(0, n1, SHARD_PX):
        for j in range(0, n2, SHARD_PX):
            window = (slice(i, min(n1, i + SHARD_PX)), slice(j, min(n2, j + SHARD_PX)))
            data, valid = volume.read(slice(0, nz), window)
            data = to_host(data)
            there = np.ones(data.shape, bool) if valid is None else to_host(valid) > 0
            data = np.where(there, data, 0)
            places: list[tuple[slice, slice]] = [
                window,
                (slice(0, nz), window[1]),
                (slice(0, nz), window[0]),
            ]
            for axis, place in enumerate(places):
                sums[axis][place] += data.sum(axis=axis, dtype=np.float64)
                counts[axis][place] += there.sum(axis=axis)
    pixel, middle = _frame(volume, model)
    means = [
        (total / np.maximum(count, 1)).astype(np.float32)
        for total, count in zip(sums, counts, strict=True)
    ]
    return (
        Picture(means[0], (pixel[1], pixel[2]), (middle[1], middle[2])),
        Picture(means[1], (pixel[0], pixel[2]), (middle[0], middle[2])),
        Picture(means[2], (pixel[0], pixel[1]), (middle[0], middle[1])),
    )


def _frame(
    volume: SliceVolume, model: SliceRegistration
) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Return the voxel and the position of a slice's middle: depth, and stage positions."""
    pixel = model.voxel_um
    depth = _top_um(volume, model) + volume.shape[0] * pixel[0] / 2
    first, second = (
        corner + n * p / 2
        for corner, n, p in zip(volume.corner_um, volume.shape[1:], pixel[1:], strict=True)
    )
    return pixel, (depth, first, second)


def _top_um(volume: SliceVolume, model: SliceRegistration) -> float:
    """Return the depth of a slice's plane 0 below the first slice's face."""
    first_id = min(entry["slice_id"] for entry in model.slices)
    offset = entry_of(model, volume.slice_id)["offset_um"][0]
    face = (volume.slice_id - first_id) * model.slice_interval_um + offset
    return float(face + volume.face_to_plane_um)


def _export_pair(
    fixed: SliceVolume,
    moving: SliceVolume,
    model: SliceRegistration,
    folder: Path,
    params: ExportManualParams,
) -> dict[str, Any]:
    shared = shared_planes(fixed, moving, model, params.first_plane, params.slab_px)
    # Where nothing is shared, the end of the one is shown beside the top of the other.
    start, count = shared or (fixed.shape[0] - 1, 1)
    first = min(params.first_plane, moving.shape[0] - 1)
    slabs = {"fixed": slice(start, start + count), "moving": slice(first, first + count)}
    to_moving = np.linalg.inv(stage_to_common(model, moving.slice_id)) @ stage_to_common(
        model, fixed.slice_id
    )
    name = f"pair_z{fixed.slice_id:02d}_z{moving.slice_id:02d}"
    factor = 2**params.level
    pictures = {"fixed": _slab(fixed, slabs["fixed"], model)}
    pictures["moving"] = _slab(moving, slabs["moving"], model)
    centre_um = _centroid_um(pictures["fixed"])
    cuts_um = {"fixed": centre_um, "moving": (to_moving @ (*centre_um, 1.0))[:2]}
    for role, volume in (("fixed", fixed), ("moving", moving)):
        pictures[role].shrunk(factor, factor).save(folder / "aips" / f"{name}_{role}.npz")
        for axis, view in enumerate(("aips_xz", "aips_yz")):
            picture = _cut(volume, axis, cuts_um[role][axis], model, factor)
            picture.shrunk(1, factor).save(folder / view / f"{name}_{role}.npz")
    _, middle = _frame(fixed, model)
    transform = folder / "transforms" / _stem(moving.slice_id) / FILE_NAME
    write_transform(transform, to_moving, middle[1:])
    return {
        "fixed_id": fixed.slice_id,
        "moving_id": moving.slice_id,
        "fixed_planes": [slabs["fixed"].start, slabs["fixed"].stop],
        "moving_planes": [slabs["moving"].start, slabs["moving"].stop],
        "shares_planes": shared is not None,
        "pictures": name,
        "transform": str(transform.relative_to(folder)),
    }


def _slab(volume: SliceVolume, planes: slice, model: SliceRegistration) -> Picture:
    """Return the mean of some planes of a slice, read a plane at a time."""
    total = np.zeros(volume.shape[1:])
    count = np.zeros_like(total)
    for plane in range(planes.start, planes.stop):
        data, valid = volume.read(slice(plane, plane + 1), volume.whole())
        there = np.ones(total.shape) if valid is None else to_host(valid[0]) > 0
        total += to_host(data[0]) * there
        count += there
    pixel, middle = _frame(volume, model)
    mean = (total / np.maximum(count, 1)).astype(np.float32)
    return Picture(mean, (pixel[1], pixel[2]), (middle[1], middle[2]))


def _centroid_um(picture: Picture) -> np.ndarray:
    """Return where the mean of squared intensity lies, um."""
    power = picture.data.astype(np.float64) ** 2
    total = power.sum()
    middle = (np.array(picture.data.shape) - 1) / 2
    place = middle
    if total > 0:
        place = np.array(
            [
                (power.sum(axis=1 - axis) * np.arange(picture.data.shape[axis])).sum() / total
                for axis in (0, 1)
            ]
        )
    return np.asarray(picture.centre_um + (place - middle) * picture.pixel_um)


def _cut(
    volume: SliceVolume, axis: int, position_um: float, model: SliceRegistration, thick: int
) -> Picture:
    """Return some rows (axis 0) or columns (axis 1) at a stage position, averaged, over depth."""
    pixel, middle = _frame(volume, model)
    n = volume.shape[axis + 1]
    place = int((position_um - volume.corner_um[axis]) / pixel[axis + 1])
    low = int(np.clip(place - thick // 2, 0, max(0, n - thick)))
    window = list(volume.whole())
    window[axis] = slice(low, min(n, low + thick))
    data, valid = volume.read(slice(0, volume.shape[0]), (window[0], window[1]))
    data = to_host(data)
    there = np.ones(data.shape) if valid is None else to_host(valid) > 0
    total, count = (data * there).sum(axis=axis + 1), there.sum(axis=axis + 1)
    mean = (total / np.maximum(count, 1)).astype(np.float32)
    return Picture(mean, (pixel[0], pixel[2 - axis]), (middle[0], middle[2 - axis]))


def _described(volume: SliceVolume, model: SliceRegistration) -> dict[str, Any]:
    entry: Mapping[str, Any] = entry_of(model, volume.slice_id)
    return {
        "slice_id": volume.slice_id,
        "shape_px": list(volume.shape),
        "corner_um": list(volume.corner_um),
        "top_um": _top_um(volume, model),
        "offset_um": list(entry["offset_um"]),
        "rotation_deg": entry.get("rotation_deg", 0.0),
    }


def _stem(slice_id: int) -> str:
    return f"slice_z{slice_id:02d}"


def export_folder(
    folder: Path,
    shifts: Path | None,
    registration: Path,
    output: Path,
    params: ExportManualParams,
    *,
    config: Path | None = None,
    overwrite: bool = False,
    device: Device = CPU,
) -> dict[str, Any]:
    """Write a package of the slices of a folder: between files."""
    from linumpy.brain.slice_folder import load_folder
    from linumpy.io.models import load_model, model_place

    model = load_model(*model_place(registration), SliceRegistration)
    volumes, _, _ = load_folder(folder, shifts, config, device=device)
    known = {entry["slice_id"] for entry in model.slices}
    volumes = [volume for volume in volumes if volume.slice_id in known]
    return export_manual_align(volumes, model, output, params, overwrite=overwrite)
