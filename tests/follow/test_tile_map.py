"""Tiles lie on a slice's image where registration has them, in its own micrometres."""

import json

import numpy as np
import pytest
from PIL import Image

from linumpy.follow.tile_map import write_tile_map
from linumpy.io.omezarr import ImageSpec, create_image
from linumpy.tiles.positions import MeasuredPair, PlacedTile, TileRegistration

VOXEL = (5.0, 10.0, 20.0)
SHAPE = (4, 30, 40)


def pair(a, b, confidence):
    return MeasuredPair(a, b, None, (0.0, 0.0), None, confidence, False, None, None, None)


def positions():
    tiles = [
        PlacedTile(0, 0, (0.0, 0.0), (1000.0, -500.0), 0, 1, 1.1),
        PlacedTile(1, 0, (0.0, 0.0), (1150.0, -480.0), 0, 2, None),
        PlacedTile(2, 0, (0.0, 0.0), (1290.0, -490.0), -1, 1, 0.4),
        PlacedTile(9, 9, (0.0, 0.0), (0.0, 0.0), -1, 0, None),
    ]
    pairs = [pair((0, 0), (1, 0), 0.9), pair((1, 0), (2, 0), 0.4)]
    return TileRegistration(3, VOXEL, (4, 20, 10), tiles, pairs, [[1.0, 0.0], [0.0, 1.0]])


@pytest.fixture
def volume(tmp_path):
    """A slice whose first corner lies at (990, −520) um."""
    path = tmp_path / "slice_z03.ome.zarr"
    spec = ImageSpec(SHAPE, VOXEL, (2.5, 995.0, -510.0), SHAPE, SHAPE)
    with create_image(path, spec, overwrite=False) as image:
        image.array[:] = 1
    return path


NAMES = {(n, 0): f"x{n:02d}_y00" for n in range(3)}


def test_map_holds_places_and_metrics(volume):
    mean = np.arange(1200, dtype="f4").reshape(30, 40)
    write_tile_map(volume, 3, NAMES, positions(), {(0, 0): -1.23456, (2, 0): np.nan}, mean)
    told = json.loads((volume.parent / "tiles_z03.json").read_text())
    assert (told["slice"], told["extent_um"], told["tile_um"]) == (3, [300, 800], [200, 200])
    tiles = told["tiles"]
    assert [tile["name"] for tile in tiles] == list(NAMES.values())
    assert [tile["corner_um"] for tile in tiles] == [[10, 20], [160, 40], [300, 30]]
    assert [tile["confidence"] for tile in tiles] == [0.9, 0.65, 0.4]
    assert [tile["focus"] for tile in tiles] == [-1.235, None, None]
    assert [tile["brightness"] for tile in tiles] == [1.1, None, 0.4]
    with Image.open(volume.parent / "slice_z03.png") as image:
        assert image.size == (40, 30)


def test_verdict_does_not_need_the_map(volume, caplog):
    write_tile_map(volume.parent / "none", 3, NAMES, positions(), {}, np.ones((30, 40), "f4"))
    assert "slice z03: no tile map for the page" in caplog.text
