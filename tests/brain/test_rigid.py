"""Rotated and shifted speckle: rotation and translation of two stacks, and of two slices."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.ndimage import map_coordinates
from scipy.ndimage import rotate as scipy_rotate

from linumpy.brain.register_pairwise import register_pair
from linumpy.brain.register_slices import register_slices
from linumpy.brain.rigid import fit_rigid, middle_px
from linumpy.brain.slice_planes import SliceVolume
from linumpy.core.device import to_host
from linumpy.geometry.flatten import flatten
from linumpy.geometry.turned import (
    Turn,
    find_samples,
    rotation_matrix,
    sample_planes,
    turn_planes,
)
from linumpy.stage_params.brain import RegisterParams

from ..geometry.speckle import FINE, fixed_field, structured_field

VOXEL_UM = (10.0, 10.0, 10.0)
SHAPE = (72, 78)
PAD = 18
CORNER = np.array([PAD, PAD - 2.0])
STEP, PLANES = 6, 18


def block(seed, planes):
    return structured_field(seed, planes, tuple(n + 2 * PAD for n in SHAPE))


def seen(rng, field, rotation_deg, offset_px, share=0.7):
    """Amplitudes of a slice whose point p lies at R(p − pivot) + pivot + offset in the block."""
    pivot = CORNER + np.array(SHAPE) / 2
    sides = [(np.arange(n * FINE) + 0.5) / FINE for n in SHAPE]
    points = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1) + CORNER
    points = (points - pivot) @ rotation_matrix(rotation_deg).T + pivot + offset_px
    where = np.moveaxis(points * FINE - 0.5, -1, 0)
    fresh = fixed_field(rng, len(field), SHAPE)
    out = []
    for plane, new in zip(field, fresh, strict=True):
        part = map_coordinates(plane.real, where, order=1)
        part = part + 1j * map_coordinates(plane.imag, where, order=1)
        amplitude = np.abs(np.sqrt(share) * part + np.sqrt(1 - share) * new)
        out.append(amplitude.reshape(SHAPE[0], FINE, SHAPE[1], FINE).mean(axis=(1, 3)))
    return np.array(out, np.float32)


def volume(xp, slice_id, data):
    data = xp.asarray(data)
    corner = (float(CORNER[0] * 10), float(CORNER[1] * 10))
    return SliceVolume(
        slice_id,
        tuple(data.shape),
        corner,
        0.0,
        lambda planes, window: (data[(planes, *window)], None),
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("rotation", [0.15, -0.9, 3.6])
def test_pair_measures_rotation_and_shift(xp, seed, rotation):
    rng = np.random.default_rng(seed)
    field = block(seed, PLANES + STEP)
    offset = rng.uniform(-4, 4, 2)
    fixed = volume(xp, 0, seen(rng, field[:PLANES], 0, (0, 0)))
    moving = volume(xp, 1, seen(rng, field[STEP:], rotation, offset))
    found = register_pair(fixed, moving, VOXEL_UM, STEP * 10.0, RegisterParams(first_plane=1))
    assert not found.reason and found.agreement > 0.7
    assert found.rotation_deg == pytest.approx(rotation, abs=0.2)
    centre = np.array(found.centre_um) / 10
    pivot = CORNER + np.array(SHAPE) / 2
    goes = rotation_matrix(rotation) @ (centre - pivot) + pivot + offset
    np.testing.assert_allclose(found.shift_um[1:] / 10, goes - centre, atol=0.15)


@pytest.mark.slow
def test_slices_limited_to_shifts_are_not_rotated(xp):
    rng = np.random.default_rng(4)
    field = block(4, PLANES + STEP)
    pair = [
        volume(xp, 0, seen(rng, field[:PLANES], 0, (0, 0))),
        volume(xp, 1, seen(rng, field[STEP:], 0.5, (1, 2))),
    ]
    for params in (
        RegisterParams(first_plane=1, transform="translation"),
        RegisterParams(first_plane=1, max_rotation_deg=0.0),
    ):
        found = register_pair(*pair, VOXEL_UM, STEP * 10.0, params)
        assert found.rotation_deg == 0
        np.testing.assert_allclose(found.shift_um[1:] / 10, (1, 2), atol=0.4)
    limited = register_pair(
        *pair, VOXEL_UM, STEP * 10.0, RegisterParams(first_plane=1, max_rotation_deg=0.2)
    )
    assert limited.reason == "rotated as far as is allowed"


def test_rotated_slices_are_solved_together(xp):
    """Common positions: what every slice shows at one block position meets at one place."""
    rng = np.random.default_rng(5)
    field = block(5, PLANES + 2 * STEP)
    turns, offsets = (0.4, -0.5, 1.1), rng.uniform(-3, 3, (3, 2))
    slices = [
        volume(xp, k, seen(rng, field[k * STEP : k * STEP + PLANES], turns[k], offsets[k]))
        for k in range(3)
    ]
    model = register_slices(slices, VOXEL_UM, STEP * 10.0, RegisterParams(first_plane=1))
    assert model.reference_id == 1 and model.rotation_deg[1] == 0
    middle = CORNER + np.array(SHAPE) / 2
    np.testing.assert_allclose(model.pivot_um, middle * 10)
    points = CORNER + np.array([[10.0, 12], [60, 20], [30, 70]])
    back = rotation_matrix(-turns[1])
    for k in range(3):
        assert model.rotation_deg[k] == pytest.approx(turns[k] - turns[1], abs=0.15)
        truth = (points - middle) @ rotation_matrix(turns[k]).T + middle + offsets[k]
        truth = (truth - middle - offsets[1]) @ back.T + middle
        pivot = np.array(model.pivot_um)
        turn = rotation_matrix(model.rotation_deg[k])
        found = (points * 10 - pivot) @ turn.T + pivot + model.offset_um[k][1:]
        np.testing.assert_allclose(found / 10, truth, atol=0.25)
    for pair in model.pairs:
        assert abs(pair["residual_deg"]) < 0.2 and np.abs(pair["residual_um"][1:]).max() < 2


def test_blocks_that_show_nothing_have_no_fit(xp):
    empty = xp.zeros((4, 40, 40), xp.float32)
    assert fit_rigid(empty, empty, 0, (0, 0), reach_deg=1, reach_px=2, max_rotation_deg=5) is None


def test_a_few_pixels_are_fitted_as_one_block_or_not_at_all(xp):
    rng = np.random.default_rng(6)
    small = xp.asarray(flatten(rng.random((6, 20, 20), dtype=np.float32) + 1))
    fit = fit_rigid(small, small, 0, (0, 0), reach_deg=1, reach_px=2, max_rotation_deg=5)
    assert abs(fit.displacement_px[0]) < 0.05 and abs(fit.displacement_px[1]) < 0.05
    tiny = small[:, :10, :10]
    assert fit_rigid(tiny, tiny, 0, (0, 0), reach_deg=1, reach_px=2, max_rotation_deg=5) is None


@pytest.mark.parametrize("angle", [7.0, -33.0, 0.2])
def test_rotation_of_planes_equals_scipys(xp, rng, angle):
    planes = rng.random((2, 31, 36), dtype=np.float32) + 0.1
    turned = to_host(turn_planes(xp.asarray(planes), angle, middle_px(planes.shape)))
    expected = scipy_rotate(planes, angle, axes=(1, 2), reshape=False, order=1)
    known = (turned != 0) & (expected != 0)
    assert known.mean() > 0.6 and (turned != 0).mean() < 1
    np.testing.assert_allclose(turned[known], expected[known], atol=1e-4)


def test_unknown_pixels_make_their_neighbours_unknown(xp):
    planes = np.full((1, 20, 20), 2.0, np.float32)
    planes[0, 10, 10] = 0
    turned = to_host(turn_planes(xp.asarray(planes), 30.0, (10.0, 10.0)))
    assert set(np.round(np.unique(turned), 5)) == {0.0, 2.0}
    assert (turned[0, 9:12, 9:12] == 0).sum() >= 4


@given(
    st.floats(-5, 5),
    st.integers(0, 30),
    st.integers(0, 30),
    st.integers(1, 20),
    st.integers(1, 20),
)
def test_any_window_gives_the_same_bits(angle, i, j, rows, columns):
    planes = np.random.default_rng(0).random((1, 60, 60)).astype(np.float32)
    turn, whole = Turn.about(angle, (29.5, 29.5)), (slice(0, 60), slice(0, 60))
    every = find_samples(turn, whole, whole)
    window = (slice(i, i + rows), slice(j, j + columns))
    part = find_samples(turn, window, whole)
    np.testing.assert_array_equal(part.inside, every.inside[window])
    found = sample_planes(planes, part)[:, part.inside]
    expected = sample_planes(planes, every)[(slice(None), *window)][:, part.inside]
    np.testing.assert_array_equal(found, expected)
