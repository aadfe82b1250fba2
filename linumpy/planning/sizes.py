"""Estimate sizes of outputs: grids, slices, brain, and the folders they lie in."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from linumpy.geometry.resample import resampled_length
from linumpy.planning.plan_params import PlanParams
from linumpy.planning.survey import SAMPLE_BYTES, SliceScan, Survey

GRID_STORED = 0.9
"""Stored share of a grid's bytes: float32 samples whose last bits are noise hardly compress."""

SLICE_STORED = 0.7
"""The same of a slice, where agarose is 0."""

BRAIN_STORED = 0.85
"""The same of a brain, with its mask."""

WATER_SHARE = 0.15
"""Assumed share of the imaged depth above the cut face, which no header states."""

PICTURE_STORED = 0.9
MODEL_BYTES_A_PIXEL = 12.0
"""Models, projection and preview of a slice, for each of its lateral pixels."""

REPORT_BYTES_A_SLICE = 500_000
RECORDS_BYTES = 4_000_000
"""Nextflow's own records."""

Shape = tuple[int, int, int]
Triple = tuple[float, float, float]


@dataclass(frozen=True)
class SliceSize:
    """A slice as the pipeline works on it.

    Attributes
    ----------
    resampled_bytes, resampled_tile_bytes
        Its tiles at the working voxel, float32.
    shape
        Of the volume, along z, axis 1, axis 2.
    """

    slice_id: int
    grid_bytes: int
    resampled_tile_bytes: int
    resampled_bytes: int
    shape: Shape

    @property
    def volume_bytes(self) -> int:
        """Bytes of the volume, float32."""
        return SAMPLE_BYTES * math.prod(self.shape)

    @property
    def plane_px(self) -> int:
        """Pixels of one plane."""
        return self.shape[1] * self.shape[2]


@dataclass(frozen=True)
class Sizes:
    """All sizes; bytes are those of float32 samples unless they are called stored.

    Attributes
    ----------
    brain_shape, voxel_um
        Of the brain's finest level.
    output_stored, work_stored
        Bytes on disk by what they are, in the output folder and in Nextflow's work folder.
    """

    slices: tuple[SliceSize, ...]
    brain_shape: Shape
    voxel_um: Triple
    output_stored: dict[str, int]
    work_stored: dict[str, int]

    @property
    def brain_bytes(self) -> int:
        """Bytes of the brain's finest level."""
        return SAMPLE_BYTES * math.prod(self.brain_shape)

    @property
    def slices_bytes(self) -> int:
        """Bytes of all slice volumes."""
        return sum(size.volume_bytes for size in self.slices)


def working_voxel(scan: SliceScan, resolution_um: float) -> Triple:
    """Return the voxel that tiles are resampled to; -1 keeps theirs."""
    return scan.voxel_um if resolution_um < 0 else (resolution_um,) * 3


def slice_size(scan: SliceScan, params: PlanParams) -> SliceSize:
    """Return the sizes of a slice's tiles and of its volume."""
    voxel = working_voxel(scan, params["resolution"])
    tile = [
        resampled_length(n, source, target)
        for n, source, target in zip(scan.tile_shape_px, scan.voxel_um, voxel, strict=True)
    ]
    tile_bytes = SAMPLE_BYTES * math.prod(tile)
    seen_um = (1 - WATER_SHARE) * scan.tile_shape_px[0] * scan.voxel_um[0]
    kept = math.ceil(min(params["crop_interface_out_depth"], seen_um) / voxel[0] - 1e-6)
    lateral = [math.ceil(um / v - 1e-6) for um, v in zip(scan.extent_um, voxel[1:], strict=True)]
    planes = 1 if params.is_2d else kept
    return SliceSize(
        slice_id=scan.slice_id,
        grid_bytes=scan.grid_bytes,
        resampled_tile_bytes=tile_bytes,
        resampled_bytes=scan.n_tiles * tile_bytes,
        shape=(planes, lateral[0], lateral[1]),
    )


def brain_shape(survey: Survey, sizes: Sequence[SliceSize], params: PlanParams) -> Shape:
    """Return voxels of the brain: all slices where the stage says that they lie."""
    voxel = working_voxel(survey.slices[0], params["resolution"])
    ids = survey.ids
    if params.is_2d:
        planes = ids[-1] - ids[0] + 1
    else:
        depth_um = (ids[-1] - ids[0]) * (survey.interval_um or 0.0)
        planes = round(depth_um / voxel[0]) + sizes[-1].shape[0]
    corners = [scan.corner_um for scan in survey.slices]
    lateral = []
    for axis in (0, 1):
        if all(corner is not None for corner in corners):
            low = min(corner[axis] for corner in corners if corner is not None)
            high = max(
                scan.corner_um[axis] + scan.extent_um[axis]
                for scan in survey.slices
                if scan.corner_um is not None
            )
            lateral.append(math.ceil((high - low) / voxel[axis + 1] - 1e-6))
        else:
            lateral.append(max(size.shape[axis + 1] for size in sizes))
    return (planes, lateral[0], lateral[1])


