"""Malformed raw acquisitions: an error that names the file, and no output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from linumpy.core.errors import InputError, OutputExistsError
from linumpy.io.grid import open_grid
from linumpy.mosaic.create_mosaic_grid_3d import create_mosaic_grid_3d

REPO = Path(__file__).parents[2]
NAME = "mosaic_grid_3d_z00.ome.zarr"


# Axial resolution and slice interval


def test_the_axial_resolution_must_be_known(acquisition: Any) -> None:
    """Seen to fail without the errors of `raw_slice.axial_resolution_um` and
    `raw_slice._positive`.
    """
    acquisition.change_metadata(0, axial_resolution_um=None)
    path = acquisition.root / "slice_z00/metadata.json"
    acquisition.assert_refused(
        "slice z00: axial resolution unknown", f'"axial_resolution_um" to {path}',
        "give --axial_resolution UM",
    )  # fmt: skip
    acquisition.assert_refused("--axial_resolution is 0.0", axial_resolution_um=0.0)
    assert open_grid(acquisition.create(axial_resolution_um=3.5)).info.voxel_um[0] == 3.5


def test_a_given_axial_resolution_wins_with_a_warning(
    acquisition: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert open_grid(acquisition.create(axial_resolution_um=3.5)).info.voxel_um[0] == 3.5
    assert "--axial_resolution is 3.5 um and axial_resolution_um of" in caplog.text
    assert "says 6 um; the option counts" in caplog.text


def test_the_slice_interval_must_be_known(acquisition: Any) -> None:
    """Seen to fail without the error of `raw_slice.slice_interval_um`."""
    acquisition.change_metadata(0, slice_thickness=None)
    acquisition.assert_refused(
        "slice z00: distance of the slices unknown", '"slice_thickness" (mm)',
        "give --slicing_interval UM",
    )  # fmt: skip
    info = open_grid(acquisition.create(slicing_interval_um=200.0)).info
    assert info.slice_interval_um == 200.0


def test_a_single_slice_needs_no_interval(acquisition: Any) -> None:
    acquisition.change_metadata(0, slice_thickness=None)
    for iy in (9, 10, 11):
        for ix in (3, 4):
            acquisition.remove_tile(1, ix, iy)
    (acquisition.root / "slice_z01/tiles").rmdir()
    (acquisition.root / "slice_z01/metadata.json").unlink()
    (acquisition.root / "slice_z01").rmdir()
    assert open_grid(acquisition.create()).info.slice_interval_um is None


def test_the_interval_is_held_against_the_stage(
    acquisition: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen to fail without the error of `raw_slice.slice_interval_um`."""
    for slice_id, z_mm in ((2, 0.4), (3, 0.6)):
        acquisition.add_slice(slice_id, [(0, 0)], stage_z_pos_mm=z_mm)
    for slice_id in range(4):
        acquisition.change_metadata(slice_id, slice_thickness=0.25)
    path = acquisition.root / "slice_z00/metadata.json"
    acquisition.assert_refused(
        str(path), "slice interval is 250 um", "moves by 200 um a slice",
        "within 5 %", "--slicing_interval",
    )  # fmt: skip
    info = open_grid(acquisition.create(slicing_interval_um=250.0)).info
    assert info.slice_interval_um == 250.0
    assert "slice interval is 250 um, but stage_z_pos_mm moves by 200 um" in caplog.text


@pytest.mark.parametrize("thickness_mm", [0.06, 0.174, 0.25, 0.9])
def test_a_cut_that_may_be_uneven_is_no_error(
    acquisition: Any, caplog: pytest.LogCaptureFixture, thickness_mm: float
) -> None:
    """One step has no spread. Seen to fail where 5 % decided."""
    for slice_id in (0, 1):
        acquisition.change_metadata(slice_id, slice_thickness=thickness_mm)
    info = open_grid(acquisition.create()).info
    assert info.slice_interval_um == pytest.approx(1e3 * thickness_mm)
    assert (
        f"interval is {1e3 * thickness_mm:g} um, but stage_z_pos_mm moves by 200 um" in caplog.text
    )


@pytest.mark.parametrize("thickness_mm", [0.0002, 0.04, 1.1])
def test_a_step_that_no_cut_makes_is_an_error_of_two_slices_too(
    acquisition: Any, thickness_mm: float
) -> None:
    for slice_id in (0, 1):
        acquisition.change_metadata(slice_id, slice_thickness=thickness_mm)
    acquisition.assert_refused("moves by 200 um a slice", "--slicing_interval")


