"""Project tiles along depth to a mosaic grid of depth 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from linumpy.core.device import Array, namespace
from linumpy.core.errors import InputError
from linumpy.geometry.resample import (
    apply_axis_weights,
    resample_masked,
    resampled_length,
    resampling_matrices,
)
from linumpy.intensity.normalize_intensities_per_slice import depth_mean
from linumpy.io.grid import GridInfo
from linumpy.slices.engine import Stage
from linumpy.slices.tile import Tile
from linumpy.stage_params.flat import ProjectParams
from linumpy.stage_params.slices import ResampleParams


def create_mosaic_grid_2d(
    volume: Array,
    valid: Array | None,
    planes: slice,
    matrices: Sequence[np.ndarray | None],
) -> tuple[Array, Array | None]:
    """Average a tile over a range of depth, and resample the image.

    Parameters
    ----------
    volume
        Tile (z, axis 1, axis 2), float32 amplitudes, NumPy or CuPy.
    valid
        Its mask, or None.
    planes
        Depth samples that are averaged.
    matrices
        Axis matrices of an image (1, axis 1, axis 2), from
        `linumpy.geometry.resample.resampling_matrices`; None keeps an axis.

    Returns
    -------
    Image (1, axis 1, axis 2), float32, and its mask (uint8); None where all is data.
    """
    xp = namespace(volume)
    mean = depth_mean(volume[planes], None if valid is None else valid[planes])[None]
    # Only masked columns have no mean.
    good = None if valid is None else xp.isfinite(mean)
    if good is None or bool(good.all()):
        return apply_axis_weights(mean, list(matrices)), None
    return resample_masked(xp.where(good, mean, xp.float32(0)), good.astype(xp.uint8), matrices)


class CreateMosaicGrid2d(Stage):
    """Project tiles to images of depth 1, at the working resolution."""

    name = "create_mosaic_grid_2d"

    def __init__(self, project: ProjectParams, resample: ResampleParams) -> None:
        self._project = project
        self._resolution_um = resample.resolution_um

    def start(self, layout: GridInfo) -> None:
        """Choose the planes, and prepare the axis matrices."""
        self._planes = projected_planes(self._project, layout)
        depth_um = layout.voxel_um[0] * (self._planes.stop - self._planes.start)
        first, second = layout.voxel_um[1:]
        target = (first, second) if self._resolution_um < 0 else (self._resolution_um,) * 2
        self._voxel_um = (depth_um, *target)
        source = (1, *layout.tile_shape_px[1:])
        self._shape = (
            1,
            *(
                n if pixel == wanted else resampled_length(n, pixel, wanted)
                for n, pixel, wanted in zip(source[1:], (first, second), target, strict=True)
            ),
        )
        self._matrices = resampling_matrices(source, (depth_um, first, second), self._voxel_um)

    def layout(self, layout: GridInfo) -> GridInfo:
        """Return the grid of images; a voxel is as deep as what was averaged."""
        _, n1, n2 = self._shape
        return replace(layout, tile_shape_px=(1, n1, n2), voxel_um=self._voxel_um)

    def apply(self, tile: Tile) -> Tile:
        """Project and resample a tile."""
        return Tile(
            tile.key, *create_mosaic_grid_2d(tile.data, tile.valid, self._planes, self._matrices)
        )


def projected_planes(params: ProjectParams, layout: GridInfo) -> slice:
    """Return the depth samples of the wanted range.

    Raises
    ------
    InputError
        When the range holds no sample of the tiles.
    """
    n_planes, axial_um = layout.tile_shape_px[0], layout.voxel_um[0]
    first = round(params.top_um / axial_um)
    stop = n_planes
    if params.depth_um:
        stop = min(n_planes, first + max(1, round(params.depth_um / axial_um)))
    if first >= n_planes:
        raise InputError(
            f"--projection_top {params.top_um:g}: expected less than {n_planes * axial_um:g} um, "
            f"the depth of the tiles of slice z{layout.slice_id:02d}"
        )
    return slice(first, stop)
