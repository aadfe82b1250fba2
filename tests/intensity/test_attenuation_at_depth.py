"""Strong attenuation: a forward model of A-lines whose µ, backscatter and noise are known."""

import base64
import json
import math
import zlib

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter, map_coordinates

from linumpy.core.device import to_host
from linumpy.geometry.turned import Turn
from linumpy.intensity import attenuation_tissue
from linumpy.intensity.attenuation_exponent import (
    PRIOR_ERROR,
    PRIOR_EXPONENT,
    Exponent,
    find_exponent,
)
from linumpy.intensity.attenuation_tissue import find_tissue
from linumpy.intensity.compensate_attenuation import (
    attenuation_gain,
    bin_power,
    compensate_attenuation,
    estimate_attenuation,
)
from linumpy.intensity.quality_map import (
    NOTHING,
    QUALITY_ATTRIBUTE,
    decode_map,
    decode_weights,
    encode_map,
    encode_weights,
    placed_map,
    weights_at,
)
from linumpy.metrics.limits import LIMITS
from linumpy.stage_params.intensity import AttenuationParams

STEP_MM = 0.01
VOXEL_UM = (10.0, 10.0, 10.0)
AGAROSE, NOISE = 30.0, 8.0


def forward(rng, mu, amplitude, noise=NOISE):
    """Amplitudes of fully developed speckle under attenuation, with circular Gaussian noise.

    `amplitude` is RMS without attenuation and noise; `mu` in 1/mm; both (z, axis 1, axis 2).
    """
    loss = np.exp(-(np.cumsum(mu, axis=0) - mu / 2) * STEP_MM)
    field = rng.normal(size=(2, *mu.shape)) * (amplitude * loss) / np.sqrt(2)
    field += rng.normal(size=field.shape) * noise / np.sqrt(2)
    return np.sqrt((field**2).sum(axis=0)).astype(np.float32)


