"""Stitch at stage positions, to compare with registration."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linumpy.core.device import CPU, Device
from linumpy.io.grid import GridInfo, open_grid
from linumpy.io.models import save_model
from linumpy.slices.register_stage import RegisterTiles
from linumpy.slices.single_stages import stitch_grid
from linumpy.tiles.positions import PlacedTile, TileRegistration


def stage_positions(info: GridInfo) -> TileRegistration:
    """Return the positions of a grid's tiles as the stage reported them."""
    corners = info.corner_um().tolist()
    return TileRegistration(
        slice_id=info.slice_id,
        voxel_um=info.voxel_um,
        tile_shape_px=info.tile_shape_px,
        tiles=[
            PlacedTile(tile.ix, tile.iy, tuple(corner), tuple(corner), component=-1, n_pairs=0)
            for tile, corner in zip(info.tiles, corners, strict=True)
            if tile.present
        ],
        pairs=[],
        stage_affine=[[1.0, 0.0], [0.0, 1.0]],
    )


def stitch_motor_only(
    grid: Path,
    output: Path,
    values: Mapping[str, Any],
    *,
    overwrite: bool = False,
    device: Device = CPU,
) -> None:
    """Stitch a corrected grid at the stage's positions.

    Parameters
    ----------
    grid, output
        Mosaic grid to read and slice volume to write.
    values
        Parameters of stitching under their pipeline names.
    """
    name = RegisterTiles.name
    with tempfile.TemporaryDirectory(prefix="linumpy-stage-") as folder:
        save_model(folder, name, stage_positions(open_grid(grid).info))
        stitch_grid(
            grid,
            output,
            values,
            positions=Path(folder) / f"{name}.json",
            overwrite=overwrite,
            device=device,
        )
