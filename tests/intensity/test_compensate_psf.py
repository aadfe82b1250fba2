"""The axial response: focus, Rayleigh length and attenuation told apart, on simulated speckle."""

import numpy as np
import pytest

from linumpy.core.device import to_host
from linumpy.core.errors import InputError
from linumpy.intensity import compensate_psf_profile
from linumpy.intensity.compensate_psf import (
    MIN_RESPONSE,
    cell_means,
    compensate_psf,
    compensate_psf_from_model,
    compensate_psf_model_free,
)
from linumpy.intensity.compensate_psf_confocal import standing_out

from .confocal import confocal_response

VOXEL_UM = (10.0, 10.0, 10.0)
N_PLANES = 64
NOISE = 8.0
AGAROSE_MU = 0.5


def true_response(focus, rayleigh, rolloff_um=np.inf):
    depth = (np.arange(N_PLANES) + 0.5) * VOXEL_UM[0]
    return confocal_response(depth, focus, rayleigh) * 4 ** -((depth / rolloff_um) ** 2)


def simulated(
    rng,
    focus=260.0,
    rayleigh=400.0,
    *,
    n_tiles=10,
    agarose=0.6,
    tilt_px=0.0,
    light=1.0,
    top=120.0,
    rolloff_um=np.inf,
    agarose_amplitude=40.0,
    tissue_mu=1.8,
    noise=NOISE,
):
    """Return tiles of agarose with tissue at one side, from speckle and noise."""
    depth = (np.arange(N_PLANES) + 0.5) * VOXEL_UM[0]
    h = true_response(focus, rayleigh, rolloff_um)[:, None, None]
    side = 96
    across = np.arange(side) / side
    tiles = []
    for n in range(n_tiles):
        face = top + 10 * (tilt_px * (across[:, None] + n / n_tiles) + np.zeros((side, side)))
        below = np.maximum(depth[:, None, None] - face, 0)
        is_agarose = np.broadcast_to(across < agarose, (side, side))
        mu, level = (
            np.where(is_agarose, AGAROSE_MU, tissue_mu),
            np.where(is_agarose, agarose_amplitude, 260.0) * light,
        )
        power = level**2 * h * np.exp(-2e-3 * mu * below) * (depth[:, None, None] > face)
        field = rng.normal(size=(2, *power.shape)) * np.sqrt(power)
        field += np.reshape(noise, (-1, 1, 1)) * rng.normal(size=field.shape)
        tiles.append(np.sqrt((field**2).sum(axis=0) / 2).astype(np.float32))
    return tiles


def cells_of(tiles):
    return [cell_means(tile, None, 8) for tile in tiles]


def test_noise_that_falls_with_depth_is_not_taken_from_deep_light(rng):
    """As near the reference arm's zero. Seen to fail (61 % off, 8 % stated) with that of water."""
    excess = 1 + 4 * np.exp(-np.arange(N_PLANES) / 16)
    model = compensate_psf_from_model(cells_of(simulated(rng, noise=NOISE * excess)), VOXEL_UM)
    assert model.noise_excess > 1.1
    error = np.log(model.response / true_response(260.0, 400.0))[16:48].std()
    assert error < 0.2 and error < 2 * model.error_percent / 100
    # Even noise, noise that grows, and first planes without any.
    dark_start = np.where(np.arange(N_PLANES) < 6, 0.3, 1.0)
    for even in (1.0, 1 + np.arange(N_PLANES) / N_PLANES, dark_start):
        noise = NOISE * even * np.ones(N_PLANES)
        model = compensate_psf_from_model(cells_of(simulated(rng, noise=noise)), VOXEL_UM)
        assert model.noise_excess == 1


