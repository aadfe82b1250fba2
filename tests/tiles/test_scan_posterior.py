"""Standard error of a function of coefficients of unknown size."""

import numpy as np
import pytest

from linumpy.tiles.register_tiles import solve_positions
from linumpy.tiles.scan_posterior import standard_error

from .test_scan_distortion import LAWS, grid, learned, rms_px


def test_standard_error_is_that_of_weighted_samples():
    """Against samples of scale and coefficients, weighed by how likely they make the data."""
    rng = np.random.default_rng(3)
    prior_sigma, scales = np.array([2.0, 0.5, 0.2]), (0.05, 2.0)
    design = rng.normal(size=(6, 3)) * [0.0, 1, 1]
    data = design @ [0, 0.6, -0.2] + 0.3 * rng.normal(size=6)
    function, value = np.array([1.0, 0.5, 0]), 0.1
    scale = rng.choice(np.geomspace(*scales, 12), 400_000)
    samples = scale[:, None] * prior_sigma * rng.normal(size=(len(scale), 3))
    weight = np.exp(-0.5 * np.square((data - samples @ design.T) / 0.3).sum(axis=1))
    expected = np.sqrt(np.average(np.square(samples @ function - value), weights=weight))
    found = standard_error(
        design.T @ design / 0.09, design.T @ data / 0.09, np.diag(prior_sigma**-2.0), scales,
        function, value,
    )  # fmt: skip
    assert found == pytest.approx(expected, rel=0.03)


def errors_of_draws(law, jitter):
    """Errors of tiles and what is stated of them, over five draws of two slices."""
    error = np.zeros(120) if law is None else LAWS[law] - LAWS[law].mean()
    errors, sigmas = [], []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        stages = [grid(4, 4)] * 2
        trues = [stage + jitter * rng.normal(size=stage.shape) for stage in stages]
        model, pairs = learned(rng, stages, trues, error)
        used = None if model.is_straight else model.error_px
        for stage, true, results in zip(stages, trues, pairs, strict=True):
            errors.append(rms_px(solve_positions(stage, results, used), true))
            sigmas.append(model.position_sigma_px)
    return np.array(errors), np.array(sigmas)


@pytest.mark.slow
@pytest.mark.parametrize("jitter", [0.3, 2.5])
def test_tiles_err_by_what_is_stated(jitter):
    """Whether a bend was found or not. Over all laws, as one without a stretch errs by less."""
    found = [errors_of_draws(law, jitter) for law in LAWS]
    for errors, sigmas in found:
        assert (errors < 1.96 * sigmas + 0.1).mean() >= 0.9
        assert not ((errors > 0.3) & (1.96 * sigmas < 0.3)).any()
    errors, sigmas = (np.concatenate(parts) for parts in zip(*found, strict=True))
    assert 0.5 < np.sqrt(np.mean((errors / sigmas) ** 2)) < 1.5


@pytest.mark.slow
@pytest.mark.parametrize("jitter", [0.3, 2.5])
def test_strips_tell_a_straight_scan_from_one_that_is_bent_unseen(jitter):
    errors, sigmas = errors_of_draws(None, jitter)
    assert errors.max() < 0.1
    assert np.median(sigmas) < 0.2
