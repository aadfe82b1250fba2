"""Stages on the blocks of a stitched slice, and the stitched slice itself as their source."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from linumpy.core.device import CPU, Array, Device, like, to_device, to_host
from linumpy.core.errors import InputError
from linumpy.core.log import logger
from linumpy.geometry.canvas import check_canvas
from linumpy.geometry.crop_3d_mosaic_below_interface import (
    InterfaceCut,
    crop_3d_mosaic_below_interface,
    cut_planes,
    searched_planes,
    solve_interface_cut,
)
from linumpy.geometry.interface_surface import PARTS, cell_size_px, profiles_and_parts
from linumpy.geometry.neighbours import boxes_by_block
from linumpy.intensity.normalize_intensities_per_slice import (
    AgaroseMask,
    Normalization,
    depth_mean,
    find_agarose,
    normalize_intensities_per_slice,
    solve_normalization,
)
from linumpy.intensity.quantiles import float_histogram
from linumpy.io.grid import GridInfo
from linumpy.io.omezarr import Triple
from linumpy.io.slice_layout import SHARD_PX, SliceLayout
from linumpy.slices.engine import Source, Stage, on_device
from linumpy.slices.odd_tiles import contradicting_tiles
from linumpy.slices.store import TileStore
from linumpy.slices.tile import Key, Tile
from linumpy.stage_params.slices import CropParams, NormalizeParams, StitchParams
from linumpy.tiles.positions import TileRegistration
from linumpy.tiles.scan_distortion import Straightening
from linumpy.tiles.stitch_3d_refined import (
    blending_weights,
    canvas_shape,
    stitch_3d_refined,
)


class StitchedSource(Source):
    """A slice put together, block by block, from tiles in a store."""

    def __init__(
        self,
        store: TileStore,
        grid: GridInfo,
        positions: TileRegistration,
        params: StitchParams,
        *,
        device: Device = CPU,
    ) -> None:
        corners = positions.corners_um()
        imaged = [(t.ix, t.iy) for t in grid.tiles if t.present]
        missing = [key for key in imaged if key not in corners]
        if missing:
            raise InputError(f"tile positions of slice z{grid.slice_id:02d} lack tile {missing[0]}")
        self._store = store
        self._device = device
        self._keys = imaged
        lateral_um = np.asarray(grid.voxel_um[1:])
        position_px = np.array([corners[key] for key in imaged]) / lateral_um
        self._tile_shape = grid.tile_shape_px[1:]
        check_canvas(
            {
                f"slice z{grid.slice_id:02d}: tile {key}": at
                for key, at in zip(imaged, position_px, strict=True)
            },
            np.ptp(position_px, axis=0) + self._tile_shape,
            len(imaged) * math.prod(self._tile_shape),
        )
        corner_px, shape = canvas_shape(position_px, self._tile_shape)
        self._offset_px = position_px - corner_px
        self._in_block = boxes_by_block(self._offset_px, self._tile_shape, SHARD_PX)
        overlap = tuple(n * grid.overlap_fraction for n in self._tile_shape)
        self._weights = blending_weights(
            self._tile_shape,
            overlap,  # type: ignore[arg-type]
            params.blending_method,
        )
        # They keep their places: what they would cover, others show, or nothing does.
        self._dim = positions.dim_tiles(params.min_tile_brightness)
        if self._dim:
            logger.warning(
                "slice z%02d: tiles %s are dark and left out",
                grid.slice_id,
                ", ".join(f"({ix}, {iy})" for ix, iy in sorted(self._dim)),
            )
        self._odd = contradicting_tiles(positions)
        if self._odd:
            logger.warning(
                "slice z%02d: tiles %s contradict their neighbours and are left out",
                grid.slice_id,
                ", ".join(f"({ix}, {iy})" for ix, iy in sorted(self._odd)),
            )
        self._left_out = self._dim | self._odd
        error_px = positions.scan_error_px()
        self._straightening = None if error_px is None else Straightening.of(error_px)
        corner_um = corner_px * lateral_um
        self.layout = SliceLayout(
            shape=(grid.tile_shape_px[0], *shape),
            voxel_um=grid.voxel_um,
            corner_um=(0.0, float(corner_um[0]), float(corner_um[1])),
            attributes={
                "kind": "slice",
                "slice_id": grid.slice_id,
                "slice_interval_um": grid.slice_interval_um,
                "slice_thickness_um": grid.slice_thickness_um,
                "stage_z_mm": grid.stage_z_mm,
                "interface_um": None,
                "stage_to_array": grid.stage_to_array,
                # Holes have no stage position of their own; the imaged tiles decide.
                "nominal_positions": all(
                    "nominal_position" in t.flags for t in grid.tiles if t.present
                ),
                "flags": self._flags(grid),
                "missing_tiles": [[t.ix, t.iy] for t in grid.tiles if not t.present],
            },
        )

    def _flags(self, grid: GridInfo) -> dict[str, list[str]]:
        """Return the flags of odd tiles; those that are left out are dark or contradict others."""
        found = {}
        for tile in grid.tiles:
            flags = list(tile.flags)
            if (tile.ix, tile.iy) in self._dim and "dark" not in flags:
                flags.append("dark")
            if (tile.ix, tile.iy) in self._odd:
                flags.append("contradicts")
            if flags:
                found[f"{tile.ix},{tile.iy}"] = flags
        return found

    def keys(self) -> Sequence[Key]:
        """All blocks, row by row."""
        return self.layout.keys()

    def read(self, key: Key) -> Tile:
        """Blend one block from its tiles, on the engine's device."""
        return self._blend(key, self._device)

    def _blend(self, key: Key, device: Device) -> Tile:
        window = self.layout.window(key)
        numbers = self._in_block.get(key, [])
        # Of several GPUs the one that blends gets copies of the others' tiles.
        where = None if device.index is None else device

        def placed() -> list[tuple[Array, Array | None, Sequence[float]]]:
            out = []
            for n in numbers:
                if self._keys[n] in self._left_out:
                    continue
                tile = self._store.get(self._keys[n], where)
                valid = None if tile.valid is None else to_device(tile.valid, device)
                data = to_device(tile.data, device)
                if self._straightening is not None:
                    data, valid = self._straightening.apply(data, valid)
                out.append((data, valid, self._offset_px[n]))
            return out

        depth = to_device(np.empty((self.layout.shape[0], 0, 0), np.float32), device)
        data, valid = stitch_3d_refined(placed(), self._weights, window, depth)
        return Tile(key, data, valid)

    def read_many(self, keys: Sequence[Key], device: Device) -> list[Tile]:
        """Blend blocks one after the other, in the order of the current stream."""
        if not device.is_gpu:
            return [on_device(self.read(key), device) for key in keys]
        return [self._blend(key, device) for key in keys]


