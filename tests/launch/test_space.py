"""What a run is expected to write, and a disk that does not hold it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from linumpy.core.errors import InputError
from linumpy.launch.space import Need, goes_straight, needed, refuse_full

PARAMS = {"fused": True, "keep_mosaic_grids": True, "publish_mode": "copy"}


@pytest.mark.parametrize(
    ("kind", "params", "need"),
    [
        ("raw", {}, (100, 150)),
        ("raw", {"publish_mode": "link"}, (0, 150)),
        ("raw", {"keep_mosaic_grids": False}, (0, 50)),
        ("raw", {"keep_mosaic_grids": False, "fused": False}, (0, 400)),
        ("grids", {}, (0, 50)),
    ],
)
def test_grids_are_written_where_they_are_wanted(
    kind: str, params: dict[str, Any], need: tuple[float, float]
) -> None:
    found = {"kind": kind, "bytes": 100}
    assert needed({**PARAMS, **params}, found) == need
    straight = goes_straight({**PARAMS, **params}, found)
    assert straight == (kind == "raw" and need == (0, 50))


def test_a_disk_that_cannot_hold_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both folders are on one disk. Seen to fail with a need of the output alone."""
    output, work = tmp_path / "out", tmp_path / "work"
    output.mkdir()
    work.mkdir()

    class Usage:
        free = 15e9

    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage)
    refuse_full(output, work, Need(5e9, 10e9))
    refuse_full(output, None, Need(5e9, 99e9))
    with pytest.raises(InputError, match=r"--output .*: about 16\.0 GB will be .* 15\.0 GB are"):
        refuse_full(output, work, Need(6e9, 10e9))
