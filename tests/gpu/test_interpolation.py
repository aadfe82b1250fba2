"""Interpolation and the cut face on the device, compared with SciPy and scikit-image."""

import numpy as np
import pytest
import scipy.ndimage
import skimage.transform

from linumpy.core.device import is_device_array, to_host
from linumpy.core.errors import DeviceError
from linumpy.gpu.interface import find_tissue_interface
from linumpy.gpu.interpolation import affine_transform, map_coordinates, resize

from ..conftest import HAS_GPU
from . import needs_gpu


def close(ours, reference):
    scale = np.quantile(np.abs(reference), 0.999)
    return np.abs(to_host(ours) - reference).max() <= 1e-4 * scale


@pytest.mark.parametrize("shape", [(20, 24, 28), (11, 33, 17), (40, 13, 30)])
def test_resize_is_scikit_images(xp, rng, shape):
    array = rng.random((20, 26, 30)).astype(np.float32)
    ours = resize(xp.asarray(array), shape)
    reference = skimage.transform.resize(array, shape, order=1, anti_aliasing=True)
    assert is_device_array(ours) == (xp is not np) and ours.dtype == np.float32
    assert close(ours, reference)


@pytest.mark.parametrize("order", [0, 1, 3])
@pytest.mark.parametrize("mode", ["constant", "nearest", "mirror"])
def test_affine_transform_is_scipys(xp, rng, order, mode):
    array = scipy.ndimage.gaussian_filter(rng.random((15, 22, 18)), 1.5).astype(np.float32)
    angle = 0.1
    matrix = np.array(
        [[1, 0, 0], [0, np.cos(angle), -np.sin(angle)], [0, np.sin(angle), np.cos(angle)]]
    )
    offset, shape = (0.3, 1.25, -0.8), (14, 20, 23)
    ours = affine_transform(xp.asarray(array), matrix, offset, shape, order=order, mode=mode)
    reference = scipy.ndimage.affine_transform(array, matrix, offset, shape, order=order, mode=mode)
    assert is_device_array(ours) == (xp is not np) and ours.shape == shape
    assert close(ours, reference)


def test_map_coordinates_is_scipys(xp, rng):
    array = rng.random((12, 14, 16)).astype(np.float32)
    coordinates = rng.random((3, 200)) * 18 - 2
    ours = map_coordinates(xp.asarray(array), coordinates, mode="constant", cval=7.0)
    reference = scipy.ndimage.map_coordinates(array, coordinates, order=1, cval=7.0)
    assert is_device_array(ours) == (xp is not np) and close(ours, reference)


@needs_gpu
def test_the_cut_face_is_the_hosts_on_almost_every_line(rng):
    from linumpy.geometry import interface

    depth = np.linspace(20, 50, 256)[:, None] + 3 * np.sin(np.arange(200) / 20)
    z = np.arange(96)[:, None, None]
    amplitude = np.where(z < depth, 4.0, 60 * np.exp(-(z - depth) * 0.02))
    noise = np.abs(rng.normal(size=amplitude.shape) + 1j * rng.normal(size=amplitude.shape))
    volume = (amplitude * noise).astype(np.float32)
    device = find_tissue_interface(volume, axis=0)
    host = interface.find_tissue_interface(volume, axis=0)
    assert is_device_array(device)
    same = np.round(to_host(device)) == np.round(host)
    assert same.mean() >= 0.999
    moved = interface.find_tissue_interface(volume, axis=0, use_gpu=True)
    assert isinstance(moved, np.ndarray) and np.array_equal(moved, to_host(device))


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU")
def test_the_device_is_not_replaced_by_the_host():
    with pytest.raises(DeviceError, match="CuPy|GPU"):
        find_tissue_interface(np.ones((8, 8, 8), np.float32))
