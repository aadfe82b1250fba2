"""Attenuation that only the slice below shows: measured on slices whose shadows are known."""

import os
from dataclasses import asdict, replace

import numpy as np
import pytest
from scipy.ndimage import affine_transform, gaussian_filter, map_coordinates

from linumpy.brain.measured_pairs import remove_saved
from linumpy.brain.output import align_slice, stack_folder
from linumpy.brain.overlap_attenuation import (
    OverlapAttenuation,
    measure_overlap,
    pair_place,
    sampling,
    solve,
)
from linumpy.brain.overlap_correction import (
    STEM,
    compare_overlaps,
    save_overlap,
    with_overlaps,
)
from linumpy.brain.pair_shift import PairParts, PairShift
from linumpy.brain.slice_planes import SliceVolume
from linumpy.brain.slice_registration import SliceRegistration
from linumpy.core.device import CPU, to_device, to_host
from linumpy.core.errors import InputError
from linumpy.geometry.turned import rotation_matrix
from linumpy.io.models import load_model
from linumpy.io.omezarr import open_image
from linumpy.store.atomic import write_json

from .test_stack_by_quality import write_slice

VOXEL_UM = (10.0, 10.0, 10.0)
LATERAL_UM = np.array(VOXEL_UM[1:])
SHAPE, OFFSET, BIN = (50, 96, 120), 20, 2
BINS = (SHAPE[1] // BIN, SHAPE[2] // BIN)
HERE = np.eye(3)


def field(rng, sigma, rms, shape=BINS):
    """A random field of one scale and no mean, 1/mm."""
    values = gaussian_filter(rng.normal(size=shape), sigma, mode="wrap")
    return rms * (values - values.mean()) / values.std()


def sums_of(lacking, rng, noise, depth_mm=0.4):
    """What `solve` takes: amplitudes whose logarithms have so much noise a half, in 50 planes."""
    level = np.exp(gaussian_filter(rng.normal(size=lacking.shape), 1.5))
    out = np.empty((2, 4, *lacking.shape), np.float32)
    for half, depth in zip(out, (0.9 * depth_mm, 1.1 * depth_mm), strict=True):
        spread = noise * rng.normal(size=(2, *lacking.shape)) / np.sqrt(2)
        half[0] = 50 * level * np.exp(-lacking * depth + spread[0])
        half[1] = 50 * level * np.exp(spread[1])
        half[2], half[3] = 50 * depth, 50
    return out


@pytest.mark.parametrize("sigma", [0.7, 4.0])
def test_what_noise_leaves_is_found(rng, sigma):
    """Fine and coarse shadows, 0.2 of noise: less error than the ratio of the amplitudes has."""
    lacking = field(rng, sigma, 0.6)
    mu, kept = solve(sums_of(lacking, rng, 0.2))
    error = mu - lacking
    error -= error.mean()
    # Both halves together: noise over the root of two, over 0.4 mm.
    raw = 0.2 / np.sqrt(2) / 0.4
    assert error.std() < (0.9 if sigma < 1 else 0.4) * raw
    assert np.corrcoef(mu.ravel(), lacking.ravel())[0, 1] > 0.88
    assert kept[0] < 0.7 and max(kept) > 0.9


def test_noise_alone_is_no_attenuation(rng):
    """Seen to fail (all of it) with everything kept that the ratio shows."""
    mu, _ = solve(sums_of(np.zeros(BINS), rng, 0.2))
    assert mu.std() < 0.15 * (0.2 / np.sqrt(2) / 0.4)


def test_a_factor_between_slices_is_none(rng):
    sums = sums_of(field(rng, 3.0, 0.5), rng, 0.1)
    scaled = sums.copy()
    scaled[:, 1] *= 3
    np.testing.assert_allclose(solve(scaled)[0], solve(sums)[0], atol=2e-5)


def test_debris_on_the_lower_slice_is_none_of_it(rng):
    """A twentieth of the bins 15 times as bright: they get nothing, and no other changes much."""
    lacking = field(rng, 3.0, 0.4)
    sums = sums_of(lacking, rng, 0.1)
    clean = solve(sums)[0]
    bright = np.zeros(BINS, bool)
    bright[10:20, 10:24] = True
    sums[:, 1, bright] *= 15
    mu = solve(sums)[0]
    assert (mu[bright] == 0).all()
    assert (mu - clean)[~bright].std() < 0.1 * clean.std()


def test_agarose_is_left_as_it_is(rng):
    lacking = field(rng, 3.0, 0.4)
    sums = sums_of(lacking, rng, 0.1)
    agarose = np.zeros(BINS, bool)
    agarose[:, :20] = True
    sums[:, :2, agarose] *= 0.02
    mu = solve(sums)[0]
    assert (mu[agarose] == 0).mean() > 0.99 and (mu[~agarose] != 0).mean() > 0.95


def test_too_little_says_nothing(rng):
    sums = sums_of(np.zeros(BINS), rng, 0.1)
    sums[:, :, 3:] = 0
    sums[:, :, :, 60:] = 0
    assert solve(sums) is None


def volume(slice_id, data, valid=None, corner_um=(0.0, 0.0), device=CPU, quality=None):
    """A slice in memory."""
    where = to_device(data.astype(np.float32), device)
    mask = None if valid is None else to_device(valid.astype(np.uint8), device)

    def read(planes, window):
        part = (planes, *window)
        return where[part], None if mask is None else mask[part]

    return SliceVolume(slice_id, data.shape, corner_um, 0.0, read, quality=quality)


def tissue(rng, shape=(80, 96, 120)):
    return np.exp(0.5 * gaussian_filter(rng.normal(size=shape), 1.0) / 0.1).clip(0.2, 5)


def fine(bins):
    return np.kron(bins, np.ones((BIN, BIN)))


def test_shadows_of_slices_are_measured(rng, device):
    """A tilted face, speckle of both slices, and a lower slice that is rotated and moved.

    Seen to fail with the rotation the wrong way round.
    """
    scene, lacking = tissue(rng), field(rng, 1.5, 0.8)
    face = (np.arange(SHAPE[1]) // 12)[:, None] + np.zeros(SHAPE[1:], int)
    depth = (np.arange(SHAPE[0])[:, None, None] + 0.5 - face) * 0.01
    valid = depth > 0
    shade = np.exp(-fine(lacking) * np.maximum(depth, 0))
    upper = scene[: SHAPE[0]] * shade * rng.rayleigh(0.8, SHAPE)
    # Where the lower slice's pixel lies in the upper one: rotated about the middle, then moved.
    back, middle = rotation_matrix(2.0), (np.array(SHAPE[1:]) - 1) / 2
    start = middle + (1.3, -2.6) - back @ middle
    lower = np.stack(
        [
            affine_transform(plane, back, start, order=1, mode="nearest")
            for plane in scene[OFFSET : OFFSET + SHAPE[0]]
        ]
    )
    lower *= rng.rayleigh(0.8, lower.shape)
    pair = volume(0, upper * valid, valid, device=device), volume(1, lower, device=device)
    centre = (middle + 0.5) * 10
    shift = PairShift(0, 1, np.array([0.0, 13.0, -26.0]), rotation_deg=2.0, centre_um=tuple(centre))
    to_fixed, deformed = pair_place(*pair, shift, LATERAL_UM)
    assert deformed is None
    turn = sampling(*pair, to_fixed, LATERAL_UM)
    np.testing.assert_allclose(
        turn.at(start + back @ np.array([7.0, 30.0])), [7.0, 30.0], atol=1e-9
    )
    found = measure_overlap(*pair, VOXEL_UM, OFFSET, to_fixed, first_plane=2)
    inner = (slice(6, -6), slice(6, -6))
    seen, true = found.mu_per_mm[inner].astype(float), lacking[inner]
    assert np.corrcoef(seen.ravel(), true.ravel())[0, 1] > 0.9
    # Regressed on the truth it is neither too weak nor too strong.
    assert 0.75 < np.polyfit(true.ravel(), seen.ravel(), 1)[0] < 1.1
    np.testing.assert_allclose(found.face_px, face[::BIN, ::BIN], atol=0.5)
    assert (found.fixed_id, found.moving_id, found.offset_px, found.bin_px) == (0, 1, OFFSET, BIN)


def test_a_deformation_is_followed(rng):
    """The lower slice is bent by three pixels; the places that match are given.

    Seen to fail (0.86) without the field.
    """
    scene, lacking = tissue(rng), field(rng, 1.5, 0.8)
    depth = (np.arange(SHAPE[0])[:, None, None] + 0.5) * 0.01
    upper = scene[: SHAPE[0]] * np.exp(-fine(lacking) * depth)
    grid = np.stack(np.mgrid[: SHAPE[1], : SHAPE[2]]).astype(float)

    def bend(points):
        """Where the lower slice's pixels lie in the upper one."""
        wave = 3 * np.sin(points[1] / 20), 3 * np.cos(points[0] / 20)
        return points + np.stack(wave)

    places = bend(grid)
    lower = np.stack(
        [map_coordinates(p, places, order=1, mode="nearest") for p in scene[OFFSET:70]]
    )
    some = np.stack(np.mgrid[4 : SHAPE[1] : 8, 4 : SHAPE[2] : 8]).reshape(2, -1).astype(float)
    parts = PairParts(10 * (bend(some).T + 0.5), 10 * (some.T + 0.5), 1.0, 20.0, 300.0, 80.0)
    shift = PairShift(0, 1, np.zeros(3), parts=parts)
    pair = volume(0, upper), volume(1, lower)
    to_fixed, deformed = pair_place(*pair, shift, LATERAL_UM)
    found = measure_overlap(*pair, VOXEL_UM, OFFSET, to_fixed, deformed, first_plane=0)
    inner = (slice(6, -6), slice(6, -6))
    seen, true = found.mu_per_mm[inner].astype(float), lacking[inner]
    assert np.corrcoef(seen.ravel(), true.ravel())[0, 1] > 0.93


def test_a_registration_s_deformation_is_followed(tmp_path, rng):
    """Both slices are bent, each its own way, as fields of a registration say.

    Seen to fail (0.84) without the fields.
    """
    scene, lacking = tissue(rng, (80, 128, 144)), field(rng, 1.5, 0.8, (64, 72))
    depth = (np.arange(SHAPE[0])[:, None, None] + 0.5) * 0.01
    grid = np.stack(np.mgrid[:128, :144]).astype(float)
    bends = {
        0: 2 * np.stack([np.sin(grid[1] / 20), np.cos(grid[0] / 25)]),
        1: 3 * np.stack([np.cos(grid[1] / 22), np.sin(grid[0] / 20)]),
    }

    def imaged(planes, bend):
        # What belongs at x is seen at x + bend(x).
        places = grid
        for _ in range(8):
            places = grid - np.stack(
                [map_coordinates(part, places, order=1, mode="nearest") for part in bend]
            )
        return np.stack([map_coordinates(p, places, order=1, mode="nearest") for p in planes])

    upper = imaged(scene[: SHAPE[0]] * np.exp(-fine(lacking) * depth), bends[0])
    lower = imaged(scene[OFFSET:70], bends[1])
    at_place = replace(
        registration(),
        deformation={
            "origin_um": [5.0, 5.0],
            "step_um": [10.0, 10.0],
            "fields_um": {str(n): (10 * bend).tolist() for n, bend in bends.items()},
            "pairs": [],
        },
    )
    seen = {}
    for name, model in (("bent", at_place), ("not", replace(at_place, deformation=None))):
        compare_overlaps(
            [volume(0, upper), volume(1, lower)], model, {0: 1}, tmp_path / name, first_plane=0
        )
        found = load_model(tmp_path / name, "overlap_attenuation_z00", OverlapAttenuation)
        true = imaged(fine(lacking)[None], bends[0])[0, ::BIN, ::BIN]
        inner = (slice(8, -8), slice(8, -8))
        pair = found.mu_per_mm[inner].astype(float).ravel(), true[inner].ravel()
        seen[name] = np.corrcoef(*pair)[0, 1]
    assert seen["bent"] > 0.95 and seen["not"] < 0.9


def test_strips_give_the_bits_of_the_whole(rng, monkeypatch):
    from linumpy.brain import overlap_attenuation

    scene = tissue(rng, (80, 260, 120))
    pair = volume(0, scene[:50]), volume(1, scene[20:70] * rng.rayleigh(0.8, (50, 260, 120)))
    whole = measure_overlap(*pair, VOXEL_UM, OFFSET, HERE, first_plane=2)
    monkeypatch.setattr(overlap_attenuation, "_VOXELS_AT_ONCE", 1)
    strips = measure_overlap(*pair, VOXEL_UM, OFFSET, HERE, first_plane=2)
    np.testing.assert_array_equal(strips.mu_per_mm, whole.mu_per_mm)
    np.testing.assert_array_equal(strips.face_px, whole.face_px)


def test_slices_that_hardly_meet_say_nothing(rng):
    pair = volume(0, tissue(rng, SHAPE)), volume(1, tissue(rng, SHAPE))
    assert measure_overlap(*pair, VOXEL_UM, 45, HERE, first_plane=0) is None
    assert measure_overlap(*pair, VOXEL_UM, 0, HERE, first_plane=0) is None


@pytest.fixture
def lacks(rng):
    """What is found of a pair of slices that are shifted by a voxel against each other."""
    scene = tissue(rng)
    pair = volume(0, scene[:50]), volume(1, scene[20:70] * rng.rayleigh(0.8, SHAPE))
    found = measure_overlap(*pair, VOXEL_UM, OFFSET, HERE, first_plane=2)
    return replace(found, mu_per_mm=field(rng, 2.0, 1.0).astype(np.float16))


def registration(accepted=True, deeper_um=0.0, aside_um=0.0, rotation_deg=0.0):
    slices = [
        {
            "slice_id": k,
            "offset_um": [k * deeper_um, k * aside_um, 0.0],
            "rotation_deg": k * rotation_deg,
            "n_pairs": 1,
        }
        for k in (0, 1)
    ]
    pairs = [{"fixed_id": 0, "moving_id": 1, "accepted": accepted}]
    return SliceRegistration(0, VOXEL_UM, 10.0 * OFFSET, slices, pairs, (480.0, 600.0))


def test_a_slice_is_read_corrected(tmp_path, rng, lacks, device):
    """At centres of bins by exp(Δµ·z); any planes give the same bits, any window the same values.

    Bits of other windows differ where BLAS rounds at the edges of a matrix as it does not within.
    """
    save_overlap(tmp_path, lacks)
    data = rng.random(SHAPE).astype(np.float32)
    pair = [volume(0, data, device=device), volume(1, data, device=device)]
    upper, lower = with_overlaps(pair, tmp_path, registration())
    assert (upper.attenuation_from, lower.attenuation_from) == (1, None)
    assert lower is pair[1]
    seen = to_host(upper.read(slice(0, SHAPE[0]), upper.whole())[0])
    depth = np.maximum(np.arange(SHAPE[0])[:, None, None] + 0.5 - lacks.face_px, 0) * 0.01
    gain = np.exp(lacks.mu_per_mm * depth)
    # A bin of two pixels has its centre between them: the mean of four pixels' gains is near it.
    ratio = (seen / data).reshape(SHAPE[0], BINS[0], BIN, BINS[1], BIN).mean(axis=(2, 4))
    np.testing.assert_allclose(ratio, gain, rtol=0.15)
    np.testing.assert_allclose(np.log(ratio).mean(), np.log(gain).mean(), atol=5e-3)
    part = to_host(upper.read(slice(17, 40), upper.whole())[0])
    np.testing.assert_array_equal(part, seen[17:40])
    window = (slice(31, 77), slice(0, 51))
    part = to_host(upper.read(slice(17, 40), window)[0])
    np.testing.assert_allclose(part, seen[(slice(17, 40), *window)], rtol=5e-7)


@pytest.mark.parametrize(
    ("model", "used"),
    [
        (registration(), 1),
        (registration(deeper_um=20.0, aside_um=30.0, rotation_deg=0.5), 1),
        (registration(accepted=False), None),
        (registration(deeper_um=30.0), None),
        (registration(aside_um=50.0), None),
        (registration(rotation_deg=4.0), None),
    ],
)
def test_only_what_the_registration_bears_out_is_used(tmp_path, rng, lacks, model, used):
    """As by hand, or outvoted by other pairs. Seen to fail where place was not looked at."""
    save_overlap(tmp_path, lacks)
    pair = [volume(k, rng.random(SHAPE)) for k in (0, 1)]
    assert with_overlaps(pair, tmp_path, model)[0].attenuation_from == used


def test_a_file_of_another_slice_is_named(tmp_path, rng, lacks):
    save_overlap(tmp_path, lacks)
    pair = [volume(k, rng.random((50, 40, 40))) for k in (0, 1)]
    with pytest.raises(InputError, match=r"overlap_attenuation_z00\.json: .*measure_pairs"):
        with_overlaps(pair, tmp_path, registration())


def test_a_missing_folder_is_named(tmp_path, rng):
    with pytest.raises(InputError, match=r"nothing: no such folder of pairs"):
        with_overlaps([volume(0, rng.random(SHAPE))], tmp_path / "nothing", registration())


def test_pairs_without_a_registration_are_refused(tmp_path):
    with pytest.raises(InputError, match="--pairs .*goes with --registration"):
        stack_folder(tmp_path, None, tmp_path / "b.ome.zarr", {}, pairs=tmp_path)


def test_what_was_measured_before_is_removed(tmp_path, lacks):
    save_overlap(tmp_path, lacks)
    remove_saved(tmp_path, STEM, [1])
    assert len(list(tmp_path.glob("overlap_attenuation_z00*"))) == 2
    remove_saved(tmp_path, STEM, [0])
    assert not list(tmp_path.glob("overlap_attenuation*"))


def test_models_are_read_once_as_far_as_they_fit(tmp_path, lacks, monkeypatch):
    """Slice after slice, block after block. Seen to fail: each of nine was read anew each time."""
    from linumpy.brain import overlap_correction

    read = []
    load = overlap_correction.load_model
    monkeypatch.setattr(
        overlap_correction, "load_model", lambda *given: read.append(given) or load(*given)
    )
    paths = [save_overlap(tmp_path, replace(lacks, fixed_id=k)) for k in range(30)]
    kept = overlap_correction._Kept()
    for _ in range(3):
        for path in paths:
            kept.load(path)
    assert len(read) == 30
    monkeypatch.setattr(overlap_correction, "_BUDGET_BYTES", 1)
    kept = overlap_correction._Kept()
    for path in paths[:2] * 2:
        kept.load(path)
    assert len(read) == 34


def test_columns_without_data_have_no_face(rng):
    """A bin at the border of what was imaged begins where its columns do.

    Seen to fail: 25 planes too deep.
    """
    valid = np.ones(SHAPE, bool)
    valid[:, :, :31] = False
    scene = tissue(rng)
    pair = volume(0, scene[:50] * valid, valid), volume(1, scene[20:70])
    found = measure_overlap(*pair, VOXEL_UM, OFFSET, HERE, first_plane=2)
    assert (found.face_px == 0).all()


@pytest.mark.parametrize(("value", "said"), [(np.nan, "not finite"), (None, "one shape")])
def test_a_damaged_file_is_named(tmp_path, lacks, value, said):
    """Seen to fail for the shape."""
    path = save_overlap(tmp_path, lacks)
    arrays = dict(np.load(path.with_suffix(".npz")))
    if value is None:
        arrays["face_px"] = arrays["face_px"][:5]
    else:
        arrays["mu_per_mm"][3, 3] = value
    np.savez(path.with_suffix(".npz"), **arrays)
    pair = [volume(k, np.ones(SHAPE)) for k in (0, 1)]
    with pytest.raises(InputError, match=rf"overlap_attenuation_z00.*{said}"):
        with_overlaps(pair, tmp_path, registration())


def test_a_file_that_was_written_anew_is_read_anew(tmp_path, lacks):
    """Seen to fail: the first one was kept."""
    pair = [volume(k, np.ones(SHAPE)) for k in (0, 1)]
    seen = []
    for factor in (1, 2):
        path = save_overlap(tmp_path, replace(lacks, mu_per_mm=lacks.mu_per_mm * factor))
        os.utime(path, ns=(0, factor))
        upper = with_overlaps(pair, tmp_path, registration())[0]
        seen.append(np.log(upper.read(slice(0, SHAPE[0]), upper.whole())[0]).std())
    assert seen[1] == pytest.approx(2 * seen[0], rel=0.02)


def test_stacked_at_once_or_aligned_before_gives_the_same_bits(tmp_path, rng, device):
    """And the brain is the one without, times the gain, where one slice alone shows it."""
    folder = tmp_path / "slices"
    data = (0.5 + rng.random((2, 30, 64, 280))).astype(np.float32)
    for k in (0, 1):
        write_slice(folder, k, data[k], corner_um=(40.0 * k, 0.0))
    model = replace(
        registration(), slice_interval_um=100.0, slices=[
            {"slice_id": k, "offset_um": [0.0, 3.0 * k, -7.0 * k], "n_pairs": 1} for k in (0, 1)
        ],
    )  # fmt: skip
    write_json(tmp_path / "register_slices.json", asdict(model))
    pair = volume(0, data[0]), volume(1, data[1])
    found = measure_overlap(*pair, VOXEL_UM, 10, HERE, first_plane=0)
    lacking = field(rng, 3.0, 1.0, (32, 140)).astype(np.float16)
    save_overlap(tmp_path / "pairs", replace(found, mu_per_mm=lacking))
    options = {"registration": tmp_path / "register_slices.json", "device": device}
    pairs = tmp_path / "pairs"
    one, two, plain = (tmp_path / f"{name}.ome.zarr" for name in ("one", "two", "plain"))
    output = tmp_path / "stack.json"
    stack_folder(folder, None, one, {}, pairs=pairs, output_model=output, **options)
    stack_folder(folder, None, plain, {}, **options)
    for path in sorted(folder.iterdir()):
        align_slice(
            path, folder, options["registration"], tmp_path / "all" / path.name, pairs=pairs,
            device=device,
        )  # fmt: skip
    aligned = tmp_path / "aligned.json"
    stack_folder(tmp_path / "all", None, two, {}, aligned=True, output_model=aligned, **options)
    np.testing.assert_array_equal(open_image(one).array[...], open_image(two).array[...])
    for path in (output, aligned):
        assert '"attenuation_from": 1' in path.read_text()
    inner = (5, slice(2, 60), slice(2, 270))
    own = open_image(one).array[inner] / open_image(plain).array[inner]
    gain = np.exp(fine(lacking.astype(float))[2:60, 2:270] * 0.055)
    assert np.corrcoef(own.ravel(), gain.ravel())[0, 1] > 0.95
