"""Offsets of pairs of slices, also along depth, compared with planted ones."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter

from linumpy.brain import pair_match, slice_planes
from linumpy.brain.pair_depths import clear_maximum, compare_planes, depth_scores
from linumpy.brain.register_pairwise import NO_SHARED_PLANES, register_pair
from linumpy.brain.slice_planes import expected_plane
from linumpy.core.device import to_host
from linumpy.geometry.correlation_peaks import ACCEPT_Z_SCORE

from ..geometry.speckle import FINE, fixed_field, image
from .cut_slices import CORNER_PX, INTERVAL_UM, PARAMS, SHAPE, STEP, VOXEL_UM, cut, volume
from .cut_slices import tissue as tissue


@pytest.mark.parametrize("hidden", [(0.0, 0.0), (2.25, -3.5), (-5.75, 4.0)])
def test_pair_measures_the_hidden_shift_to_a_tenth_of_a_pixel(xp, rng, tissue, hidden):
    fixed = volume(xp, 0, cut(rng, tissue, 0))
    moving = volume(xp, 1, cut(rng, tissue, 1, hidden))
    found = register_pair(fixed, moving, VOXEL_UM, INTERVAL_UM, PARAMS)
    assert found.z_score > ACCEPT_Z_SCORE
    np.testing.assert_allclose(found.shift_um[1:], np.multiply(hidden, 10), atol=1.0)
    assert found.z_measured and abs(found.shift_um[0]) < 5


def test_shadows_wider_than_the_local_mean_hardly_move_a_pair(xp, rng, tissue):
    """Shadows of the anatomy above, unlike in both slices: 0.04 px in the mean, 0.8 with 6 px."""
    errors = []
    for hidden in ((-2.25, -3.5), (0.5, 1.25), (3.75, -3.5)) * 3:
        shadows = gaussian_filter(rng.normal(size=(2, *SHAPE[1:])), (0, 6, 6))
        shadows = np.exp(0.7 * shadows / shadows.std())[:, None]
        pair = [cut(rng, tissue, 0), cut(rng, tissue, 1, hidden)]
        slices = [volume(xp, n, (pair[n] * shadows[n]).astype(np.float32)) for n in (0, 1)]
        found = register_pair(*slices, VOXEL_UM, INTERVAL_UM, PARAMS)
        errors.append(np.abs(found.shift_um[1:] / 10 - hidden).max())
    assert np.mean(errors) < 0.1


def test_reported_positions_are_taken_off(xp, rng, tissue):
    """The stage says that the slice moved by (6, -4) px; it moved by (5, -2)."""
    fixed = volume(xp, 0, cut(rng, tissue, 0))
    moving = volume(xp, 1, cut(rng, tissue, 1, (5, -2)), corner_px=CORNER_PX + [6, -4])
    found = register_pair(fixed, moving, VOXEL_UM, INTERVAL_UM, PARAMS)
    np.testing.assert_allclose(found.shift_um[1:], (-10, 20), atol=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("deeper", [-6, -3, 0, 2, 5])
def test_a_wrong_depth_is_measured(xp, rng, tissue, deeper):
    fixed = volume(xp, 1, cut(rng, tissue, 1))
    moving = volume(xp, 2, cut(rng, tissue, 2, (1, 1), deeper))
    found = register_pair(fixed, moving, VOXEL_UM, INTERVAL_UM, PARAMS)
    assert found.z_measured
    assert abs(found.shift_um[0] - 10 * deeper) < 5
    np.testing.assert_allclose(found.shift_um[1:], (10, 10), atol=1.0)


def test_the_stage_leads_to_a_match_far_from_the_interval(xp, rng, tissue):
    fixed = volume(xp, 1, cut(rng, tissue, 1))
    moving = volume(xp, 2, cut(rng, tissue, 2, (1, 1), 13))
    silent = register_pair(fixed, moving, VOXEL_UM, INTERVAL_UM, PARAMS)
    assert silent.reason or not silent.z_measured
    fixed, moving = replace(fixed, stage_z_um=-700.0), replace(moving, stage_z_um=-910.0)
    found = register_pair(fixed, moving, VOXEL_UM, INTERVAL_UM, PARAMS)
    assert not found.reason and found.z_measured
    assert abs(found.shift_um[0] - 130) < 5
    np.testing.assert_allclose(found.shift_um[1:], (10, 10), atol=1.0)


@pytest.mark.parametrize("sooner", [-5, 5])
def test_slices_cropped_above_uneven_faces_are_compared_where_they_meet(xp, rng, tissue, sooner):
    """The one begins 5 planes farther above its mean face than the other, beyond the drift."""
    params = replace(PARAMS, drift_mm=0.02)
    faces = (-10.0 * max(sooner, 0), 10.0 * min(sooner, 0))
    fixed = volume(xp, 0, cut(rng, tissue, 0), face_um=faces[0])
    moving = volume(xp, 1, cut(rng, tissue, 1, (1.5, -2), sooner), face_um=faces[1])
    found = register_pair(fixed, moving, VOXEL_UM, INTERVAL_UM, params)
    assert not found.reason and found.z_measured and abs(found.shift_um[0]) < 3
    np.testing.assert_allclose(found.shift_um[1:], (15, -20), atol=1.0)


@pytest.mark.parametrize("drift_mm", [0.03, 0.05, 0.07])
def test_double_cut_is_found_against_the_stage(xp, rng, tissue, drift_mm):
    """Beyond the drift that is sought, with a stage that tells nothing or a wrong thick cut."""
    params = replace(PARAMS, drift_mm=drift_mm)
    fixed = volume(xp, 1, cut(rng, tissue, 1))
    moving = volume(xp, 2, cut(rng, tissue, 2, (1, 1), 8))
    found = register_pair(fixed, moving, VOXEL_UM, INTERVAL_UM, params)
    assert not found.reason and found.z_measured and abs(found.shift_um[0] - 80) < 5
    even = volume(xp, 2, cut(rng, tissue, 2, (1, 1)))
    one, other = replace(fixed, stage_z_um=0.0), replace(even, stage_z_um=150.0)
    found = register_pair(one, other, VOXEL_UM, INTERVAL_UM, params)
    assert not found.reason and found.z_measured and abs(found.shift_um[0]) < 5


def test_a_missed_cut_is_found(xp, rng, tissue):
    """Both slices show the same face: seen to fail (no match within the drift)."""
    params = replace(PARAMS, drift_mm=0.05)
    fixed = volume(xp, 1, cut(rng, tissue, 1))
    moving = volume(xp, 2, cut(rng, tissue, 2, (1, 1), -STEP))
    found = register_pair(fixed, moving, VOXEL_UM, INTERVAL_UM, params)
    assert not found.reason and found.z_measured
    np.testing.assert_allclose(found.shift_um, (-INTERVAL_UM, 10, 10), atol=3.0)


def test_what_is_fixed_to_the_microscope_is_no_missed_cut(xp, rng, tissue):
    """Other tissue, and a pattern in a few planes of both slices: seen to fail (-80 um)."""
    params = replace(PARAMS, drift_mm=0.05)
    pattern = np.ones(SHAPE, np.float32)
    pattern[8:14] += 0.5 * gaussian_filter(rng.normal(size=SHAPE[1:]), 1) / 0.28
    slices = [
        volume(xp, n, (cut(rng, tissue, n, deeper=deeper) * pattern).astype(np.float32))
        for n, deeper in ((0, 0), (1, 26))
    ]
    assert not register_pair(*slices, VOXEL_UM, INTERVAL_UM, params).z_measured


def test_the_expected_depth_is_kept_where_it_is_trusted(xp, rng, tissue):
    fixed = volume(xp, 1, cut(rng, tissue, 1))
    moving = volume(xp, 2, cut(rng, tissue, 2, (1, 1), 1))
    found = register_pair(fixed, moving, VOXEL_UM, INTERVAL_UM, replace(PARAMS, expected_z=True))
    assert not found.z_measured and found.shift_um[0] == 0
    np.testing.assert_allclose(found.shift_um[1:], (10, 10), atol=1.5)


@pytest.mark.slow
def test_fractions_of_a_voxel_between_face_and_plane_count(xp, rng, tissue):
    """Plane 0 lying 4 um below the face in one slice and 3 um above it in the other."""
    fixed = volume(xp, 0, cut(rng, tissue, 0), face_um=4.0)
    moving = volume(xp, 1, cut(rng, tissue, 1), face_um=-3.0)
    level = register_pair(
        volume(xp, 0, fixed.read(slice(0, 30), fixed.whole())[0]),
        volume(xp, 1, moving.read(slice(0, 30), moving.whole())[0]),
        VOXEL_UM,
        INTERVAL_UM,
        PARAMS,
    )
    found = register_pair(fixed, moving, VOXEL_UM, INTERVAL_UM, PARAMS)
    # A GPU fits windows of other depths otherwise, by 2e-4 of a voxel.
    assert found.shift_um[0] - level.shift_um[0] == pytest.approx(7.0, abs=0.01)


def test_slices_that_share_no_planes_are_no_pair(xp, rng, tissue):
    """Seen to fail where any two share planes."""
    fixed, moving = volume(xp, 0, cut(rng, tissue, 0)), volume(xp, 4, cut(rng, tissue, 4))
    found = register_pair(fixed, moving, VOXEL_UM, INTERVAL_UM, PARAMS)
    assert found.reason == NO_SHARED_PLANES and found.z_score == 0


def test_constant_and_empty_slices_are_named(xp, rng, tissue):
    """Seen to fail without `_MIN_KNOWN_SHARE`."""
    good = volume(xp, 0, cut(rng, tissue, 0))
    constant = volume(xp, 1, np.full(SHAPE, 7, np.float32))
    masked = cut(rng, tissue, 1)
    empty = volume(xp, 1, masked, valid=np.zeros(SHAPE, np.uint8))
    for bad in (constant, empty):
        found = register_pair(good, bad, VOXEL_UM, INTERVAL_UM, PARAMS)
        assert found.reason == "slice z01 is empty or constant there"
        back = register_pair(replace(bad, slice_id=-1), good, VOXEL_UM, INTERVAL_UM, PARAMS)
        assert back.reason == "slice z-1 is empty or constant there"


def test_slices_that_lie_side_by_side_overlap_too_little(xp, rng, tissue):
    """Seen to fail without `_MIN_OVERLAP_SHARE`."""
    fixed = volume(xp, 0, cut(rng, tissue, 0))
    moving = volume(xp, 1, cut(rng, tissue, 1), corner_px=CORNER_PX + [0, 90])
    found = register_pair(fixed, moving, VOXEL_UM, INTERVAL_UM, PARAMS)
    assert found.reason == "too small an overlap"


@pytest.mark.slow
def test_other_tissue_is_no_match(xp, rng, tissue):
    fixed = volume(xp, 0, cut(rng, tissue, 0))
    matches = []
    for n in range(4):
        other = image(rng, fixed_field(rng, SHAPE[0], (96, 100)), CORNER_PX, SHAPE[1:], 0.7)
        found = register_pair(fixed, volume(xp, 1 + n % 2, other), VOXEL_UM, INTERVAL_UM, PARAMS)
        matches.append(not found.reason)
    assert not any(matches)


def test_masked_pixels_do_not_draw_the_match(xp, rng, tissue):
    """A bright band at one place of both arrays, which plain correlation would lock on."""
    first, second = cut(rng, tissue, 0), cut(rng, tissue, 1, (3, 0))
    valid = np.ones(SHAPE, np.uint8)
    valid[:, :, 30:40] = 0
    band = 50 * rng.random((56, 10), dtype=np.float32)
    first[:, :, 30:40] = second[:, :, 30:40] = band
    pair = (volume(xp, 0, first, valid=valid), volume(xp, 1, second, valid=valid))
    found = register_pair(*pair, VOXEL_UM, INTERVAL_UM, PARAMS)
    np.testing.assert_allclose(found.shift_um[1:], (30, 0), atol=1.0)


def test_large_slices_are_searched_coarsely_with_the_same_answer(xp, rng, tissue, monkeypatch):
    """Slices wider than the coarse side are binned first; the refinement is as fine as ever."""
    fixed = volume(xp, 0, cut(rng, tissue, 0))
    moving = volume(xp, 1, cut(rng, tissue, 1, (11.25, -9.5)))
    monkeypatch.setattr(pair_match, "MAX_COARSE_SIDE_PX", 40)
    found = register_pair(fixed, moving, VOXEL_UM, INTERVAL_UM, PARAMS)
    np.testing.assert_allclose(found.shift_um[1:], (112.5, -95), atol=2.0)


def test_a_pair_reads_each_slice_once(rng, tissue, monkeypatch):
    """However many depths are tried; a large slice is read plane by plane, and then its middle."""
    reads = []

    def counted(slice_id, data):
        plain = volume(np, slice_id, data)

        def read(planes, window):
            reads.append((slice_id, planes.start, planes.stop))
            return plain.read(planes, window)

        return replace(plain, read=read)

    fixed = counted(1, cut(rng, tissue, 1))
    moving = counted(2, cut(rng, tissue, 2, (1, 1), 5))
    small = register_pair(fixed, moving, VOXEL_UM, INTERVAL_UM, PARAMS)
    assert sorted(reads) == [(1, 0, 30), (2, 2, 22)]
    reads.clear()
    monkeypatch.setattr(pair_match, "MAX_COARSE_SIDE_PX", 40)
    register_pair(fixed, moving, VOXEL_UM, INTERVAL_UM, PARAMS)
    # Whole planes to be binned, which lie in one layer of chunks; then those at full resolution.
    assert sorted(reads) == [(1, 0, 30), (1, 0, 30), (2, 2, 12), (2, 2, 22)]
    assert abs(small.shift_um[0] - 50) < 5


@pytest.mark.parametrize("factor", [1, 2])
def test_planes_of_other_windows_are_other_planes(xp, rng, tissue, factor):
    """Whatever was asked for before, each answer is the flattened part of the slice."""
    data, valid = cut(rng, tissue, 0), (rng.random(SHAPE) > 0.1).astype(np.uint8)
    planes = slice_planes.Planes(volume(xp, 0, data, valid=valid), 3, 20, factor)
    windows = [(slice(0, 50), slice(4, 60)), (slice(1, 50), slice(4, 60))]
    for window, start, count in ((0, 3, 17), (0, 5, 4), (1, 5, 4), (1, 4, 9), (1, 5, 9)):
        part = (slice(start, start + count), *windows[window])
        expected = slice_planes.flatten_tissue(data[part], valid[part], slice_planes.LOCAL_SIGMA_PX)
        found = to_host(planes.within(windows[window], start, count))
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_planes_are_binned_in_strips_as_in_one(xp, rng, tissue, monkeypatch):
    """Layers and strips end where they like; a rest of pixels at the end is left out once."""
    data, valid = cut(rng, tissue, 0), (rng.random(SHAPE) > 0.1).astype(np.uint8)
    read = volume(xp, 0, data, valid=valid)
    monkeypatch.setattr(slice_planes, "CHUNK_PX", 8)
    monkeypatch.setattr(slice_planes, "_STRIP_VOXELS", 1)
    found = to_host(slice_planes.Planes(read, 3, 20, 3).coarse(5, 14))
    share = slice_planes.bin_planes(valid[5:19], 3) > 0.5
    binned = slice_planes.bin_planes(data[5:19], 3)
    expected = slice_planes.flatten_tissue(binned, share, slice_planes.LOCAL_SIGMA_PX)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_depths_are_scored_by_their_correlation(xp, rng):
    first = rng.normal(size=(9, 12, 14)).astype(np.float32)
    second = rng.normal(size=(4, 12, 14)).astype(np.float32)
    scores = depth_scores(compare_planes(xp.asarray(first), xp.asarray(second)))
    expected = []
    for k in range(8):
        # At the end fewer planes meet.
        part, other = first[k : k + 4].astype(float), second[: 9 - k].astype(float)
        expected.append((part * other).sum() / np.sqrt((part**2).sum() * (other**2).sum()))
    np.testing.assert_allclose(scores, expected, atol=1e-6)


def test_an_uneven_cut_is_passed_over(xp, rng, tissue):
    """The moving slice's face falls by 12 planes: its first planes show only one side."""
    fixed = volume(xp, 1, cut(rng, tissue, 1))
    face = np.linspace(0, 12, SHAPE[2]).astype(int)
    valid = np.broadcast_to(np.arange(SHAPE[0])[:, None, None] >= face, SHAPE).astype(np.uint8)
    moving = volume(xp, 2, cut(rng, tissue, 2, (2.25, -1.5), 1), valid=valid)
    found = register_pair(fixed, moving, VOXEL_UM, INTERVAL_UM, PARAMS)
    assert 6 <= found.plane_moving <= 12
    np.testing.assert_allclose(found.shift_um[1:], (22.5, -15), atol=1.5)
    assert abs(found.shift_um[0] - 10) < 4
    flat = register_pair(fixed, replace(moving, read=fixed.read), VOXEL_UM, INTERVAL_UM, PARAMS)
    assert flat.plane_moving == PARAMS.first_plane


