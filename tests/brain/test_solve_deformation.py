"""Fields of slices from pairs: against planted fields, in the model, and on the canvas."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter, map_coordinates

from linumpy.brain.align_mosaics_3d_from_shifts import (
    align_mosaics_3d_from_shifts,
    common_canvas,
    interpolate,
)
from linumpy.brain.laying import lay_slice
from linumpy.brain.pair_shift import PairParts, PairShift
from linumpy.brain.pair_trust import relative_trust
from linumpy.brain.register_slices import solve_registration
from linumpy.brain.slice_planes import SliceVolume
from linumpy.brain.slice_registration import SliceRegistration
from linumpy.brain.solve_deformation import MatchedPlaces, solve_deformation
from linumpy.core.device import to_host
from linumpy.geometry.shift_field import ShiftField
from linumpy.geometry.turned import rotation_matrix
from linumpy.metrics.stages import measure
from linumpy.stage_params.brain import RegisterParams

EXTENT_UM = 4000.0
CORNERS = np.array([[0, 0], [0, EXTENT_UM], [EXTENT_UM, 0], [EXTENT_UM, EXTENT_UM]])
RMS_UM = 30.0


def planted_fields(rng, n):
    """Smooth fields of slices on a fine lattice, each without shift and turn."""
    sides = np.arange(0, EXTENT_UM + 1, 50)
    away = np.stack(np.meshgrid(sides, sides, indexing="ij")) - EXTENT_UM / 2
    turn = np.stack([-away[1], away[0]])
    fields = []
    for _ in range(n):
        values = gaussian_filter(rng.normal(size=away.shape), (0, 9, 9), mode="nearest")
        values -= values.mean(axis=(1, 2), keepdims=True)
        values -= turn * (values * turn).sum() / (turn**2).sum()
        values *= RMS_UM / np.sqrt(np.mean(values**2))
        fields.append(ShiftField((0.0, 0.0), (50.0, 50.0), values))
    return fields


def places():
    sides = np.arange(160.0, EXTENT_UM - 100, 320)
    return np.stack(np.meshgrid(sides, sides, indexing="ij"), axis=-1).reshape(-1, 2)


def measured(rng, fields, pair, noise_um=2.0):
    tissue = places()
    a, b = (tissue + fields[k].at(tissue) for k in pair)
    return MatchedPlaces(pair, a, b + rng.normal(scale=noise_um, size=b.shape), noise_um)


def pairs_of(n):
    return [(a, b) for a in range(n) for b in (a + 1, a + 2) if b < n]


def relative_error(solution, fields, pair):
    """What is left of a pair's deformation at places of the tissue, RMS along one axis."""
    tissue = places()
    left = [solution.fields[k].at(tissue) - fields[k].at(tissue) for k in pair]
    return float(np.sqrt(np.mean((left[1] - left[0]) ** 2)))


@pytest.mark.parametrize("wrong", [0, 20])
def test_fields_explain_all_pairs_and_do_not_drift(rng, wrong):
    """Tissue of the whole stack is not known, only differences: fields stay as small as planted."""
    n = 7
    fields = planted_fields(rng, n)
    matches = [measured(rng, fields, pair) for pair in pairs_of(n)]
    if wrong:
        for match in matches:
            chosen = rng.choice(len(match.fixed_um), wrong, replace=False)
            signs = rng.choice([-1, 1], (wrong, 2))
            match.moving_um[chosen] += signs * rng.uniform(60, 150, (wrong, 2))
    solution = solve_deformation(
        matches, dict.fromkeys(range(n), CORNERS), step_um=160.0, sigma_um=RMS_UM, length_um=900.0
    )
    left = [relative_error(solution, fields, (k, k + 1)) for k in range(n - 1)]
    assert np.sqrt(np.mean(np.square(left))) < 4
    assert min(solution.before_um.values()) > 30
    if not wrong:
        assert max(solution.after_um.values()) < 4.5
    # Wrong places do not count.
    assert np.sqrt(np.mean(np.square(list(solution.error_um.values())))) < 8
    for field in solution.fields.values():
        assert np.sqrt(np.mean(field.values**2)) < 1.5 * RMS_UM
        sides = [np.arange(m) * 160.0 for m in field.values.shape[1:]]
        away = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1)
        inside = (away <= EXTENT_UM).all(axis=-1)
        values = np.moveaxis(field.values, 0, -1)[inside]
        np.testing.assert_allclose(values.mean(axis=0), 0, atol=0.1 * RMS_UM)
        lever = away[inside] - away[inside].mean(axis=0)
        turn = (lever[:, 0] * values[:, 1] - lever[:, 1] * values[:, 0]).mean()
        assert abs(turn) / (lever**2).sum(axis=1).mean() * EXTENT_UM / 2 < 0.1 * RMS_UM


