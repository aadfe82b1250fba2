"""Presets give unchanged acquisitions: effects that are off change no random draw."""

from __future__ import annotations

import numpy as np
import pytest

from linumpy.phantom.anatomy import Template
from linumpy.phantom.params import preset
from linumpy.phantom.simulate import make_scene
from linumpy.phantom.tile import image_tile

SEED = 7
# Not digests: the last bits of exp and cos differ between processors.
TOLERANCE = 1e-4

# Values of the code before effects were added: the face, gap, offset, turn and middle tile of the
# last slice, focal surface, flat field and face, and three samples of the image.
KNOWN: dict[str, list[float]] = {
    "tiny": [
        407.15525,
        131.906711,
        20.0315425,
        -3.9395174,
        -0,
        0.8555,
        0.7446,
        0.4,
        554.031994,
        417.354263,
        11,
        -18.6147783,
        0.946516169,
        8.59983349,
        14.9043369,
        285.341339,
        114.975601,
    ],
    "small": [
        799.994338,
        129.331486,
        -8.32174661,
        -9.30545723,
        -0,
        2.5596,
        0.6336,
        0.8,
        1988.24316,
        -13.825956,
        10,
        -34.4476957,
        0.929992711,
        -7.22765923,
        8.22092152,
        83.3569107,
        14.0082684,
    ],
    "hard": [
        1401.80947,
        160.921375,
        -33.1693672,
        -47.5697591,
        -0.154706511,
        2.5031,
        0.5497,
        1.4,
        1854.14027,
        -136.311665,
        23,
        -34.4476957,
        0.929992711,
        12.5226688,
        5.24227619,
        132.443283,
        79.8204117,
    ],
}


def describe(name: str, brain: Template) -> list[float]:
    scene, slices = make_scene(preset(name), SEED, brain)
    last = slices[-1]
    tile = last.tiles[len(last.tiles) // 2]
    # A tile in the middle of the brain: all but its water is tissue.
    image = next(iter(image_tile(scene, slices[2], slices[2].tiles[scene.params.tiles_y + 1])))
    face = scene.faces[last.slice_id]
    return [
        float(value)
        for value in (
            last.face_um,
            last.gap_um,
            *last.offset_um,
            last.rotation_deg,
            *tile.stage_mm,
            *tile.true_corner_um,
            tile.galvo_shift_px,
            scene.focal_um[3, 5],
            scene.flat_field[3, 5],
            face[7, 11],
            *image[4, 40, [5, 40, 80]],
        )
    ]


@pytest.mark.parametrize("name", ["tiny", "small", "hard"])
def test_preset_is_unchanged(name: str, brain: Template) -> None:
    np.testing.assert_allclose(describe(name, brain), KNOWN[name], rtol=TOLERANCE)
