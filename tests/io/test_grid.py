import re
from dataclasses import replace

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from linumpy.core.errors import InputError
from linumpy.io import slice_ids
from linumpy.io.grid import (
    GridInfo,
    GridTile,
    check_slice_ids,
    create_grid,
    inner_chunk,
    open_grid,
)
from linumpy.io.stage_axes import parse_stage_to_array
from linumpy.store.manifest import adopt


def grid_info(**changes):
    tiles = tuple(GridTile(i, j, 1 + 0.3 * i, 2 + 0.4 * j, 0.2) for i in range(2) for j in range(3))
    values = {
        "slice_id": 3,
        "tile_shape_px": (12, 40, 50),
        "voxel_um": (5.0, 8.0, 8.0),
        "overlap_fraction": 0.2,
        "tiles": tiles,
        "tile_fov_um": (320.0, 400.0),
    }
    return GridInfo(**{**values, **changes})


@pytest.fixture
def written(tmp_path, rng):
    path = tmp_path / "mosaic_grid_3d_z03.ome.zarr"
    tiles = {}
    with create_grid(path, grid_info(), overwrite=False, with_valid=True) as writer:
        for tile in grid_info().tiles:
            data = rng.normal(size=(12, 40, 50)).astype(np.float32)
            valid = (rng.random(data.shape) > 0.1).astype(np.uint8)
            tiles[tile.ix, tile.iy] = data, valid
            writer.write_tile(tile.ix, tile.iy, data, valid)
        writer.update_flags({(1, 2): ("dark",)})
    return path, tiles


def test_tiles_come_back_with_masks_flags_and_positions(written):
    path, tiles = written
    grid = open_grid(path)
    for key, (data, valid) in tiles.items():
        np.testing.assert_array_equal(grid.read_tile(*key), data)
        np.testing.assert_array_equal(grid.read_valid(*key), valid)
    assert [t.flags for t in grid.info.tiles] == [()] * 5 + [("dark",)]
    expected = [(1000 + 300 * t.ix - 160, 2000 + 400 * t.iy - 200) for t in grid.info.tiles]
    np.testing.assert_allclose(grid.info.corner_um(), expected)


def test_a_tile_is_a_shard(written):
    array = zarr.open_array(written[0] / "0")
    assert array.shards == (12, 40, 50)
    assert array.chunks == (12, 40, 50)
    assert len(list((written[0] / "0/c").rglob("*"))) >= 6


