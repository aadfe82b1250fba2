"""Defects of an acquisition: rotated slices, tilted cuts, dark tiles, wrong headers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from linumpy.phantom.anatomy import Template
from linumpy.phantom.cutting import (
    SlicePlan,
    face_grid,
    face_map_um,
    face_unevenness_um,
    plan_slices,
)
from linumpy.phantom.params import preset
from linumpy.phantom.simulate import make_scene
from linumpy.phantom.tile import image_tile, tile_power

from .conftest import acquire, micro, visit


def _corners(plan: SlicePlan) -> np.ndarray:
    """Return the tiles' block positions as complex numbers, axis 1 + i axis 2."""
    return np.array([complex(*t.true_corner_um) for t in plan.tiles])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_slice_rotates_about_the_middle_of_the_mosaic(seed: int) -> None:
    params = preset("small", slice_rotation_rms_deg=2.0)
    pivot = complex(*params.mosaic_um) / 2
    straight = plan_slices(preset("small"), seed)
    turned = plan_slices(params, seed)
    assert np.abs([p.rotation_deg for p in turned]).max() > 0.5
    for plain, plan in zip(straight, turned, strict=True):
        assert plain.rotation_deg == 0
        assert plan.offset_um == plain.offset_um
        assert [t.stage_mm for t in plan.tiles] == [t.stage_mm for t in plain.tiles]
        offset = complex(*plan.offset_um)
        # Multiplication by exp(iα) turns axis 1 (real) towards axis 2 (imaginary).
        factor = np.exp(1j * np.deg2rad(plan.rotation_deg))
        expected = (_corners(plain) - offset - pivot) * factor + pivot + offset
        np.testing.assert_allclose(_corners(plan), expected, atol=1e-6)


def test_rotations_have_the_stated_size() -> None:
    plans = plan_slices(preset("tiny", n_slices=300, slice_rotation_rms_deg=0.5), 4)
    turns = np.array([p.rotation_deg for p in plans])
    assert np.sqrt(np.mean(turns**2)) == pytest.approx(0.5, rel=0.12)
    assert abs(turns.mean()) < 0.1


def _calm(**changes: object) -> dict[str, object]:
    """Return quantities of an acquisition whose tiles show the fixed speckle and nothing else."""
    return {
        "n_slices": 1, "speckle_correlation": 1.0, "noise_rms": 0.0, "jitter_rms_um": 0.0,
        "vignetting_corner": 1.0, "focal_peak_um": 0.0, "face_rms_um": 0.0,
        "grid_shift_rms_um": 0.0, "agarose_amplitude": 100.0, "nx": 40, "ny": 40,
        "overlap_fraction": 0.5, **changes,
    }  # fmt: skip


def test_tiles_of_a_rotated_slice_agree_where_they_overlap(no_brain: Template) -> None:
    """Speckle included: both look at the same points of the block."""
    params = micro(**_calm(slice_rotation_rms_deg=8.0))
    _, slices = make_scene(params, 5, no_brain)
    assert abs(slices[0].rotation_deg) > 1
    first, beside, below = (visit(params, no_brain, 5, tile_index=i) for i in (0, 2, 1))
    scale = first.std()
    np.testing.assert_allclose(first[:, 20:], beside[:, :20], atol=2e-3 * scale)
    np.testing.assert_allclose(first[:, :, 20:], below[:, :, :20], atol=2e-3 * scale)


