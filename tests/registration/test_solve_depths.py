import numpy as np
import pytest

from linumpy.registration.solve_depths import solve_depths


def measure(rng, depth, *, noise=1.0, wrong=0.0):
    """Pairs of neighbours and of slices two apart, a share of them anything at all."""
    pairs = [(a, b) for a in range(len(depth)) for b in (a + 1, a + 2) if b < len(depth)]
    errors = np.array([depth[b] - depth[a] for a, b in pairs]) + rng.normal(0, noise, len(pairs))
    off = rng.random(len(pairs)) < wrong
    errors[off] = rng.uniform(-90, 90, off.sum())
    return pairs, errors


def solve(n_slices, pairs, errors):
    trust = np.full(len(pairs), 0.8)
    return solve_depths(n_slices, pairs, errors, trust, min_pair_sigma=1.0, min_cut_sigma=2.0)


@pytest.mark.parametrize("thicker", [50, 90, -40])
def test_one_thick_cut_moves_all_later_slices(rng, thicker):
    """60 slices, one cut off by `thicker` um, all others within 1 um."""
    cuts = rng.normal(0, 1, 59)
    cuts[29] += thicker
    depth = np.concatenate([[0], np.cumsum(cuts)])
    found = solve(60, *measure(rng, depth, noise=0.5))
    assert np.abs(found - depth).max() < 5
    assert found[30] - found[29] == pytest.approx(cuts[29], abs=1.5)


def test_uneven_cuts_of_few_slices(rng):
    """Cuts of 100, 100, 150, 100 and 195 um at an interval of 100."""
    depth = np.cumsum([0, 0, 0, 50, 0, 95.0])
    found = solve(6, *measure(rng, depth))
    assert np.abs(found - depth).max() < 5


def test_wrong_pairs_are_told_by_the_others(rng):
    depth = np.concatenate([[0], np.cumsum(rng.normal(0, 8, 39))])
    pairs, errors = measure(rng, depth, noise=0.3)
    clean = solve(40, pairs, errors)
    errors[[11, 40, 63]] += (70, -55, 38)
    assert np.abs(solve(40, pairs, errors) - clean).max() < 1.5


def test_a_cut_without_a_pair_is_nominal(rng):
    pairs = [(0, 1), (2, 3)]
    found = solve(5, pairs, np.array([12.0, 12.0]))
    assert found == pytest.approx([0, 12, 12, 24, 24], abs=0.5)


def test_no_pairs_at_all():
    assert solve(3, [], np.zeros(0)).tolist() == [0, 0, 0]


def test_agrees_with_least_squares_where_nothing_is_off(rng):
    """Far below the least spreads all weights are 1: ridge regression on cuts."""
    depth = np.concatenate([[0], np.cumsum(rng.normal(0, 1, 9))])
    pairs, errors = measure(rng, depth)
    found = solve_depths(
        10, pairs, errors, np.ones(len(pairs)), min_pair_sigma=1000.0, min_cut_sigma=1000.0
    )
    design = np.array([[a <= cut < b for cut in range(9)] for a, b in pairs], float)
    both = np.concatenate([design, np.eye(9)])
    cuts = np.linalg.lstsq(both, np.concatenate([errors, np.zeros(9)]), rcond=None)[0]
    np.testing.assert_allclose(np.diff(found), cuts, atol=1e-3)
