"""Defocus of a tile from the power along depth that it and its neighbours show of one place."""

from dataclasses import dataclass

import numpy as np
import pytest

from linumpy.follow.tile_checks import TileFigures, focus_shifts

FOCUS_UM, RAYLEIGH_UM, STEP_UM, NOISE = 260.0, 400.0, 5.0, 10.0


@dataclass
class Axial:
    """What is read of the learned response."""

    focus_um: float | None = FOCUS_UM
    rayleigh_um: float | None = RAYLEIGH_UM
    noise_amplitude: float = NOISE


def tile(rng, shift, gain):
    """A tile whose focus lies `shift` Rayleigh lengths deeper; tissue attenuates by 2 /mm."""
    z = (np.arange(140) + 0.5) * STEP_UM
    response = 1 / (1 + ((z - FOCUS_UM - shift * RAYLEIGH_UM) / RAYLEIGH_UM) ** 2)
    power = gain * 200**2 * response * np.exp(-2 * 2e-3 * np.maximum(z - 130, 0)) * (z > 130)
    noise = 4 / np.pi * NOISE**2
    strips = {
        side: power * rng.normal(1, 0.02, len(z)) + noise
        for side in ((1, 0), (-1, 0), (0, 1), (0, -1))
    }
    return TileFigures(False, 1.0, 1.0, 0.0, strips)


@pytest.mark.parametrize("shift", [-1.5, 1.2, 2.0])
def test_shift_of_one_tile_is_found_and_no_other(shift):
    rng = np.random.default_rng(3)
    places = [(x, y) for x in range(4) for y in range(4)]
    # Brightness alone is no defocus.
    tiles = {p: tile(rng, shift if p == (1, 2) else 0.0, rng.uniform(0.5, 2)) for p in places}
    found = focus_shifts(tiles, Axial(), STEP_UM)
    assert found.pop((1, 2)) == pytest.approx(shift, abs=0.25)
    assert max(map(abs, found.values())) < 0.3


def test_without_a_learned_response_nothing_is_told():
    tiles = {(0, 0): tile(np.random.default_rng(1), 1.5, 1.0)}
    assert focus_shifts(tiles, None, STEP_UM) == {}
    assert focus_shifts(tiles, Axial(focus_um=None), STEP_UM) == {}
