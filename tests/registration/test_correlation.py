import numpy as np
import pytest

from linumpy.registration.correlation import (
    ACCEPT_Z_SCORE,
    confidence,
    correlation_surface,
    find_peak,
    flatten,
)

from .speckle import FINE, fixed_field, image


def measure(xp, first, second, centre, radius=(10, 10)):
    surface = correlation_surface(
        flatten(xp.asarray(first)), flatten(xp.asarray(second)), centre, radius
    )
    return find_peak(surface)


def test_half_shared_speckle_is_matched_to_a_twentieth_of_a_pixel(xp, rng):
    """Strips of an overlap of 24 by 100 px, shifted by up to 6 px."""
    errors = []
    for _ in range(8):
        field = fixed_field(rng, 12, (60, 130))
        first_at = np.array([8.0, 10.0])
        shift = np.rint(rng.uniform(-6, 6, 2) * FINE) / FINE
        first = image(rng, field, first_at, (34, 100), 0.5)
        second = image(rng, field, first_at + [10, 0] + shift, (34, 100), 0.5)
        peak = measure(xp, first, second, (10, 0))
        assert peak.z_score > ACCEPT_Z_SCORE
        errors.append(np.subtract(peak.displacement_px, [10, 0]) - shift)
    assert np.sqrt(np.mean(np.square(errors))) < 0.08


def test_unrelated_speckle_is_not_accepted(xp, rng):
    accepted = 0
    for _ in range(12):
        first = image(rng, fixed_field(rng, 8, (40, 90)), (0, 0), (40, 90), 0.5)
        second = image(rng, fixed_field(rng, 8, (40, 90)), (0, 0), (40, 90), 0.5)
        peak = measure(xp, first, second, (8, 0))
        accepted += peak is not None and peak.z_score >= ACCEPT_Z_SCORE
    assert accepted == 0


def test_agrees_with_direct_normalised_correlation(xp, rng):
    first = rng.normal(size=(3, 20, 24)).astype(np.float32)
    second = rng.normal(size=(3, 18, 22)).astype(np.float32)
    surface = correlation_surface(xp.asarray(first), xp.asarray(second), (2, -1), (4, 5))
    for i, j in ((0, 0), (4, 5), (7, 2), (8, 10)):
        d1, d2 = 2 + i - 4, -1 + j - 5
        a = first[:, max(0, d1) : min(20, 18 + d1), max(0, d2) : min(24, 22 + d2)]
        b = second[:, max(0, -d1) : min(18, 20 - d1), max(0, -d2) : min(22, 24 - d2)]
        direct = (a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum())
        assert surface.values[i, j] == pytest.approx(direct, abs=1e-4)


def test_masked_pixels_do_not_count(xp, rng):
    field = fixed_field(rng, 6, (70, 90))
    first = image(rng, field, (4, 4), (50, 70), 1.0)
    second = image(rng, field, (7, 2), (50, 70), 1.0)
    second[:, :, :20] = 1e4
    valid = np.ones(second.shape, np.uint8)
    valid[:, :, :20] = 0
    surface = correlation_surface(
        flatten(xp.asarray(first)),
        flatten(xp.asarray(second), xp.asarray(valid)),
        (0, 0),
        (8, 8),
    )
    np.testing.assert_allclose(find_peak(surface).displacement_px, (3, -2), atol=0.05)


def test_a_peak_at_the_border_of_the_search_is_not_believed(xp, rng):
    field = fixed_field(rng, 6, (70, 90))
    first = image(rng, field, (4, 4), (50, 70), 1.0)
    second = image(rng, field, (12, 4), (50, 70), 1.0)
    assert measure(xp, first, second, (0, 0), (8, 8)) is None
    assert measure(xp, first, second, (0, 0), (9, 9)) is not None


def test_confidence_grows_from_noise_to_one():
    scores = np.linspace(0, 60, 50)
    values = [confidence(score) for score in scores]
    assert values[0] == 0 and confidence(ACCEPT_Z_SCORE) == pytest.approx(0.5)
    assert np.all(np.diff(values) >= 0) and values[-1] < 1
