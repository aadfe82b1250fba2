"""A batch run after an acquisition was followed: the same brain, and the verdicts in its report."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from .conftest import Launcher

PHANTOM = ("--preset", "tiny", "--seed", "23", "--n_slices", "3", "--live", "1000")
FAULT = ("--fault", "double_cut:2")


def _chunks(brain: Path) -> dict[str, bytes]:
    """Return all chunks of image and labels."""
    return {
        str(p.relative_to(brain)): p.read_bytes()
        for p in brain.rglob("*")
        if p.is_file() and "c" in p.relative_to(brain).parts
    }


def test_brain_has_the_bits_of_a_run_without_following(
    make_launcher: Callable[[str, Path], Launcher], scripts_folder: Path
) -> None:
    launcher = make_launcher("followed_run", scripts_folder)
    phantom, results = launcher.folder / "phantom", launcher.folder / "results"
    for command in (
        ("linum_phantom.py", phantom, *PHANTOM, *FAULT),
        ("linum_follow.py", phantom / "raw", results, "--idle_timeout", "60"),
    ):
        subprocess.run(
            [sys.executable, scripts_folder / command[0], *command[1:]],
            env=launcher.environment(),
            stdin=subprocess.DEVNULL,
            check=True,
        )
    told = [json.loads(line) for line in (results / "verdicts.jsonl").read_text().splitlines()]
    assert [line["slice"] for line in told] == [0, 1, 2]
    assert (results / "live.ome.zarr" / "zarr.json").is_file()
    first = launcher.folder / "first"
    runs = {
        "with": ("--output", first, "--verdicts", results / "verdicts.jsonl"),
        "without": ("--output", launcher.folder / "second"),
        # Into the folder of the follower, as some will.
        "inside": ("--output", results),
    }
    brains = {}
    for name, where in runs.items():
        # A task that is given verdicts, or the output's path, has other inputs: it runs again.
        resume = ["-resume"] if brains else []
        launch = launcher.run("--input", phantom / "raw", *where, "-profile", "test", *resume)
        assert launch.status == 0, launch.text
        brains[name] = _chunks(Path(where[1]) / "phantom.ome.zarr")
    assert len(brains["with"]) > 4
    assert brains["with"] == brains["without"] == brains["inside"]
    words = "Verdicts during the acquisition"
    assert words in (first / "report.html").read_text(encoding="utf-8")
    assert words in (results / "report.html").read_text(encoding="utf-8")
    assert words not in (launcher.folder / "second" / "report.html").read_text(encoding="utf-8")
    # The report can be made again from either folder.
    verdicts = (results / "verdicts.jsonl").read_bytes()
    assert (first / "verdicts.jsonl").read_bytes() == verdicts
    assert [json.loads(line)["slice"] for line in verdicts.splitlines()] == [0, 1, 2]
