"""Stages on blocks: what they gather may lie on the device, and is the same by any blocks."""

from dataclasses import replace

import numpy as np
import pytest

from linumpy.core.device import to_device, to_host
from linumpy.geometry.crop_3d_mosaic_below_interface import cut_planes
from linumpy.io.slice_layout import SHARD_PX, SliceLayout
from linumpy.slices.block_stages import (
    Crop3dMosaicBelowInterface,
    FindAgarose,
    NormalizeIntensitiesPerSlice,
)
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
    # First planes of tissue: 4 + row / 60, rounded up.
    first = np.ceil(4 + np.arange(SHAPE[1]) / 60)
    assert abs(cut.interface_um - 10 * first.mean()) < 3
    assert (cut.first_plane, cut.n_planes) == (5, 14)
    after = stage.layout(layout)
    assert after.shape == (14, *SHAPE[1:]) and after.corner_um[0] == 50
    assert after.attributes["interface_um"] == cut.interface_um
    for tile, (data, valid) in zip(
        blocks(layout, slice_of_water, device),
        ((b.data, b.valid) for b in map(stage.apply, blocks(layout, slice_of_water, device))),
        strict=True,
    ):
        rows = layout.window(tile.key)[0]
        top = first[rows][:, None] - 5
        own, kept = to_host(tile.valid)[5:19] > 0, to_host(valid) > 0
        plane = np.arange(14)[:, None, None] + np.zeros(own.shape)
        # Above the face nothing is left, below it all that was there, give or take a plane.
        assert not kept[plane < top - 1].any()
        np.testing.assert_array_equal(kept[plane > top], own[plane > top])
        assert (to_host(data)[~kept] == 0).all()


def test_a_flat_cut_masks_nothing(layout, slice_of_water, device):
    stage = Crop3dMosaicBelowInterface(CropParams(depth_um=100, flat=True))
    cut = learn(stage, layout, slice_of_water, device)
    assert cut.flat and cut.first_plane == round(cut.interface_um / 10) and cut.n_planes == 10
    planes = slice(cut.first_plane, cut.first_plane + 10)
    for tile in blocks(layout, slice_of_water, device):
        kept = stage.apply(tile)
        np.testing.assert_array_equal(to_host(kept.data), to_host(tile.data)[planes])
        np.testing.assert_array_equal(to_host(kept.valid), to_host(tile.valid)[planes])


@pytest.mark.parametrize("flat", [False, True])
def test_what_lies_in_the_shadow_of_a_reflection_is_masked(layout, slice_of_water, device, flat):
    """All planes of parts of cells, over the borders of blocks, and nothing else.

    Seen to fail without the mask, and where the cells of a block are counted from its corner.
    """
    data, valid = (a.copy() for a in slice_of_water)
    clean = Crop3dMosaicBelowInterface(CropParams(depth_um=100, flat=flat))
    assert not learn(clean, layout, (data, valid), device).shadowed.any()
    # A mirror of 40 x 30 pixels in the water, over the corner of four blocks.
    y, x = slice(SHARD_PX - 20, SHARD_PX + 20), slice(SHARD_PX - 20, SHARD_PX + 10)
    data[1, y, x] *= 1e4
    data[2:, y, x] *= 0.1
    stage = Crop3dMosaicBelowInterface(CropParams(depth_um=100, flat=flat))
    cut = learn(stage, layout, (data, valid), device)
    (body,) = cut.reflections
    cell = round(cut.cell_um[0] / 10 / cut.parts)
    inside = np.zeros(SHAPE[1:], bool)
    for i, j in body["cells"]:
        inside[i * cell : (i + 1) * cell, j * cell : (j + 1) * cell] = True
    assert inside[y, x].mean() > 0.5 and inside.sum() < 3 * 40 * 30
    for tile in blocks(layout, (data, valid), device):
        part = layout.window(tile.key)
        shadow, own = inside[part], to_host(tile.valid)
        kept = to_host(stage.apply(tile).valid) > 0
        assert not kept[:, shadow].any()
        other = cut_planes(replace(cut, reflections=[]), layout.voxel_um, part)
        rows = own[cut.first_plane : cut.first_plane + cut.n_planes] > 0
        if other is not None:
            rows &= np.arange(cut.n_planes)[:, None, None] >= other
        np.testing.assert_array_equal(kept[:, ~shadow], rows[:, ~shadow])


def test_a_slice_is_not_masked_by_what_most_of_it_shows(layout, slice_of_water, device):
    stage = Crop3dMosaicBelowInterface(CropParams(depth_um=100))
    cut = learn(stage, layout, slice_of_water, device)
    cells = np.argwhere(np.ones_like(cut.shadowed)).tolist()
    for share, masked in ((0.2, True), (0.3, False)):
        some = cells[: round(share * len(cells))]
        of_some = replace(cut, reflections=[{"area_um2": 1.0, "centre_um": [0, 0], "cells": some}])
        assert of_some.shadowed.sum() == (len(some) if masked else 0)


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
