"""Suggested parameters: from metadata alone, each with its reason, fit for the pipeline."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from linumpy.io.grid import GridInfo, GridTile, create_grid
from linumpy.io.tables import XYShift
from linumpy.quality.suggest_params import (
    Acquisition,
    params_file,
    read_acquisition,
    suggest_params,
    table_text,
)

USUAL = Acquisition(
    n_slices=60,
    pixel_um=(6.0, 6.0),
    fov_um=(1200.0, 1200.0),
    n_planes=400,
    n_tiles=80,
    overlap_fraction=0.2,
    axial_um=3.5,
    interval_um=200.0,
    n_extra=40,
    stage_interval_um=200.0,
)


def steps(*sizes_mm: float) -> list[XYShift]:
    return [XYShift(k, k + 1, 0, 0, size, 0.0) for k, size in enumerate(sizes_mm)]


def suggested(acquisition: Acquisition, shifts: list[XYShift] | None = None) -> dict[str, Any]:
    return {s.name: s for s in suggest_params(acquisition, shifts or [])}


def test_a_usual_acquisition() -> None:
    found = suggest_params(USUAL, steps(0.04, 0.05, 0.06, 0.05, 0.04, 0.06))
    assert params_file(found) == {
        "axial_resolution": 3.5,
        "slicing_interval_mm": 0.2,
        "fix_galvo_shift": True,
        "resolution": 10.0,
        "crop_interface_out_depth": 600.0,
        "rehoming_max_shift_mm": 0.2,
        "registration_max_translation": 100,
        "gpu_memory": "4GB",
    }
    # 900 tiles of 140 x 120 x 120 voxels, 5 bytes each, twice.
    assert suggested(replace(USUAL, n_tiles=900))["gpu_memory"].value == "19GB"
    assert all(s.reason for s in found)
    lines = table_text(found).splitlines()
    assert lines[0].startswith("(tile_fov)") and "1.2 x 1.2 mm" in lines[0]
    assert len({line.index(s.reason) for line, s in zip(lines, found, strict=True)}) == 1


def test_what_is_unknown_must_be_given_and_is_not_in_the_file() -> None:
    bare = replace(USUAL, axial_um=None, interval_um=None, stage_interval_um=None, n_extra=None)
    found = suggest_params(bare, [])
    assert {s.name for s in found if s.value is None} == {"axial_resolution", "slicing_interval_mm"}
    assert not {"axial_resolution", "slicing_interval_mm", "fix_galvo_shift"} & set(
        params_file(found)
    )
    assert "?" in table_text(found)


def test_the_stage_fills_in_for_the_interval_and_contradicts_it() -> None:
    alone = suggested(replace(USUAL, interval_um=None))
    assert alone["slicing_interval_mm"].value == 0.2
    other = suggested(replace(USUAL, stage_interval_um=250.0))["slicing_interval_mm"]
    assert other.value == 0.2 and "moves by 250 um" in other.reason


def test_coarse_pixels_shallow_tiles_and_no_return_of_the_galvo() -> None:
    found = suggested(replace(USUAL, pixel_um=(12.5, 11.0), n_planes=100, n_extra=0))
    assert found["resolution"].value == 13.0
    # 85 % of 350 um, in whole pixels of 13 um.
    assert found["crop_interface_out_depth"].value == 286.0
    assert "neighbours need 382 um" in found["crop_interface_out_depth"].reason
    assert found["fix_galvo_shift"].value is False


def test_steps_of_whole_tiles_and_large_steps_are_separated_from_usual_ones() -> None:
    usual = [0.05, 0.04, 0.06, 0.05] * 5
    found = suggested(USUAL, steps(*usual, 1.21, 0.8))
    assert found["tile_fov_mm"].value == 1.2
    assert "1 steps are whole tiles" in found["tile_fov_mm"].reason
    assert found["rehoming_max_shift_mm"].value == pytest.approx(0.2)
    assert "2 of 22 exceed it" in found["rehoming_max_shift_mm"].reason
    assert "tile_fov_mm" not in suggested(USUAL, steps(*usual))
    restless = suggested(USUAL, steps(*(10 * step for step in usual)))
    # No more than half a tile.
    assert restless["rehoming_max_shift_mm"].value == pytest.approx(0.6)
    assert restless["registration_max_translation"].value == 120


def test_missing_slices_count_in_the_stages_moves(tmp_path: Path) -> None:
    for slice_id in (0, 3, 4):
        tile = GridTile(0, 0, 0.0, 0.0, 0.2 * slice_id, True, ())
        info = GridInfo(slice_id, (4, 32, 32), (5.0, 5.0, 5.0), 0.2, (tile,), (160.0, 160.0))
        path = tmp_path / f"mosaic_grid_3d_z{slice_id:02d}.ome.zarr"
        with create_grid(path, info, overwrite=False):
            pass
    found = read_acquisition(tmp_path)
    assert found.stage_interval_um == pytest.approx(200) and found.interval_um is None


def test_raw_tiles_and_their_grids_give_the_same_suggestions(
    tiny: Path, tiny_grids: list[Path], script: Any, tmp_path: Path
) -> None:
    raw, grids = (read_acquisition(p) for p in (tiny / "raw", tiny_grids[0].parent))
    assert raw.n_extra == 20 and raw.stage_interval_um == pytest.approx(200, abs=0.1)
    assert replace(raw, n_extra=None) == grids
    output = tmp_path / "params.json"
    done = script("suggest_params", tiny / "raw", "--output", output)
    given = json.loads(output.read_text())
    assert given["axial_resolution"] == 6.0 and given["slicing_interval_mm"] == 0.2
    assert all(name in done.stdout for name in given)