def test_what_no_confocal_response_describes_is_an_error(rng, monkeypatch):
    """Seen to fail (8 to 9 % stated, 29 to 32 % of misfit) with the errors of the fit alone."""
    monkeypatch.setattr(compensate_psf_profile, "_EVEN_NOISE", 0.0)
    excess = 1 + 4 * np.exp(-np.arange(N_PLANES) / 16)
    model = compensate_psf_from_model(cells_of(simulated(rng, noise=NOISE * excess)), VOXEL_UM)
    assert model.residual_percent > 15
    assert model.error_percent > 0.8 * model.residual_percent


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", [(9, 40, 24), (3, 30, 45)])
def test_cells_are_means(xp, rng, masked, shape):
    tile = rng.random(shape, dtype=np.float32)
    valid = rng.random(shape) < 0.6
    rows, columns = shape[1] // 8, shape[2] // 8
    expected = np.empty((shape[0], rows, columns))
    for z, i, j in np.ndindex(*expected.shape):
        window = (z, slice(8 * i, 8 * i + 8), slice(8 * j, 8 * j + 8))
        known = valid[window] if masked else np.ones((8, 8), bool)
        expected[z, i, j] = tile[window][known].mean() if 2 * known.sum() >= 64 else np.nan
    data = xp.asarray(tile * valid if masked else tile)
    mask = xp.asarray(valid.astype(np.uint8)) if masked else None
    found = to_host(cell_means(data, mask, 8))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_planes_are_divided_by_the_root_of_the_response(xp, rng):
    tile = rng.random((5, 4, 3), dtype=np.float32)
    response = rng.uniform(0.1, 1, 5)
    found = to_host(compensate_psf(xp.asarray(tile), response))
    np.testing.assert_allclose(found, tile / np.sqrt(response)[:, None, None], rtol=1e-6)


@pytest.mark.parametrize(
    ("focus", "rayleigh", "tilt_px"),
    [(260, 400, 0), (150, 250, 0), (420, 400, 0), (260, 400, 9)],
)
def test_the_model_is_found(rng, focus, rayleigh, tilt_px):
    """Also where the cut is tilted by 180 um, and A-lines of agarose begin at other planes."""
    model = compensate_psf_from_model(
        cells_of(simulated(rng, focus, rayleigh, tilt_px=tilt_px)), VOXEL_UM
    )
    assert model.medium == "agarose" and model.n_tiles == 10
    assert abs(model.focus_um - focus) < 20
    assert abs(model.rayleigh_um / rayleigh - 1) < 0.06
    assert abs(model.agarose_mu_per_mm - AGAROSE_MU) < 0.12
    assert abs(model.noise_amplitude / (NOISE * np.sqrt(np.pi / 4)) - 1) < 0.02
    assert model.residual_percent < 1.5
    np.testing.assert_allclose(
        model.response / model.response.max(),
        (h := confocal_response((np.arange(N_PLANES) + 0.5) * 10, focus, rayleigh)) / h.max(),
        rtol=0.15,
    )


def error_percent(model, true):
    """RMS error of ln response where the profile was seen, without its level."""
    seen = model.profile > 0
    error = np.log(model.response / true)[seen]
    return 100 * float(np.std(error))


@pytest.mark.parametrize(
    ("rolloff_um", "tilt_px", "within", "within_percent"),
    [
        (800, 9, 0.1, 1.0),
        pytest.param(500, 9, 0.1, 1.5, marks=pytest.mark.slow),
        # It takes a fifth of the power at the lower end: the response is what must be right.
        pytest.param(1500, 9, 0.25, 1.0, marks=pytest.mark.slow),
        # Of a flat cut the attenuation of agarose is known by its prior alone.
        pytest.param(800, 0, 0.2, 12, marks=pytest.mark.slow),
    ],
)
def test_rolloff_is_separated_from_focus_and_attenuation(
    rng, rolloff_um, tilt_px, within, within_percent
):
    tiles = simulated(rng, tilt_px=tilt_px, rolloff_um=rolloff_um)
    model = compensate_psf_from_model(cells_of(tiles), VOXEL_UM)
    assert model.rolloff_6db_um == pytest.approx(rolloff_um, rel=within)
    error = error_percent(model, true_response(260.0, 400.0, rolloff_um))
    assert error < within_percent
    assert 0.1 < model.error_percent < within_percent
    assert error < 3 * model.error_percent


