"""The kernels of stitching and registration, compared with the same functions on the host."""

import numpy as np
import pytest

from linumpy.core.device import is_device_array, to_host
from linumpy.geometry.flatten import flatten
from linumpy.stage_params.slices import BLENDING_METHODS
from linumpy.tiles.pairs import TilePair, correlate_pair, tile_evidence
from linumpy.tiles.stitch_3d_refined import (
    blending_weights,
    canvas_shape,
    stitch_3d_refined,
)

from ..geometry.surfaces import correlation_surface
from . import needs_gpu

pytestmark = needs_gpu

SHAPES = [(7, 13, 11), (1, 5, 40), (9, 33, 35), (4, 64, 129)]


@pytest.fixture
def on_device():
    import cupy

    return lambda array: None if array is None else cupy.asarray(array)


def slice_of_four(rng, shape, masked):
    """Four tiles at fractions of a pixel, one of them on whole pixels along each axis."""
    _, n1, n2 = shape
    positions = np.array([(0, 0), (0.3, 0.75 * n2 + 0.2), (0.7 * n1 + 0.5, 0), (4, 3)], float)
    tiles = [rng.random(shape, dtype=np.float32) for _ in positions]
    masks = [(rng.random(shape) > 0.2).astype(np.uint8) if masked else None for _ in positions]
    return positions, tiles, masks


