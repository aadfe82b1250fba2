"""Kernels of the stages on tiles, compared with the same functions on the host."""

import numpy as np
import pytest

from linumpy.core.device import CPU, Device, is_device_array, to_device, to_host
from linumpy.geometry.detect_focal_curvature import correct_focal_curvature
from linumpy.geometry.interface import find_tissue_interface
from linumpy.geometry.resample import apply_axis_weights, axis_weights, resample_masked
from linumpy.intensity.fix_illumination_3d import brightness_map, fix_illumination_3d
from linumpy.intensity.normalize_intensities_per_slice import (
    Normalization,
    depth_mean,
    normalize_intensities_per_slice,
)
from linumpy.intensity.quantiles import float_histogram

from . import needs_gpu

pytestmark = needs_gpu

GPU = Device("cuda")
# Odd, tiny, thin and longer than one block of threads along each axis in turn.
SHAPES = [(1, 1, 1), (2, 3, 5), (37, 41, 67), (70, 9, 300), (5, 270, 33), (64, 64, 64)]


def on_both(function, *arrays):
    """Call a function with arrays on the host and on the device; answers on the host."""
    host = function(*(None if a is None else to_device(a, CPU) for a in arrays))
    device = function(*(None if a is None else to_device(a, GPU) for a in arrays))
    parts = (host, device) if isinstance(host, tuple) else ((host,), (device,))
    assert all(is_device_array(part) for part in parts[1])
    assert all(a.dtype == b.dtype for a, b in zip(*parts, strict=True))
    return [to_host(part) for part in parts[0]], [to_host(part) for part in parts[1]]


def close(ours, reference, tolerance=1e-5):
    assert ours.shape == reference.shape
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(reference))
    scale = np.nanmax(np.abs(reference)) if np.isfinite(reference).any() else 1
    np.testing.assert_allclose(ours, reference, rtol=0, atol=tolerance * max(scale, 1e-30))


