import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal.windows import hann

from linumpy.device import to_host
from linumpy.mosaic.stacking import blend_planes, find_z_overlap, hann_weights, place_slices

from ..conftest import HAS_GPU


def place(ids, planes=57, interval=200.0, first=4, extra=0.0):
    face = {k: (k - ids[0]) * interval + extra * n for n, k in enumerate(ids)}
    return place_slices(ids, dict.fromkeys(ids, planes), face, 10.0, first)


def test_slices_follow_their_interval_and_missing_ones_leave_room():
    places = place([3, 4, 6, 7])
    assert [p.z_start_px for p in places] == [0, 20, 60, 80]
    assert [p.first_plane_px for p in places] == [0, 4, 4, 4]
    # 57 planes, 20 planes on, 4 not used: 33 are shared; over a gap none of them.
    assert [p.overlap_px for p in places] == [0, 33, 13, 33]


@given(st.floats(20, 400), st.integers(2, 60))
def test_roundings_do_not_add_up(interval, n):
    places = place(list(range(n)), interval=interval)
    for number, one in enumerate(places):
        assert abs(one.z_start_px - number * interval / 10) <= 0.5 + 1e-9


@given(st.integers(1, 80))
def test_weights_are_a_hann_window_at_plane_centres(n):
    weights = hann_weights(n)
    np.testing.assert_allclose(weights, hann(4 * n + 1)[1 : 2 * n : 2], atol=1e-6)
    np.testing.assert_allclose(weights + weights[::-1], 1, atol=1e-6)


def slow_blend(parts, shape, blend):
    """Voxel by voxel, straight from the rule."""
    out, mask = np.zeros(shape), np.zeros(shape, np.uint8)
    for one, first, data, valid in parts:
        for k in range(data.shape[0]):
            z = one.z_start_px + first + k
            t = first + k - one.first_plane_px
            weight = 1.0
            if blend and t < one.overlap_px:
                weight = 0.5 * (1 - np.cos(np.pi * (t + 0.5) / one.overlap_px))
            for i, j in np.ndindex(shape[1:]):
                if valid[k, i, j]:
                    old = mask[z, i, j]
                    share = weight if old else 1.0
                    out[z, i, j] = (1 - share) * out[z, i, j] + share * data[k, i, j]
                    mask[z, i, j] = 1
    return out, mask


@pytest.mark.parametrize("blend", [True, False])
def test_blending_is_the_rule_applied_to_each_voxel(xp, rng, blend):
    places = place([0, 1, 2], planes=14, interval=50.0, first=2)
    parts = []
    for one in places:
        n = one.n_planes - one.first_plane_px
        data = rng.random((n, 3, 4), dtype=np.float32)
        valid = (rng.random((n, 3, 4)) > 0.3).astype(np.uint8)
        parts.append((one, one.first_plane_px, data * valid, valid))
    shape = (max(p.end for p in places), 3, 4)
    expected, mask = slow_blend(parts, shape, blend)
    given_parts = [(p, f, xp.asarray(d), xp.asarray(v)) for p, f, d, v in parts]
    out, got = blend_planes(given_parts, slice(0, shape[0]), (3, 4), xp.empty(0), blend=blend)
    np.testing.assert_allclose(to_host(out), expected, atol=1e-6)
    np.testing.assert_array_equal(to_host(got), mask)
    # Any range of planes is the same part of the whole, to the bit.
    cut = [
        (
            p,
            f + max(0, 6 - p.z_start_px - f),
            d[max(0, 6 - p.z_start_px - f) :],
            v[max(0, 6 - p.z_start_px - f) :],
        )
        for p, f, d, v in given_parts
    ]
    part, _ = blend_planes(cut, slice(6, shape[0]), (3, 4), xp.empty(0), blend=blend)
    np.testing.assert_array_equal(to_host(part), to_host(out)[6:])


@pytest.mark.parametrize("use_gpu", [False, True] if HAS_GPU else [False])
@pytest.mark.parametrize("shift", [-3, 0, 4])
def test_overlap_is_found_where_planes_agree(rng, use_gpu, shift):
    scene = np.abs(rng.normal(size=(80, 40, 44))).astype(np.float32) + 1
    fixed, moving = scene[:40], scene[20 + shift : 60 + shift] * 1.7
    overlap, score = find_z_overlap(fixed, moving, 200.0, 10.0, 80.0, use_gpu=use_gpu)
    assert overlap == 20 - shift
    assert score > 0.99


def test_slices_that_cannot_meet_share_nothing(rng):
    one = rng.random((10, 8, 8), dtype=np.float32)
    assert find_z_overlap(one, one, 200.0, 10.0, 20.0, id_step=2)[0] == 0
