"""shifts_xy.csv and slice_config.csv: round trips, rules and refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from linumpy.core.errors import InputError, OutputExistsError
from linumpy.io.table_rows import parse_ids
from linumpy.io.tables import (
    SliceConfig,
    XYShift,
    offsets_from_shifts,
    position_corrections_um,
    read_shifts,
    read_slice_config,
    selected_ids,
    stamp,
    write_shifts,
    write_slice_config,
)

SHIFT_HEADER = "fixed_id,moving_id,x_shift,y_shift,x_shift_mm,y_shift_mm"
CONFIG_HEADER = (
    "slice_id,use,exclude_reason,quality_score,galvo_confidence,galvo_fix,notes,rehomed,"
    "rehoming_reliable,auto_excluded,auto_exclude_reason,interpolated,interpolation_failed,"
    "interpolation_method_used,interpolation_fallback_reason"
)
QUICK = settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

finite = st.floats(-1e6, 1e6)


@st.composite
def chains(draw: st.DrawFn) -> tuple[XYShift, ...]:
    ids = sorted(draw(st.sets(st.integers(0, 500), min_size=2, max_size=8)))
    return tuple(
        XYShift(
            a,
            b,
            *(draw(finite) for _ in range(4)),
            reliable=draw(st.booleans()),
            x_correction_mm=draw(st.just(0.0) | finite),
            y_correction_mm=draw(st.just(0.0) | finite),
        )
        for a, b in zip(ids, ids[1:], strict=False)
    )


# shifts_xy.csv


@given(chains())
@QUICK
def test_shifts_survive_the_disk(tmp_path: Path, shifts: tuple[XYShift, ...]) -> None:
    path = tmp_path / "shifts_xy.csv"
    write_shifts(path, shifts, overwrite=True)
    assert read_shifts(path) == shifts


def test_shifts_file_is_the_agreed_one(tmp_path: Path) -> None:
    path = tmp_path / "shifts_xy.csv"
    write_shifts(path, [XYShift(3, 5, -1.5, 2.0, -0.012, 0.016, reliable=False)])
    assert path.read_text() == (f"{SHIFT_HEADER},reliable\n3.0,5.0,-1.5,2.0,-0.012,0.016,0.0\n")
    with pytest.raises(OutputExistsError, match="exists already"):
        write_shifts(path, [])


def test_corrections_have_columns_when_there_are_some_or_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "shifts_xy.csv"
    plain = XYShift(3, 5, -1.5, 2.0, -0.012, 0.016)
    corrected = XYShift(5, 6, 0, 0, 0, 0, x_correction_mm=0.25, y_correction_mm=-1.0)
    header = f"{SHIFT_HEADER},reliable,x_correction_mm,y_correction_mm"
    for shifts, asked in (([plain, corrected], False), ([plain], True)):
        write_shifts(path, shifts, corrections=asked, overwrite=True)
        assert path.read_text().splitlines()[0] == header
        assert read_shifts(path) == tuple(shifts)


def test_a_correction_moves_its_slice_and_all_after_it() -> None:
    """A step is fixed minus moving: 0.25 mm more of it is 250 um less of position."""
    shifts = [
        XYShift(0, 2, 0, 0, 0, 0),
        XYShift(2, 3, 0, 0, 0, 0, x_correction_mm=0.25),
        XYShift(3, 4, 0, 0, 0, 0, x_correction_mm=-0.25, y_correction_mm=1.0),
    ]
    corrections = position_corrections_um(shifts)
    assert corrections == {0: (0, 0), 2: (0, 0), 3: (-250, 0), 4: (0, -1000)}


def test_an_old_shifts_file_counts_as_reliable(tmp_path: Path) -> None:
    path = tmp_path / "shifts_xy.csv"
    path.write_bytes(f"\ufeff{SHIFT_HEADER}\r\n0, 1.0,1,2,3,4\r\n\r\n01,2,5,6,7,8\r\n".encode())
    assert read_shifts(path) == (
        XYShift(0, 1, 1, 2, 3, 4, reliable=True),
        XYShift(1, 2, 5, 6, 7, 8, reliable=True),
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["0,1,x,0,0,0,1"], "line 2: x_shift is 'x', expected a finite number"),
        (["0,1,0,0,0,0,1", "1,2,0,0,nan,0,1"], "line 3: x_shift_mm is 'nan', expected a finite"),
        (["0,1,0,0,0,inf,1"], "line 2: y_shift_mm is 'inf', expected a finite number"),
        (["0,1.5,0,0,0,0,1"], "line 2: moving_id is '1.5', expected a slice id"),
        (["-1,1,0,0,0,0,1"], "line 2: fixed_id is '-1', expected a slice id"),
        (["inf,1,0,0,0,0,1"], "line 2: fixed_id is 'inf', expected a slice id"),
        (["0,1,0,0,0,0,perhaps"], "line 2: reliable is 'perhaps', expected true or false"),
        (["0,1,0,0,0,0"], "line 2: 6 cells, expected 7 as in the header"),
        (["1,0,0,0,0,0,1"], "line 2: moving_id is 0, expected more than fixed_id 1"),
        (
            ["0,1,0,0,0,0,1", "0,1,0,0,0,0,1"],
            "line 3: fixed_id is 0, expected 1, the moving_id of the row before: slices are listed",
        ),
        (
            ["0,1,0,0,0,0,1", "2,3,0,0,0,0,1"],
            "line 3: fixed_id is 2, expected 1, the moving_id of the row before: slices are miss",
        ),
    ],
)
def test_a_bad_row_is_named(rows: list[str], message: str, tmp_path: Path) -> None:
    """Seen to fail without the errors of `tables._number` and `tables._slice_id`."""
    path = tmp_path / "shifts_xy.csv"
    path.write_text("\n".join([f"{SHIFT_HEADER},reliable", *rows]) + "\n")
    with pytest.raises(InputError) as caught:
        read_shifts(path)
    assert str(caught.value).startswith(f"{path}, {message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lacks the column fixed_id, moving_id"),
        ("fixed_id;moving_id\n", "expected a comma-separated header fixed_id,moving_id,x_shift"),
        (f"{SHIFT_HEADER},x_shift\n", "column x_shift appears twice in the header"),
        (f'{SHIFT_HEADER}\n"0,1\n', "not a CSV table"),
    ],
)
def test_a_bad_header_is_named(text: str, message: str, tmp_path: Path) -> None:
    """Seen to fail without the error of `tables._read_rows`."""
    path = tmp_path / "shifts_xy.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_shifts(path)
    assert str(caught.value).startswith(f"{path}: ") and message in str(caught.value)


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    """Seen to fail without the error of `tables._read_rows`."""
    with pytest.raises(InputError, match="shifts_xy.csv: no such table"):
        read_shifts(tmp_path / "shifts_xy.csv")


@given(chains())
def test_offsets_are_minus_the_sum_of_shifts(shifts: tuple[XYShift, ...]) -> None:
    ids = [shifts[0].fixed_id, *(s.moving_id for s in shifts)]
    x = np.concatenate([[0.0], -np.cumsum([s.x_shift_mm for s in shifts])]) * 1e3
    y = np.concatenate([[0.0], -np.cumsum([s.y_shift_mm for s in shifts])]) * 1e3
    got = offsets_from_shifts(shifts, ids[1:])
    assert list(got) == ids[1:]
    np.testing.assert_allclose(list(got.values()), np.stack([x, y], 1)[1:], rtol=1e-9, atol=1e-3)


def test_a_slice_that_is_left_out_passes_on_its_shift() -> None:
    shifts = (XYShift(0, 1, 0, 0, 1.0, 0.5), XYShift(1, 4, 0, 0, -3.0, 0.25))
    got = offsets_from_shifts(shifts, [0, 4])
    assert got == {0: (0.0, 0.0), 4: (2000.0, -750.0)}


def test_a_slice_without_shift_is_named() -> None:
    """Seen to fail without the error of `tables.offsets_from_shifts`."""
    shifts = (XYShift(0, 1, 0, 0, 1.0, 0.5),)
    with pytest.raises(InputError) as caught:
        offsets_from_shifts(shifts, [0, 1, 2, 7], where="a/shifts.csv")
    assert str(caught.value) == "a/shifts.csv: no shift for slice z02, z07; its ids are 0, 1"
    assert offsets_from_shifts((), [7]) == {7: (0.0, 0.0)}
    with pytest.raises(InputError, match="no shifts, expected rows for the slices"):
        offsets_from_shifts((), [7, 8])


# slice_config.csv

words = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=12)
maybe = st.none() | st.booleans()


@st.composite
def configs(draw: st.DrawFn) -> tuple[SliceConfig, ...]:
    ids = draw(st.lists(st.integers(0, 2000), unique=True, max_size=6))
    extra = draw(st.sets(st.sampled_from(["operator", "temp °C", "a,b"])))
    return tuple(
        SliceConfig(
            slice_id,
            use=draw(maybe),
            exclude_reason=draw(words),
            quality_score=draw(st.none() | finite),
            galvo_confidence=draw(st.none() | st.integers(0, 1000).map(lambda n: n / 1000)),
            galvo_fix=draw(maybe),
            notes=draw(words),
            rehomed=draw(maybe),
            auto_excluded=draw(maybe),
            interpolation_fallback_reason=draw(words),
            extra={name: draw(words) for name in extra},
        )
        for slice_id in ids
    )


@given(configs())
@QUICK
def test_slice_config_survives_the_disk(tmp_path: Path, rows: tuple[SliceConfig, ...]) -> None:
    path = tmp_path / "slice_config.csv"
    write_slice_config(path, rows, overwrite=True)
    assert read_slice_config(path) == tuple(sorted(rows, key=lambda row: row.slice_id))


def test_slice_config_file_is_the_agreed_one(tmp_path: Path) -> None:
    path = tmp_path / "slice_config.csv"
    rows = [
        SliceConfig(12, use=False, notes="calibration_slice", extra={"operator": "A"}),
        SliceConfig(3, use=True, galvo_confidence=0.98765, galvo_fix=True),
        SliceConfig(104, quality_score=0.5, auto_excluded=True),
    ]
    write_slice_config(path, rows)
    assert path.read_text().splitlines() == [
        f"{CONFIG_HEADER},operator",
        "03,true,,,0.988,true,,,,,,,,,,",
        "12,false,,,,,calibration_slice,,,,,,,,,A",
        "104,,,0.5,,,,,,true,,,,,,",
    ]
    with pytest.raises(OutputExistsError):
        write_slice_config(path, rows)
    with pytest.raises(InputError, match="two rows for slice z03"):
        write_slice_config(path, [SliceConfig(3), SliceConfig(3)], overwrite=True)
    assert len(read_slice_config(path)) == 3


@pytest.mark.parametrize("text", ["1", "1.0", "01", '"01"', " 1 "])
def test_ids_are_normalised(text: str, tmp_path: Path) -> None:
    path = tmp_path / "slice_config.csv"
    path.write_text(f"slice_id,use\n{text},yes\n")
    assert read_slice_config(path) == (SliceConfig(1, use=True),)


@pytest.mark.parametrize("text", ["true", "TRUE", "1", "yes", "Y", "t", "1.0"])
def test_what_counts_as_true(text: str, tmp_path: Path) -> None:
    path = tmp_path / "slice_config.csv"
    path.write_text(f"slice_id,use,auto_excluded\n0,{text},{text}\n")
    (row,) = read_slice_config(path)
    assert row.use is True and row.used and row.auto_excluded is True


@pytest.mark.parametrize("text", ["false", "False", "0", "no", "n", "F"])
def test_what_counts_as_false(text: str, tmp_path: Path) -> None:
    path = tmp_path / "slice_config.csv"
    path.write_text(f"slice_id,use,auto_excluded\n0,{text},{text}\n")
    (row,) = read_slice_config(path)
    assert row.use is False and not row.used and row.auto_excluded is False


def test_an_empty_use_means_used(tmp_path: Path) -> None:
    path = tmp_path / "slice_config.csv"
    path.write_text("use,slice_id\n,2\nfalse,0\ntrue,1\n")
    rows = read_slice_config(path)
    assert [row.used for row in rows] == [False, True, True]
    assert selected_ids(rows, [3, 2, 1, 0]) == (1, 2, 3)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("z1,true,", "line 3: slice_id is 'z1', expected a slice id"),
        (",true,", "line 3: slice_id is '', expected a slice id"),
        ("1,ture,", "line 3: use is 'ture', expected true or false"),
        ("1,true,good", "line 3: quality_score is 'good', expected a finite number"),
        ("00,true,", "line 3: a second row for slice z00, after line 2"),
        ("1,true", "line 3: 2 cells, expected 3 as in the header"),
    ],
)
def test_a_bad_config_row_is_named(row: str, message: str, tmp_path: Path) -> None:
    """Seen to fail without the errors of `tables._slice_id` and `tables._truth`."""
    path = tmp_path / "slice_config.csv"
    path.write_text(f"slice_id,use,quality_score\n0,true,\n{row}\n")
    with pytest.raises(InputError) as caught:
        read_slice_config(path)
    assert str(caught.value) == f"{path}, {message}"


def test_stamping_replaces_or_appends_unused() -> None:
    rows = (SliceConfig(4, use=True, notes="keep"), SliceConfig(6, use=True))
    stamped = stamp(stamp(rows, 4, rehomed=True), 5, rehomed=False)
    assert stamped == (
        SliceConfig(4, use=True, notes="keep", rehomed=True),
        SliceConfig(5, use=False, rehomed=False),
        SliceConfig(6, use=True),
    )
    assert rows[0].rehomed is None


def test_id_lists() -> None:
    assert parse_ids("7, 9-12,9") == (7, 9, 10, 11, 12)
    assert parse_ids("") == ()
    for text in ("x", "3-", "5-3", "-1"):
        with pytest.raises(InputError, match="neither an id nor a range"):
            parse_ids(text)


def test_a_row_that_wants_a_slice_which_the_acquisition_lacks_is_named(tmp_path: Path) -> None:
    """Seen to fail without the error of `tables.read_slice_config`."""
    path = tmp_path / "slice_config.csv"
    path.write_text("slice_id,use\n3,true\n9,no\n07,\n")
    assert [row.slice_id for row in read_slice_config(path, known_ids=[7, 3, 5])] == [3, 7, 9]
    with pytest.raises(InputError) as caught:
        read_slice_config(path, known_ids=range(6))
    assert str(caught.value) == (
        f"{path}, line 4: slice z07 is not one of the acquisition's, whose ids are 0, 1, 2, 3, 4, 5"
    )
