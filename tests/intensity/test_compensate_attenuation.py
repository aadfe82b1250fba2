"""Attenuation against loops over the published equations, and against known media."""

import math

import numpy as np
import pytest
from scipy.ndimage import map_coordinates

from linumpy.core.device import to_host
from linumpy.intensity.attenuation_exponent import PRIOR_EXPONENT
from linumpy.intensity.compensate_attenuation import (
    attenuation_gain,
    bin_power,
    bin_power_at_once,
    bin_size,
    compensate_attenuation,
    estimate_attenuation,
)
from linumpy.intensity.compensate_attenuation_methods import (
    box_sums,
    box_sums_by_matrices,
    cut_at_noise,
    depth_resolved,
    fit_end,
    gaussian,
    gaussian_by_matrices,
    median_by_plane,
    median_by_plane_at_once,
    tail_of,
    tail_smith,
)
from linumpy.stage_params.intensity import ATTENUATION_METHODS, AttenuationParams

STEP_MM = 0.01
VOXEL_UM = (10.0, 10.0, 10.0)


@pytest.fixture
def lines(rng):
    """Power that falls, with scatter, and tissue that begins and ends at other depths."""
    n = 40
    mu = rng.uniform(1, 3, (1, 5, 6))
    z = np.arange(n)[:, None, None]
    power = 1e4 * np.exp(-2 * mu * STEP_MM * z) * rng.uniform(0.8, 1.25, (n, 5, 6))
    tissue = (z >= rng.integers(0, 6, (5, 6))) & (z < rng.integers(30, n + 1, (5, 6)))
    tissue[:, 0, 0] = False
    return power.astype(np.float32), tissue


def each_line(tissue):
    for i, j in np.ndindex(*tissue.shape[1:]):
        inside = np.flatnonzero(tissue[:, i, j])
        if inside.size:
            yield i, j, inside


def plain_mu(power, tissue, tail):
    """µ[i] = ln(1 + I[i] / (Σ_{j>i} I[j] + C)) / 2Δ, voxel by voxel."""
    mu = np.zeros(power.shape)
    for i, j, inside in each_line(tissue):
        for z in inside:
            below = sum(float(power[k, i, j]) for k in inside if k > z) + tail[i, j]
            if below > 0:
                mu[z, i, j] = min(math.log(1 + power[z, i, j] / below) / (2 * STEP_MM), 50)
            else:
                mu[z, i, j] = mu[z - 1, i, j]
    return mu


def plain_liu(power, tissue, n_fit):
    slopes, ends = np.full(power.shape[1:], np.nan), np.zeros(power.shape[1:])
    places = np.zeros((2, *power.shape[1:]))
    precise = []
    for i, j, inside in each_line(tissue):
        z = inside[-n_fit:]
        y = np.log(power[z, i, j].astype(float))
        slope = np.polyfit(z, y, 1)[0]
        slopes[i, j] = -slope / (2 * STEP_MM)
        places[:, i, j] = y.mean(), z[-1] - z.mean()
        precise.append((slopes[i, j], len(z) ** 3 - len(z)))
    precise.sort()
    heavy = np.cumsum([weight for _, weight in precise])
    typical = precise[int(np.searchsorted(heavy, heavy[-1] / 2))][0]
    for i, j, _ in each_line(tissue):
        mu = min(max(slopes[i, j], typical / 2), typical * 2)
        last = math.exp(places[0, i, j] - 2 * mu * STEP_MM * places[1, i, j])
        ends[i, j] = last / (math.exp(2 * mu * STEP_MM) - 1)
    return ends


def test_the_sum_from_below(xp, lines, rng):
    power, tissue = lines
    tail = rng.uniform(0, 3e4, power.shape[1:]).astype(np.float32)
    tail[2, 2] = 0
    found = depth_resolved(xp.asarray(power), xp.asarray(tissue), xp.asarray(tail), STEP_MM)
    np.testing.assert_allclose(to_host(found), plain_mu(power, tissue, tail), rtol=2e-4, atol=1e-5)


