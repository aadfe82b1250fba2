"""Debris and bubbles by what shines in the water above the face."""

from dataclasses import replace

import numpy as np
import pytest

from linumpy.follow.above_face import foreign_bodies, foreign_reasons
from linumpy.geometry.crop_3d_mosaic_below_interface import InterfaceCut

STEP_UM, BLOCK_UM, WATER, TISSUE = 10.0, (40.0, 40.0), 120.0, 200.0**2
CORNERS = {(x, 0): np.array([x * 960.0, 0.0]) for x in range(2)}


def face(fall_um=0.0):
    """A face 130 um deep in the middle, that falls along axis 1."""
    surface = 130 + fall_um * (np.linspace(0, 1, 15)[:, None] - 0.5) + np.zeros((15, 8))
    return InterfaceCut(
        3, 130.0, 500.0, 13, 50, False, (fall_um, 0.0), 1.0, (160.0, 160.0), (0.0, 0.0), surface
    )


def tiles(fall_um=0.0, seed=0):
    """Powers of two tiles of 30 x 30 blocks: water, and tissue below the face."""
    rng = np.random.default_rng(seed)
    z = (np.arange(60) + 0.5)[:, None, None] * STEP_UM
    found = {}
    for key, corner in CORNERS.items():
        place = (corner[0] + (np.arange(30) + 0.5) * 40)[None, :, None]
        depth = 130 + fall_um * (place / 2400 - 0.5)
        signal = TISSUE * np.clip((z - depth) / STEP_UM + 0.5, 0, 1)
        found[key] = (signal + WATER) * rng.gamma(6, 1 / 6, (60, 30, 30)).astype(np.float32)
    return found


def layer(powers, height_um, amplitude, radius=2):
    """Put a layer of some amplitude over that of tissue so high above the face."""
    plane = round((130 - height_um) / STEP_UM)
    powers[1, 0][plane, 14 : 14 + radius, 10 : 10 + radius] += TISSUE * amplitude**2
    return powers


@pytest.mark.parametrize("fall_um", [0.0, 150.0])
@pytest.mark.parametrize("seed", range(4))
def test_clean_water_has_nothing(seed, fall_um):
    powers = tiles(fall_um, seed)
    assert foreign_bodies(powers, CORNERS, BLOCK_UM, face(fall_um), STEP_UM) == {}


@pytest.mark.parametrize(
    ("height_um", "amplitude", "kind"),
    [
        (38, 0.7, "debris"),
        (22, 20.0, "bubble"),
        (38, 20.0, "bubble"),
        (70, 0.5, "bubble"),
        (100, 30.0, "bubble"),
    ],
)
def test_what_lies_above_is_told_by_height_and_brightness(height_um, amplitude, kind):
    powers = layer(tiles(), height_um, amplitude)
    found = foreign_bodies(powers, CORNERS, BLOCK_UM, face(), STEP_UM)
    assert set(found) == {(1, 0)} and found[1, 0].kind == kind
    # Depth of a plane's middle.
    assert found[1, 0].height_um == pytest.approx(height_um, abs=STEP_UM)
    (reason,) = foreign_reasons(found, {(1, 0): "x01_y00"})
    assert (reason.kind, reason.tiles, reason.limit) == (kind, ("x01_y00",), 4.0)


def test_bubble_across_most_tiles_is_no_measure_of_tissue():
    """Seen to fail where tissue was what shines most in the middle tile: the bubble itself."""
    powers = tiles()
    for power in powers.values():
        power[10, 8:20, 8:20] += TISSUE * 20.0**2
    found = foreign_bodies(powers, CORNERS, BLOCK_UM, face(), STEP_UM)
    assert [each.kind for each in found.values()] == ["bubble", "bubble"]


def test_reflection_that_all_tiles_show_is_the_optics():
    powers = tiles()
    for power in powers.values():
        power[5] += TISSUE
    assert foreign_bodies(powers, CORNERS, BLOCK_UM, face(), STEP_UM) == {}
    assert set(foreign_bodies(layer(powers, 70, 5.0), CORNERS, BLOCK_UM, face(), STEP_UM)) == {
        (1, 0)
    }


def test_bright_tissue_beside_agarose_is_no_bubble():
    powers = tiles()
    powers[2, 0] = powers[0, 0] + 0
    corners = {**CORNERS, (2, 0): np.array([1920.0, 0.0])}
    powers[1, 0][20:, 10:20, 10:20] *= 15.0**2
    assert foreign_bodies(powers, corners, BLOCK_UM, face(), STEP_UM) == {}


def test_a_face_at_the_top_has_nothing_above():
    """Where the scan begins in the tissue. Seen to fail with an error, in place of a verdict."""
    top = face()
    above = replace(top, surface_um=top.surface_um - 140.0)
    assert foreign_bodies(tiles(), CORNERS, BLOCK_UM, above, STEP_UM) == {}
