"""What a slice's process imports: Python runs one thread at a time, so imports are waited for."""

import pytest

from linumpy.slices.learn_models import learn_models
from linumpy.stage_params.slices import LearnParams, SliceParams

PARAMS = SliceParams.from_values({})
NEVER = {
    "linumpy.intensity.compensate_psf_profile",
    "matplotlib",
    "pydantic",
    "scipy.optimize",
    "scipy.sparse",
    "SimpleITK",
}


@pytest.fixture
def models(tiny_grids, tmp_path):
    learned = learn_models(
        tiny_grids[:1],
        resample=PARAMS.resample,
        focal=PARAMS.focal,
        illumination=PARAMS.illumination,
        learn=LearnParams(),
        psf=PARAMS.psf,
    )
    learned.save(tmp_path / "models")
    return tmp_path / "models"


def test_a_slice_imports_only_what_it_computes_with(
    script, tiny_grids, models, device, tmp_path, monkeypatch
):
    if device.is_gpu:
        import cupy

        if int(cupy.__version__.split(".")[0]) < 14:
            pytest.skip("CuPy itself imports SciPy")
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    flag = "--use_gpu" if device.is_gpu else "--no-use_gpu"
    output = tmp_path / "z.ome.zarr"
    done = script("reconstruct_slice", tiny_grids[0], output, "--models", models, flag)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    names = {line.rpartition("|")[2].strip() for line in lines}
    assert "linumpy.slices.reconstruct_slice" in names
    assert not NEVER & names
    # CuPy's filters bring all of CuPy's SciPy, and SciPy's sparse matrices, with them.
    scipy = sorted(name for name in names if name.split(".")[0] in ("scipy", "cupyx"))
    assert scipy == [] if device.is_gpu else "scipy.ndimage" in scipy
