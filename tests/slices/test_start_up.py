"""Imports of a slice's process, which delay it."""

import pytest

from .learned import learned

NEVER = {
    "linumpy.intensity.compensate_psf_profile",
    "matplotlib",
    "pydantic",
    "scipy.optimize",
    "scipy.sparse._base",
    "SimpleITK",
}


@pytest.fixture
def models(tiny_grids, tmp_path):
    learned(tiny_grids[:1]).save(tmp_path / "models")
    return tmp_path / "models"


@pytest.mark.slow
def test_a_slice_imports_only_what_it_computes_with(
    script, tiny_grids, models, device, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    flag = "--use_gpu" if device.is_gpu else "--no-use_gpu"
    output = tmp_path / "z.ome.zarr"
    done = script("reconstruct_slice", tiny_grids[0], output, "--models", models, flag)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    names = {line.rpartition("|")[2].strip() for line in lines}
    assert "linumpy.slices.reconstruct_slice" in names
    assert not NEVER & names
    # Without a GPU attenuation is smoothed by it.
    assert ("scipy.ndimage._ndimage_api" in names) == (not device.is_gpu)
