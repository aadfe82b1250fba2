"""Falls of faces: how far chance makes an uneven one fall, and when one is a wedge."""

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from linumpy.follow.depth_step import DepthStep
from linumpy.follow.reasons import stage_reasons, wedge_reasons
from linumpy.follow.wedge import SURE, fall_error_um


@pytest.mark.parametrize(("side", "length"), [(30, 2.0), (60, 4.0), (16, 4.0), (16, 6.0)])
def test_error_of_the_fall_is_its_scatter(side, length):
    rng = np.random.default_rng(8)
    axis = (np.arange(side) + 0.5) / side - 0.5
    falls, errors = [], []
    for _ in range(150):
        whole = gaussian_filter(rng.normal(size=(side + 40, side + 40)), length / np.sqrt(2))
        surface = 10 * whole[20:-20, 20:-20] / (1 / np.sqrt(2 * np.pi * length**2))
        falls.append(float((surface * axis[:, None]).mean() / (axis**2).mean()))
        errors.append(fall_error_um(surface))
    # Of slices together, as `wedge_reasons` takes it.
    assert np.mean(errors) == pytest.approx(np.std(falls), rel=0.2)


def test_plane_is_no_unevenness():
    first, second = np.indices((12, 9))
    assert fall_error_um(3.0 * first - 2.0 * second) < 1e-6


def figures(tilt, error):
    return {"tilt_um": tilt, "tilt_error_um": error}


@pytest.mark.parametrize(
    ("fall", "error", "level"),
    [(39, 1.0, None), (45, 1.0, "look"), (45, 12.0, None), (80, 12.0, "look"), (310, 12.0, "stop")],
)
def test_fall_beyond_limit_and_chance_is_a_wedge(fall, error, level):
    earlier = [figures([5.0, -4.0], error) for _ in range(4)]
    now = figures([5.0 + 0.6 * fall, -4.0 + 0.8 * fall], error)
    found = wedge_reasons(200.0, earlier, now)
    assert [r.level for r in found] == ([] if level is None else [level])
    assert now["wedge_um"] == pytest.approx(fall)
    if level == "look":
        assert found[0].limit == pytest.approx(max(40, SURE * error * np.sqrt(1.25)), abs=0.5)


def test_slice_after_a_glitch_is_where_the_slices_before_were():
    step = DepthStep(200.0, (900.0, 0.0))
    assert [r.kind for r in stage_reasons(step, np.array([900.0, 0.0]), 10.0)] == ["stage_glitch"]
    assert stage_reasons(step, np.array([6.0, 0.0]), 10.0) == []
