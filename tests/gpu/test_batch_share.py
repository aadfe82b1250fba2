"""Batches by what is left of a GPU's memory, and the status when it is too little."""

import numpy as np

from linumpy.core.exit_status import DEVICE_MEMORY
from linumpy.io.omezarr import open_image

from . import needs_gpu

pytestmark = needs_gpu


def test_smaller_batches_give_the_same_bits(tiny_grids, script, tmp_path):
    grid = sorted(tiny_grids)[0]
    volumes = []
    for share in ("1", "0.001"):
        out = tmp_path / f"{share}.ome.zarr"
        script("resample_mosaic_grid", grid, out, "-r", 20, "--use_gpu", "--gpu_batch", share)
        volumes.append(np.asarray(open_image(out).array))
    np.testing.assert_array_equal(*volumes)


def test_too_little_device_memory_has_its_own_status(tiny_grids, script, tmp_path):
    out = tmp_path / "out.ome.zarr"
    done = script(
        *("resample_mosaic_grid", sorted(tiny_grids)[0], out, "-r", 20),
        *("--use_gpu", "--gpu_memory", "64kB"),
        check=False,
    )
    assert done.returncode == DEVICE_MEMORY, done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("linum_resample_mosaic_grid.py: error:")
    assert not out.exists()
