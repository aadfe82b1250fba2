"""Tiles that cannot be read: all named before a task, or their slices left out where asked."""

from __future__ import annotations

import csv
import html
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import REPOSITORY, Launcher, read_trace

pytestmark = pytest.mark.slow


def test_bad_tiles_are_named_at_once_and_their_slices_skipped(
    make_launcher: Callable[[str, Path], Launcher], scripts_folder: Path
) -> None:
    """A slice with a truncated file, and one with a header that lacks a key."""
    launcher = make_launcher("bad_tiles", scripts_folder)
    phantom, output = launcher.folder / "phantom", launcher.folder / "output"
    subprocess.run(
        [sys.executable, REPOSITORY / "scripts" / "linum_phantom.py", phantom]
        + ["--preset", "tiny", "--seed", "31", "--n_slices", "5"],
        env=launcher.environment(),
        stdin=subprocess.DEVNULL,
        check=True,
    )
    short = sorted((phantom / "raw").rglob("tile_x01_y01_z01/image_*.bin"))[0]
    short.write_bytes(short.read_bytes()[:-100])
    header = next((phantom / "raw").rglob("tile_x00_y02_z03/info.txt"))
    lines = header.read_text().splitlines(keepends=True)
    header.write_text("".join(line for line in lines if not line.startswith("ny")))
    asked = ("--input", phantom / "raw", "--output", output, "-profile", "test")

    refused = launcher.run(*asked)
    assert refused.status == 1
    for name in (f"{short}: ", f"{header}: lacks the key ny"):
        assert name in refused.text
    assert "2 tiles in 2 slices (z01, z03) cannot be read" in refused.text
    # No task ran: a rejected launch leaves no folder behind.
    assert not output.exists()

    launch = launcher.run(*asked, "--skip_bad_slices")
    assert launch.status == 0, launch.text
    assert f"{header}: lacks the key ny" in launch.text
    done = {name for name in read_trace(output) if name.startswith("reconstruct_slice ")}
    assert done == {f"reconstruct_slice (z{i:02d})" for i in (0, 2, 4)}
    with (output / "slice_config.csv").open(newline="", encoding="utf-8") as file:
        rows = {row["slice_id"]: row for row in csv.DictReader(file)}
    for slice_id in ("01", "03"):
        assert (rows[slice_id]["use"], rows[slice_id]["exclude_reason"]) == (
            "false",
            "bad_raw_tiles",
        )
    places = json.loads(next(output.rglob("stack_slices_motor.json")).read_text())["slices"]
    assert [place["slice_id"] for place in places if not place.get("interpolated")] == [0, 2, 4]
    page = (output / "report.html").read_text(encoding="utf-8")
    assert "<dd>Left out (bad raw tiles)</dd>" in page
    # The last lines say how much there is to look at.
    summary = re.search(r'<meta name="linumpy-findings" content="(.*)">', page)
    assert summary is not None
    named = re.findall(r'<meta name="linumpy-problem" content="(.*)">', page)
    assert any("Left out" in text for text in named)
    lines = launch.text.strip().splitlines()
    before, last = lines[-len(named) - 2 : -len(named)]
    assert before.startswith(f"linum_nextflow.py: made {output}/phantom.ome.zarr in ")
    assert last == f"{summary[1]}, see the report: {output}/report.html"
    assert [line.strip() for line in lines[-len(named) :]] == list(map(html.unescape, named))
