import numpy as np
import pytest
from scipy.ndimage import gaussian_filter1d, uniform_filter

from linumpy.core.device import to_host
from linumpy.geometry import interface
from linumpy.geometry.interface import (
    derivative_matrix,
    difference_weights,
    find_tissue_interface,
)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("use_log", [True, False])
def test_a_step_is_found_at_its_first_tissue_voxel(xp, axis, use_log):
    volume = np.full((60, 20, 24), 1.0, np.float32)
    volume[23:] = 10
    found = find_tissue_interface(
        xp.asarray(np.moveaxis(volume, 0, axis)), axis=axis, use_log=use_log
    )
    np.testing.assert_allclose(to_host(found), 23, atol=1e-3)


def test_fractions_of_a_voxel_are_seen(xp):
    # A face at 30.25: three quarters of voxel 30 are tissue.
    for fraction in (0.0, 0.25, 0.5, 0.75):
        volume = np.full((80, 6, 6), 1.0, np.float32)
        volume[30] = 1 + 9 * (1 - fraction)
        volume[31:] = 10
        found = to_host(find_tissue_interface(xp.asarray(volume), 1, axis=0, use_log=False))
        assert abs(found.mean() - (30 + fraction)) < 0.06


def test_speckled_tilted_face_within_a_third_of_a_voxel(xp, rng):
    depth = np.linspace(20, 32, 64)[:, None] + np.zeros((64, 48))
    z = np.arange(80)[:, None, None]
    amplitude = np.where(z < depth, 4.0, 60 * np.exp(-(z - depth) * 0.02))
    speckle = np.abs(rng.normal(size=amplitude.shape) + 1j * rng.normal(size=amplitude.shape))
    volume = (amplitude * speckle / np.sqrt(2)).astype(np.float32)
    found = to_host(find_tissue_interface(xp.asarray(volume), 5, 2.0, axis=0))
    truth = np.ceil(depth)
    assert np.median(np.abs(found - truth)) < 0.6
    assert abs(np.median(found - (depth + 0.5))) < 0.35


def test_masked_ends_are_no_interface(xp, rng):
    volume = np.full((60, 16, 16), 1.0, np.float32)
    volume[30:] = 5
    valid = np.ones(volume.shape, np.uint8)
    volume[50:], valid[50:] = 0, 0
    volume[:6], valid[:6] = 0, 0
    valid[:, 0, 0] = 0
    found = to_host(find_tissue_interface(xp.asarray(volume), 3, valid=xp.asarray(valid), axis=0))
    assert np.isnan(found[0, 0])
    np.testing.assert_allclose(found[4:, 4:], 30, atol=1e-3)


def steepest(volume, s_xy, s_z, use_log, valid):
    """The interface by SciPy's filters, A-line by A-line."""
    depth = np.where(volume > 0, np.log(np.where(volume > 0, volume, 1)), volume)
    depth = (depth if use_log else volume).astype(float)
    for _, i, j in np.argwhere(~valid.any(axis=0)[None]):
        depth[:, i, j] = 0
    for _, i, j in np.argwhere(valid.any(axis=0)[None]):
        known = np.flatnonzero(valid[:, i, j])
        source = known[np.maximum(np.searchsorted(known, np.arange(len(depth)), "right") - 1, 0)]
        depth[:, i, j] = depth[source, i, j]
    smooth = uniform_filter(depth, (1, s_xy, s_xy), mode="reflect")
    rise = gaussian_filter1d(smooth, s_z, axis=0, order=1, mode="nearest")
    found = np.full(volume.shape[1:], np.nan)
    for _, i, j in np.argwhere(valid.any(axis=0)[None]):
        line, k = rise[:, i, j], int(rise[:, i, j].argmax())
        found[i, j] = k + 0.5
        if 0 < k < len(line) - 1:
            before, centre, after = line[k - 1 : k + 2]
            found[i, j] += 0.5 * (before - after) / (before - 2 * centre + after)
    return found


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("use_log", [True, False])
@pytest.mark.parametrize(("s_xy", "s_z"), [(1, 2.0), (2, 0.5), (3, 2.0), (4, 3.1), (15, 1.0)])
def test_agrees_with_scipys_filters(xp, rng, monkeypatch, masked, use_log, s_xy, s_z):
    # Small enough that blocks of rows and of planes meet inside the volume.
    monkeypatch.setattr(interface, "_BLOCK_NBYTES", 1 << 13)
    monkeypatch.setattr(interface, "PIECE_NBYTES", 1 << 11)
    volume = rng.random((50, 23, 13)).astype(np.float32)
    volume[20:] *= 3
    volume[rng.random(volume.shape) < 0.05] = 0
    valid = np.ones(volume.shape, bool)
    if masked:
        valid[rng.random(volume.shape) < 0.3] = False
        valid[:4, :9], valid[-7:] = False, False
        valid[:, 5:7, 3:5] = False
    found = find_tissue_interface(
        xp.asarray(volume),
        s_xy,
        s_z,
        use_log=use_log,
        valid=xp.asarray(valid) if masked else None,
        axis=0,
    )
    expected = steepest(volume, s_xy, s_z, use_log, valid)
    assert found.dtype == np.float32
    np.testing.assert_allclose(to_host(found), expected, atol=2e-4)


@pytest.mark.parametrize("n_planes", [1, 2, 3])
def test_few_planes(xp, n_planes):
    volume = np.ones((n_planes, 4, 5), np.float32)
    volume[1:] = 10
    found = to_host(find_tissue_interface(xp.asarray(volume), 3, axis=0))
    expected = {1: 0.5, 2: 0.5, 3: 1.0}[n_planes]
    np.testing.assert_allclose(found, expected, atol=0.51 if n_planes > 1 else 0)


def test_where_nothing_changes_there_is_no_rise(xp):
    found = find_tissue_interface(xp.full((30, 6, 7), 3.3, xp.float32), 3, axis=0)
    np.testing.assert_array_equal(to_host(found), 0.5)


@pytest.mark.parametrize("sigma", [0.5, 2.0, 3.7])
@pytest.mark.parametrize("n", [2, 9, 60])
def test_weights_of_differences_are_scipys_derivative(rng, sigma, n):
    line = rng.random(n)
    expected = gaussian_filter1d(line, sigma, order=1, mode="nearest")
    np.testing.assert_allclose(derivative_matrix(n, sigma) @ np.diff(line), expected, atol=1e-12)
    assert len(difference_weights(sigma)) == 2 * int(4 * sigma + 0.5)
