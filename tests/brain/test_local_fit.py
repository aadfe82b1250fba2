"""Smoothly deformed planes: windows, the covariance of a displacement, rigid part and field."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter, map_coordinates

from linumpy.brain import local_fit, pair_match
from linumpy.brain.kriging import fit_displacement
from linumpy.brain.local_fit import fit_locally, has_room
from linumpy.brain.local_shifts import measure_local_shifts
from linumpy.brain.register_pairwise import register_pair
from linumpy.brain.rigid import fit_rigid, middle_px
from linumpy.brain.slice_planes import SliceVolume
from linumpy.core.device import to_host
from linumpy.geometry.flatten import flatten
from linumpy.geometry.shift_field import ShiftField, lattice_weights
from linumpy.geometry.turned import rotation_matrix
from linumpy.stage_params.brain import RegisterParams

SIDE = 240


def deformation(rng, shape, rms_px, scale_px):
    """Two smooth fields over a plane with neither shift nor turn, float64 (2, n1, n2)."""
    field = gaussian_filter(rng.normal(size=(2, *shape)), (0, scale_px, scale_px), mode="wrap")
    away = np.stack(np.meshgrid(*[np.arange(n) - (n - 1) / 2 for n in shape], indexing="ij"))
    turn = np.stack([-away[1], away[0]])
    field -= field.mean(axis=(1, 2), keepdims=True)
    field -= turn * (field * turn).sum() / (turn**2).sum()
    return field * rms_px / np.sqrt(np.mean(field**2))


def planes(rng, places, texture, contrast, fresh=0.35):
    """Speckle seen at places (2, n1, n2) of a texture (z, …), with some of its own, float32."""
    seen = np.stack([map_coordinates(plane, places, order=3, mode="mirror") for plane in texture])
    seen += fresh * gaussian_filter(rng.normal(size=seen.shape), (0, 1.0, 1.0)) / 0.282
    return (3 + np.clip(seen * contrast, -2.5, None)).astype(np.float32)


def deformed_pair(seed, rotation_deg=0.4, shift=(1.5, -2.5), rms_px=4.0, contrast=0.7):
    """Flattened planes of two slices, the second turned, shifted and then deformed."""
    rng = np.random.default_rng(seed)
    texture = gaussian_filter(rng.normal(size=(4, SIDE, SIDE)), (0, 1.2, 1.2))
    texture /= texture.std()
    grid = np.stack(np.meshgrid(np.arange(SIDE), np.arange(SIDE), indexing="ij")).astype(float)
    first = planes(rng, grid, texture, contrast)
    middle = middle_px((SIDE, SIDE))[:, None]
    field = deformation(rng, (SIDE, SIDE), rms_px, 30)
    flat = grid.reshape(2, -1)
    # A pixel of the moving plane lies at R(p - middle) + middle + shift in the block.
    block = rotation_matrix(rotation_deg) @ (flat - middle) + middle + np.array(shift)[:, None]
    moved = np.stack([map_coordinates(f, block, order=1, mode="nearest") for f in field])
    second = planes(rng, (block + moved).reshape(2, SIDE, SIDE), texture, contrast)
    return flatten(first), flatten(second)


def test_deformation_leaves_the_rigid_part_alone(xp):
    """The whole plane is off by a pixel and more: it follows where the contrast is."""
    bright = np.ones((SIDE, SIDE))
    bright[:, : SIDE // 3] = 4
    first, second = deformed_pair(3)
    whole = fit_rigid(
        first * bright.astype(np.float32), second * bright.astype(np.float32), 0.0, (0.0, 0.0),
        reach_deg=1, reach_px=6, max_rotation_deg=5,
    )  # fmt: skip
    off = np.hypot(*np.subtract(whole.displacement_px, (1.5, -2.5)))
    fit = fit_locally(xp.asarray(first), xp.asarray(second), 0.0, np.zeros(2))
    assert fit.share > 0.8
    assert fit.rotation_deg == pytest.approx(0.4, abs=0.15)
    np.testing.assert_allclose(fit.displacement_px, (1.5, -2.5), atol=0.35)
    assert off > 1.5 * np.hypot(*(fit.displacement_px - (1.5, -2.5)))
    # The warped planes match as the same tissue does.
    a, b = first[:, 30:-30, 30:-30], to_host(fit.warped)[:, 30:-30, 30:-30]
    assert (a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum()) > 0.6
    assert 0.02 < fit.smooth.shift_sigma_px < 0.5


def test_planes_without_deformation_are_as_exact_as_ever(xp):
    first, second = deformed_pair(4, rms_px=0.0)
    fit = fit_locally(xp.asarray(first), xp.asarray(second), 0.3, np.array([1.0, -2.0]))
    assert fit.rotation_deg == pytest.approx(0.4, abs=0.02)
    np.testing.assert_allclose(fit.displacement_px, (1.5, -2.5), atol=0.05)
    assert fit.smooth.shift_sigma_px < 0.05


@pytest.mark.parametrize(("rms_px", "step_px"), [(0.0, 48), (4.0, 32)])
def test_more_windows_are_compared_where_planes_are_deformed(xp, monkeypatch, rms_px, step_px):
    """Seen to fail: as many for planes that are not."""
    monkeypatch.setattr(local_fit, "_WINDOWS_A_SIDE", 5)
    first, second = deformed_pair(3, rms_px=rms_px)
    fit = fit_locally(xp.asarray(first), xp.asarray(second), 0.3, np.array([1.0, -2.0]), dense=True)
    assert fit.step_px == step_px


def test_other_tissue_has_no_local_fit(xp):
    first, _ = deformed_pair(5)
    other, _ = deformed_pair(6)
    assert fit_locally(xp.asarray(first), xp.asarray(other), 0.0, np.zeros(2)) is None


def test_small_planes_have_no_room(xp):
    small = xp.ones((3, 100, 120), xp.float32)
    assert fit_locally(small, small, 0.0, np.zeros(2)) is None
    assert has_room((5, 192, 192)) and not has_room((192, 150))


def test_windows_find_their_own_shift(xp, rng):
    """Halves of a plane that moved by two vectors; what is empty is not compared."""
    data = rng.normal(size=(3, 200, 260)).astype(np.float32)
    moved = np.roll(data, (2, -3), axis=(1, 2))
    moved[:, :, 130:] = np.roll(data, (-4, 1), axis=(1, 2))[:, :, 130:]
    data[:, 150:, :60] = 0
    found = measure_local_shifts(
        xp.asarray(data), xp.asarray(moved), window_px=50, step_px=25, reach_px=8
    )
    left, right = found.place_px[:, 1] < 100, found.place_px[:, 1] > 160
    assert left.sum() > 10 and right.sum() > 20
    np.testing.assert_allclose(found.shift_px[left], np.tile((2, -3), (left.sum(), 1)), atol=0.1)
    np.testing.assert_allclose(found.shift_px[right], np.tile((-4, 1), (right.sum(), 1)), atol=0.1)
    assert found.compared < 7 * 9


def field_measured(rng, noise_px, shift, turn_rad, cover=1.0):
    """A deformation at windows over part of an area, and evenly spread points of it."""
    field = deformation(rng, (320, 320), 3.0, 45)
    sides = np.arange(0, 320, 16)
    area = np.stack(np.meshgrid(sides, sides, indexing="ij"), axis=-1).reshape(-1, 2)
    places = np.stack(
        np.meshgrid(np.arange(32, 289, 32), np.arange(32, int(289 * cover), 32), indexing="ij"),
        axis=-1,
    ).reshape(-1, 2)
    away = places - area.mean(axis=0)
    values = field[:, places[:, 0], places[:, 1]].T + np.array(shift)
    values = values + turn_rad * np.stack([-away[:, 1], away[:, 0]], axis=1)
    values = values + rng.normal(scale=noise_px, size=values.shape)
    truth = field[:, area[:, 0], area[:, 1]].T
    return places.astype(float), values, area.astype(float), truth


@pytest.mark.slow
@pytest.mark.parametrize("cover", [1.0, 0.7])
def test_rigid_part_is_separated_from_a_field_within_its_error(rng, cover):
    """Its standard errors hold over draws: the errors are about as large as they say."""
    scores = []
    for _ in range(8):
        places, values, area, truth = field_measured(rng, 0.1, (2.0, -1.0), 0.006, cover)
        found = fit_displacement(places, values, area, window_px=32, least_noise_px=0.05)
        shift = (found.shift_px - (2.0, -1.0)) / found.shift_sigma_px
        scores.append([*shift, (found.turn_rad - 0.006) / found.turn_sigma_rad])
        if cover == 1:
            np.testing.assert_allclose(found.shift_px, (2.0, -1.0), atol=0.4)
            assert np.sqrt(np.mean((found.field_px - truth) ** 2)) < 0.7
    assert 0.2 < np.sqrt(np.mean(np.square(scores))) < 2.5


def test_wrong_measurements_are_left_out(rng):
    places, values, area, _ = field_measured(rng, 0.1, (2.0, -1.0), 0.006)
    wrong = rng.choice(len(places), 8, replace=False)
    values[wrong] += rng.choice([-1, 1], (8, 2)) * rng.uniform(8, 14, (8, 2))
    found = fit_displacement(places, values, area, window_px=32, least_noise_px=0.05)
    assert not found.used[wrong].any() and found.used.sum() > 0.75 * len(places)
    np.testing.assert_allclose(found.shift_px, (2.0, -1.0), atol=0.5)


@given(st.lists(st.floats(-2, 2), min_size=6, max_size=6), st.floats(3, 40))
def test_quadratic_fields_are_interpolated_exactly(coefficients, step):
    """Keys' interpolation is exact for polynomials of degree two, inside the lattice."""
    a, b, c, d, e, f = coefficients

    def value(x, y):
        return a + b * x + c * y + d * x * y + e * x * x + f * y * y

    nodes = np.meshgrid(np.arange(7.0), np.arange(9.0), indexing="ij")
    field = ShiftField((10.0, -5.0), (step, step), np.stack([value(*nodes), -value(*nodes)]))
    rows, columns = np.array([1.0, 2.3, 5.0]), np.array([1.2, 4.5, 7.0])
    found = field.on_grid(10 + step * rows, -5 + step * columns)
    np.testing.assert_allclose(found[0], value(rows[:, None], columns[None]), atol=1e-9)
    points = np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1).reshape(-1, 2)
    at = field.at(np.array([10.0, -5.0]) + step * points)
    np.testing.assert_allclose(at[:, 1], -found[0].ravel(), atol=1e-9)
    _, weight = lattice_weights(points, (0.0, 0.0), (1.0, 1.0), (7, 9))
    np.testing.assert_allclose(weight.sum(axis=1), 1)


