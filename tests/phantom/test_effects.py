"""Effects that presets lack: each does what it says, and the truth records it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from linumpy.phantom.anatomy import Template
from linumpy.phantom.artefacts import Artefact, slice_artefacts
from linumpy.phantom.cutting import FACE_STEP_UM, face_grid, plan_slices, stage_axes
from linumpy.phantom.deformation import deformation_um
from linumpy.phantom.optics import flat_field, own_focus_um, scan_error_um, stripe_gain
from linumpy.phantom.params import PhantomParams, preset
from linumpy.phantom.simulate import make_scene
from linumpy.phantom.tile import Scene, image_tile, tile_power
from tests.phantom.conftest import acquire, micro

SEED = 5


def power(params: PhantomParams, template: Template, **changes: Any) -> np.ndarray:
    """Return the expected power (rows, columns, samples) of the first tile, water as 1."""
    scene, slices = make_scene(params, SEED, template)
    found = tile_power(replace(scene, **changes), slices[0], slices[0].tiles[0], 0, params.ny, 0)
    return np.where(found == 0, 1, found)


def image(scene: Scene, slices: Any, number: int = 0, **moved: Any) -> np.ndarray:
    tile = replace(slices[number].tiles[0], galvo_shift_px=0, **moved)
    return np.concatenate(list(image_tile(scene, slices[number], tile)))


def test_stripes_are_a_gain_of_each_aline(no_brain: Template) -> None:
    params = micro(nx=200, stripe_rms=0.08)
    gain = stripe_gain(params, SEED)
    assert gain.mean() == pytest.approx(1) and gain.std() == pytest.approx(0.08, rel=0.15)
    smooth = flat_field(replace(params, stripe_rms=0.0), SEED)
    striped = flat_field(params, SEED)
    ratio = striped / smooth
    np.testing.assert_allclose(ratio / ratio.mean(), np.repeat(gain[:, None], 26, 1), rtol=1e-9)
    assert striped.mean() == pytest.approx(1)
    # All B-scans of all tiles have it.
    found = power(params, no_brain) / power(replace(params, stripe_rms=0.0), no_brain)
    seen = found[..., 40]
    np.testing.assert_allclose(seen, np.tile(ratio[:, 0] ** 2, (26, 1)), rtol=1e-4)


def test_distorted_scan_sees_what_lies_where_its_alines_are(brain: Template) -> None:
    params = micro(
        scan_distortion_px=2.0, noise_rms=0.0, speckle_correlation=1.0, n_extra=0,
        galvo_drift_max_px=0, focal_peak_um=0.0, vignetting_corner=1.0,
    )  # fmt: skip
    error = scan_error_um(params, SEED)
    assert np.abs(error).max() == pytest.approx(2 * 8.0) and abs(error.mean()) < 1e-9
    # An S: the two halves of the field bend opposite ways.
    half = params.nx // 2
    assert error[:half].mean() * error[half:].mean() < 0
    scene, slices = make_scene(params, SEED, brain)
    bent = image(scene, slices)
    straight = replace(scene, scan_um=np.zeros(params.nx))
    corner = slices[0].tiles[0].true_corner_um
    for column in (3, 14, 26):
        moved = (corner[0] + error[column], corner[1])
        expected = image(straight, slices, true_corner_um=moved)[:, column]
        np.testing.assert_allclose(bent[:, column], expected, rtol=2e-3, atol=0.05)


@pytest.mark.parametrize("shape", ["gaussian", "sinc"])
def test_rolloff_is_six_decibel_where_stated(no_brain: Template, shape: str) -> None:
    params = micro(rolloff_6db_um=180.0, rolloff_shape=shape)
    ratio = power(params, no_brain) / power(replace(params, rolloff_6db_um=0.0), no_brain)
    profile = ratio[3, 3]
    assert profile[30] == pytest.approx(10**-0.6, rel=2e-3)
    assert np.all(np.diff(profile[20:45]) < 0)
    # Half way, a Gaussian has lost a quarter of the decibels.
    expected = 10**-0.15 if shape == "gaussian" else np.sinc(0.6025 / 2) ** 2
    assert profile[15:16] == pytest.approx(expected, rel=2e-3)


def test_own_focus_moves_the_confocal_response_alone(no_brain: Template) -> None:
    params = micro(own_focus_peak_um=40.0, rayleigh_um=80.0, focus_um=150.0)
    own = own_focus_um(params, SEED)
    assert np.abs(own).max() == pytest.approx(40) and abs(own.mean()) < 1e-9
    ratio = power(params, no_brain) / power(replace(params, own_focus_peak_um=0.0), no_brain)
    scene, _ = make_scene(params, SEED, no_brain)
    k = 25
    depth = k * params.axial_um - scene.focal_um.T - params.focus_um
    expected = (1 + (depth / 80) ** 2) / (1 + ((depth - own.T) / 80) ** 2)
    np.testing.assert_allclose(ratio[..., k], expected, rtol=1e-4)


def test_backlash_shifts_rows_that_run_back() -> None:
    base = micro(tiles_x=4, tiles_y=3)
    plans = [plan_slices(p, SEED)[0] for p in (base, replace(base, backlash_um=20.0))]
    corners = [np.array([t.true_corner_um for t in p.tiles]).reshape(4, 3, 2) for p in plans]
    shift = corners[1] - corners[0]
    along = int(np.abs(shift).sum(axis=(0, 1)).argmax())
    assert np.all(np.abs(shift[..., 1 - along]) < 1e-9)
    rows = np.moveaxis(shift[..., along], 1 - along, 0)
    assert np.ptp(rows, axis=1).max() < 1e-9
    assert np.abs(np.diff(rows[:, 0])) == pytest.approx(20.0)
    assert np.diff(rows[:2, 0])[0] == -np.diff(rows[1:3, 0])[0]
    assert abs(shift.mean()) < 1e-9


def test_stage_axes_scale_rotate_and_shear() -> None:
    params = micro(
        tiles_x=4, tiles_y=4, jitter_rms_um=0.0, stage_scale=0.01, stage_rotation_deg=0.5,
        stage_shear_deg=0.3, stage_anisotropy=0.002,
    )  # fmt: skip
    tiles = plan_slices(params, SEED)[0].tiles
    stage = 1000 * np.array([t.stage_mm[:2] for t in tiles])
    true = np.array([t.true_corner_um for t in tiles])
    terms = np.column_stack([np.ones(len(stage)), stage])
    solved, residual, *_ = np.linalg.lstsq(terms, true, rcond=None)
    matrix = solved[1:].T
    assert residual.max() < 1e-6
    np.testing.assert_allclose(matrix, stage_axes(params, SEED), atol=1e-6)
    scale = np.hypot(*matrix) - 1
    assert abs(scale.mean()) == pytest.approx(0.01) and abs(np.diff(scale)[0]) == pytest.approx(
        0.002
    )
    angles = np.rad2deg(np.arctan2([matrix[1, 0], -matrix[0, 1]], np.diag(matrix)))
    assert abs(angles[0]) == pytest.approx(0.5)
    assert abs(angles[1] - angles[0]) == pytest.approx(0.3)


def test_deformation_is_smooth_without_shift_and_rotation() -> None:
    params = preset("small", deformation_rms_um=30.0, deformation_scale_um=1500.0)
    grid = face_grid(params)
    first, second = (
        origin + FACE_STEP_UM * np.arange(n)
        for origin, n in zip(grid.origin_um, grid.shape, strict=True)
    )
    inside = ((first >= 0) & (first <= 4080))[:, None] & ((second >= 0) & (second <= 4080))
    fields = [deformation_um(params, SEED, slice_id) for slice_id in (0, 1)]
    for field in fields:
        assert field is not None
        seen = field[:, inside]
        assert np.sqrt(np.mean(seen**2)) == pytest.approx(30, rel=1e-6)
        assert np.abs(seen.mean(axis=1)).max() < 1e-9
        at1, at2 = (np.broadcast_to(a, inside.shape)[inside] for a in (first[:, None], second))
        turning = (seen[1] * (at1 - at1.mean()) - seen[0] * (at2 - at2.mean())).sum()
        assert abs(turning) < 1e-6 * np.abs(seen).sum() * 4000
        # Strain stays far below one: tissue does not fold.
        assert np.abs(np.diff(field, axis=1)).max() / FACE_STEP_UM < 0.25
    assert fields[0] is not None and fields[1] is not None
    assert abs(np.corrcoef(fields[0].ravel(), fields[1].ravel())[0, 1]) < 0.5


def test_deformed_slice_shows_the_tissue_that_moved_there(brain: Template) -> None:
    """A field that is constant is a shift of the tile, for tissue and speckle."""
    params = micro(
        deformation_rms_um=10.0, noise_rms=0.0, speckle_correlation=1.0, n_extra=0,
        galvo_drift_max_px=0, face_rms_um=0.0,
    )  # fmt: skip
    scene, slices = make_scene(params, SEED, brain)
    shape = scene.face_grid.shape
    constant = np.stack([np.full(shape, 13.0), np.full(shape, -6.0)])
    bent = image(replace(scene, deformation_um={0: constant}), slices)
    corner = slices[0].tiles[0].true_corner_um
    moved = (corner[0] + 13.0, corner[1] - 6.0)
    expected = image(replace(scene, deformation_um={}), slices, true_corner_um=moved)
    np.testing.assert_allclose(bent, expected, rtol=2e-3, atol=0.05)
    real = image(scene, slices)
    assert (
        np.corrcoef(real.ravel(), image(replace(scene, deformation_um={}), slices).ravel())[0, 1]
        < 0.9
    )


def test_speckle_of_slices_correlates_as_stated(no_brain: Template) -> None:
    """Two slices cut at one depth see one field by its share, fresh speckle left out."""
    params = micro(
        nx=60, ny=60, noise_rms=0.0, n_extra=0, galvo_drift_max_px=0, thickness_jitter_rms_um=0.0,
        slice_offset_rms_um=0.0, jitter_rms_um=0.0, face_rms_um=0.0, grid_shift_rms_um=0.0,
        gap_jitter_rms_um=0.0, speckle_correlation=1.0,
    )  # fmt: skip
    found = {}
    for share in (1.0, 0.5, 0.0):
        scene, slices = make_scene(replace(params, speckle_slice_correlation=share), SEED, no_brain)
        same = (slices[0], replace(slices[1], face_um=slices[0].face_um))
        intensity = [image(scene, same, n)[..., 20:] ** 2 for n in (0, 1)]
        profile = [i.mean(axis=(0, 1)) for i in intensity]
        found[share] = np.corrcoef(
            *[(i / p).ravel() for i, p in zip(intensity, profile, strict=True)]
        )[0, 1]
    # Intensities correlate by the square of what amplitudes do.
    assert found[1.0] > 0.999
    assert found[0.5] == pytest.approx(0.25, abs=0.07)
    assert found[0.0] == pytest.approx(0, abs=0.07)


def test_artefacts_are_poisson_of_the_stated_mean() -> None:
    params = preset("small", debris_per_slice=3.0, tears_per_slice=0.5)
    drawn = [slice_artefacts(params, 1, slice_id) for slice_id in range(400)]
    for kind, mean in (("debris", 3.0), ("bubble", 0.0), ("tear", 0.5)):
        counts = [sum(a.kind == kind for a in each) for each in drawn]
        assert np.mean(counts) == pytest.approx(mean, abs=3 * np.sqrt(mean / 400) + 1e-9)


def test_debris_is_bright_and_throws_a_shadow(no_brain: Template) -> None:
    params = micro(face_rms_um=0.0)
    clean = power(params, no_brain, artefacts={0: ()})
    debris = Artefact("debris", (130.0, 110.0), 60.0, amplitude=4.0, transmission=0.1)
    dirty = power(params, no_brain, artefacts={0: (debris,)})
    scene, slices = make_scene(params, SEED, no_brain)
    corner = slices[0].tiles[0].true_corner_um
    column, row = (int((c - k) / 8) for c, k in zip(debris.centre_um, corner, strict=True))
    shadow = dirty[..., 40] / clean[..., 40]
    assert shadow[row, column] == pytest.approx(0.1, rel=1e-3)
    outside = np.hypot(*np.ogrid[-row : 26 - row, -column : 30 - column]) * 8 > 90
    np.testing.assert_allclose(shadow[outside], 1, rtol=1e-6)
    face = int((slices[0].gap_um + scene.focal_um[column, row]) / params.axial_um)
    assert dirty[row, column, face - 4 : face + 1].max() > 10 * params.grey_amplitude**2 * 0.5


def test_bubble_hides_what_lies_below_and_tear_is_empty(no_brain: Template) -> None:
    params = micro(face_rms_um=0.0)
    clean = power(params, no_brain, artefacts={0: ()})
    bubble = Artefact("bubble", (130.0, 110.0), 60.0, 0.0, 0.0, 0.0, 30.0, 0.02, 0.5)
    tear = Artefact("tear", (130.0, 110.0), 20.0, angle_deg=90.0, length_um=5000.0)
    under = power(params, no_brain, artefacts={0: (bubble,)})
    torn = power(params, no_brain, artefacts={0: (tear,)})
    _, slices = make_scene(params, SEED, no_brain)
    corner = slices[0].tiles[0].true_corner_um
    column, row = (int((c - k) / 8) for c, k in zip(bubble.centre_um, corner, strict=True))
    assert under[row, column, 45] / clean[row, column, 45] == pytest.approx(0.02, rel=1e-3)
    top = under[row, column].argmax()
    assert top * params.axial_um < slices[0].gap_um - 10
    # A tear along axis 2: all rows lose its columns, at every depth.
    assert np.all(torn[:, column] == 1) and np.all(torn[:, column + 5] == clean[:, column + 5])


def test_truth_records_every_effect(tmp_path: Any, brain: Template) -> None:
    from linumpy.quality.truth import load_truth

    params = micro(
        stripe_rms=0.05, scan_distortion_px=1.5, rolloff_6db_um=400.0, own_focus_peak_um=20.0,
        deformation_rms_um=20.0, debris_per_slice=3.0, tears_per_slice=3.0, stage_scale=0.01,
    )  # fmt: skip
    found = acquire(tmp_path / "a", params, SEED, template=brain)
    np.testing.assert_allclose(found.fields["flat_field"], flat_field(params, SEED))
    np.testing.assert_allclose(found.fields["scan_um"], scan_error_um(params, SEED))
    np.testing.assert_allclose(found.fields["own_focus_um"], own_focus_um(params, SEED))
    assert found.fields["rolloff"].shape == (params.nz,)
    assert found.truth["stage_axes"] == stage_axes(params, SEED).tolist()
    known = [a["kind"] for s in found.truth["slices"] for a in s["artefacts"]]
    expected = [a.kind for i in range(2) for a in slice_artefacts(params, SEED, i)]
    assert known == expected and len(known) > 0
    truth = load_truth(tmp_path / "a" / "truth")
    for slice_id in range(2):
        drawn = slice_artefacts(params, SEED, slice_id)
        points = np.random.default_rng(1).uniform(-50, 500, (2000, 2))
        for known_one, artefact in zip(truth.slices[slice_id].artefacts, drawn, strict=True):
            inside = artefact.cover(*points.T) > 0.5
            np.testing.assert_array_equal(known_one.distance_um(points) < 0, inside)
    points = np.array([[100.0, 150.0], [333.0, 20.0]])
    field = deformation_um(params, SEED, 1)
    assert field is not None
    moved = [face_grid(params).interpolate_each(part, *points.T) for part in field]
    np.testing.assert_allclose(
        truth.slices[1].tissue_um(points), points + np.stack(moved, axis=-1), atol=1e-3
    )
