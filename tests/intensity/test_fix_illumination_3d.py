import numpy as np

from linumpy.device import to_host
from linumpy.intensity.fix_illumination_3d import brightness_map, fix_illumination_3d


def speckled(rng, amplitude):
    g = rng.normal(size=amplitude.shape) + 1j * rng.normal(size=amplitude.shape)
    noise = rng.normal(size=amplitude.shape) + 1j * rng.normal(size=amplitude.shape)
    return (np.abs(amplitude * g + 3.0 * noise) / np.sqrt(2)).astype(np.float32)


def test_brightness_is_free_of_the_noise_floor(xp, rng):
    """Twice the illumination gives twice the brightness, also where noise is not negligible."""
    flat = np.where(np.arange(60)[:, None] < 30, 1.0, 2.0) + np.zeros((60, 50))
    z = np.arange(120)[:, None, None]
    amplitude = np.where(z < 30, 0, 12 * np.exp(-(z - 30) * 0.015)) * flat
    seen = to_host(brightness_map(xp.asarray(speckled(rng, amplitude))))
    ratio = np.median(seen[32:]) / np.median(seen[:28])
    assert abs(ratio - 2) < 0.03


def test_dark_columns_say_nothing(xp, rng):
    amplitude = np.zeros((80, 40, 40))
    amplitude[25:, :, 20:] = 20
    seen = to_host(brightness_map(xp.asarray(speckled(rng, amplitude))))
    assert np.isnan(seen[:, :18]).mean() > 0.9
    assert np.isfinite(seen[:, 22:]).all()


def test_correction_divides(xp, rng):
    tile = rng.random((4, 6, 5), dtype=np.float32)
    flat = rng.uniform(0.5, 1.5, (6, 5)).astype(np.float32)
    np.testing.assert_array_equal(
        to_host(fix_illumination_3d(xp.asarray(tile), flat)), tile / flat[None]
    )
