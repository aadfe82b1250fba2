import gc
import json
import weakref

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter, zoom

from linumpy.brain.bias.correction import Correction
from linumpy.brain.bias.learning import _shrink, learn, sections
from linumpy.brain.bias.model import Fields, corrected_cells, fit_cells
from linumpy.brain.bias.shares import equal_sections, stacked_sections
from linumpy.brain.correct_bias_field import correct_bias_field
from linumpy.brain.depth_parts import DepthParts
from linumpy.brain.stacking import StackedSlice, hann_weights
from linumpy.core.device import to_host
from linumpy.core.errors import InputError, OutputExistsError
from linumpy.geometry.resample import resize
from linumpy.intensity.n4_fit import basis_matrix, contract
from linumpy.intensity.tissue import tissue_cells
from linumpy.io.models import load_model
from linumpy.io.omezarr import create_array, create_image, open_image
from linumpy.io.pyramid import Pyramid, write_parts
from linumpy.io.slice_layout import volume_spec
from linumpy.stage_params.bias import BiasParams
from linumpy.store.manifest import adopt
from linumpy.store.verify import verify

FIELDS_ALONE = {"match_planes": False, "zprofile_sigma_px": 0.0, "engine": "linumpy"}
SHAPE = (48, 264, 96)
UM = 25.0
N_SECTIONS = 4


def write_brain(path, volume, valid=None, um=UM, **attributes):
    """Write a volume as the stack writes a brain, with two coarser levels."""
    spec = volume_spec(
        volume.shape, (um, um, um), (0.0, 100.0, -40.0), {"kind": "brain", **attributes}
    )
    whole = tuple(slice(0, n) for n in volume.shape)
    with create_image(path, spec, overwrite=True, with_valid=valid is not None) as image:
        pyramid = Pyramid(image, [2 * um, 4 * um], volume.shape)
        image.array[whole] = volume
        if valid is not None:
            image.valid[whole] = valid
        write_parts(pyramid.add(whole, volume, valid))
    return path


