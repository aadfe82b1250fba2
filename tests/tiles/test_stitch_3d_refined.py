import numpy as np
import pytest
from scipy.ndimage import map_coordinates

from linumpy.core.device import to_host
from linumpy.tiles import stitch_3d_refined as module
from linumpy.tiles.stitch_3d_refined import (
    blending_weights,
    canvas_shape,
    stitch_3d_refined,
)

TILE = (30, 34)


def stitch(xp, tiles, masks, positions, method="linear", block=None):
    corner, shape = canvas_shape(np.asarray(positions, float), TILE)
    offsets = np.asarray(positions) - corner
    weights = blending_weights(TILE, (8, 8), method)
    whole = (slice(0, shape[0]), slice(0, shape[1]))
    window = block or whole
    parts = [
        (xp.asarray(tiles[n]), None if masks is None else xp.asarray(masks[n]), offsets[n])
        for n in range(len(tiles))
    ]
    data, valid = stitch_3d_refined(
        parts, weights, window, xp.empty((tiles[0].shape[0], 0, 0), xp.float32)
    )
    return to_host(data), to_host(valid), corner


@pytest.mark.parametrize("method", ["linear", "average", "none"])
def test_tiles_of_one_scene_give_the_scene_back(xp, rng, method):
    """Linear tissue is reproduced exactly by linear interpolation, wherever the tiles lie."""
    positions = [(0, 0), (0.3, 25.7), (21.5, 0.9), (22.25, 26.5)]

    def scene(z, i, j):
        return 3 + 0.2 * i - 0.1 * j + z

    z, i, j = np.mgrid[:2, : TILE[0], : TILE[1]]
    tiles = [scene(z, i + p[0], j + p[1]).astype(np.float32) for p in positions]
    data, valid, corner = stitch(xp, tiles, None, positions, method)
    z, i, j = np.nonzero(valid)
    np.testing.assert_allclose(data[z, i, j], scene(z, i + corner[0], j + corner[1]), atol=2e-4)
    assert valid.mean() > 0.9


def test_sub_pixel_placement_is_scipys(xp, rng):
    tile = rng.random((3, *TILE), dtype=np.float32)
    data, valid, _ = stitch(xp, [tile, tile], None, [(0.0, 0.0), (100.4, 50.75)])
    z, i, j = np.mgrid[:3, : data.shape[1], : data.shape[2]].astype(float)
    expected = map_coordinates(tile, [z, i - 100.4, j - 50.75], order=1, cval=np.nan)
    far = i > 60
    known = far & (valid > 0)
    np.testing.assert_allclose(data[known], expected[known], atol=1e-5)
    assert np.isfinite(expected[known]).all()
    assert known.sum() == 3 * (TILE[0] - 1) * (TILE[1] - 1)


def test_any_block_is_the_same_part_of_the_whole_to_the_bit(xp, rng):
    positions = [(0, 0), (1.3, 25.7), (21.5, 0.9), (22.25, 26.5)]
    tiles = [rng.random((2, *TILE), dtype=np.float32) for _ in positions]
    whole, valid, _ = stitch(xp, tiles, None, positions)
    block = (slice(11, 37), slice(17, 50))
    part, part_valid, _ = stitch(xp, tiles, None, positions, block=block)
    np.testing.assert_array_equal(part, whole[:, block[0], block[1]])
    np.testing.assert_array_equal(part_valid, valid[:, block[0], block[1]])


def test_masked_voxels_are_filled_by_the_neighbour(xp):
    tiles = [np.full((2, *TILE), v, np.float32) for v in (1, 2)]
    masks = [np.ones((2, *TILE), np.uint8) for _ in tiles]
    masks[0][:, 20:] = 0
    tiles[0][:, 20:] = 1e9
    data, valid, _ = stitch(xp, tiles, masks, [(0, 0), (18, 0)])
    assert set(np.unique(data[:, :18])) == {1.0}
    assert (data[:, 20:] == 2).all()
    assert valid.all()


