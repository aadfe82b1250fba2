"""Smoothing of maps compared with SciPy, which is not imported for it."""

import platform
import subprocess
import sys

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter, uniform_filter1d

from linumpy.geometry.smoothing import box_matrix, gaussian_matrix, gaussian_taps, smooth_map

NEEDS_NO_SCIPY = """
import sys
import numpy as np
from linumpy.geometry.interface_surface import fit_face
from linumpy.intensity.normalize_intensities_per_slice import find_agarose
mean = np.ones((40, 30), np.float32)
mean[:20] = 5
assert find_agarose(mean, 1.0).mask.sum() > 500
counts = np.full((20, 9, 9), 256, np.float32)
sums = np.where(np.arange(20)[:, None, None] < 8, 3.0, 5.0) * counts
face = fit_face(sums.astype(np.float32), counts, 16, (10.0, 10.0, 10.0), 2.0)
assert abs(face.depth_px - 8).max() < 0.1
assert "scipy" not in sys.modules, sorted(m for m in sys.modules if m.startswith("scipy"))
"""


@pytest.mark.parametrize("sigma", [0, 0.1, 0.5, 1.0, 1.7, 6.0])
@pytest.mark.parametrize("shape", [(300, 257), (5, 3), (1, 7), (9, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_smoothed_map_has_the_bits_of_scipys(rng, shape, sigma, dtype):
    values = rng.normal(size=shape).astype(dtype)
    before = values.copy()
    smooth = smooth_map(values, sigma)
    assert smooth.dtype == dtype and smooth is not values
    np.testing.assert_array_equal(values, before)
    expected = gaussian_filter(values, sigma)
    np.testing.assert_allclose(smooth, expected, rtol=0, atol=4 * np.finfo(dtype).eps)
    # On others SciPy's compiler may join a product and a sum.
    if platform.machine() == "x86_64":
        np.testing.assert_array_equal(smooth, expected)


@pytest.mark.parametrize("sigma", [0.05, 0.5, 1.5, 12, 48])
def test_a_matrix_smooths_as_scipy_does_with_nothing_beyond_the_ends(rng, sigma):
    values = rng.normal(size=(55, 4))
    expected = gaussian_filter(values, (sigma, 0), mode="constant")
    np.testing.assert_allclose(gaussian_matrix(55, sigma) @ values, expected, rtol=0, atol=1e-14)
    assert gaussian_taps(sigma).sum() == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("width", [1, 3, 5, 41])
def test_a_matrix_sums_over_a_box(rng, width):
    values = rng.normal(size=(30, 4))
    expected = width * uniform_filter1d(values, width, axis=0, mode="constant")
    np.testing.assert_allclose(box_matrix(30, width) @ values, expected, rtol=0, atol=1e-12)


def test_matrices_are_kept_and_cannot_be_changed():
    first = gaussian_matrix(9, 1.0)
    assert gaussian_matrix(9, 1.0) is first and box_matrix(9, 3) is box_matrix(9, 3)
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0] = 2


def test_what_a_slice_on_a_gpu_leaves_to_the_host_needs_no_scipy():
    done = subprocess.run([sys.executable, "-c", NEEDS_NO_SCIPY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
