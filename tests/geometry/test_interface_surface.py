"""Surface of a slice's cut face compared with known faces, on both devices."""

import numpy as np
import pytest

from linumpy.core.device import to_host
from linumpy.geometry.interface_surface import (
    cell_size_px,
    centred_rise,
    first_rise,
    fit_face,
    log_profiles,
    sample_surface,
    smooth_filled,
)

CELL = 16
SHAPE = (50, 208, 192)


def pixels(shape=SHAPE):
    return np.meshgrid(*(np.arange(n) + 0.5 for n in shape[1:]), indexing="ij")


def rough(rng, scale_px, rms, shape=SHAPE):
    """A smooth random surface: its scale is the width of its bumps."""
    from scipy.ndimage import gaussian_filter

    field = gaussian_filter(rng.normal(size=shape[1:]), scale_px / 2.355, mode="reflect")
    return rms * (field - field.mean()) / field.std()


def cut_block(face, tissue, rng, *, noise=10.0):
    """Speckled amplitude: noise above the face, tissue (amplitude over the pixels) below it."""
    z = np.arange(SHAPE[0])[:, None, None]
    below = np.clip(z + 1 - face, 0, 1)
    power = (tissue * np.exp(-0.01 * np.maximum(z - face, 0))) ** 2 * below + noise**2
    return (np.sqrt(power) * rng.rayleigh(np.sqrt(0.5), SHAPE)).astype(np.float32)


def fitted(volume, valid=None):
    return fit_face(*log_profiles(volume, valid, CELL), CELL, (10.0, 10.0, 10.0), 2.0)


def at_cells(face):
    n1, n2 = face.shape[0] // CELL, face.shape[1] // CELL
    return face.reshape(n1, CELL, n2, CELL).mean(axis=(1, 3))


def rms(values):
    return np.sqrt(np.mean(np.square(values)))


def test_cells_are_powers_of_two_near_the_wanted_size():
    assert cell_size_px((10.0, 10.0)) == 16
    assert cell_size_px((25.0, 25.0)) == 8 and cell_size_px((5.0, 5.0)) == 32
    assert cell_size_px((3.0, 3.0)) == 64 and cell_size_px((0.1, 0.1)) == 256
    assert cell_size_px((500.0, 500.0)) == 1


def test_profiles_are_sums_over_cells(xp, rng):
    volume = rng.uniform(-0.1, 3, (5, 35, 22)).astype(np.float32)
    valid = (rng.random(volume.shape) < 0.8).astype(np.uint8)
    for mask in (None, valid):
        found = to_host(
            log_profiles(xp.asarray(volume), None if mask is None else xp.asarray(mask), 16)
        )
        good = (volume > 0) & (True if mask is None else mask > 0)
        assert found.shape == (2, 5, 3, 2) and found.dtype == np.float32
        for i, j in np.ndindex(3, 2):
            part = (slice(None), slice(16 * i, 16 * i + 16), slice(16 * j, 16 * j + 16))
            logs = np.log(np.where(good, volume, 1))[part]
            np.testing.assert_allclose(found[0, :, i, j], logs.sum(axis=(1, 2)), atol=1e-3)
            np.testing.assert_array_equal(found[1, :, i, j], good[part].sum(axis=(1, 2)))


def test_the_first_clear_rise_counts_not_the_steepest():
    rise = np.zeros((40, 3))
    bump = np.exp(-0.5 * ((np.arange(40) - 10) / 2.0) ** 2)
    rise[:, 0] = 0.1 * bump + 0.2 * np.roll(bump, 15)
    rise[:, 1] = 0.03 * bump + 0.2 * np.roll(bump, 15)
    rise[:, 2] = 0.04 * bump
    found = first_rise(rise, 0.05)
    assert found[0] == pytest.approx(10.5, abs=0.01)
    assert found[1] == pytest.approx(25.5, abs=0.01)  # a fifth of the largest is not clear
    assert np.isnan(found[2])


