"""The microscope: focal surface, vignetting and confocal response."""

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
    u, v = _field_coordinates(params)
    rng = generator(make_key(seed, Stream.OPTICS, 0))
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
    return np.asarray(surface * (params.focal_peak_um / np.abs(surface).max()))


def flat_field(params: PhantomParams, seed: int) -> np.ndarray:
    """Return the amplitude factor of each A-line, float64 (nx, ny), mean 1.

    Vignetting about an axis beside the centre, and a slope: the field has no symmetry. The
    darkest pixel has `vignetting_corner` of the brightest one's amplitude.
    """
    u, v = _field_coordinates(params)
    rng = generator(make_key(seed, Stream.OPTICS, 1))
    centre, slope = rng.uniform(-0.2, 0.2, 2), rng.uniform(-0.25, 0.25, 2)
    radius_2 = (u - centre[0]) ** 2 + (v - centre[1]) ** 2
    shape = -radius_2 + 0.1 * radius_2**2 + slope[0] * u + slope[1] * v + 0.1 * u * v
    shape = (shape - shape.min()) / (shape.max() - shape.min())
    field = params.vignetting_corner + (1 - params.vignetting_corner) * shape
    return np.asarray(field / field.mean())


def axial_response(optical_depth_um: np.ndarray, focus_um: float, rayleigh_um: float) -> np.ndarray:
    """Return the confocal factor of the power, 1 in focus, of the input's shape and dtype."""
    out = (optical_depth_um - focus_um) / rayleigh_um
    np.multiply(out, out, out=out)
    out += 1
    return np.asarray(np.reciprocal(out, out=out))
