"""Stages on the tiles of a mosaic grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from linumpy.core.device import to_host
from linumpy.core.errors import InputError
from linumpy.geometry.detect_focal_curvature import (
    FocalCurvature,
    correct_focal_curvature,
    fit_focal_curvature,
)
from linumpy.geometry.interface import find_tissue_interface
from linumpy.geometry.resample import (
    apply_axis_weights,
    resample_masked,
    resampled_length,
    resampling_matrices,
)
from linumpy.geometry.shared_field import TileMap, bin_map
from linumpy.intensity.fix_illumination_3d import (
    FlatField,
    brightness_map,
    fit_flat_field,
    fix_illumination_3d,
)
from linumpy.intensity.line_gain import LineMaps, fit_line_gain, line_maps, places_of
from linumpy.io.grid import GridInfo
from linumpy.slices.engine import Stage
from linumpy.slices.tile import Key, Tile
from linumpy.stage_params.slices import FocalParams, IlluminationParams, ResampleParams

_CELLS_A_SIDE = 48

_ROUNDING_PX = np.float32(1e-4)

LEAST_FLAT = 1e-3
"""Of a flat field whose mean is 1: what is divided by less would be noise alone."""


class ResampleMosaicGrid(Stage):
    """Brings tiles to the working resolution."""

    name = "resample_mosaic_grid"

    def __init__(self, params: ResampleParams) -> None:
        if params.resolution_um != -1 and not 0 < params.resolution_um < float("inf"):
            raise InputError(
                f"--resolution {params.resolution_um:g}: expected a size in um, "
                "or -1 to keep the grid's"
            )
        self._target_um = params.resolution_um

    def _target(self, layout: GridInfo) -> tuple[float, float, float]:
        return layout.voxel_um if self._target_um < 0 else (self._target_um,) * 3

    def start(self, layout: GridInfo) -> None:
        """Prepare the axis matrices."""
        target = self._target(layout)
        self._matrices = resampling_matrices(layout.tile_shape_px, layout.voxel_um, target)

    def layout(self, layout: GridInfo) -> GridInfo:
        """Return the grid of resampled tiles."""
        target = self._target(layout)
        shape = tuple(
            n if source == wanted else resampled_length(n, source, wanted)
            for n, source, wanted in zip(layout.tile_shape_px, layout.voxel_um, target, strict=True)
        )
        return replace(layout, tile_shape_px=(shape[0], shape[1], shape[2]), voxel_um=target)

    def apply(self, tile: Tile) -> Tile:
        """Resample a tile and its mask."""
        if all(matrix is None for matrix in self._matrices):
            return tile
        if tile.valid is None:
            return Tile(tile.key, apply_axis_weights(tile.data, self._matrices))
        data, valid = resample_masked(tile.data, tile.valid, self._matrices)
        return Tile(tile.key, data, valid)


class FieldStage(Stage):
    """A stage that learns a field shared by all tiles from one small map a tile.

    Tiles of several slices may be gathered, one slice after the other.

    Attributes
    ----------
    Params, Model
        Dataclasses of its parameters, one of which is ``enabled``, and of what it learns.
    """

    learns = True
    Params: ClassVar[type[Any]]
    Model: ClassVar[type[Any]]

    def __init__(self, params: Any = None, model: Any = None) -> None:
        self._params = self.Params() if params is None else params
        self.model = model
        self._values: dict[tuple[int, Key], np.ndarray] = {}
        self._corners_px: dict[tuple[int, Key], np.ndarray] = {}

    def start(self, layout: GridInfo) -> None:
        """Note the tiles' size and where the stage put them."""
        self._tile_shape = layout.tile_shape_px[1:]
        self._voxel_um = layout.voxel_um
        self._depth_um = layout.tile_shape_px[0] * layout.voxel_um[0]
        self._cell = max(1, min(self._tile_shape) // _CELLS_A_SIDE)
        self._slice_id = layout.slice_id
        corners = layout.corner_um() / np.asarray(layout.voxel_um[1:])
        for tile, corner in zip(layout.tiles, corners, strict=True):
            self._corners_px[layout.slice_id, (tile.ix, tile.iy)] = corner
        self.check_model()

    def check_model(self) -> None:
        """Refuse a model that was learned on tiles of another size."""

    def gather(self, key: Key, measurement: Any) -> None:
        """Keep the map of one tile."""
        self._values[self._slice_id, key] = measurement

    def place(self, slice_id: int, corners_um: Mapping[Key, np.ndarray]) -> None:
        """Put the maps of a slice where its tiles were registered."""
        for key, corner in corners_um.items():
            self._corners_px[slice_id, key] = corner / np.asarray(self._voxel_um[1:])

    @property
    def maps(self) -> list[TileMap]:
        """All maps gathered, with positions."""
        return [
            TileMap(values, slice_id, tuple(self._corners_px[slice_id, key]))
            for (slice_id, key), values in self._values.items()
        ]

    def _refuse_other_size(self, shape: tuple[int, ...], what: str) -> None:
        if tuple(shape) != tuple(self._tile_shape):
            raise InputError(
                f"{what} was learned on tiles of {tuple(shape)} pixels, "
                f"but these have {tuple(self._tile_shape)}; learn it at this resolution"
            )


class DetectFocalCurvature(FieldStage):
    """Flattens the focal surface; one model serves the acquisition."""

    name = "detect_focal_curvature"
    Params, Model = FocalParams, FocalCurvature

    def check_model(self) -> None:
        """Refuse a surface of another tile size."""
        if self.model is not None:
            self._refuse_other_size(self.model.surface_um.shape, "the focal curvature")
            if not (abs(self.model.surface_um) < self._depth_um).all():
                raise InputError(
                    f"the focal curvature moves A-lines by {np.abs(self.model.surface_um).max():g} "
                    f"um; expected less than the depth of the tiles, {self._depth_um:g} um"
                )

    def measure(self, tile: Tile) -> np.ndarray:
        """Return the interface in cells, NaN where nothing is valid."""
        depth = find_tissue_interface(
            tile.data,
            self._params.sigma_xy_px,
            self._params.sigma_z_px,
            valid=tile.valid,
            axis=0,
        )
        return bin_map(depth, self._cell)

    def solve(self) -> FocalCurvature:
        """Fit the surface."""
        return fit_focal_curvature(self.maps, self._tile_shape, self._voxel_um, cell=self._cell)

    def apply(self, tile: Tile) -> Tile:
        """Move the A-lines."""
        surface = self.model.surface_um / np.float32(self._voxel_um[0])
        # Whole planes, but for rounding.
        whole = np.rint(surface)
        surface = np.where(abs(surface - whole) < _ROUNDING_PX, whole, surface)
        data, valid = correct_focal_curvature(tile.data, surface, tile.valid)
        return Tile(tile.key, data, valid)


class FixIllumination3d(FieldStage):
    """Divide tiles by the flat field; one model serves the acquisition."""

    name = "fix_illumination_3d"
    Params, Model = IlluminationParams, FlatField

    def __init__(
        self, params: IlluminationParams | None = None, model: FlatField | None = None
    ) -> None:
        super().__init__(params, model)
        self._lines: dict[tuple[int, Key], LineMaps] = {}

    def check_model(self) -> None:
        """Refuse a flat field of another tile size."""
        if self.model is not None:
            self._refuse_other_size(self.model.flat_field.shape, "the flat field")
            if not (self.model.flat_field >= LEAST_FLAT).all():
                raise InputError(
                    f"the flat field falls to {np.min(self.model.flat_field):g}; expected at least "
                    f"{LEAST_FLAT:g}, with a mean of 1"
                )

    def measure(self, tile: Tile) -> tuple[np.ndarray, LineMaps]:
        """Return ln brightness in cells and in lines, NaN where it is dark."""
        brightness = to_host(brightness_map(tile.data, tile.valid))
        return np.log(bin_map(brightness, self._cell)), line_maps(brightness, self._cell)

    def gather(self, key: Key, measurement: tuple[np.ndarray, LineMaps]) -> None:
        """Keep the maps of one tile."""
        super().gather(key, measurement[0])
        self._lines[self._slice_id, key] = measurement[1]

    def solve(self) -> FlatField:
        """Fit the flat field."""
        return fit_flat_field(
            self.maps,
            self._tile_shape,
            self._voxel_um,
            cell=self._cell,
            lines=[self._lines[place] for place in self._values],
        )

    def line_gain(self) -> np.ndarray | None:
        """Return the gains of single lines, as far as tiles show them without a field.

        float32 (axis 1, axis 2), None where none stands out.
        """
        corners = np.array([m.corner_px for m in self.maps]).reshape(-1, 2)
        places = places_of(corners, self._tile_shape)
        first, second = (
            fit_line_gain([self._lines[place].across[axis] for place in self._values], places).short
            for axis in (0, 1)
        )
        if not (first.any() or second.any()):
            return None
        return np.exp(first[:, None] + second).astype(np.float32)

    def apply(self, tile: Tile) -> Tile:
        """Divide a tile."""
        return Tile(tile.key, fix_illumination_3d(tile.data, self.model.flat_field), tile.valid)


LEARNED: dict[str, type[FieldStage]] = {
    kind.name: kind for kind in (DetectFocalCurvature, FixIllumination3d)
}
"""Stages with a model of the acquisition, in the order of the chain; the first flattens tiles."""
