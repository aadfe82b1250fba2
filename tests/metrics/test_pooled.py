"""What slices have in common, against what it was made from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter1d

from linumpy.metrics.pooled import depth_remainder, lean, linear_difference
from linumpy.metrics.stages import measure

from .stage_models import MODELS, grid_of_tiles


@pytest.mark.parametrize("seed", range(5))
def test_slices_together_show_what_none_of_them_is_sure_of(seed: int) -> None:
    """Scaled by 1.2 % along axis 2, each slice to 0.4 %; one lies where the stage put it."""
    affine = np.array([[1.0, 0.0], [0.0, 1.012]])
    models = [grid_of_tiles(affine, 6.0, 100 * seed + n) for n in range(8)]
    for model in models:
        found = measure("register_tiles", model)
        assert found is not None and found.metrics["stage_linear"].status == "ok"
    held = grid_of_tiles(np.eye(2), 0.0, 0)
    held = replace(held, tiles=[replace(t, component=-1) for t in held.tiles])
    assert linear_difference([held]) is None
    together = linear_difference([*models, held])
    assert together is not None
    mean, error = together
    assert np.all(error < 0.0025)
    np.testing.assert_allclose(mean, affine - np.eye(2), atol=4 * error.max())


def test_slices_that_scatter_are_less_sure() -> None:
    """Each to 0.01 %, by half a percent either way: seen to fail without their scatter."""
    scales = (1.01, 1.0, 1.01, 1.0)
    models = [grid_of_tiles(np.diag([1.0, k]), 0.1, n) for n, k in enumerate(scales)]
    found = linear_difference(models)
    assert found is not None
    assert found[0][1, 1] == pytest.approx(0.005, abs=1e-4)
    assert found[1][1, 1] == pytest.approx(0.005 / np.sqrt(3), rel=0.05)


def test_few_tiles_a_slice_are_not_sure_by_chance() -> None:
    """Ten slices of four tiles, one degree of freedom each; seen to fail by single variances."""
    alarms = 0
    for seed in range(100):
        models = [grid_of_tiles(np.eye(2), 6.0, 1000 * seed + n, side=2) for n in range(10)]
        found = linear_difference(models)
        assert found is not None
        alarms += bool(np.any((abs(found[0]) > 5 * found[1]) & (abs(found[0]) > 0.005)))
    assert alarms <= 1


def profiles(
    n: int, rng: np.random.Generator, common: np.ndarray, anatomy: float = 0.03
) -> list[list[float]]:
    """Return amplitudes of tissue by plane of slices of 30 planes, whose anatomy is smooth."""
    found = []
    for _ in range(n):
        own = gaussian_filter1d(rng.normal(size=60), 3.0)[15:45]
        own *= anatomy / own.std()
        slope = rng.normal(0, 0.01) * np.arange(30)
        found.append(np.exp(5 + rng.normal(0, 0.2) + slope + own + common).tolist())
    return found


@pytest.mark.parametrize("n", [3, 12])
def test_fringes_of_all_slices_are_found_where_they_lie(n: int, rng: np.random.Generator) -> None:
    """A fringe of 20 % along 30 planes; one slice is a bubble that dims with depth."""
    planes = np.arange(30)
    fringe = 0.2 * np.sin(planes / 2.5)
    slices = profiles(n, rng, fringe)
    slices[0] = (np.array(slices[0]) * np.where(planes > 12, 0.3, 1)).tolist()
    found = depth_remainder(slices if n > 3 else profiles(n, rng, fringe))
    assert found is not None
    rest, error = found
    assert np.isnan(rest[:3]).all() and error < 0.05
    seen = fringe[3:] - np.polyval(np.polyfit(planes[3:], fringe[3:], 1), planes[3:])
    np.testing.assert_allclose(rest[3:], seen, atol=0.05)


def test_a_steady_change_along_depth_is_the_brains_own(rng: np.random.Generator) -> None:
    found = depth_remainder(profiles(6, rng, -0.02 * np.arange(30), anatomy=0.01))
    assert found is not None and np.nanmax(np.abs(found[0])) < 0.02


def test_planes_that_few_slices_show_do_not_count(rng: np.random.Generator) -> None:
    """One of five slices is deeper, another shows tissue in its upper planes alone."""
    slices = profiles(5, rng, np.zeros(30))
    slices[0] = [*slices[0], *[1e6] * 10]
    slices[1][8:] = [0.0] * 22
    found = depth_remainder(slices)
    assert found is not None
    assert len(found[0]) == 40 and np.isnan(found[0][30:]).all()
    assert np.isfinite(found[0][3:30]).all()


@pytest.mark.parametrize("slices", [[], [[1.0] * 30] * 2, [[1.0] * 30, [1.0] * 30, [0.0] * 30]])
def test_two_slices_have_no_common_remainder(slices: list[list[float]]) -> None:
    assert depth_remainder(slices) is None


def test_neighbours_whose_anatomy_is_alike_are_fewer_than_they_are() -> None:
    """Of 100 brains of 20 slices, whose anatomy of 8 % keeps 0.8 from slice to slice. Seen to fail
    (12) where slices count as independent.
    """
    alarms = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        own = np.log(profiles(20, rng, np.zeros(30), anatomy=0.08)) - 5
        own -= own.mean(axis=1, keepdims=True)
        for n in range(1, 20):
            own[n] = 0.8 * own[n - 1] + 0.6 * own[n]
        found = depth_remainder(np.exp(own).tolist())
        assert found is not None
        alarms += np.nanmean(found[0] ** 2) - (2 * found[1]) ** 2 >= 0.05**2
    assert alarms <= 4


@pytest.mark.parametrize("n", [3, 4, 8, 30])
def test_anatomy_alone_shares_no_more_than_is_stated(n: int) -> None:
    """Of 200 brains whose slices vary by 5 % along depth, two share as much by chance at most."""
    alarms = 0
    for seed in range(200):
        slices = profiles(n, np.random.default_rng(1000 * n + seed), np.zeros(30), anatomy=0.05)
        found = depth_remainder(slices)
        assert found is not None
        alarms += np.nanmean(found[0] ** 2) - (2 * found[1]) ** 2 >= 0.05**2
    assert alarms <= 2


@pytest.mark.parametrize(("step_um", "status"), [(0.0, "ok"), (8.0, "warning"), (30.0, "error")])
def test_a_stack_that_leans_is_told(step_um: float, status: str, rng: np.random.Generator) -> None:
    """Sixty slices of 200 um with one missing, each of which lies where it likes by 20 um."""
    ids = [n for n in range(61) if n != 7]
    across = np.array(ids)[:, None] * (0.6 * step_um, -0.8 * step_um)
    across += rng.normal(0, 20.0, across.shape)
    slices = [
        {"slice_id": i, "offset_um": (0.0, *place), "rotation_deg": 0.0, "n_pairs": 2}
        for i, place in zip(ids, across.tolist(), strict=True)
    ]
    model = replace(MODELS["register_slices"], slices=slices, slice_interval_um=200.0)
    found = measure("register_slices", model)
    assert found is not None
    metric = found.metrics["lean"]
    assert metric.status == status and metric.value is not None
    assert metric.value == pytest.approx(np.degrees(np.arctan(step_um / 200)), abs=0.4)
    told = [text for text in found.warnings if "lies aside" in text]
    assert len(told) == (status != "ok")


@pytest.mark.parametrize(
    ("n", "n_jumps", "most"),
    [(12, 0, 0.4), (60, 0, 0.2), (20, 1, 0.52), (20, 3, 0.75), (30, 10, 1.1), (60, 3, 0.6)],
)
def test_a_lean_scatters_by_no_more_than_its_error(n: int, n_jumps: int, most: float) -> None:
    """Over 300 stacks whose slices lie where they like: by less, as they might drift. Seen to fail
    where the steps of known jumps count as exact: 0.55, 0.87, 1.54 and 0.66.
    """
    scatter = []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        jumps = rng.choice(np.arange(1, n), n_jumps, replace=False)
        across = rng.normal(0, 20.0, (n, 2)) + np.arange(n)[:, None] * (3.0, -7.0)
        for at in jumps:
            across[at:] += rng.normal(0, 300.0, 2)
        found = lean(range(n), across, jumps.tolist())
        assert found is not None
        scatter.append((found[0] - (3.0, -7.0)) / found[1])
    assert 0.1 < np.sqrt(np.mean(np.square(scatter))) < most


def test_no_lean_is_told_by_few_steps_that_are_no_jumps() -> None:
    across = np.random.default_rng(1).normal(0, 20.0, (14, 2))
    assert lean(range(14), across, (3, 9)) is not None
    assert lean(range(14), across, (3, 9, 10)) is None


@pytest.mark.parametrize(("own_um", "walk_um"), [(20.0, 0.0), (0.0, 20.0), (0.0, 5.0), (8.0, 4.0)])
@pytest.mark.parametrize("n", [12, 20, 60])
def test_stages_that_err_and_drift_do_not_lean(n: int, own_um: float, walk_um: float) -> None:
    """Of 300 stacks of 50 um, at most 2 % by a degree. Seen to fail (10 %) where the drift counts
    without its own error.
    """
    alarms = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        across = rng.normal(0, own_um, (n, 2)) + rng.normal(0, walk_um, (n, 2)).cumsum(axis=0)
        found = lean(range(n), across)
        assert found is not None
        slope, error = found
        alarms += bool(np.any(np.abs(slope) > np.maximum(0.87, 5 * error)))
    assert alarms <= 6


@pytest.mark.parametrize("n", [40, 60])
def test_jumps_at_even_steps_are_no_lean(n: int) -> None:
    """Three by 100 um, each a quarter on. Seen to fail (all) where one distance tells the drift."""
    for seed in range(20):
        across = np.random.default_rng(seed).normal(0, 5.0, (n, 2))
        across += 100.0 * (np.arange(n) // (n // 4)).clip(0, 3)[:, None]
        found = lean(range(n), across)
        assert found is not None
        assert np.all(np.abs(found[0]) < 5 * found[1])


def test_a_jump_of_the_stage_is_no_lean() -> None:
    """By 400 um before any of 20 slices; seen to fail by medians of squares."""
    for at in range(1, 20):
        across = np.random.default_rng(at).normal(0, 5.0, (20, 2))
        across[at:] += 400.0
        found = lean(range(20), across)
        assert found is not None
        slope, error = found
        assert np.all(np.abs(slope) < 5 * error)


@pytest.mark.parametrize("step_um", [0.0, 6.0])
def test_a_known_jump_hides_no_lean_and_makes_none(step_um: float) -> None:
    """By 400 um, with a slice missing before it. Seen to fail where jumps are not given."""
    ids = np.array([n for n in range(61) if n != 13])
    for seed in range(20):
        across = np.random.default_rng(seed).normal(0, 3.0, (60, 2)) + step_um * ids[:, None]
        across[ids >= 14] -= 400.0
        found = lean(ids.tolist(), across, jumps=(14,))
        assert found is not None
        slope, error = found
        np.testing.assert_allclose(slope, step_um, atol=1.0)
        assert np.all((np.abs(slope) > 5 * error) == (step_um > 0))