def slice_of(xp, slice_id, data):
    data = xp.asarray(data + np.float32(3))
    return SliceVolume(
        slice_id,
        data.shape,
        (0.0, 0.0),
        0.0,
        lambda planes, window: (data[(planes, *window)], None),
    )


@pytest.mark.slow
@pytest.mark.parametrize("side_px", [1024, 200])
def test_a_deformed_pair_is_measured_by_its_parts(xp, monkeypatch, side_px):
    """Also when it is larger than what is fitted at once: all of it then counts.

    Over eight draws: one in three lets the field pass for a rotation, whatever the local mean.
    """
    monkeypatch.setattr(pair_match, "MAX_COARSE_SIDE_PX", side_px)
    monkeypatch.setattr(local_fit, "_MIN_WINDOWS", 5)
    params = RegisterParams(first_plane=0, expected_z=True, max_translation_px=20)
    off_um, off_deg = [], []
    for seed in range(8):
        first, second = (slice_of(xp, n, each) for n, each in enumerate(deformed_pair(seed)))
        found = register_pair(
            first, second, (10.0, 10.0, 10.0), 0.0, params, expected_um=[0.0]
        )  # fmt: skip
        assert not found.reason and found.agreement > 0.6
        away = np.array(found.centre_um) - np.full(2, SIDE * 5.0)
        turned = rotation_matrix(0.4) @ away - away
        off_um.append(np.abs(found.shift_um[1:] - (turned + (15.0, -25.0))).max())
        off_deg.append(abs(found.rotation_deg - 0.4))
        assert found.sigma_um > 0.1 and np.ptp(found.parts.fixed_um, axis=0).min() > 1400
    assert np.median(off_um) < 6 and np.median(off_deg) < 0.2
    assert max(off_um) < 20 and max(off_deg) < 1


