"""Random fields as functions of position."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linumpy.phantom.lattice import (
    Stream,
    hann_taps,
    make_key,
    smooth_field,
    spline_taps,
    weighted_take,
    white_box,
)

KEY = make_key(3, Stream.SPECKLE)


@settings(max_examples=25, deadline=None)
@given(
    st.tuples(*[st.integers(-40, 40)] * 3),
    st.tuples(*[st.integers(1, 24)] * 3),
    st.tuples(*[st.integers(0, 30)] * 3),
)
def test_noise_depends_on_the_index_only(
    start: tuple[int, int, int], shape: tuple[int, int, int], margin: tuple[int, int, int]
) -> None:
    alone = white_box(KEY, start, shape, 2)
    outer_start = tuple(s - m for s, m in zip(start, margin, strict=True))
    outer_shape = tuple(n + 2 * m for n, m in zip(shape, margin, strict=True))
    outer = white_box(KEY, outer_start, outer_shape, 2)  # type: ignore[arg-type]
    inner = tuple(slice(m, m + n) for m, n in zip(margin, shape, strict=True))
    np.testing.assert_array_equal(outer[(slice(None), *inner)], alone)


def test_noise_is_white_with_unit_variance() -> None:
    noise = white_box(KEY, (-50, 3, 70), (100, 100, 100), 1)[0].astype(np.float64)
    assert abs(noise.mean()) < 4e-3
    assert noise.var() == pytest.approx(1, abs=6e-3)
    for axis in range(3):
        a, b = np.delete(noise, 0, axis), np.delete(noise, -1, axis)
        assert abs((a * b).mean()) < 4e-3


def test_keys_and_components_differ() -> None:
    a = white_box(KEY, (0, 0, 0), (20, 20, 20), 2)
    b = white_box(make_key(4, Stream.SPECKLE), (0, 0, 0), (20, 20, 20), 2)
    c = white_box(make_key(3, Stream.TEXTURE), (0, 0, 0), (20, 20, 20), 2)
    fields = [a[0], a[1], b[0], c[0]]
    correlation = np.corrcoef([f.ravel() for f in fields]) - np.eye(4)
    assert np.abs(correlation).max() < 0.05


@given(st.floats(-1e4, 1e4), st.floats(1, 6))
def test_weights_keep_unit_variance_at_every_offset(position: float, radius: float) -> None:
    first, weights = hann_taps(np.array([position]), radius)
    assert np.sum(weights.astype(np.float64) ** 2) == pytest.approx(1, abs=1e-5)
    taps = first[0] + np.arange(weights.shape[1])
    assert np.all(weights[0][np.abs(taps - position) >= radius] == 0)
    # No lattice point inside the kernel is left out.
    assert taps[0] - 1 <= position - radius + 1e-9
    assert taps[-1] + 1 >= position + radius - 1e-9


@given(st.floats(-50, 50))
def test_spline_reproduces_straight_lines(position: float) -> None:
    first, weights = spline_taps(np.array([position]))
    taps = first[0] + np.arange(4)
    assert weights.sum() == pytest.approx(1, abs=1e-6)
    assert np.sum(weights[0] * taps) == pytest.approx(position, abs=1e-4)


def test_weighted_take_is_a_matrix_product() -> None:
    rng = np.random.default_rng(5)
    values = rng.standard_normal((4, 9, 3)).astype(np.float32)
    first, weights = np.array([0, 3, 5]), rng.standard_normal((3, 4)).astype(np.float32)
    matrix = np.zeros((3, 9))
    for row, (f, w) in enumerate(zip(first, weights, strict=True)):
        matrix[row, f : f + 4] = w
    expected = np.einsum("ij,ajb->aib", matrix, values)
    np.testing.assert_allclose(weighted_take(values, 1, first, weights), expected, atol=1e-5)


def test_field_is_continuous_and_has_unit_variance_between_lattice_points() -> None:
    base = np.arange(60.0)
    for offset in (0.0, 0.25, 0.5, 0.83):
        field = smooth_field(KEY, (base + offset, base + 0.3, base + 0.5), 2.0)
        assert field.var() == pytest.approx(1, abs=0.03)
    near = smooth_field(KEY, (base + 0.999999, base, base), 2.0)
    after = smooth_field(KEY, (base + 1.000001, base, base), 2.0)
    assert np.abs(near - after).max() < 1e-3