@pytest.mark.parametrize(("tilt_px", "within_percent"), [(0, 12), (9, 1.5)])
def test_a_reflection_at_a_fixed_depth_does_not_count(rng, tilt_px, within_percent):
    """Seen to fail with all planes counted: no roll-off, and a response 15 and 69 % off."""
    tiles = simulated(rng, tilt_px=tilt_px, rolloff_um=800)
    clean = compensate_psf_from_model(cells_of(tiles), VOXEL_UM)
    assert clean.planes_left_out == ()
    # Power adds up: over many tiles the phase of a reflection is any.
    for tile in tiles:
        tile[44:49] = np.hypot(tile[44:49], np.float32([5, 12, 16, 12, 5])[:, None, None])
    model = compensate_psf_from_model(cells_of(tiles), VOXEL_UM)
    assert {45, 46, 47} <= set(model.planes_left_out) <= set(range(43, 50))
    assert model.rolloff_6db_um == pytest.approx(clean.rolloff_6db_um, rel=0.05)
    np.testing.assert_allclose(model.response, clean.response, rtol=0.03)
    assert error_percent(model, true_response(260.0, 400.0, 800)) < within_percent
    assert model.residual_percent < 1.5
    assert model.error_percent < 1.3 * clean.error_percent


def test_a_bright_layer_of_tissue_is_anatomy(rng):
    """Seen to fail with planes of tissue left out, too."""
    tiles = simulated(rng, agarose=0.0)
    for tile in tiles:
        tile[44:47] *= 1.6
    model = compensate_psf_from_model(cells_of(tiles), VOXEL_UM)
    assert (model.medium, model.planes_left_out) == ("tissue", ())


@pytest.mark.parametrize(
    ("above", "out"),
    [
        ([0, 1, -1, 9, 1, 0, -1, 1], [3]),
        # What the model lacks shows at the ends.
        ([9, 1, -1, 0, 1, 0, -1, 9], []),
        ([9, 0, 1, 9, 9, 1, 0, -1, 0, 1, -1, 0], [3, 4]),
        # Darker, less than four standard errors, and too many.
        ([0, 1, -1, -9, 1, 0, -1, 1], []),
        ([0, 0, 0, 3, 0, 0, 0, 0], []),
        ([0, 9, 9, 9, 0, 0, 0, 1], []),
        ([0, 0, 0, 5, 0, 0, 0, 0], [3]),
    ],
)
def test_planes_stand_out_between_others(above, out):
    assert np.flatnonzero(standing_out(np.array(above, float))).tolist() == out


@pytest.mark.parametrize(
    ("tilt_px", "agarose"), [(0, 0.6), (9, 0.6), pytest.param(0, 0.0, marks=pytest.mark.slow)]
)
def test_without_rolloff_none_is_found(rng, tilt_px, agarose):
    """Nor is the profile of tissue believed, whose anatomy is curved, too."""
    rolloff_um = np.inf if agarose else 600
    tiles = simulated(rng, tilt_px=tilt_px, agarose=agarose, rolloff_um=rolloff_um)
    model = compensate_psf_from_model(cells_of(tiles), VOXEL_UM)
    assert model.rolloff_6db_um is None
    assert (model.medium == "agarose") == (agarose > 0)
    if agarose:
        assert error_percent(model, true_response(260.0, 400.0)) < 3 * model.error_percent


def test_where_curvature_is_weak_the_sum_is_still_right(rng):
    """A long Rayleigh length: h and µ may trade a slope, but their product is that of agarose."""
    model = compensate_psf_from_model(cells_of(simulated(rng, 300, 1500)), VOXEL_UM)
    depth = (np.arange(N_PLANES) + 0.5) * 10
    ours = np.log(model.response) - 2e-3 * model.medium_mu_per_mm * depth
    true = np.log(confocal_response(depth, 300, 1500)) - 2e-3 * AGAROSE_MU * depth
    off = (ours - true)[16:]
    assert np.abs(off - off.mean()).max() < 0.03
    assert abs(model.agarose_mu_per_mm - AGAROSE_MU) < 0.4