@pytest.mark.parametrize("share", [0.5, 0.7])
def test_neighbours_match_over_tissue_that_is_part_of_their_slices(rng, share):
    """Seen to fail (10 µm) with fields that have no shift and rotation over their slices."""
    n = 5
    fields = planted_fields(rng, n)
    tissue = (places() < share * EXTENT_UM).all(axis=1)
    matches = []
    for pair in pairs_of(n):
        match = measured(rng, fields, pair, 1.0)
        matches.append(
            replace(match, fixed_um=match.fixed_um[tissue], moving_um=match.moving_um[tissue])
        )
    found = solve_deformation(
        matches, dict.fromkeys(range(n), CORNERS), step_um=320.0, sigma_um=RMS_UM, length_um=900.0
    )
    assert max(found.after_um.values()) < 4


def wave(rng, n):
    """Slices compressed and stretched in turn, along a direction of their own."""
    sides = np.arange(0, EXTENT_UM + 1, 50)
    fields = []
    for angle, phase in rng.uniform(0, 2 * np.pi, (n, 2)):
        along = sides[:, None] * np.cos(angle) + sides[None] * np.sin(angle)
        size = RMS_UM * np.sin(2 * np.pi * along / 2600 + phase)
        fields.append(ShiftField((0.0, 0.0), (50.0, 50.0), np.multiply.outer((1.0, -1.0), size)))
    return fields


def folds(rng, n):
    """Slices bent along a line, on either side of which they are even."""
    sides = np.arange(0, EXTENT_UM + 1, 50)
    fields = []
    for at in rng.uniform(0.3, 0.7, n) * EXTENT_UM:
        size = np.maximum(sides - at, 0) * 0.03 + 0 * sides[:, None]
        fields.append(ShiftField((0.0, 0.0), (50.0, 50.0), np.stack([size, size.T])))
    return fields


@pytest.mark.parametrize("noise_um", [1.0, 3.0, 6.0])
@pytest.mark.parametrize("law", [planted_fields, wave, folds])
def test_stated_error_is_that_of_places_that_were_not_measured(rng, law, noise_um):
    """Whatever the deformation is, and the noise: residuals say 0.6 to 5 times as much."""
    n = 5
    fields = law(rng, n)
    matches = [measured(rng, fields, pair, noise_um) for pair in pairs_of(n)]
    found = solve_deformation(
        matches, dict.fromkeys(range(n), CORNERS), step_um=320.0, sigma_um=RMS_UM, length_um=900.0
    )
    between = places()[:-1] + 160
    true, stated = [], []
    for a, b in pairs_of(n):
        left = [found.fields[k].at(between) - fields[k].at(between) for k in (a, b)]
        error = left[1] - left[0]
        # Shift and rotation of the fields are those of the slices.
        away = between - between.mean(axis=0)
        turn = np.stack([-away[:, 1], away[:, 0]], axis=1)
        error = error - error.mean(axis=0)
        error -= turn * (error * turn).sum() / (turn**2).sum()
        true.append(np.mean(error**2))
        stated.append(found.error_um[a, b] ** 2)
    assert 0.6 < np.sqrt(np.mean(stated) / np.mean(true)) < 2.0


def test_without_pairs_there_are_no_fields():
    solution = solve_deformation([], {}, step_um=100.0, sigma_um=1.0, length_um=100.0)
    assert not solution.fields and not solution.after_um and not solution.error_um


