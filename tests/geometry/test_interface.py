import numpy as np
import pytest
from scipy.ndimage import gaussian_filter1d

from linumpy.device import to_host
from linumpy.geometry.interface import find_tissue_interface


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


def test_gradient_is_scipys(rng):
    volume = rng.random((40, 9, 9)).astype(np.float32)
    ours = find_tissue_interface(volume, 1, 2.0, use_log=False, axis=0)
    gradient = gaussian_filter1d(volume, 2.0, axis=0, order=1, mode="nearest")
    assert np.abs(ours - 0.5 - gradient.argmax(axis=0)).max() <= 0.5
