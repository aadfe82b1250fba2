"""A slice and a brain small enough to be made many times."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import gaussian_filter

from linumpy.geometry.detect_focal_curvature import FocalCurvature
from linumpy.intensity.compensate_psf import AxialResponse
from linumpy.intensity.fix_illumination_3d import FlatField
from linumpy.io.grid import GridInfo, GridTile, create_grid
from linumpy.io.omezarr import create_image
from linumpy.io.slice_layout import volume_spec
from linumpy.slices.learn_models import AcquisitionModels

TILE = (40, 60, 56)
VOXEL_UM = (10.0, 10.0, 10.0)
STEP_PX = (48, 45)
INTERVAL_UM = 100.0


def scene(seed, shape=(40, 200, 200)):
    """Tissue on a slope of its own, in the middle of agarose, below water."""
    rng = np.random.default_rng(seed)
    z, i, j = np.ogrid[: shape[0], : shape[1], : shape[2]]
    brightness = 20 + 60 * (np.hypot(i - shape[1] / 2, j - shape[2] / 2) < 0.4 * shape[1])
    texture = np.exp(0.5 * gaussian_filter(rng.normal(size=shape), 1) * 4)
    below = z >= 6 + 0.01 * i
    noise = np.hypot(*rng.normal(size=(2, *shape)))
    return (np.where(below, brightness * texture * np.exp(-0.02 * z), 0) + noise).astype(np.float32)


def grid_info(n=(2, 2), **changes):
    """Where the tiles of a small grid lie."""
    tiles = tuple(
        GridTile(
            ix,
            iy,
            (ix * STEP_PX[0] + TILE[1] / 2) / 100,
            (iy * STEP_PX[1] + TILE[2] / 2) / 100,
        )
        for ix in range(n[0])
        for iy in range(n[1])
    )
    values = {
        "slice_id": 3, "tile_shape_px": TILE, "voxel_um": VOXEL_UM, "overlap_fraction": 0.2,
        "tiles": tiles, "tile_fov_um": (600.0, 560.0), "slice_interval_um": INTERVAL_UM,
    }  # fmt: skip
    return GridInfo(**{**values, **changes})


def cut_tiles(volume, info):
    """What each tile shows of a scene."""
    found = {}
    for t in info.tiles:
        i, j = t.ix * STEP_PX[0], t.iy * STEP_PX[1]
        found[t.ix, t.iy] = volume[:, i : i + TILE[1], j : j + TILE[2]].copy()
    return found


def write_grid(path, info, tiles, masks=None):
    """Write tiles just as they are, whatever they hold."""
    with create_grid(path, info, overwrite=False, with_valid=masks is not None) as writer:
        for key, data in tiles.items():
            writer.write_tile(*key, data, None if masks is None else masks[key])
    return path


def models():
    """A focal surface, a flat field and an axial response that change every tile."""
    i, j = np.mgrid[: TILE[1], : TILE[2]] / 60
    fields = {
        "detect_focal_curvature": FocalCurvature(
            np.float32(8 * (i - 0.5) + 5 * j), VOXEL_UM, 9, 9, 1.0
        ),
        "fix_illumination_3d": FlatField(np.float32(1.2 - 0.4 * i * j), VOXEL_UM, 9, 9, 0.01),
    }
    return AcquisitionModels(
        fields,
        AxialResponse(
            "model", np.linspace(1, 0.4, TILE[0]).astype(np.float32), np.ones(TILE[0], np.float32),
            VOXEL_UM, 1.0, 100.0, 500.0, "agarose", 0.3, 9, 9, 1.0,
        ),
    )  # fmt: skip


def write_slice(folder, slice_id, data, valid=None, *, name=None, **attributes):
    """A slice volume cut at its face, as the fused step leaves it."""
    described = {
        "kind": "slice", "slice_id": slice_id, "slice_interval_um": INTERVAL_UM,
        "interface_um": 60.0, "stage_to_array": "+x,+y", "nominal_positions": False,
        "missing_tiles": [], "flags": {}, **attributes,
    }  # fmt: skip
    path = folder / (name or f"slice_z{slice_id:02d}.ome.zarr")
    spec = volume_spec(data.shape, VOXEL_UM, (60.0, 0.0, 0.0), described)
    with create_image(path, spec, overwrite=False, with_valid=True) as image:
        image.array[...] = data
        image.valid[...] = 1 if valid is None else valid
    return path


def block(seed=1, shape=(120, 90, 100)):
    """Tissue in a cylinder, to be cut into slices ten planes apart."""
    rng = np.random.default_rng(seed)
    i, j = np.mgrid[: shape[1], : shape[2]]
    inside = np.hypot(i - shape[1] / 2, j - shape[2] / 2) < 0.42 * shape[1]
    fine = gaussian_filter(rng.normal(size=shape), (1.5, 1, 1)) * 2.5
    broad = gaussian_filter(rng.normal(size=shape), (4, 8, 8)) * 60
    return (np.exp(0.35 * fine + 0.3 * broad) * inside).astype(np.float32)


def cut_slice(tissue, slice_id, n_planes=24):
    """What slice `slice_id` shows of a block."""
    return tissue[10 * slice_id : 10 * slice_id + n_planes]
