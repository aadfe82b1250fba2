import numpy as np
import pytest
from skimage.transform import resize

from linumpy.device import CPU
from linumpy.errors import InputError
from linumpy.geometry.resample import resample_mosaic_grid
from linumpy.io.omezarr import create_image, open_image
from linumpy.mosaic.pyramid import pyramid_levels, write_pyramid
from linumpy.slices.layout import volume_spec


def build(path, data, resolutions, *, valid=None, device=CPU, voxel=(10.0, 10.0, 10.0)):
    spec = volume_spec(data.shape, voxel, (0.0, 100.0, 200.0), {})
    with create_image(path, spec, overwrite=False, with_valid=valid is not None) as image:
        image.array[:] = data
        if valid is not None:
            image.valid[:] = valid
        write_pyramid(image, resolutions, device=device)
    return open_image(path)


def test_levels_are_scikit_images_resize_where_sizes_divide(tmp_path, rng, device):
    data = rng.random((40, 300, 280), dtype=np.float32)
    image = build(tmp_path / "a.ome.zarr", data, [10, 20, 40], device=device)
    assert [a.shape for a in image.arrays] == [(40, 300, 280), (20, 150, 140), (10, 75, 70)]
    for array in image.arrays[1:]:
        expected = resize(data, array.shape, order=1, anti_aliasing=True)
        np.testing.assert_allclose(np.asarray(array), expected, atol=2e-6)


def test_a_ramp_keeps_its_values_at_world_positions(tmp_path):
    """25 from 10 µm: no whole factor, and several shards; values are those of voxel centres."""
    i = np.arange(700)[None, :, None] + np.zeros((30, 1, 40))
    image = build(tmp_path / "a.ome.zarr", ((i + 0.5) * 10 + 100).astype(np.float32), [10, 25])
    level = np.asarray(image.arrays[1])
    assert level.shape == (12, 280, 16)
    centre = image.level_translations_um[1][1] + np.arange(280) * 25.0
    np.testing.assert_allclose(level[5, 3:-3, 7], centre[3:-3], rtol=1e-5)
    assert image.level_scales_um[1] == (25, 25, 25)


def test_masks_have_as_many_levels(tmp_path, rng):
    data = rng.random((20, 64, 64), dtype=np.float32)
    valid = np.ones(data.shape, np.uint8)
    valid[:, :31] = 0
    path = tmp_path / "a.ome.zarr"
    build(path, data, [20, 40], valid=valid)
    mask = open_image(path / "labels/valid")
    assert len(mask.arrays) == 3
    coarse = np.asarray(mask.arrays[1])
    assert coarse[:, :15].max() == 0 and coarse[:, 16:].min() == 1


def test_axes_that_are_coarser_than_a_level_stay_as_they_are():
    assert pyramid_levels((20.0, 5.0, 5.0), [10, 50]) == [(20, 10, 10), (50, 50, 50)]
    assert pyramid_levels((10.0, 10.0, 10.0), [5, 10]) == []
    with pytest.raises(InputError, match="above 0"):
        pyramid_levels((10.0, 10.0, 10.0), [-1])


def test_shards_meet_without_a_seam(tmp_path, rng, device):
    """25 from 10 um, more than one shard a level: equal to the whole resampled at once."""
    data = rng.random((6, 1300, 40), dtype=np.float32)
    image = build(tmp_path / "a.ome.zarr", data, [25], device=device)
    level = np.asarray(image.arrays[1])
    assert level.shape == (2, 520, 16)
    whole = resample_mosaic_grid(data, (10.0,) * 3, (25.0,) * 3)
    np.testing.assert_allclose(level, whole, atol=1e-6)


def test_an_axis_that_is_coarse_already_is_not_blurred(tmp_path, rng, device):
    data = rng.random((9, 60, 80), dtype=np.float32)
    image = build(tmp_path / "a.ome.zarr", data, [20], voxel=(30.0, 10.0, 5.0), device=device)
    assert image.level_scales_um[1] == (30, 20, 20)
    expected = resize(data, (9, 30, 20), order=1, anti_aliasing=True)
    np.testing.assert_allclose(np.asarray(image.arrays[1]), expected, atol=1e-6)
