"""Stages on blocks: what they gather may lie on the device, and is the same by any blocks."""

import numpy as np
import pytest

from linumpy.device import to_device
from linumpy.slices.block_stages import (
    Crop3dMosaicBelowInterface,
    FindAgarose,
    NormalizeIntensitiesPerSlice,
)
from linumpy.slices.layout import SHARD_PX, SliceLayout
from linumpy.slices.tile import Tile
from linumpy.stage_params.slices import CropParams, NormalizeParams

SHAPE = (24, SHARD_PX + 40, SHARD_PX + 70)


@pytest.fixture(scope="module")
def layout():
    attributes = {"slice_id": 4, "interface_um": None}
    return SliceLayout(SHAPE, (10.0, 10.0, 10.0), (0.0, 0.0, 0.0), attributes)


@pytest.fixture(scope="module")
def slice_of_water():
    """Water above a sloping face, then agarose left of column 150, tissue right, ever brighter."""
    rng = np.random.default_rng(3)
    z, i, j = np.ogrid[: SHAPE[0], : SHAPE[1], : SHAPE[2]]
    level = np.where(z < 4 + i / 60, 1.0, np.where(j < 150, 20.0, 100.0) * (1 + i / 600))
    data = (level * rng.uniform(0.9, 1.1, SHAPE)).astype(np.float32)
    valid = np.ones(SHAPE, np.uint8)
    valid[:, :3], valid[-2:, 50:60] = 0, 0
    data[valid == 0] = 0
    return data, valid


def blocks(layout, pair, device):
    keys = layout.keys()
    for key in keys:
        part = (slice(None), *layout.window(key))
        yield Tile(key, *(to_device(np.ascontiguousarray(a[part]), device) for a in pair))


def learn(stage, layout, pair, device):
    stage.start(layout)
    for tile in blocks(layout, pair, device):
        stage.gather(tile.key, stage.measure(tile))
    stage.model = stage.solve()
    return stage.model


def test_the_interface_is_found_from_all_blocks(layout, slice_of_water, device):
    stage = Crop3dMosaicBelowInterface(CropParams(depth_um=100))
    cut = learn(stage, layout, slice_of_water, device)
    # The median of 4 + row / 60, at whole planes.
    assert cut.first_plane == 7 and cut.n_planes == 10
    assert abs(cut.interface_um - 70) < 5


def test_floor_and_cap_are_the_quantiles_of_the_whole_slice(layout, slice_of_water, device):
    data, valid = slice_of_water
    agarose = FindAgarose(NormalizeParams())
    mask = learn(agarose, layout, slice_of_water, device)
    stage = NormalizeIntensitiesPerSlice(NormalizeParams(), agarose)
    model = learn(stage, layout, slice_of_water, device)
    there = valid > 0
    for plane in (0, 10, 20):
        floor = np.median(data[plane][there[plane] & mask.mask])
        cap = np.percentile(data[plane][there[plane]], 99.9)
        # Histogram bins are 0.8 % wide.
        assert model.floor[plane] == pytest.approx(floor, rel=0.01)
        assert model.cap[plane] == pytest.approx(cap, rel=0.01)
    assert mask.mask[:, :140].mean() > 0.95 and not mask.mask[:, 160:].any()