def test_rotated_tile_shows_the_block_at_its_rotated_positions(no_brain: Template) -> None:
    """Each A-line is what a tile without rotation shows that has its first A-line there."""
    turned = micro(**_calm(slice_rotation_rms_deg=8.0, cut_tilt_um=100.0, tiles_x=1, tiles_y=1))
    image = visit(turned, no_brain, 2)
    _, slices = make_scene(turned, 2, no_brain)
    angle = np.deg2rad(slices[0].rotation_deg)
    corner = np.array(slices[0].tiles[0].true_corner_um)
    straight = micro(**_calm(cut_tilt_um=100.0, tiles_x=1, tiles_y=1))
    scene, plans = make_scene(straight, 2, no_brain)
    rng = np.random.default_rng(0)
    for i, j in rng.integers(0, 40, (4, 2)):
        d1, d2 = (i + 0.5) * 8.0, (j + 0.5) * 8.0
        centre = corner + [
            np.cos(angle) * d1 - np.sin(angle) * d2,
            np.sin(angle) * d1 + np.cos(angle) * d2,
        ]
        tile = replace(
            plans[0].tiles[0], true_corner_um=(float(centre[0] - 4), float(centre[1] - 4))
        )
        raw = np.concatenate(list(image_tile(scene, plans[0], tile))).transpose(2, 1, 0)
        line = np.roll(raw, tile.galvo_shift_px, axis=1)[:, 0, 0]
        np.testing.assert_allclose(image[:, i, j], line, atol=2e-3 * image.std())