def test_faces_at_different_depths_give_attenuation_where_curvature_is_weak(rng):
    cells = cells_of(simulated(rng, 300, 1500, tilt_px=8.0))
    model = compensate_psf_from_model(cells, VOXEL_UM)
    # The profile alone is as well explained by no attenuation and another focus.
    assert model.medium_mu_per_mm == pytest.approx(AGAROSE_MU, abs=0.06)


def test_light_that_changes_between_slices_is_no_attenuation(rng):
    cells = [
        cells_of(simulated(rng, 300, 1500, n_tiles=6, tilt_px=8.0, light=light, top=top))
        for light, top in ((1.0, 120.0), (1.1, 150.0))
    ]
    model = compensate_psf_from_model(cells[0] + cells[1], VOXEL_UM, slices=[0] * 6 + [1] * 6)
    assert model.medium_mu_per_mm == pytest.approx(AGAROSE_MU, abs=0.1)


def test_the_profile_of_agarose_makes_agarose_flat(rng):
    tiles = simulated(rng)
    model = compensate_psf_model_free(cells_of(tiles), VOXEL_UM)
    assert (model.method, model.focus_um, model.agarose_mu_per_mm) == ("model_free", None, 0)
    depth = (np.arange(N_PLANES) + 0.5) * 10
    expected = confocal_response(depth, 260, 400) * np.exp(-2e-3 * AGAROSE_MU * depth)
    ratio = (model.response / expected)[16:]
    assert np.abs(ratio / ratio.mean() - 1).max() < 0.04
    # Above the face nothing was seen: the gain stays what it is at the first plane.
    assert (model.response[:14] == model.response[0]).all()


def test_tissue_serves_where_there_is_no_agarose(rng):
    model = compensate_psf_from_model(cells_of(simulated(rng, agarose=0)), VOXEL_UM)
    assert model.medium == "tissue" and model.agarose_mu_per_mm == 0
    assert abs(model.medium_mu_per_mm - 1.8) < 0.2
    assert abs(model.focus_um - 260) < 40


def test_what_is_near_the_border_of_tissue_does_not_count(rng):
    """A-lines that look like agarose from above and hide tissue would tell a wrong slope."""
    tiles = simulated(rng)
    for tile in tiles:
        tile[40:, :, 48:56] *= np.linspace(1, 2.2, N_PLANES - 40)[:, None, None]
    model = compensate_psf_from_model(cells_of(tiles), VOXEL_UM)
    assert abs(model.agarose_mu_per_mm - AGAROSE_MU) < 0.12


def test_tiles_without_light_do_not_count(rng):
    """A slice that shows nothing is no second medium beside agarose and tissue."""
    dark = simulated(rng, n_tiles=6, light=0.03)
    model = compensate_psf_from_model(cells_of(simulated(rng) + dark), VOXEL_UM)
    assert model.medium == "agarose"
    assert abs(model.agarose_mu_per_mm - AGAROSE_MU) < 0.12


def test_a_bubble_is_no_noise(rng):
    """It is a mirror in the water, and hides what lies below."""
    clean, tiles = simulated(rng), simulated(rng)
    for tile in tiles[:3]:
        tile[:5, 32:] = 60.0
        tile[5:, 32:] *= 0.1
    model = compensate_psf_from_model(cells_of(tiles), VOXEL_UM)
    assert model.noise_amplitude == pytest.approx(NOISE * np.sqrt(np.pi / 4), rel=0.02)
    assert model.noise_amplitude == pytest.approx(
        compensate_psf_from_model(cells_of(clean), VOXEL_UM).noise_amplitude, rel=0.01
    )
    assert error_percent(model, true_response(260.0, 400.0)) < 1.5


