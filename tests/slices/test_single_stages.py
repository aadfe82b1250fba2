"""Single stages between files: their numbers, what they keep, what they refuse.

At 20 um all of it is quick; the chain at the working resolution is run in `test_scripts`.
"""

import contextlib
import importlib.util
import io
import json
import shutil
import sys
from functools import cache

import numpy as np
import pytest
import zarr
from scipy.ndimage import map_coordinates
from skimage.transform import resize

from linumpy.core.errors import InputError, OutputExistsError
from linumpy.io.grid import open_grid
from linumpy.io.omezarr import open_image
from linumpy.slices.grid_io import GridSource, SliceSource
from linumpy.stage_params.slices import LEARNED
from linumpy.store.manifest import adopt
from linumpy.tiles.stitch_3d_refined import blending_weights

from ..conftest import SCRIPTS

RESOLUTION = ("-r", 20)
UNCORRECTED = ("--no-compensate_psf_enabled", "--no-compensate_attenuation_enabled")


@cache
def load_main(name):
    spec = importlib.util.spec_from_file_location(f"script_{name}", SCRIPTS / f"linum_{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def call(name, *arguments):
    """Run a script's main function in this process."""
    load_main(name)([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def chain(tiny, tiny_grids, tmp_path_factory):
    """Every stage's output on slice 1, by name, and two slices' worth of registration."""
    folder = tmp_path_factory.mktemp("chain")
    f = {n: folder / f"{n}.ome.zarr" for n in ("resampled", "stitched", "cropped")}
    f |= {n: folder / n for n in ("models", "slices")}
    f |= {"positions": folder / "positions.json", "shifts": folder / "shifts_xy.csv"}
    f |= {"registration": folder / "registration.json", "cut": folder / "cut.json"}
    f |= {"scaling": folder / "scaling.json", "folder": folder}
    models = ("--models", f["models"])
    call("learn_models", *tiny_grids, "--output", f["models"], "--resolution", 20)
    call("resample_mosaic_grid", tiny_grids[1], f["resampled"], *RESOLUTION)
    before = f["resampled"]
    for stage in LEARNED:
        f[stage.name] = folder / f"{stage.name}.ome.zarr"
        call(stage.name, before, f[stage.name], *models)
        before = f[stage.name]
    f["corrected"] = before
    call("register_tiles", f["corrected"], f["positions"], *models)
    call("stitch_3d_refined", f["corrected"], f["stitched"], "--positions", f["positions"])
    call("crop_3d_mosaic_below_interface", f["stitched"], f["cropped"], "--output_model", f["cut"])
    first = f["slices"] / "slice_z01.ome.zarr"
    call("normalize_intensities_per_slice", f["cropped"], first, "--output_model", f["scaling"])
    second = f["slices"] / "slice_z02.ome.zarr"
    call("reconstruct_slice", tiny_grids[2], second, *models, "--resolution", 20)
    call("estimate_xy_shift_from_metadata", tiny / "raw", f["shifts"])
    call("register_slices", f["slices"], f["shifts"], f["registration"])
    return f


def arrays(path):
    image = open_image(path)
    return np.asarray(image.array), np.asarray(image.valid), image


# --- what the stages compute


def test_resampled_tiles_are_scikit_images(chain, tiny_grids):
    """100 planes of 6 um and 80 pixels of 8 um become 30 and 32 of 20 um, corners kept."""
    source, grid = open_grid(tiny_grids[1]), open_grid(chain["resampled"])
    assert grid.info.tile_shape_px == (30, 32, 32) and grid.info.voxel_um == (20, 20, 20)
    assert grid.info.tiles == source.info.tiles
    np.testing.assert_array_equal(grid.info.corner_um(), source.info.corner_um())
    tile = grid.read_tile(2, 1)
    expected = resize(source.read_tile(2, 1), tile.shape, order=1, anti_aliasing=True)
    np.testing.assert_allclose(tile, expected, rtol=1e-4, atol=1e-4 * expected.max())


def test_flattened_tiles_are_moved_by_the_learned_surface(chain):
    surface = np.load(chain["models"] / "detect_focal_curvature.npz")["surface_um"]
    before, after = open_grid(chain["resampled"]), open_grid(chain["detect_focal_curvature"])
    tile, moved, valid = (
        before.read_tile(0, 2), after.read_tile(0, 2), after.read_valid(0, 2)
    )  # fmt: skip
    z, i, j = np.nonzero(valid)
    expected = map_coordinates(tile, [z + surface[i, j] / 20, i, j], order=1, mode="nearest")
    np.testing.assert_allclose(moved[z, i, j], expected, rtol=1e-4, atol=1e-3 * tile.max())
    assert abs(surface.mean()) < 1e-3 and np.ptp(surface) > 20
    assert 0.9 < valid.mean() < 1


def test_even_tiles_are_divided_by_the_flat_field(chain):
    flat = np.load(chain["models"] / "fix_illumination_3d.npz")["flat_field"]
    names = [stage.name for stage in LEARNED]
    place = names.index("fix_illumination_3d")
    before, after = (open_grid(chain[name]) for name in names[place - 1 : place + 1])
    np.testing.assert_allclose(after.read_tile(1, 1), before.read_tile(1, 1) / flat, rtol=1e-5)
    np.testing.assert_array_equal(after.read_valid(1, 1), before.read_valid(1, 1))
    assert flat.mean() == pytest.approx(1, abs=1e-4)


def test_a_stitched_slice_is_the_weighted_mean_of_its_tiles(chain):
    """Tiles moved by SciPy onto the whole canvas, weighted, summed and divided."""
    grid = open_grid(chain["corrected"])
    record = json.loads(chain["positions"].read_text())["tiles"]
    data, valid, image = arrays(chain["stitched"])
    corner = np.subtract(image.translation_um[1:], 10)
    np.testing.assert_allclose(corner, np.min([t["corner_um"] for t in record], axis=0), atol=1e-6)
    profile = blending_weights((32, 32), (32 * grid.info.overlap_fraction,) * 2, "linear")
    weight = np.outer(*profile)
    total, weights = np.zeros((2, *data.shape))
    z, i, j = np.indices(data.shape)
    for tile in record:
        # The lowest tile lies on the canvas' edge, where SciPy knows nothing a hair outside.
        offset = np.round(np.subtract(tile["corner_um"], corner) / 20, 9)
        at = [z, i - offset[0], j - offset[1]]
        inside = (at[1] >= 0) & (at[1] <= 31) & (at[2] >= 0) & (at[2] <= 31)
        mask = grid.read_valid(tile["ix"], tile["iy"]).astype(float)
        # All samples that a pixel rests on must be valid.
        inside &= map_coordinates(mask, at, order=1) > 1 - 1e-9
        values = map_coordinates(grid.read_tile(tile["ix"], tile["iy"]), at, order=1)
        here = inside * map_coordinates(weight, at[1:], order=1)
        total += here * values
        weights += here
    np.testing.assert_array_equal(valid > 0, weights > 0)
    good = weights > 0
    np.testing.assert_allclose(
        data[good], total[good] / weights[good], rtol=1e-3, atol=1e-4 * data.max()
    )


def test_a_cropped_slice_is_a_part_of_the_stitched_one(chain):
    cut = json.loads(chain["cut"].read_text())
    data, valid, image = arrays(chain["cropped"])
    whole, whole_valid, stitched = arrays(chain["stitched"])
    planes = slice(cut["first_plane"], cut["first_plane"] + cut["n_planes"])
    surface = np.load(chain["cut"].with_suffix(".npz"))["surface_um"]
    i, j = np.indices(data.shape[1:])
    # Cells of 8 pixels of 20 um; beyond the outermost centres the surface is constant.
    at = [(k + 0.5) / 8 - 0.5 for k in (i, j)]
    face = map_coordinates(surface.astype(float), at, order=1, mode="nearest") / 20
    below = np.arange(cut["n_planes"])[:, None, None] + cut["first_plane"] >= np.rint(face)
    np.testing.assert_array_equal(valid, whole_valid[planes] * below)
    np.testing.assert_array_equal(data, whole[planes] * below)
    down = np.subtract(image.translation_um, stitched.translation_um)
    np.testing.assert_allclose(down, (20 * cut["first_plane"], 0, 0), atol=1e-9)
    assert image.attributes["interface_um"] == cut["interface_um"]


def test_a_shallow_crop_keeps_what_was_asked_for(chain, tmp_path):
    """From --params, from a flag, and from both: the flag wins."""
    params = tmp_path / "p.json"
    params.write_text('{"crop_interface_out_depth": 200, "resolution": 10}')
    planes = []
    for given in (
        ("--params", params),
        ("--crop_interface_out_depth", 120),
        ("--params", params, "--crop_interface_out_depth", 160),
    ):
        out = tmp_path / f"{len(planes)}.ome.zarr"
        call("crop_3d_mosaic_below_interface", chain["stitched"], out, *given)
        planes.append(open_image(out).array.shape[0])
    cut = json.loads(chain["cut"].read_text())
    surface = np.rint(np.load(chain["cut"].with_suffix(".npz"))["surface_um"] / 20)
    assert cut["first_plane"] == surface.min()
    assert planes == [n + np.ptp(surface) for n in (10, 6, 8)]


def test_a_flat_cut_is_a_part_of_the_slice(chain, tmp_path):
    out, model = tmp_path / "flat.ome.zarr", tmp_path / "cut.json"
    call(
        "crop_3d_mosaic_below_interface", chain["stitched"], out, "--crop_interface_flat",
        "--crop_interface_out_depth", 200, "--output_model", model,
    )  # fmt: skip
    cut = json.loads(model.read_text())
    first = round(cut["interface_um"] / 20)
    assert cut["flat"] and (cut["first_plane"], cut["n_planes"]) == (first, 10)
    whole, whole_valid, _ = arrays(chain["stitched"])
    data, valid, _ = arrays(out)
    np.testing.assert_array_equal(data, whole[first : first + 10])
    np.testing.assert_array_equal(valid, whole_valid[first : first + 10])


def test_normalised_values_follow_the_saved_model(chain):
    model = json.loads(chain["scaling"].read_text())
    before, valid, _ = arrays(chain["cropped"])
    after, _, _ = arrays(chain["slices"] / "slice_z01.ome.zarr")
    floor, cap = (np.array(model[n])[:, None, None] for n in ("floor", "cap"))
    expected = np.where(valid > 0, (np.clip(before, floor, cap) - floor) / model["scale"], 0)
    np.testing.assert_allclose(after, expected, atol=1e-5)
    for plane in range(len(after)):
        values = before[plane][valid[plane] > 0]
        # The highest planes hold few voxels.
        tolerance = 0.0015 + 1 / len(values)
        assert (values > model["cap"][plane]).mean() == pytest.approx(0.001, abs=tolerance)


def test_intermediates_are_those_of_the_chain(chain, tiny_grids, tmp_path):
    kept, out = tmp_path / "kept", tmp_path / "s.ome.zarr"
    call(
        "reconstruct_slice", tiny_grids[1], out, "--models", chain["models"],
        "--resolution", 20, "--keep_intermediates", kept, "--output_models", tmp_path / "m",
    )  # fmt: skip
    for name, single in (
        ("mosaic_grid_3d_corrected_z01", "corrected"), ("slice_stitched_z01", "stitched"),
    ):  # fmt: skip
        for one, other in zip(
            arrays(kept / f"{name}.ome.zarr")[:2], arrays(chain[single])[:2], strict=True
        ):
            np.testing.assert_array_equal(one, other)
    assert json.loads((tmp_path / "m/register_tiles.json").read_text()) == json.loads(
        chain["positions"].read_text()
    )


# --- outputs that are there already


def outputs(chain, grids):
    """Arguments before and after the output of every script that writes one file or folder."""
    models = ("--models", chain["models"])
    one = chain["slices"] / "slice_z01.ome.zarr"
    tables = (chain["slices"], chain["shifts"])
    return {
        "resample_mosaic_grid": ((grids[1],), RESOLUTION, chain["resampled"]),
        "detect_focal_curvature": ((chain["resampled"],), models, chain["detect_focal_curvature"]),
        "fix_illumination_3d": (
            (chain["detect_focal_curvature"],), models, chain["fix_illumination_3d"],
        ),
        "aip": ((chain["corrected"],), (), None),
        "aip_png": ((chain["corrected"],), (), None),
        "register_tiles": (
            (chain["corrected"],), ("--models", chain["models"]), chain["positions"],
        ),
        "stitch_3d_refined": (
            (chain["corrected"],), ("--positions", chain["positions"]), chain["stitched"],
        ),
        "crop_3d_mosaic_below_interface": ((chain["stitched"],), (), chain["cropped"]),
        "normalize_intensities_per_slice": ((chain["cropped"],), (), one),
        "compensate_psf_from_model": ((chain["stitched"],), models, None),
        "compensate_attenuation_inplace": ((chain["cropped"],), (), None),
        "compute_attenuation": ((chain["cropped"],), (), None),
        "reconstruct_slice": ((grids[1],), (*models, "--resolution", 20, *UNCORRECTED), one),
        "register_slices": (tables, (), chain["registration"]),
        "align_mosaics_3d_from_shifts": (
            (one,), ("--registration", chain["registration"], "--slices", chain["slices"]), None,
        ),
        "stack_slices_motor": (tables, ("--registration", chain["registration"]), None),
    }  # fmt: skip


STAGES = (
    "resample_mosaic_grid", "detect_focal_curvature", "fix_illumination_3d", "aip", "aip_png",
    "register_tiles", "stitch_3d_refined", "crop_3d_mosaic_below_interface",
    "compensate_psf_from_model", "compensate_attenuation_inplace", "compute_attenuation",
    "normalize_intensities_per_slice", "reconstruct_slice", "register_slices",
    "align_mosaics_3d_from_shifts", "stack_slices_motor",
)  # fmt: skip
SUFFIX = {"aip_png": ".png", "register_tiles": ".json", "register_slices": ".json"}


@pytest.mark.slow
@pytest.mark.parametrize("name", STAGES)
def test_outputs_are_refused_then_replaced(chain, tiny_grids, tmp_path, name):
    before, after, reference = outputs(chain, tiny_grids)[name]
    out = tmp_path / f"out{SUFFIX.get(name, '.ome.zarr')}"
    if out.suffix == ".zarr":
        out.mkdir()
        (out / "old").write_text("old")
    else:
        out.write_text("old")
    with pytest.raises(OutputExistsError, match=rf"{out.name}: exists already; give --overwrite"):
        call(name, *before, out, *after)
    assert ((out / "old") if out.is_dir() else out).read_text() == "old"
    call(name, *before, out, *after, "-f")
    assert [p.name for p in tmp_path.iterdir()] == [out.name]
    assert not (out / "old").exists()
    if reference is None:
        assert out.is_dir() or out.read_bytes() != b"old"
    elif out.suffix == ".json":
        assert json.loads(out.read_text()) == json.loads(reference.read_text())
    else:
        for one, other in zip(arrays(out)[:2], arrays(reference)[:2], strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_models_are_refused_then_replaced(tiny_grids, tmp_path):
    (tmp_path / "fix_illumination_3d.json").write_text("old")
    arguments = ("learn_models", *tiny_grids[:1], "--output", tmp_path, "--resolution", 20)
    with pytest.raises(OutputExistsError, match="fix_illumination_3d"):
        call(*arguments)
    assert [p.name for p in tmp_path.iterdir()] == ["fix_illumination_3d.json"]
    call(*arguments, "-f")
    assert np.load(tmp_path / "fix_illumination_3d.npz")["flat_field"].shape == (32, 32)


# --- holes, bad samples, damage


def spoil(grid, folder, *, hole=None, nan=None):
    """A copy of a grid that lacks one tile, or has NaN in a window of its array."""
    path = folder / grid.name
    shutil.copytree(grid, path)
    group = zarr.open_group(path, mode="r+")
    if hole is not None:
        described = dict(group.attrs["linumpy"])
        for tile in described["tiles"]:
            tile["present"] = (tile["ix"], tile["iy"]) != hole
        group.attrs["linumpy"] = described
        _, t1, t2 = described["tile_shape_px"]
        group["0"][:, hole[0] * t1 : (hole[0] + 1) * t1, hole[1] * t2 : (hole[1] + 1) * t2] = 7e3
    if nan is not None:
        group["0"][nan] = np.nan
    adopt(path)
    return path


@pytest.fixture(scope="module")
def holed(chain, tiny_grids, tmp_path_factory):
    """Slice 1 at 20 um without its middle tile."""
    folder = tmp_path_factory.mktemp("holed")
    grid = spoil(tiny_grids[1], folder, hole=(1, 1))
    out = folder / "s.ome.zarr"
    call("reconstruct_slice", grid, out, "--models", chain["models"], "--resolution", 20)
    return out


def test_a_missing_tile_leaves_a_hole_and_nothing_else(chain, holed):
    """What only the middle tile shows is invalid; whatever its shard holds is not looked at."""
    data, valid, image = arrays(holed)
    whole, whole_valid, complete = arrays(chain["slices"] / "slice_z01.ome.zarr")
    tiles = json.loads(chain["positions"].read_text())["tiles"]
    corner = np.subtract(image.translation_um[1:], 10)
    covered = np.zeros(valid.shape[1:], bool)
    i, j = ((np.arange(n) + 0.5) * 20 for n in covered.shape)
    for tile in tiles:
        if (tile["ix"], tile["iy"]) != (1, 1):
            low = np.subtract(tile["corner_um"], corner)
            covered |= np.outer(
                (i > low[0] + 40) & (i < low[0] + 600), (j > low[1] + 40) & (j < low[1] + 600)
            )
    lone = np.ones(covered.shape, bool)
    for tile in tiles:
        if (tile["ix"], tile["iy"]) != (1, 1):
            low = np.subtract(tile["corner_um"], corner)
            lone &= ~np.outer(
                (i > low[0] - 40) & (i < low[0] + 680), (j > low[1] - 40) & (j < low[1] + 680)
            )
    assert lone.sum() > 50 and not valid[:, lone].any() and not data[:, lone].any()
    # Below the face, wherever it lies; above what the focal surface moved in from below.
    upper = slice(4, 15)
    assert valid[upper][:, covered].mean() > 0.99
    assert image.attributes["missing_tiles"] == [[1, 1]]
    assert complete.attributes["missing_tiles"] == []
    assert data.max() < 2 and whole_valid[upper][:, 20:-20, 20:-20].mean() > 0.99


def test_bad_samples_are_masked_through_every_stage(chain, tiny_grids, tmp_path):
    """NaN in a tile's middle: invalid from resampling on, and at the same place of the slice."""
    grid = spoil(
        tiny_grids[1], tmp_path, nan=(slice(50, 70), slice(80 + 30, 80 + 50), slice(30, 50))
    )
    models = ("--models", chain["models"])
    steps = [tmp_path / f"{n}.ome.zarr" for n in range(3)]
    call("resample_mosaic_grid", grid, steps[0], *RESOLUTION)
    call("detect_focal_curvature", steps[0], steps[1], *models)
    call("fix_illumination_3d", steps[1], steps[2], *models)
    # Planes 50-70 of 6 um are 15-21 of 20 um; pixels 30-50 of 8 um are 12-20.
    mask = open_grid(steps[0]).read_valid(1, 0)
    assert not mask[15:21, 12:20, 12:20].any()
    assert mask.sum() == mask.size - 6 * 8 * 8
    tile = open_grid(steps[0]).read_tile(1, 0)
    clean = open_grid(chain["resampled"]).read_tile(1, 0)
    np.testing.assert_array_equal(tile[mask == 0], 0)
    far = np.ones(mask.shape, bool)
    far[11:25, 8:24, 8:24] = False
    np.testing.assert_allclose(tile[far], clean[far], rtol=1e-4)
    for step in steps:
        assert np.isfinite(open_grid(step).read_tile(1, 0)).all()
        lost = (open_grid(step).read_valid(1, 0)[15:21, 12:20, 12:20] == 0).mean()
        assert lost > 0.6
    out = tmp_path / "stitched.ome.zarr"
    call("stitch_3d_refined", steps[2], out, "--positions", chain["positions"])
    data, valid, image = arrays(out)
    _, whole_valid, _ = arrays(chain["stitched"])
    lost = (whole_valid > 0) & (valid == 0)
    place = next(
        t
        for t in json.loads(chain["positions"].read_text())["tiles"]
        if (t["ix"], t["iy"]) == (1, 0)
    )
    middle = (np.subtract(place["corner_um"], image.translation_um[1:]) + 10) / 20 + 15.5
    centre = np.array([np.mean(axis) for axis in np.nonzero(lost)])
    np.testing.assert_allclose(centre[1:], middle, atol=0.6)
    assert 200 < lost.sum() < 700 and not data[lost].any()


def test_bad_samples_in_an_overlap_are_filled_by_the_neighbour(chain, tmp_path):
    """Tile (0, 0) loses a corner that three others show as well."""
    grid = spoil(chain["corrected"], tmp_path, nan=(slice(10, 14), slice(28, 32), slice(28, 32)))
    out = tmp_path / "stitched.ome.zarr"
    call("stitch_3d_refined", grid, out, "--positions", chain["positions"])
    data, valid, _ = arrays(out)
    whole, whole_valid, _ = arrays(chain["stitched"])
    np.testing.assert_array_equal(valid, whole_valid)
    changed = data != whole
    assert np.isfinite(data).all()
    assert 0 < changed.sum() < 4 * 6 * 6 and set(np.nonzero(changed)[0]) <= {10, 11, 12, 13}


def test_positions_that_lack_a_tile_are_refused(chain, tmp_path):
    record = json.loads(chain["positions"].read_text())
    record["tiles"] = [t for t in record["tiles"] if (t["ix"], t["iy"]) != (2, 1)]
    (tmp_path / "p.json").write_text(json.dumps(record))
    out = tmp_path / "s.ome.zarr"
    with pytest.raises(InputError, match=r"z01 lack tile \(2, 1\)"):
        call("stitch_3d_refined", chain["corrected"], out, "--positions", tmp_path / "p.json")
    assert not out.exists()


def test_models_that_are_missing_are_named(chain, tiny_grids, tmp_path):
    out = tmp_path / "s.ome.zarr"
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="detect_focal_curvature.json: no such file"):
        call("reconstruct_slice", tiny_grids[1], out, "--models", tmp_path / "empty")
    with pytest.raises(InputError, match="fix_illumination_3d.json: no such file"):
        call(
            "fix_illumination_3d",
            chain["detect_focal_curvature"],
            out,
            "--models",
            tmp_path / "empty",
        )
    assert not out.exists()


def test_grids_and_slices_are_not_mistaken_for_each_other(chain, tmp_path):
    with pytest.raises(InputError, match=r"stitched.*expected a mosaic grid"):
        GridSource.open(chain["stitched"])
    with pytest.raises(InputError, match=r"holds a mosaic_grid, expected a slice volume"):
        SliceSource.open(chain["corrected"])
    empty = spoil(chain["corrected"], tmp_path)
    group = zarr.open_group(empty, mode="r+")
    described = dict(group.attrs["linumpy"])
    group.attrs["linumpy"] = {
        **described, "tiles": [{**t, "present": False} for t in described["tiles"]],
    }  # fmt: skip
    adopt(empty)
    with pytest.raises(InputError, match="no tile was imaged"):
        GridSource.open(empty)


@pytest.mark.slow
def test_damage_ends_a_script_with_one_line_and_no_output(chain, script, tmp_path):
    """A flipped bit in one tile of a grid, then in one block of a slice."""
    for source, name, place in (
        ("corrected", "register_tiles", r"tile (2, 0)"),
        ("stitched", "crop_3d_mosaic_below_interface", r"block (0, 0)"),
    ):
        path = tmp_path / chain[source].name
        shutil.copytree(chain[source], path)
        shard = path / ("0/c/0/2/0" if source == "corrected" else "0/c/0/0/0")
        raw = bytearray(shard.read_bytes())
        raw[len(raw) // 3] ^= 2
        shard.write_bytes(raw)
        done = script(name, path, tmp_path / "out.json", check=False)
        assert done.returncode == 1
        (line,) = (t for t in done.stderr.splitlines() if t.startswith(f"linum_{name}.py: error: "))
        assert path.name in line and place in line and "Traceback" not in done.stderr
        assert not (tmp_path / "out.json").exists()


def test_parameters_come_from_standard_input(chain, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"stitch_blending_method": "none"}'))
    out = tmp_path / "s.ome.zarr"
    positions = ("--positions", chain["positions"])
    call("stitch_3d_refined", chain["corrected"], out, *positions, "--params", "-")
    other = tmp_path / "t.ome.zarr"
    call(
        "stitch_3d_refined",
        chain["corrected"],
        other,
        *positions,
        "--stitch_blending_method",
        "none",
    )
    np.testing.assert_array_equal(arrays(out)[0], arrays(other)[0])
    assert (arrays(out)[0] != arrays(chain["stitched"])[0]).any()
    with pytest.raises(SystemExit) as end, contextlib.redirect_stderr(io.StringIO()) as said:
        call("stitch_3d_refined", chain["corrected"], out, "--stitch_blending_method", "cubic")
    assert end.value.code == 2 and "cubic" in said.getvalue()
