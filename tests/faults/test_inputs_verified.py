"""Every script that takes OME-Zarr verifies the manifests before it does anything."""

import importlib.util
import shutil

import numpy as np
import pytest

from linumpy.brain.slice_registration import SliceRegistration
from linumpy.core.errors import InputError
from linumpy.core.exit_status import exit_status
from linumpy.io.grid import GridInfo, GridTile, create_grid
from linumpy.io.models import save_model
from linumpy.io.omezarr import ImageSpec, create_image
from linumpy.stage_params.slices import LEARNED
from tests.conftest import SCRIPTS

from .stores import append, delete, truncate

GRID = "grids/mosaic_grid_3d_z01.ome.zarr"
FLAT = "mosaic_grid_2d_z01.ome.zarr"
ABOVE, SLICE = "slices/slice_z00.ome.zarr", "slices/slice_z01.ome.zarr"
BRAIN = "run/brain.ome.zarr"
PICTURE = "pictures/slice_2d_z01.ome.zarr"
CHUNK = "0/c/0/0/0"

# Script, what is damaged, the script's arguments.
CASES = [
    ("aip", GRID, f"{GRID} OUT.ome.zarr"),
    ("aip_png", GRID, f"{GRID} OUT.png"),
    ("align_mosaics_3d_from_shifts", SLICE,
     f"{SLICE} OUT.ome.zarr --slices slices --registration register_slices.json"),
    ("align_to_ras", BRAIN, f"{BRAIN} OUT.ome.zarr --atlas whole.ome.zarr"),
    ("align_to_ras", BRAIN, f"whole.ome.zarr OUT.ome.zarr --atlas {BRAIN}"),
    ("assess_slice_quality", SLICE, "slices --output OUT.json"),
    ("benchmark_kvikio_zarr", BRAIN, f"{BRAIN}/0 --output OUT.json"),
    ("check_atlas", BRAIN, BRAIN),
    ("clean_raw_data", GRID, "raw grids"),
    ("compare_stitching", GRID, f"run OUT.json --grid {GRID} --seam_picture OUT.png"),
    ("compensate_attenuation_inplace", SLICE, f"{SLICE} OUT.ome.zarr"),
    ("compensate_illumination", GRID, f"{GRID} OUT.ome.zarr --flatfield models"),
    ("compensate_psf_from_model", SLICE, f"{SLICE} OUT.ome.zarr"),
    ("compensate_psf_model_free", SLICE, f"{SLICE} OUT.ome.zarr"),
    ("compute_attenuation", SLICE, f"{SLICE} OUT.ome.zarr"),
    ("convert_omezarr", BRAIN, f"{BRAIN} OUT.ome.zarr --to 0.4"),
    ("convert_omezarr_to_nifti", BRAIN, f"{BRAIN} OUT.nii"),
    ("convert_omezarr_to_tiff", BRAIN, f"{BRAIN} OUT.tif"),
    ("convert_zarr_to_omezarr", BRAIN, f"{BRAIN}/0 OUT.ome.zarr -r 10"),
    ("correct_bias_field", BRAIN, f"{BRAIN} OUT.ome.zarr"),
    ("create_mosaic_grid_2d", GRID, f"{GRID} OUT.ome.zarr"),
    ("crop_3d_mosaic_below_interface", SLICE, f"{SLICE} OUT.ome.zarr"),
    ("crop_tiles", GRID, f"{GRID} OUT.ome.zarr"),
    ("estimate_illumination", GRID, f"{GRID} --output OUT"),
    ("estimate_transform", GRID, f"{GRID} --output OUT.json"),
    ("estimate_xy_shift_from_metadata", GRID, "grids OUT.csv"),
    ("evaluate", BRAIN, "run truth OUT.json"),
    ("export_manual_align", SLICE, "slices shifts_xy.csv register_slices.json OUT"),
    ("extract_pyramid_levels", BRAIN, f"{BRAIN} OUT.ome.zarr --levels 0"),
    ("extract_pyramid_levels", BRAIN, f"{BRAIN} --list"),
    *((stage.name, GRID, f"{GRID} OUT.ome.zarr") for stage in LEARNED),
    ("generate_pipeline_report", BRAIN, "run OUT.html"),
    ("generate_slice_config", GRID, "grids OUT.csv"),
    ("interpolate_missing_slice", SLICE,
     f"{ABOVE} {SLICE} OUT.ome.zarr --id 1 --registration register_slices.json"
     " --shifts shifts_xy.csv"),
    ("learn_models", GRID, f"{GRID} --output OUT"),
    ("measure_pairs", SLICE, "slices OUT"),
    ("normalize_intensities_per_slice", SLICE, f"{SLICE} OUT.ome.zarr"),
    ("plan", GRID, "grids"),
    ("reconstruct_slice", GRID, f"{GRID} OUT.ome.zarr --models models"),
    ("reconstruct_slice_2d", FLAT, f"{FLAT} OUT.ome.zarr"),
    ("refine_manual_transforms", SLICE,
     "slices shifts_xy.csv register_slices.json OUT.json --manual_transforms_dir manual"),
    ("register_pairwise", SLICE, f"{ABOVE} {SLICE} OUT"),
    ("register_slices", SLICE, "slices shifts_xy.csv OUT.json"),
    ("register_tiles", GRID, f"{GRID} OUT.json"),
    ("resample_mosaic_grid", GRID, f"{GRID} OUT.ome.zarr"),
    ("screenshot_omezarr", BRAIN, f"{BRAIN} OUT.png"),
    ("stack_motor_only", SLICE, "slices shifts_xy.csv OUT.ome.zarr"),
    ("stack_slices_2d", PICTURE, "pictures OUT.ome.zarr"),
    ("stack_slices_motor", SLICE, "slices shifts_xy.csv OUT.ome.zarr"),
    ("stitch_2d", FLAT, f"{FLAT} OUT.ome.zarr"),
    ("stitch_3d_refined", GRID, f"{GRID} OUT.ome.zarr --positions positions.json"),
    ("stitch_motor_only", GRID, f"{GRID} OUT.ome.zarr"),
    ("suggest_params", GRID, "grids --output OUT.json"),
    ("view_omezarr", BRAIN, f"{BRAIN} --neuroglancer --state OUT.json"),
]  # fmt: skip
NO_OMEZARR_IN = {
    "analyze_acquisition_rotation", "analyze_registration_transforms", "analyze_shifts",
    "auto_exclude_slices", "convert_nifti_to_nrrd", "convert_nifti_to_zarr",
    "convert_tiff_to_omezarr", "create_mosaic_grid_3d", "detect_rehoming", "download_allen",
    "finalise_interpolation", "follow", "gpu_info", "merge_slices_into_folders", "nextflow",
    "phantom", "phantom_psoct", "reorient_nifti_to_ras", "resample_nifti", "summarize_run",
    "write_run_record",
}  # fmt: skip
DAMAGES = (truncate, delete, append)


