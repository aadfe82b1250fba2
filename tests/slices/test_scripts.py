"""Each script of a single stage, run as a user runs it.

`test_single_stages` calls the same functions in one process.
"""

import json
import shutil
from itertools import pairwise

import numpy as np
import pytest
import zarr
from PIL import Image as Pillow

from linumpy.io.grid import open_grid
from linumpy.io.omezarr import open_image
from linumpy.stage_params.slices import LEARNED
from linumpy.store.manifest import adopt

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def work(script, tiny, tiny_grids, tmp_path_factory):
    """The chain of scripts on one slice, then two slices to a brain."""
    folder = tmp_path_factory.mktemp("scripts")
    script("learn_models", *tiny_grids, "--output", folder / "models")
    models = ("--models", folder / "models")
    step = [folder / f"{n}.ome.zarr" for n in range(7)]
    script("resample_mosaic_grid", tiny_grids[1], step[0], "-r", 10)
    steps = [step[0], *(folder / f"{stage.name}.ome.zarr" for stage in LEARNED[:-1]), step[2]]
    for stage, (before, after) in zip(LEARNED, pairwise(steps), strict=True):
        script(stage.name, before, after, *models)
    script("aip_png", step[2], folder / "aip.png")
    script("aip", step[2], folder / "aip.ome.zarr")
    script("register_tiles", step[2], folder / "register_tiles.json")
    positions = ("--positions", folder / "register_tiles.json")
    script("stitch_3d_refined", step[2], step[3], *positions)
    script("compensate_psf_from_model", step[3], step[4], *models)
    cut = ("--output_model", folder / "cut.json")
    script("crop_3d_mosaic_below_interface", step[4], step[5], *cut)
    script("compensate_attenuation_inplace", step[5], step[6])
    script("normalize_intensities_per_slice", step[6], folder / "slices/slice_z01.ome.zarr")
    out = folder / "slices/slice_z02.ome.zarr"
    script("reconstruct_slice", tiny_grids[2], out, *models, "--preview", folder / "z02.png")
    script("estimate_xy_shift_from_metadata", tiny / "raw", folder / "shifts_xy.csv")
    table = folder / "shifts_xy.csv"
    script("register_slices", folder / "slices", table, folder / "register_slices.json")
    registration = ("--registration", folder / "register_slices.json")
    brain = folder / "brain.ome.zarr"
    script("stack_slices_motor", folder / "slices", table, brain, *registration)
    return folder


def test_the_chain_ends_in_what_the_fused_script_makes(script, work, tiny_grids, tmp_path):
    out = tmp_path / "s.ome.zarr"
    script("reconstruct_slice", tiny_grids[1], out, "--models", work / "models")
    chained = open_image(work / "slices/slice_z01.ome.zarr")
    np.testing.assert_array_equal(np.asarray(open_image(out).array), np.asarray(chained.array))


def test_aips_are_means_over_depth(work):
    grid = open_grid(work / "2.ome.zarr")
    tile, valid = grid.read_tile(1, 2), grid.read_valid(1, 2)
    mean = (tile * valid).sum(axis=0) / valid.sum(axis=0)
    flat = open_grid(work / "aip.ome.zarr")
    np.testing.assert_allclose(flat.read_tile(1, 2)[0], mean, rtol=1e-5)
    picture = np.asarray(Pillow.open(work / "aip.png"))
    assert picture.dtype == np.uint16
    assert picture.shape == (3 * 64, 3 * 64)
    part = picture[64:128, 128:192].astype(float)
    assert np.corrcoef(part.ravel(), mean.ravel())[0, 1] > 0.999


def test_the_brain_has_its_pyramid_and_place(work):
    image = open_image(work / "brain.ome.zarr")
    assert [s[0] for s in image.level_scales_um] == [10, 25, 50, 100]
    assert image.attributes["slice_ids"] == [1, 2]
    assert np.asarray(image.valid).mean() > 0.8


