"""Focal surface, flat field, confocal response."""

from __future__ import annotations

import numpy as np
import pytest

from linumpy.phantom.optics import axial_response, flat_field, focal_surface_um
from linumpy.phantom.params import preset


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_focal_surface_is_smooth_curved_and_not_symmetric(seed: int) -> None:
    surface = focal_surface_um(preset("small"), seed)
    assert surface.shape == (150, 150)
    assert surface.mean() == pytest.approx(0, abs=1e-9)
    assert np.abs(surface).max() == pytest.approx(40)
    assert np.abs(np.diff(surface, axis=0)).max() < 2.5  # half a depth sample a pixel
    u = np.linspace(-1, 1, 150)
    plane = np.stack([np.ones(150 * 150), *(g.ravel() for g in np.meshgrid(u, u))], axis=1)
    fit = plane @ np.linalg.lstsq(plane, surface.ravel(), rcond=None)[0]
    assert (surface.ravel() - fit).std() > 5  # there is something to correct beside a plane
    for flipped in (surface[::-1], surface[:, ::-1], surface.T):
        assert np.abs(surface - flipped).max() > 1


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_flat_field_has_mean_one_and_the_stated_corner(seed: int) -> None:
    field = flat_field(preset("tiny"), seed)
    assert field.mean() == pytest.approx(1)
    assert field.min() / field.max() == pytest.approx(0.7)
    assert np.abs(field - field[::-1, ::-1]).max() > 0.005
    corners = field[[0, 0, -1, -1], [0, -1, 0, -1]]
    assert field.min() == corners.min()


def test_no_vignetting_and_a_flat_focus_can_be_had() -> None:
    params = preset("tiny", vignetting_corner=1.0, focal_peak_um=0.0)
    np.testing.assert_allclose(flat_field(params, 0), 1)
    np.testing.assert_allclose(focal_surface_um(params, 0), 0)


def test_response_halves_one_rayleigh_length_away() -> None:
    depth = np.array([-140.0, 260.0, 660.0, 1060.0])
    np.testing.assert_allclose(axial_response(depth, 260.0, 400.0), [0.5, 1.0, 0.5, 0.2])
