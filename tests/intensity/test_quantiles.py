import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from skimage.filters import threshold_otsu

from linumpy.core.device import to_host
from linumpy.intensity.quantiles import (
    N_BINS,
    WEIGHT,
    float_histogram,
    histogram_quantile,
    otsu_threshold,
    row_quantiles,
)


@pytest.mark.parametrize("fraction", [0.0, 0.25, 0.5, 0.9, 0.999, 1.0])
def test_quantiles_within_a_bin_of_numpys(xp, rng, fraction):
    values = rng.lognormal(2, 1.5, (3, 20_000)).astype(np.float32)
    counts = float_histogram(xp.asarray(values), xp.ones(values.shape, bool))
    ours = histogram_quantile(counts, fraction)
    np.testing.assert_allclose(ours, np.quantile(values, fraction, axis=1), rtol=0.008)


@given(
    hnp.arrays(
        np.float32, st.tuples(st.just(1), st.integers(1, 50)), elements=st.floats(1, 1e4, width=32)
    ),
    st.floats(0, 1),
)
def test_quantiles_of_few_values_go_on_between_them(values, fraction):
    """Of one value a bin or none, too. Seen to fail with each value in one bin."""
    ours = histogram_quantile(float_histogram(values), fraction)
    # Many that are the same fill the two bins around them: one and a half to either side at most.
    np.testing.assert_allclose(ours, np.quantile(values, fraction, axis=1), rtol=0.012)


@pytest.mark.parametrize("fraction", [0.5, 0.999])
def test_rounding_moves_a_quantile_hardly(xp, rng, fraction):
    """Seen to fail with each value in one bin: one beyond a border moved the quantile by 2e-3."""
    values = rng.lognormal(0, 1, (40, 3000)).astype(np.float32)
    # A third lies on borders between bins, in the sparse tail as well.
    values.view(np.uint32)[:, ::3] &= np.uint32(0xFFFF0000)
    less = values * np.float32(1 - 3e-7)
    ours, moved = (
        histogram_quantile(float_histogram(xp.asarray(v)), fraction) for v in (values, less)
    )
    np.testing.assert_allclose(moved, ours, rtol=1e-5)


@given(
    hnp.arrays(np.float32, (2, 40), elements=st.floats(0, 1e6, width=32)),
    hnp.arrays(bool, (2, 40)),
    st.integers(1, 39),
)
def test_counts_add_up_over_any_split(values, chosen, split):
    whole = float_histogram(values, chosen)
    parts = float_histogram(values[:, :split].copy(), chosen[:, :split]) + float_histogram(
        values[:, split:].copy(), chosen[:, split:]
    )
    np.testing.assert_array_equal(whole, parts)
    np.testing.assert_array_equal(whole.sum(axis=1), WEIGHT * chosen.sum(axis=1))


def test_quantiles_of_a_whole_brain_rise():
    """Of 4e11 voxels in four bins. Seen to fail with differences of integrals: 55 did not."""
    row = np.zeros(N_BINS, np.int64)
    row[17000:17004] = 10**11 * WEIGHT
    found = row_quantiles(row, (np.arange(512) + 0.5) / 512)
    assert np.all(np.diff(found) > 0)


def test_empty_plane_has_no_quantile():
    counts = float_histogram(np.ones((2, 4), np.float32), np.array([[True] * 4, [False] * 4]))
    answer = histogram_quantile(counts, 0.5)
    assert answer[0] == pytest.approx(1, rel=0.008)
    assert np.isnan(answer[1])


def test_otsu_is_scikit_images(rng):
    values = np.concatenate([rng.normal(3, 0.5, 4000), rng.normal(9, 1.5, 2500)])
    assert otsu_threshold(values) == pytest.approx(threshold_otsu(values, nbins=256), abs=0.06)


def test_counts_of_selected_columns_with_negatives_as_zero(xp, rng):
    values = (rng.normal(0, 50, (4, 300)) * (rng.random((4, 300)) < 0.9)).astype(np.float32)
    values[0, :3] = -0.0, 1e-40, np.finfo(np.float32).max
    values[1, :6] = np.nan, -np.nan, np.inf, -np.inf, 1e-45, 4.6e-41
    selected, columns = rng.random(values.shape) < 0.7, rng.random(300) < 0.5
    for chosen, some in [(None, None), (selected, None), (None, columns), (selected, columns)]:
        expected = np.zeros((4, N_BINS), int)
        for plane, at in np.ndindex(values.shape):
            if (chosen is None or chosen[plane, at]) and (some is None or some[at]):
                value = values[plane, at]
                # Where it lies among centres of bins, of which bin 0 has the first.
                pattern = int.from_bytes(value.tobytes(), "little") if value > 0 else 0
                number, rest = divmod(max(0, pattern - (1 << 15)), 1 << 16)
                beyond = rest * WEIGHT >> 16
                expected[plane, number] += WEIGHT - beyond
                expected[plane, number + 1] += beyond
        given = (None if a is None else xp.asarray(a) for a in (chosen, some))
        counts = float_histogram(xp.asarray(values), *given)
        assert counts.dtype == np.int64
        np.testing.assert_array_equal(to_host(counts), expected)


@pytest.mark.parametrize("step", [0.0, 1e-9])
def test_values_that_are_the_same_but_for_rounding_are_all_above(step):
    values = 3.0 + step * np.arange(50)
    assert (values > otsu_threshold(values)).all()


@pytest.mark.parametrize("absurd", [9.5e11, 1e30, -1e12])
def test_one_absurd_value_moves_no_threshold(rng, absurd):
    """Seen to fail with bins between the smallest and the largest value."""
    values = np.concatenate([rng.normal(3, 0.5, 400), rng.normal(9, 1.5, 250)])
    clean = otsu_threshold(values)
    values[70] = absurd
    # Within a bin.
    assert otsu_threshold(values) == pytest.approx(clean, abs=0.05)


def test_a_class_of_one_percent_keeps_its_threshold(rng):
    values = np.concatenate([rng.normal(3, 0.3, 9900), rng.normal(9, 0.3, 100)])
    assert 4 < otsu_threshold(values) < 8
