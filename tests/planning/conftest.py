"""Acquisitions of headers alone, and a small one made for real."""

import json

import pytest

from linumpy.planning.plan_params import PlanParams

INFO = {
    "nx": 200, "ny": 100, "n_extra": 20, "n_repeat": 1, "top_z": 0, "bottom_z": 149,
    "width": 1600, "height": 800,
}  # fmt: skip
SIDE = {"slice_thickness": 0.2, "overlap_fraction": 0.25, "axial_resolution_um": 4.0}


def given(**values):
    """Return parameters of a plan, by default but for these."""
    return PlanParams.from_values(values)


def write_headers(root, slices, *, side=SIDE, **info):
    """Make tile folders with headers and no samples.

    `slices` maps an id to the indices of its tiles, or to rows and columns of a full grid.
    """
    values = {**INFO, **info}
    for slice_id, tiles in slices.items():
        folder = root / f"slice_z{slice_id:02d}"
        if isinstance(tiles, tuple):
            tiles = [(x, y) for x in range(tiles[0]) for y in range(tiles[1])]
        for x, y in tiles:
            tile = folder / "tiles" / f"tile_x{x:02d}_y{y:02d}_z{slice_id:02d}"
            tile.mkdir(parents=True)
            place = {
                "stage_x_pos_mm": 1.2 * x + 0.01 * slice_id,
                "stage_y_pos_mm": 0.6 * y,
                "stage_z_pos_mm": 0.2 * slice_id,
            }
            lines = [f"{key}: {value}\n" for key, value in {**values, **place}.items()]
            (tile / "info.txt").write_text("Scan info\n" + "".join(lines), encoding="utf-8")
        (folder / "metadata.json").write_text(json.dumps(side), encoding="utf-8")
    return root


@pytest.fixture
def headers(tmp_path):
    """The function that makes an acquisition of headers."""
    return lambda slices, **options: write_headers(tmp_path / "raw", slices, **options)
