"""Axial response and attenuation between files, on a small slice volume."""

import json

import numpy as np
import pytest

from linumpy.core.errors import InputError
from linumpy.io.models import load_model, save_model
from linumpy.io.omezarr import create_image, open_image
from linumpy.io.slice_layout import volume_spec
from linumpy.slices import single_stages as single
from linumpy.slices.psf_stages import AGAROSE_ATTRIBUTE, NOISE_ATTRIBUTE

from ..intensity.confocal import confocal_response

N_PLANES, SIDES = 64, (120, 300)
AGAROSE_MU, TISSUE_MU, NOISE = 0.5, 2.0, 6.0


@pytest.fixture(scope="module")
def stitched(tmp_path_factory):
    """A stitched slice: agarose beside tissue below water, from speckle and noise."""
    rng = np.random.default_rng(3)
    depth = (np.arange(N_PLANES)[:, None, None] + 0.5) * 10
    is_agarose = np.arange(SIDES[1]) < 200
    below = np.maximum(depth - 120, 0)
    mu, level = np.where(is_agarose, AGAROSE_MU, TISSUE_MU), np.where(is_agarose, 40.0, 250.0)
    power = level**2 * confocal_response(depth, 250, 350) * np.exp(-2e-3 * mu * below)
    field = rng.normal(size=(2, N_PLANES, *SIDES)) * np.sqrt(power * (depth > 120))
    field += NOISE * rng.normal(size=field.shape)
    path = tmp_path_factory.mktemp("stitched") / "slice.ome.zarr"
    attributes = {"kind": "slice", "slice_id": 4, "slice_interval_um": 200.0, "interface_um": None}
    spec = volume_spec((N_PLANES, *SIDES), (10.0, 10.0, 10.0), (0.0, 50.0, 70.0), attributes)
    with create_image(path, spec, overwrite=False, with_valid=True) as image:
        image.array[:] = np.sqrt((field**2).sum(axis=0) / 2).astype(np.float32)
        image.valid[:] = 1
    return path


@pytest.fixture(scope="module")
def corrected(stitched):
    """The slice after each step, by name."""
    from linumpy.core.device import CPU

    folder, options = stitched.parent, {"overwrite": False, "device": CPU}
    paths = {n: folder / f"{n}.ome.zarr" for n in ("axial", "cropped", "attenuation", "mu")}
    single.refocus_slice(stitched, paths["axial"], {}, "model", models=None, **options)
    single.crop_slice(paths["axial"], paths["cropped"], {}, output_model=None, **options)
    single.attenuate_slice(
        paths["cropped"], paths["attenuation"], {}, output_model=folder / "m.json", **options
    )
    single.attenuation_map(paths["cropped"], paths["mu"], {}, **options)
    return paths


def plane_means(path, columns):
    return np.asarray(open_image(path).array)[:, :, columns].mean(axis=(1, 2))


def test_a_slice_alone_teaches_its_response(stitched, corrected):
    record = json.loads((stitched.parent / "axial_compensate_psf.json").read_text())
    assert abs(record["focus_um"] - 250) < 25 and abs(record["rayleigh_um"] - 350) < 35
    response = np.load(stitched.parent / "axial_compensate_psf.npz")["response"]
    before, after = (np.asarray(open_image(p).array) for p in (stitched, corrected["axial"]))
    np.testing.assert_allclose(after, before / np.sqrt(response)[:, None, None], rtol=1e-5)


def test_corrected_slice_states_residual_noise_and_agarose(stitched, corrected):
    attributes = open_image(corrected["axial"]).attributes
    record = json.loads((stitched.parent / "axial_compensate_psf.json").read_text())
    response = np.load(stitched.parent / "axial_compensate_psf.npz")["response"]
    assert attributes["agarose_mu_per_mm"] == record["medium_mu_per_mm"]
    expected = NOISE * np.sqrt(np.pi / 4) / np.sqrt(response)
    np.testing.assert_allclose(attributes["noise_amplitude"], expected, rtol=0.02)


def test_tissue_ends_up_flat(corrected):
    seen = plane_means(corrected["attenuation"], slice(220, 290))[3:48]
    assert np.abs(seen / seen.mean() - 1).max() < 0.05
    left = plane_means(corrected["cropped"], slice(220, 290))[3:48]
    assert left[0] / left[-1] > 2