def test_gaps_in_the_ids_are_not_thick_slices(acquisition: Any) -> None:
    acquisition.add_slice(5, [(0, 0)])
    for slice_id in (0, 1, 5):
        acquisition.change_metadata(slice_id, slice_thickness=0.209)
    assert open_grid(acquisition.create()).info.slice_interval_um == pytest.approx(209)


def test_uneven_slices_share_the_interval_of_most(acquisition: Any) -> None:
    """Each keeps its own thickness, and the stage's height, for the depths to be solved."""
    for slice_id, z_mm in ((2, 0.4), (3, 0.75), (4, 0.95)):
        acquisition.add_slice(slice_id, [(0, 0)], stage_z_pos_mm=z_mm)
    acquisition.change_metadata(3, slice_thickness=0.35)
    acquisition.change_metadata(0, slice_thickness=0.35)
    info = open_grid(acquisition.create()).info
    assert (info.slice_interval_um, info.slice_thickness_um) == (200.0, 350.0)
    assert info.stage_z_mm == 0.0


# Bad input


def test_truncated_and_oversized_images_are_refused(acquisition: Any) -> None:
    """Seen to fail without the error of `raw.image_files`."""
    path = acquisition.image_path(0, 4, 10)
    body = path.read_bytes()
    assert len(body) == 21504
    for change in (body[:-4], body[:-1344], b"", body + bytes(4), body + bytes(1344)):
        path.write_bytes(change)
        acquisition.assert_refused(f"{path}: {len(change)} bytes, expected 21504 ")
    path.unlink()
    acquisition.assert_refused(f"{path.parent}: holds no image_*.bin")
    path.mkdir()
    acquisition.assert_refused(f"{path}: cannot be read (not a file)")


