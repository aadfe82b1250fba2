import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skimage.transform import resize as skimage_resize

from linumpy.core.device import to_host
from linumpy.geometry.resample import (
    apply_axis_weights,
    axis_band,
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
    first, band = axis_band(n, n_out - start, step, start)
    outside = np.delete(part, np.s_[first : first + band.shape[1]], axis=1)
    assert band[:, [0, -1]].any() and not outside.any()


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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("shape", "steps"),
    [
        ((21, 40, 3100), (2, 2, 2)),
        ((30, 700, 12), (1.7, 3, None)),
        ((9, 10, 11), (0.4, None, 0.7)),
        ((40, 9, 10), (None, None, 3)),
        ((1, 1, 1), (2, 2, 2)),
        ((50, 60, 70), (9, 20, 100)),
    ],
)
def test_axes_are_multiplied_by_their_matrices(xp, rng, shape, steps, dtype):
    matrices = [
        None if step is None else axis_weights(n, max(1, int(n / step)), step)
        for n, step in zip(shape, steps, strict=True)
    ]
    array = rng.random(shape).astype(dtype)
    ours = apply_axis_weights(xp.asarray(array), matrices)
    full = [np.eye(n) if m is None else m for n, m in zip(shape, matrices, strict=True)]
    expected = np.einsum("zyx,az,by,cx->abc", array, *full, optimize=True)
    assert ours.dtype == dtype and ours.flags.c_contiguous
    np.testing.assert_allclose(to_host(ours), expected, atol=2e-6)


def test_arrays_in_any_memory_order(xp, rng):
    array = rng.random((12, 14, 16), dtype=np.float32)
    matrices = resampling_matrices(array.shape, (5,) * 3, (10,) * 3)
    expected = to_host(apply_axis_weights(xp.asarray(array), matrices))
    for turned in (np.asfortranarray(array), np.repeat(array, 2, axis=2)[:, :, ::2]):
        ours = to_host(apply_axis_weights(xp.asarray(turned), matrices))
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("steps", [(2, 2, 2), (None, 2, None), (None, None, None)])
def test_shares_decide_what_is_valid(xp, rng, steps):
    """Held against weighted means by whole matrices; planes with and without holes."""
    shape = (40, 12, 14)
    matrices = [
        None if step is None else axis_weights(n, int(n / step), step)
        for n, step in zip(shape, steps, strict=True)
    ]
    array = rng.random(shape, dtype=np.float32) + 1
    valid = np.ones(shape, np.uint8)
    valid[18:25] = rng.random((7, 12, 14)) < 0.6
    valid[33:] = 0
    full = [np.eye(n) if m is None else m for n, m in zip(shape, matrices, strict=True)]
    share = np.einsum("zyx,az,by,cx->abc", valid, *full, optimize=True)
    total = np.einsum("zyx,az,by,cx->abc", array * valid, *full, optimize=True)
    data, keep = resample_masked(xp.asarray(array), xp.asarray(valid), matrices)
    assert keep.dtype == np.uint8
    np.testing.assert_array_equal(to_host(keep), share >= 0.5 - 1e-4)
    expected = np.where(share >= 0.5 - 1e-4, total / np.maximum(share, 0.1), 0)
    np.testing.assert_allclose(to_host(data), expected, atol=3e-6)


@pytest.mark.parametrize("factor", [2, 4, 6])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_an_edge_through_the_middle_of_a_voxel_leaves_it_valid(xp, factor, axis):
    """Rounding does not decide about voxels that are exactly half covered."""
    shape = [40, 40, 40]
    shape[axis] = 96
    matrices = resampling_matrices(shape, (5,) * 3, (5 * factor,) * 3)
    array = xp.ones(shape, xp.float32)
    for start in range(24 + factor // 2, 72, factor):
        below = np.moveaxis(np.zeros(shape, np.uint8), axis, 0)
        below[start:] = 1
        for valid in (below, 1 - below):
            mask = xp.asarray(np.ascontiguousarray(np.moveaxis(valid, 0, axis)))
            _, keep = resample_masked(array, mask, matrices)
            line = np.moveaxis(to_host(keep), axis, 0)[:, 3, 3]
            assert line[start // factor] == 1
