"""Depth of the cut face, from crop models and from tiles."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from linumpy.io.grid import GridInfo, GridTile, create_grid
from linumpy.quality.interface import (
    aline_interface,
    slice_interface,
    surface_interface,
    tile_unevenness,
)
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


CELL_UM = 100.0


def plant_surfaces(
    folders: Folders, synthetic: ModuleType, *, degrees: float, shift_um: float
) -> None:
    """Turn slices 0 and 1 about a pivot, and give all the true surface, but for a shift."""
    pivot = np.array([400.0, 300.0])

    def turn(points: np.ndarray, angle: float) -> np.ndarray:
        flat = (points - pivot) @ [1, 1j] * np.exp(1j * np.deg2rad(angle))
        return np.stack([flat.real, flat.imag], axis=-1) + pivot

    turns = {0: degrees, 1: -degrees, 2: 0.0}
    record = json.loads((folders[1] / "truth.json").read_text())
    record["pivot_um"] = pivot.tolist()
    for known in record["slices"]:
        known["rotation_deg"] = turns[known["slice_id"]]
        for tile in known["tiles"]:
            own = np.subtract(tile["true_corner_um"], known["offset_um"])
            corner = turn(own, known["rotation_deg"]) + known["offset_um"]
            tile["true_corner_um"] = corner.tolist()
    (folders[1] / "truth.json").write_text(json.dumps(record))
    truth = load_truth(folders[1])
    for slice_id, known in truth.slices.items():
        path = folders[0] / "models" / f"z{slice_id:02d}/crop_3d_mosaic_below_interface.json"
        cells = np.stack(np.indices((7, 6)), axis=-1)
        centres = (cells + 0.5) * CELL_UM + [20.0, -10.0]
        block = turn(centres, turns[slice_id]) + known.offset_um
        face = np.array([[known.face.at(p[:1], p[1:]).item() for p in row] for row in block])
        surface = truth.interface_um(slice_id, face) + shift_um
        if slice_id == 2:
            surface = surface - 2 * shift_um
        np.savez(path.with_suffix(".npz"), surface_um=surface)

        def tell(crop: dict) -> None:
            crop.update(cell_um=[CELL_UM] * 2, corner_um=[20.0, -10.0], flat=False)

        synthetic.edit_json(path, tell)


@pytest.mark.parametrize("degrees", [0.0, 4.0])
def test_the_surface_is_held_against_the_face_at_its_true_place(
    tmp_path: Path, synthetic: ModuleType, degrees: float
) -> None:
    synthetic.make_truth(tmp_path / "truth", volumes=True)
    folders = synthetic.make_run(tmp_path / "run", tmp_path / "truth"), tmp_path / "truth"
    plant_surfaces(folders, synthetic, degrees=degrees, shift_um=5.0)
    figure = surface_interface(Run(folders[0]), load_truth(folders[1]))
    assert figure.value == pytest.approx(5 / synthetic.VOXEL_UM, rel=1e-6)
    assert abs(figure.details["mean"]) < figure.value
    # The tissue of the truth is a cylinder: some cells are agarose.
    assert 0.5 * 3 * 42 < figure.n < 3 * 42
    # A slice that is to be left out of the brain does not count.
    synthetic.edit_json(folders[1] / "truth.json", lambda r: r["slices"][2].update(bad=True))
    figure = surface_interface(Run(folders[0]), load_truth(folders[1]))
    assert figure.details["mean"] == pytest.approx(figure.value)
    assert list(figure.details["slices"]) == [0, 1]
    assert slice_interface(Run(folders[0]), load_truth(folders[1])).n == 2


def test_without_a_surface_there_is_no_metric(folders: Folders) -> None:
    figure = surface_interface(Run(folders[0]), load_truth(folders[1]))
    assert figure.value is None and "no surface" in figure.details["reason"]
