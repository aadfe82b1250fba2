"""Study of pairs: windows of slices are slices, and its sums are right."""

import numpy as np
import pytest

from linumpy.brain.slice_planes import SliceVolume


@pytest.fixture
def study(module):
    return module("pair_confidence")


def test_a_window_shows_what_the_slice_shows_there(study, rng):
    data = rng.random((5, 40, 50)).astype(np.float32)
    whole = SliceVolume(3, data.shape, (1000.0, -50.0), 4.0, lambda z, w: (data[(z, *w)], None))
    part = study.window_of(whole, np.array([7, 9]), np.array([20, 30]), np.array([10.0, 5.0]))
    assert part.shape == (5, 20, 30) and part.corner_um == (1070.0, -5.0)
    found, valid = part.read(slice(1, 3), (slice(2, 6), slice(0, 30)))
    assert valid is None
    np.testing.assert_array_equal(found, data[1:3, 9:13, 9:39])


def test_sums_over_pairs(study):
    def tried(confidence, accepted, error):
        return study.Tried(0, 1, 96, 9.0, 1.0, confidence, accepted, error)

    some = [tried(0.9, True, 0.1), tried(0.8, True, 0.3), tried(0.3, False, 0.5)]
    wrong = [tried(0.2, False, 40.0), tried(0.6, True, 9.0)]
    found = study.summarise(some + wrong)
    assert found["wrong"] == 2
    # Of six couples of a right and a wrong one, one is the wrong way round.
    assert found["auc"] == pytest.approx(5 / 6)
    assert found["right_accepted_share"] == pytest.approx(2 / 3)
    assert found["accepted_wrong_share"] == pytest.approx(1 / 3)
    assert found["accepted_right_median_px"] == pytest.approx(0.2)
    assert study.summarise(some)["auc"] is None
