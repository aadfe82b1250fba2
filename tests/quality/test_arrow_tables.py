"""The pipeline's tables as record batches, against the CSV files and PyArrow."""

import dataclasses

import numpy as np
import pytest

from linumpy.core.errors import InputError
from linumpy.io.models import save_model
from linumpy.io.tables import SliceConfig, XYShift, write_shifts, write_slice_config
from linumpy.quality.accuracy_metric import AT_LEAST, make_metric, not_measured
from linumpy.quality.arrow_tables import (
    arrow_table,
    figures_table,
    shifts_table,
    slice_config_table,
    tile_positions_table,
)
from linumpy.quality.run import Run
from linumpy.tiles.positions import TileRegistration

pa = pytest.importorskip("pyarrow")
csv = pytest.importorskip("pyarrow.csv")

SHIFTS = (
    XYShift(0, 1, 1.5, -2.0, 0.015, -0.02),
    XYShift(1, 3, 0.0, 4.25, 0.0, 0.0425, reliable=False, x_correction_mm=-1.5),
)


def test_shifts_are_those_of_the_csv_file(tmp_path):
    batch = pa.record_batch(shifts_table(SHIFTS))
    write_shifts(tmp_path / "shifts_xy.csv", SHIFTS, corrections=True)
    written = csv.read_csv(tmp_path / "shifts_xy.csv")
    assert batch.schema.names == written.schema.names
    for name in batch.schema.names:
        assert [float(v) for v in batch[name].to_pylist()] == written[name].to_pylist()
    assert batch.schema.field("fixed_id").type == pa.int64()
    assert batch.schema.field("x_shift_mm").type == pa.float64()
    assert batch.schema.field("reliable").type == pa.bool_()


def test_slice_config_is_that_of_the_csv_file(tmp_path):
    rows = (
        SliceConfig(0, use=True, quality_score=0.5, extra={"comment": "torn"}),
        SliceConfig(2, use=False, exclude_reason="bubble, large", galvo_confidence=0.125),
        SliceConfig(3),
    )
    batch = pa.record_batch(slice_config_table(rows))
    write_slice_config(tmp_path / "slice_config.csv", rows)
    written = csv.read_csv(tmp_path / "slice_config.csv")
    assert batch.schema.names == written.schema.names
    assert batch["slice_id"].to_pylist() == [0, 2, 3]
    assert batch["use"].to_pylist() == written["use"].to_pylist() == [True, False, None]
    assert batch["quality_score"].to_pylist() == [0.5, None, None]
    assert batch["galvo_confidence"].to_pylist() == written["galvo_confidence"].to_pylist()
    assert batch["exclude_reason"].to_pylist() == ["", "bubble, large", ""]
    assert batch["comment"].to_pylist() == ["torn", None, None]
    assert batch.schema.field("rehomed").type == pa.bool_()
    assert batch["rehomed"].null_count == 3


def test_tile_positions_from_the_model_and_from_its_file(tmp_path):
    model = TileRegistration(
        slice_id=4,
        voxel_um=(3.5, 10.0, 10.0),
        tile_shape_px=(8, 32, 32),
        tiles=[
            {
                "ix": n,
                "iy": 7,
                "stage_corner_um": [100.0 * n, 5.0],
                "corner_um": [100.0 * n + 0.5, 4.0],
                "component": n - 1,
                "n_pairs": 3 * n,
            }
            for n in range(3)
        ],
        pairs=[],
        stage_affine=[[1.0, 0.0], [0.0, 1.0]],
    )
    save_model(tmp_path / "models" / "z04", "register_tiles", model)
    read = Run(tmp_path).tile_registrations.values()
    for models in ([model], read):
        batch = pa.record_batch(tile_positions_table(models))
        assert batch["slice_id"].to_pylist() == [4, 4, 4]
        assert batch["ix"].to_pylist() == [0, 1, 2]
        assert batch["iy"].to_pylist() == [7, 7, 7]
        assert batch["stage_corner_axis1_um"].to_pylist() == [0.0, 100.0, 200.0]
        assert batch["stage_corner_axis2_um"].to_pylist() == [5.0, 5.0, 5.0]
        assert batch["corner_axis1_um"].to_pylist() == [0.5, 100.5, 200.5]
        assert batch["corner_axis2_um"].to_pylist() == [4.0, 4.0, 4.0]
        assert batch["component"].to_pylist() == [-1, 0, 1]
        assert batch["n_pairs"].to_pylist() == [0, 3, 6]
    assert len(tile_positions_table([model, model])) == 6


def test_metrics_without_a_value_are_rows_too():
    figures = {
        "tiles": make_metric(0.2, "px", 48, target=0.25),
        "overlap": make_metric(0.9, "", 12, target=0.95, comparison=AT_LEAST),
        "drift": not_measured("no truth", "px", target=2.0),
        "sharpness": make_metric(1.25, "", 3),
    }
    batch = pa.record_batch(figures_table(figures))
    assert batch["figure"].to_pylist() == list(figures)
    for name in ("value", "unit", "target", "comparison", "n", "passed"):
        assert batch[name].to_pylist() == [getattr(figure, name) for figure in figures.values()]
    assert batch["passed"].to_pylist() == [True, False, None, None]


def test_tables_without_rows_keep_their_types():
    for table, filled in (
        (shifts_table([]), shifts_table(SHIFTS)),
        (slice_config_table([]), slice_config_table([SliceConfig(1)])),
        (figures_table({}), figures_table({"a": make_metric(1.0, "px", 1)})),
    ):
        assert pa.record_batch(table).num_rows == 0
        assert pa.schema(table) == pa.schema(filled)
    assert pa.record_batch(tile_positions_table([])).num_columns == 9


def test_pandas_takes_a_table():
    pandas = pytest.importorskip("pandas")
    frame = pa.table(shifts_table(SHIFTS)).to_pandas()
    pandas.testing.assert_series_equal(
        frame["y_shift_mm"], pandas.Series([-0.02, 0.0425], name="y_shift_mm")
    )


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("1", int),
        (1.5, int),
        (True, int),
        (2**63, int),
        (False, float),
        ("x", float),
        (1, bool),
        (3, str),
        (b"x", str),
    ],
)
def test_values_of_another_kind_are_refused(value, kind):
    rows = [{"a": None}, {"a": value}]
    with pytest.raises(InputError, match=rf"row 1 of the table: a is .*, expected {kind.__name__}"):
        arrow_table(rows, {"a": kind})


def test_numpy_numbers_fit_and_missing_columns_are_named():
    rows = [{"i": np.int32(3), "f": np.float32(0.5), "b": np.bool_(True)}]
    batch = pa.record_batch(arrow_table(rows, {"i": int, "f": float, "b": bool}))
    assert batch.to_pylist() == [{"i": 3, "f": 0.5, "b": True}]
    with pytest.raises(InputError, match="row 0 of the table lacks the column 'z'"):
        arrow_table(rows, {"i": int, "z": float})


def test_no_column_of_the_rows_is_forgotten():
    """A field that is added to a row type appears in its table."""
    columns = pa.schema(slice_config_table([])).names
    assert columns == [f.name for f in dataclasses.fields(SliceConfig) if f.name != "extra"]
    assert len(pa.schema(shifts_table([])).names) == len(dataclasses.fields(XYShift))