def test_vermeer_repeats_its_last_value(lines, xp):
    power, tissue = lines
    nothing = np.zeros(power.shape[1:], np.float32)
    found = to_host(depth_resolved(*map(xp.asarray, (power, tissue, nothing)), STEP_MM))
    np.testing.assert_allclose(found, plain_mu(power, tissue, nothing), rtol=2e-4, atol=1e-5)
    for i, j, inside in each_line(tissue):
        assert found[inside[-1], i, j] == found[inside[-2], i, j] > 10


def test_liu_fits_a_line_above_the_end(xp, lines):
    power, tissue = lines
    found = to_host(tail_of(*fit_end(xp.asarray(power), xp.asarray(tissue), 20, STEP_MM), STEP_MM))
    np.testing.assert_allclose(found, plain_liu(power, tissue, 20), rtol=2e-3)


@pytest.mark.parametrize("brighter", [0.0, 3.0])
def test_an_end_that_brightens_downwards_takes_the_slope_of_the_whole_line(xp, rng, brighter):
    """ln P falls by 4 per mm, and rises by `brighter` over the lowest 200 µm of the tissue."""
    z = np.arange(100)
    smooth = 9 - 4 * STEP_MM * z + brighter * np.clip((z - 80) / 20, 0, 1)
    logarithm = smooth[:, None, None] + 0.03 * rng.standard_normal((100, 8, 8))
    # Short lines at the rim, which rise, have little say.
    tissue = np.ones(logarithm.shape, bool)
    tissue[6:, :6] = False
    logarithm[:6, :6] += 0.2 * z[:6, None, None]
    power = np.exp(logarithm).astype(np.float32)
    found, last = map(to_host, fit_end(xp.asarray(power), xp.asarray(tissue), 20, STEP_MM, 1, 0.3))
    n_fit = 100 if brighter else 20
    slope, level = np.polyfit(z[-n_fit:], smooth[-n_fit:], 1)
    np.testing.assert_allclose(found[6:], -slope / (2 * STEP_MM), rtol=0.15)
    np.testing.assert_allclose(np.log(last[6:]), level + 99 * slope, atol=0.15)


def test_tissue_takes_no_less_than_the_medium_around_it(xp):
    power = np.exp(0.01 * np.arange(40, dtype=np.float32))[:, None, None] * np.ones((3, 3), "f4")
    tissue = np.ones(power.shape, bool)
    found, last = fit_end(xp.asarray(power), xp.asarray(tissue), 20, STEP_MM, 1, 0.3)
    np.testing.assert_allclose(to_host(found), 0.3, rtol=1e-6)
    assert (to_host(last) > 1).all()


def test_smith_takes_the_mean_slope(xp, rng):
    """On smooth A-lines of one slope the mean slope is that slope: C = I_end / 2m."""
    mu = np.linspace(1, 3, 6)[None, None, :] + np.zeros((1, 5, 1))
    z = np.arange(60)[:, None, None]
    power = (1e4 * np.exp(-2 * mu * STEP_MM * z)).astype(np.float32)
    tissue = np.broadcast_to(z < 50, power.shape).copy()
    found = to_host(tail_smith(xp.asarray(power), xp.asarray(tissue), 3, 0))
    expected = power[47:50].mean(axis=0) / (2 * mu[0] * STEP_MM)
    np.testing.assert_allclose(found, expected, rtol=0.03)
    smooth = to_host(tail_smith(xp.asarray(power), xp.asarray(tissue), 3, 2.0))
    assert smooth.std() < 0.7 * found.std()


def test_li_looks_down_to_where_noise_begins(xp, lines):
    power, tissue = lines
    noise = np.full(len(power), 900, np.float32)
    found = to_host(cut_at_noise(*map(xp.asarray, (power, tissue, noise)), 6.0))
    expected = tissue.copy()
    for i, j, inside in each_line(tissue):
        loud = [z for z in inside if power[z, i, j] > 900 * 10**0.6]
        expected[max(loud, default=-1) + 1 :, i, j] = False
    np.testing.assert_array_equal(found, expected)
    assert expected.sum() < tissue.sum()