def turned_stack(rng):
    """Slices that are turned and shifted, deformed in common positions, and exact pairs of them."""
    n, turns, pivot = 4, [0.0, 1.5, -2.0, 0.8], np.full(2, EXTENT_UM / 2)
    shifts = rng.normal(0, 60, (n, 2))
    fields = planted_fields(rng, n)
    slices = [SliceVolume(k, (30, 400, 400), (0.0, 0.0), 0.0, lambda *_: None) for k in range(n)]

    def own(k, common):
        return (common - pivot - shifts[k]) @ rotation_matrix(turns[k]) + pivot

    found = []
    for a, b in pairs_of(n):
        one, other = (own(k, places() + fields[k].at(places())) for k in (a, b))
        centre = own(b, pivot[None])[0]
        lies = own(a, pivot[None])[0]
        parts = PairParts(one, other, 1.0, RMS_UM * np.sqrt(2), 900.0, 320.0, 25.0)
        found.append(
            PairShift(
                a, b, np.array([0.0, *(lies - centre)]), 0.9, 60.0,
                rotation_deg=turns[b] - turns[a], centre_um=tuple(centre), agreement=1.0,
                parts=parts,
            )
        )  # fmt: skip
    return slices, found, fields


def test_model_corrects_deformation_of_rotated_slices_when_enabled(rng):
    slices, pairs, fields = turned_stack(rng)
    given = (slices, pairs, (10.0, 10.0, 10.0), 100.0)
    plain = solve_registration(*given, RegisterParams(elastic=False))
    model = solve_registration(*given, RegisterParams())
    assert plain.deformation is None and not plain.fields_um
    # Without the step, what it would correct is a finding.
    assert plain.pairs[0]["deformation_um"] == 25
    found = measure("register_slices", plain)
    assert found is not None and found.metrics["deformation_seen"].status == "error"
    assert "deformation_seen" not in measure("register_slices", model).metrics
    # Shift and turn are what they were.
    assert replace(model, deformation=None) == plain
    before, after = (
        np.array([pair[name] for pair in model.deformation["pairs"]])
        for name in ("before_um", "after_um")
    )
    # The prior is as wide as the fields, and pairs of any draw lose most of theirs.
    assert (after < before / 4).all()
    assert np.mean(after**2) < np.mean(before**2) / 36
    assert sorted(model.fields_um) == [0, 1, 2, 3]
    wrong = {**model.deformation, "fields_um": {"2": [[[0.0, float("nan")]], [[0.0, 0.0]]]}}
    with pytest.raises(ValueError, match="deformation of slice 2"):
        SliceRegistration(1, (1.0,) * 3, 1.0, [], [], deformation=wrong)


def test_slices_that_are_not_deformed_are_not_bent(rng):
    """Seen to fail: fields of half a micrometre moved every pixel of all slices."""
    slices, pairs, _ = turned_stack(rng)
    for rest_um, bent in ((2.9, False), (3.1, True)):
        small = [replace(p, parts=replace(p.parts, rest_um=rest_um)) for p in pairs]
        model = solve_registration(slices, small, (10.0, 10.0, 10.0), 100.0, RegisterParams())
        assert (model.deformation is not None) == bent


