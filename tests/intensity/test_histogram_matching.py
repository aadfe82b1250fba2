import numpy as np
import pytest

from linumpy.core.device import like, to_host
from linumpy.intensity.histogram_matching import (
    MIN_VOXELS,
    N_QUANTILES,
    apply_factors,
    matching_factors,
    mean_of_planes,
    plane_quantiles,
    smooth_gains,
)
from linumpy.intensity.quantiles import N_BINS, float_histogram


def quantiles_of(values):
    return plane_quantiles(float_histogram(values.reshape(1, -1).astype(np.float32)))[0]


def match_histogram(volume, mask, reference, threshold):
    """Match the tissue of each plane as the stage does, from one volume."""
    flat = volume.reshape(len(volume), -1)
    counts = float_histogram(flat, (mask & (volume > threshold)).reshape(flat.shape))
    first, factors = matching_factors(plane_quantiles(counts), reference, threshold)
    matched = volume * apply_factors(volume, first, like(factors, volume))
    matched[~mask] = volume[~mask]
    return matched


@pytest.fixture
def planes(rng):
    """Planes of other brightness and contrast, up to well above 1."""
    volume = rng.gamma(4, 0.15, (3, 160, 150)).astype(np.float32)
    volume[1] **= 1.3
    volume[2] *= 1.7
    return volume


def test_quantiles_are_numpy_s(rng):
    values = rng.gamma(3, 0.2, 50000).astype(np.float32)
    share = (np.arange(N_QUANTILES) + 0.5) / N_QUANTILES
    assert np.allclose(quantiles_of(values), np.quantile(values, share), rtol=0.01)


def test_matching_is_that_of_scikit_image(planes, rng, xp):
    from skimage.exposure import match_histograms

    reference = rng.gamma(3, 0.25, (200, 200)).astype(np.float32)
    everywhere = np.ones(planes.shape, bool)
    found = match_histogram(
        xp.asarray(planes), xp.asarray(everywhere), quantiles_of(reference), threshold=1e-4
    )
    for plane, matched in zip(planes, to_host(found), strict=True):
        expected = match_histograms(plane, reference)
        # Between the first and the last quantile that are kept; the tails are few voxels.
        low, high = np.quantile(plane, [0.005, 0.995])
        inner = (plane > low) & (plane < high)
        assert np.allclose(matched[inner], expected[inner], rtol=0.02)
    assert to_host(found).max() > 1


def test_what_is_no_tissue_stays(planes, xp):
    mask = np.zeros(planes.shape, bool)
    mask[:, 20:140, 30:120] = True
    threshold = 0.2
    reference = quantiles_of(2 * planes[0][planes[0] > threshold])
    found = to_host(match_histogram(xp.asarray(planes), xp.asarray(mask), reference, threshold))
    kept = ~mask | (planes <= threshold * 0.99)
    assert np.array_equal(found[kept], planes[kept])
    assert (found[~kept & (planes > 0.5)] > planes[~kept & (planes > 0.5)]).all()


@pytest.mark.parametrize("threshold", [0.0, 1e-40, 0.2, 5.0])
def test_a_table_of_the_tissue_s_range_gives_the_bits_of_all_bins(planes, rng, threshold, xp):
    """Seen to fail with a table that ends a bin earlier, and with one that begins a bin later."""
    planes[0, 0, :5] = -1.0, 0.0, 1e-42, 1e30, np.finfo(np.float32).max
    counts = float_histogram(planes.reshape(3, -1), planes.reshape(3, -1) > threshold)
    source = plane_quantiles(counts)
    source[1] = np.nan
    reference = quantiles_of(rng.gamma(3, 0.3, 40000))
    edges = (np.arange(N_BINS + 1, dtype=np.uint32) << 16).clip(max=0x7F7FFFFF).view(np.float32)
    values = (edges[:-1].astype(float) + edges[1:]) / 2
    patterns = planes.view(np.uint32) >> 16
    patterns[patterns >= N_BINS] = 0
    expected = np.ones(planes.shape, np.float32)
    for n in np.flatnonzero(np.isfinite(source[:, 0])):
        ends, goal = (np.append(threshold, q.clip(threshold)) for q in (source[n], reference))
        ratio = np.interp(values, ends, goal) / values
        ratio[values > ends[-1]] = goal[-1] / ends[-1]
        ratio[values <= threshold] = 1
        expected[n] = ratio.astype(np.float32)[patterns[n]]
    first, factors = matching_factors(source, reference, threshold)
    found = to_host(apply_factors(xp.asarray(planes), first, xp.asarray(factors)))
    np.testing.assert_array_equal(found, expected)
    if threshold == 0.2:
        assert 500 < factors.shape[1] < 1500


def test_the_order_of_brightness_stays(planes):
    reference = quantiles_of(planes[1])
    found = match_histogram(planes, np.ones(planes.shape, bool), reference, 0.1)
    order = np.argsort(planes[2].ravel())
    ordered = found[2].ravel()[order]
    # But for the width of a bin.
    assert (np.diff(ordered) > -0.01 * ordered[1:]).all()


def test_a_plane_with_little_tissue_keeps_its_values(planes):
    mask = np.zeros(planes.shape, bool)
    mask.reshape(3, -1)[0, : MIN_VOXELS - 1] = True
    mask.reshape(3, -1)[1, : 2 * MIN_VOXELS] = True
    found = match_histogram(planes, mask, quantiles_of(3 * planes), 0.0)
    assert np.array_equal(found[0], planes[0])
    assert not np.array_equal(found[1], planes[1])


def test_means_of_planes(planes, xp):
    counts = float_histogram(xp.asarray(planes.reshape(3, -1)))
    means, numbers = mean_of_planes(counts)
    assert np.allclose(means, planes.mean(axis=(1, 2)), rtol=0.005)
    assert numbers.tolist() == [planes[0].size] * 3


def test_gains_smooth_the_course_of_the_means(rng):
    depth = np.arange(60)
    course = 0.5 + 0.1 * np.sin(depth / 15)
    means = course * rng.uniform(0.9, 1.1, 60)
    gains = smooth_gains(means, np.full(60, 1000), 2.0, 100)
    assert np.std(means * gains / course) < 0.5 * np.std(means / course)


def test_planes_without_tissue_neither_count_nor_change():
    means, numbers = np.full(20, 0.4), np.full(20, 1000)
    means[7], numbers[7] = 90.0, 99
    means[12], numbers[12] = 0.0, 0
    gains = smooth_gains(means, numbers, 2.0, 100)
    assert np.allclose(gains, 1, atol=1e-12)
    assert (smooth_gains(means, numbers, 0.0, 100) == 1).all()