def medium(mu, n=60, amplitude=200.0, side=32):
    """Return amplitudes of a medium without speckle; `mu` over axis 2, or by plane."""
    z = np.arange(n)[:, None, None]
    mu = np.broadcast_to(np.asarray(mu, float), (n, side, side))
    optical = (mu.cumsum(axis=0) - mu / 2) * STEP_MM
    assert z.shape
    return (amplitude * np.exp(-optical)).astype(np.float32)


def estimate(xp, amplitude, valid=None, noise=None, agarose=0.0, **params):
    mask = None if valid is None else xp.asarray(valid.astype(np.uint8))
    sums = bin_power(xp.asarray(amplitude), mask, 4)
    return estimate_attenuation(
        *sums,
        AttenuationParams(**params),
        slice_id=3,
        voxel_um=VOXEL_UM,
        bin_px=4,
        noise_amplitude=noise,
        agarose_mu_per_mm=agarose,
    )


@pytest.mark.parametrize("method", ATTENUATION_METHODS)
def test_amplitudes_of_one_medium_give_its_coefficient(xp, method):
    """µ itself, not the half that amplitudes taken as power would give."""
    model = estimate(xp, medium(2.0), noise=[0.0] * 60, method=method)
    mu = to_host(model.mu_per_mm).astype(float)
    if method in ("klett", "liu", "li"):
        np.testing.assert_allclose(mu, 2.0, rtol=1e-3)
    elif method == "smith":
        np.testing.assert_allclose(mu[:40], 2.0, rtol=0.05)
    else:
        # Without the light from below, µ is that of a medium that ends: Σ to the bottom only.
        rest = -np.expm1(-2 * 2.0 * STEP_MM * (59 - np.arange(40)))
        expected = np.log1p(np.expm1(2 * 2.0 * STEP_MM) / rest) / (2 * STEP_MM)
        np.testing.assert_allclose(mu[:40, 3, 3], expected, rtol=2e-3)
    assert model.mu_per_mm.dtype == np.float16 and model.slice_id == 3


def test_the_correction_makes_a_medium_flat(xp):
    amplitude = medium(2.0)
    model = estimate(xp, amplitude, noise=[0.0] * 60)
    gain = attenuation_gain(model)
    out = to_host(compensate_attenuation(xp.asarray(amplitude), gain, (slice(0, 32),) * 2, 4))
    np.testing.assert_allclose(out, 200.0, rtol=2e-3)
    half = attenuation_gain(estimate(xp, amplitude, noise=[0.0] * 60, strength=0.5))
    np.testing.assert_allclose(to_host(half), np.sqrt(to_host(gain)), rtol=1e-5)
    bound = attenuation_gain(estimate(xp, amplitude, noise=[0.0] * 60, min_bias=0.25))
    assert to_host(bound).max() == 2.0


def tissue_in_agarose(rng, side=64, noise=25.0):
    """Speckle of tissue right of agarose; answers amplitudes and where tissue is."""
    is_tissue = np.arange(side) >= 24
    mu = np.where(is_tissue, 2.0, 0.5)[None, None, :]
    level = np.where(is_tissue, 200.0, 30.0)[None, None, :]
    expected = medium(mu, side=side) / 200 * level
    field = rng.normal(size=(2, *expected.shape)) * expected
    field += noise * rng.normal(size=field.shape)
    return np.sqrt((field**2).sum(axis=0) / 2).astype(np.float32), is_tissue


@pytest.mark.parametrize("method", ["klett", "liu", "li"])
def test_tissue_is_separated_from_agarose_and_noise_subtracted(xp, rng, method):
    amplitude, is_tissue = tissue_in_agarose(rng)
    model = estimate(
        xp, amplitude, noise=[25.0] * 60, agarose=0.5, method=method, radius_px=6
    )  # fmt: skip
    mu = to_host(model.mu_per_mm).astype(float)
    assert abs(np.median(mu[:40, :, 9:]) / 2 - 1) < 0.06
    # Two bins of the mixture between them are left out.
    np.testing.assert_array_equal(mu[:, :, :4], np.float16(0.5))
    # One bin of 16 at most is taken for what it is not.
    assert abs(model.tissue_fraction - is_tissue.mean()) <= 1 / 16
    assert abs(model.tissue_mu_per_mm / 2 - 1) < 0.06
    assert len(model.mu_by_plane) == 60


