"""Defocus of a tile from the power along depth that it and its neighbours show of one place."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter1d

from linumpy.follow.overlaps import (
    SHIFTS,
    best_shift,
    flattened,
    shifted_responses,
    tile_light,
)
from linumpy.follow.reasons import focus_reasons
from linumpy.follow.tile_checks import TileFigures, common_focus_shift, slice_profile

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


PX = 120
STEP_PX = 96
BLOCK_UM = (40.0, 40.0)
"""Blocks of 4 pixels of 10 um."""


def tissue(rng, n_tiles):
    """Scattering over a mosaic: blocks of tissue and agarose, their borders anywhere."""
    side = ((n_tiles - 1) * STEP_PX + PX + 40) // 4
    image = np.exp(0.3 * rng.normal(size=(side, side)))
    image[side // 3 :, side // 4 :] *= 30
    return image


def tile(rng, place, image, shift, gain, off_px=(0, 0)):
    """Powers of a tile whose focus lies `shift` Rayleigh lengths deeper, and its corner."""
    z = (np.arange(140) + 0.5) * STEP_UM
    response = 1 / (1 + ((z - FOCUS_UM - shift * RAYLEIGH_UM) / RAYLEIGH_UM) ** 2)
    along = gain * 100**2 * response * np.exp(-2 * 2e-3 * np.maximum(z - 130, 0)) * (z > 130)
    low = [(p * STEP_PX + o + 16) // 4 for p, o in zip(place, off_px, strict=True)]
    seen = image[low[0] : low[0] + PX // 4, low[1] : low[1] + PX // 4]
    power = along[:, None, None] * seen * rng.gamma(8, 1 / 8, (len(z), *seen.shape))
    corner = np.multiply(low, 40.0)
    return (power + 4 / np.pi * NOISE**2).astype(np.float32), corner


def figures(shift, gain=1.0):
    """What is read of a tile for the focus of the whole slice."""
    return TileFigures(
        False, 1.0, 1.0, np.zeros((1, 1, 1)), cells(np.random.default_rng(9), shift, gain)
    )


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


def light(tiles, axial):
    powers, corners = ({key: each[k] for key, each in tiles.items()} for k in (0, 1))
    return tile_light(powers, corners, BLOCK_UM, axial, STEP_UM)


@pytest.mark.parametrize("n_tiles", [2, 4])
@pytest.mark.parametrize("shift", [-2.0, -1.0, 1.2, 2.0])
def test_shift_of_one_tile_is_found_and_no_other(shift, n_tiles):
    rng = np.random.default_rng(3)
    image = tissue(rng, n_tiles)
    # Brightness alone is no defocus, and tiles lie a block or two beside their places.
    tiles = {
        (x, y): tile(
            rng, (x, y), image, shift if (x, y) == (1, 0) else 0.0, rng.uniform(0.8, 1.2),
            rng.integers(-8, 9, 2),
        )
        for x in range(n_tiles) for y in range(n_tiles)
    }  # fmt: skip
    found = light(tiles, Axial())
    assert found.pop((1, 0)).focus == pytest.approx(shift, abs=0.15)
    assert max(abs(each.focus) for each in found.values()) < 0.15


@pytest.mark.parametrize("shift", [-1.25, 1.25])
def test_focus_beyond_the_samples_is_told_by_the_gain(shift):
    """Seen to fail without it: such foci bend the ratio nearly alike, and tissue bends it, too."""
    image = tissue(np.random.default_rng(1), 2)
    found = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        places = [(x, y) for x in range(2) for y in range(2)]
        tiles = {p: tile(rng, p, image, shift if p == (1, 1) else 0.0, 1.0) for p in places}
        for power, _ in tiles.values():
            bend = gaussian_filter1d(rng.normal(size=140), 10)
            power *= np.exp(0.04 * bend / bend.std())[:, None, None].astype(np.float32)
        found.append(light(tiles, Axial())[1, 1].focus)
    assert np.abs(np.subtract(found, shift)).max() < 0.25


def test_a_shift_as_large_as_the_limit_is_told():
    """Seen to fail where steps of 0.05 were added up: to 0.9999999999999964."""
    axial = Axial()
    model = shifted_responses(140, axial, STEP_UM)
    one = model[np.abs(SHIFTS - 1).argmin()]
    assert focus_reasons({(0, 0): best_shift(model, one)}, {(0, 0): "x00_y00"})


@pytest.mark.parametrize("gain", [0.1, 0.4, 0.6])
def test_gain_of_one_tile_is_found_without_the_noise_and_no_other(gain):
    rng = np.random.default_rng(4)
    image = tissue(rng, 3)
    places = [(x, y) for x in range(3) for y in range(3)]
    tiles = {p: tile(rng, p, image, 0.0, gain**2 if p == (2, 1) else 1.0) for p in places}
    for axial in (Axial(), Axial(focus_um=None)):
        found = light(tiles, axial)
        assert found.pop((2, 1)).gain == pytest.approx(gain, rel=0.05)
        assert [each.gain for each in found.values()] == pytest.approx([1.0] * 8, rel=0.05)


@pytest.mark.parametrize(("shift", "least"), [(-1.5, 0.7), (1.2, 1.0)])
@pytest.mark.parametrize("axial", [Axial(focus_um=None), Axial(medium="tissue", rayleigh_um=90.0)])
def test_without_a_response_of_agarose_a_factor_of_two_tells(axial, shift, least):
    rng = np.random.default_rng(1)
    image = tissue(rng, 3)
    places = [(x, y) for x in range(3) for y in range(3)]
    tiles = {p: tile(rng, p, image, shift if p == (1, 1) else 0.0, 1.0) for p in places}
    found = light(tiles, axial)
    assert found.pop((1, 1)).focus / np.sign(shift) > least
    assert max(abs(each.focus) for each in found.values()) < 0.5
    assert light({(0, 0): tiles[0, 0]}, axial) == {}


@pytest.mark.parametrize("shift", [-1.3, -1.6])
@pytest.mark.parametrize("axial", [Axial(focus_um=None), Axial(medium="tissue")])
def test_light_lost_at_all_depths_tells_a_focus_above_the_samples(axial, shift):
    """The loss changes by less than a factor of two along depth there: its size tells the rest."""
    image = tissue(np.random.default_rng(1), 2)
    for seed in range(6):
        rng = np.random.default_rng(seed)
        places = [(x, y) for x in range(2) for y in range(2)]
        # The dark tile shows as little at all depths, and is none out of focus.
        light_of = {(1, 1): (shift, 1.0), (0, 0): (0.0, 0.3)}
        tiles = {p: tile(rng, p, image, *light_of.get(p, (0.0, 1.0))) for p in places}
        found = light(tiles, axial)
        assert found[1, 1].focus < -1
        assert abs(found[0, 0].focus) < 0.5


def test_focal_surface_is_taken_out_of_the_depths():
    depth = np.arange(100, dtype=np.float32)[:, None, None] + np.zeros((1, 6, 6), np.float32)
    surface = np.repeat(np.linspace(-10, 10, 24)[:, None], 24, axis=1)
    found = flattened(depth, surface, 2.0)
    expected = np.arange(100)[:, None, None] + surface.reshape(6, 4, 24).mean((1, 2))[:, None] / 2
    assert np.abs(found - expected)[6:-6].max() < 1e-4


@pytest.mark.parametrize("shift", [-1.2, 0.0, 1.2, 2.0])
def test_shift_of_all_tiles_is_found(shift):
    rng = np.random.default_rng(5)
    tiles = {(0, y): figures(shift, rng.uniform(0.8, 1.2)) for y in range(4)}
    assert common_focus_shift(slice_profile(tiles, STEP_UM), Axial(), STEP_UM) == pytest.approx(
        shift, abs=0.15
    )


def test_without_agarose_the_focus_of_all_tiles_is_not_told():
    found = slice_profile({(0, 0): figures(1.5)}, STEP_UM)
    assert found.medium == "agarose"
    assert common_focus_shift(found, Axial(medium="tissue"), STEP_UM) is None
    assert common_focus_shift(found, None, STEP_UM) is None
    assert common_focus_shift(None, Axial(), STEP_UM) is None
