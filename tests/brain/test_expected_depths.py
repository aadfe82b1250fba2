"""Depths that metadata make likely."""

import numpy as np
import pytest

from linumpy.brain.expected_depths import expected_depths, most_likely
from linumpy.brain.slice_planes import SliceVolume

INTERVAL_UM = 100.0
CUTS = [100, 100, 150, 100, 200.0]
FACES = np.concatenate([[0.0], np.cumsum(CUTS)])


def volumes(ids, heights=None, thickness=None):
    none = [None] * len(ids)
    return [
        SliceVolume(k, (30, 4, 5), (0.0, 0.0), 0.0, lambda *_: None, stage_z_um=z, thickness_um=t)
        for k, z, t in zip(ids, heights or none, thickness or none, strict=True)
    ]


def depths(ids, heights):
    return [d.tolist() for d in expected_depths(volumes(ids, heights), INTERVAL_UM)]


@pytest.mark.parametrize("sign", [1, -1])
def test_stage_of_either_sign_measures_uneven_cuts(sign):
    found = depths(range(6), [7300 + sign * z for z in FACES])
    assert found == [FACES.tolist(), (100 * np.arange(6.0)).tolist()]


@pytest.mark.parametrize(
    "heights",
    [
        [None] * 6,
        [4200.0] * 6,
        [0.1 * k for k in range(6)],
        [1e5 * k for k in range(6)],
        [None, None, 50.0, None, None, None],
        [100.0 * k for k in range(6)],
    ],
    ids=["none", "constant", "millimetres", "another unit", "one", "nominal"],
)
def test_stage_without_information_leaves_the_interval(heights):
    """Seen to fail where any step is a cut's."""
    np.testing.assert_allclose(depths(range(6), heights), [100 * np.arange(6)])


def test_slices_without_a_height_lie_between_the_others():
    heights = [0, 100, None, 350, 450, None]
    np.testing.assert_allclose(depths(range(6), heights)[0], [0, 100, 225, 350, 450, 550])


def test_another_zero_counts_as_intervals():
    """Seen to fail where any step is a cut's."""
    heights = [0, 100, 200, -5000, -4850, -4750]
    np.testing.assert_allclose(depths(range(6), heights)[0], [0, 100, 200, 300, 450, 550])


def test_gaps_in_the_ids_are_not_thick_cuts():
    assert depths([0, 1, 4, 5], [0, 100, 400, 500.0]) == [[0, 100, 400, 500]]
    np.testing.assert_allclose(depths([0, 1, 4, 5], [0, 100, 450, 550.0])[0], [0, 100, 450, 550])


def test_thickness_is_that_of_the_cut_before_or_after():
    thickness = [100, 100, 100, 150, 100, 200.0]
    found = expected_depths(volumes(range(6), None, thickness), INTERVAL_UM)
    np.testing.assert_allclose(found[0], FACES)
    np.testing.assert_allclose(found[1], [0, 100, 200, 300, 450, 550])
    np.testing.assert_allclose(found[2], 100 * np.arange(6))
    # What all slices say alike is another interval, and that is given.
    same = expected_depths(volumes(range(6), None, [130.0] * 6), INTERVAL_UM)
    np.testing.assert_allclose(same, [100 * np.arange(6)])


def test_pairs_decide_between_accounts(rng):
    accounts = [FACES, 100 * np.arange(6.0)]
    measured = np.ones(5, bool)
    assert most_likely(accounts, np.array(CUTS) + rng.normal(0, 2, 5), measured) is accounts[0]
    even = 100 + rng.normal(0, 2, 5)
    assert most_likely(accounts, even, measured) is accounts[1]
    assert most_likely(accounts, even, np.zeros(5, bool)) is accounts[0]
    # A common factor speaks against neither.
    assert most_likely(accounts, 1.03 * np.array(CUTS), measured) is accounts[0]


def test_one_slice_and_no_interval():
    assert [d.tolist() for d in expected_depths(volumes([3], [500.0]), 0.0)] == [[0]]
    assert [d.tolist() for d in expected_depths([], INTERVAL_UM)] == [[]]