def test_klett_resolves_tissue_above_brighter_tissue(xp):
    """Grey above white matter: a fixed share scattered back makes the upper layer too clear.

    Where µ goes with the power k of the power scattered back, ``klett`` is exact.
    """
    z = np.arange(60)
    mu = np.where(z < 30, 1.6, 2.4)
    level = 200 * (mu / 1.6) ** (0.5 / PRIOR_EXPONENT)
    amplitude = (medium(mu[:, None, None]) / 200) * level[:, None, None]
    found = {
        method: to_host(
            estimate(xp, amplitude.astype(np.float32), noise=[0.0] * 60, method=method).mu_per_mm
        ).astype(float)[:, 3, 3]
        for method in ("klett", "li")
    }
    np.testing.assert_allclose(found["klett"], mu, rtol=0.02)
    assert np.median(found["li"][:30]) < 0.95 * 1.6


def test_columns_unlike_each_other_count_alike_at_any_depth(xp, rng):
    """The mean power of columns is more and more that of the clearest: 0.64 to 0.85 of their µ.

    At the lower end the slope of a wider region stands for what lies below.
    """
    side, n = 64, 60
    of_bins = 6 * rng.lognormal(0, 0.4, (side // 4, side // 4))
    mu = of_bins.repeat(4, axis=0).repeat(4, axis=1)
    model = estimate(xp, medium(mu, n, side=side), noise=[0.0] * n)
    found = to_host(model.mu_per_mm).astype(float)[:, 1:-1, 1:-1]
    # Averaged over three bins a side.
    windows = np.lib.stride_tricks.sliding_window_view(of_bins, (3, 3))
    ratio = found / windows.mean(axis=(2, 3))
    np.testing.assert_allclose(np.median(ratio, axis=(1, 2)), 1, atol=0.03)


def test_a_slice_of_one_medium_is_all_tissue(xp, rng):
    field = rng.normal(size=(2, 60, 32, 32)) * medium(0.5, amplitude=30)
    amplitude = np.sqrt((field**2).sum(axis=0) / 2).astype(np.float32)
    model = estimate(xp, amplitude, noise=[0.0] * 60)
    assert model.tissue_fraction == 1
    assert abs(np.median(to_host(model.mu_per_mm).astype(float)) - 0.5) < 0.1


def test_attenuation_begins_at_the_face(xp):
    """Above an uneven face nothing is valid, and nothing is made up for."""
    face = (np.arange(32) // 4)[None, :] * 2 + np.zeros((32, 1), int)
    depth = np.arange(60)[:, None, None] - face
    valid = depth >= 0
    amplitude = np.where(valid, 200 * np.exp(-2 * STEP_MM * (depth + 0.5)), 0).astype(np.float32)
    model = estimate(xp, amplitude, valid, noise=[0.0] * 60, radius_px=1)
    mu, gain = to_host(model.mu_per_mm).astype(float), to_host(attenuation_gain(model))
    assert (mu[~valid[:, ::4, ::4]] == 0).all() and (gain[~valid[:, ::4, ::4]] == 1).all()
    np.testing.assert_allclose(mu[valid[:, ::4, ::4]], 2, rtol=2e-3)
    out = amplitude[:, ::4, ::4] * gain
    np.testing.assert_allclose(out[valid[:, ::4, ::4]], 200, rtol=2e-3)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("size", [1, 4, 8])
def test_bins_hold_sums_of_squares(xp, rng, masked, size):
    block = rng.random((3, 21, 16), dtype=np.float32)
    valid = rng.random(block.shape) < 0.7
    data = block * valid if masked else block
    mask = xp.asarray(valid.astype(np.uint8)) if masked else None
    total, count = map(to_host, bin_power(xp.asarray(data), mask, size))
    assert total.shape == (3, -(-21 // size), -(-16 // size))
    for z, i, j in np.ndindex(*total.shape):
        window = (z, slice(i * size, (i + 1) * size), slice(j * size, (j + 1) * size))
        np.testing.assert_allclose(total[z, i, j], (data[window] ** 2).sum(), rtol=1e-5)
        assert count[z, i, j] == (valid[window].sum() if masked else data[window].size)


def test_the_gain_of_a_block_is_that_of_the_slice(xp, rng):
    """Linear between the bins' centres, constant beyond the outer ones, whatever the block."""
    gain = rng.uniform(1, 3, (4, 16, 14)).astype(np.float32)
    places = [np.clip((np.arange(n) + 0.5) / 4 - 0.5, 0, m - 1) for n, m in ((64, 16), (53, 14))]
    grid = np.meshgrid(np.arange(4), *places, indexing="ij")
    expected = map_coordinates(gain.astype(float), grid, order=1)
    ones = xp.ones((4, 64, 53), np.float32)
    for rows, columns in ((slice(0, 64), slice(0, 53)), (slice(32, 64), slice(16, 48))):
        part = ones[:, rows, columns]
        found = compensate_attenuation(part, xp.asarray(gain), (rows, columns), 4)
        np.testing.assert_allclose(to_host(found), expected[:, rows, columns], rtol=1e-5)


def test_bins_are_powers_of_two():
    assert [bin_size(um) for um in (200, 40, 20, 10, 5, 2.6, 0.1)] == [1, 1, 2, 4, 8, 16, 64]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("size", [1, 4, 8])
def test_bins_at_once_are_those_of_slices(xp, rng, size, masked):
    block = rng.normal(size=(6, 37, 24)).astype(np.float32)
    valid = (rng.uniform(size=block.shape) > 0.3).astype(np.uint8) if masked else None
    total, count = bin_power(block, valid, size)
    given = (xp.asarray(block), None if valid is None else xp.asarray(valid), size)
    at_once = bin_power_at_once(*given)
    assert at_once[0].dtype == np.float32 and at_once[1].dtype == np.uint16
    np.testing.assert_allclose(to_host(at_once[0]), total, rtol=1e-6)
    np.testing.assert_array_equal(to_host(at_once[1]), count)


def test_medians_of_all_planes_at_once(xp, rng):
    values = rng.normal(size=(9, 13, 11)).astype(np.float32)
    chosen = rng.uniform(size=values.shape) > 0.4
    chosen[0] = False
    chosen[1] = np.arange(143).reshape(13, 11) == 7
    chosen[2], chosen[3] = True, np.arange(143).reshape(13, 11) < 2
    expected = [float(np.median(v[c])) if c.any() else 0.0
                for v, c in zip(values, chosen, strict=True)]  # fmt: skip
    assert expected[1] == float(values[1].ravel()[7]) and expected[0] == 0
    given = xp.asarray(values), xp.asarray(chosen)
    assert median_by_plane_at_once(*given) == expected
    assert median_by_plane(*given) == expected


def test_filters_by_matrices_are_those_of_scipy(xp, rng):
    values = rng.normal(size=(12, 20, 31)).astype(np.float32)
    given = xp.asarray(values)
    for width in (1, 3, 11):
        expected = box_sums(values, width)
        scale = float(np.abs(expected).max())
        for found in (box_sums_by_matrices(given, width), box_sums(given, width)):
            np.testing.assert_allclose(to_host(found), expected, rtol=0, atol=1e-6 * scale)
    for sigmas in ((1, 0.5, 0.5), (1, 0, 0), (2, 3, 1.5)):
        expected = gaussian(values, sigmas)
        for found in (gaussian_by_matrices(given, sigmas), gaussian(given, sigmas)):
            np.testing.assert_allclose(to_host(found), expected, rtol=0, atol=1e-6)
