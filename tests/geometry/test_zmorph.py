"""Powers of affine maps, and planes between planes."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.linalg import expm, logm
from scipy.ndimage import distance_transform_edt, gaussian_filter
from skimage.transform import AffineTransform, warp

from linumpy.core.device import to_host
from linumpy.geometry.zmorph import (
    affine_power,
    edge_weight,
    mix,
    planar,
    sample_plane,
    source_window,
    turn_about,
)

QUICK = settings(max_examples=40, deadline=None)


@st.composite
def maps(draw):
    """Maps that a slice may undergo: turned, stretched, sheared, shifted; also none of these."""
    turned = turn_about(draw(st.floats(-60, 60)), (40.0, 30.0))
    stretch = np.diag([draw(st.floats(0.7, 1.4)), draw(st.floats(0.7, 1.4))])
    shear = np.array([[1, draw(st.floats(-0.3, 0.3))], [0, 1]])
    return turned @ planar(stretch @ shear, [draw(st.floats(-50, 50)), draw(st.floats(-50, 50))])


@given(maps(), st.floats(-1.5, 1.5), st.floats(-1.5, 1.5))
@QUICK
def test_powers_add_up(way, a, b):
    both = affine_power(way, a) @ affine_power(way, b)
    np.testing.assert_allclose(both, affine_power(way, a + b), atol=1e-6 * (1 + abs(both).max()))


@given(maps())
@QUICK
def test_whole_powers_are_products(way):
    scale = 1 + abs(way).max()
    np.testing.assert_allclose(affine_power(way, 0), np.eye(3), atol=1e-9)
    np.testing.assert_allclose(affine_power(way, 1), way, atol=1e-7 * scale)
    np.testing.assert_allclose(affine_power(way, -1), np.linalg.inv(way), atol=1e-6 * scale)


@given(maps(), st.floats(0, 1))
@QUICK
def test_powers_are_exponentials_of_the_logarithm(way, exponent):
    expected = np.real(expm(exponent * logm(way)))
    np.testing.assert_allclose(
        affine_power(way, exponent), expected, atol=1e-6 * (1 + abs(expected).max())
    )


@pytest.mark.parametrize(
    "way",
    [
        planar(np.eye(2), (3.0, -5.0)),
        planar([[1, 0.2], [0, 1]], (3.0, -5.0)),
        np.eye(3),
        planar([[1.2, 0], [0, 1]], (0.0, 4.0)),
    ],
    ids=["shift", "shear", "nothing", "one_axis"],
)
def test_maps_that_leave_a_direction_alone_have_powers_too(way):
    """The textbook formula for the translation divides by zero here."""
    half = affine_power(way, 0.5)
    np.testing.assert_allclose(half @ half, way, atol=1e-9)


@pytest.mark.parametrize(
    ("way", "message"),
    [(np.diag([-1.0, 1.0, 1.0]), "mirrors"), (np.diag([-1.0, -1.0, 1.0]), "half a circle")],
)
def test_maps_without_a_real_power_are_refused(way, message):
    with pytest.raises(ValueError, match=message):
        affine_power(way, 0.5)


def test_positive_rotation_is_from_axis_1_to_axis_2():
    turned = turn_about(90, (1.0, 1.0)) @ (2.0, 1.0, 1.0)
    np.testing.assert_allclose(turned, (1.0, 2.0, 1.0), atol=1e-12)


def test_sampling_agrees_with_scikit_image(xp, rng):
    """Its maps count columns first, as maps from output to input."""
    picture = rng.normal(size=(40, 56)).astype(np.float32)
    to_source = turn_about(17.0, (20.0, 26.0)) @ planar(np.eye(2), (1.3, -2.6))
    swapped = to_source[[1, 0, 2]][:, [1, 0, 2]]
    expected = warp(picture, AffineTransform(swapped), order=1, cval=0, preserve_range=True)
    data, good = sample_plane(xp.asarray(picture), None, to_source, picture.shape)
    inside = to_host(good)
    assert 0.5 < inside.mean() < 1
    np.testing.assert_allclose(to_host(data)[inside], expected[inside], atol=1e-4)


def test_masked_pixels_lend_nothing(xp, rng):
    picture = rng.normal(size=(20, 20)).astype(np.float32) + 5
    valid = np.ones((20, 20), np.uint8)
    valid[8:12, 8:12] = 0
    spoiled = np.where(valid > 0, picture, 1e6).astype(np.float32)
    shift = planar(np.eye(2), (0.5, 0.0))
    data, good = sample_plane(xp.asarray(spoiled), xp.asarray(valid), shift, (20, 20))
    good = to_host(good)
    assert not good[7:12, 8:12].any() and good[6, 9] and good[12, 9]
    assert to_host(data)[good].max() < 20


def morph(upper, lower, way, share, weights=(None, None)):
    """Return the plane that lies a share of the way from one plane to another."""
    maps = (affine_power(way, -share), affine_power(way, 1 - share))
    moved = [
        sample_plane(plane, None, to_source, upper.shape)
        for plane, to_source in zip((upper, lower), maps, strict=True)
    ]
    if weights[0] is not None:
        weights = [
            sample_plane(weight, None, to_source, upper.shape)[0]
            for weight, to_source in zip(weights, maps, strict=True)
        ]
        return mix(*moved, share, weights)
    return mix(*moved, share)


def test_ends_are_the_planes_themselves(xp, rng):
    upper, lower = (xp.asarray(rng.random((30, 34)).astype(np.float32)) for _ in range(2))
    way = turn_about(8.0, (15, 17)) @ planar(np.eye(2), (1.5, 0.5))
    for share, expected in ((0.0, upper), (1.0, lower)):
        plane, mask = morph(upper, lower, way, share)
        inner = np.s_[5:-5, 5:-5]
        np.testing.assert_allclose(to_host(plane)[inner], to_host(expected)[inner], atol=1e-6)
        assert to_host(mask).all()


def blob(place, shape=(64, 64)):
    i, j = np.mgrid[: shape[0], : shape[1]]
    return np.exp(-((i - place[0]) ** 2 + (j - place[1]) ** 2) / 18).astype(np.float32)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.8])
def test_structure_moves_by_its_share(xp, share):
    way = turn_about(30.0, (32, 32)) @ planar(np.eye(2), (2.0, -3.0))
    here = np.array([20.0, 36.0, 1.0])
    there = way @ here
    edges = (xp.asarray(blob((30, 30)) + 1), xp.asarray(blob((34, 34)) + 1))
    plane, _ = morph(xp.asarray(blob(here)), xp.asarray(blob(there)), way, share, edges)
    found = to_host(plane).astype(float)
    i, j = np.mgrid[:64, :64]
    centroid = np.array([(found * i).sum(), (found * j).sum()]) / found.sum()
    np.testing.assert_allclose(centroid, (affine_power(way, share) @ here)[:2], atol=0.1)
    # One blob, not two ghosts: it is as high as either.
    assert found.max() > 0.93


def test_where_one_plane_alone_is_valid_it_counts_whole(xp):
    upper = (xp.full((1, 4), 2, xp.float32), xp.asarray([[True, True, False, False]]))
    lower = (xp.full((1, 4), 6, xp.float32), xp.asarray([[True, False, True, False]]))
    data, mask = mix(upper, lower, 0.25)
    assert to_host(data).tolist() == [[3, 2, 6, 0]] and to_host(mask).tolist() == [[1, 1, 1, 0]]
    data, _ = mix(upper, lower, 0.0)
    assert to_host(data).tolist() == [[2, 2, 6, 0]]
    assert to_host(mix(upper, lower, 1.0)[0]).tolist() == [[6, 2, 6, 0]]
    heavy = (xp.full((1, 4), 3, xp.float32), xp.full((1, 4), 1, xp.float32))
    assert to_host(mix(upper, lower, 0.5, heavy)[0])[0, 0] == pytest.approx(3.0)


def test_depth_in_tissue_is_the_smoothed_distance_to_its_edge(rng):
    foreground = gaussian_filter(rng.normal(size=(50, 60)), 5) > 0
    expected = gaussian_filter(distance_transform_edt(np.pad(foreground, 1))[1:-1, 1:-1], 2) + 1
    np.testing.assert_allclose(edge_weight(foreground), expected, rtol=1e-5)
    assert (edge_weight(np.zeros((4, 4), bool)) == 1).all()


@given(maps(), st.integers(5, 30), st.integers(5, 30))
@example(planar(np.array([[1, 3e-20], [-3e-20, 1]]), [3e-20, 1.0]), 5, 5)
@QUICK
def test_a_window_holds_all_that_a_block_rests_on(to_source, n1, n2):
    picture = np.arange(70 * 80, dtype=np.float32).reshape(70, 80) + 1
    whole, good = sample_plane(picture, None, to_source, (n1, n2))
    window = source_window([to_source], (n1, n2), picture.shape)
    if window is None:
        assert not good.any()
        return
    back = planar(np.eye(2), [-window[0].start, -window[1].start]) @ to_source
    part, part_good = sample_plane(picture[window], None, back, (n1, n2))
    inside = good & part_good
    # A place on the picture's own edge can be lost to rounding, nothing within.
    i, j = np.mgrid[:n1, :n2]
    places = np.tensordot(to_source[:2], [i, j, np.ones(i.shape)], 1)
    edges = (places, places - np.reshape(picture.shape, (2, 1, 1)) + 1)
    clear = np.min(np.abs(edges), axis=(0, 1)) > 1e-6
    np.testing.assert_array_equal(part_good[clear], good[clear])
    np.testing.assert_allclose(part[inside], whole[inside], rtol=1e-4)
