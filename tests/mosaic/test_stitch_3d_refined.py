import numpy as np
import pytest
from scipy.ndimage import map_coordinates

from linumpy.device import to_host
from linumpy.mosaic.stitch_3d_refined import (
    blending_weights,
    canvas_shape,
    stitch_3d_refined,
    tiles_in_block,
)

TILE = (30, 34)


def stitch(xp, tiles, masks, positions, method="linear", block=None):
    corner, shape = canvas_shape(np.asarray(positions, float), TILE)
    offsets = np.asarray(positions) - corner
    weights = blending_weights(TILE, (8, 8), method)
    whole = (slice(0, shape[0]), slice(0, shape[1]))
    window = block or whole
    chosen = tiles_in_block(offsets, TILE, window)
    parts = [
        (xp.asarray(tiles[n]), None if masks is None else xp.asarray(masks[n]), offsets[n])
        for n in chosen
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
