import numpy as np
from scipy.ndimage import map_coordinates

from linumpy.core.device import to_host
from linumpy.geometry.detect_focal_curvature import correct_focal_curvature


def test_moves_a_lines_like_scipy_inside_and_masks_outside(xp, rng):
    tile = rng.random((40, 12, 15), dtype=np.float32)
    surface = rng.uniform(-5, 5, (12, 15)).astype(np.float32)
    moved, valid = (to_host(a) for a in correct_focal_curvature(xp.asarray(tile), surface))
    z, i, j = np.mgrid[:40, :12, :15].astype(float)
    depth = z + surface
    inside = (depth >= 0) & (depth <= 39)
    expected = map_coordinates(tile, [depth, i, j], order=1, mode="nearest")
    np.testing.assert_array_equal(valid, inside)
    np.testing.assert_allclose(moved[inside], expected[inside], atol=1e-5)
    assert (moved[~inside] == 0).all()


def test_no_voxel_wraps_round(xp):
    tile = np.zeros((30, 3, 3), np.float32)
    tile[0] = 100
    moved, _ = correct_focal_curvature(xp.asarray(tile), np.full((3, 3), 4.0, np.float32))
    assert float(moved.max()) == 0


def test_takes_a_mask_along(xp, rng):
    tile = rng.random((20, 4, 4), dtype=np.float32)
    mask = np.ones(tile.shape, np.uint8)
    mask[8] = 0
    _, valid = correct_focal_curvature(
        xp.asarray(tile), np.full((4, 4), 1.5, np.float32), xp.asarray(mask)
    )
    gone = np.flatnonzero(to_host(valid)[:, 0, 0] == 0)
    np.testing.assert_array_equal(gone, [6, 7, 18, 19])


def test_whole_shift_keeps_values_to_the_bit(xp, rng):
    tile = rng.random((20, 4, 4), dtype=np.float32)
    moved, valid = correct_focal_curvature(xp.asarray(tile), np.full((4, 4), 3.0, np.float32))
    np.testing.assert_array_equal(to_host(moved)[:17], tile[3:])
    assert to_host(valid)[:17].all() and not to_host(valid)[17:].any()


def test_blocks_of_rows_and_holes_in_the_mask(xp, rng):
    """Held against SciPy, A-lines of several blocks, planes of the mask partly and wholly full."""
    shape = (30, 400, 350)
    tile = rng.random(shape, dtype=np.float32)
    surface = (7 * np.sin(np.arange(400) / 60)[:, None] + rng.uniform(-1, 1, shape[1:])).astype(
        np.float32
    )
    surface[:, ::3] = np.round(surface[:, ::3])
    mask = np.ones(shape, np.uint8)
    mask[12, 100:, :200] = 0
    mask[25:] = 0
    moved, valid = correct_focal_curvature(xp.asarray(tile), surface, xp.asarray(mask))
    z, i, j = np.mgrid[:30, :400, :350]
    low = z + np.floor(surface).astype(int)
    high = np.where(surface == np.round(surface), low, low + 1)
    inside = (low >= 0) & (high < 30)
    low, high = low.clip(0, 29), high.clip(0, 29)
    inside &= (mask[low, i, j] > 0) & (mask[high, i, j] > 0)
    share = surface - np.floor(surface)
    expected = np.where(inside, (1 - share) * tile[low, i, j] + share * tile[high, i, j], 0)
    np.testing.assert_array_equal(to_host(valid), inside)
    np.testing.assert_allclose(to_host(moved), expected, atol=1e-6)


def test_a_surface_deeper_than_the_tile_leaves_nothing(xp):
    tile = xp.ones((6, 4, 5), xp.float32)
    for depth in (-40.5, 6, 100):
        moved, valid = correct_focal_curvature(tile, np.full((4, 5), depth, np.float32))
        assert not to_host(moved).any() and not to_host(valid).any()
