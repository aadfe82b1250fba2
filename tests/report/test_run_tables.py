"""Parquet tables of a run: rows of the CSV files and models, and what is left out."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from linumpy.io.tables import SliceConfig, XYShift, write_shifts, write_slice_config
from linumpy.report.finish import finish_run
from linumpy.report.tables import write_tables

parquet = pytest.importorskip("pyarrow.parquet")


def write_tiles(output: Path, slice_id: int) -> None:
    folder = output / f"models/z{slice_id:02d}"
    folder.mkdir(parents=True)
    tiles = [
        {
            "ix": ix, "iy": 2, "stage_corner_um": [10.0 * ix, 1.0], "corner_um": [10.5 * ix, 1.5],
            "component": 0, "n_pairs": 1,
        }
        for ix in range(3)
    ]  # fmt: skip
    model = {
        "slice_id": slice_id, "voxel_um": [10, 10, 10], "tile_shape_px": [4, 5, 6],
        "tiles": tiles, "pairs": [], "stage_affine": [[1, 0], [0, 1]],
    }  # fmt: skip
    (folder / "register_tiles.json").write_text(json.dumps(model))


@pytest.fixture
def tables(output: Path) -> Path:
    shifts = [XYShift(0, 1, 1.5, -2.0, 0.015, -0.02), XYShift(1, 2, 0.5, 1.0, 0.005, 0.01)]
    write_shifts(output / "shifts_xy.csv", shifts, overwrite=True)
    rows = [SliceConfig(0, use=True), SliceConfig(1, use=False)]
    write_slice_config(output / "slice_config.csv", rows, overwrite=True)
    for slice_id in (0, 7):
        write_tiles(output, slice_id)
    return output


def test_all_slices_are_in_one_file(tables: Path) -> None:
    names = ["shifts_xy.parquet", "slice_config.parquet", "tiles.parquet"]
    assert [path.name for path in write_tables(tables)] == names
    shifts, config, tiles = (parquet.read_table(tables / name).to_pylist() for name in names)
    assert [row["y_shift_mm"] for row in shifts] == [-0.02, 0.01]
    assert [(row["slice_id"], row["use"]) for row in config] == [(0, True), (1, False)]
    assert config[0]["quality_score"] is None
    assert [(row["slice_id"], row["ix"], row["corner_axis1_um"]) for row in tiles] == [
        (slice_id, ix, 10.5 * ix) for slice_id in (0, 7) for ix in range(3)
    ]


def test_the_end_of_a_launch_writes_them_and_the_crate_lists_them(tables: Path) -> None:
    assert tables / "tiles.parquet" in finish_run(tables)
    graph = json.loads((tables / "ro-crate-metadata.json").read_text())["@graph"]
    (entity,) = (e for e in graph if e["@id"] == "tiles.parquet")
    assert entity["encodingFormat"] == "application/vnd.apache.parquet"
    before = (tables / "tiles.parquet").read_bytes()
    finish_run(tables)
    assert (tables / "tiles.parquet").read_bytes() == before


def test_a_table_that_cannot_be_read_is_left_out(
    tables: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tables / "shifts_xy.csv").write_text("nothing\n")
    (tables / "models/z07/register_tiles.json").write_text("{}")
    assert [path.name for path in write_tables(tables)] == ["slice_config.parquet"]
    assert "no tiles.parquet" in caplog.text and "no shifts_xy.parquet" in caplog.text


def test_without_pyarrow_nothing_is_written(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert write_tables(tables) == []
    assert not list(tables.glob("*.parquet"))
