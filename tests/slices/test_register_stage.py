"""Tile registration in a pass: no waits on the device, nothing kept too long."""

import re
from dataclasses import replace

import numpy as np
import pytest

from linumpy.core.device import CPU, is_device_array, to_device, to_host
from linumpy.core.errors import InputError
from linumpy.io.grid import open_grid
from linumpy.slices import register_stage
from linumpy.slices.block_stages import StitchedSource
from linumpy.slices.engine import on_device
from linumpy.slices.grid_io import GridSource
from linumpy.slices.register_stage import RegisterTiles
from linumpy.slices.store import TileStore
from linumpy.slices.tile import Tile
from linumpy.stage_params.slices import StitchParams


@pytest.fixture(scope="module")
def source(tiny_grids):
    return GridSource(open_grid(tiny_grids[1]))


def register(source, device):
    stage = RegisterTiles()
    stage.start(source.layout)
    keys = source.keys()
    for key in keys:
        stage.gather(key, stage.measure(on_device(source.read(key), device)))
    return stage


def test_measurements_stay_where_the_tile_is(source, device):
    stage = RegisterTiles()
    stage.start(source.layout)
    tile = on_device(source.read(source.keys()[0]), device)
    evidence, mean = stage.measure(tile)
    for array in (evidence.slabs, evidence.slab_means, mean):
        assert is_device_array(array) == device.is_gpu


def test_positions_do_not_depend_on_how_many_pairs_are_fetched_together(
    source, device, monkeypatch
):
    at_once = register(source, device).solve()
    monkeypatch.setattr(register_stage, "_MAX_PENDING", 1)
    one_by_one = register(source, device).solve()
    assert at_once == one_by_one
    assert any(pair.accepted for pair in at_once.pairs)


def test_slabs_are_dropped_behind_the_last_neighbour(source, device):
    stage = register(source, device)
    assert stage._evidence == {}
    assert stage._pending


def test_a_masked_band_does_not_move_the_tiles(source, device):
    """Garbage at one place of all tiles, marked as such, against tiles without it."""
    stage = RegisterTiles()
    stage.start(source.layout)
    keys = source.keys()
    for key in keys:
        tile = source.read(key)
        data = np.array(tile.data)
        valid = np.ones(data.shape, np.uint8)
        valid[:, :, :2] = 0
        data[:, :, :2] = 1e5
        spoiled = replace(tile, data=to_device(data, device), valid=to_device(valid, device))
        stage.gather(key, stage.measure(spoiled))
    plain = register(source, device).solve().corners_um()
    for key, corner in stage.solve().corners_um().items():
        np.testing.assert_allclose(corner, plain[key], atol=0.2 * source.layout.voxel_um[1])


def test_tile_far_from_the_others_is_rejected_by_name(source):
    """Seen to fail without the check of `StitchedSource`: a canvas of 10⁸ pixels."""
    positions = register(source, CPU).solve()
    far = [replace(t, corner_um=(1e9, 0.0)) if n == 1 else t for n, t in enumerate(positions.tiles)]
    named = re.escape(f"slice z{source.layout.slice_id:02d}: tile {source.keys()[1]} lies ")
    with TileStore(1 << 30) as store, pytest.raises(InputError, match=f"^{named}.* px from"):
        StitchedSource(store, source.layout, replace(positions, tiles=far), StitchParams())


def test_dark_tile_is_detected_by_its_neighbours_and_left_out(source, device, caplog):
    """Against a slice in which all of that tile is masked.

    Seen to fail where dim tiles are blended in.
    """
    dark = source.keys()[1]
    tiles = {key: on_device(source.read(key), device) for key in source.keys()}  # noqa: SIM118
    weak = replace(tiles[dark], data=tiles[dark].data * np.float32(0.1))
    lost = replace(weak, valid=(weak.data * 0).astype(np.uint8))

    def learn(tile: Tile):
        stage = RegisterTiles()
        stage.start(source.layout)
        for key in tiles:
            stage.gather(key, stage.measure(tile if key == dark else tiles[key]))
        return stage.solve()

    def stitch(tile: Tile, positions, least: float):
        with TileStore(1 << 30) as store:
            for key in tiles:
                store.put(tile if key == dark else tiles[key])
            grid, params = source.layout, StitchParams(min_tile_brightness=least)
            stitched = StitchedSource(store, grid, positions, params, device=device)
            blocks = [stitched.read(key) for key in stitched.keys()]  # noqa: SIM118
            arrays = [(to_host(b.data), to_host(b.valid)) for b in blocks]
            return arrays, stitched.layout.attributes["flags"]

    assert learn(tiles[dark]).dim_tiles(0.5) == set()
    positions = learn(weak)
    bright = {t.index: t.brightness for t in positions.tiles}
    assert bright[dark] == pytest.approx(0.1, rel=0.3)
    assert positions.dim_tiles(0.5) == {dark}
    found, flags = stitch(weak, positions, 0.5)
    assert flags == {f"{dark[0]},{dark[1]}": ["dark"]}
    assert f"tiles ({dark[0]}, {dark[1]}) are dark and left out" in caplog.text
    for ours, theirs in zip(found, stitch(lost, positions, 0)[0], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    kept, flags = stitch(weak, positions, 0)
    assert not flags and sum(v.sum() for _, v in kept) > sum(v.sum() for _, v in found)