def test_outputs_are_kept_without_overwrite(script, work, tiny_grids):
    arguments = ("resample_mosaic_grid", tiny_grids[0], work / "0.ome.zarr", "-r", 20)
    done = script(*arguments, check=False)
    assert done.returncode == 1
    assert "exists already; give --overwrite" in done.stderr and "Traceback" not in done.stderr
    assert open_grid(work / "0.ome.zarr").info.slice_id == 1
    copy = work / "copy.ome.zarr"
    shutil.copytree(work / "0.ome.zarr", copy)
    script(arguments[0], tiny_grids[0], copy, "-r", 20, "-f")
    assert open_grid(copy).info.slice_id == 0
    assert open_grid(copy).info.voxel_um == (20, 20, 20)


def test_models_learned_from_one_grid_are_saved_beside_it(script, work):
    out = work / "alone.ome.zarr"
    script("detect_focal_curvature", work / "0.ome.zarr", out)
    surface = np.load(work / "alone_detect_focal_curvature.npz")["surface_um"]
    shared = np.load(work / "models/detect_focal_curvature.npz")["surface_um"]
    assert np.corrcoef(surface.ravel(), shared.ravel())[0, 1] > 0.9


def test_switched_off_corrections_copy(script, work):
    out = work / "same.ome.zarr"
    script("fix_illumination_3d", work / "0.ome.zarr", out, "--no-fix_illum_enabled")
    np.testing.assert_array_equal(
        np.asarray(open_image(out).array), np.asarray(open_image(work / "0.ome.zarr").array)
    )


@pytest.fixture
def spoiled(work, tiny_grids, tmp_path):
    """A grid with a hole at (2, 2) and NaN in tile (0, 0)."""
    path = tmp_path / "mosaic_grid_3d_z01.ome.zarr"
    shutil.copytree(tiny_grids[1], path)
    group = zarr.open_group(path, mode="r+")
    attributes = dict(group.attrs["linumpy"])
    for tile in attributes["tiles"]:
        if (tile["ix"], tile["iy"]) == (2, 2):
            tile["present"] = False
    group.attrs["linumpy"] = attributes
    data = group["0"][:, :80, :80]
    data[40:60, 20:40, 20:40] = np.nan
    group["0"][:, :80, :80] = data
    adopt(path)
    return path


def test_holes_and_nan_are_masked_with_a_warning(script, work, spoiled, tmp_path):
    out = tmp_path / "s.ome.zarr"
    done = script("reconstruct_slice", spoiled, out, "--models", work / "models")
    assert "tiles that were not imaged and stay empty: 1" in done.stderr
    assert "tile (0, 0) has 8000 voxels that are not finite" in done.stderr
    image = open_image(out)
    data, valid = np.asarray(image.array), np.asarray(image.valid)
    assert np.isfinite(data).all()
    assert valid[:, -40:, -40:].max() == 0
    assert valid[5:40, :40, -40:].mean() > 0.9
    # Planes 40-60 of 6 um lie 240-360 um deep, the cut at about 120.
    hole = valid[14:22, 20:28, 20:28]
    assert hole.max() == 0 and (data[14:22, 20:28, 20:28] == 0).all()
    assert image.attributes["missing_tiles"] == [[2, 2]]
    assert image.attributes["nominal_positions"] is False


def test_cut_records_its_depth(work, tiny):
    cut = json.loads((work / "cut.json").read_text())
    known = json.loads((tiny / "truth/truth.json").read_text())["slices"][1]
    assert abs(cut["interface_um"] - known["gap_um"]) < 10
    # The face is uneven by some 10 um RMS: its highest point lies a few planes above the mean.
    assert 0 <= cut["interface_um"] / 10 - cut["first_plane"] < 6


def test_image_format_follows_the_file_name(script, work, tmp_path):
    """Seen to fail where a volume is written under the name of a picture."""
    grid, brain = work / "2.ome.zarr", work / "brain.ome.zarr"
    script("aip", grid, tmp_path / "aip.jpg")
    script("screenshot_omezarr", brain, tmp_path / "brain.jpg")
    for path in tmp_path.iterdir():
        with Pillow.open(path) as picture:
            assert picture.format == "JPEG"
    for command, source, ends in (
        ("aip", grid, ".png or .jpg, or in .ome.zarr"),
        ("screenshot_omezarr", brain, ".png or .jpg"),
    ):
        done = script(command, source, tmp_path / "x.tif", check=False)
        path = tmp_path / "x.tif"
        said = f"linum_{command}.py: error: {path}: expected a name that ends in {ends}\n"
        assert (done.returncode, done.stderr) == (1, said)