def masks(rng, shape):
    """No mask, one that is full, one that is empty, one with odd holes."""
    holes = (rng.random(shape) < 0.8).astype(np.uint8)
    holes[: shape[0] // 4] = 0
    holes[:, : shape[1] // 3, : shape[2] // 3] = 0
    return [None, np.ones(shape, np.uint8), np.zeros(shape, np.uint8), holes]


def scene(rng, shape):
    """Speckle with a tilted face."""
    depth = shape[0] * (0.3 + 0.2 * np.arange(shape[1])[:, None] / shape[1])
    z = np.arange(shape[0])[:, None, None]
    amplitude = np.where(z < depth, 4.0, 60 * np.exp(-(z - depth) * 0.02)) + np.zeros(shape)
    return (amplitude * np.sqrt(rng.exponential(1, shape))).astype(np.float32)


def matrices_for(shape, steps):
    return [
        None if step is None else axis_weights(n, max(1, int(n / step)), step)
        for n, step in zip(shape, steps, strict=True)
    ]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "steps",
    [(2, 2, 2), (1.3, 2.7, 3.1), (0.4, 0.7, 0.6), (None, 2, None), (2, None, 2), (9, 5, 20)],
)
def test_resampling_is_the_hosts(rng, shape, steps):
    matrices = matrices_for(shape, steps)
    host, device = on_both(
        lambda a: apply_axis_weights(a, matrices), rng.random(shape, dtype=np.float32)
    )
    close(device[0], host[0])


def test_steps_too_large_for_the_kernel_and_other_types_are_resampled_too(rng):
    array = rng.random((9, 12, 900))
    for dtype in (np.float32, np.float64):
        matrices = matrices_for(array.shape, (2, None, 90))
        host, device = on_both(lambda a, m=matrices: apply_axis_weights(a, m), array.astype(dtype))
        close(device[0], host[0])
    matrices = matrices_for(array.shape[::-1], (200, 2, 1.5))
    turned = np.float32(array.transpose(2, 1, 0))
    host, device = on_both(lambda a: apply_axis_weights(a, matrices), turned)
    close(device[0], host[0])


def test_tables_follow_matrices_and_shapes(rng):
    """What is kept of one call is never used for another one's matrices."""
    for shape, steps in [((8, 9, 10), (2, 2, 2)), ((8, 9, 10), (2, 2, 3)), ((8, 9, 11), (2, 2, 2))]:
        matrices = matrices_for(shape, steps)
        for _ in range(2):
            host, device = on_both(
                lambda a, m=matrices: apply_axis_weights(a, m), rng.random(shape, dtype=np.float32)
            )
            close(device[0], host[0])
    # No matrix is not the same as one that is gone.
    array = rng.random((8, 9, 10), dtype=np.float32)
    held = axis_weights(9, 4, 2)
    arrays = to_device(array, GPU), to_device(np.ones(array.shape, np.uint8), GPU)
    gone = [axis_weights(8, 4, 2), held, axis_weights(10, 5, 2)]
    assert resample_masked(*arrays, gone)[0].shape == (4, 4, 5)
    del gone
    assert resample_masked(*arrays, [None, held, None])[0].shape == (8, 4, 10)
    changed = matrices_for((8, 9, 10), (2, 2, 2))
    changed[1] = changed[1].copy()
    before = apply_axis_weights(to_device(array, GPU), changed)
    changed[1] *= 2
    after = apply_axis_weights(to_device(array, GPU), changed)
    close(to_host(after), 2 * to_host(before))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("steps", [(2, 2, 2), (1.3, 2.7, 3.1), (None, 2, None), (2, 2, 90)])
@pytest.mark.parametrize("kind", [1, 2, 3])
def test_masked_resampling_is_the_hosts(rng, shape, steps, kind):
    matrices = matrices_for(shape, steps)
    valid = masks(rng, shape)[kind]
    array = np.where(valid > 0, rng.random(shape, dtype=np.float32) + 1, 1e6).astype(np.float32)
    host, device = on_both(lambda a, v: resample_masked(a, v, matrices), array, valid)
    np.testing.assert_array_equal(device[1], host[1])
    close(device[0], host[0])


def test_one_invalid_voxel_is_noticed_anywhere(rng):
    shape = (7, 11, 13)
    array = rng.random(shape, dtype=np.float32)
    matrices = matrices_for(shape, (None, None, None))
    room = to_device(np.ones(array.size + 5, bool), GPU)
    for place in (0, 3, *range(16, 36), 500, array.size - 17, array.size - 1):
        for shift in (0, 1, 5):
            # Masks that begin at any address.
            valid = room[shift : shift + array.size].reshape(shape)
            valid[...] = True
            valid.reshape(-1)[place] = False
            _, keep = resample_masked(to_device(array, GPU), valid, matrices)
            assert np.flatnonzero(to_host(keep).ravel() == 0).tolist() == [place]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", range(4))
def test_shifts_are_the_hosts_to_the_bit(rng, shape, kind):
    surface = rng.uniform(-0.6, 0.6, shape[1:]).astype(np.float32) * shape[0]
    surface[::2] = np.round(surface[::2])
    surface.flat[0] = 3 * shape[0]
    host, device = on_both(
        correct_focal_curvature,
        rng.random(shape, dtype=np.float32),
        surface,
        masks(rng, shape)[kind],
    )
    np.testing.assert_array_equal(device[1], host[1])
    np.testing.assert_array_equal(device[0], host[0])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize(("s_xy", "s_z"), [(1, 2.0), (3, 2.0), (4, 0.5), (15, 3.3), (70, 9.0)])
def test_the_interface_is_the_hosts(rng, shape, kind, s_xy, s_z):
    volume = scene(rng, shape)
    volume[rng.random(shape) < 0.01] = 0
    host, device = on_both(
        lambda a, v: find_tissue_interface(a, s_xy, s_z, valid=v, axis=0),
        volume,
        masks(rng, shape)[kind],
    )
    np.testing.assert_array_equal(np.isnan(device[0]), np.isnan(host[0]))
    seen = ~np.isnan(host[0])
    # Where two rises are equally steep to the last bits, rounding decides.
    same = np.abs(device[0] - host[0])[seen] < 1e-3
    assert same.size == 0 or same.mean() >= 0.999


@pytest.mark.parametrize("axis", [1, 2])
def test_the_interface_along_other_axes(rng, axis):
    volume = np.moveaxis(scene(rng, (60, 20, 35)), 0, axis)
    host, device = on_both(lambda a: find_tissue_interface(a, 3, use_log=False, axis=axis), volume)
    np.testing.assert_allclose(device[0], host[0], atol=1e-3)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", range(4))
def test_brightness_and_means_are_the_hosts(rng, shape, kind):
    volume, valid = scene(rng, shape), masks(rng, shape)[kind]
    host, device = on_both(depth_mean, volume, valid)
    np.testing.assert_array_equal(device[0], host[0])
    host, device = on_both(brightness_map, volume, valid)
    close(device[0], host[0])


def test_a_tile_without_a_face_has_no_water(rng):
    volume = np.full((300, 20, 30), 2.5, np.float32)
    host, device = on_both(brightness_map, volume)
    np.testing.assert_array_equal(device[0], host[0])
    assert (host[0] == 2.5).all()


def test_a_device_gives_the_same_bits_each_time(rng):
    volume = to_device(scene(rng, (64, 70, 90)), GPU)
    first, again = brightness_map(volume), brightness_map(volume)
    np.testing.assert_array_equal(to_host(first), to_host(again))


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("shape", [(1, 1), (3, 1000), (2, 300_001), (70, 65)])
def test_counts_are_the_hosts(rng, shape, parts, monkeypatch):

    if parts > 1:
        from linumpy.geometry import kernels

        monkeypatch.setattr(kernels, "_most_shared_nbytes", lambda _: (128 << 10) // parts)
    values = rng.lognormal(2, 4, shape).astype(np.float32)
    values[rng.random(shape) < 0.1] *= -1
    values[rng.random(shape) < 0.1] = 0
    values.flat[0] = -0.0
    values.flat[-1] = np.finfo(np.float32).max
    odd = [np.nan, -np.nan, np.inf, -np.inf, 1e-45, 4.5e-41, 4.6e-41, 3.3895e38]
    values.flat[1 : 1 + len(odd)] = odd[: values.size - 2]
    selected = rng.random(shape) < 0.7
    columns = rng.random(shape[1]) < 0.5
    for chosen in (None, selected, selected.astype(np.uint8)):
        for some in (None, columns):
            host, device = on_both(float_histogram, values, chosen, some)
            np.testing.assert_array_equal(device[0], host[0])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", range(4))
def test_normalising_is_the_hosts_to_the_bit(rng, shape, kind):
    floor = rng.uniform(0, 0.3, shape[0]).tolist()
    cap = rng.uniform(0.5, 1, shape[0]).tolist()
    model = Normalization(0, floor, cap, 0.37, 0.5)
    host, device = on_both(
        lambda a, v: normalize_intensities_per_slice(a, v, model),
        rng.random(shape, dtype=np.float32),
        masks(rng, shape)[kind],
    )
    np.testing.assert_array_equal(device[0], host[0])


def test_dividing_by_the_flat_field_is_the_hosts_to_the_bit(rng):
    host, device = on_both(
        fix_illumination_3d,
        rng.random((5, 33, 65), dtype=np.float32),
        rng.uniform(0.5, 1.5, (33, 65)).astype(np.float32),
    )
    np.testing.assert_array_equal(device[0], host[0])


def test_offsets_beyond_32_bits():
    import cupy

    shape = (2051, 1024, 1024)
    if cupy.cuda.runtime.memGetInfo()[0] < 30 << 30:
        pytest.skip("needs 30 GiB of device memory")
    tile = cupy.zeros(shape, cupy.float32)
    end = cupy.random.default_rng(5).random((11, *shape[1:]), dtype=cupy.float32)
    tile[-11:] = end
    np.testing.assert_allclose(to_host(depth_mean(tile, None)), to_host(end).sum(0) / 2051, 1e-5)
    matrices = matrices_for(shape, (3, 4, 4))
    small = to_host(apply_axis_weights(tile, matrices))
    cut = matrices[0][:, -11:]
    close(small, apply_axis_weights(to_host(end), [cut, *matrices[1:]]))
    moved, _ = correct_focal_curvature(tile, np.full(shape[1:], 2.0, np.float32))
    assert bool((moved[-13:-2] == end).all())
    del moved
    tile[:-5] = 1
    tile[-5:] = 9
    np.testing.assert_allclose(to_host(find_tissue_interface(tile, 1, axis=0)), 2046, atol=1e-3)
