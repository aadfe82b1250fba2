"""Speckled images at known sub-pixel positions, for tests of registration."""

import numpy as np
from scipy.ndimage import gaussian_filter, gaussian_filter1d

FINE = 4


def fixed_field(rng, planes, shape):
    """Complex speckle on a grid `FINE` times finer than the pixels, unit power."""
    size = (planes, shape[0] * FINE, shape[1] * FINE)
    field = rng.normal(size=size) + 1j * rng.normal(size=size)
    field = gaussian_filter(field.real, (0, 2.5, 2.5)) + 1j * gaussian_filter(
        field.imag, (0, 2.5, 2.5)
    )
    return field / np.sqrt((np.abs(field) ** 2).mean())


def structured_field(seed, planes, shape):
    """Speckle that is alike over a few planes, as structure is."""
    field = fixed_field(np.random.default_rng(seed), planes, shape)
    field = gaussian_filter1d(field.real, 1.2, axis=0) + 1j * gaussian_filter1d(
        field.imag, 1.2, axis=0
    )
    return field / np.sqrt((np.abs(field) ** 2).mean())


def image(rng, field, position_px, shape, share):
    """Amplitudes seen at a position, a multiple of 1/FINE px; `share` of the speckle is fixed."""
    start = np.rint(np.multiply(position_px, FINE)).astype(int)
    part = field[:, start[0] :, start[1] :][:, : shape[0] * FINE, : shape[1] * FINE]
    fresh = fixed_field(rng, len(part), shape)
    seen = np.abs(np.sqrt(share) * part + np.sqrt(1 - share) * fresh)
    blocks = seen.reshape(len(part), shape[0], FINE, shape[1], FINE)
    return blocks.mean(axis=(2, 4)).astype(np.float32)