def test_pairs_that_match_as_a_whole_are_not_deformed(rng):
    """Seen to fail: two of four pairs, across a double cut, bent all slices by their noise."""
    slices, pairs, _ = turned_stack(rng)
    assert len(pairs) > 3
    for n_whole, bent in ((1, True), (len(pairs) // 2 + 1, False)):
        some = [
            replace(p, parts=None if n < n_whole else replace(p.parts, rest_um=3.5))
            for n, p in enumerate(pairs)
        ]
        model = solve_registration(slices, some, (10.0, 10.0, 10.0), 100.0, RegisterParams())
        assert (model.deformation is not None) == bent


def canvas_of(turn_deg):
    field = ShiftField(
        (-100.0, -100.0), (80.0, 80.0), np.random.default_rng(8).uniform(-25, 25, (2, 9, 9))
    )
    shape = (40, 44)
    canvas = common_canvas(
        {0: (0, 0), 1: (5, 2)}, {0: shape, 1: shape}, {0: (0, 0), 1: (13.0, -21)}, (10.0, 10.0),
        0, {1: turn_deg}, (200.0, 210.0), {1: field},
    )  # fmt: skip
    return canvas, shape, field


@pytest.mark.parametrize("turn_deg", [0.0, 6.0])
def test_deformed_slice_is_sampled_at_its_field(xp, rng, turn_deg):
    """As SciPy samples it; whatever the window, with the same bits; laid as interpolated."""
    canvas, shape, field = canvas_of(turn_deg)
    data = rng.random((3, *shape), dtype=np.float32)

    def read(planes, window):
        return xp.asarray(data[(planes, *window)]), None

    whole = (slice(0, canvas.shape[0]), slice(0, canvas.shape[1]))
    given = (shape, canvas.origin_px[1], slice(0, 3))
    how = (canvas.turns[1], canvas.fields[1])
    found, mask = (to_host(a) for a in align_mosaics_3d_from_shifts(read, *given, whole, *how))

    centres = [
        np.arange(n) * 10.0 + 5 + c for n, c in zip(canvas.shape, canvas.corner_um, strict=True)
    ]
    common = np.stack(np.meshgrid(*centres, indexing="ij"), axis=-1).reshape(-1, 2)
    placed = common + field.at(common)
    pivot = np.array([200.0, 210.0])
    own = (placed - pivot - (13.0, -21)) @ rotation_matrix(turn_deg) + pivot - (5, 2)
    where = (own / 10 - 0.5).T
    inside = (where >= 0).all(axis=0) & (np.subtract(shape, 1) > where.T).all(axis=1)
    np.testing.assert_array_equal(mask[0].ravel() > 0, inside)
    for plane, result in zip(data, found, strict=True):
        expected = map_coordinates(plane, where[:, inside], order=1)
        np.testing.assert_allclose(result.ravel()[inside], expected, atol=2e-5)

    window = (slice(7, 31), slice(5, 40))
    part, _ = align_mosaics_3d_from_shifts(read, *given, window, *how)
    np.testing.assert_array_equal(to_host(part), found[(slice(None), *window)])

    placement = canvas.place(1, shape, whole)
    source = xp.asarray(data[(slice(None), *placement.source)])
    out, seen = xp.zeros((3, *canvas.shape), xp.float32), xp.zeros((3, *canvas.shape), xp.uint8)
    lay_slice(out, seen, source, None, placement, np.ones(3, np.float32))
    np.testing.assert_array_equal(to_host(out), found)
    np.testing.assert_array_equal(to_host(seen), mask)
    on_host = interpolate(data[(slice(None), *placement.source)], None, placement)[0]
    np.testing.assert_array_equal(
        to_host(out)[(slice(None), *placement.inner)] * (mask > 0)[(slice(None), *placement.inner)],
        on_host * (mask > 0)[(slice(None), *placement.inner)],
    )


def test_a_slice_without_a_field_is_placed_as_ever():
    given = ({0: (0, 0), 1: (5, 2)}, {0: (9, 9), 1: (9, 9)}, {0: (0, 0), 1: (3, 3)}, (10, 10), 0)
    still = ShiftField((0.0, 0.0), (50.0, 50.0), np.zeros((2, 4, 4)))
    assert common_canvas(*given, fields_um={1: still}) == common_canvas(*given)


def test_uncertain_pairs_weigh_less_and_unmeasured_ones_as_the_others():
    pairs = [PairShift(0, k, np.zeros(3), z_score=60.0, agreement=1.0) for k in (1, 2, 3, 4)]
    whole = relative_trust(pairs, [0.0] * 4, 1.0)
    np.testing.assert_allclose(whole, pairs[0].confidence)
    given = relative_trust(pairs, [0.5, 2.0, 4.0, 0.0], 1.0) / whole
    np.testing.assert_allclose(given, [1, 1.25 / 5, 1.25 / 17, 1.25 / 5])