def test_the_map_holds_the_coefficients(stitched, corrected):
    image = open_image(corrected["mu"])
    mu = np.asarray(image.array)
    assert image.attributes["value_unit"] == "1/mm" and image.voxel_um == (10, 40, 40)
    model = np.load(stitched.parent / "m.npz")["mu_per_mm"]
    np.testing.assert_array_equal(mu, model.astype(np.float32))
    cropped = open_image(corrected["cropped"])
    corners = [
        np.subtract(i.translation_um, np.divide(i.voxel_um, 2)) for i in (image, cropped)
    ]  # fmt: skip
    np.testing.assert_allclose(*corners, atol=1e-9)
    assert abs(np.median(mu[2:35, :, 56:72]) - TISSUE_MU) < 0.15
    # Agarose keeps what the axial response says of it.
    left = cropped.attributes["agarose_mu_per_mm"]
    np.testing.assert_allclose(np.median(mu[2:35, :, 4:40]), left, atol=1e-3)


def test_the_profile_of_agarose_leaves_nothing_in_agarose(stitched, tmp_path, device):
    out = tmp_path / "axial.ome.zarr"
    single.refocus_slice(
        stitched, out, {}, "model_free", models=None, overwrite=False, device=device
    )
    seen = plane_means(out, slice(0, 190))[16:]
    # What is left is the noise, which was raised with the rest.
    assert np.abs(seen / seen.mean() - 1).max() < 0.05
    assert open_image(out).attributes["agarose_mu_per_mm"] == 0


def test_switched_off_it_is_a_copy(stitched, tmp_path, device):
    options = {"overwrite": False, "device": device}
    off = {"compensate_psf_enabled": False, "compensate_attenuation_enabled": False}
    out = [tmp_path / f"{n}.ome.zarr" for n in range(2)]
    single.refocus_slice(stitched, out[0], off, "model", models=None, **options)
    single.attenuate_slice(out[0], out[1], off, output_model=tmp_path / "m.json", **options)
    before, after = (np.asarray(open_image(p).array) for p in (stitched, out[1]))
    np.testing.assert_array_equal(before, after)
    assert sorted(p.name for p in tmp_path.iterdir()) == [p.name for p in out]


def test_a_response_of_another_kind_or_depth_is_refused(stitched, corrected, tmp_path, device):
    """Seen to fail without the errors of `single_stages.refocus_slice` and `psf_stages.start`."""
    from dataclasses import replace

    from linumpy.intensity.compensate_psf import AxialResponse

    learned = load_model(stitched.parent, "axial_compensate_psf", AxialResponse)
    save_model(tmp_path, "compensate_psf", learned)
    options = {"models": tmp_path, "overwrite": False, "device": device}
    out = tmp_path / "out.ome.zarr"
    with pytest.raises(InputError, match="learned by method model, expected model_free"):
        single.refocus_slice(stitched, out, {}, "model_free", **options)
    save_model(tmp_path, "compensate_psf", replace(learned, response=learned.response[:50]))
    with pytest.raises(InputError, match="learned on 50 planes, but these tiles have 64"):
        single.refocus_slice(stitched, out, {}, "model", **options)
    assert not out.exists()


def test_a_slice_that_shows_no_profile_is_left_as_it_is(tmp_path, rng, caplog):
    """Seen to fail with the error that ended the run."""
    noise = np.abs(rng.normal(0, NOISE, (40, 96, 96))).astype(np.float32)
    path, corrected = tmp_path / "noise.ome.zarr", tmp_path / "corrected.ome.zarr"
    attributes = {"kind": "slice", "slice_id": 4, "slice_interval_um": 200.0, "interface_um": None}
    spec = volume_spec(noise.shape, (10.0, 10.0, 10.0), (0.0, 0.0, 0.0), attributes)
    with create_image(path, spec, overwrite=False, with_valid=True) as image:
        image.array[:] = noise
        image.valid[:] = 1
    from linumpy.core.device import CPU

    single.refocus_slice(path, corrected, {}, "model", models=None, overwrite=False, device=CPU)
    image = open_image(corrected)
    np.testing.assert_array_equal(np.asarray(image.array), noise)
    # As without the step: attenuation then looks for the noise itself.
    assert NOISE_ATTRIBUTE not in image.attributes and AGAROSE_ATTRIBUTE not in image.attributes
    assert "no axial profile of agarose or tissue" in caplog.text
    record = json.loads((tmp_path / "corrected_compensate_psf.json").read_text())
    assert (record["method"], record["n_tiles"]) == ("none", 0)