def test_a_high_step_is_found_in_its_middle(rng):
    """Of the logarithm alone it would be found too early."""
    errors = {}
    for tissue in (30.0, 300.0):
        face = np.full(SHAPE[1:], 20.5) + rough(rng, 100, 0.5)
        surface = fitted(cut_block(face, tissue, rng))
        errors[tissue] = (surface.depth_px - at_cells(face)).mean()
        assert abs(errors[tissue]) < 0.25
    assert abs(errors[300.0] - errors[30.0]) < 0.3
    depth = np.array([20.4])
    np.testing.assert_array_equal(centred_rise(np.arange(40.0)[:, None], depth), depth)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_tilt_and_unevenness_are_followed(seed):
    rng = np.random.default_rng(seed)
    i, j = pixels()
    fall = rng.uniform(-12, 12, 2)
    face = 24 + fall[0] * (i / SHAPE[1] - 0.5) + fall[1] * (j / SHAPE[2] - 0.5)
    uneven = rough(rng, 70, 2.0)
    tissue = np.where((i - 100) ** 2 + (j - 90) ** 2 < 70**2, 200.0, 30.0)
    surface = fitted(cut_block(face + uneven, tissue, rng))
    error = surface.depth_px - at_cells(face + uneven)
    # A plane or paraboloid alone would leave an RMS of more than one voxel.
    assert rms(error) < 0.45 and np.abs(error).max() < 2
    assert surface.used.mean() > 0.95


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_is_no_face_is_left_out(seed):
    """Vessels and ventricles, thin agarose over tissue, dark tiles, and a hole in the data."""
    rng = np.random.default_rng(seed)
    i, j = pixels()
    face = 18 + 6 * (i / SHAPE[1] - 0.5) + rough(rng, 100, 0.8)
    tissue = np.where((i - 100) ** 2 + (j - 90) ** 2 < 80**2, 200.0, 30.0)
    volume = cut_block(face, tissue, rng)
    z = np.arange(SHAPE[0])[:, None, None]
    vessel = (np.abs(z - 30) < 3) & (np.abs(i - j)[None] < 4)
    volume[vessel] *= 6
    # A ventricle open to the water: its floor lies 20 voxels below the face.
    floor = ((i - 80) ** 2 + (j - 70) ** 2 < 48**2)[None] & (z < face + 20)
    volume[floor] = 10 * rng.rayleigh(np.sqrt(0.5), int(floor.sum()))
    # Tissue that begins 8 voxels below the face, under agarose.
    under = (np.hypot(i - 100, j - 90) >= 80) & (j > 120)
    deep = under[None] & (z > face + 8)
    volume[deep] *= 7
    dark = slice(110, 160)
    volume[:, dark, :50] = 10 * rng.rayleigh(np.sqrt(0.5), (SHAPE[0], 50, 50))
    valid = np.ones(SHAPE, np.uint8)
    valid[:, 176:, 160:] = 0
    volume[valid == 0] = 0
    surface = fitted(volume, valid)
    error = surface.depth_px - at_cells(face)
    assert not surface.has_data[-2:, -2:].any() and surface.has_data[:11].all()
    assert rms(error[surface.has_data]) < 0.7
    assert np.abs(error[surface.has_data]).max() < 3
    assert not surface.used[4:6, 3:6].any()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_cell_that_disagrees_with_those_around_it_is_left_out(seed):
    """Though the face is so uneven that it is not far from the trend."""
    rng = np.random.default_rng(seed)
    face = 24 + rough(rng, 110, 3.5)
    volume = cut_block(face, np.full(SHAPE[1:], 200.0), rng)
    cell = np.s_[96:112, 80:96]
    z = np.arange(SHAPE[0])[:, None, None]
    cavity = z < face[cell] + 6
    volume[:, *cell][cavity] = 10 * rng.rayleigh(np.sqrt(0.5), int(cavity.sum()))
    surface = fitted(volume)
    assert not surface.used[6, 5] and surface.used.mean() > 0.9
    assert abs(surface.depth_px[6, 5] - at_cells(face)[6, 5]) < 1.2


def test_smoothing_keeps_a_constant_at_borders_and_across_holes():
    used = np.ones((20, 30), bool)
    used[4:12, 6:20] = False
    filled = smooth_filled(np.where(used, 5.0, 99.0), used, 1.5)
    np.testing.assert_allclose(filled, 5, rtol=0.15)
    np.testing.assert_allclose(filled[used], 5, rtol=0.05)
    assert not smooth_filled(np.full((6, 6), 9.0), np.zeros((6, 6), bool), 1.5).any()


def test_nothing_to_see_gives_one_plane(rng):
    noise = rng.rayleigh(1, SHAPE).astype(np.float32)
    surface = fitted(noise)
    assert np.ptp(surface.depth_px) == 0 and not surface.used.any()
    # So faint that no single cell shows it, but the slice as a whole does.
    faint = noise.copy()
    faint[20:] *= 1.12
    surface = fitted(faint)
    assert np.ptp(surface.depth_px) == 0
    assert surface.depth_px[0, 0] == pytest.approx(20, abs=1)


def test_sampling_is_exact_on_planes_and_constant_beyond():
    i, j = np.meshgrid(np.arange(5) + 0.5, np.arange(4) + 0.5, indexing="ij")
    surface = 3 + 0.5 * 16 * i - 0.25 * 8 * j
    at1, at2 = np.array([8.0, 20.3, 70.0]), np.array([4.0, 27.9])
    expected = 3 + 0.5 * at1[:, None] - 0.25 * at2[None, :]
    np.testing.assert_allclose(sample_surface(surface, (16, 8), at1, at2), expected)
    ends = sample_surface(surface, (16, 8), np.array([0.0, 1e3]), np.array([0.0]))
    np.testing.assert_allclose(ends[:, 0], [surface[0, 0], surface[-1, 0]])
    np.testing.assert_array_equal(sample_surface(np.full((1, 1), 7.0), (16, 8), at1, at2), 7)
