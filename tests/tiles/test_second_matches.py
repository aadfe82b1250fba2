"""How two tiles match between their peak and the place where they were put."""

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from linumpy.tiles.pairs import correlate_pair, find_pairs, tile_evidence
from linumpy.tiles.second_matches import ridge_share

SIDE, OVERLAP = 96, 40
CORNERS = np.array([(0.0, 0.0), (SIDE - OVERLAP, 0.0)])


def texture(rng, blur_px):
    field = gaussian_filter(rng.normal(size=(2 * SIDE, SIDE)), blur_px)
    return np.exp(0.6 * field / field.std())


def pair_of(rng, first, second):
    """Speckled tiles of 12 planes of two pictures."""
    tiles = [p * rng.rayleigh(np.sqrt(0.5), (12, *p.shape)) for p in (first, second)]
    evidence = [tile_evidence(tile.astype(np.float32)) for tile in tiles]
    return correlate_pair(*evidence, find_pairs(CORNERS, (SIDE, SIDE))[0])


@pytest.mark.parametrize("moved_px", [6, 12, 40])
def test_a_border_that_is_all_two_tiles_share_is_a_ridge(moved_px):
    """Wherever along it they were put, also farther than was searched; a border is hardly bent."""
    along, across = np.mgrid[: 2 * SIDE, :SIDE]
    edge = 60 + 3 * ((along - SIDE + OVERLAP / 2) / SIDE) ** 2
    whole = 0.05 + 1 / (1 + np.exp((edge - across) / 2))
    pairs = [
        pair_of(np.random.default_rng(seed), whole[:SIDE], whole[SIDE - OVERLAP :][:SIDE])
        for seed in range(5)
    ]
    # A ridge may have its top beyond what was searched: then there is no peak to doubt.
    found = [pair for pair in pairs if pair.peak is not None]
    assert len(found) >= 3
    for pair in found:
        assert ridge_share(pair, CORNERS + [(0, 0), (moved_px, 0)]) > 0.8
        # Across it, the tiles do not match.
        assert ridge_share(pair, CORNERS + [(0, 0), (0, 9)]) < 0.6


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("blur_px", [1.0, 2.0])
@pytest.mark.parametrize("lost", [8, 12])
@pytest.mark.parametrize("at", [0, 16])
def test_a_tile_that_lost_b_scans_makes_no_ridge(seed, blur_px, lost, at):
    """Before the overlap, or within it: then both parts match, with a valley between.

    Seen to fail (four pairs) where the place where tiles were put is looked at alone.
    """
    rng = np.random.default_rng([seed, lost])
    whole = texture(rng, blur_px)
    second = whole[SIDE - OVERLAP :][:SIDE].copy()
    second[at:-lost] = second[at + lost :].copy()
    result = pair_of(rng, whole[:SIDE], second)
    parts = [CORNERS, CORNERS + [(0, 0), (lost, 0)]]
    assert min(ridge_share(result, put) for put in parts) < 0.8
