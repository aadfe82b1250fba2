import numpy as np
import pytest
import zarr

from linumpy.core.device import CPU
from linumpy.slices.aip_output import write_aip_image
from linumpy.slices.single_stages import correct_grid, resample_grid


def _grid(module, folder, shape):
    acquisition = module("acquisition")
    path = folder / "grid_z01.ome.zarr"
    acquisition.write_grid(path, acquisition.Content(shape, (2, 2)))
    return path


@pytest.fixture
def grid(module, tmp_path):
    return _grid(module, tmp_path, (64, 64, 64))


def _arrays(path):
    group = zarr.open_group(path, mode="r")
    return group["0"], group["labels/valid/0"]


def _assert_alike(ours, theirs, tolerance):
    for mine, plain in zip(_arrays(ours), _arrays(theirs), strict=True):
        assert (mine.shape, mine.chunks, mine.shards) == (plain.shape, plain.chunks, plain.shards)
        assert [c.to_dict() for c in mine.compressors] == [c.to_dict() for c in plain.compressors]
        np.testing.assert_allclose(mine[...], plain[...], rtol=tolerance, atol=tolerance)


def test_aip_agrees_with_linumpy(module, grid, tmp_path):
    module("plain").aip(grid, tmp_path / "plain.zarr")
    write_aip_image(grid, tmp_path / "ours.ome.zarr")
    _assert_alike(tmp_path / "ours.ome.zarr", tmp_path / "plain.zarr", 1e-5)


def test_resample_agrees_with_linumpy(module, grid, tmp_path):
    module("plain").resample(grid, tmp_path / "plain.zarr")
    values = {"resolution": 10.0}
    resample_grid(grid, tmp_path / "ours.ome.zarr", values, overwrite=False, device=CPU)
    _assert_alike(tmp_path / "ours.ome.zarr", tmp_path / "plain.zarr", 1e-4)


@pytest.mark.slow
def test_focal_flattens_as_much_as_linumpy(module, tmp_path):
    plain = module("plain")
    grid = _grid(module, tmp_path, (96, 128, 128))
    plain.focal(grid, tmp_path / "plain.zarr")
    ours = tmp_path / "ours.ome.zarr"
    correct_grid("detect_focal_curvature", grid, ours, {}, models=None, overwrite=False, device=CPU)

    def bowl(path):
        """How much deeper the face lies in the corners of the tiles than in their middle."""
        array = zarr.open_group(path, mode="r")["0"]
        # Not the top, where A-lines that were moved down begin with zeros.
        tiles = [array[6:, i : i + 128, j : j + 128] for i in (0, 128) for j in (0, 128)]
        depth = np.mean([plain.interface(tile) for tile in tiles], axis=0)
        corners = [
            depth[i, j]
            for i in (slice(16), slice(-16, None))
            for j in (slice(16), slice(-16, None))
        ]
        return np.median(corners) - np.median(depth[48:80, 48:80])

    before = bowl(grid)
    assert before > 3
    assert abs(bowl(ours)) < 0.3 * before
    assert abs(bowl(tmp_path / "plain.zarr")) < 0.3 * before


def test_fused_makes_a_normalised_slice(module, grid, tmp_path):
    module("plain").fused(grid, tmp_path / "plain.zarr")
    image, mask = _arrays(tmp_path / "plain.zarr")
    values, valid = image[...], mask[...] > 0
    # Two tiles of 32 pixels at 80 % of their width, cut at the face.
    assert values.shape[1:] == (58, 58)
    assert values.shape[0] < 30
    assert valid.mean() > 0.8
    assert values.min() == 0
    assert 0.3 < np.percentile(values[valid], 99) <= 1.5
