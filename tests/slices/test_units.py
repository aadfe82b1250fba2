"""A microscope's numbers may have any unit: what is learned and measured does not depend on it."""

import shutil

import numpy as np
import pytest

from linumpy.intensity.compensate_attenuation import Attenuation
from linumpy.io.models import load_model
from linumpy.slices.learn_models import learn_models
from linumpy.slices.raw_source import raw_inputs
from linumpy.slices.reconstruct_slice import reconstruct_slice
from linumpy.stage_params.slices import SliceParams

PARAMS = SliceParams.from_values({})


def scaled(raw, folder, unit):
    """Copy raw tiles with all samples times a number."""
    shutil.copytree(raw, folder)
    for path in folder.rglob("image_*.bin"):
        (np.fromfile(path, "<f4") * np.float32(unit)).tofile(path)
    return folder


def measured(raw, folder):
    """Return models of all slices, and arrays of those of slice 1."""
    inputs = raw_inputs(raw)
    models = learn_models(inputs, PARAMS)
    reconstruct_slice(
        inputs[1], folder / "slice.ome.zarr", models, PARAMS, output_models=folder / "models"
    )
    return models, load_model(folder / "models", "compensate_attenuation", Attenuation)


@pytest.fixture(scope="module")
def usual(tiny, tmp_path_factory):
    return measured(tiny / "raw", tmp_path_factory.mktemp("usual"))


@pytest.mark.slow
@pytest.mark.parametrize("unit", [2.0**-20, 2.0**20])
def test_models_do_not_depend_on_the_unit(tiny, tmp_path, usual, unit):
    """With amplitudes of 0.003 the fly-back stayed in the tiles, and signal to noise was off."""
    models, attenuation = measured(scaled(tiny / "raw", tmp_path / "raw", unit), tmp_path)
    usual_models, usual_attenuation = usual
    surface, expected = (
        m.fields["detect_focal_curvature"].surface_um for m in (models, usual_models)
    )
    np.testing.assert_allclose(surface, expected, atol=1e-3)
    flat, expected = (m.fields["fix_illumination_3d"].flat_field for m in (models, usual_models))
    np.testing.assert_allclose(flat, expected, rtol=1e-4)
    np.testing.assert_allclose(models.axial.response, usual_models.axial.response, rtol=1e-3)
    for name in ("mu_per_mm", "mu_error_per_mm", "snr_db"):
        found, expected = (getattr(a, name).astype(float) for a in (attenuation, usual_attenuation))
        np.testing.assert_allclose(found, expected, rtol=0.01, atol=0.01, err_msg=name)
