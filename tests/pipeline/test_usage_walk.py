"""The first run of docs/usage.md, word for word: nothing that the trial made or learned is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import REPOSITORY, Launcher, read_trace

PAGE = REPOSITORY / "docs" / "usage.md"


def commands(start: str) -> list[list[str]]:
    """Return the commands of the page that begin so, as words."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return [line.split() for line in lines if line.startswith(f"    {start}")]


@pytest.mark.slow
def test_the_trial_is_taken_over_by_the_run_on_all_slices(
    make_launcher: Callable[[str, Path], Launcher], scripts_folder: Path
) -> None:
    """Seen to fail without the parameters' file in a command, and with a session of Nextflow's."""
    launcher = make_launcher("usage", scripts_folder)
    for words in (*commands("linum_phantom.py"), *commands("linum_suggest_params.py")):
        subprocess.run(
            [sys.executable, REPOSITORY / "scripts" / words[0], *_named(words[1:])],
            cwd=launcher.folder,
            env=launcher.environment(),
            stdin=subprocess.DEVNULL,
            check=True,
        )
    params = json.loads((launcher.folder / "params.json").read_text(encoding="utf-8"))
    assert params
    trial, *_ = commands("linum_nextflow.py run linumpy --input RAW --output trial")
    whole, *_ = (w for w in commands("linum_nextflow.py run") if "RESULTS" in w and "-resume" in w)
    # Its tasks are stubs; what they rest on is the same.
    stubs = ["-stub-run", "-ansi-log", "false"]
    launch = launcher(*_named(trial[1:]), *stubs)
    assert launch.status == 0, launch.text
    assert launcher("run", "linumpy", "--help").status == 0
    refused = launcher(*_named(whole[1:]), *stubs, "--resolution", "0")
    assert refused.status == 1
    assert refused.text.splitlines()[-2].startswith("linum_nextflow.py: error: --resolution 0: ")
    launch = launcher(*_named(whole[1:]), *stubs)
    assert launch.status == 0, launch.text
    states = read_trace(launcher.folder / "RESULTS")
    assert {name: states[f"create_mosaic_grid_3d ({name})"] for name in ("z00", "z01", "z02")} == {
        "z00": "COMPLETED",
        "z01": "CACHED",
        "z02": "CACHED",
    }
    for output in ("trial", "RESULTS"):
        (record,) = (launcher.folder / output / "pipeline_info").glob("run_*.json")
        used = json.loads(record.read_text(encoding="utf-8"))["params"]
        assert {name: used[name] for name in params} == params


def _named(words: list[str]) -> list[str]:
    return ["practice/raw" if word == "RAW" else word for word in words]