def test_speckle_measures_depth_on_any_anatomy():
    """A slow curve has a maximum too; only a sharp one upon it is a match."""
    plane = np.arange(21)
    rng = np.random.default_rng(3)
    for _ in range(20):
        slow = 0.3 * np.exp(-(((plane - rng.uniform(7, 13)) / 12) ** 2))
        slow = slow + rng.normal(0, 0.002, 21)
        sharp = slow + 0.1 * np.exp(-(((plane - 9) / 1.2) ** 2))
        place, sigma = clear_maximum(sharp, 0.002)
        assert place == pytest.approx(9, abs=0.3) and sigma >= 0.05
        assert clear_maximum(slow, 0.002) is None
    flat = 0.01 * rng.normal(size=(2000, 21))
    found = [clear_maximum(values, 0.01) is not None for values in flat]
    assert np.mean(found) < 0.05
    # One that may lie beyond what was searched is none.
    assert clear_maximum(np.linspace(0, 1, 9), 0.001) is None


def test_what_is_dim_counts_less_when_planes_are_flattened(xp, rng):
    data = rng.rayleigh(1.0, (3, 60, 80)).astype(np.float32)
    data[:, :, 40:] *= 0.02
    valid = np.ones(data.shape, np.uint8)
    valid[1, :10] = 0
    level = [data[0].mean(), data[1, 10:].mean(), data[2].mean()]
    found = to_host(slice_planes.flatten_tissue(xp.asarray(data), xp.asarray(valid)))
    for n in range(3):
        plain = slice_planes.flatten(data[n : n + 1] + level[n], valid[n : n + 1])
        np.testing.assert_allclose(found[n], plain[0], atol=2e-6)
    assert found[0, :, :30].std() > 8 * found[0, :, 50:].std()
    # Brightness and gain of a plane change nothing.
    louder = to_host(slice_planes.flatten_tissue(xp.asarray(7 * data), xp.asarray(valid)))
    np.testing.assert_allclose(louder, found, atol=1e-5)


@given(st.integers(1, 60), st.floats(20, 400), st.floats(2, 20), st.integers(0, 10))
def test_expected_planes_are_rounded_once(step, interval, axial, plane):
    assert abs(expected_plane(step, interval, axial, plane) - plane - step * interval / axial) <= (
        0.5 + 1e-9
    )


def test_speckle_helper_moves_by_its_argument(rng, tissue):
    """The truth of these tests: without fresh speckle, a whole-pixel move is a crop."""
    one = image(rng, tissue[:2], (20, 16), (30, 30), 1.0)
    other = image(rng, tissue[:2], (23, 14), (30, 30), 1.0)
    np.testing.assert_allclose(one[:, 3:, :-2], other[:, :-3, 2:], rtol=1e-5)
    assert FINE == 4
