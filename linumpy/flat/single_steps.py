"""Single steps of the 2.5D flow between files, which the fused image takes in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from linumpy.core.device import CPU, Device
from linumpy.core.errors import InputError
from linumpy.flat.create_mosaic_grid_2d import CreateMosaicGrid2d
from linumpy.flat.crop_tiles import CropTiles
from linumpy.flat.estimate_transform import (
    StageTransform,
    estimate_transform,
    transformed_positions,
)
from linumpy.flat.stitch_2d import stitch_2d
from linumpy.io.grid import GridInfo, check_slice_ids
from linumpy.io.models import load_model, model_place, save_model
from linumpy.params import build
from linumpy.slices.engine import Source, Stage, make_store, run
from linumpy.slices.grid_io import GridSink, GridSource, SliceSink
from linumpy.slices.raw_source import (
    RawSource,
    SliceInput,
    open_source,
    with_masks_where_needed,
)
from linumpy.slices.register_stage import RegisterTiles
from linumpy.stage_params.flat import CropTilesParams, ProjectParams
from linumpy.stage_params.slices import ResampleParams, StitchParams
from linumpy.tiles.positions import TileRegistration


class _FlaggedGridSink(GridSink):
    """A grid sink that learns in the end what befell the tiles."""

    def flag(self, info: GridInfo) -> None:
        """Replace the flags of all tiles."""
        self._writer.update_flags({(tile.ix, tile.iy): tile.flags for tile in info.tiles})


def project_to_grid(
    slice_input: SliceInput,
    output: Path,
    values: Mapping[str, Any],
    *,
    overwrite: bool = False,
    device: Device = CPU,
) -> None:
    """Project the tiles of a mosaic grid, or of a raw slice, to a grid of depth 1."""
    resample = build(ResampleParams, values)
    stage = CreateMosaicGrid2d(build(ProjectParams, values), resample)
    source = open_source(slice_input, resample.assume_unit)
    with_masks_where_needed(partial(_write_grid, [stage], source, output, overwrite, device))


def crop_grid(
    grid: Path,
    output: Path,
    values: Mapping[str, Any],
    *,
    overwrite: bool = False,
    device: Device = CPU,
) -> None:
    """Crop the tiles of a mosaic grid."""
    stage = CropTiles(build(CropTilesParams, values))
    _write_grid([stage], GridSource.open(grid), output, overwrite, device)


def _write_grid(
    stages: Sequence[Stage], source: Source, output: Path, overwrite: bool, device: Device
) -> None:
    with _FlaggedGridSink(output, overwrite=overwrite) as sink:
        run(stages, source, [sink], device=device)
        if isinstance(source, RawSource):
            sink.flag(source.finish())


def estimate_transform_of(
    inputs: Sequence[Path],
    output: Path,
    *,
    use_motor_positions: bool = False,
    device: Device = CPU,
) -> StageTransform:
    """Fit the stage's linear error to several slices and write it as JSON.

    Parameters
    ----------
    inputs
        Mosaic grids, whose tiles are registered here, or ``register_tiles.json`` of slices whose
        tiles were.
    """
    check_slice_ids([path for path in inputs if path.suffix != ".json"])
    transform = estimate_transform(
        [_positions(path, use_motor_positions, device) for path in inputs],
        use_motor_positions=use_motor_positions,
    )
    save_model(*model_place(output), transform)
    return transform


def _positions(path: Path, as_reported: bool, device: Device) -> TileRegistration:
    if path.suffix == ".json":
        return load_model(*model_place(path), TileRegistration)
    source = GridSource.open(path)
    if as_reported:
        identity = StageTransform(
            [[1.0, 0.0], [0.0, 1.0]], [], 0.0, 90.0, (0.0, 0.0), [], 0, (0.0, 0.0)
        )
        return transformed_positions(source.layout, identity)
    register = RegisterTiles()
    run([register], source, device=device)
    positions: TileRegistration = register.model
    return positions


def stitch_grid_2d(
    grid: Path,
    output: Path,
    values: Mapping[str, Any],
    *,
    positions: Path | None = None,
    transform: Path | None = None,
    overwrite: bool = False,
    device: Device = CPU,
) -> None:
    """Stitch a grid of depth 1.

    Parameters
    ----------
    positions, transform
        Where tiles lie: ``register_tiles.json`` of the slice, or the stage's transform; tiles are
        registered when both are None.

    Raises
    ------
    InputError
        When the grid is deeper than one plane.
    """
    source = GridSource.open(grid)
    if source.layout.tile_shape_px[0] != 1:
        raise InputError(
            f"{grid}: tiles of {source.layout.tile_shape_px[0]} planes, expected one; project them "
            "with linum_create_mosaic_grid_2d.py"
        )
    register = RegisterTiles()
    if positions is not None:
        register.model = load_model(*model_place(positions), TileRegistration)
    elif transform is not None:
        register.model = transformed_positions(
            source.layout, load_model(*model_place(transform), StageTransform)
        )
    with make_store(device) as tiles, SliceSink(output, overwrite=overwrite) as sink:
        run([register] if register.model is None else [], source, keep=tiles, device=device)
        picture = stitch_2d(
            tiles, source.layout, register.model, build(StitchParams, values), device=device
        )
        run([], picture, [sink], device=device)
