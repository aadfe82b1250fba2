import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skimage.transform import resize as skimage_resize

from linumpy.device import to_host
from linumpy.geometry.resample import (
    axis_weights,
    resample_masked,
    resample_mosaic_grid,
    resampled_length,
    resampling_matrices,
    resize,
)


@pytest.mark.parametrize("shape", [(15, 20, 26), (12, 41, 20), (40, 50, 60), (7, 5, 3)])
def test_resize_agrees_with_scikit_image(xp, rng, shape):
    image = rng.random((30, 41, 52), dtype=np.float32)
    ours = to_host(resize(xp.asarray(image), shape))
    theirs = skimage_resize(image, shape, order=1, anti_aliasing=True)
    np.testing.assert_allclose(ours, theirs, atol=2e-6)


@given(
    n=st.integers(1, 60),
    step=st.floats(0.3, 4.0),
    data=st.data(),
)
def test_axis_weights_keep_constants_and_rows_do_not_depend_on_the_range(n, step, data):
    n_out = max(1, int(n / step))
    whole = axis_weights(n, n_out, step)
    np.testing.assert_allclose(whole.sum(axis=1), 1, atol=1e-12)
    start = data.draw(st.integers(0, n_out - 1))
    part = axis_weights(n, n_out - start, step, start)
    np.testing.assert_array_equal(part, whole[start:])


@given(step=st.floats(1.0, 4.0))
def test_a_ramp_is_sampled_at_voxel_centres(step):
    n = 80
    ramp = np.arange(n) + 0.5
    n_out = resampled_length(n, 1.0, step)
    inner = slice(4, n_out - 4)
    sampled = (axis_weights(n, n_out, step) @ ramp)[inner]
    expected = ((np.arange(n_out) + 0.5) * step)[inner]
    away = (expected > 4 * step + 2) & (expected < n - 4 * step - 2)
    np.testing.assert_allclose(sampled[away], expected[away], atol=1e-9)


@given(n=st.integers(1, 2000), source=st.floats(0.5, 20), target=st.floats(0.5, 20))
def test_resampled_length_is_what_fits(n, source, target):
    length = resampled_length(n, source, target)
    assert length >= 1
    assert length == 1 or length * target <= n * source * (1 + 1e-6) + 1e-6 * target
    assert (length + 1) * target > n * source * (1 - 1e-9) - 1e-5 * target


def test_factor_one_copies(xp, rng):
    tile = xp.asarray(rng.random((5, 6, 7), dtype=np.float32))
    same = resample_mosaic_grid(tile, (10.0, 10.0, 10.0), (10.0, 10.0, 10.0))
    np.testing.assert_array_equal(to_host(same), to_host(tile))


def test_masked_voxels_lend_nothing(xp, rng):
    tile = rng.random((12, 20, 24), dtype=np.float32) + 1
    valid = np.ones(tile.shape, np.uint8)
    valid[:, 8:12] = 0
    spoiled = tile.copy()
    spoiled[:, 8:12] = 1e6
    matrices = resampling_matrices(tile.shape, (5, 5, 5), (10, 10, 10))
    data, mask = resample_masked(xp.asarray(spoiled), xp.asarray(valid), matrices)
    data, mask = to_host(data), to_host(mask)
    assert data.max() < 2.01
    assert (data[mask == 0] == 0).all()
    assert mask[:, 4:6].max() == 0
    assert mask[:, :3].min() == 1 and mask[:, 7:].min() == 1
