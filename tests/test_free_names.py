"""Every script that takes volumes takes them under any name.

Grids and single slices are those of another program, whose metadata hold no slice id.
"""

import itertools
import runpy
import shutil

import numpy as np
import pytest
import zarr

from linumpy.brain.manual.transforms import write_transform
from linumpy.core.errors import InputError
from linumpy.io import slice_ids
from linumpy.io.omezarr import open_image
from linumpy.io.tables import XYShift, read_shifts, read_slice_config, write_shifts
from linumpy.stage_params.slices import LEARNED
from linumpy.store.remote import as_path

from .conftest import SCRIPTS
from .faults import small

NAMES = ("grid.ome.zarr", "my brain v1.2.zarr", "мозг.ome.zarr", "a.zarr", "-z.zarr", "xyz12.zarr")

MODELS = ("--models", "{have}/models")
SHIFTS = "{have}/s.csv"
SLICES = "{have}/slices"
REGISTRATION = "{have}/register_slices.json"

# What is typed for each script. {grid} and {volume} are given free names.
COMMANDS = {
    "aip": ("--", "{grid}", "out.zarr"),
    "aip_png": ("--", "{grid}", "out.png"),
    "align_mosaics_3d_from_shifts": (
        *("{have}/slices/third.zarr", "out.zarr", "--slices", SLICES),
        *("--registration", REGISTRATION),
    ),
    "align_to_ras": (
        *("--orientation_preview_only", "--preview", "out.png", "--ras_input_orientation", "SAL"),
        *("--atlas", "{have}/volume", "--atlas_orientation", "SAL", "--allen_max_iterations", "2"),
        *("--atlas_unit", "millimeter", "--", "{volume}", "out.zarr"),
    ),
    "assess_slice_quality": (SLICES, "--output", "out.json"),
    "check_atlas": ("--atlas_orientation", "SAL", "--", "{volume}"),
    "compensate_attenuation_inplace": ("--", "{volume}", "out.zarr"),
    "compensate_illumination": ("--flatfield", "{have}/models", "--", "{grid}", "out.zarr"),
    "compensate_psf_from_model": (*MODELS, "--", "{grid}", "out.zarr"),
    "compensate_psf_model_free": (*("--no-compensate_psf_enabled", "--", "{grid}", "out.zarr"),),
    "compute_attenuation": ("--", "{volume}", "out.zarr"),
    "convert_nifti_to_nrrd": ("--", "{nifti}", "out.nrrd"),
    "convert_nifti_to_zarr": ("--", "{nifti}", "out.zarr"),
    "convert_omezarr": ("--to", "0.4", "--", "{volume}", "out.zarr"),
    "convert_omezarr_to_nifti": ("--", "{volume}", "out.nii"),
    "convert_omezarr_to_tiff": ("--", "{volume}", "out.tif"),
    "convert_zarr_to_omezarr": ("-r", "10", "--", "{array}", "out.zarr"),
    "correct_bias_field": ("--n_serial_slices", "1", "--", "{volume}", "out.zarr"),
    "create_mosaic_grid_2d": ("--", "{grid}", "out.zarr"),
    "crop_3d_mosaic_below_interface": ("--", "{volume}", "out.zarr"),
    "crop_tiles": ("--crop_tiles_xmin", "1", "--", "{grid}", "out.zarr"),
    "estimate_illumination": ("--output", "out", "--", "{grid}"),
    "estimate_transform": ("--output", "out.json", "--use_motor_positions", "--", "{grid}"),
    "export_manual_align": (SLICES, SHIFTS, REGISTRATION, "out"),
    "extract_pyramid_levels": ("-l", "0", "--", "{volume}", "out.zarr"),
    **{stage.name: (*MODELS, "--", "{grid}", "out.zarr") for stage in LEARNED},
    "interpolate_missing_slice": (
        *("{have}/pair/a.zarr", "{have}/pair/b.zarr", "out.zarr", "--id", "1"),
        *("--registration", REGISTRATION, "--manifest_entry", "out.csv"),
    ),
    "learn_models": ("--output", "out", "--no-compensate_psf_enabled", "--", "{grid}"),
    "measure_pairs": (SLICES, "out"),
    "normalize_intensities_per_slice": ("--", "{volume}", "out.zarr"),
    "reconstruct_slice": (*MODELS, "--", "{grid}", "out.zarr"),
    "reconstruct_slice_2d": (*MODELS, "--", "{grid}", "out.zarr"),
    "refine_manual_transforms": (
        *(SLICES, SHIFTS, REGISTRATION, "out.json", "--manual_transforms_dir", "{have}/manual"),
    ),
    "register_pairwise": ("{have}/pair/a.zarr", "{have}/pair/b.zarr", "out"),
    "register_slices": (SLICES, SHIFTS, "out.json"),
    "register_tiles": ("--", "{grid}", "out.json"),
    "reorient_nifti_to_ras": ("--", "{nifti}", "out.nii"),
    "resample_mosaic_grid": ("-r", "20", "--", "{grid}", "out.zarr"),
    "resample_nifti": ("-r", "20", "--", "{nifti}", "out.nii"),
    "screenshot_omezarr": ("--", "{volume}", "out.png"),
    "stack_motor_only": (SLICES, SHIFTS, "out.zarr", "--pyramid_resolutions", "10"),
    "stack_slices_2d": ("{have}/flat", "out.zarr", "--pyramid_resolutions", "10"),
    "stack_slices_motor": (SLICES, SHIFTS, "out.zarr", "--pyramid_resolutions", "10"),
    "stitch_2d": ("--", "{flat_grid}", "out.zarr"),
    "stitch_3d_refined": ("--", "{grid}", "out.zarr"),
    "stitch_motor_only": ("--", "{grid}", "out.zarr"),
    "view_omezarr": ("--neuroglancer", "--state", "out.json", "--", "{volume}"),
}


