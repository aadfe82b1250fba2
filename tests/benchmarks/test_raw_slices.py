"""Raw slices that repeat: the links to them match their neighbours."""

from dataclasses import replace

import numpy as np
import pytest


@pytest.fixture
def raw_slices(module):
    return module("raw_slices")


def test_a_slice_below_all_others_shows_the_first_again(raw_slices, monkeypatch):
    from linumpy.phantom import speckle
    from linumpy.phantom.anatomy import Template
    from linumpy.phantom.params import preset
    from linumpy.phantom.simulate import make_scene
    from linumpy.phantom.tile import image_tile

    monkeypatch.setattr(speckle, "white_box", speckle.white_box)
    grey = np.full((6, 6, 6), 200, np.uint8)
    params = preset("tiny", n_slices=3, nx=24, ny=10)
    scene, slices = make_scene(params, 3, Template(grey, 255 - grey, (1.0, 1.0, 1.0)))
    first = slices[0]
    again = replace(first, face_um=first.face_um + 3 * params.slice_interval_um)

    def image(scene, plan):
        return np.concatenate(list(image_tile(scene, plan, plan.tiles[0])))

    plain = image(scene, first), image(scene, again)
    assert np.corrcoef(plain[0].ravel(), plain[1].ravel())[0, 1] < 0.9
    scene = raw_slices.repeated(scene)
    same = image(scene, first), image(scene, again)
    np.testing.assert_allclose(same[1], same[0], rtol=1e-4, atol=1e-2)
    # What lies above the first repetition is as it was.
    shown = int(params.slice_interval_um / params.axial_um)
    np.testing.assert_allclose(same[0][..., :shown], plain[0][..., :shown], rtol=1e-4, atol=1e-2)
