import numpy as np
import pytest

from linumpy.core.device import to_host
from linumpy.intensity.normalize_intensities_per_slice import (
    Normalization,
    depth_mean,
    find_agarose,
    normalize_intensities_per_slice,
    solve_normalization,
)
from linumpy.intensity.quantiles import float_histogram
from linumpy.metrics.stage_metrics import StageMetrics
from linumpy.metrics.stages import normalize_intensities_per_slice as stage_figures


@pytest.fixture
def scene(rng):
    """A disc of tissue (100) in agarose (20), darker with depth, with a hole in the data."""
    i, j = np.mgrid[:80, :90]
    tissue = np.hypot(i - 40, j - 45) < 25
    decay = np.exp(-np.arange(12) * 0.05)[:, None, None]
    volume = np.where(tissue, 100, 20) * decay * rng.uniform(0.9, 1.1, (12, 80, 90))
    valid = np.ones(volume.shape, np.uint8)
    valid[:, :5] = 0
    return (volume * valid).astype(np.float32), valid, tissue


def test_agarose_is_zero_and_tissue_below_one(xp, scene):
    volume, valid, tissue = scene
    data, mask = xp.asarray(volume), xp.asarray(valid)
    agarose = find_agarose(to_host(depth_mean(data, mask)), 1.0)
    known = valid[0] > 0
    wrong = (agarose.mask != ~tissue)[known].mean()
    assert wrong < 0.02
    flat = data.reshape(12, -1)
    chosen = mask.reshape(12, -1) > 0
    model = solve_normalization(
        4,
        float_histogram(flat, chosen),
        float_histogram(flat, chosen & xp.asarray(agarose.mask.reshape(1, -1))),
        agarose.agarose_fraction,
        99.9,
    )
    planes = volume[:, agarose.mask]
    np.testing.assert_allclose(model.floor, np.median(planes, axis=1), rtol=0.01)
    cap = np.percentile(volume[:, known], 99.9, axis=1)
    np.testing.assert_allclose(model.cap, cap, rtol=0.01)
    assert model.scale == pytest.approx(np.median(cap - np.array(model.floor)), rel=0.01)
    shown = volume[:, known & ~agarose.mask]
    np.testing.assert_allclose(model.tissue, np.median(shown, axis=1), rtol=0.01)
    out = to_host(normalize_intensities_per_slice(data, mask, model))
    assert out.dtype == np.float32
    assert out.min() == 0 and out.max() < 1.5
    assert np.median(out[:, ~tissue & known]) < 1e-3
    assert np.median(out[0, tissue]) > 0.7
    assert (out[valid == 0] == 0).all()


def test_tissue_of_planes_that_half_of_it_hides_is_not_told(xp):
    """The face rises: the first plane shows a quarter of the tissue, the second three quarters."""
    volume = np.full((6, 20, 20), 100, np.float32)
    valid = np.ones(volume.shape, np.uint8)
    valid[0, 5:], valid[1, 15:] = 0, 0
    counts = float_histogram(xp.asarray(volume.reshape(6, -1)), xp.asarray(valid.reshape(6, -1)))
    model = solve_normalization(0, to_host(counts), np.zeros(counts.shape, int), 0.0, 99.9, 4)
    np.testing.assert_allclose(model.tissue, [0, 100, 100, 100], rtol=0.01)


def test_noise_in_deep_planes_does_not_scale_the_slice():
    """Two planes of five with noise that a large gain raised, as under opaque tissue."""
    rng = np.random.default_rng(8)
    planes = rng.rayleigh(100.0, (5, 20_000)).astype(np.float32)
    loud = planes * np.array([1, 1, 1, 1.7, 1.8], np.float32)[:, None]
    agarose = np.zeros(20_000, bool)
    agarose[:4000] = True
    scales = [
        solve_normalization(
            0, float_histogram(p, None), float_histogram(p, None, agarose), 0.2, 99.9
        ).scale
        for p in (planes, loud)
    ]
    assert scales[1] == pytest.approx(scales[0], rel=0.05)


def test_noise_in_most_planes_does_not_scale_the_slice():
    """Seen to fail (1.7) where all planes count; only the upper two of five show tissue."""
    rng = np.random.default_rng(9)
    planes = rng.rayleigh(100.0, (5, 20_000)).astype(np.float32)
    loud = planes * np.array([1, 1, 1.7, 1.8, 1.9], np.float32)[:, None]
    counts = [float_histogram(p, None) for p in (planes, loud)]
    none = float_histogram(planes, None, np.zeros(20_000, bool))
    scales = [solve_normalization(0, c, none, 0.0, 99.9, 2).scale for c in counts]
    assert scales[1] == pytest.approx(scales[0], rel=1e-6)


