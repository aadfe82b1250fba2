import itertools
import random
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from skimage.transform import resize

from linumpy.core.device import CPU, to_device
from linumpy.core.errors import InputError
from linumpy.geometry.resample import HALF, axis_weights, resample_mosaic_grid
from linumpy.io.omezarr import create_image, open_image
from linumpy.io.pyramid import Pyramid, pyramid_levels, write_parts
from linumpy.io.slice_layout import volume_spec

CELL = (64, 64, 128)


def windows(shape, block):
    """The blocks of an image, in order."""
    ranges = [
        [slice(k, min(k + side, n)) for k in range(0, n, side)]
        for n, side in zip(shape, block, strict=True)
    ]
    return list(itertools.product(*ranges))


def build(
    path, data, resolutions, *, valid=None, device=CPU, voxel=(10.0,) * 3, block=(256,) * 3,
    cell=CELL, each=map, order=list, void=lambda window: False,
):  # fmt: skip
    """An image with its pyramid, level 0 given block by block."""
    spec = volume_spec(data.shape, voxel, (0.0, 100.0, 200.0), {})
    with create_image(path, spec, overwrite=False, with_valid=valid is not None) as image:
        pyramid = Pyramid(image, resolutions, cell, device=device, each=each)
        for window in order(windows(data.shape, block)):
            image.array[window] = data[window]
            mask = None
            if valid is not None:
                image.valid[window] = valid[window]
                mask = to_device(valid[window], device)
            if void(window):
                write_parts(pyramid.add(window, None))
            else:
                write_parts(pyramid.add(window, to_device(data[window], device), mask))
    return open_image(path)


def levels(path):
    """All levels of an image and of its mask, as arrays."""
    image, mask = open_image(path), open_image(path / "labels/valid")
    return [np.asarray(a) for a in (*image.arrays, *mask.arrays)]


def whole(array, steps):
    """All of an array resampled at once, with dense matrices in double precision."""
    matrices = [
        axis_weights(n, max(1, int(n / s + 1e-6)), s)
        for n, s in zip(array.shape, steps, strict=True)
    ]
    return np.einsum("zij,cz,ai,bj->cab", array, *matrices, optimize=True)


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
    expected = resample_mosaic_grid(data, (10.0,) * 3, (25.0,) * 3)
    np.testing.assert_allclose(level, expected, atol=1e-6)


def test_an_axis_that_is_coarse_already_is_not_blurred(tmp_path, rng, device):
    data = rng.random((9, 60, 80), dtype=np.float32)
    image = build(tmp_path / "a.ome.zarr", data, [20], voxel=(30.0, 10.0, 5.0), device=device)
    assert image.level_scales_um[1] == (30, 20, 20)
    expected = resize(data, (9, 30, 20), order=1, anti_aliasing=True)
    np.testing.assert_allclose(np.asarray(image.arrays[1]), expected, atol=1e-6)


@pytest.fixture
def holed(rng):
    """Three blocks by one by two of noise, with holes, a border and a block without data."""
    data = rng.random((530, 80, 280), dtype=np.float32)
    valid = (rng.random(data.shape) > 0.3).astype(np.uint8)
    valid[:, 64:] = 1
    valid[:256, :, 256:] = 0
    valid[:, :, :31] = 0
    return data * valid, valid


@pytest.mark.slow
@pytest.mark.parametrize("resolution", [20.0, 25.0, 43.7])
def test_image_and_mask_are_the_whole_resampled_at_once(holed, tmp_path, device, resolution):
    data, valid = holed
    path = tmp_path / "a.ome.zarr"
    image = build(path, data, [resolution], valid=valid, device=device)
    mask = open_image(path / "labels/valid")
    steps = [resolution / 10] * 3
    atol = 5e-6 if device.is_gpu else 1e-6
    np.testing.assert_allclose(np.asarray(image.arrays[1]), whole(data, steps), atol=atol)
    expected = whole(valid, steps) >= HALF
    np.testing.assert_array_equal(np.asarray(mask.arrays[1]), expected)


@pytest.mark.slow
def test_threads_order_and_void_blocks_change_nothing(holed, tmp_path):
    """Threads: not a bit. Another order of the blocks rounds otherwise; a void block is zeros."""
    data, valid = holed
    build(tmp_path / "one.ome.zarr", data, [25, 70], valid=valid)
    with ThreadPoolExecutor(5) as pool:
        build(tmp_path / "five.ome.zarr", data, [25, 70], valid=valid, each=pool.map)

    def shuffled(blocks):
        random.Random(3).shuffle(blocks)
        return blocks

    build(
        tmp_path / "void.ome.zarr", data, [25, 70], valid=valid, order=shuffled, cell=(256,) * 3,
        void=lambda window: not valid[window].any(),
    )  # fmt: skip
    one, five, void = (levels(tmp_path / f"{n}.ome.zarr") for n in ("one", "five", "void"))
    assert len(one) == 6
    for a, b, c in zip(one, five, void, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c, atol=1e-6)


@pytest.mark.parametrize("block", [(256, 256, 512), (256, 512, 768), (256, 768, 768)])
def test_rows_of_blocks_give_the_bits_of_single_ones(tmp_path, rng, device, block):
    """Cells come row by row in either case. Seen to fail with blocks of 256 × 512 × 256."""
    data = rng.random((20, 600, 700), dtype=np.float32)
    valid = (rng.random(data.shape) > 0.1).astype(np.uint8)
    cell = (256,) * 3
    for name, size in (("one", cell), ("rows", block)):
        path = tmp_path / f"{name}.ome.zarr"
        build(path, data * valid, [15, 25], valid=valid, device=device, block=size, cell=cell)
    for one, rows in zip(levels(tmp_path / "one.ome.zarr"), levels(path), strict=True):
        np.testing.assert_array_equal(one, rows)


def test_half_a_voxel_of_data_is_data(tmp_path, device):
    """The edge of the mask runs through the middle of coarse voxel 15."""
    valid = np.ones((20, 64, 64), np.uint8)
    valid[:, :31] = 0
    path = tmp_path / "a.ome.zarr"
    build(path, valid.astype(np.float32), [20], valid=valid, device=device)
    mask = np.asarray(open_image(path / "labels/valid").arrays[1])
    assert mask[:, :15].max() == 0 and mask[:, 15:].min() == 1


def test_memory_does_not_grow_with_the_depth(tmp_path):
    """Blocks are given plane by plane of shards; only shards that wait for more are held."""

    def peak_nbytes(depth):
        spec = volume_spec((depth, 70, 70), (10.0,) * 3, (0.0,) * 3, {})
        block = np.ones((256, 70, 70), np.float32)
        path = tmp_path / f"{depth}.ome.zarr"
        with create_image(path, spec, overwrite=False, with_valid=True) as image:
            pyramid = Pyramid(image, [25, 50], CELL)
            tracemalloc.start()
            for window in windows(spec.shape, (256,) * 3):
                pyramid.add(window, block, np.ones(block.shape, np.uint8))
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        return peak

    assert peak_nbytes(256 * 16) < 1.1 * peak_nbytes(256 * 8)
