"""A raw tile compared with the stated physics, computed here independently."""

from __future__ import annotations

import numpy as np
import pytest

import linumpy.phantom.tile as tile_module
from linumpy.phantom.anatomy import Template
from linumpy.phantom.params import PhantomParams, preset
from linumpy.phantom.simulate import make_scene

from .conftest import Acquisition, micro, visit


def _agarose(**changes: object) -> PhantomParams:
    values = {
        "n_slices": 1, "tiles_x": 1, "tiles_y": 1, "nx": 120, "ny": 120,
        "agarose_amplitude": 150.0, "agarose_mu_per_mm": 2.0,
    }  # fmt: skip
    return preset("small", **{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def uniform(no_brain: Template) -> tuple[PhantomParams, np.ndarray, dict[str, np.ndarray]]:
    """A tile of plain agarose, and per voxel its optical depth and depth below the face."""
    params, seed = _agarose(), 6
    scene, slices = make_scene(params, seed, no_brain)
    raw = visit(params, no_brain, seed)
    k = np.arange(params.nz)[:, None, None]
    optical = k * params.axial_um - scene.focal_um[None]
    corner = slices[0].tiles[0].true_corner_um
    axes = [c + (np.arange(120) + 0.5) * 8.0 for c in corner]
    uneven = scene.face_grid.interpolate(scene.faces[0], axes[0], axes[1])
    below = optical - slices[0].gap_um - uneven[None]
    return params, raw, {"optical": optical, "below": below, "flat": scene.flat_field[None]}


Uniform = tuple[PhantomParams, np.ndarray, dict[str, np.ndarray]]


def test_expected_power_is_the_formula(uniform: Uniform) -> None:
    params, raw, known = uniform
    response = 1 / (1 + ((known["optical"] - params.focus_um) / params.rayleigh_um) ** 2)
    loss = np.exp(-2 * params.agarose_mu_per_mm * known["below"] / 1000)
    power = known["flat"] ** 2 * response * params.agarose_amplitude**2 * loss
    expected = np.where(known["below"] > 0, power, 0) + params.noise_rms**2
    inside = np.abs(known["below"]) > params.axial_um  # the sample that the face crosses is mixed
    ratio = np.where(inside, raw.astype(np.float64) ** 2 / expected, np.nan)
    # Averages over many speckles, along each axis in turn, must be one everywhere.
    assert np.nanmean(ratio) == pytest.approx(1, abs=0.004)
    np.testing.assert_allclose(np.nanmean(ratio, axis=(1, 2)), 1, atol=0.08)
    blocks = np.nanmean(ratio.reshape(140, 8, 15, 8, 15), axis=(0, 2, 4))
    np.testing.assert_allclose(blocks, 1, atol=0.05)


def test_attenuation_is_found_from_the_slope(uniform: Uniform) -> None:
    params, raw, known = uniform
    power = raw.astype(np.float64) ** 2 - params.noise_rms**2
    power *= 1 + ((known["optical"] - params.focus_um) / params.rayleigh_um) ** 2
    edges = np.arange(20, 421, 20)
    index = np.digitize(known["below"], edges)
    means = np.array([power[index == i].mean() for i in range(1, len(edges))])
    slope = np.polyfit(edges[:-1] + 10, np.log(means), 1)[0]
    assert -slope * 1000 / 2 == pytest.approx(params.agarose_mu_per_mm, rel=0.03)


def test_water_is_noise_and_the_face_is_where_it_was_put(uniform: Uniform) -> None:
    params, raw, known = uniform
    water = raw[known["below"] < -params.axial_um].astype(np.float64)
    assert np.mean(water**2) == pytest.approx(params.noise_rms**2, rel=0.01)
    assert water.std() / water.mean() == pytest.approx(0.5227, abs=0.005)
    # Power against depth below the face rises through half its value at zero.
    edges = np.arange(-30.0, 31.0, 1.0)
    index = np.digitize(known["below"], edges)
    power = np.array([np.mean(raw[index == i] ** 2.0) for i in range(1, len(edges))])
    middle = (power[:20].mean() + power[-20:].mean()) / 2
    crossing = np.interp(middle, power[20:40], edges[20:40] + 0.5)
    assert crossing == pytest.approx(0, abs=0.15 * params.axial_um)


def test_flat_field_is_found_in_many_depths(uniform: Uniform) -> None:
    params, raw, known = uniform
    inside = (known["below"] > 10) & (known["below"] < 250)
    power = np.where(inside, raw.astype(np.float64) ** 2 - params.noise_rms**2, 0).sum(axis=0)
    blocks = np.sqrt(power.reshape(6, 20, 6, 20).mean(axis=(1, 3)))
    flat = np.sqrt((known["flat"][0] ** 2).reshape(6, 20, 6, 20).mean(axis=(1, 3)))
    ratio = blocks / flat
    np.testing.assert_allclose(ratio / ratio.mean(), 1, atol=0.06)


def test_visits_of_one_place_correlate_by_the_fixed_share(no_brain: Template) -> None:
    """Of amplitudes |g| with field correlation s, the correlation is close to s² for s = ½."""
    measured = {}
    for share in (0.0, 0.5, 1.0):
        base = _agarose(
            speckle_correlation=share, nx=60, ny=60, noise_rms=0.0, jitter_rms_um=0.0,
            agarose_mu_per_mm=0.0, vignetting_corner=1.0, rayleigh_um=1e6, n_slices=2,
            slice_interval_um=1e-3, thickness_jitter_rms_um=0.0, gap_jitter_rms_um=0.0,
            face_rms_um=0.0, slice_offset_rms_um=0.0, grid_shift_rms_um=0.0,
        )  # fmt: skip
        # A second slice cut a nanometre deeper looks at the same tissue on another visit.
        a, b = (visit(base, no_brain, 3, slice_index=i)[45:].astype(np.float64) for i in (0, 1))
        measured[share] = np.corrcoef(a.ravel() ** 2, b.ravel() ** 2)[0, 1]
    # For intensities |g|² the correlation is exactly s².
    assert measured[0.0] == pytest.approx(0, abs=0.02)
    assert measured[0.5] == pytest.approx(0.25, abs=0.03)
    assert measured[1.0] == pytest.approx(1, abs=0.01)


def test_band_lies_at_the_true_place(tiny: Acquisition) -> None:
    p = tiny.params
    shifts = [s["galvo_shift_px"] for s in tiny.truth["slices"]]
    assert len(set(shifts)) > 1 and all(0 <= s <= p.galvo_drift_max_px for s in shifts)
    for slice_id in (0, 1, 3):
        profile = tiny.raw(slice_id, 1, 1).mean(axis=(0, 2))
        repaired = np.roll(profile, shifts[slice_id])
        band, scan = repaired[p.nx :], repaired[: p.nx]
        assert len(band) == p.n_extra
        assert band.max() < 0.5 * scan.min()
        # In the raw file it starts `shift` A-lines before the end of the scan.
        start = p.nx - shifts[slice_id]
        assert profile[start : start + p.n_extra].max() < 0.5 * scan.min()


def _best_shift(
    fixed: np.ndarray, moving: np.ndarray, guess: np.ndarray, search: int
) -> np.ndarray:
    """Return where `fixed` (a patch) lies in `moving`, by plain normalised correlation."""
    h, w = fixed.shape
    base = np.round(guess).astype(int)
    scores = np.full((2 * search + 1,) * 2, -1.0)
    for i, j in np.ndindex(scores.shape):
        top, left = base[0] + i - search, base[1] + j - search
        if top < 0 or left < 0 or top + h > moving.shape[0] or left + w > moving.shape[1]:
            continue
        patch = moving[top : top + h, left : left + w]
        scores[i, j] = np.corrcoef(fixed.ravel(), patch.ravel())[0, 1]
    i, j = np.unravel_index(np.argmax(scores), scores.shape)
    peak = []
    for line, at in ((scores[:, j], int(i)), (scores[i], int(j))):
        if 0 < at < len(line) - 1:
            a, b, c = line[at - 1 : at + 2]
            peak.append(at + 0.5 * (a - c) / (a - 2 * b + c))
        else:
            peak.append(float(at))
    return base - search + np.array(peak)


def test_neighbours_agree_at_their_true_and_not_at_their_nominal_distance(
    tiny: Acquisition,
) -> None:
    p = tiny.params
    entries = {(t["ix"], t["iy"]): t for t in tiny.truth["slices"][0]["tiles"]}
    from_truth, from_stage = [], []
    for other, patch in (((1, 1), (slice(66, 78), slice(16, 64))),
                         ((0, 2), (slice(16, 64), slice(66, 78)))):  # fmt: skip
        pair = [entries[0, 1], entries[other]]
        corners = np.array([t["true_corner_um"] for t in pair]) / p.pixel_um
        stage = np.array([t["stage_mm"][:2] for t in pair]) * 1000 / p.pixel_um
        a, b = (tiny.tile(0, t["ix"], t["iy"])[28:].mean(axis=0) for t in pair)
        flat = tiny.fields["flat_field"]
        a, b = a / flat, b / flat
        corner = np.array([patch[0].start, patch[1].start])
        found = _best_shift(a[patch], b, corner - (stage[1] - stage[0]), search=10)
        displacement = corner - found
        from_truth.append(displacement - (corners[1] - corners[0]))
        from_stage.append(displacement - (stage[1] - stage[0]))
    assert np.abs(from_truth).max() < 0.5
    assert np.abs(from_stage).max() > 1.5


def test_a_tile_is_the_same_in_one_piece_or_many(
    brain: Template, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = visit(micro(), brain, 1)
    monkeypatch.setattr(tile_module, "_SLAB_VOXELS", 1)
    pieces = visit(micro(), brain, 1)
    np.testing.assert_array_equal(whole, pieces)


def test_tissue_contrast_is_as_stated(tiny: Acquisition) -> None:
    p = tiny.params
    assert 20 * np.log10(p.grey_amplitude / p.noise_rms) == pytest.approx(25, abs=0.5)
    assert 8 < 20 * np.log10(p.agarose_amplitude / p.noise_rms) < 10
    middle = tiny.tile(0, 1, 1)
    assert 60 < middle.mean() < 150  # well over the galvo detector's threshold of 20