class Crop3dMosaicBelowInterface(Stage):
    """Cuts a slice at its interface: a smooth surface, or one plane."""

    name = "crop_3d_mosaic_below_interface"
    learns = True

    def __init__(self, params: CropParams, model: InterfaceCut | None = None) -> None:
        self._params = params
        self.model = model

    def start(self, layout: SliceLayout) -> None:
        """Prepare the profiles of the slice's cells."""
        self._layout = layout
        self._cell = cell_size_px(layout.voxel_um[1:])
        self._searched = searched_planes(layout.shape[0], self._params.max_depth_fraction)
        cells = [-(-n // self._cell) for n in layout.shape[1:]]
        parts = [n * min(PARTS, self._cell) for n in cells]
        self._profiles = np.zeros((2, self._searched, *cells), np.float32)
        self._levels = np.full((self._searched, *parts), np.nan, np.float16)

    def measure(self, tile: Tile) -> tuple[Array, Array]:
        """Return the profiles of a block's cells and of their parts."""
        valid = None if tile.valid is None else tile.valid[: self._searched]
        return profiles_and_parts(tile.data[: self._searched], valid, self._cell)

    def gather(self, key: Key, measurement: tuple[Array, Array]) -> None:
        """Put one block's profiles in their place; blocks are whole cells wide."""
        wholes: tuple[np.ndarray, ...] = (self._profiles, self._levels)
        for found, whole in zip(measurement, wholes, strict=True):
            side = self._cell * self._profiles.shape[-1] // whole.shape[-1]
            first, second = (
                slice(part.start // side, part.start // side + n)
                for part, n in zip(self._layout.window(key), found.shape[-2:], strict=True)
            )
            whole[..., first, second] = to_host(found)

    def solve(self) -> InterfaceCut:
        """Fit the surface and choose the planes to keep."""
        return solve_interface_cut(
            *self._profiles,
            slice_id=self._layout.slice_id,
            n_planes=self._layout.shape[0],
            voxel_um=self._layout.voxel_um,
            corner_um=self._layout.corner_um[1:],
            cell_px=self._cell,
            s_z=self._params.sigma_z_px,
            depth_um=self._params.depth_um,
            flat=self._params.flat,
            levels=self._levels,
        )

    def layout(self, layout: SliceLayout) -> SliceLayout:
        """Return the geometry of the cropped slice."""
        cut: InterfaceCut = self.model
        top_um = layout.corner_um[0] + cut.first_plane * layout.voxel_um[0]
        return replace(
            layout,
            shape=(cut.n_planes, *layout.shape[1:]),
            corner_um=(top_um, *layout.corner_um[1:]),
            attributes={**layout.attributes, "interface_um": cut.interface_um},
        )

    def apply(self, tile: Tile) -> Tile:
        """Keep a block's planes below the interface."""
        cut: InterfaceCut = self.model
        top = cut_planes(cut, self._layout.voxel_um, self._layout.window(tile.key))
        data, valid = crop_3d_mosaic_below_interface(
            tile.data, tile.valid, cut.first_plane, cut.n_planes, top
        )
        return Tile(tile.key, data, valid)


class FindAgarose(Stage):
    """Measure a slice's depth mean, kept in `depth_mean`, and separate agarose from tissue.

    Attributes
    ----------
    when_measured
        Called with the depth mean and the slice's voxels (um), before agarose is sought.
    """

    name = "normalize_intensities_per_slice"
    learns = True
    changes = False

    when_measured: Callable[[np.ndarray, Triple], object] | None = None

    def __init__(self, params: NormalizeParams) -> None:
        self._params = params

    def start(self, layout: SliceLayout) -> None:
        """Prepare the map of depth means."""
        self._layout = layout
        self.depth_mean = np.full(layout.shape[1:], np.nan, dtype=np.float32)

    def measure(self, tile: Tile) -> Array:
        """Return a block's depth mean."""
        return depth_mean(tile.data, tile.valid)

    def gather(self, key: Key, measurement: Array) -> None:
        """Put one block into the map."""
        self.depth_mean[self._layout.window(key)] = to_host(measurement)

    def solve(self) -> AgaroseMask:
        """Threshold the map."""
        if self.when_measured is not None:
            self.when_measured(self.depth_mean, self._layout.voxel_um)
        return find_agarose(self.depth_mean, self._params.sigma_px)


class NormalizeIntensitiesPerSlice(Stage):
    """Normalises a slice; `agarose` must come before it in the chain."""

    name = "normalize_intensities_per_slice"
    learns = True

    def __init__(self, params: NormalizeParams, agarose: FindAgarose) -> None:
        self._params = params
        self._agarose = agarose

    def start(self, layout: SliceLayout) -> None:
        """Start empty histograms."""
        self._layout = layout
        self._counts: list[Array] = []

    def measure(self, tile: Tile) -> tuple[Array, Array]:
        """Return histograms of each plane, of all valid voxels and of the agarose."""
        planes = tile.data.shape[0]
        values = tile.data.reshape(planes, -1)
        valid = None if tile.valid is None else tile.valid.reshape(planes, -1)
        agarose = like(self._agarose.model.mask[self._layout.window(tile.key)], tile.data)
        return (
            float_histogram(values, valid),
            float_histogram(values, valid, agarose.ravel()),
        )

    def gather(self, key: Key, measurement: tuple[Array, Array]) -> None:
        """Add one block's histograms, where they lie."""
        if not self._counts:
            self._counts = list(measurement)
            return
        for held, new in zip(self._counts, measurement, strict=True):
            held += new

    def solve(self) -> Normalization:
        """Choose floor, cap and scale."""
        everything, agarose = map(to_host, self._counts)
        # Below lies what the next slice shows better: often noise that a large gain raised.
        interval_um = self._layout.attributes.get("slice_interval_um")
        n_upper = max(1, round(interval_um / self._layout.voxel_um[0])) if interval_um else None
        return solve_normalization(
            self._layout.slice_id,
            everything,
            agarose,
            self._agarose.model.agarose_fraction,
            self._params.percentile_max,
            n_upper,
        )

    def layout(self, layout: SliceLayout) -> SliceLayout:
        """Say in the slice's attributes what was subtracted, and what it was divided by."""
        own = {
            "agarose_share": self.model.agarose_fraction,
            "amplitude_scale": float(self.model.scale),
        }
        return replace(layout, attributes={**layout.attributes, **own})

    def apply(self, tile: Tile) -> Tile:
        """Normalise a block."""
        data = normalize_intensities_per_slice(tile.data, tile.valid, self.model)
        return Tile(tile.key, data, tile.valid)