def load(name):
    return runpy.run_path(str(SCRIPTS / f"linum_{name}.py"))


def run(name, *arguments):
    load(name)["main"]([str(argument) for argument in arguments])


def third_party(path, data, chunks):
    """Write a volume with nothing but NGFF metadata."""
    group = zarr.create_group(path, zarr_format=3)
    array = group.create_array("0", shape=data.shape, chunks=chunks, dtype="f4")
    array[:] = data
    scale = {"type": "scale", "scale": [0.01] * 3}
    axes = [{"name": n, "type": "space", "unit": "millimeter"} for n in "zyx"]
    levels = [{"path": "0", "coordinateTransformations": [scale]}]
    group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": levels}]}
    return path


@pytest.fixture(scope="module")
def have(tmp_path_factory):
    """A folder with an input of each kind."""
    folder = tmp_path_factory.mktemp("free names")
    scene = small.scene(3)
    n = (2, 2)
    info = small.grid_info(n)
    # Tiles side by side, overlap kept.
    t0, t1, t2 = small.TILE
    tiles = small.cut_tiles(scene, info)
    mosaic = np.concatenate(
        [np.concatenate([tiles[i, j] for j in range(n[1])], axis=2) for i in range(n[0])], axis=1
    )
    third_party(folder / "grid", mosaic, small.TILE)
    third_party(folder / "volume", scene[:, 60:124, 60:124], (20, 32, 32))
    small.models().save(folder / "models")
    tissue = small.block(shape=(60, 80, 80))
    (folder / "slices").mkdir()
    (folder / "pair").mkdir()
    for slice_id, name in ((0, "third.zarr"), (1, "first one.zarr"), (2, "zweite.ome.zarr")):
        data = small.cut_slice(tissue, slice_id)
        small.write_slice(folder / "slices", slice_id, data, name=name)
    shutil.copytree(folder / "slices/third.zarr", folder / "pair/a.zarr")
    shutil.copytree(folder / "slices/zweite.ome.zarr", folder / "pair/b.zarr")
    write_shifts(folder / "s.csv", [XYShift(i, i + 1, 0, 0, 0, 0, True) for i in range(2)])
    run("register_slices", folder / "slices", folder / "s.csv", folder / "register_slices.json")
    run("convert_omezarr_to_nifti", "--orientation", "PRS", folder / "volume", folder / "nifti.nii")
    run("create_mosaic_grid_2d", folder / "grid", folder / "flat_grid")
    (folder / "flat").mkdir()
    run("stitch_2d", folder / "flat_grid", folder / "flat/only.zarr")
    write_transform(folder / "manual/slice_z01/transform.tfm", np.eye(3), (0.0, 0.0))
    return folder


def takes_volumes(name):
    """Whether a script has a positional argument that is a volume or a folder of them."""
    build = load(name).get("build_parser")
    actions = build()._actions if build else ()
    return any(a.type is as_path and not a.option_strings for a in actions)


def test_every_script_that_takes_volumes_is_tried():
    names = {path.stem.removeprefix("linum_") for path in SCRIPTS.glob("linum_*.py")}
    assert {name for name in names if takes_volumes(name)} - set(COMMANDS) == set()
    assert set(COMMANDS) <= names