@pytest.mark.slow
def test_a_wrong_guess_that_few_windows_bear_out_yields_to_the_motors(xp, monkeypatch):
    """Windows on a ridge of the wrong place match by chance. Seen to fail where any of them is
    believed (agreement 0.2).
    """
    monkeypatch.setattr(local_fit, "_MIN_WINDOWS", 5)
    wrong = pair_match.Guess(0.0, np.array([9.0, 12.0]), np.full(2, SIDE / 2), 0, 0.5, 2.0)
    monkeypatch.setattr(pair_match.PairMatch, "_search_upright", lambda *_: (6.0, wrong))
    monkeypatch.setattr(pair_match.PairMatch, "_search_angles", lambda *_: None)
    fit = pair_match.PairMatch._fit

    def chance(self, guess):
        """A fifth of the windows, and a peak as high as any."""
        found = fit(self, guess)
        if guess is wrong and found is None:
            return None
        return (
            replace(found, agreement=0.2, local=found.local or object())
            if guess is wrong
            else found
        )

    monkeypatch.setattr(pair_match.PairMatch, "_fit", chance)
    params = RegisterParams(first_plane=0, expected_z=True, max_translation_px=20)
    first, second = (slice_of(xp, n, each) for n, each in enumerate(deformed_pair(0)))
    found = register_pair(first, second, (10.0, 10.0, 10.0), 0.0, params, expected_um=[0.0])
    away = np.array(found.centre_um) - np.full(2, SIDE * 5.0)
    turned = rotation_matrix(0.4) @ away - away
    assert found.agreement > 0.6
    np.testing.assert_allclose(found.shift_um[1:], turned + (15.0, -25.0), atol=20)
