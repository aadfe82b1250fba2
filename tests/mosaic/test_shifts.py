"""Shifts and slice lists from metadata, against positions that the test chose."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linumpy.core.errors import InputError
from linumpy.io.grid import GridInfo, GridTile, create_grid
from linumpy.io.tables import SliceConfig, read_shifts, read_slice_config
from linumpy.mosaic.create_mosaic_grid_3d import create_mosaic_grid_3d
from linumpy.mosaic.shifts import (
    SliceExtent,
    estimate_xy_shift_from_metadata,
    extent_of_grid,
    read_extents,
)
from linumpy.mosaic.slice_config import generate_slice_config

REPO = Path(__file__).parents[2]


def grid_info(
    slice_id: int, x_mm: list[float], y_mm: list[float], stage_to_array: str = "+x,+y"
) -> GridInfo:
    """Tiles at all crossings of x and y; 0.4 mm along axis 1, 0.2 mm along axis 2."""
    swapped = stage_to_array[1] == "y"
    tiles = tuple(
        GridTile(*((iy, ix) if swapped else (ix, iy)), x, y)
        for ix, x in enumerate(x_mm)
        for iy, y in enumerate(y_mm)
    )
    return GridInfo(
        slice_id=slice_id, tile_shape_px=(2, 40, 40), voxel_um=(5.0, 10.0, 5.0),
        overlap_fraction=0.2, tiles=tiles, tile_fov_um=(400.0, 200.0),
        stage_to_array=stage_to_array,
    )  # fmt: skip


def shifts_of(*infos: GridInfo) -> Any:
    return estimate_xy_shift_from_metadata([extent_of_grid(info) for info in infos])


def test_a_moved_mosaic_shifts_by_its_move() -> None:
    first = grid_info(2, [1.0, 1.3], [5.0, 5.1, 5.2])
    second = grid_info(4, [1.04, 1.34], [4.98, 5.08, 5.18])
    (shift,) = shifts_of(first, second)
    assert (shift.fixed_id, shift.moving_id, shift.reliable) == (2, 4, True)
    # Fixed minus moving.
    assert (shift.x_shift_mm, shift.y_shift_mm) == pytest.approx((-0.04, 0.02))
    assert (shift.x_shift_px, shift.y_shift_px) == pytest.approx((-4.0, 4.0))


def test_when_the_mosaic_grows_the_border_that_stayed_counts() -> None:
    first = grid_info(0, [1.0, 1.3], [5.0, 5.1])
    right = grid_info(1, [1.01, 1.31, 1.61], [5.0, 5.1])
    left = grid_info(2, [0.7, 1.0, 1.3], [5.0, 5.1])
    (grown_right,) = shifts_of(first, right)
    assert grown_right.x_shift_mm == pytest.approx(-0.01) and not grown_right.reliable
    (grown_left,) = shifts_of(first, left)
    assert grown_left.x_shift_mm == pytest.approx(0.0) and not grown_left.reliable
    (same,) = shifts_of(first, replace(first, slice_id=1))
    assert same.reliable


def test_holes_do_not_count() -> None:
    first = grid_info(0, [1.0, 1.3], [5.0, 5.1])
    tiles = (*first.tiles, GridTile(2, 0, 9.0, 9.0, present=False))
    (shift,) = shifts_of(first, replace(first, slice_id=1, tiles=tiles))
    assert (shift.x_shift_mm, shift.y_shift_mm, shift.reliable) == (0, 0, True)


def test_pixels_and_sides_follow_the_stage_axes_when_swapped() -> None:
    first, second = (grid_info(n, [1 + n / 50, 1.3], [5.0, 5.4], "-y,+x") for n in (0, 1))
    extent = extent_of_grid(first)
    assert extent.low_mm == pytest.approx((0.9, 4.8)) and extent.high_mm == pytest.approx(
        (1.4, 5.6)
    )
    assert extent.pixel_um == (5.0, 10.0)
    (shift,) = shifts_of(first, second)
    assert shift.x_shift_mm == 0  # the high border stayed


def reference(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    from_low, from_high = low[:-1] - low[1:], high[:-1] - high[1:]
    return np.where(np.abs(from_low) <= np.abs(from_high), from_low, from_high)


@given(st.lists(st.tuples(*[st.integers(-500, 500)] * 4), min_size=1, max_size=6))
def test_rows_follow_the_equations(rows: list[tuple[int, int, int, int]]) -> None:
    borders = np.array(rows, float) / 100
    low, high = borders[:, :2] - 10, borders[:, 2:] + 10
    extents = [
        SliceExtent(3 * n, tuple(low[n]), tuple(high[n]), (2, 2), (8.0 + n, 4.0 + n))
        for n in range(len(rows))
    ]
    shifts = estimate_xy_shift_from_metadata(extents)
    assert [(s.fixed_id, s.moving_id) for s in shifts] == [
        (3 * n, 3 * n + 3) for n in range(len(rows) - 1)
    ]
    got = np.array([(s.x_shift_mm, s.y_shift_mm) for s in shifts]).reshape(-1, 2)
    np.testing.assert_allclose(got, reference(low, high), atol=1e-12)
    got_px = np.array([(s.x_shift_px, s.y_shift_px) for s in shifts]).reshape(-1, 2)
    np.testing.assert_allclose(got_px, got * 1e3 / [8.0, 4.0], atol=1e-9)


def test_raw_tiles_and_grids_give_the_same_shifts(acquisition: Any) -> None:
    acquisition.remove_tile(1, 4, 11)
    grids = acquisition.root.parent / "grids"
    for slice_id in (0, 1):
        path = grids / f"mosaic_grid_3d_z{slice_id:02d}.ome.zarr"
        create_mosaic_grid_3d(acquisition.root, slice_id, path)
    raw, grid = read_extents(acquisition.root), read_extents(grids)
    assert raw == grid
    (shift,) = estimate_xy_shift_from_metadata(raw)
    assert (shift.x_shift_mm, shift.y_shift_mm) == pytest.approx((-0.03, 0.02))
    assert (shift.x_shift_px, shift.y_shift_px) == pytest.approx((-3.0, 4.0))


def test_two_grids_of_one_slice_are_named(tmp_path: Path) -> None:
    """Seen to fail without the error of `grid.check_slice_ids`."""
    info = grid_info(3, [1.0], [5.0])
    names = ("mosaic_grid_3d_z03.ome.zarr", "mosaic_grid_3d_z03_old.ome.zarr")
    for name in names:
        with create_grid(tmp_path / name, info, overwrite=False):
            pass
    with pytest.raises(InputError) as caught:
        read_extents(tmp_path)
    assert all(str(tmp_path / name) in str(caught.value) for name in names)
    assert "both hold slice z03; expected one" in str(caught.value)


# Slice lists


def test_slices_are_listed_with_what_is_known_of_the_galvo(acquisition: Any) -> None:
    acquisition.add_slice(4, [(3, 9)], n_extra=8)
    rows = generate_slice_config(acquisition.root, exclude=[4], exclude_first=1)
    assert rows == (
        SliceConfig(0, use=False, exclude_reason="calibration_slice", notes="calibration_slice"),
        SliceConfig(1, use=True),
        SliceConfig(4, use=False, exclude_reason="excluded by hand"),
    )
    found = generate_slice_config(acquisition.root, detect_galvo=True)
    assert [row.galvo_fix for row in found] == [True, True, False]
    assert all(row.galvo_confidence == pytest.approx(1) for row in found)
    grids = acquisition.root.parent / "grids"
    for slice_id in (0, 1, 4):
        path = grids / f"mosaic_grid_3d_z{slice_id:02d}.ome.zarr"
        create_mosaic_grid_3d(acquisition.root, slice_id, path)
    assert [replace(row, galvo_confidence=1.0) for row in generate_slice_config(grids)] == [
        replace(row, galvo_confidence=1.0) for row in found
    ]


def test_excluding_what_is_not_there_or_everything_is_refused(acquisition: Any) -> None:
    """Seen to fail without the error of `slice_config.generate_slice_config`."""
    with pytest.raises(InputError, match=r"--exclude names slice 7-8, which .* its ids are 0-1"):
        generate_slice_config(acquisition.root, exclude=[1, 7, 8])
    with pytest.raises(InputError, match="all 2 slices are excluded; expected one to be left"):
        generate_slice_config(acquisition.root, exclude_first=2)
    with pytest.raises(InputError, match="--exclude_first is -1"):
        generate_slice_config(acquisition.root, exclude_first=-1)


def test_slices_with_bad_tiles_override_the_table(acquisition: Any, tmp_path: Path) -> None:
    acquisition.add_slice(4, [(3, 9)])
    given = tmp_path / "given.csv"
    given.write_text("slice_id,use,exclude_reason\n0,no,torn\n1,yes,\n")
    rows = generate_slice_config(acquisition.root, given=given, bad=[0, 1])
    assert [(r.slice_id, r.use, r.exclude_reason) for r in rows] == [
        (0, False, "torn"),
        (1, False, "bad_raw_tiles"),
        (4, True, ""),
    ]
    with pytest.raises(InputError, match="all 3 slices are excluded"):
        generate_slice_config(acquisition.root, bad=[0, 1, 4])


def test_a_slice_without_readable_header_is_passed_over(acquisition: Any) -> None:
    """Seen to fail where all headers are read."""
    acquisition.add_slice(4, [(3, 9)])
    (acquisition.tile_path(1, 3, 9) / "info.txt").unlink()
    extents = read_extents(acquisition.root, without=[1])
    (shift,) = estimate_xy_shift_from_metadata(extents)
    assert (shift.fixed_id, shift.moving_id) == (0, 4)


def test_decisions_made_before_win_and_must_fit_the_acquisition(
    acquisition: Any, tmp_path: Path
) -> None:
    given = tmp_path / "given.csv"
    given.write_text("slice_id,use,exclude_reason,operator\n1,no,torn,A\n0,yes,,B\n3,no,lost,\n")
    acquisition.add_slice(4, [(3, 9)], n_extra=8)
    rows = generate_slice_config(
        acquisition.root, exclude=[4], exclude_first=2, detect_galvo=True, given=given
    )
    assert [(r.slice_id, r.use, r.exclude_reason, r.notes, r.extra) for r in rows] == [
        (0, True, "", "", {"operator": "B"}),
        (1, False, "torn", "", {"operator": "A"}),
        (3, False, "lost", "", {"operator": ""}),
        (4, False, "excluded by hand", "", {}),
    ]
    assert [r.galvo_fix for r in rows] == [True, True, None, False]
    given.write_text("slice_id,quality_score\n0,0.5\n")
    (row, *_) = generate_slice_config(acquisition.root, exclude_first=1, given=given)
    why = "calibration_slice"
    assert row == SliceConfig(0, use=False, exclude_reason=why, notes=why, quality_score=0.5)
    given.write_text("slice_id,use\n0,true\n2,true\n")
    with pytest.raises(InputError, match=r"given\.csv, line 3: slice z02 is not one of the acq"):
        generate_slice_config(acquisition.root, given=given)
    given.write_text("slice_id,use\n0,false\n1,false\n4,false\n")
    with pytest.raises(InputError, match="all 3 slices are excluded"):
        generate_slice_config(acquisition.root, given=given)


# The commands


def command(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(REPO / "scripts" / name), *map(str, arguments)],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(REPO)},
    )  # fmt: skip


def test_the_shifts_command(acquisition: Any, tmp_path: Path) -> None:
    """Seen to fail without the error of `info.read_info`."""
    name, output = "linum_estimate_xy_shift_from_metadata.py", tmp_path / "shifts_xy.csv"
    done = command(name, acquisition.root, output)
    assert (done.returncode, done.stderr) == (0, "")
    (shift,) = read_shifts(output)
    assert shift.x_shift_mm == pytest.approx(-0.03)
    before = output.read_text()
    again = command(name, acquisition.root, output)
    assert again.returncode == 1 and again.stderr.startswith(f"{name}: error: {output}: exists")
    assert output.read_text() == before
    (acquisition.tile_path(1, 3, 9) / "info.txt").unlink()
    broken = command(name, acquisition.root, tmp_path / "none.csv")
    assert broken.returncode == 1 and "tile_x03_y09_z01/info.txt: no such file" in broken.stderr
    assert not (tmp_path / "none.csv").exists()


def test_the_slice_config_command(acquisition: Any, tmp_path: Path) -> None:
    name = "linum_generate_slice_config.py"
    shifts, output = tmp_path / "shifts.csv", tmp_path / "slice_config.csv"
    shifts.write_text("fixed_id,moving_id,x_shift,y_shift,x_shift_mm,y_shift_mm\n0,1,0,0,0,0\n")
    for source in (shifts, acquisition.root):
        done = command(name, source, output, "--exclude_first", 1, "-f")
        assert (done.returncode, done.stderr) == (0, "")
        assert read_slice_config(output) == (
            SliceConfig(
                0, use=False, exclude_reason="calibration_slice", notes="calibration_slice"
            ),
            SliceConfig(1, use=True),
        )
    given = tmp_path / "given.csv"
    given.write_text("slice_id,use\n1,false\n1,true\n")
    twice = command(name, acquisition.root, tmp_path / "none.csv", "--given", given)
    assert twice.returncode == 1
    assert f"{given}, line 3: a second row for slice z01, after line 2" in twice.stderr
    bad = command(name, acquisition.root, tmp_path / "none.csv", "--exclude", "4")
    assert bad.returncode == 1 and "--exclude names slice 4" in bad.stderr
    assert not (tmp_path / "none.csv").exists()
