"""A run with a GPU and one without give the same brain."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from linumpy.intensity.compensate_attenuation import Attenuation
from linumpy.io.models import load_model
from linumpy.io.omezarr import open_image

from ..conftest import run_script
from . import needs_gpu

BOUND = 1e-4
"""Of the 99.9th percentile: rounding of float32 over all steps."""
STAGE = "compensate_attenuation"


def make_brain(raw, folder, *flags):
    """Run the default steps by their scripts; return masks, attenuation and the brain."""
    grids, slices, models = folder / "grids", folder / "slices", folder / "models"
    shifts, registration = folder / "shifts_xy.csv", folder / "register_slices.json"
    run_script("estimate_xy_shift_from_metadata", raw, shifts)
    names = [path.name[6:] for path in sorted(raw.glob("slice_z*"))]

    def make_grid(name):
        raw_of_one = ["--from_root_directory", raw, "-z", name[1:], "--resolution", -1]
        grid = grids / f"mosaic_grid_3d_{name}.ome.zarr"
        run_script("create_mosaic_grid_3d", grid, *raw_of_one, *flags)

    def make_slice(name):
        grid, out = grids / f"mosaic_grid_3d_{name}.ome.zarr", slices / f"slice_{name}.ome.zarr"
        own = ["--models", models, "--output_models", folder / "own" / name]
        run_script("reconstruct_slice", grid, out, *own, *flags)

    # As the pipeline does, slices at once: their scripts spend most of their time on starting.
    with ThreadPoolExecutor() as pool:
        list(pool.map(make_grid, names))
        run_script("learn_models", *sorted(grids.iterdir()), "--output", models, *flags)
        list(pool.map(make_slice, names))
    run_script("register_slices", slices, shifts, registration, *flags)
    brain = folder / "brain.ome.zarr"
    run_script("stack_slices_motor", slices, shifts, brain, "--registration", registration, *flags)
    masks = [np.asarray(open_image(path).valid) for path in sorted(slices.iterdir())]
    learned = [load_model(folder / "own" / name, STAGE, Attenuation) for name in names]
    return masks, learned, np.asarray(open_image(brain).array)


@needs_gpu
@pytest.mark.slow
def test_brains_of_both_devices_agree(tiny, tmp_path):
    """But where a decision depends on rounding.

    A face within rounding of half a voxel is cut a plane apart. A bin that is within rounding of
    the limit between agarose and tissue is corrected as the one or the other; neighbours share in
    what it attenuates.
    """
    with ThreadPoolExecutor() as pool:
        cpu = pool.submit(make_brain, tiny / "raw", tmp_path / "cpu", "--no-use_gpu")
        gpu_masks, gpu_learned, gpu_brain = make_brain(tiny / "raw", tmp_path / "gpu", "--use_gpu")
        masks, learned, brain = cpu.result()
    n_apart = sum(int((a != b).any(axis=0).sum()) for a, b in zip(masks, gpu_masks, strict=True))
    both = [
        (a.tissue_depth_px, b.tissue_depth_px) for a, b in zip(learned, gpu_learned, strict=True)
    ]
    n_bins = sum(int((a != b).sum()) for a, b in both)
    assert n_bins <= max(1, 1e-3 * sum(a.size for a, _ in both))
    n_columns = brain.shape[1] * brain.shape[2]
    assert n_apart <= 1e-3 * n_columns
    assert brain.shape == gpu_brain.shape
    scale = np.percentile(np.abs(brain), 99.9)
    apart = (np.abs(brain - gpu_brain) > BOUND * scale).any(axis=0)
    # A column of a moved slice takes from four of the slice, and one of a bin from those beside it.
    assert apart.sum() <= 4 * n_apart + n_bins * (3 * learned[0].bin_px) ** 2