def bands(values, n=50, side=96):
    """Return a volume of equal bands along axis 2, one for each of the values."""
    line = np.repeat(values, side // len(values))
    return np.broadcast_to(np.asarray(line, float), (n, side, side)).copy()


def estimate(xp, volume, noise=NOISE, response_errors=None, **params):
    sums = bin_power(xp.asarray(volume), None, 4)
    return estimate_attenuation(
        *sums,
        AttenuationParams(**params),
        slice_id=0,
        voxel_um=VOXEL_UM,
        bin_px=4,
        # RMS: bins are not averaged here, as those of a slice are.
        noise_amplitude=[noise] * len(volume),
        response_errors=response_errors,
        agarose_mu_per_mm=0.5,
        interval_um=200.0,
    )


@pytest.fixture
def steep(rng):
    """Agarose, grey of 5/mm and white of 10/mm with backscatter in proportion to µ."""
    mu = bands([0.5, 5.0, 10.0])
    amplitude = bands([AGAROSE, 200.0, 200.0 * np.sqrt(2)])
    return forward(rng, mu, amplitude), mu, amplitude


def test_tissue_stays_tissue_where_it_is_dimmer_than_agarose(xp, steep):
    """White of 10/mm is dimmer than agarose from 230 um on: seen to fail with a fixed limit."""
    volume, mu, _ = steep
    total, count = bin_power(xp.asarray(volume), None, 4)
    noise = np.full(len(volume), NOISE**2)
    found = to_host(
        find_tissue(
            total, count.astype(np.float32), 0.5, noise, STEP_MM, agarose_mu_per_mm=0.5
        ).mask
    )
    truth = mu[:, ::4, ::4] > 1
    # The bins beside a border are mixtures.
    assert not found[:, :, :7].any() and found[:, :, 9:].all()
    assert truth[:, :, 9:].all()
    dim = volume[30:, :, 64:].mean() / volume[30:, :, :32].mean()
    assert dim < 0.7


def test_shadows_of_bubbles_do_not_move_the_threshold(xp, rng):
    """Below a bubble there is nothing: seen to make all agarose tissue."""
    mu, amplitude = bands([0.5, 5.0]), bands([AGAROSE, 200.0])
    amplitude[:, :8, :16] = 0
    volume = forward(rng, mu, amplitude)
    volume[:, :8, :8] = 0
    total, count = bin_power(xp.asarray(volume), None, 4)
    noise = np.full(len(volume), NOISE**2)
    found = to_host(
        find_tissue(
            total, count.astype(np.float32), 0.5, noise, STEP_MM, agarose_mu_per_mm=0.5
        ).mask
    )
    assert not found[:, :, :11].any() and found[:, :, 13:].all()


def test_agarose_below_tissue_is_agarose(xp, rng):
    mu, amplitude = bands([0.5, 4.0]), bands([AGAROSE, 200.0])
    mu[20:, :, 48:], amplitude[20:, :, 48:] = 0.5, AGAROSE
    total, count = bin_power(xp.asarray(forward(rng, mu, amplitude, 1.0)), None, 4)
    found = to_host(
        find_tissue(
            total, count.astype(np.float32), 0.5, np.full(50, 1.0), STEP_MM, agarose_mu_per_mm=0.5
        ).mask
    )
    assert found[:19, :, 13:].all()
    assert found[23:, :, 13:].mean() < 0.02


@pytest.mark.parametrize("per_mm", [1.5, 3.0, 5.0])
@pytest.mark.parametrize("dim", [1.0, 0.6])
def test_tissue_that_ends_above_agarose_attenuates_as_it_would_below(xp, rng, per_mm, dim):
    """Its lower side is oblique, as that of a pole is, and its outer layer dimmer in one case.

    Seen to fail (µ 20 to 150 % too high) where its end was taken for attenuation.
    """
    mu, amplitude = bands([0.5] + [per_mm] * 3, side=192), bands([AGAROSE] + [300.0] * 3, side=192)
    ends = 12 + np.arange(96) * 15 // 95
    above = np.broadcast_to(ends - np.arange(50)[:, None, None], (50, 192, 96))
    mu[:, :, 96:][above <= 0], amplitude[:, :, 96:][above <= 0] = 0.5, AGAROSE
    amplitude[:, :, 96:][(above > 0) & (above <= 5)] *= dim
    model = estimate(xp, forward(rng, mu, amplitude, 2.0), 2.0)
    found, error = (to_host(a).astype(float) for a in (model.mu_per_mm, model.mu_error_per_mm))
    truth = mu[:, ::4, ::4]
    here = truth == per_mm
    here[:, :, 24:] &= above[:, ::4, ::4] > 5
    here[:, :, :26] = here[:, :2] = here[:, -2:] = here[..., -2:] = False
    assert abs(np.median(found[here]) / per_mm - 1) < 0.1
    assert (np.abs(found - truth) <= 2 * error)[here].mean() > 0.9


def test_agarose_is_seen_below_tissue_alone(xp, rng, steep):
    """Optical depth to within a tenth where tissue ends, and nowhere of tissue that goes on."""
    volume, mu, amplitude = steep[0], *grey(50)
    mu[20:, :, 144:], amplitude[20:, :, 144:] = 0.5, AGAROSE

    def told(volume, noise):
        total, count = bin_power(xp.asarray(volume), None, 4)
        found = find_tissue(
            total, count.astype(np.float32), 0.5, np.full(50, noise**2), STEP_MM,
            agarose_mu_per_mm=0.5,
        )  # fmt: skip
        return to_host(found.optical_depth), found.optical_depth_error

    depth, error = told(forward(rng, mu, amplitude, 2.0), 2.0)
    assert 0 < error < 0.05
    assert not depth[:, :35].any()
    # What is taken for tissue of the agarose adds to it; it is less than a tenth of a millimetre.
    np.testing.assert_allclose(depth[2:-2, 40:-2], 0.22 + 0.02, atol=0.06)
    depth, _ = told(volume, NOISE)
    assert not depth[:, 9:].any()


def test_tissue_of_a_dome_lies_below_agarose(xp, rng):
    """Nearly all A-lines begin with agarose, and most end in tissue.

    Seen to fail (no tissue) where those taught what agarose looks like.
    """
    mu, amplitude = bands([0.5, 0.5, 2.0], n=60), bands([AGAROSE, AGAROSE, 200.0], n=60)
    mu[25:, :, 20:], amplitude[25:, :, 20:] = 2.0, 200.0
    mu[:25, :, 64:88], amplitude[:25, :, 64:88] = 0.5, AGAROSE
    model = estimate(xp, forward(rng, mu, amplitude, 1.0), 1.0)
    found = to_host(model.mu_per_mm).astype(float)
    assert np.median(found[27:, 2:-2, 6:20]) == pytest.approx(2.0, rel=0.1)
    assert found[:22, :, :16].max() == pytest.approx(0.5, abs=0.01)
    assert found[:, :, :4].max() == pytest.approx(0.5, abs=0.01)


@pytest.mark.slow
def test_structure_of_steep_tissue_is_no_agarose(xp, monkeypatch):
    """Dimmer than agarose at depth, and of some A-lines brighter downwards for 100 um.

    Four draws; without the comparison with the tissue above, ends of 7 % are told.
    """

    def told():
        shares = []
        for seed in range(4):
            rng = np.random.default_rng(seed)
            mu = bands([0.5, 0.5, 0.5] + [6.5] * 3, n=64, side=192)
            field = gaussian_filter(rng.normal(size=mu.shape), (8, 12, 12), mode="wrap")
            amplitude = bands([AGAROSE] * 3 + [260.0] * 3, n=64, side=192)
            # It begins below agarose here and there.
            mu[:6, :64, 96:], amplitude[:6, :64, 96:] = 0.5, AGAROSE
            structure = np.exp(0.3 * field / field.std())
            amplitude = np.where(mu > 1, amplitude * structure, amplitude)
            total, count = bin_power(xp.asarray(forward(rng, mu, amplitude, 1.0)), None, 4)
            found = find_tissue(
                total, count.astype(np.float32), 0.5, np.full(64, 1.0), STEP_MM,
                agarose_mu_per_mm=0.5,
            )  # fmt: skip
            shares.append((to_host(found.optical_depth)[:, 26:] > 0).mean())
        return np.mean(shares)

    few = told()
    monkeypatch.setattr(attenuation_tissue, "_most_below", lambda level, _: xp.ones_like(level))
    many = told()
    assert few < 0.5 * many and many > 0.05


@pytest.mark.parametrize(("planes", "axial_mm"), [(1, 0.01), (2, 0.01), (9, 0.0015), (5, 0.25)])
def test_few_or_thick_planes_show_no_agarose_below(xp, rng, planes, axial_mm):
    """Seen to fail (no array to take the largest of; a division by zero)."""
    mu, amplitude = (part[:planes] for part in grey(50))
    total, count = bin_power(xp.asarray(forward(rng, mu, amplitude, 2.0)), None, 4)
    noise = np.full(planes, 4.0)
    found = find_tissue(total, count.astype(np.float32), 0.5, noise, axial_mm)
    assert found.mask.shape == (planes, 48, 48)
    assert not to_host(found.optical_depth).any() and np.isfinite(found.optical_depth_error)


def test_errors_of_the_response_are_stated(xp, rng):
    """An exponential, which nothing in a slice can tell, shifts all of µ."""
    mu = np.full((50, 96, 96), 2.0)
    volume = forward(rng, mu, np.full(mu.shape, 250.0), 0.5)
    tilt = 2 * 0.5 * STEP_MM * np.arange(50)[None]
    (level, plain), (same, stated) = (
        upper_medians(estimate(xp, volume, 0.5, response_errors=e)) for e in (None, tilt)
    )
    assert same == level
    assert np.sqrt(stated**2 - plain**2) == pytest.approx(0.5, rel=0.2)


def upper_medians(model):
    """µ and its stated error in the upper half."""
    parts = (model.mu_per_mm, model.mu_error_per_mm)
    return [float(np.median(to_host(part)[2:25].astype(float))) for part in parts]


@pytest.mark.parametrize(("planes", "face", "thick"), [(50, 0, 25), (60, 5, 25), (60, 0, 35)])
@pytest.mark.parametrize(("per_mm", "level"), [(2.0, 125.0), (0.7, 290.0)])
def test_tissue_that_departs_from_the_law_is_known_less(
    xp, rng, per_mm, level, planes, face, thick
):
    """A body that is dim and steep, or bright and faint, above and beside grey matter: within two
    stated errors. Seen to fail (none, and a sixth) where the law alone says how far it is off.
    """
    mu, amplitude = grey(planes)
    body = slice(face, face + thick), slice(None), slice(96, 144)
    mu[body], amplitude[body] = per_mm, level
    amplitude[:face] = 0
    model = estimate(xp, forward(rng, mu, amplitude, 2.0), 2.0)
    found, error = inner(model, slice(face + 2, face + thick - 2))
    assert (np.abs(found - per_mm) <= 2 * error).mean() > 0.9
    assert np.median(np.abs(found - per_mm)) > 0.4


def grey(planes):
    """Attenuation and amplitude of agarose beside three bands of grey matter."""
    values = ([0.5] + [1.1] * 3, [AGAROSE] + [200.0] * 3)
    return [bands(each, planes, 192) for each in values]


def test_tissue_that_follows_the_law_is_known_as_before(xp, rng):
    """Slopes of A-lines scatter; that is no departure: 1.1 ± 0.26, and 0.25 by the law alone."""
    mu, amplitude = grey(50)
    found, error = inner(estimate(xp, forward(rng, mu, amplitude, 2.0), 2.0), slice(2, 23))
    assert np.median(found) == pytest.approx(1.1, abs=0.05)
    assert np.median(error) < 0.28


def test_a_border_between_layers_is_no_departure(xp, rng):
    """Grey matter above white, by the law, at 100 um. Seen to fail (5 per mm in the planes below
    the border) with one slope across it.
    """
    mu, amplitude = grey(50)
    mu[10:, :, 48:] = 2.6
    amplitude[10:, :, 48:] = 200 * (2.6 / 1.1) ** (0.5 / PRIOR_EXPONENT)
    model = estimate(xp, forward(rng, mu, amplitude, 2.0), 2.0)
    found, error = (to_host(a).astype(float) for a in (model.mu_per_mm, model.mu_error_per_mm))
    here = (slice(11, 20), slice(2, -2), slice(15, 45))
    assert np.median(np.abs(found[here] - 2.6)) < 0.25
    assert np.median(error[here]) < 0.7
    assert np.median(decode_weights(to_host(model.quality))[20:40, 2:-2, 15:45]) > 0.85


def test_coarse_voxels_tell_departures_too(xp, rng):
    """Of 25 um, eight to 200 um. Seen to fail (0.2 per mm) where twelve planes are asked for."""
    mu, amplitude = grey(24)
    mu[:14, :, 96:144], amplitude[:14, :, 96:144] = 2.0, 125.0
    sums = bin_power(xp.asarray(forward(rng, mu * 2.5, amplitude, 2.0)), None, 4)
    model = estimate_attenuation(
        *sums, AttenuationParams(), slice_id=0, voxel_um=(25.0, 10.0, 10.0), bin_px=4,
        noise_amplitude=[2.0] * 24, agarose_mu_per_mm=0.5, interval_um=200.0,
    )  # fmt: skip
    found, error = (
        to_host(a)[1:11, 2:-2, 27:33].astype(float)
        for a in (model.mu_per_mm, model.mu_error_per_mm)
    )
    assert np.median(np.abs(found - 2.0)) > 1
    assert np.median(error) > 0.5


def inner(model, planes):
    """µ and its stated error within the third band of four."""
    parts = (model.mu_per_mm, model.mu_error_per_mm)
    return [to_host(part)[planes, 2:-2, 27:33].astype(float) for part in parts]


def test_white_stays_brighter_than_grey_at_depth(xp, steep):
    """Within 10 % of the true ratio down to where the noise begins, and µ within its error."""
    volume, mu, amplitude = steep
    model = estimate(xp, volume)
    out = to_host(
        compensate_attenuation(
            xp.asarray(volume), attenuation_gain(model), (slice(0, 96), slice(0, 96)), 4
        )
    )
    grey, white = out[:, :, 36:60], out[:, :, 68:92]
    ratio = white.mean(axis=(1, 2)) / grey.mean(axis=(1, 2))
    np.testing.assert_allclose(ratio[:25], np.sqrt(2), rtol=0.1)
    found, error = (to_host(a).astype(float) for a in (model.mu_per_mm, model.mu_error_per_mm))
    truth = mu[:, ::4, ::4]
    for bins in (slice(9, 15), slice(17, 23)):
        here = (slice(0, 25), slice(1, -1), bins)
        assert abs(np.median(found[here]) / np.median(truth[here]) - 1) < 0.1
        assert (np.abs(found - truth) <= 2 * error)[here].mean() > 0.9


def test_noise_is_taken_off_the_mean_amplitude(xp, rng):
    """At 0 dB a plain gain would leave an amplitude 40 % too bright."""
    mu, amplitude = bands([0.5, 6.0]), bands([AGAROSE, 200.0])
    volume = forward(rng, mu, amplitude, 40.0)
    model = estimate(xp, volume, noise=40.0)
    out = to_host(
        compensate_attenuation(
            xp.asarray(volume), attenuation_gain(model), (slice(0, 96), slice(0, 96)), 4
        )
    )
    seen = out[:, :, 56:].mean(axis=(1, 2)) / (200 * np.sqrt(np.pi) / 2)
    # The signal equals the noise at 270 um.
    np.testing.assert_allclose(seen[:27], 1, atol=0.15)


def test_what_cannot_be_made_up_for_is_counted_and_weighs_nothing(xp, steep, rng):
    volume, mu, _ = steep
    model = estimate(xp, volume, min_bias=0.05)
    # 13 dB are lost at 150 um of white and at 300 um of grey: a quarter of half the tissue.
    assert 0.08 < model.capped_fraction < 0.2
    quality = to_host(model.quality)
    assert (quality[20:, 2:-2, 18:22] == NOTHING).all() and (
        decode_weights(quality[:10, :, 18:22]) > 0.03
    ).all()
    weights = decode_weights(quality)
    # Deeper is worse, in white faster than in grey.
    assert weights[2, 2:-2, 18:22].mean() > 1.25 * weights[12, 2:-2, 18:22].mean()
    assert weights[12, 2:-2, 10:14].mean() > weights[12, 2:-2, 18:22].mean()
    mild = estimate(xp, forward(rng, mu / 5, bands([AGAROSE, 200.0, 280.0])))
    assert mild.capped_fraction == 0


@pytest.mark.parametrize("true", [0.6, 1.0])
def test_the_exponent_comes_from_the_data(xp, rng, true):
    """Half of the way from the prior at least, within two of its errors of the truth."""
    level = rng.uniform(-0.5, 0.5, (1, 40, 40)) + np.zeros((40, 1, 1))
    power = 1e4 * np.exp(level)
    mu = 2.5 * np.exp(true * level)
    optical = np.cumsum(mu, axis=0) * STEP_MM
    seen = power * np.exp(-2 * optical) * rng.gamma(50, 1 / 50, power.shape)
    arrays = (xp.asarray(a.astype(np.float32)) for a in (seen, optical))
    shown, depth = arrays
    found = find_exponent(shown, shown > 0, depth, STEP_MM)
    assert abs(found.k - true) <= 0.55 * abs(PRIOR_EXPONENT - true) + 0.02
    assert abs(found.k - true) < 2 * found.error < 2 * PRIOR_ERROR
    assert found.seen == pytest.approx(true, abs=0.1)
    shown, depth = shown[:, :10, :10], depth[:, :10, :10]
    few = find_exponent(shown, shown > 0, depth, STEP_MM)
    assert few == Exponent(PRIOR_EXPONENT, PRIOR_ERROR, None)


@pytest.mark.parametrize(("true", "found"), [(0.6, False), (-0.5, True)])
def test_steep_dark_tissue_is_detected(xp, rng, true, found):
    """Steep tissue is brighter, as reported, or darker: then k is known less than before."""
    level = rng.uniform(-0.5, 0.5, (1, 40, 40)) + np.zeros((40, 1, 1))
    mu = 2.5 * np.exp(true * level)
    optical = np.cumsum(mu, axis=0) * STEP_MM
    seen = 1e4 * np.exp(level - 2 * optical) * rng.gamma(50, 1 / 50, mu.shape)
    shown, depth = (xp.asarray(a.astype(np.float32)) for a in (seen, optical))
    exponent = find_exponent(shown, shown > 0, depth, STEP_MM)
    assert exponent.seen is not None
    assert exponent.seen_error < 0.1
    departure = abs(exponent.seen - PRIOR_EXPONENT) / math.hypot(PRIOR_ERROR, exponent.seen_error)
    assert (departure > LIMITS["exponent_departure"].warning) is found
    assert (exponent.error > PRIOR_ERROR) is found


def test_weights_survive_their_code(xp, rng):
    weights = np.exp(-rng.uniform(0, 20, (4, 5, 6))).astype(np.float32)
    weights[0] = 0
    found = decode_weights(to_host(encode_weights(xp.asarray(weights))))
    np.testing.assert_allclose(found, weights, rtol=2e-4)
    assert (found[0] == 0).all()


def test_maps_of_eight_bits_are_still_read():
    attributes, weights = smooth_map()
    record = attributes[QUALITY_ATTRIBUTE]
    cells = decode_map(attributes, (20, 64, 80)).cells
    coarse = np.rint(-8 * np.log2(cells)).astype(np.uint8)
    codes = base64.b64encode(zlib.compress(coarse.tobytes())).decode("ascii")
    found = decode_map({QUALITY_ATTRIBUTE: {**record, "codes": codes}}, (20, 64, 80)).cells
    np.testing.assert_allclose(found, cells, rtol=0.05)


def smooth_map(shape=(20, 64, 80), size=4):
    bins = [shape[0], *(-(-n // size) for n in shape[1:])]
    z, i, j = np.meshgrid(*(np.arange(n) for n in bins), indexing="ij")
    weights = np.exp(-z / 8 - i / 20 - j / 30).astype(np.float32)
    return {QUALITY_ATTRIBUTE: encode_map(encode_weights(weights), size, shape)}, weights


def test_a_box_of_weights_is_a_part_of_the_whole(device):
    attributes, weights = smooth_map()
    found = decode_map(attributes, (20, 64, 80))
    cells, size = found.cells, found.voxels_a_cell
    whole = to_host(weights_at(cells, size, (slice(0, 20), slice(0, 64), slice(0, 80)), device))
    fine = weights.repeat(4, axis=1).repeat(4, axis=2)
    inner = (slice(2, -2), slice(8, -8), slice(8, -8))
    np.testing.assert_allclose(whole[inner], fine[inner], rtol=0.25)
    for box in (
        (slice(3, 17), slice(13, 55), slice(8, 61)),
        (slice(0, 1), slice(63, 64), slice(0, 80)),
        (slice(19, 20), slice(0, 2), slice(79, 80)),
    ):
        np.testing.assert_array_equal(to_host(weights_at(cells, size, box, device)), whole[box])


def test_weights_are_those_of_scipy(device):
    found = decode_map(smooth_map()[0], (20, 64, 80))
    place = [
        np.clip((np.arange(n) + 0.5) / size - 0.5, 0, cells - 1)
        for n, size, cells in zip((20, 64, 80), found.voxels_a_cell, found.cells.shape, strict=True)
    ]
    expected = map_coordinates(
        found.cells.astype(float), np.meshgrid(*place, indexing="ij"), order=1
    )
    box = tuple(slice(0, n) for n in (20, 64, 80))
    actual = to_host(weights_at(found.cells, found.voxels_a_cell, box, device))
    np.testing.assert_allclose(actual, expected, rtol=2e-6)


def test_a_map_moves_with_its_slice():
    attributes, _ = smooth_map()
    turn = Turn.about(1.5, (10.0, 20.0))
    moved = placed_map(attributes, (20, 64, 80), (96, 90), (16.25, 8.0), turn)
    moved = json.loads(json.dumps(moved))
    found = decode_map({QUALITY_ATTRIBUTE: moved}, (20, 96, 90))
    before = decode_map(attributes, (20, 64, 80))
    assert (found.origin_px, found.turn, found.shape) == ((16.25, 8.0), turn, (20, 64, 80))
    np.testing.assert_array_equal(found.cells, before.cells)
    assert before.origin_px is None
    # On another canvas, it is no map of the image.
    assert decode_map({QUALITY_ATTRIBUTE: moved}, (20, 64, 80)) is None
    for place in ([1.0], [1.0, float("inf")], None):
        broken = {**moved, "placed": {**moved["placed"], "origin_px": place}}
        assert decode_map({QUALITY_ATTRIBUTE: broken}, (20, 96, 90)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"codes": None},
        {"cells": [1, 1, 1]},
        {"voxels_a_cell": [0, 8, 8]},
        {"shape": [20, 64, 81]},
        {"cells": None},
    ],
)
def test_a_broken_map_is_no_map(change):
    attributes, _ = smooth_map()
    assert decode_map(attributes, (20, 64, 80)) is not None
    broken = {QUALITY_ATTRIBUTE: {**attributes[QUALITY_ATTRIBUTE], **change}}
    assert decode_map(broken, (20, 64, 80)) is None


@pytest.mark.parametrize("codes", ["!", "AAAA", base64.b64encode(zlib.compress(b"12")).decode()])
def test_codes_are_decoded_when_weights_are_asked_for(codes):
    attributes, _ = smooth_map()
    broken = {QUALITY_ATTRIBUTE: {**attributes[QUALITY_ATTRIBUTE], "codes": codes}}
    found = decode_map(broken, (20, 64, 80))
    with pytest.raises(ValueError):
        _ = found.cells
