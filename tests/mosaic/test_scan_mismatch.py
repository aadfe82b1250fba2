"""Scan distortion is told from the scale of the stage, and tiles follow the stage then."""

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter, map_coordinates

from linumpy.mosaic.register_tiles import (
    correlate_pair,
    find_pairs,
    solve_positions,
    tile_evidence,
)
from linumpy.registration.correlation import Peak

from .test_register_tiles import measured_pairs

SIDE, STEP = 120, 96
HALF_BEND_PX = 2.0


def bend(x):
    """An S over the fast axis, of 2 px."""
    return HALF_BEND_PX * np.sin(np.pi * (2 * (x + 0.5) / SIDE - 1))


def grid(n1, n2):
    return np.array([(i, j) for i in range(n1) for j in range(n2)]) * float(STEP) + 8


def bent_pairs(rng, stage, true):
    """What pairs measure where A-lines lie at x + bend(x)."""
    results = measured_pairs(rng, stage, true, (SIDE, SIDE))
    for result in results:
        step = (true[result.pair.b] - true[result.pair.a])[0]
        at_first = np.arange(max(0, step), min(SIDE, SIDE + step))
        result.truth_px = result.truth_px + (np.mean(bend(at_first - step) - bend(at_first)), 0)
        result.peak = Peak(tuple(result.truth_px), 0.5, 20.0)
    return results


def rms_px(solution, true):
    error = solution.position_px - true
    return np.sqrt(((error - error.mean(axis=0)) ** 2).mean(axis=0)).max()


@pytest.mark.parametrize("shape", [(3, 3), (4, 4), (6, 5)], ids=str)
@pytest.mark.parametrize("jitter", [0.05, 0.3])
@pytest.mark.parametrize("seed", [0, 1])
def test_bent_fast_axis_is_no_scale_of_the_stage(shape, jitter, seed):
    rng = np.random.default_rng(seed)
    stage = grid(*shape)
    true = stage + jitter * rng.normal(size=stage.shape)
    results = bent_pairs(rng, stage, true)
    solution = solve_positions(stage, results)
    assert solution.scan_mismatch == pytest.approx(-0.023, abs=0.005)
    assert all(r.accepted for r in results)
    assert np.abs(solution.linear - np.eye(2)).max() < 0.005
    # Beyond this the stage's own jitter hides how long the mosaic is.
    assert rms_px(solution, true) < max(0.2, 0.7 * jitter)


EFFECTS = {
    "precise": {"jitter": 0.02},
    "jitter": {"jitter": 2.5},
    "scale and rotation": {"linear": [[0.01, -0.0087], [0.0087, 0.01]], "jitter": 0.05},
    "shear": {"linear": [[0, 0.01], [0, 0]], "jitter": 0.05},
    "backlash": {"backlash": (2.5, 0), "jitter": 0.05},
    "backlash along rows": {"backlash": (0, 2.5), "jitter": 0.05},
}


@pytest.mark.parametrize("effects", EFFECTS.values(), ids=EFFECTS)
@pytest.mark.parametrize("shape", [(2, 4), (3, 3), (5, 4)], ids=str)
def test_what_the_stage_does_is_no_distortion(effects, shape):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        stage = grid(*shape)
        centred = stage - stage.mean(axis=0)
        true = stage + centred @ np.array(effects.get("linear", np.zeros((2, 2)))).T
        true += np.outer(np.arange(len(stage)) % shape[1] % 2, effects.get("backlash", (0, 0)))
        true += effects["jitter"] * rng.normal(size=stage.shape)
        solution = solve_positions(stage, measured_pairs(rng, stage, true, (SIDE, SIDE)))
        assert solution.scan_mismatch == 0
        assert rms_px(solution, true) < 0.1


def test_tiles_that_show_a_bent_field_follow_the_stage():
    rng = np.random.default_rng(5)
    field = gaussian_filter(rng.normal(size=(6, 360, 360)), (0, 1.5, 1.5)) * 4 + 3
    stage = grid(3, 3)
    true = stage + 0.1 * rng.normal(size=stage.shape)
    evidence = []
    for corner in true:
        axis1 = corner[0] + np.arange(SIDE) + bend(np.arange(SIDE))
        axis2 = corner[1] + np.arange(SIDE)
        where = np.stack(np.meshgrid(axis1, axis2, indexing="ij"))
        tile = [map_coordinates(plane, where, order=1) for plane in field]
        evidence.append(tile_evidence(np.array(tile, np.float32)))
    pairs = find_pairs(stage, (SIDE, SIDE))
    results = [correlate_pair(evidence[p.a], evidence[p.b], p) for p in pairs]
    along = [r for r in results if r.pair.expected_px[0] > 1]
    assert rms_px(solve_positions(stage, results), true) < 0.2
    assert len(along) == 6
    assert np.mean([r.mismatch_px[0] for r in along]) == pytest.approx(-2.2, abs=0.5)
    # What was missed is sought where the image of a tile lies, 2 px from where the tile does.
    step = true[along[2].pair.b] - true[along[2].pair.a]
    along[2].peak = along[2].look_again(step, 2.0)
    np.testing.assert_allclose(along[2].displacement_px, step, atol=0.5)


def test_two_rows_of_tiles_tell_no_distortion():
    """Backlash of the second row looks like scale."""
    rng = np.random.default_rng(2)
    stage = grid(2, 5)
    true = stage + 0.05 * rng.normal(size=stage.shape)
    true[5:, 0] += 2.5
    solution = solve_positions(stage, measured_pairs(rng, stage, true, (SIDE, SIDE)))
    assert solution.scan_mismatch == 0
    assert rms_px(solution, true) < 0.1
