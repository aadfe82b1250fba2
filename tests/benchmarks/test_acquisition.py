import numpy as np
import pytest

from linumpy.geometry.interface import find_tissue_interface
from linumpy.io.grid import open_grid

SHAPE = (64, 96, 96)


@pytest.fixture
def content(module):
    return module("acquisition").Content(SHAPE, (1, 2), seed=3)


def _overlap(content, corners):
    """The depth means of the two tiles where they show the same place, by their corners."""
    first, second = (content.tile(n).mean(axis=0) / content.truth.flat_field for n in (0, 1))
    row, column = np.rint(corners[1] - corners[0]).astype(int)
    rows = SHAPE[1] - abs(row)
    return (
        first[max(row, 0) :][:rows, column:],
        second[max(-row, 0) :][:rows, : SHAPE[2] - column],
    )


def test_neighbours_show_the_same_texture_where_they_truly_are(content):
    truth = content.truth.corners_px
    moved = truth + [[0, 0], [3, 4]]
    at_truth, beside = (
        np.corrcoef(*(part.ravel() for part in _overlap(content, corners)))[0, 1]
        for corners in (truth, moved)
    )
    assert at_truth > 0.95
    assert beside < 0.8
    error = np.abs(truth - content.nominal_px)
    assert 0.4 < error.max() <= 2.5


def test_face_lies_at_the_true_depth(content):
    depths = [find_tissue_interface(content.tile(n), s_xy=7, axis=0) for n in (0, 1)]
    depth = np.mean(depths, axis=0)
    expected = content.truth.curvature_px
    middle, corner = (slice(36, 60), slice(36, 60)), (slice(0, 12), slice(0, 12))
    found = np.median(depth[corner]) - np.median(depth[middle])
    assert found == pytest.approx(expected[corner].mean() - expected[middle].mean(), abs=0.8)
    assert np.median(depth) == pytest.approx(0.2 * SHAPE[0] + np.median(expected), abs=1.0)


def test_grids_of_both_kinds_hold_the_same_tiles(module, content, tmp_path):
    acquisition = module("acquisition")
    acquisition.write_grid(tmp_path / "ours_z01.ome.zarr", content)
    acquisition.write_foreign_grid(tmp_path / "others_z01.ome.zarr", content)
    ours, others = (open_grid(tmp_path / f"{name}_z01.ome.zarr") for name in ("ours", "others"))
    expected = content.tile(1)
    np.testing.assert_array_equal(ours.read_tile(0, 1), expected)
    np.testing.assert_array_equal(others.read_tile(0, 1), expected)
    assert ours.info == content.info
    assert {t.flags for t in others.info.tiles} == {("nominal_position",)}
    stored = sum(p.stat().st_size for p in (tmp_path / "ours_z01.ome.zarr/0/c").rglob("*"))
    assert 2.3 < 2 * expected.nbytes / stored < 3.2


@pytest.mark.parametrize(
    ("size", "tiles", "shape"),
    [(4, 16, (256, 512, 512)), (1, 4, (256, 512, 512)), (0.5, 8, (256, 256, 256))],
)
def test_size_gives_tiles(module, size, tiles, shape):
    acquisition = module("acquisition")
    assert acquisition.n_tiles(size) == tiles
    assert acquisition.tile_shape(size) == shape
    assert np.prod(acquisition.grid_shape(tiles)) == tiles