def test_anatomy_rotates_with_the_slice(brain: Template) -> None:
    """The expected power is that of the block at the turned positions, tissue and face."""
    params = preset("tiny", n_slices=1, slice_rotation_rms_deg=5.0, texture_rms=0.18)
    scene, slices = make_scene(params, 3, brain)
    plan = slices[0]
    assert abs(plan.rotation_deg) > 1
    power = tile_power(scene, plan, plan.tiles[4], 20, 10, 60)
    # Samples 60 and deeper are below the face: all but a, h and the loss is known.
    tile = plan.tiles[4]
    angle = np.deg2rad(plan.rotation_deg)
    for row, column in ((0, 3), (9, 77), (4, 40)):
        d1, d2 = (column + 0.5) * 8.0, (20 + row + 0.5) * 8.0
        at1 = tile.true_corner_um[0] + np.cos(angle) * d1 - np.sin(angle) * d2
        at2 = tile.true_corner_um[1] + np.sin(angle) * d1 + np.cos(angle) * d2
        optical = np.arange(60, params.nz) * 6.0 - scene.focal_um[column, 20 + row]
        depth = plan.face_um + optical - plan.gap_um
        uneven = scene.face_grid.interpolate(
            scene.faces[0], np.array([at1]), np.array([at2])
        ).item()
        fine = np.arange(plan.face_um + uneven, depth[-1], 0.5)
        mu = scene.anatomy.properties(np.array([at2]), np.array([at1]), fine).mu_per_mm[0, 0]
        loss = np.interp(depth, fine + 0.25, np.cumsum(mu) * 0.5 / 1000)
        found = scene.anatomy.properties(np.array([at2]), np.array([at1]), depth).power[0, 0]
        response = 1 / (1 + ((optical - params.focus_um) / params.rayleigh_um) ** 2)
        flat = scene.flat_field[column, 20 + row]
        expected = flat**2 * response * found * np.exp(-2 * loss)
        np.testing.assert_allclose(power[row, column], expected, rtol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_cuts_fall_alike_across_the_mosaic(seed: int) -> None:
    params = preset("hard", cut_tilt_jitter_rms_um=0.0)
    grid = face_grid(params)
    falls = []
    for slice_id in (0, 4):
        face = face_map_um(params, seed, slice_id)
        plane = face - face_unevenness_um(params, seed, slice_id)
        middle = [np.array([side / 2]) for side in params.mosaic_um]
        assert grid.interpolate(plane, *middle).item() == pytest.approx(0, abs=1e-3)
        corners = [
            grid.interpolate(plane, np.array([a]), np.array([b])).item()
            for a in (0.0, params.mosaic_um[0])
            for b in (0.0, params.mosaic_um[1])
        ]
        assert np.ptp(corners) == pytest.approx(180, abs=0.1)
        falls.append((corners[2] - corners[0], corners[1] - corners[0]))
    np.testing.assert_allclose(falls[0], falls[1], atol=1e-3)
    # What the truth says of it.
    np.testing.assert_allclose(plan_slices(params, seed)[4].tilt_um, falls[1], atol=1e-2)
    wobbly = [p.tilt_um for p in plan_slices(preset("hard", n_slices=200), seed)]
    assert np.std(wobbly, axis=0) == pytest.approx(10, rel=0.25)


def test_dark_tiles_and_bad_slices_have_little_signal(no_brain: Template) -> None:
    values = {"n_slices": 2, "agarose_amplitude": 200.0, "noise_rms": 1.0}
    plain = micro(**values)
    dark = micro(**values, dark_tile_fraction=1.0, bad_slices=(1,), dark_amplitude=0.1)
    for slice_index, gain in ((0, 0.1), (1, 0.1 * dark.bad_amplitude)):
        usual = visit(plain, no_brain, 1, slice_index=slice_index)[25:].astype(float)
        dimmed = visit(dark, no_brain, 1, slice_index=slice_index)[25:].astype(float)
        power = (np.mean(dimmed**2) - 1) / (np.mean(usual**2) - 1)
        assert np.sqrt(power) == pytest.approx(gain, rel=0.05)
    plans = plan_slices(preset("small", n_slices=60, dark_tile_fraction=0.1), 0)
    assert np.mean([t.dark for s in plans for t in s.tiles]) == pytest.approx(0.1, abs=0.03)
    assert all(t.present for s in plans for t in s.tiles)


@pytest.mark.parametrize("axes", ["+x,+y", "-y,+x"])
def test_a_glitch_is_in_the_header_and_nowhere_else(axes: str) -> None:
    values = {"stage_to_array": axes, "stage_origin_x_mm": 3.0, "stage_origin_y_mm": -7.0}
    plain = plan_slices(preset("small", **values), 2)
    params = preset("small", **values, glitch_slices=(3,), glitch_mm=1.5)
    plans = plan_slices(params, 2)
    for a, b in zip(plain, plans, strict=True):
        np.testing.assert_array_equal(_corners(a), _corners(b))
        assert (a.slice_id == 3) == (b.glitch_mm != (0.0, 0.0))
        moved = np.array([t.stage_mm for t in b.tiles]) - [t.stage_mm for t in a.tiles]
        along = moved[:, :2] if axes == "+x,+y" else moved[:, 1::-1] * [-1, 1]
        np.testing.assert_allclose(along, np.tile(b.glitch_mm, (16, 1)), atol=1.1e-4)
        assert np.all(moved[:, 2] == 0)
    assert np.hypot(*plans[3].glitch_mm) == pytest.approx(1.5)


def test_band_drifts_from_tile_to_tile_by_the_truth(tmp_path: Path, no_brain: Template) -> None:
    params = micro(
        n_slices=1, tiles_x=3, tiles_y=3, galvo_drift_per_tile_px=2.0, agarose_amplitude=150.0
    )
    found = acquire(tmp_path / "out", params, 3, template=no_brain)
    tiles = found.truth["slices"][0]["tiles"]
    shifts = [t["galvo_shift_px"] for t in tiles]
    assert shifts[0] == found.truth["slices"][0]["galvo_shift_px"]
    steps = np.unwrap(shifts, period=params.nx + params.n_extra)
    assert np.ptp(steps) >= 8 and np.ptp(np.diff(steps)) <= 1
    for tile in tiles:
        profile = found.raw(0, tile["ix"], tile["iy"])[25:].mean(axis=(0, 2))
        repaired = np.roll(profile, tile["galvo_shift_px"])
        assert repaired[params.nx :].max() < 0.5 * repaired[: params.nx].min()


def test_old_quantities_draw_what_they_did() -> None:
    """None of the defects moves a number of an acquisition that does not have it."""
    plain = plan_slices(preset("small"), 3)
    other = plan_slices(
        preset(
            "small", slice_rotation_rms_deg=1.0, cut_tilt_um=50.0, glitch_slices=(1,),
            dark_tile_fraction=0.5, bad_slices=(2,), galvo_drift_per_tile_px=1.0,
        ),
        3,
    )  # fmt: skip
    for a, b in zip(plain, other, strict=True):
        assert (a.face_um, a.gap_um, a.offset_um) == (b.face_um, b.gap_um, b.offset_um)
        assert a.galvo_shift_px == b.galvo_shift_px == b.tiles[0].galvo_shift_px
        assert {t.galvo_shift_px for t in a.tiles} == {a.galvo_shift_px}
        assert a.tilt_um == (0.0, 0.0) and not any(t.dark for t in a.tiles)