def stitched(move, positions, tiles, masks, method, window=None):
    shape = tiles[0].shape
    weights = blending_weights(shape[1:], (shape[1] / 4, shape[2] / 4), method)
    corner, canvas = canvas_shape(positions, shape[1:])
    window = window or (slice(0, canvas[0]), slice(0, canvas[1]))
    numbers = range(len(tiles))
    parts = [(move(tiles[n]), move(masks[n]), positions[n] - corner) for n in numbers]
    return stitch_3d_refined(parts, weights, window, move(np.empty((shape[0], 0, 0), np.float32)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("method", BLENDING_METHODS)
def test_a_stitched_block_is_the_hosts(rng, on_device, shape, masked, method):
    case = slice_of_four(rng, shape, masked)
    data, valid = stitched(on_device, *case, method)
    expected, expected_valid = stitched(lambda array: array, *case, method)
    assert is_device_array(data) and data.dtype == np.float32 and valid.dtype == np.uint8
    np.testing.assert_array_equal(to_host(valid), expected_valid)
    np.testing.assert_allclose(to_host(data), expected, atol=1e-6)


@pytest.mark.parametrize("masked", [False, True])
def test_any_block_is_the_same_part_of_the_whole_to_the_bit(rng, on_device, masked):
    case = slice_of_four(rng, (9, 33, 35), masked)
    whole = stitched(on_device, *case, "linear")
    window = (slice(5, 38), slice(3, 50))
    for part, all_of_it in zip(stitched(on_device, *case, "linear", window), whole, strict=True):
        np.testing.assert_array_equal(to_host(part), to_host(all_of_it[:, window[0], window[1]]))


def test_a_block_that_no_tile_reaches_is_empty(on_device):
    import cupy

    out = cupy.full((3, 8, 9), 7.0, cupy.float32)
    del out  # Its memory is likely to be given out again.
    data, valid = stitch_3d_refined(
        [],
        blending_weights((8, 8), (2, 2), "linear"),
        (slice(0, 8), slice(0, 9)),
        on_device(np.empty((3, 0, 0), np.float32)),
    )
    assert not to_host(data).any() and not to_host(valid).any()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", [None, np.uint8, bool])
def test_flattened_planes_are_the_hosts(rng, on_device, shape, kind):
    planes = rng.random(shape, dtype=np.float32)
    valid = None if kind is None else (rng.random(shape) > 0.3).astype(kind)
    if valid is not None:
        valid[0], valid[-1] = 1, 0
    flat = flatten(on_device(planes), on_device(valid))
    assert is_device_array(flat)
    np.testing.assert_allclose(to_host(flat), flatten(planes, valid), atol=5e-6)


@pytest.mark.parametrize("shape", [(60, 40, 44), (24, 33, 35), (7, 20, 30), (55, 33, 20)])
@pytest.mark.parametrize("masked", [False, True])
def test_pairs_of_tiles_are_the_hosts(rng, on_device, shape, masked):
    tile = rng.random(shape, dtype=np.float32)
    tile *= np.exp(-np.arange(shape[0], dtype=np.float32) / 10)[:, None, None]
    valid = (rng.random(shape) > 0.3).astype(np.uint8) if masked else None
    tiles = [tile, np.roll(tile, 3, axis=2)]
    host = [tile_evidence(t, valid) for t in tiles]
    device = [tile_evidence(on_device(t), on_device(valid)) for t in tiles]
    for ours, theirs in zip(device, host, strict=True):
        assert is_device_array(ours.slabs) and is_device_array(ours.slab_means)
        np.testing.assert_allclose(to_host(ours.slabs), theirs.slabs, atol=1e-5)
        np.testing.assert_allclose(to_host(ours.slab_means), theirs.slab_means, rtol=1e-5)
    for expected in ((0.3, shape[2] * 0.7), (-shape[1] * 0.6, 1.0)):
        pair = TilePair(0, 1, expected)
        ours, theirs = correlate_pair(*device, pair), correlate_pair(*host, pair)
        # A pixel that rounding flattens to exactly 0 counts as unknown.
        np.testing.assert_allclose(ours.surface.weight, theirs.surface.weight, atol=2e-4)
        same = np.isnan(ours.surface.values) == np.isnan(theirs.surface.values)
        assert same.mean() > 0.999
        known = np.isfinite(ours.surface.values) & np.isfinite(theirs.surface.values)
        difference = ours.surface.values - theirs.surface.values
        assert np.abs(difference[known]).max(initial=0) < 1e-4
        assert (ours.peak is None) == (theirs.peak is None)
        if ours.peak is not None:
            error = np.subtract(ours.displacement_px, theirs.displacement_px)
            assert np.abs(error).max() < 0.01


def test_slabs_are_chosen_as_on_the_host(rng, on_device):
    from linumpy.geometry.tile_kernels import choose_slabs
    from linumpy.tiles.pairs import _MIN_SLABS, _SIGNAL_OVER_NOISE, _common_slabs

    for n, spread in ((24, 3.0), (24, 0.1), (9, 1.0), (3, 1.0)):
        first, second = 1 + spread * rng.random((2, n), dtype=np.float32)
        chosen = choose_slabs(on_device(first), on_device(second), _SIGNAL_OVER_NOISE, _MIN_SLABS)
        expected = _common_slabs(first, second)
        assert np.flatnonzero(to_host(chosen)[:-1]).tolist() == expected.tolist()
        assert to_host(chosen)[-1] == len(expected)


def test_planes_transformed_a_few_at_a_time_give_the_same_surface(rng, on_device, monkeypatch):

    first = rng.normal(size=(5, 20, 24)).astype(np.float32)
    second = rng.normal(size=(5, 18, 22)).astype(np.float32)
    first[1, 3] = second[:, :, 4] = 0
    options = {"centre_px": (2, -1), "radius_px": (4, 5), "min_overlap_share": 0.61}
    host = correlation_surface(first, second, **options)
    assert 0 < np.isnan(host.values).mean() < 1

    from linumpy.geometry import tile_kernels

    for nbytes in (tile_kernels._STACK_NBYTES, 50_000, 1):
        monkeypatch.setattr(tile_kernels, "_STACK_NBYTES", nbytes)
        device = correlation_surface(on_device(first), on_device(second), **options)
        np.testing.assert_allclose(device.values, host.values, atol=1e-5)
        np.testing.assert_allclose(device.weight, host.weight, atol=1e-6)
