"""Tiles that cannot be read are all named at launch, and their slices skipped where asked."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from linumpy.core.errors import InputError
from linumpy.launch.discover import find_input
from linumpy.launch.problems import ProblemsError
from linumpy.launch.tiles import NAMED_AT_MOST
from tests.launch.asking import find_request
from tests.pipeline.conftest import REPOSITORY, make_raw


def tile(raw: Path, slice_id: int, x: int = 0) -> Path:
    return raw / f"slice_z{slice_id:02d}/tiles/tile_x{x:02d}_y00_z{slice_id:02d}"


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def spoilt(root: Path) -> Path:
    """Return seven slices of three tiles, of which slices 1, 2, 4 and 5 have bad ones."""
    raw = make_raw(root, range(7), tiles=3)
    (tile(raw, 1) / "image_00000.bin").write_bytes(bytes(7))
    (tile(raw, 1, 2) / "image_00000.bin").unlink()
    change(tile(raw, 2) / "info.txt", "ny: 1\n", "")
    change(tile(raw, 4) / "info.txt", "nx: 2", "nx: 3")
    (tile(raw, 5) / "image_00000.bin").write_bytes(bytes(16))
    return raw


def find(raw: Path, **more: Any) -> dict[str, Any]:
    return find_input({"input": str(raw), **more})


def test_all_bad_tiles_are_named_before_anything_runs(tmp_path: Path) -> None:
    """Seen to fail where the first wrong one is raised."""
    raw = spoilt(tmp_path / "raw")
    with pytest.raises(ProblemsError) as refused:
        find(raw)
    assert str(refused.value) == (
        f"--input {raw}: 5 tiles in 4 slices (z01, z02, z04, z05) cannot be read; "
        "copy these tiles anew, or leave their slices out with --skip_bad_slices"
    )
    lines = [line.strip() for line in refused.value.lines()[1:]]
    assert [line.split(": ")[0] for line in lines] == [
        f"{tile(raw, 1)}/image_00000.bin",
        str(tile(raw, 1, 2)),
        f"{tile(raw, 2)}/info.txt",
        f"{tile(raw, 4)}/info.txt",
        f"{tile(raw, 5)}/image_00000.bin",
    ]
    assert "7 bytes, expected 8" in lines[0] and "lacks the key ny" in lines[2]
    assert "as 2 of the 3 tiles of the slice have" in lines[3]


def test_bad_slices_are_skipped_where_asked(tmp_path: Path) -> None:
    """Seen to fail where the option is not heeded."""
    found = find(spoilt(tmp_path / "raw"), skip_bad_slices=True)
    assert [row[0] for row in found["slices"]] == ["00", "03", "06"]
    # A truncated file does not hide where its slice lies; a bad header does.
    assert (found["bad"], found["unplaced"]) == ([1, 2, 4, 5], [2, 4])
    assert found["warnings"][0].endswith("(--skip_bad_slices): z01, z02, z04, z05")
    assert len(found["warnings"]) == 6


def test_good_tiles_have_no_problems(tmp_path: Path) -> None:
    found = find(make_raw(tmp_path / "raw", range(3)), skip_bad_slices=True)
    assert (found["bad"], found["unplaced"], found["warnings"]) == ([], [], [])
    assert len(found["slices"]) == 3


def test_a_list_of_many_bad_tiles_is_bounded(tmp_path: Path) -> None:
    raw = make_raw(tmp_path / "raw", range(30), tiles=3)
    for number in range(28):
        (tile(raw, number) / "image_00000.bin").write_bytes(b"")
    with pytest.raises(
        ProblemsError, match=r"28 tiles in 28 slices \(z00, .*z19 and 8 more\)"
    ) as e:
        find(raw)
    lines = e.value.lines()
    assert len(lines) == NAMED_AT_MOST + 2
    assert lines[-1].strip() == "and 8 more tiles"


def test_no_slice_left_is_an_error(tmp_path: Path) -> None:
    raw = make_raw(tmp_path / "raw", [0])
    (tile(raw, 0) / "image_00000.bin").unlink()
    with pytest.raises(InputError, match="no slice would be left"):
        find(raw, skip_bad_slices=True)


def test_slices_that_are_not_wanted_may_be_bad(tmp_path: Path) -> None:
    """Chosen ones, the table's, and those after calibration."""
    raw = spoilt(tmp_path / "raw")
    assert [row[0] for row in find(raw, slices="0,3")["slices"]] == ["00", "03"]
    with pytest.raises(InputError, match=r"1 tile in 1 slice \(z05\)"):
        find(raw, slices="3-6", exclude_first_slices=5)
    table = tmp_path / "slice_config.csv"
    table.write_text("slice_id,use\n1,false\n2,no\n4,0\n5,False\n6,true\n")
    found = find(raw, slice_config=str(table))
    assert [row[0] for row in found["slices"]] == ["00", "03", "06"]
    assert found["warnings"] == []


def test_elsewhere_sizes_are_compared_with_each_other(tmp_path: Path) -> None:
    raw = make_raw(tmp_path / "raw", range(2), tiles=3)
    rows = [[str(p.relative_to(raw)), p.stat().st_size, 1] for p in raw.rglob("*") if p.is_file()]
    next(row for row in rows if row[0].endswith("tile_x01_y00_z01/image_00000.bin"))[1] = 3
    asked = {"input": "s3://bucket/raw", "listing": rows, "root_names": ["raw"]}
    with pytest.raises(ProblemsError) as refused:
        find_input(asked)
    assert "3 bytes in image_*.bin, expected 8 as 2 of the 3" in refused.value.lines()[1]
    assert find_input({**asked, "skip_bad_slices": True})["bad"] == [1]


@pytest.mark.parametrize("version", ["3.9", "3.13"])
def test_any_python_finds_them(tmp_path: Path, version: str) -> None:
    """The launch is answered by the Python that is there."""
    import shutil

    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", ""], check=False).returncode:
        pytest.skip(f"no Python {version}")
    script = REPOSITORY / "linumpy" / "launch" / "__main__.py"
    raw = spoilt(tmp_path / "raw")
    done = subprocess.run(
        [python, "-I", "-S", script, "find"],
        input=find_request(input=str(raw), skip_bad_slices=True),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["bad"] == [1, 2, 4, 5]