@pytest.mark.parametrize("n_upper", [3, None])
def test_a_dome_is_scaled_by_its_tissue(xp, rng, n_upper):
    """Tissue begins below the upper planes: seen to fail (speckle of agarose, 0.2 of it)."""
    planes = rng.rayleigh(20.0, (9, 20_000)).astype(np.float32)
    planes[4:, 5000:] = rng.rayleigh(200.0, (5, 15_000))
    agarose = np.arange(20_000) < 5000
    model = solve_normalization(
        0,
        float_histogram(xp.asarray(planes), None),
        float_histogram(xp.asarray(planes), None, xp.asarray(agarose)),
        0.25,
        99.9,
        n_upper,
    )
    assert model.scale == pytest.approx(np.percentile(planes[4:], 99.9), rel=0.05)


@pytest.mark.parametrize("white", [1.3, 1.6, 2.2])
@pytest.mark.parametrize("dark_share", [0.03, 0.4, 0.9])
def test_tissue_is_not_taken_for_agarose(rng, white, dark_share):
    """Grey and white matter alone have a floor of 0; seen to fail with Otsu's threshold alone."""
    amplitude = np.where(np.arange(100) < 100 * dark_share, 100, 100 * white)[:, None]
    volume = (amplitude * rng.rayleigh(0.8, (20, 100, 100))).astype(np.float32)
    agarose = find_agarose(depth_mean(volume, None), 1.0)
    assert agarose.agarose_fraction == 0 and not agarose.mask.any()
    flat = volume.reshape(20, -1)
    everything = float_histogram(flat, None)
    none = float_histogram(flat, None, agarose.mask.ravel())
    model = solve_normalization(0, everything, none, agarose.agarose_fraction, 99.9)
    assert model.floor == [0.0] * 20
    # The same with a rim of agarose, a quarter as bright as grey matter.
    volume[:, :, :20] = 25 * rng.rayleigh(0.8, (20, 100, 20))
    found = find_agarose(depth_mean(volume, None), 1.0)
    truth = np.arange(100) < 20
    assert (found.mask != truth).mean() < 0.03


@pytest.mark.parametrize(("share", "warned"), [(0.0, True), (0.2, False)])
def test_slice_without_agarose_is_flagged(share, warned):
    found = StageMetrics("normalize_intensities_per_slice")
    stage_figures(Normalization(0, [0.0], [1.0], 1.0, share), found)
    assert any("no agarose" in text for text in found.warnings) == warned


@pytest.mark.parametrize("absurd", [1e4, 1e7, 9.5e11])
def test_one_absurd_voxel_leaves_the_brightness(scene, absurd):
    """Seen to fail where the map of means is smoothed, or its threshold sought, as it is."""

    def solved(volume):
        agarose = find_agarose(depth_mean(volume, valid), 1.0)
        flat, chosen = volume.reshape(12, -1), valid.reshape(12, -1) > 0
        counts = float_histogram(flat, chosen)
        of_agarose = float_histogram(flat, chosen & agarose.mask.reshape(1, -1))
        return solve_normalization(4, counts, of_agarose, agarose.agarose_fraction, 99.9)

    volume, valid, _ = scene
    clean = solved(volume)
    volume[5, 30, 40] = absurd
    found = solved(volume)
    assert found.scale == pytest.approx(clean.scale, rel=1e-3)
    np.testing.assert_allclose(found.floor, clean.floor, rtol=1e-3)


def test_depth_mean_of_masked_columns(xp):
    volume = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    valid = np.ones(volume.shape, np.uint8)
    valid[2:, 0, 0] = 0
    valid[:, 1, 2] = 0
    mean = to_host(depth_mean(xp.asarray(volume), xp.asarray(valid)))
    assert mean[0, 0] == volume[:2, 0, 0].mean()
    assert np.isnan(mean[1, 2])
    assert mean[0, 1] == volume[:, 0, 1].mean()


def test_planes_are_clipped_scaled_and_masked(xp, rng):
    """Held against the formula; what lies outside the mask counts for nothing."""
    volume = rng.random((5, 30, 1000), dtype=np.float32)
    valid = np.ones(volume.shape, np.uint8)
    valid[2, 4:9], valid[4] = 0, 0
    floor, cap = np.array([0.1, 0.2, 0, 0.4, 0.1]), np.array([0.9, 0.8, 1, 0.6, 0.5])
    model = Normalization(0, floor.tolist(), cap.tolist(), 0.7, 0.5)
    bounds = floor[:, None, None], cap[:, None, None]
    plain = (np.clip(volume, *bounds) - bounds[0]) / 0.7
    for mask in (None, valid):
        given = None if mask is None else xp.asarray(mask)
        ours = normalize_intensities_per_slice(xp.asarray(volume), given, model)
        expected = plain if mask is None else plain * mask
        assert ours.dtype == np.float32
        np.testing.assert_allclose(to_host(ours), expected, atol=1e-6)
