"""The atlas shows the tissue of the block where its model says."""

import json

import numpy as np
import pytest

pytest.importorskip("nilearn")
nibabel = pytest.importorskip("nibabel")

from linumpy.phantom.atlas import write_atlas  # noqa: E402
from linumpy.phantom.params import preset  # noqa: E402
from linumpy.phantom.simulate import make_scene  # noqa: E402
from linumpy.phantom.truth import describe  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"depth_scale": 0.7, "tiles_x": 4}])
def test_block_and_atlas_show_the_same_brain(tmp_path, changes):
    from scipy.ndimage import map_coordinates

    scene, slices = make_scene(preset("tiny", texture_rms=0.0, **changes), 5)
    truth = json.loads(json.dumps(describe(scene, slices)))
    model = write_atlas(tmp_path, truth)
    image = nibabel.load(tmp_path / "atlas.nii.gz")
    assert "".join(nibabel.aff2axcodes(image.affine)) == "RAS"
    np.testing.assert_allclose(np.array(image.header.get_zooms()) * 1000, model.voxel_um[::-1],
                               rtol=1e-6)  # fmt: skip

    p = scene.params
    z, a1, a2 = (np.linspace(0, side, 40) for side in (p.block_depth_um, *p.mosaic_um))
    found = scene.anatomy.properties(a2, a1, z)
    tissue = (found.grey + found.white).transpose(2, 1, 0)
    points = np.stack([*np.meshgrid(z, a1, a2, indexing="ij"), np.ones((40, 40, 40))])

    def atlas_at(matrix):
        world = np.tensordot(matrix, points, axes=(1, 0))[2::-1] / 1000
        inverse = np.linalg.inv(image.affine)
        index = np.tensordot(inverse[:3, :3], world, axes=(1, 0)) + inverse[:3, 3, None, None, None]
        return map_coordinates(np.asarray(image.dataobj, float), index, order=1)

    matrix = np.array(model.matrix)
    t1 = atlas_at(matrix)
    # White matter is brighter than grey, and outside of both T1 shows little.
    white = found.white.transpose(2, 1, 0)
    assert t1[white > 0.9].mean() > 1.2 * t1[(tissue > 0.9) & (white < 0.1)].mean()
    best = np.corrcoef(tissue.ravel(), t1.ravel())[0, 1]
    assert best > 0.9
    for axis in range(3):
        for step in (-3, 3):
            moved = matrix.copy()
            moved[axis, 3] += step * model.voxel_um[axis]
            assert np.corrcoef(tissue.ravel(), atlas_at(moved).ravel())[0, 1] < best
