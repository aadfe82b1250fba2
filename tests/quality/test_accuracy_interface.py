"""Depth of the cut face, from crop models and from tiles."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from linumpy.io.grid import GridInfo, GridTile, create_grid
from linumpy.quality.interface import aline_interface, slice_interface, tile_unevenness
from linumpy.quality.run import Run, find_grids
from linumpy.quality.truth import load_truth

Folders = tuple[Path, Path]


def test_exact_run_has_no_error(folders: Folders) -> None:
    figure = slice_interface(Run(folders[0]), load_truth(folders[1]))
    assert figure.value == pytest.approx(0, abs=1e-9)
    assert figure.n == 3


def test_median_of_planted_errors(folders: Folders, synthetic: ModuleType) -> None:
    for slice_id, error in enumerate((-20.0, 5.0, 8.0)):
        path = folders[0] / "models" / f"z{slice_id:02d}/crop_3d_mosaic_below_interface.json"

        def plant(record: dict, shift: float = error) -> None:
            record["interface_um"] += shift

        synthetic.edit_json(path, plant)
    figure = slice_interface(Run(folders[0]), load_truth(folders[1]))
    assert figure.value == pytest.approx(8 / synthetic.VOXEL_UM)
    assert figure.details["slices"][0] == pytest.approx(-20 / synthetic.VOXEL_UM)


def write_grid(folders: Folders, synthetic: ModuleType, shift_um: float) -> Path:
    """Write slice 1 as a grid whose A-lines step from dark to bright at the true interface."""
    truth = load_truth(folders[1])
    known = truth.slices[1]
    uneven = tile_unevenness(truth, 1)
    tiles = tuple(
        GridTile(ix, iy, *(stage[:2]), stage[2]) for (ix, iy), stage in known.stage_mm.items()
    )
    info = GridInfo(
        slice_id=1,
        tile_shape_px=synthetic.TILE_PX,
        voxel_um=synthetic.RAW_UM,
        overlap_fraction=0.25,
        tiles=tiles,
        tile_fov_um=(synthetic.FOV_UM,) * 2,
    )
    folder = folders[0] / "mosaic_grids"
    optical = synthetic.RAW_UM[0] * np.arange(synthetic.TILE_PX[0])[:, None, None]
    with create_grid(folder / "mosaic_grid_3d_z01.ome.zarr", info, overwrite=False) as grid:
        for index, field in uneven.items():
            face = known.gap_um + field + truth.focal_um + shift_um
            # The sample that the face cuts holds its share of tissue. The step is low, because the
            # logarithm of a blurred high one rises above its middle.
            share = np.clip((optical - face) / synthetic.RAW_UM[0] + 0.5, 0, 1)
            grid.write_tile(*index, (80 + 20 * share).astype("f4"))
    return folder


@pytest.mark.parametrize("shift_um", [0.0, 10.0])
def test_alines_find_the_planted_face(
    folders: Folders, synthetic: ModuleType, shift_um: float
) -> None:
    grids = find_grids(write_grid(folders, synthetic, shift_um))
    figure = aline_interface(Run(folders[0]), load_truth(folders[1]), grids)
    assert figure.n == 9 * 25 * 25
    assert figure.details["tiles"] == 9
    expected = shift_um / synthetic.VOXEL_UM
    assert figure.details["median_signed"] == pytest.approx(expected, abs=0.1)
    assert figure.value == pytest.approx(expected, abs=0.1)
