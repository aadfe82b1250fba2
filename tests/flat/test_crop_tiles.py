"""Cropped tiles keep their positions."""

from dataclasses import replace

import numpy as np
import pytest

from linumpy.core.device import to_device, to_host
from linumpy.core.errors import InputError
from linumpy.flat.crop_tiles import CropTiles, crop_window
from linumpy.flat.single_steps import crop_grid
from linumpy.io.grid import GridInfo, GridTile, open_grid
from linumpy.slices.tile import Tile
from linumpy.stage_params.flat import CropTilesParams

LAYOUT = GridInfo(
    slice_id=2,
    tile_shape_px=(3, 40, 30),
    voxel_um=(5.0, 8.0, 6.0),
    overlap_fraction=0.25,
    tiles=tuple(GridTile(i, j, 0.24 * i, 0.135 * j) for i in range(2) for j in range(2)),
    tile_fov_um=(320.5, 180.5),
)
PARAMS = CropTilesParams(xmin=4, xmax=35, ymin=0, ymax=27)


@pytest.mark.parametrize("axes", ["+x,+y", "-y,+x", "+x,-y"])
def test_positions_follow(axes):
    before = replace(LAYOUT, stage_to_array=axes)
    stage = CropTiles(PARAMS)
    stage.start(before)
    after = stage.layout(before)
    assert after.tile_shape_px == (3, 31, 27)
    assert after.tile_fov_um == (248, 162)
    moved = after.corner_um() - before.corner_um()
    np.testing.assert_allclose(moved, np.tile([4 * 8.0, 0.0], (4, 1)), atol=1e-9)
    # The step stays: 320.5 * 0.75 = 240.4 of 248, and 180.5 * 0.75 = 135.4 of 162.
    expected = np.mean([1 - 320.5 * 0.75 / 248, 1 - 180.5 * 0.75 / 162])
    assert after.overlap_fraction == pytest.approx(expected)


def test_pixels_are_cut(rng, device):
    data = rng.random((3, 40, 30), np.float32)
    valid = (data > 0.3).astype(np.uint8)
    stage = CropTiles(PARAMS)
    stage.start(LAYOUT)
    tile = stage.apply(Tile((0, 1), to_device(data, device), to_device(valid, device)))
    assert tile.data.flags.c_contiguous
    np.testing.assert_array_equal(to_host(tile.data), data[:, 4:35, :27])
    np.testing.assert_array_equal(to_host(tile.valid), valid[:, 4:35, :27])


def test_by_default_nothing_is_cut(rng):
    stage = CropTiles(CropTilesParams())
    stage.start(LAYOUT)
    tile = Tile((0, 0), rng.random((3, 40, 30), np.float32))
    assert stage.apply(tile) is tile
    assert stage.layout(LAYOUT) is LAYOUT


@pytest.mark.parametrize("limits", [{"xmin": 40}, {"xmax": 41}, {"ymin": 9, "ymax": 9}])
def test_limits_outside_the_tile_are_refused(limits):
    """Seen to fail without the error of `crop_tiles.crop_window`."""
    axis = next(iter(limits))[0]
    with pytest.raises(InputError, match=f"--crop_tiles_{axis}min .* of slice z02"):
        crop_window(CropTilesParams(**limits), LAYOUT)


def test_a_volume_grid_can_be_cropped(tiny_grids, tmp_path):
    crop_grid(tiny_grids[0], tmp_path / "c_z00.ome.zarr", {"crop_tiles_xmin": 10})
    before, after = open_grid(tiny_grids[0]), open_grid(tmp_path / "c_z00.ome.zarr")
    np.testing.assert_array_equal(after.read_tile(1, 2), before.read_tile(1, 2)[:, 10:])
