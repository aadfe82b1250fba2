"""Groups of slices in real launches, with scripts that only note how they were called."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Launcher, make_raw, read_trace

pytestmark = pytest.mark.slow


class Groups:
    """Six slices in groups of two; one task is killed after its first slice, another slice fails.

    Then the run is resumed, once that is mended and a slice more is left out.
    """

    def __init__(self, launcher: Launcher) -> None:
        self.folder = launcher.folder
        self.output = self.folder / "output"
        arguments: list[str | Path] = [
            *("--input", make_raw(self.folder / "raw", [0, 1, 2, 3, 4, 5])),
            *("--output", self.output, "--slices_per_task", "2"),
            *("--skip_preflight", "--interpolate_missing_slices", "false"),
        ]
        self.log = self.folder / "log"
        # Models learned from all slices would change with them.
        environment = {"FAKE_LOG": str(self.log), "FAKE_NOTHING": "learn_models"}
        fail = {"FAKE_KILL": "z01", "FAKE_FAIL": "reconstruct_slice z03"}
        self.failed = launcher.run(*arguments, **environment, **fail)
        self.states = read_trace(self.output)
        environment["FAKE_LOG"] = str(self.folder / "again")
        self.resumed = launcher.run(*arguments, "--slices", "0-4", "-resume", **environment)
        self.resumed_states = read_trace(self.output)

    def notes(self) -> list[dict[str, Any]]:
        found = [json.loads(path.read_text()) for path in self.log.glob("reconstruct_slice.*.json")]
        return sorted(found, key=lambda note: note["began"])


@pytest.fixture(scope="module")
def groups(make_launcher: Callable[[str, Path], Launcher], fake_scripts: Path) -> Groups:
    return Groups(make_launcher("groups", fake_scripts))


def test_retry_takes_over_what_the_killed_attempt_had_finished(groups: Groups) -> None:
    made = sorted(path.name.split(".")[1] for path in groups.log.glob("made.*"))
    assert made == ["z00", "z01", "z02", "z03", "z04", "z05"]
    notes = groups.notes()
    assert len(notes) == 4
    (killed,) = (note for note in notes if "ended" not in note)
    (again,) = (note for note in notes if "--take_over" in note["arguments"])
    assert "ended" not in killed and "ended" in again
    assert "--overlap 1" in " ".join(again["arguments"])
    first, last = (note["arguments"].index("--grids") for note in (killed, again))
    assert killed["arguments"][first:][:3] == again["arguments"][last:][:3]
    assert [name for note in notes for name in note["arguments"] if name.startswith("[")] == []
    assert not (Path(killed["folder"]) / "records").exists()


def test_failed_slice_fails_the_run_once_all_others_are_done(groups: Groups) -> None:
    assert groups.failed.status == 1
    done = {name for name, state in groups.states.items() if state == "COMPLETED"}
    assert {f"reconstruct_slice ({tag})" for tag in ("z00-z01", "z02-z03", "z04-z05")} <= done
    assert groups.states["check_slices (z03)"] == "FAILED"
    assert not any(name.startswith("stack_slices") for name in groups.states)
    said, _, command = groups.failed.text.splitlines()[-3:]
    assert said == (
        "linum_nextflow.py: error: check_slices (z03): "
        "z03: /data/'it' $x: tile (1, 2) cannot be read"
    )
    assert command.endswith(" -resume")


def test_resume_repeats_the_groups_that_changed(groups: Groups) -> None:
    """That of the slice that failed, and that which lost a slice."""
    assert groups.resumed.status == 0, groups.resumed.text
    assert "reconstruct_slice (z02-z03)" in groups.resumed.text
    assert "runs again: slice z03 failed" in groups.resumed.text
    states = {
        name: state
        for name, state in groups.resumed_states.items()
        if name.startswith("reconstruct_slice")
    }
    assert states == {
        "reconstruct_slice (z00-z01)": "CACHED",
        "reconstruct_slice (z02-z03)": "COMPLETED",
        "reconstruct_slice (z04)": "COMPLETED",
    }
    found = {path.name for path in (groups.output / "slices").iterdir()}
    assert {f"slice_z{i:02d}.ome.zarr" for i in range(5)} <= found
    assert (groups.output / "models" / "z03" / "register_tiles.json").exists()
    # How slices ended is no result.
    assert not (groups.output / "records").exists()
