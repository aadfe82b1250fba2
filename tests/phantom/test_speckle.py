"""Statistics of speckle."""

from __future__ import annotations

import numpy as np
import pytest

from linumpy.phantom.lattice import Stream, make_key
from linumpy.phantom.speckle import (
    detector_noise,
    fixed_speckle,
    fresh_speckle,
    scattered_speckle,
)

KEY = make_key(11, Stream.SPECKLE)
RADII = (2.0, 2.4)
RAYLEIGH_CONTRAST = np.sqrt(4 / np.pi - 1)


def _fixed(
    row: float, column: float, depth: float | np.ndarray, n: int = 64, radii: tuple = RADII
) -> np.ndarray:
    start = np.broadcast_to(np.asarray(depth, dtype=np.float64), (n, n))
    re, im = fixed_speckle(KEY, row, n, column, n, start, n, radii)
    return re + 1j * im


def _fresh(key: np.ndarray, n: int = 64) -> np.ndarray:
    re, im = fresh_speckle(key, 0, n, n, n, RADII)
    return re + 1j * im


def _correlation(a: np.ndarray, b: np.ndarray) -> complex:
    power = np.sqrt(np.mean(np.abs(a) ** 2) * np.mean(np.abs(b) ** 2))
    return complex(np.mean(a * np.conj(b)) / power)


@pytest.mark.parametrize("offset", [0.0, 0.125, 0.5, 0.77])
def test_fixed_speckle_is_fully_developed_at_any_offset(offset: float) -> None:
    field = _fixed(-31 + offset, 5 + 2 * offset, 40 + offset)
    amplitude = np.abs(field)
    assert np.mean(amplitude**2) == pytest.approx(1, abs=0.03)
    assert amplitude.std() / amplitude.mean() == pytest.approx(RAYLEIGH_CONTRAST, abs=0.012)
    assert field.real.var() == pytest.approx(field.imag.var(), abs=0.03)
    assert abs(np.mean(field * field)) < 0.03  # circular: no preferred phase


def test_contrast_of_what_is_made_is_that_of_theory() -> None:
    assert pytest.approx(0.5227, abs=1e-4) == RAYLEIGH_CONTRAST
    for field in (_fresh(make_key(1, Stream.FRESH)), _fixed(0.3, 0.4, 0.5)):
        amplitude = np.abs(field)
        assert amplitude.std() / amplitude.mean() == pytest.approx(0.5227, abs=0.012)
        # Samples five apart share no lattice point: independent, so Kolmogorov's bound applies.
        sparse = np.sort((amplitude[::5, ::5, ::5] ** 2).ravel())
        empirical = (np.arange(sparse.size) + 0.5) / sparse.size
        distance = np.abs(empirical - (1 - np.exp(-sparse))).max()
        assert distance * np.sqrt(sparse.size) < 1.95  # exceeded once in a thousand


def test_same_tissue_gives_the_same_speckle_wherever_the_tile_begins() -> None:
    a, b = _fixed(10.25, -7.5, 3.1), _fixed(14.25, 2.5, 9.1)
    np.testing.assert_allclose(a[4:, 10:, 6:], b[:-4, :-10, :-6], atol=2e-5)


def test_scattered_a_lines_see_the_field_of_the_grid() -> None:
    rows, columns = np.meshgrid(np.arange(12) + 3.3, np.arange(9) - 4.6, indexing="ij")
    depth = np.linspace(2, 5, rows.size).reshape(rows.shape)
    expected = fixed_speckle(KEY, 3.3, 12, -4.6, 9, depth, 20, RADII)
    found = scattered_speckle(KEY, rows, columns, depth, 20, RADII)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    turned = scattered_speckle(KEY, rows[::-1].T, columns[::-1].T, depth[::-1].T, 20, RADII)
    np.testing.assert_allclose(turned, expected[:, ::-1].transpose(0, 2, 1, 3), atol=2e-5)


def test_each_a_line_reads_its_own_depth() -> None:
    depth = np.linspace(0, 12, 64 * 64).reshape(64, 64)
    curved = _fixed(0.5, 0.5, depth)
    for row, column in ((0, 0), (20, 33), (63, 63)):
        flat = _fixed(0.5, 0.5, depth[row, column])
        np.testing.assert_allclose(curved[row, column], flat[row, column], atol=2e-5)


def test_grain_is_the_kernel_s_autocorrelation() -> None:
    field = _fixed(0.0, 0.0, 0.0, n=72)
    kernel = lambda d: np.where(np.abs(d) < 2, 0.5 + 0.5 * np.cos(np.pi * d / 2), 0)  # noqa: E731
    points = np.arange(-4, 5)
    for lag in (1, 2, 3):
        expected = np.sum(kernel(points) * kernel(points - lag)) / np.sum(kernel(points) ** 2)
        measured = _correlation(field[lag:], field[:-lag]).real
        assert measured == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_two_visits_correlate_by_the_fixed_share(share: float) -> None:
    fixed = _fixed(0.2, 0.6, 0.4)
    visits = [
        np.sqrt(share) * fixed + np.sqrt(1 - share) * _fresh(make_key(5, Stream.FRESH, visit))
        for visit in range(2)
    ]
    assert _correlation(*visits) == pytest.approx(share, abs=0.03)
    for field in visits:
        assert np.mean(np.abs(field) ** 2) == pytest.approx(1, abs=0.04)


def test_fresh_speckle_and_noise_are_the_same_in_pieces() -> None:
    key = make_key(2, Stream.FRESH)
    whole = fresh_speckle(key, 0, 20, 12, 14, RADII)
    parts = [fresh_speckle(key, start, 10, 12, 14, RADII) for start in (0, 10)]
    np.testing.assert_array_equal(whole, np.concatenate(parts, axis=1))
    noise = detector_noise(key, 0, 20, 12, 14)
    np.testing.assert_array_equal(noise[:, 7:], detector_noise(key, 7, 13, 12, 14))


def test_noise_is_white_circular_and_apart_from_fresh_speckle() -> None:
    key = make_key(2, Stream.FRESH)
    re, im = detector_noise(key, 0, 64, 64, 64)
    noise = re + 1j * im
    assert np.mean(np.abs(noise) ** 2) == pytest.approx(1, abs=0.01)
    assert abs(_correlation(noise[:, :, 1:], noise[:, :, :-1])) < 0.01
    assert abs(_correlation(noise, _fresh(key))) < 0.02