@pytest.mark.parametrize("amplitude", [5.0, pytest.param(3.5, marks=pytest.mark.slow)])
def test_agarose_below_the_noise_gives_the_response(rng, amplitude):
    """A single A-line shows none of it; tiles whose tissue shows that they have light do."""
    tiles = simulated(rng, n_tiles=16, tilt_px=9, agarose_amplitude=amplitude)
    dark = simulated(rng, n_tiles=6, light=0.03)
    model = compensate_psf_from_model(cells_of(tiles + dark), VOXEL_UM)
    assert model.medium == "agarose" and model.n_tiles == 16
    assert error_percent(model, true_response(260.0, 400.0)) < 5
    assert abs(model.agarose_mu_per_mm - AGAROSE_MU) < 0.3


def test_tissue_serves_where_agarose_never_shows(rng):
    """Nothing was learned: dim A-lines beside tissue were taken for agarose that would show."""
    tiles = simulated(rng, n_tiles=16, tilt_px=9, agarose_amplitude=0.05)
    model = compensate_psf_from_model(cells_of(tiles), VOXEL_UM)
    assert model.medium == "tissue"
    assert abs(model.medium_mu_per_mm - 1.8) < 0.3
    assert abs(model.focus_um - 260) < 40


def test_steep_tissue_is_not_agarose(rng):
    """Over all of its depth it is hardly brighter."""
    tiles = simulated(rng, tilt_px=9, agarose_amplitude=60.0, tissue_mu=9.0)
    model = compensate_psf_from_model(cells_of(tiles), VOXEL_UM)
    assert model.medium == "agarose"
    assert error_percent(model, true_response(260.0, 400.0)) < 1.5


def test_deep_out_of_focus_the_gain_is_bounded(rng):
    model = compensate_psf_from_model(cells_of(simulated(rng, 150, 90)), VOXEL_UM)
    assert model.response.min() == np.float32(MIN_RESPONSE)
    # What the bound leaves uncorrected is an error, too.
    depth = (np.arange(N_PLANES) + 0.5) * 10
    relative = confocal_response(depth, model.focus_um, model.rayleigh_um)
    relative /= relative.max()
    expected = np.log(np.minimum(relative / MIN_RESPONSE, 1))
    np.testing.assert_allclose(model.log_errors[-1], expected, atol=1e-5)
    assert expected.min() < -0.3
    assert model.noise_planes.max() <= model.noise_amplitude / np.sqrt(MIN_RESPONSE) * 1.0001


@pytest.mark.parametrize(
    "cells",
    [
        [],
        [np.full((40, 6, 6), np.nan, np.float32)],
        [np.zeros((40, 6, 6), np.float32)],
        [np.ones((6, 8, 8), np.float32)],
    ],
)
def test_error_without_a_profile_names_a_remedy(cells):
    with pytest.raises(InputError, match="compensate_psf_enabled"):
        compensate_psf_from_model(cells, VOXEL_UM)


def test_errors_of_the_response_are_stated_for_all_planes(rng):
    """Agarose is not seen to the end: below, errors and stated errors grow alike."""
    true = np.log(true_response(200.0, 150.0, 700.0))
    off, stated = [], []
    for _ in range(6):
        tiles = simulated(
            rng, 200, 150, tilt_px=4, rolloff_um=700, agarose_amplitude=6.0, n_tiles=6
        )
        model = compensate_psf_from_model(cells_of(tiles), VOXEL_UM)
        seen = model.profile > 0
        assert model.log_errors.shape == (3, N_PLANES)
        depth = (np.arange(N_PLANES) + 0.5) * 10
        found = -np.log1p(((depth - model.focus_um) / model.rayleigh_um) ** 2)
        if model.rolloff_6db_um:
            found -= np.log(4) * (depth / model.rolloff_6db_um) ** 2
        off.append(found - true - (found - true)[seen].mean())
        stated.append(np.sqrt((model.log_errors[:2] ** 2).sum(axis=0)))
        assert stated[-1][-1] > 3 * np.median(stated[-1][seen])
    ratio = np.square(np.divide(off, stated)[:, -8:]).mean() ** 0.5
    assert 0.5 < ratio < 2
