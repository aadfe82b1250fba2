"""The projection of a mosaic grid, as a grid one plane deep."""

from dataclasses import replace

import numpy as np
import pytest

from linumpy.io.grid import create_grid, open_grid, tile_window
from linumpy.slices.aip_output import write_aip_image

from ..io.test_grid import grid_info

HOLE = (1, 0)


def written(path, rng, with_valid):
    """Write a grid that lacks a tile; return its geometry, and voxels and mask of the whole."""
    info = grid_info()
    tiles = tuple(replace(t, present=(t.ix, t.iy) != HOLE) for t in info.tiles)
    info = replace(info, tiles=tiles)
    data = rng.random(info.shape, np.float32)
    valid = (data > 0.1).astype(np.uint8)
    # Columns of one tile have no data at all.
    valid[:, :5, :7] = 0
    if not with_valid:
        valid[:] = 1
    with create_grid(path, info, overwrite=False, with_valid=with_valid) as writer:
        for ix, iy in np.ndindex(info.grid_shape):
            window = tile_window(info, ix, iy)
            if (ix, iy) == HOLE:
                valid[window] = 0
            else:
                writer.write_tile(ix, iy, data[window], valid[window] if with_valid else None)
    return info, data, valid


@pytest.mark.parametrize("with_valid", [True, False])
def test_a_projection_is_the_mean_of_what_is_valid(tmp_path, rng, device, with_valid):
    """Seen to fail where voxels without data count, and where columns without any stay NaN."""
    info, data, valid = written(tmp_path / "grid_z03.ome.zarr", rng, with_valid)
    output = tmp_path / "aip_z03.ome.zarr"
    write_aip_image(tmp_path / "grid_z03.ome.zarr", output, device=device)
    flat = open_grid(output)
    expected = (data * valid).sum(0) / np.maximum(valid.sum(0), 1)
    for tile in flat.info.tiles:
        window = tile_window(info, tile.ix, tile.iy)[1:]
        found = flat.read_tile(tile.ix, tile.iy)
        np.testing.assert_allclose(found[0], expected[window], rtol=1e-5)
        known = flat.read_valid(tile.ix, tile.iy)
        np.testing.assert_array_equal(known[0], valid.any(axis=0)[window])
    depth_um = info.shape[0] * info.voxel_um[0]
    assert flat.info == replace(
        info, tile_shape_px=(1, 40, 50), voxel_um=(depth_um, *info.voxel_um[1:])
    )
    # A hole is not stored, neither voxels nor mask.
    n_files = sum(1 for p in output.rglob("c/**/*") if p.is_file())
    assert n_files == 2 * (len(info.tiles) - 1)
