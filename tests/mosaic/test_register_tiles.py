import numpy as np
import pytest

from linumpy.device import to_host
from linumpy.mosaic.register_tiles import (
    MAX_SLABS,
    correlate_pair,
    find_pairs,
    overlap_means,
    solve_positions,
    tile_brightness,
    tile_evidence,
)
from linumpy.registration.correlation import flatten

from ..registration.speckle import FINE, fixed_field, image

TILE = (64, 72)


@pytest.fixture
def acquisition(rng):
    """A grid of 3 by 3 tiles with 25 % overlap, the stage off by up to 3 px; one tile is dark."""
    nominal = np.array([(8 + i * 48, 8 + j * 54) for i in range(3) for j in range(3)], float)
    jitter = np.rint(np.clip(rng.normal(0, 2, (9, 2)), -3, 3) * FINE) / FINE
    field = fixed_field(rng, 16, (180, 200))
    tiles = [image(rng, field, p, TILE, 0.5) for p in nominal + jitter]
    tiles[8] = image(rng, fixed_field(rng, 16, (70, 80)), (0, 0), TILE, 0.5) * 0.01
    return nominal, nominal + jitter, tiles


def test_tiles_within_a_quarter_of_a_pixel_and_dark_ones_where_the_stage_put_them(xp, acquisition):
    nominal, true, tiles = acquisition
    evidence = [tile_evidence(xp.asarray(tile)) for tile in tiles]
    pairs = find_pairs(nominal, TILE)
    assert len(pairs) == 12
    results = [correlate_pair(evidence[p.a], evidence[p.b], p) for p in pairs]
    solution = solve_positions(nominal, results)
    assert solution.component.tolist() == [0] * 8 + [-1]
    error = (solution.position_px - true)[:8]
    error -= error.mean(axis=0)
    assert np.sqrt((error**2).mean(axis=0)).max() < 0.25
    held = solution.position_px[8] - nominal[8]
    assert np.abs(held).max() < 1.0
    assert sum(r.accepted for r in results) >= 9


def test_an_outlier_pair_is_rejected(xp, acquisition):
    nominal, true, tiles = acquisition
    evidence = [tile_evidence(xp.asarray(tile)) for tile in tiles]
    results = [correlate_pair(evidence[p.a], evidence[p.b], p) for p in find_pairs(nominal, TILE)]
    spoiled = next(r for r in results if (r.pair.a, r.pair.b) == (0, 1))
    spoiled.peak = type(spoiled.peak)((0.0, 0.0), 0.9, 50.0)
    solution = solve_positions(nominal, results)
    error = (solution.position_px - true)[:8]
    error -= error.mean(axis=0)
    assert np.sqrt((error**2).mean(axis=0)).max() < 0.25


@pytest.mark.parametrize("depth", [7, 24, 60])
def test_slabs_are_means_of_what_is_valid(xp, rng, depth):
    """A slab without, with and only with masked voxels; planes that fill no slab are left out."""
    tile = rng.random((depth, 30, 40), dtype=np.float32)
    valid = np.ones(tile.shape, np.uint8)
    valid[: depth // 3] = rng.random((depth // 3, 30, 40)) > 0.4
    valid[-1:], valid[:, 5:8, 3] = 0, 0
    spoiled = np.where(valid > 0, tile, 1e4).astype(np.float32)
    thickness = -(-depth // MAX_SLABS)
    n = depth // thickness
    parts = spoiled[: n * thickness].reshape(n, thickness, 30, 40).astype(float)
    known = valid[: n * thickness].reshape(n, thickness, 30, 40)
    count = known.sum(axis=1)
    slabs = (parts * known).sum(axis=1) / np.maximum(count, 1)
    means = slabs.sum(axis=(1, 2)) / np.maximum((count > 0).sum(axis=(1, 2)), 1)
    for mask in (valid, None):
        evidence = tile_evidence(xp.asarray(spoiled), None if mask is None else xp.asarray(mask))
        if mask is None:
            means, slabs, count = parts.mean(axis=(1, 2, 3)), parts.mean(axis=1), count * 0 + 1
        np.testing.assert_allclose(to_host(evidence.slab_means), means, rtol=1e-5)
        flat = flatten(slabs.astype(np.float32), (count > 0).astype(np.uint8))
        np.testing.assert_allclose(to_host(evidence.slabs), flat, rtol=2e-6, atol=1e-5)


def test_pairs_share_a_side():
    stage = np.array([[0, 0], [0, 80], [80, 0], [80, 80], [0, 160]], float)
    pairs = {(p.a, p.b) for p in find_pairs(stage, (100, 100))}
    assert pairs == {(0, 1), (0, 2), (1, 3), (2, 3), (1, 4)}


def test_overlap_means_compare_the_same_tissue(rng):
    scene = rng.random((60, 60))
    first, second = scene[:40, :40], scene[12:52, 5:45] * 2
    second = second.copy()
    second[0, 0] = np.nan
    mean_a, mean_b = overlap_means(first, second, (12.2, 4.8))
    assert mean_b == pytest.approx(2 * mean_a)
    assert overlap_means(first, second, (100, 0)) is None


def test_no_pair_at_all_leaves_the_stage_positions():
    stage = np.array([[0.0, 0.0], [500.0, 0.0]])
    solution = solve_positions(stage, [])
    np.testing.assert_array_equal(solution.position_px, stage)
    assert solution.component.tolist() == [-1, -1]


def test_a_mask_that_leaves_nothing_out_is_none(xp, rng):
    """To the bit: grids on disk always have a mask, tiles in memory only where one is needed."""
    tile = rng.rayleigh(50.0, (1, 64, 64)).astype(np.float32)
    bare = tile_evidence(xp.asarray(tile))
    masked = tile_evidence(xp.asarray(tile), xp.ones(tile.shape, xp.uint8))
    np.testing.assert_array_equal(to_host(bare.slabs), to_host(masked.slabs))
    np.testing.assert_array_equal(to_host(bare.slab_means), to_host(masked.slab_means))


def test_brightness_of_tiles_is_told_by_what_both_of_a_pair_show(rng):
    true = np.array([1.0, 1.1, 0.9, 0.08, 1.0, 1.2, 0.95, 1.05, 1.0])
    pairs = [(n, n + 1) for n in range(7) if n % 3 != 2] + [(n, n + 3) for n in range(5)]
    scene = rng.uniform(5, 50, len(pairs))
    speckle = rng.normal(1, 0.03, (len(pairs), 2))
    shown = np.stack([true[[a, b]] for a, b in pairs]) * scene[:, None] * speckle
    means = [(float(one), float(other)) for one, other in shown]
    # An overlap that shows nothing.
    means[4] = (0.0, 0.0)
    found = tile_brightness(9, pairs, means)
    assert np.isnan(found[8]) and not np.isnan(found[:8]).any()
    np.testing.assert_allclose(found[:8], true[:8] / np.median(true[:8]), rtol=0.1)
    assert np.isnan(tile_brightness(2, [], [])).all()
