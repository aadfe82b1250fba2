import numpy as np
import pytest
from scipy.interpolate import BSpline
from scipy.ndimage import gaussian_filter

from linumpy.core.device import to_host
from linumpy.intensity.n4 import MIN_CELLS, itk_log_field, n4_log_field
from linumpy.intensity.n4_fit import (
    N4Options,
    basis_matrix,
    contract,
    expected_values,
    fit_log_field,
    refine,
)

OPTIONS = N4Options(iterations=(20, 20))


def known_field(shape, seed, spread):
    """A smooth log field over a volume, its standard deviation given, and an ellipsoid."""
    rng = np.random.default_rng(seed)
    z, y, x = np.meshgrid(*(np.linspace(-1, 1, n) for n in shape), indexing="ij")
    mask = z**2 + y**2 + x**2 < 0.95
    a = rng.uniform(-1, 1, 6)
    field = a[0] * z + a[1] * y + a[2] * x + a[3] * x * y + a[4] * np.sin(2 * x + z) + a[5] * y**2
    field -= field[mask].mean()
    return field * spread / field[mask].std(), mask


def blobs(shape, seed, spread=0.15):
    """A piecewise constant volume times a known field, with speckle of few percent."""
    rng = np.random.default_rng(seed + 100)
    noise = gaussian_filter(rng.standard_normal(shape), 1.8)
    low, high = np.quantile(noise, [0.4, 0.7])
    tissue = np.select([noise > high, noise > low], [0.9, 0.5], 0.35)
    field, mask = known_field(shape, seed, spread)
    volume = tissue * np.exp(field) * rng.gamma(400, 1 / 400, shape)
    return volume.astype(np.float32), mask, field


def phantom_brain(seed):
    from linumpy.core.errors import InputError
    from linumpy.phantom.anatomy import load_template

    try:
        template = load_template()
    except InputError:
        pytest.skip("the phantom's template needs nilearn")
    step = 6
    grey, white = (
        gaussian_filter(part.astype(float) / 255, 2)[::step, ::step, ::step]
        for part in (template.grey, template.white)
    )
    mask = grey + white > 0.8
    field, _ = known_field(grey.shape, seed, 0.15)
    field = field - field[mask].mean()
    rng = np.random.default_rng(seed)
    volume = (0.4 * grey + 0.9 * white) * np.exp(field) * rng.gamma(400, 1 / 400, grey.shape)
    return volume.astype(np.float32), mask, field


def evaluate(coefficients, shape):
    matrices = [
        basis_matrix(np.linspace(0, c - 3, n), c - 3).T
        for c, n in zip(coefficients.shape, shape, strict=True)
    ]
    return contract(coefficients, matrices)


def rms(values):
    return float(np.sqrt(np.mean(values**2)))


def test_the_basis_is_that_of_scipy():
    spans = 5
    u = np.linspace(0, spans, 41)
    knots = np.arange(-3, spans + 4)
    expected = BSpline.design_matrix(np.minimum(u, spans - 1e-12), knots, 3).toarray()
    assert np.allclose(basis_matrix(u, spans), expected, atol=1e-9)


def test_positions_beyond_the_ends_are_taken_to_them():
    assert np.array_equal(basis_matrix([-1, 7], 4), basis_matrix([0, 4], 4))


def test_refining_changes_no_value(rng):
    coefficients = rng.standard_normal((4, 6, 5))
    finer = refine(coefficients)
    assert finer.shape == (5, 9, 7)
    shape = (9, 12, 11)
    assert np.allclose(evaluate(finer, shape), evaluate(coefficients, shape), atol=1e-12)


def test_sharpening_narrows_the_peaks_and_keeps_their_place(rng, xp):
    peaks = np.log([0.4, 0.9])
    values = np.concatenate([p + 0.06 * rng.standard_normal(20000) for p in peaks])
    sharp = to_host(expected_values(xp.asarray(values, np.float32), N4Options()))
    for part, peak in zip(np.split(sharp, 2), peaks, strict=True):
        assert part.std() < 0.03
        assert abs(part.mean() - peak) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_fit_agrees_with_itk(seed):
    pytest.importorskip("SimpleITK")
    volume, mask, _ = blobs((14, 24, 20), seed)
    spans = (1, 1, 2)
    own = evaluate(fit_log_field(volume, mask, spans, OPTIONS), volume.shape)
    itk = evaluate(itk_log_field(volume, mask, spans, OPTIONS), volume.shape)
    assert rms((own - itk)[mask]) < 0.002
    # Nor is there nothing to agree on.
    assert itk[mask].std() > 0.05


@pytest.mark.slow
def test_the_fit_agrees_with_itk_on_a_brain():
    pytest.importorskip("SimpleITK")
    volume, mask, _ = phantom_brain(4)
    own = evaluate(fit_log_field(volume, mask, (1, 1, 1), OPTIONS), volume.shape)
    itk = evaluate(itk_log_field(volume, mask, (1, 1, 1), OPTIONS), volume.shape)
    assert rms((own - itk)[mask]) < 0.002
    assert itk[mask].std() > 0.05


@pytest.mark.parametrize("seed", [5, 6, 7])
def test_a_known_field_is_recovered(seed, xp):
    volume, mask, field = blobs((24, 44, 40), seed)
    options = N4Options(iterations=(50, 50))
    found = fit_log_field(xp.asarray(volume), xp.asarray(mask), (1, 1, 1), options)
    error = (evaluate(found, volume.shape) - field)[mask]
    assert abs(evaluate(found, volume.shape)[mask].mean()) < 1e-3
    assert rms(error) < 0.4 * field[mask].std()


def test_a_brain_is_evened_out():
    volume, mask, field = phantom_brain(8)
    found = evaluate(fit_log_field(volume, mask, (1, 1, 1), N4Options((50, 50))), volume.shape)
    assert rms((found - field)[mask]) < 0.4 * field[mask].std()


def test_both_devices_fit_the_same_field(xp):
    volume, mask, _ = blobs((14, 24, 20), 9)
    host = fit_log_field(volume, mask, (1, 1, 1), OPTIONS)
    there = fit_log_field(xp.asarray(volume), xp.asarray(mask), (1, 1, 1), OPTIONS)
    assert rms(evaluate(host - there, volume.shape)[mask]) < 0.002
    again = fit_log_field(xp.asarray(volume), xp.asarray(mask), (1, 1, 1), OPTIONS)
    assert np.array_equal(there, again)


@pytest.mark.parametrize("engine", ["linumpy", "itk"])
def test_a_single_layer_has_a_field_too(engine):
    if engine == "itk":
        pytest.importorskip("SimpleITK")
    volume, _, field = blobs((3, 40, 40), 10)
    mask = np.ones((1, 40, 40), bool)
    found = n4_log_field(volume[1:2], mask, (1, 1, 1), OPTIONS, engine=engine)
    assert found.shape == (5, 5, 5)
    assert np.isfinite(found).all()
    layer = evaluate(found, (1, 40, 40))[0]
    assert np.corrcoef(layer.ravel(), field[1].ravel())[0, 1] > 0.7


@pytest.mark.parametrize("case", ["constant", "few", "none"])
def test_what_teaches_nothing_has_no_field(case):
    volume = np.full((6, 8, 8), 0.5, np.float32)
    mask = np.ones(volume.shape, bool)
    if case != "constant":
        volume += np.random.default_rng(0).random(volume.shape, np.float32)
        mask = np.zeros_like(mask)
        mask.ravel()[: 0 if case == "none" else MIN_CELLS - 1] = True
    assert not n4_log_field(volume, mask, (1, 2, 1), OPTIONS, engine="linumpy").any()