def test_no_script_is_forgotten():
    """Seen to fail with one more script."""
    names = {path.stem.removeprefix("linum_") for path in SCRIPTS.glob("linum_*.py")}
    assert names == {name for name, *_ in CASES} | NO_OMEZARR_IN | {"verify"}


def write_grid(path, depth):
    tiles = tuple(GridTile(i, j, 0.24 * i, 0.24 * j, 0.0) for i in (0, 1) for j in (0, 1))
    info = GridInfo(1, (depth, 30, 30), (10.0,) * 3, 0.2, tiles, (300.0, 300.0))
    with create_grid(path, info, overwrite=False, with_valid=True) as grid:
        for tile in tiles:
            grid.write_tile(tile.ix, tile.iy, np.full((depth, 30, 30), 50.0, np.float32))


def write_volume(path, **attributes):
    spec = ImageSpec((8, 16, 16), (10.0,) * 3, (0.0,) * 3, (8, 16, 16), (8, 16, 16),
                     attributes=attributes)  # fmt: skip
    with create_image(path, spec, overwrite=False, with_valid=True) as image:
        image.array[...], image.valid[...] = 1, 1


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One of each kind of OME-Zarr, in the places that the cases name."""
    folder = tmp_path_factory.mktemp("whole")
    write_grid(folder / GRID, 12)
    write_grid(folder / FLAT, 1)
    for k, path in enumerate((ABOVE, SLICE)):
        write_volume(folder / path, kind="slice", slice_id=k, slice_interval_um=200.0)
    write_volume(folder / PICTURE, kind="slice", slice_id=1, slice_interval_um=200.0)
    write_volume(folder / BRAIN, kind="brain", orientation="SAR")
    write_volume(folder / "whole.ome.zarr", kind="brain", orientation="SAR")
    header = "fixed_id,moving_id,x_shift_mm,y_shift_mm,x_shift,y_shift\n"
    (folder / "shifts_xy.csv").write_text(header + "0,1,0.0,0.0,0.0,0.0\n")
    slices = [
        {"slice_id": k, "offset_um": [0.0] * 3, "rotation_deg": 0.0, "n_pairs": 0} for k in (0, 1)
    ]
    found = SliceRegistration(0, (10.0,) * 3, 200.0, slices, [])
    save_model(folder, "register_slices", found)
    for name in ("raw/tile_x00_y00_z01", "models", "manual", "truth"):
        (folder / name).mkdir(parents=True)
    return folder


def load_main(name):
    spec = importlib.util.spec_from_file_location(f"script_{name}", SCRIPTS / f"linum_{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "damaged", "arguments"), CASES, ids=[f"{n}-{d}" for n, d, _ in CASES]
)
def test_a_damaged_input_is_named_and_nothing_is_written(
    name, damaged, arguments, whole, tmp_path, monkeypatch
):
    """Seen to fail without `check_files` in `open_image`."""
    folder = tmp_path / "inputs"
    shutil.copytree(whole, folder)
    damage = DAMAGES[len(arguments) % len(DAMAGES)]
    file = folder / damaged / CHUNK
    damage(file, None)
    before = sorted(folder.rglob("*"))
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match=f"{damaged}/{CHUNK}: ") as error:
        load_main(name)(arguments.replace("OUT", str(tmp_path / "out")).split())
    assert exit_status(error.value) == 1
    assert sorted(folder.rglob("*")) == before
    assert list(tmp_path.iterdir()) == [folder]
