"""One pair alone, from the command line: transform, planes and model."""

import json

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from linumpy.io.omezarr import create_image
from linumpy.io.slice_layout import volume_spec

from ..conftest import run_script

VOXEL = (10.0, 10.0, 10.0)
HIDDEN_PX = (3.0, -2.0)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Slices 4 and 5, 10 planes apart; the stage does not know that slice 5 is off by HIDDEN_PX."""
    rng = np.random.default_rng(3)
    scene = gaussian_filter(rng.normal(size=(50, 120, 120)), (1, 1.2, 1.2)) * 2 + 3
    folder, paths = tmp_path_factory.mktemp("pair"), []
    for k, (first, second) in ((4, (10, 12)), (5, (13, 10))):
        data = scene[(k - 4) * 10 :][:30, first : first + 90, second : second + 90]
        described = {
            "kind": "slice", "slice_id": k, "slice_interval_um": 100.0, "interface_um": 120.0,
            "stage_to_array": "+x,+y", "nominal_positions": False,
        }  # fmt: skip
        path = folder / f"slice_z{k:02d}.ome.zarr"
        spec = volume_spec(data.shape, VOXEL, (120.0, 500.0, 700.0), described)
        with create_image(path, spec, overwrite=False, with_valid=True) as image:
            image.array[...] = data.astype(np.float32)
            image.valid[...] = 1
        paths.append(path)
    return paths


@pytest.mark.slow
def test_pair_is_written_as_itk_transform(pair, tmp_path):
    sitk = pytest.importorskip("SimpleITK")
    run_script(
        "register_pairwise", *pair, tmp_path / "out", "--registration_allowed_drifting_mm", 0.05
    )
    transform = sitk.ReadTransform(str(tmp_path / "out/transform.tfm"))
    assert transform.GetName() == "Euler3DTransform"
    # What the fixed slice shows at a stage position, the moving one shows HIDDEN_PX before it.
    x, y, z = transform.TransformPoint((900.0, 1100.0, 0.0))
    np.testing.assert_allclose((y, x, z), (1100 - 30, 900 + 20, 0), atol=1.5)
    fixed, moving = map(int, (tmp_path / "out/offsets.txt").read_text().split())
    assert (fixed, moving) == (14, 4)
    model = json.loads((tmp_path / "out/register_pairwise.json").read_text())
    assert model["accepted"] and model["reason"] == "" and model["z_correlation"] > 0.9
    np.testing.assert_allclose(model["shift_um"], (0, 30, -20), atol=1.5)


@pytest.mark.slow
def test_slices_in_the_wrong_order_and_existing_results_are_refused(pair, tmp_path):
    pytest.importorskip("SimpleITK")
    done = run_script("register_pairwise", pair[1], pair[0], tmp_path / "out", check=False)
    assert done.returncode != 0 and "expected the fixed slice first" in done.stderr
    (tmp_path / "out").mkdir(exist_ok=True)
    (tmp_path / "out/offsets.txt").write_text("0 0")
    done = run_script("register_pairwise", *pair, tmp_path / "out", check=False)
    assert done.returncode != 0 and "offsets.txt" in done.stderr