def test_a_spoiled_tile_is_named(written):
    path, _ = written
    shard = path / "0/c/0/1/2"
    raw = bytearray(shard.read_bytes())
    raw[len(raw) // 2] ^= 1
    shard.write_bytes(raw)
    with pytest.raises(InputError, match=r"mosaic_grid_3d_z03.*tile \(1, 2\)"):
        open_grid(path).read_tile(1, 2)


@given(
    st.sampled_from("+-"), st.sampled_from("+-"), st.booleans(), st.floats(-9, 9), st.floats(-9, 9)
)
def test_stage_axes_are_mapped_with_their_signs(first, second, swapped, x_mm, y_mm):
    letters = "yx" if swapped else "xy"
    text = f"{first}{letters[0]},{second}{letters[1]}"
    info = grid_info(tiles=(GridTile(0, 0, x_mm, y_mm),), stage_to_array=text)
    stage = {"x": x_mm * 1e3, "y": y_mm * 1e3}
    signs = {"+": 1, "-": -1}
    expected = [
        signs[first] * stage[letters[0]] - 160,
        signs[second] * stage[letters[1]] - 200,
    ]
    np.testing.assert_allclose(info.corner_um()[0], expected, atol=1e-9)


@pytest.mark.parametrize("text", ["", "x,y", "+x", "+x,+x", "+x,+z", "+x,+y,+x", "+xx,+y", "*x,+y"])
def test_other_stage_maps_are_refused(text):
    with pytest.raises(InputError, match="signed stage axes"):
        parse_stage_to_array(text)


@given(st.integers(1, 2000))
def test_inner_chunks_divide_the_side_and_are_near_64(side):
    chunk = inner_chunk(side)
    assert side % chunk == 0
    allowed = [d for d in range(32, 129) if side % d == 0]
    if allowed:
        assert abs(chunk - 64) == min(abs(d - 64) for d in allowed)
    else:
        assert chunk == side


def others(path, shape, chunks):
    """Make a grid as other writers do, of which nothing is stored yet; return its array."""
    group = zarr.create_group(path, zarr_format=3)
    array = group.create_array("s0", shape=shape, chunks=chunks, dtype="f4")
    scale = {"type": "scale", "scale": [0.01, 0.02, 0.02]}
    names = [{"name": n, "type": "space", "unit": "millimeter"} for n in "zyx"]
    group.attrs["ome"] = {
        "version": "0.5",
        "multiscales": [
            {"axes": names, "datasets": [{"path": "s0", "coordinateTransformations": [scale]}]}
        ],
    }
    return array


@pytest.mark.parametrize(
    ("name", "shape", "chunks", "message"),
    [
        ("z07", (4, 8, 1 << 30), (4, 4, 4), "536870912 tiles (chunks) of 64 voxels, expected"),
        ("z07", (4, 0, 8), (4, 4, 4), "0 tiles (chunks) of 64 voxels, expected from 1 to 262144"),
        ("z07", (4, 8, 9), (4, 4, 4), "do not tile the array (4, 8, 9)"),
    ],
)
def test_what_cannot_be_the_grid_of_others_is_refused_at_once(
    tmp_path, name, shape, chunks, message
):
    """Seen to fail without the limits of `_foreign_info`: the first takes all memory."""
    others(tmp_path / name, shape, chunks)
    with pytest.raises(InputError, match=re.escape(message)):
        open_grid(tmp_path / name)


def test_grids_of_others_are_read_with_nominal_positions(tmp_path):
    path = tmp_path / "mosaic_grid_z07.ome.zarr"
    array = others(path, (5, 20, 30), (5, 10, 10))
    array[:] = np.arange(3000).reshape(5, 20, 30)
    grid = open_grid(path)
    assert (grid.info.slice_id, grid.info.grid_shape) == (7, (2, 3))
    assert grid.chunks_a_tile == 1
    assert all("nominal_position" in t.flags for t in grid.info.tiles)
    np.testing.assert_allclose(np.ptp(grid.info.corner_um(), axis=0), (160, 320))
    np.testing.assert_array_equal(grid.read_tile(1, 2), array[:, 10:20, 20:30])


@pytest.mark.parametrize(
    ("name", "slice_id", "has_id"),
    [
        ("mosaic_grid_z07.ome.zarr", 7, True),
        ("z12.zarr", 12, True),
        ("grid.ome.zarr", 0, False),
        ("my brain v1.2.zarr", 0, False),
        ("xyz12_grid.zarr", 0, False),
        ("grid_z100000.zarr", 0, False),
        ("grid_z3b.zarr", 0, False),
    ],
)
def test_a_name_states_the_id_only_as_a_word_of_its_own(tmp_path, name, slice_id, has_id):
    others(tmp_path / name, (5, 20, 30), (5, 10, 10))
    grid = open_grid(tmp_path / name)
    assert (grid.info.slice_id, grid.has_id) == (slice_id, has_id)


def test_given_ids_win_over_names_and_never_over_metadata(tmp_path, tiny_grids, monkeypatch):
    """Seen to fail without the error of `slice_ids.check_stated_id`."""
    monkeypatch.setattr(slice_ids, "_given", {})
    path = tmp_path / "grid_z05.zarr"
    others(path, (5, 20, 30), (5, 10, 10))
    slice_ids.give_slice_ids([path, tiny_grids[1]], [3, 1])
    assert open_grid(path).info.slice_id == 3
    assert open_grid(tiny_grids[1]).info.slice_id == 1
    slice_ids.give_slice_ids([tiny_grids[1]], [4])
    with pytest.raises(InputError, match="--slice_id 4, but its metadata say slice 1"):
        open_grid(tiny_grids[1])
    with pytest.raises(InputError, match="2 ids for 1 inputs"):
        slice_ids.give_slice_ids([path], [1, 2])
    with pytest.raises(InputError, match="--slice_id -1: expected an id from 0 to 99999"):
        slice_ids.give_slice_ids([path], [-1])


def test_several_grids_need_ids_of_their_own(tmp_path):
    """Seen to fail without the errors of `grid.check_slice_ids`."""
    paths = [tmp_path / name for name in ("a.zarr", "grid_z05.zarr", "b.zarr")]
    for path in paths:
        others(path, (5, 20, 30), (5, 10, 10))
    check_slice_ids(paths[:1])
    with pytest.raises(InputError, match=r"a\.zarr, .*b\.zarr: no slice id .*--slice_id 0 1 2"):
        check_slice_ids(paths)
    check_slice_ids([paths[1]])
    other = tmp_path / "again" / "z5.zarr"
    others(other, (5, 20, 30), (5, 10, 10))
    with pytest.raises(InputError, match="both hold slice z05"):
        check_slice_ids([paths[1], other])


@pytest.mark.slow
def test_a_grid_without_unit_is_read_where_the_unit_is_named(tmp_path, script):
    """Seen to fail without the error of `omezarr._axis_units`."""
    path = tmp_path / "mosaic_grid_z00.ome.zarr"
    group = zarr.create_group(path, zarr_format=3)
    array = group.create_array("0", shape=(20, 20, 30), chunks=(20, 10, 10), dtype="f4")
    array[:] = 1
    scale = {"type": "scale", "scale": [0.01, 0.02, 0.02]}
    datasets = [{"path": "0", "coordinateTransformations": [scale]}]
    names = [{"name": n, "type": "space"} for n in "zyx"]
    group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": names, "datasets": datasets}]}
    arguments = ("resample_mosaic_grid", path, tmp_path / "out.ome.zarr", "-r", 40)
    refused = script(*arguments, check=False)
    assert refused.returncode == 1 and "--assume_unit" in refused.stderr
    script(*arguments, "--assume_unit", "millimeter")
    info = open_grid(tmp_path / "out.ome.zarr").info
    assert (info.voxel_um, info.tile_shape_px) == ((40, 40, 40), (5, 5, 5))


def test_metadata_that_does_not_fit_the_array_is_refused(written):
    group = zarr.open_group(written[0], mode="r+")
    attributes = dict(group.attrs["linumpy"])
    group.attrs["linumpy"] = {**attributes, "tile_shape_px": [12, 40, 40]}
    adopt(written[0])
    with pytest.raises(InputError, match="but its tiles make"):
        open_grid(written[0])
    del attributes["tiles"]
    group.attrs["linumpy"] = attributes
    adopt(written[0])
    with pytest.raises(InputError, match="'tiles'"):
        open_grid(written[0])
    group.attrs["linumpy"] = {"kind": "slice"}
    adopt(written[0])
    with pytest.raises(InputError, match="expected a mosaic grid"):
        open_grid(written[0])


def test_wrong_tiles_are_not_written(tmp_path):
    path = tmp_path / "mosaic_grid_3d_z03.ome.zarr"
    with (
        pytest.raises(InputError, match=r"tile \(0, 1\): shape"),
        create_grid(path, grid_info(), overwrite=False) as writer,
    ):
        writer.write_tile(0, 1, np.zeros((12, 40, 49), np.float32))
    with (
        pytest.raises(InputError, match="begun without"),
        create_grid(path, grid_info(), overwrite=False) as writer,
    ):
        writer.write_tile(0, 1, np.zeros((12, 40, 50), np.float32), np.ones((12, 40, 50), np.uint8))
    assert not path.exists()


def test_a_large_tile_is_one_shard_of_many_chunks(tmp_path, rng):
    """128 x 192 pixels: chunks of 64, still one file a tile, so that no two writers share one."""
    path = tmp_path / "mosaic_grid_3d_z03.ome.zarr"
    info = grid_info(tile_shape_px=(100, 128, 192))
    tile = rng.normal(size=info.tile_shape_px).astype(np.float32)
    with create_grid(path, info, overwrite=False) as writer:
        writer.write_tile(1, 0, tile)
    array = zarr.open_array(path / "0")
    assert array.chunks == (50, 64, 64) and array.shards == (100, 128, 192)
    assert [p.relative_to(path).as_posix() for p in (path / "0/c").rglob("*") if p.is_file()] == [
        "0/c/0/1/0"
    ]
    grid = open_grid(path)
    assert grid.chunks_a_tile == 2 * 2 * 3
    np.testing.assert_array_equal(grid.read_tile(1, 0), tile)
    # Holes read as 0, and a grid that was begun without a mask has none.
    assert not grid.read_tile(0, 0).any() and grid.read_valid(1, 0) is None
    assert grid.read_tile(1, 0).flags.c_contiguous


def test_all_metadata_comes_back(tmp_path):
    path = tmp_path / "mosaic_grid_3d_z03.ome.zarr"
    info = grid_info(
        stage_to_array="-y,+x", slice_interval_um=200.0, galvo_shift_px=7, galvo_confidence=0.75,
        slice_thickness_um=150.0,
    )  # fmt: skip
    with create_grid(path, info, overwrite=False):
        pass
    assert open_grid(path).info == info
    # Grids of earlier versions do not tell.
    attributes = info.to_attributes()
    del attributes["slice_thickness_um"]
    assert GridInfo.from_attributes(attributes, path).slice_thickness_um is None


def test_the_height_of_a_slice_is_that_of_most_tiles():
    def height(*heights, present=True):
        tiles = [GridTile(n, 0, n, 0, z, present) for n, z in enumerate(heights)]
        return replace(grid_info(), tiles=tuple(tiles)).stage_z_mm

    assert height(1.5, 1.5, -7.0) == 1.5
    assert height(None, 2.5, float("nan"), "3") == 2.5
    assert height(None, None) is None and height(1.0, present=False) is None


def test_a_tile_without_a_mask_is_all_valid_in_a_grid_with_masks(tmp_path):
    path = tmp_path / "mosaic_grid_3d_z03.ome.zarr"
    with create_grid(path, grid_info(), overwrite=False, with_valid=True) as writer:
        writer.write_tile(0, 2, np.zeros((12, 40, 50), np.float32))
    grid = open_grid(path)
    assert grid.read_valid(0, 2).all() and not grid.read_valid(0, 1).any()


def test_a_spoiled_mask_is_named_too(written):
    path, _ = written
    shard = path / "labels/valid/0/c/0/0/2"
    raw = bytearray(shard.read_bytes())
    raw[len(raw) // 2] ^= 1
    shard.write_bytes(raw)
    grid = open_grid(path)
    with pytest.raises(InputError, match=r"mosaic_grid_3d_z03.*tile \(0, 2\)"):
        grid.read_valid(0, 2)
    assert grid.read_tile(0, 2).shape == (12, 40, 50)


@pytest.mark.parametrize(
    ("name", "chunks", "message"),
    [
        ("mosaic_grid_z07.ome.zarr", (5, 12, 10), r"chunks \(5, 12, 10\) do not tile"),
        ("mosaic_grid_z07.ome.zarr", (4, 10, 10), r"chunks \(4, 10, 10\) do not tile"),
    ],
)
def test_grids_of_others_that_cannot_be_cut_are_refused(tmp_path, name, chunks, message):
    group = zarr.create_group(tmp_path / name, zarr_format=2)
    group.create_array("0", shape=(5, 20, 30), chunks=chunks, dtype="f4")
    names = [{"name": n, "type": "space", "unit": "micrometer"} for n in "zyx"]
    scale = {"type": "scale", "scale": [5, 8, 8]}
    group.attrs["multiscales"] = [
        {"axes": names, "datasets": [{"path": "0", "coordinateTransformations": [scale]}]}
    ]
    with pytest.raises(InputError, match=message):
        open_grid(tmp_path / name)