def test_sizes_are_checked_before_any_sample_is_read(
    acquisition: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen to fail without the error of `raw.image_files`."""
    import linumpy.mosaic.raw_tiles as module

    for name in ("read_tile", "read_aip"):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("samples were read"))
    acquisition.image_path(0, 4, 11).write_bytes(bytes(8))
    acquisition.assert_refused("tile_x04_y11_z00/image_00000.bin: 8 bytes")


def test_missing_headers_and_keys_are_refused(acquisition: Any) -> None:
    """Seen to fail without the errors of `info._number` and `info.tile_info`."""
    path = acquisition.tile_path(0, 4, 10) / "info.txt"
    text = path.read_text()
    for key in ("nx", "ny", "width", "height", "bottom_z"):
        acquisition.change_info(0, 4, 10, **{key: None})
        acquisition.assert_refused(f"{path}: lacks the key {key}")
        path.write_text(text)
    acquisition.change_info(0, 4, 10, n_repeat=2)
    acquisition.assert_refused(f"{path}: n_repeat is 2, expected 1")
    path.unlink()
    acquisition.assert_refused(f"{path}: no such file")


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"bottom_z": 12}, "shape (z 13, x 20 + 8, y 16) over 200 x 80 um"),
        ({"ny": 15}, "shape (z 12, x 20 + 8, y 15) over 200 x 80 um"),
        ({"nx": 21, "n_extra": 7}, "shape (z 12, x 21 + 7, y 16) over 200 x 80 um"),
        ({"height": 81}, "shape (z 12, x 20 + 8, y 16) over 200 x 81 um"),
    ],
)
def test_mixed_tile_shapes_are_refused(
    acquisition: Any, changes: dict[str, int], found: str
) -> None:
    """The odd one out is named, even when it is the first.

    Seen to fail without the error of `raw_slice.read_raw_slice`.
    """
    acquisition.change_info(0, 3, 9, **changes)
    acquisition.assert_refused(
        f"{acquisition.tile_path(0, 3, 9) / 'info.txt'}: {found}; expected shape "
        "(z 12, x 20 + 8, y 16) over 200 x 80 um as 5 of the 6 tiles of slice z00 have",
    )  # fmt: skip


def test_two_tiles_at_one_index_are_refused(acquisition: Any) -> None:
    """Seen to fail without the error of `raw.discover_tiles`."""
    first = acquisition.tile_path(0, 4, 10)
    second = acquisition.root / "again" / "tile_x4_y10_z0"
    second.mkdir(parents=True)
    acquisition.assert_refused(str(first), str(second), "two tiles at grid index x 4, y 10")


def test_two_tiles_at_one_position_are_refused(acquisition: Any) -> None:
    """Equal but for 1 um along an axis of 80 um.

    Seen to fail without the error of `raw_slice._refuse_same_place`.
    """
    acquisition.change_info(0, 4, 10, stage_x_pos_mm=1.64, stage_y_pos_mm=2.577)
    first, second = (acquisition.tile_path(0, 4, iy) for iy in (9, 10))
    acquisition.assert_refused(
        f"{first} and {second}: two tiles at one stage position",
        "(1.64, 2.577)", "expected tiles a step apart",
    )  # fmt: skip


def test_empty_and_unknown_slices_are_refused(acquisition: Any) -> None:
    """Seen to fail without the error of `raw.tiles_of_slice`."""
    acquisition.assert_refused("no tile of slice z07; slices there: 0-1", slice_id=7)
    (acquisition.root / "slice_z02" / "tiles").mkdir(parents=True)
    acquisition.assert_refused("no tile of slice z02; slices there: 0-1", slice_id=2)


def test_bad_options_are_refused(acquisition: Any) -> None:
    acquisition.assert_refused("--resolution is 0", resolution_um=0)
    acquisition.assert_refused("--galvo_threshold is 2", galvo_threshold=2)
    acquisition.assert_refused("stage_to_array '+x,+x'", stage_to_array="+x,+x")


def test_an_error_in_the_middle_leaves_nothing(
    acquisition: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen to fail where `atomic_path` leaves what it began."""
    import linumpy.mosaic.raw_tiles as module

    def fail_late(tile: Any, info: Any) -> np.ndarray:
        if tile.name == "tile_x04_y10_z00" and acquisition.grids.exists():
            raise InputError(f"{tile.path}: disk gone")
        return original(tile, info)

    original = module.read_tile
    monkeypatch.setattr(module, "read_tile", fail_late)
    acquisition.assert_refused("tile_x04_y10_z00: disk gone")


def test_an_existing_grid_is_kept(acquisition: Any) -> None:
    """Seen to fail without `refuse_existing` and a swap that refuses, too."""
    path = acquisition.create()
    before = {p: p.stat().st_mtime_ns for p in path.rglob("*")}
    with pytest.raises(OutputExistsError, match="exists already; give --overwrite"):
        acquisition.create()
    assert {p: p.stat().st_mtime_ns for p in path.rglob("*")} == before
    create_mosaic_grid_3d(acquisition.root, 0, path, overwrite=True)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


# The command


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    script = REPO / "scripts" / "linum_create_mosaic_grid_3d.py"
    return subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPO), *sys.path])},
    )  # fmt: skip


@pytest.mark.slow
def test_the_command_writes_a_grid_once(acquisition: Any, tmp_path: Path) -> None:
    """Seen to fail without `refuse_existing` and a swap that refuses, too."""
    output = tmp_path / "grids" / NAME
    arguments = (output, "--from_root_directory", acquisition.root, "-z", 0, "-r", 12)
    done = command(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert open_grid(output).info.voxel_um == (12.0, 12.0, 12.0)
    attributes = json.loads((output / "zarr.json").read_text())["attributes"]
    assert attributes["linumpy"]["tiles"][5]["stage_x_mm"] == pytest.approx(1.64)
    again = command(*arguments)
    assert again.returncode == 1
    assert again.stderr == (
        f"linum_create_mosaic_grid_3d.py: error: {output}: exists already; "
        "give --overwrite to replace it\n"
    )


def test_command_names_the_defect_and_leaves_no_output(acquisition: Any, tmp_path: Path) -> None:
    """Seen to fail without the error of `raw.image_files`."""
    path = acquisition.image_path(0, 3, 9)
    path.write_bytes(path.read_bytes()[:-1])
    output = tmp_path / "grids" / NAME
    done = command(
        output, "--from_root_directory", acquisition.root, "-z", 0, "--stage_to_array=+x,+y"
    )
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"linum_create_mosaic_grid_3d.py: error: {path}: 21503 bytes, expected 21504 "
    )
    assert done.stderr.count("\n") == 1
    acquisition.assert_nothing_written()
