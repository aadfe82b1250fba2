import numpy as np
from scipy.ndimage import map_coordinates

from linumpy.core.device import to_host
from linumpy.geometry.detect_focal_curvature import FocalCurvature, correct_focal_curvature


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


def test_speckle_moved_by_whole_planes_keeps_its_power(xp, rng):
    """A surface that falls by two planes: interpolated half-way it has 5 % less, as is known.

    Power of the mean of two independent samples, of Rayleigh distributed amplitudes a:
    (E a² + (E a)²) / 2 = (1 + π / 4) / 2 of E a².
    """
    tile = rng.rayleigh(1.0, (80, 64, 81)).astype(np.float32)
    fall = np.broadcast_to(np.linspace(0, 2, 81, dtype=np.float32), (64, 81)) * 5
    surface = FocalCurvature(fall, (5.0, 10.0, 10.0), 1, 0, 0.0)
    whole = surface.in_whole_planes()
    assert np.abs(whole.surface_um - fall).max() <= 2.5
    expected = {"interpolated": np.sqrt((1 + np.pi / 4) / 2), "whole": 1.0}
    for (name, half_way), moved in zip(expected.items(), (surface, whole), strict=True):
        data, valid = correct_focal_curvature(xp.asarray(tile), moved.surface_um / 5)
        power = (to_host(data) ** 2).sum(axis=(0, 1)) / to_host(valid).sum(axis=(0, 1))
        loss = np.sqrt(power[[20, 60]].mean() / power[[0, 40, 80]].mean())
        assert abs(loss / half_way - 1) < 0.02, name
