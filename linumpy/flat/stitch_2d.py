"""Stitch the projected tiles of a slice into one image."""

from __future__ import annotations

from dataclasses import dataclass

from linumpy.core.device import CPU, Device
from linumpy.io.grid import GridInfo
from linumpy.io.omezarr import ImageSpec
from linumpy.io.slice_layout import SHARD_PX, SliceLayout
from linumpy.slices.block_stages import StitchedSource
from linumpy.slices.store import TileStore
from linumpy.stage_params.slices import StitchParams
from linumpy.tiles.positions import TileRegistration

KIND = "slice_2d"
_CHUNK_PX = 128


@dataclass(frozen=True)
class PictureLayout(SliceLayout):
    """Geometry of a slice of one plane, on disk one shard a block."""

    def spec(self) -> ImageSpec:
        """Return how the image is written."""
        return ImageSpec(
            shape=self.shape,
            voxel_um=self.voxel_um,
            translation_um=tuple(  # type: ignore[arg-type]
                c + v / 2 for c, v in zip(self.corner_um, self.voxel_um, strict=True)
            ),
            chunks=(1, _CHUNK_PX, _CHUNK_PX),
            shards=(1, SHARD_PX, SHARD_PX),
            attributes=self.attributes,
        )


def stitch_2d(
    tiles: TileStore,
    grid: GridInfo,
    positions: TileRegistration,
    params: StitchParams,
    *,
    device: Device = CPU,
) -> StitchedSource:
    """Return the blocks of an image that is blended from tiles where they were registered.

    Parameters
    ----------
    tiles
        Tiles of depth 1.
    grid
        Their grid.
    positions
        Where they lie; all imaged tiles are needed.
    """
    source = StitchedSource(tiles, grid, positions, params, device=device)
    volume = source.layout
    kept = {k: v for k, v in volume.attributes.items() if k != "interface_um"}
    source.layout = PictureLayout(
        shape=volume.shape,
        voxel_um=volume.voxel_um,
        corner_um=volume.corner_um,
        attributes={**kept, "kind": KIND},
    )
    return source
