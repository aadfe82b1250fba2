"""The info.txt parser: what it takes, what it refuses, and its messages."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linumpy.core.errors import InputError
from linumpy.io.info import parse_info, read_info, tile_info

GOOD: dict[str, object] = {
    "nx": 100,
    "ny": 80,
    "n_extra": 40,
    "n_repeat": 1,
    "alinerepeat": 1,
    "width": 640.5,
    "height": 512,
    "n_samples": 400,
    "top_z": 12,
    "bottom_z": 131,
    "stage_x_pos_mm": -1.25,
    "stage_y_pos_mm": 3,
    "stage_z_pos_mm": 0.4,
}


def text_of(values: dict[str, object]) -> str:
    return "Scan info\n" + "".join(f"{key}: {value}\n" for key, value in values.items())


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


printable = st.characters(blacklist_categories=("Cc", "Cs", "Zl", "Zp"))
keys = (
    st.text(printable, min_size=1, max_size=12)
    .map(str.strip)
    .filter(lambda key: key and ":" not in key and not key.startswith("\ufeff"))
)
texts = st.text(printable, max_size=20).map(str.strip).filter(lambda text: not is_number(text))
numbers = st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False)


@given(st.dictionaries(keys, numbers | texts, max_size=12))
def test_what_is_written_is_read(values: dict[str, object]) -> None:
    read = parse_info(text_of(values))
    assert read == values
    assert {k: type(v) for k, v in read.items()} == {k: type(v) for k, v in values.items()}


def test_a_line_is_split_at_its_first_separator_only() -> None:
    assert parse_info("Scan info\nstarted: 2024-01-02 at: 10:30\nnx: 7") == {
        "started": "2024-01-02 at: 10:30",
        "nx": 7,
    }


def test_lines_without_separator_are_ignored() -> None:
    assert parse_info("Scan info\nnx:7\n\nny 8\n: 9\nnx: 3") == {"nx": 3}


def test_the_first_of_repeated_sections_counts() -> None:
    second = {**GOOD, "nx": 999, "stage_x_pos_mm": 77.0, "later": 5}
    read = parse_info(text_of(GOOD) + text_of(second))
    assert read == {**GOOD, "later": 5}


@pytest.mark.parametrize("text", ["1_000", "nan", "inf", "Infinity", "0x10", "1,5", "١٢", "--3"])
def test_what_only_python_takes_for_a_number_stays_text(text: str) -> None:
    assert parse_info(f"width: {text}") == {"width": text}


def test_windows_line_ends_byte_order_mark_and_foreign_letters(tmp_path: Path) -> None:
    path = tmp_path / "info.txt"
    body = text_of(GOOD).replace("\n", "\r\n")
    path.write_bytes(b"\xef\xbb\xbf" + body.encode() + "unit: µm\r\n".encode("latin-1"))
    assert read_info(path) == tile_info(GOOD, path)


def test_a_scan_is_described_in_units(tmp_path: Path) -> None:
    path = tmp_path / "info.txt"
    path.write_text(text_of(GOOD))
    info = read_info(path)
    assert info.shape_px == (120, 100, 80)
    assert info.n_alines == 140
    assert info.fov_um == (640.5, 512.0)
    assert info.pixel_um == pytest.approx((6.405, 6.4), rel=1e-12)
    assert (info.stage_x_mm, info.stage_y_mm, info.stage_z_mm) == (-1.25, 3.0, 0.4)
    assert info.bscan_bytes == 120 * 140 * 4


def test_optional_keys_have_defaults() -> None:
    needed = {k: GOOD[k] for k in ("nx", "ny", "width", "height", "n_samples")}
    info = tile_info(needed, "info.txt")
    assert (info.n_extra, info.nz) == (0, 200)
    assert info.stage_x_mm is info.stage_y_mm is info.stage_z_mm is None


@pytest.mark.parametrize("key", ["nx", "ny", "width", "height", "bottom_z", "top_z"])
def test_a_missing_key_is_named_with_its_file(key: str, tmp_path: Path) -> None:
    """Seen to fail without the error of `info._number`."""
    path = tmp_path / "info.txt"
    path.write_text(text_of({k: v for k, v in GOOD.items() if k != key}))
    with pytest.raises(InputError) as caught:
        read_info(path)
    assert str(caught.value) == f"{path}: lacks the key {key}"


def test_a_missing_depth_range_names_all_ways_to_give_one() -> None:
    values = {k: v for k, v in GOOD.items() if k not in ("top_z", "bottom_z", "n_samples")}
    with pytest.raises(InputError, match="lacks the keys top_z and bottom_z .or n_samples."):
        tile_info(values, "info.txt")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("nx", "12.5", "nx is 12.5, expected a whole number"),
        ("nx", "many", "nx is 'many', expected a whole number"),
        ("ny", "0", "ny is 0, expected more than 0"),
        ("n_extra", "-1", "n_extra is -1, expected 0 or more"),
        ("width", "640,5", "width is '640,5', expected a number"),
        ("height", "-3", "height is -3.0, expected more than 0"),
        ("height", "", "height is '', expected a number"),
        ("stage_x_pos_mm", "nan", "stage_x_pos_mm is 'nan', expected a number"),
        ("stage_y_pos_mm", "1e999", "stage_y_pos_mm is inf, expected a number"),
        ("bottom_z", "11", "bottom_z is 11, expected at least top_z = 12"),
        ("n_repeat", "2", "n_repeat is 2, expected 1: scans that repeat B-scans"),
        ("alinerepeat", "4", "alinerepeat is 4, expected 1: scans that repeat A-lines"),
    ],
)
def test_a_bad_value_is_named_with_its_file_and_key(
    key: str, value: str, message: str, tmp_path: Path
) -> None:
    """Seen to fail without the errors of `info._number` and `info._positive`."""
    path = tmp_path / "info.txt"
    path.write_text(text_of({**GOOD, key: value}))
    with pytest.raises(InputError) as caught:
        read_info(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_a_missing_or_unreadable_file_is_named(tmp_path: Path) -> None:
    """Seen to fail without the error of `info.read_info`."""
    with pytest.raises(InputError, match="info.txt: no such file; every tile folder needs"):
        read_info(tmp_path / "info.txt")
    (tmp_path / "info.txt").mkdir()
    with pytest.raises(InputError, match="info.txt: cannot be read"):
        read_info(tmp_path / "info.txt")


def test_whole_numbers_written_as_decimals_are_taken() -> None:
    info = tile_info({**GOOD, "nx": 100.0}, "info.txt")
    assert info.nx == 100 and isinstance(info.nx, int)
    assert math.isclose(info.pixel_um[0], 6.405)
