"""Defocus of a tile from the power along depth that it and its neighbours show of one place."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from linumpy.follow.tile_checks import TileFigures, common_focus_shift, focus_shifts

FOCUS_UM, RAYLEIGH_UM, STEP_UM, NOISE = 260.0, 400.0, 5.0, 10.0


@dataclass
class Axial:
    """What is read of the learned response."""

    focus_um: float | None = FOCUS_UM
    rayleigh_um: float | None = RAYLEIGH_UM
    noise_amplitude: float = NOISE
    medium: str = "agarose"
    voxel_um: tuple[float, float, float] = (10.0, 10.0, 10.0)
    profile: np.ndarray = field(default_factory=lambda: profile(0.0, 10.0, 70))


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
    return TileFigures(False, 1.0, 1.0, 0.0, strips, cells(np.random.default_rng(9), shift, gain))


def profile(shift, step_um, n_planes, face_um=130.0):
    """Power of agarose, 0.5 /mm, below its face."""
    z = (np.arange(n_planes) + 0.5) * step_um
    response = 1 / (1 + ((z - FOCUS_UM - shift * RAYLEIGH_UM) / RAYLEIGH_UM) ** 2)
    return response * np.exp(-2 * 0.5e-3 * (z - face_um)) * (z > face_um)


def cells(rng, shift, gain=1.0):
    """Mean amplitudes over lateral cells of a tile: agarose, and brighter tissue in a third."""
    power = gain * 100**2 * np.repeat(profile(shift, STEP_UM, 140)[:, None, None], 8, axis=2)
    power[:, :, 5:] *= 6**2 * np.exp(-2 * 2e-3 * STEP_UM * np.arange(140))[:, None, None]
    power = np.repeat(power, 8, axis=1) + NOISE**2
    return np.sqrt(power) * rng.normal(1, 0.01, power.shape).astype(np.float32)


@pytest.mark.parametrize("shift", [-1.5, 1.2, 2.0])
def test_shift_of_one_tile_is_found_and_no_other(shift):
    rng = np.random.default_rng(3)
    places = [(x, y) for x in range(4) for y in range(4)]
    # Brightness alone is no defocus.
    tiles = {p: tile(rng, shift if p == (1, 2) else 0.0, rng.uniform(0.5, 2)) for p in places}
    found = focus_shifts(tiles, Axial(), STEP_UM)
    assert found.pop((1, 2)) == pytest.approx(shift, abs=0.25)
    assert max(map(abs, found.values())) < 0.3


def test_without_a_learned_response_no_focus_is_reported():
    tiles = {(0, 0): tile(np.random.default_rng(1), 1.5, 1.0)}
    assert focus_shifts(tiles, None, STEP_UM) == {}
    assert focus_shifts(tiles, Axial(focus_um=None), STEP_UM) == {}


@pytest.mark.parametrize("shift", [-1.2, 0.0, 1.2, 2.0])
def test_shift_of_all_tiles_is_found(shift):
    rng = np.random.default_rng(5)
    tiles = {(x, y): tile(rng, shift, rng.uniform(0.8, 1.2)) for x in range(2) for y in range(2)}
    assert common_focus_shift(tiles, Axial(), STEP_UM) == pytest.approx(shift, abs=0.15)
    # Neighbours agree with each other.
    assert max(map(abs, focus_shifts(tiles, Axial(), STEP_UM).values())) < 0.3


def test_without_agarose_no_focus_of_all_tiles_is_reported():
    tiles = {(0, 0): tile(np.random.default_rng(1), 1.5, 1.0)}
    assert common_focus_shift(tiles, Axial(medium="tissue"), STEP_UM) is None
    assert common_focus_shift(tiles, None, STEP_UM) is None