def make_brain(seed):
    """Tissue of three brightnesses, times a smooth field and the decay within each section."""
    rng = np.random.default_rng(seed)
    noise = zoom(gaussian_filter(rng.standard_normal([n // 4 for n in SHAPE]), 2), 4, order=1)
    low, high = np.quantile(noise, [0.4, 0.75])
    tissue = np.select([noise > high, noise > low], [0.9, 0.5], 0.35)
    z, y, x = np.meshgrid(*(np.linspace(-1, 1, n) for n in SHAPE), indexing="ij", sparse=True)
    inside = np.broadcast_to((z * 0.5) ** 2 + (y / 0.8) ** 2 + (x / 0.8) ** 2 < 1, SHAPE)
    a = rng.uniform(-0.2, 0.2, 4)
    depth = np.arange(SHAPE[0]) % (SHAPE[0] // N_SECTIONS) / (SHAPE[0] // N_SECTIONS) - 0.5
    field = a[0] * x + a[1] * y + 0.15 * np.sin(2 * y + a[2]) + a[3] * x * y
    field = field - 0.3 * depth[:, None, None]
    # Amplitude speckle of scatterers that several looks were averaged over.
    speckle = rng.gamma(20, 1 / 20, SHAPE)
    agarose = np.maximum(0, 0.01 * rng.standard_normal(SHAPE))
    volume = np.where(inside, tissue * np.exp(field) * speckle, agarose)
    valid = np.ones(SHAPE, np.uint8)
    valid[:, :9] = 0
    volume = (volume * valid).astype(np.float32)
    return volume, valid, tissue, field, inside & (valid > 0)


@pytest.fixture(scope="module")
def brain(tmp_path_factory):
    path = tmp_path_factory.mktemp("bias") / "brain.ome.zarr"
    made = make_brain(1)
    write_brain(path, *made[:2], slice_ids=[3, 4, 5, 6], slice_interval_um=300.0, note="kept")
    return path, *made


def ratio_spread(volume, tissue, where):
    """Spread of ln brightness over ln truth between blocks of 8³ voxels that are all tissue."""
    shape = [n // 8 for n in volume.shape]
    cut = tuple(part for n in shape for part in (n, 8))

    def means(values):
        trimmed = values[tuple(slice(0, 8 * n) for n in shape)]
        return trimmed.reshape(cut).mean(axis=(1, 3, 5))

    full = means(where.astype(float)) == 1
    return float(np.log(means(volume)[full] / means(tissue)[full]).std())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_known_field_is_taken_off(tmp_path, seed, device):
    volume, valid, tissue, field, inside = make_brain(seed)
    write_brain(tmp_path / "in.ome.zarr", volume, valid, slice_ids=[0, 1, 2, 3])
    saved = tmp_path / "field.ome.zarr"
    correct_bias_field(
        tmp_path / "in.ome.zarr",
        tmp_path / "out.ome.zarr",
        BiasParams(**FIELDS_ALONE),
        field_path=saved,
        device=device,
    )
    image = open_image(tmp_path / "out.ome.zarr")
    before, after = (ratio_spread(v, tissue, inside) for v in (volume, image.array[:]))
    assert after < 0.5 * before
    divisor = open_image(saved).array[:]
    error = np.log(divisor[inside]) - np.broadcast_to(field, SHAPE)[inside]
    assert error.std() < 0.5 * np.broadcast_to(field, SHAPE)[inside].std()
    # The brain was divided by that field, to the voxel.
    assert np.allclose(image.array[:] * divisor, volume, rtol=1e-5)


def test_agarose_and_mask_stay_as_they_are(brain, tmp_path):
    path, volume, valid, _, _, inside = brain
    output = tmp_path / "out.ome.zarr"
    correct_bias_field(path, output, BiasParams(engine="linumpy"))
    image = open_image(output)
    assert np.array_equal(image.valid[:], valid)
    from scipy.ndimage import binary_dilation

    # Two cells of 4 voxels pass over from the last cell with tissue.
    near = binary_dilation(inside, np.ones((3, 3, 3)), iterations=16)
    assert (~near).sum() > 10000
    assert np.array_equal(image.array[:][~near], volume[~near])
    assert not image.array[:][valid == 0].any()
    assert not np.array_equal(image.array[:][inside], volume[inside])


def test_levels_labels_and_attributes_are_kept(brain, tmp_path):
    import zarr

    path, volume, valid, *_ = brain
    source = write_brain(
        tmp_path / "in.ome.zarr", volume, valid, slice_ids=[3, 4], slice_interval_um=300.0
    )
    group = zarr.open_group(source, mode="a")
    atlas = create_array(source, "labels/atlas/0", SHAPE, SHAPE, SHAPE, "u2")
    atlas[:] = (volume > 0.5).astype(np.uint16) * 7
    group["labels"].attrs["ome"] = {"version": "0.5", "labels": ["valid", "atlas"]}
    adopt(source)
    output = tmp_path / "out.ome.zarr"
    correct_bias_field(source, output, BiasParams(engine="linumpy", mode="global"))
    before, after = open_image(source), open_image(output)
    assert after.level_scales_um == before.level_scales_um
    assert after.level_translations_um == before.level_translations_um
    assert [a.shape for a in after.arrays] == [a.shape for a in before.arrays]
    assert after.attributes["slice_ids"] == [3, 4]
    assert after.attributes["slice_interval_um"] == 300.0
    assert after.attributes["bias_field"] == {"mode": "global", "strength": 1.0}
    assert verify(output, deep=True) == []
    copied = zarr.open_group(output, mode="r")
    assert np.array_equal(copied["labels/atlas/0"][:], atlas[:])
    assert copied["labels"].attrs["ome"]["labels"] == ["valid", "atlas"]
    # Each level is that of the corrected brain.
    expected = resize(after.array[:], after.arrays[1].shape)
    known = zarr.open_group(output, mode="r")["labels/valid/1"][:] > 0
    assert np.allclose(after.arrays[1][:][known], expected[known], atol=1e-5)


@pytest.mark.slow
def test_no_strength_changes_nothing_and_half_is_half(brain, tmp_path):
    path, volume, *_ = brain
    found = {}
    for strength in (0.0, 0.5, 1.0):
        output = tmp_path / f"{strength}.ome.zarr"
        correct_bias_field(path, output, BiasParams(engine="linumpy", strength=strength))
        found[strength] = open_image(output).array[:]
    assert np.array_equal(found[0.0], volume)
    assert np.allclose(found[0.5], (volume + found[1.0]) / 2, rtol=1e-5, atol=1e-7)


def test_planes_get_one_distribution(tmp_path, device):
    rng = np.random.default_rng(5)
    shape = (24, 96, 88)
    tissue = rng.gamma(8, 0.06, shape)
    brightness = np.exp(0.3 * rng.standard_normal(shape[0]))
    volume = (tissue * brightness[:, None, None]).astype(np.float32)
    volume[:, :16] = 0
    write_brain(tmp_path / "in.ome.zarr", volume, slice_ids=[0])
    output = tmp_path / "out.ome.zarr"
    params = BiasParams(engine="linumpy", mode="global")
    correct_bias_field(tmp_path / "in.ome.zarr", output, params, device=device)
    out = open_image(output).array[:, 24:]
    expected = np.quantile(volume[:, 24:], [0.1, 0.5, 0.9])
    for plane in out:
        assert np.allclose(np.quantile(plane, [0.1, 0.5, 0.9]), expected, rtol=0.05)


def test_the_course_of_brightness_is_smoothed(tmp_path):
    rng = np.random.default_rng(6)
    shape = (40, 64, 64)
    course = 0.5 + 0.1 * np.sin(np.arange(40) / 12)
    jumps = rng.uniform(0.9, 1.1, 40)
    volume = rng.gamma(8, 1 / 8, shape) * (course * jumps)[:, None, None]
    write_brain(tmp_path / "in.ome.zarr", volume.astype(np.float32), slice_ids=[0])
    output = tmp_path / "out.ome.zarr"
    params = BiasParams(**{**FIELDS_ALONE, "zprofile_sigma_px": 2.0}, mode="global")
    correct_bias_field(tmp_path / "in.ome.zarr", output, params)
    steps = np.diff(np.log(open_image(output).array[:].mean(axis=(1, 2))))
    assert np.abs(steps).max() < 0.4 * np.abs(np.diff(np.log(course * jumps))).max()


def test_blocks_make_no_difference(brain):
    """What a voxel is multiplied by does not depend on the block that it is worked on in."""
    path, volume, *_ = brain
    image = open_image(path)
    labels, weights = sections(image, None, None)
    model, reach = learn(image, labels, weights, BiasParams(engine="linumpy", shrink_factor=3))
    correction = Correction(model, reach)
    whole = correction.apply(volume, tuple(slice(0, n) for n in SHAPE))
    part = (slice(16, 32), slice(131, 264), slice(7, 90))
    assert np.allclose(correction.apply(volume[part], part), whole[part], rtol=1e-5)


def test_a_correction_is_freed_when_it_is_let_go(brain):
    """Its tables, too, at once: a second one is made for the brain that is written.

    Seen to fail with `lru_cache` of a method.
    """
    path, volume, *_ = brain
    image = open_image(path)
    labels, weights = sections(image, None, None)
    correction = Correction(*learn(image, labels, weights, BiasParams(engine="linumpy")))
    part = (slice(16, 32), slice(0, 40), slice(0, 40))
    gc.disable()
    try:
        correction.apply(volume[part], part)
        alive = weakref.ref(correction)
        del correction
        assert alive() is None
    finally:
        gc.enable()


def test_devices_agree(brain, tmp_path, device):
    if not device.is_gpu:
        pytest.skip("compares a GPU with the CPU")
    path = brain[0]
    found = []
    for number, where in enumerate((device, None)):
        output = tmp_path / f"{number}.ome.zarr"
        options = {} if where is None else {"device": where}
        correct_bias_field(path, output, BiasParams(engine="linumpy"), **options)
        found.append(open_image(output).array[:])
    assert np.abs(found[0] - found[1]).max() < 0.002 * np.quantile(found[1], 0.999)


@pytest.mark.slow
def test_itk_finds_the_same(brain, tmp_path):
    pytest.importorskip("SimpleITK")
    path, *_, inside = brain
    found = []
    for engine in ("itk", "linumpy"):
        output = tmp_path / f"{engine}.ome.zarr"
        model = correct_bias_field(
            path, output, BiasParams(engine=engine, shrink_factor=8, mode="global")
        )
        assert model.engine == engine
        found.append(open_image(output).array[:][inside])
    ratio = np.log(found[0][found[1] > 0.1] / found[1][found[1] > 0.1])
    assert ratio.std() < 0.02


def test_fields_of_sections_pass_over_by_their_shares(rng, xp):
    splines = rng.standard_normal((2, 5, 4, 4))
    whole = rng.standard_normal((4, 5, 4))
    fields = Fields((12, 9, 7), np.array([[0, 7], [4, 11]]), splines, whole)
    shares = np.zeros((2, 12), np.float32)
    shares[0] = np.clip((8 - np.arange(12)) / 4, 0, 1)
    shares[1] = 1 - shares[0]
    places = [np.arange(n) for n in (12, 9, 7)]
    found = to_host(fields.log_values(places, shares, xp.zeros(1, np.float32)))

    def spline(coefficients, shape):
        matrices = [
            basis_matrix(np.linspace(0, c - 3, n), c - 3).T
            for c, n in zip(coefficients.shape, shape, strict=True)
        ]
        return contract(coefficients, matrices)

    expected = spline(whole, (12, 9, 7))
    for first, share, coefficients in zip((0, 4), shares, splines, strict=True):
        part = spline(coefficients, (8, 9, 7))
        expected[first : first + 8] += share[first : first + 8, None, None] * part
    assert np.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("factor", [1, 3, 4])
def test_cells_are_means_of_what_is_valid(brain, factor, device):
    path, volume, valid, *_ = brain
    found = _shrink(open_image(path), factor, None, device, DepthParts())
    mean, known = (to_host(a) for a in found)
    shape = [-(-n // factor) for n in SHAPE]
    assert mean.shape == known.shape == tuple(shape)
    for index in ([0, 0, 0], [3, 2, 1], [2, 3, 5], [n - 1 for n in shape]):
        cell = tuple(slice(factor * k, factor * (k + 1)) for k in index)
        inside = valid[cell] > 0
        assert np.isclose(known[tuple(index)], inside.mean())
        expected = volume[cell][inside].mean() if inside.any() else 0
        assert np.isclose(mean[tuple(index)], expected, rtol=1e-5)


def test_sections_are_those_of_the_stack():
    places = [
        StackedSlice(0, 0, 0, 40, 0),
        StackedSlice(1, 20, 4, 40, 16),
        StackedSlice(2, 50, 0, 30, 10, interpolated=True),
        StackedSlice(3, 84, 4, 40, 0),
    ]
    slices = [vars(place) for place in places]
    shares = stacked_sections(slices, 124).at(slice(0, 124))
    assert shares.shape == (4, 124)
    # Laid over each other as stacking does.
    column = np.zeros((4, 124))
    for n, place in enumerate(places):
        z = np.arange(place.begin, place.end)
        weight = place.weights(slice(place.first_plane_px, place.n_planes), blend=True)
        column[:, z] *= 1 - weight
        column[n, z] += weight
    assert np.allclose(shares, column)
    assert np.allclose(shares[1, 24:40], hann_weights(16))
    assert (shares[2] > 0).nonzero()[0].tolist() == list(range(60, 80))
    assert (shares.sum(axis=0) == 0).nonzero()[0].tolist() == list(range(80, 88))
    with pytest.raises(InputError, match="end at plane 124, the brain has 99"):
        stacked_sections(slices, 99)


def test_equal_sections_take_every_plane_once():
    shares = equal_sections(3, 10).at(slice(0, 10))
    assert shares.sum(axis=0).tolist() == [1] * 10
    assert sorted(shares.sum(axis=1)) == [3, 3, 4]
    with pytest.raises(InputError, match="n_serial_slices 11"):
        equal_sections(11, 10)


def test_tissue_is_separated_from_agarose_not_white_from_grey(rng):
    truth = np.zeros((3, 40, 40), bool)
    truth[:, 8:32, 8:32] = True
    brightness = np.where(truth, 0.3, 0.01)
    brightness[:, 18:24, 18:24] = 1.2
    cells = (brightness * rng.gamma(50, 1 / 50, truth.shape)).astype(np.float32)
    known = np.ones(truth.shape, np.float32)
    found = tissue_cells(cells, known, 0.005)
    assert (found != truth).mean() < 0.01
    assert found[:, 10:30, 10:30].all()
    bare = tissue_cells(np.where(truth, cells, 0), known, 0.005)
    assert bare[:, 10:30, 10:30].all()
    assert not tissue_cells(cells, known, 2.0).any()
    # Seen to fail with "Too many bins for data range" of scikit-image.
    even = np.float32(0.3) * (1 + 1e-7 * rng.random(cells.shape, np.float32))
    assert tissue_cells(even, known, 0.005).all()


def test_the_rim_teaches_nothing_and_holes_are_corrected():
    tissue = np.zeros((3, 30, 30), bool)
    tissue[:, 5:25, 5:25] = True
    tissue[1, 12:16, 12:16] = False
    taught, reached = fit_cells(tissue), corrected_cells(tissue)
    assert taught[0, 6:24, 6:24].all()
    assert taught[0].sum() == 18 * 18
    assert reached[:, 4:26, 4:26].all()
    assert reached.sum() == 3 * 22 * 22


def test_a_brain_without_tissue_stays(tmp_path):
    """Seen to fail where everything counts as tissue."""
    volume = np.full((16, 40, 40), 0.001, np.float32)
    write_brain(tmp_path / "in.ome.zarr", volume, slice_ids=[0])
    output = tmp_path / "out.ome.zarr"
    model = correct_bias_field(tmp_path / "in.ome.zarr", output, BiasParams(engine="linumpy"))
    assert model.tissue_fraction == 0
    assert np.array_equal(open_image(output).array[:], volume)


def test_bad_input_is_named(brain, tmp_path):
    """Seen to fail where `bias_learning.sections` lets a KeyError pass."""
    path = brain[0]
    params = BiasParams(engine="linumpy")
    with pytest.raises(InputError, match=r"nothing\.ome\.zarr"):
        correct_bias_field(tmp_path / "nothing.ome.zarr", tmp_path / "o.ome.zarr", params)
    with pytest.raises(OutputExistsError, match=r"brain\.ome\.zarr"):
        correct_bias_field(path, path, params)
    anonymous = write_brain(tmp_path / "a.ome.zarr", np.ones((8, 8, 8), np.float32))
    with pytest.raises(InputError, match="--n_serial_slices"):
        correct_bias_field(anonymous, tmp_path / "o.ome.zarr", params)
    model = tmp_path / "stack_slices_motor.json"
    for text, expected in (
        ('{"slices": [{"slice_id": 1}]}', "z_start_px"),
        ('{"slices": []}', "end at plane 0, the brain has 48"),
    ):
        model.write_text(text)
        with pytest.raises(InputError, match=expected) as caught:
            correct_bias_field(path, tmp_path / "o.ome.zarr", params, stack_model=model)
        assert "stack_slices_motor.json" in str(caught.value)
    assert not (tmp_path / "o.ome.zarr").exists()


def test_levels_that_cannot_be_made_again_are_refused(tmp_path):
    spec = volume_spec((8, 16, 16), (20.0, 5.0, 5.0), (0.0, 0.0, 0.0), {"slice_ids": [0]})
    path = tmp_path / "in.ome.zarr"
    with create_image(path, spec, overwrite=True) as image:
        image.add_level((4, 8, 8), (40.0, 10.0, 10.0), spec.chunks, spec.shards)
    with pytest.raises(InputError, match=r"\(40\.0, 10\.0, 10\.0\) um"):
        correct_bias_field(path, tmp_path / "o.ome.zarr", BiasParams(engine="linumpy"))


@pytest.mark.slow
def test_the_script_writes_brain_field_model_and_preview(brain, tmp_path, script):
    from linumpy.brain.bias.model import BiasModel

    path = brain[0]
    place = {"first_plane_px": 0, "n_planes": 12, "overlap_px": 0}
    stack = {
        "slices": [
            {**place, "slice_id": i, "z_start_px": 12 * n} for n, i in enumerate([3, 4, 5, 6])
        ]
    }
    (tmp_path / "stack_slices_motor.json").write_text(json.dumps(stack))
    script(
        "correct_bias_field", path, tmp_path / "out.ome.zarr",
        "--stack_model", tmp_path / "stack_slices_motor.json",
        "--save_bias_field", tmp_path / "field.ome.zarr",
        "--output_model", tmp_path / "models" / "correct_bias_field.json",
        "--preview", tmp_path / "out.png",
        "--params", "-",
        stdin=json.dumps({"bias_mode": "per_section", "bias_n4_engine": "linumpy"}),
    )  # fmt: skip
    model = load_model(tmp_path / "models", "correct_bias_field", BiasModel)
    assert model.section_labels == [3, 4, 5, 6]
    assert model.global_coefficients.size == 0
    assert model.section_coefficients.shape[0] == 4
    assert (tmp_path / "out.png").exists()
    assert open_image(tmp_path / "field.ome.zarr").attributes["kind"] == "bias_field"
    failed = script(
        "correct_bias_field", path, tmp_path / "other.ome.zarr", "--bias_strength", 1.5, check=False
    )
    assert failed.returncode == 1
    assert "--bias_strength 1.5: expected between 0 and 1" in failed.stderr
