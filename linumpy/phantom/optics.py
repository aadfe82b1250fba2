"""The microscope: focal surface, vignetting, stripes, scan, confocal response and roll-off."""

from __future__ import annotations

import numpy as np

from linumpy.phantom.lattice import Stream, generator, make_key
from linumpy.phantom.params import PhantomParams


def _field_coordinates(params: PhantomParams) -> tuple[np.ndarray, np.ndarray]:
    """Return pixel-centre coordinates of the field of view, −1 … 1 across, (nx, 1) and (1, ny)."""
    u = (2 * np.arange(params.nx) + 1) / params.nx - 1
    v = (2 * np.arange(params.ny) + 1) / params.ny - 1
    return u[:, None], v[None, :]


def focal_surface_um(params: PhantomParams, seed: int) -> np.ndarray:
    """Return how much deeper each A-line's content appears.

    A parabola about an axis beside the centre, a tilt and a little coma and astigmatism, of
    strengths that the seed chooses.

    Returns
    -------
    numpy.ndarray
        float64 (nx, ny), µm, mean 0 and largest magnitude `focal_peak_um`.
    """
    return _surface(params, make_key(seed, Stream.OPTICS, 0), params.focal_peak_um)


def own_focus_um(params: PhantomParams, seed: int) -> np.ndarray:
    """Return how much deeper than parallel to the focal surface the focus lies.

    Returns
    -------
    numpy.ndarray
        float64 (nx, ny), µm, mean 0 and largest magnitude `own_focus_peak_um`.
    """
    return _surface(params, make_key(seed, Stream.FOCUS), params.own_focus_peak_um)


def _surface(params: PhantomParams, key: np.ndarray, peak_um: float) -> np.ndarray:
    u, v = _field_coordinates(params)
    rng = generator(key)
    centre, tilt = rng.uniform(-0.25, 0.25, 2), rng.uniform(-0.35, 0.35, 2)
    astigmatism, coma = rng.uniform(-0.15, 0.15), rng.uniform(-0.12, 0.12)
    bowl = rng.choice([-1.0, 1.0])
    surface = (
        bowl * ((u - centre[0]) ** 2 + (v - centre[1]) ** 2)
        + tilt[0] * u
        + tilt[1] * v
        + astigmatism * (u**2 - v**2 + u * v)
        + coma * (u**2 + v**2) * (u + 0.5 * v)
    )
    surface -= surface.mean()
    return np.asarray(surface * (peak_um / np.abs(surface).max()))


def stripe_gain(params: PhantomParams, seed: int) -> np.ndarray:
    """Return the amplitude gain that each A-line has of its own, float64 (nx,), mean 1."""
    drawn = generator(make_key(seed, Stream.STRIPE)).standard_normal(params.nx)
    gain = np.exp(params.stripe_rms * drawn)
    return np.asarray(gain / gain.mean())


def scan_error_um(params: PhantomParams, seed: int) -> np.ndarray:
    """Return how far along the fast axis each A-line lies from where a straight scan puts it.

    A sine over the field, with a harmonic and a bow of strengths that the seed chooses; its
    largest magnitude is `scan_distortion_px` raw pixels.

    Returns
    -------
    numpy.ndarray
        float64 (nx,), µm, mean 0.
    """
    u = _field_coordinates(params)[0][:, 0]
    rng = generator(make_key(seed, Stream.SCAN))
    harmonic, bow = rng.uniform(-0.3, 0.3, 2)
    curve = np.sin(np.pi * u) + harmonic * np.sin(2 * np.pi * u) + bow * np.cos(np.pi * u)
    curve = rng.choice([-1.0, 1.0]) * (curve - curve.mean())
    return np.asarray(curve * (params.scan_distortion_px * params.pixel_um / np.abs(curve).max()))


def rolloff(params: PhantomParams) -> np.ndarray:
    """Return the factor of the signal power at each depth sample, 1 at the first; float32 (nz,).

    Gaussian: the instantaneous line width of a swept source; sinc: the pixels of a spectrometer
    (Leitgeb et al. 2003, doi:10.1364/OE.11.000889).
    """
    depth = np.arange(params.nz) * params.axial_um
    if not params.rolloff_6db_um:
        return np.ones(params.nz, dtype=np.float32)
    relative = depth / params.rolloff_6db_um
    if params.rolloff_shape == "sinc":
        # sinc²(0.6025) is -6 dB.
        return np.square(np.sinc(0.6025 * relative)).astype(np.float32)
    return np.power(10, -0.6 * np.square(relative)).astype(np.float32)


def flat_field(params: PhantomParams, seed: int) -> np.ndarray:
    """Return the amplitude factor of each A-line, stripes included, float64 (nx, ny), mean 1.

    Vignetting about an axis beside the centre, and a slope: the field has no symmetry. The
    darkest pixel has `vignetting_corner` of the brightest one's amplitude, but for the stripes.
    """
    u, v = _field_coordinates(params)
    rng = generator(make_key(seed, Stream.OPTICS, 1))
    centre, slope = rng.uniform(-0.2, 0.2, 2), rng.uniform(-0.25, 0.25, 2)
    radius_2 = (u - centre[0]) ** 2 + (v - centre[1]) ** 2
    shape = -radius_2 + 0.1 * radius_2**2 + slope[0] * u + slope[1] * v + 0.1 * u * v
    shape = (shape - shape.min()) / (shape.max() - shape.min())
    field = params.vignetting_corner + (1 - params.vignetting_corner) * shape
    if params.stripe_rms:
        field = field * stripe_gain(params, seed)[:, None]
    return np.asarray(field / field.mean())


def axial_response(optical_depth_um: np.ndarray, focus_um: float, rayleigh_um: float) -> np.ndarray:
    """Return the confocal factor of the power, 1 in focus, of the input's shape and dtype."""
    out = (optical_depth_um - focus_um) / rayleigh_um
    np.multiply(out, out, out=out)
    out += 1
    return np.asarray(np.reciprocal(out, out=out))