def given(have, folder, command, name):
    """Return a command with its inputs copied to `folder` under a free name."""
    typed = []
    for part in command:
        if part in ("{grid}", "{flat_grid}", "{volume}", "{nifti}", "{array}"):
            kind = part.strip("{}")
            part = name.replace(".zarr", ".nii") if kind == "nifti" else name
            source = have / {"nifti": "nifti.nii", "array": "volume/0"}.get(kind, kind)
            (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / part)
        typed.append(part.format(have=have))
    return typed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script_name", "name"), [*zip(COMMANDS, itertools.cycle(NAMES), strict=False)]
)
def test_scripts_take_volumes_of_any_name(script_name, name, have, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = given(have, tmp_path, COMMANDS[script_name], name)
    run(script_name, *command)
    made = [path.name for path in tmp_path.glob("out*")]
    assert made or script_name == "check_atlas"


def stated_id(path):
    return open_image(path).attributes["slice_id"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["aip", "normalize_intensities_per_slice", "reconstruct_slice"])
def test_ids_are_given_read_from_names_or_zero(name, have, tmp_path, monkeypatch):
    monkeypatch.setattr(slice_ids, "_given", {})
    monkeypatch.chdir(tmp_path)
    command = given(have, tmp_path, COMMANDS[name], "brain.zarr")
    run(name, *command)
    assert stated_id("out.zarr") == 0
    run(name, "-f", "--slice_id", "12", *command)
    assert stated_id("out.zarr") == 12
    monkeypatch.setattr(slice_ids, "_given", {})
    (tmp_path / "brain.zarr").rename("brain_z05.zarr")
    command = [part.replace("brain.zarr", "brain_z05.zarr") for part in command]
    run(name, "-f", *command)
    assert stated_id("out.zarr") == 5


def test_metadata_win_over_names(have, tmp_path, monkeypatch):
    monkeypatch.setattr(slice_ids, "_given", {})
    monkeypatch.chdir(tmp_path)
    shutil.copytree(have / "slices/zweite.ome.zarr", "slice_z07.zarr")
    run("compensate_attenuation_inplace", "slice_z07.zarr", "out.zarr")
    assert stated_id("out.zarr") == 2
    run("register_pairwise", have / "slices/third.zarr", "slice_z07.zarr", "out")
    with pytest.raises(InputError, match="--slice_id 7, but its metadata say slice 2"):
        run("compute_attenuation", "slice_z07.zarr", "out2.zarr", "--slice_id", "7")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["learn_models", "estimate_illumination", "estimate_transform"])
def test_several_inputs_without_ids_are_named(name, have, tmp_path, monkeypatch):
    """Seen to fail without the errors of `grid.check_slice_ids`."""
    monkeypatch.setattr(slice_ids, "_given", {})
    monkeypatch.chdir(tmp_path)
    more = () if name != "learn_models" else ("--no-compensate_psf_enabled",)
    for grid in ("a.zarr", "b.zarr"):
        shutil.copytree(have / "grid", grid)
    with pytest.raises(InputError, match=r"a\.zarr, b\.zarr: no slice id .* --slice_id 0 1 2"):
        run(name, "a.zarr", "b.zarr", "--output", "out.json")
    run(name, "a.zarr", "b.zarr", "--output", "out.json", "--slice_id", "3", "5", *more)


def test_folders_hold_grids_of_any_name(have, tmp_path, tiny_grids):
    folder = tmp_path / "my grids"
    for grid, name in zip(tiny_grids, ("b.zarr", "a z2.zarr", "мозг.ome.zarr"), strict=True):
        shutil.copytree(grid, folder / name)
    run("generate_slice_config", folder, tmp_path / "c.csv")
    assert [row.slice_id for row in read_slice_config(tmp_path / "c.csv")] == [0, 1, 2]
    run("estimate_xy_shift_from_metadata", folder, tmp_path / "s.csv")
    assert [(s.fixed_id, s.moving_id) for s in read_shifts(tmp_path / "s.csv")] == [(0, 1), (1, 2)]
    for name in ("x.zarr", "y.zarr"):
        shutil.copytree(have / "grid", tmp_path / "others" / name)
    with pytest.raises(InputError, match=r"x\.zarr, .*y\.zarr: no slice id .*mosaic_grid_3d_z00"):
        run("generate_slice_config", tmp_path / "others", tmp_path / "d.csv")


def test_an_id_that_is_no_number_is_named(tmp_path):
    data = small.cut_slice(small.block(shape=(30, 70, 70)), 0)
    path = small.write_slice(tmp_path, 2, data)
    zarr.open_group(path).attrs.update({"linumpy": {"kind": "slice", "slice_id": "two"}})
    with pytest.raises(InputError, match="slice_id 'two', expected a whole number"):
        run("compute_attenuation", path, tmp_path / "out.zarr")
