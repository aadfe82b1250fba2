"""Images of tiles: means along depth, compared with NumPy and with their volumes."""

import numpy as np
import pytest

from linumpy.core.device import to_device, to_host
from linumpy.core.errors import InputError
from linumpy.flat.create_mosaic_grid_2d import (
    CreateMosaicGrid2d,
    create_mosaic_grid_2d,
    projected_planes,
)
from linumpy.flat.single_steps import project_to_grid
from linumpy.geometry.galvo import fix_galvo_shift
from linumpy.geometry.resample import resampling_matrices
from linumpy.io.grid import GridInfo, GridTile, open_grid
from linumpy.io.raw import discover_tiles, read_tile
from linumpy.slices.raw_source import raw_inputs
from linumpy.slices.tile import Tile
from linumpy.stage_params.flat import ProjectParams
from linumpy.stage_params.slices import ResampleParams

KEEP = {"resolution": -1.0}


def layout(shape=(20, 12, 10), voxel_um=(5.0, 8.0, 8.0)):
    return GridInfo(
        slice_id=4,
        tile_shape_px=shape,
        voxel_um=voxel_um,
        overlap_fraction=0.2,
        tiles=(GridTile(0, 0, 0.0, 0.0),),
        tile_fov_um=(shape[1] * voxel_um[1], shape[2] * voxel_um[2]),
    )


def test_pictures_are_means_of_raw_tiles(tiny, tmp_path, device):
    raw = raw_inputs(tiny / "raw", [1])[0]
    project_to_grid(raw, tmp_path / "flat_z01.ome.zarr", KEEP, device=device)
    grid = open_grid(tmp_path / "flat_z01.ome.zarr")
    assert grid.info.tile_shape_px == (1, 80, 80)
    assert grid.info.voxel_um == (600, 8, 8)
    for tile in discover_tiles(tiny / "raw")[1]:
        info = tile.read_info()
        volume = fix_galvo_shift(read_tile(tile, info), grid.info.galvo_shift_px, info.n_extra)
        expected = volume.astype(np.float64).mean(axis=0)
        found = grid.read_tile(tile.ix, tile.iy)[0]
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_grid_and_its_raw_tiles_give_the_same(tiny, tiny_grids, tmp_path):
    paths = [tmp_path / f"{way}_z01.ome.zarr" for way in ("raw", "grid")]
    inputs = [raw_inputs(tiny / "raw", [1])[0], tiny_grids[1]]
    values = {"resolution": 12.0, "projection_top": 120.0, "projection_depth": 150.0}
    for slice_input, path in zip(inputs, paths, strict=True):
        project_to_grid(slice_input, path, values)
    one, other = (open_grid(path) for path in paths)
    assert one.info == other.info
    assert one.info.voxel_um == (150, 12, 12)
    for tile in one.info.tiles:
        np.testing.assert_array_equal(
            one.read_tile(tile.ix, tile.iy), other.read_tile(tile.ix, tile.iy)
        )


def test_a_window_of_depth_is_averaged(rng, device):
    volume = rng.random((20, 12, 10), np.float32)
    stage = CreateMosaicGrid2d(ProjectParams(top_um=25.0, depth_um=30.0), ResampleParams(-1.0))
    stage.start(layout())
    picture = stage.apply(Tile((0, 0), to_device(volume, device)))
    assert picture.valid is None
    np.testing.assert_allclose(to_host(picture.data)[0], volume[5:11].mean(axis=0), rtol=1e-6)
    assert stage.layout(layout()).voxel_um == (30, 8, 8)


def test_masked_samples_do_not_count(rng, device):
    volume = rng.random((20, 12, 10), np.float32)
    valid = np.ones(volume.shape, np.uint8)
    valid[3:7, 2, 3] = 0
    valid[:, 5, 6] = 0
    volume[valid == 0] = 0
    data, mask = create_mosaic_grid_2d(
        to_device(volume, device), to_device(valid, device), slice(0, 20), [None] * 3
    )
    data, mask = to_host(data), to_host(mask)
    expected = volume.sum(axis=0) / np.maximum(valid.sum(axis=0), 1)
    np.testing.assert_allclose(data[0], expected, rtol=1e-5)
    assert mask[0, 5, 6] == 0 and mask.sum() == mask.size - 1
    assert data[0, 5, 6] == 0


def test_projection_and_lateral_resampling_commute(rng, device):
    volume = rng.random((20, 60, 50), np.float32)
    source, target = (5.0, 8.0, 8.0), (5.0, 10.0, 10.0)
    matrices = resampling_matrices(volume.shape, source, target)
    from linumpy.geometry.resample import apply_axis_weights

    expected = apply_axis_weights(volume, matrices).mean(axis=0)
    stage = CreateMosaicGrid2d(ProjectParams(), ResampleParams(10.0))
    stage.start(layout(volume.shape, source))
    found = to_host(stage.apply(Tile((0, 0), to_device(volume, device))).data)[0]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_image_of_depth_1_is_unchanged(rng, device):
    picture = rng.random((1, 12, 10), np.float32)
    stage = CreateMosaicGrid2d(ProjectParams(), ResampleParams(-1.0))
    stage.start(layout(picture.shape, (100.0, 8.0, 8.0)))
    found = stage.apply(Tile((0, 0), to_device(picture, device)))
    np.testing.assert_array_equal(to_host(found.data), picture)


def test_a_window_below_the_tiles_is_refused():
    """Seen to fail without the error of `create_mosaic_grid_2d.projected_planes`."""
    with pytest.raises(InputError, match="--projection_top 100: expected less than 100 um.*z04"):
        projected_planes(ProjectParams(top_um=100.0), layout())
    # A window that reaches beyond ends with the tile.
    assert projected_planes(ProjectParams(90.0, 500.0), layout()) == slice(18, 20)
