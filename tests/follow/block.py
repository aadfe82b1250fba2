"""A block of speckle that is cut at known depths into slice volumes."""

from pathlib import Path

import numpy as np
from scipy.ndimage import gaussian_filter

from linumpy.io.omezarr import create_image
from linumpy.io.slice_layout import volume_spec

VOXEL_UM = (10.0, 10.0, 10.0)
INTERVAL_UM = 200.0
N_PLANES = 60


def make_block(n_planes=200, side=160):
    """Return amplitudes (z, axis 1, axis 2), alike over about two voxels."""
    noise = np.random.default_rng(7).normal(size=(n_planes, side, side))
    smooth = gaussian_filter(noise, 1.0)
    return (1 + 0.5 * smooth / smooth.std()).clip(0.1).astype(np.float32)


def volume_of(folder: Path, slice_id: int) -> Path:
    """Return where a follower puts the volume of a slice."""
    return folder / "slices" / f"slice_z{slice_id:02d}.ome.zarr"


def write_slice(folder: Path, slice_id: int, planes: np.ndarray, off_um=(0.0, 0.0)) -> None:
    """Write a slice whose stage says that it lies `off_um` from where it is."""
    attributes = {
        "kind": "slice", "slice_id": slice_id, "slice_interval_um": INTERVAL_UM,
        "slice_thickness_um": None, "stage_z_mm": None, "interface_um": 0.0,
        "stage_to_array": "+x,+y", "nominal_positions": False, "flags": {}, "missing_tiles": [],
    }  # fmt: skip
    spec = volume_spec(planes.shape, VOXEL_UM, (0.0, *off_um), attributes)
    path = volume_of(folder, slice_id)
    with create_image(path, spec, overwrite=True, with_valid=True) as image:
        image.array[:] = planes
        image.valid[:] = 1