def pyramid_factor(voxel_um: Triple, levels_um: Sequence[float]) -> float:
    """Return the voxels of all levels over those of the finest."""
    factor = 1.0
    for level in sorted(set(levels_um)):
        share = math.prod(v / max(v, level) for v in voxel_um)
        factor += share if share < 1 else 0.0
    return factor


def plan_sizes(survey: Survey, params: PlanParams) -> Sizes:
    """Return the sizes of all that a run makes."""
    slices = tuple(slice_size(scan, params) for scan in survey.slices)
    voxel = working_voxel(survey.slices[0], params["resolution"])
    shape = brain_shape(survey, slices, params)
    grids = _grids_stored(survey, params)
    volumes = sum(size.volume_bytes for size in slices)
    brain = SAMPLE_BYTES * math.prod(shape) * pyramid_factor(voxel, params.pyramid_um)
    brain_stored = (PICTURE_STORED if params.is_2d else BRAIN_STORED) * brain
    made: dict[str, float] = {
        "mosaic grids": grids,
        "slices": SLICE_STORED * volumes,
        "brain with its pyramid": brain_stored,
        "models and images": MODEL_BYTES_A_PIXEL * sum(size.plane_px for size in slices),
        "report and records": REPORT_BYTES_A_SLICE * len(slices) + RECORDS_BYTES,
    }
    if params["align_to_ras_enabled"] and not params["ras_store_transform_only"]:
        made["brain in the atlas' frame"] = brain_stored
    if params["nifti_resolution"] is not None:
        coarse = math.prod(v / max(v, params["nifti_resolution"]) for v in voxel)
        made["NIfTI"] = SAMPLE_BYTES * math.prod(shape) * coarse
    resampled = sum(size.resampled_bytes for size in slices)
    if params["diagnostic_mode"]:
        stitched = SAMPLE_BYTES * sum(
            size.plane_px * resampled_length(scan.tile_shape_px[0], scan.voxel_um[0], voxel[0])
            for size, scan in zip(slices, survey.slices, strict=True)
        )
        made["diagnostics"] = GRID_STORED * stitched + brain_stored
    worked = dict(made)
    published = dict(made)
    if params["correct_bias_field"]:
        worked["brain before its bias field was corrected"] = brain_stored
    if not params["fused"]:
        worked["volumes between stages"] = GRID_STORED * (3 * resampled + 4 * volumes)
    if not params["keep_mosaic_grids"]:
        published["mosaic grids"] = 0
    if params["publish_mode"] not in ("copy", "copyNoFollow"):
        # What is linked takes its place once, in the work folder; records are written straight.
        published = dict.fromkeys(published, 0.0) | {"report and records": RECORDS_BYTES}
    return Sizes(slices, shape, voxel, _whole(published), _whole(worked))


def _grids_stored(survey: Survey, params: PlanParams) -> float:
    if survey.kind == "grids" or params.straight:
        return 0.0
    return GRID_STORED * survey.grid_bytes


def _whole(sizes: dict[str, float]) -> dict[str, int]:
    return {name: math.ceil(size) for name, size in sizes.items() if size}


@dataclass(frozen=True)
class Disk:
    """A file system that a run writes to.

    Attributes
    ----------
    folders
        Which of the run's folders lie on it.
    wanted_bytes, free_bytes
        What will be written, and what is free.
    """

    folders: tuple[str, ...]
    wanted_bytes: int
    free_bytes: int

    @property
    def suffices(self) -> bool:
        """Whether it holds what will be written."""
        return self.wanted_bytes <= self.free_bytes


def plan_disks(sizes: Sizes, output: Path, work: Path) -> tuple[Disk, ...]:
    """Return what is written where, against what is free; folders need not be there yet."""
    wanted = {output: sum(sizes.output_stored.values()), work: sum(sizes.work_stored.values())}
    by_device: dict[int, list[Path]] = {}
    for folder in wanted:
        by_device.setdefault(_existing(folder).stat().st_dev, []).append(folder)
    return tuple(
        Disk(
            folders=tuple(str(folder) for folder in folders),
            wanted_bytes=sum(wanted[folder] for folder in folders),
            free_bytes=shutil.disk_usage(_existing(folders[0])).free,
        )
        for folders in by_device.values()
    )


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest above it that is there."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())