def test_linear_weights_cross_over_in_the_middle_of_the_overlap(xp):
    tiles = [np.full((1, *TILE), v, np.float32) for v in (0, 1)]
    data, _, _ = stitch(xp, tiles, None, [(0, 0), (22, 0)])
    profile = data[0, 20:32, 17]
    assert np.all(np.diff(profile) >= 0)
    np.testing.assert_allclose(profile[2:10], (np.arange(8) + 0.5) / 8, atol=1e-6)


def directly(tiles, masks, positions, method, canvas):
    """Every pixel from the definition, in double precision."""
    profiles = [p.astype(float) for p in blending_weights(TILE, (8, 8), method)]
    shape = (tiles[0].shape[0], *canvas)
    total, weights = np.zeros(shape), np.zeros(shape)
    for tile, mask, position in zip(tiles, masks, positions, strict=True):
        for i, j in np.ndindex(*canvas):
            at = np.subtract((i, j), position)
            low = np.floor(at).astype(int)
            high = np.ceil(at).astype(int)
            if (low < 0).any() or (high >= TILE).any():
                continue
            corners = [
                (r, c, abs(1 - abs(at[0] - r)) * abs(1 - abs(at[1] - c)))
                for r in {low[0], high[0]}
                for c in {low[1], high[1]}
            ]
            weight = sum(s * profiles[0][r] * profiles[1][c] for r, c, s in corners)
            there = np.all([mask[:, r, c] > 0 for r, c, _ in corners], axis=0)
            value = sum(s * tile[:, r, c].astype(float) for r, c, s in corners)
            total[:, i, j] += np.where(there, value * weight, 0)
            weights[:, i, j] += there * weight
    return np.where(weights > 0, total / np.where(weights > 0, weights, 1), 0), weights > 0


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 1 << 16])
@pytest.mark.parametrize("method", ["linear", "average", "none"])
def test_masked_tiles_are_blended_as_defined(xp, rng, method, at_once, monkeypatch):
    """Planes with no, some and all voxels valid; tiles on whole pixels and between them."""
    monkeypatch.setattr(module, "_VOXELS_AT_ONCE", at_once)
    positions = [(0, 0), (1.25, 25.5), (21.5, 0), (22, 26.75)]
    tiles = [rng.random((4, *TILE), dtype=np.float32) for _ in positions]
    masks = [(rng.random((4, *TILE)) > 0.2).astype(np.uint8) for _ in positions]
    for n, mask in enumerate(masks):
        mask[1], mask[2] = n != 1, n != 2
    masks[0][0], masks[1][0], masks[3][3] = 0, 1, 0
    data, valid, corner = stitch(xp, tiles, masks, positions, method)
    expected, there = directly(tiles, masks, positions - corner, method, data.shape[1:])
    np.testing.assert_array_equal(valid, there)
    np.testing.assert_allclose(data, expected, atol=2e-6)


def test_masked_blocks_are_the_same_part_of_the_whole_to_the_bit(xp, rng):
    """Whether a plane is masked within a block or only beside it changes nothing."""
    positions = [(0, 0), (1.3, 25.7)]
    tiles = [rng.random((3, *TILE), dtype=np.float32) for _ in positions]
    masks = [np.ones((3, *TILE), np.uint8) for _ in positions]
    masks[0][1, :9, :9] = 0
    whole, valid, _ = stitch(xp, tiles, masks, positions)
    for block in ((slice(2, 30), slice(5, 50)), (slice(12, 30), slice(12, 50))):
        part, part_valid, _ = stitch(xp, tiles, masks, positions, block=block)
        np.testing.assert_array_equal(part, whole[:, block[0], block[1]])
        np.testing.assert_array_equal(part_valid, valid[:, block[0], block[1]])


def test_the_corner_of_a_lone_tile_is_kept_by_every_method(xp):
    """The steepest weights are still numbers: a tile's own corner has nothing else to show."""
    tile = np.full((1, *TILE), 3, np.float32)
    data, valid, _ = stitch(xp, [tile], None, [(0.0, 0.0)], "none")
    assert valid.all()
    np.testing.assert_allclose(data, 3, rtol=1e-6)
