"""The note that scripts leave in the folder of a task, and only there."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from linumpy.records.environment import NOTE, describe_environment, note_environment, read_note

REPOSITORY = Path(__file__).parents[2]


def run_as_task(folder: Path, script: str, *arguments: str | Path, where: Path) -> None:
    """Run a script the way Nextflow does: by a shell that reads ``.command.sh``."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, REPOSITORY / "scripts" / f"linum_{script}.py", *arguments]
    (folder / ".command.sh").write_text(
        "\n".join(["#!/bin/bash", " ".join(map(str, command)), ":"])
    )
    subprocess.run(
        ["/bin/bash", "-euo", "pipefail", folder / ".command.sh"],
        cwd=where,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL,
        check=True,
    )


def test_a_task_s_script_leaves_a_note_also_when_it_works_elsewhere(tmp_path: Path) -> None:
    """A scratch folder is not where Nextflow keeps the task's records."""
    scratch, folder = tmp_path / "scratch", tmp_path / "work"
    scratch.mkdir()
    (scratch / "tile_x00_y00_z00").mkdir()
    run_as_task(folder, "generate_slice_config", scratch, "config.csv", where=scratch)
    assert (scratch / "config.csv").exists()
    assert not (scratch / NOTE).exists()
    note = read_note(folder)
    assert note is not None
    assert note["versions"]["numpy"] == np.__version__
    assert note["versions"]["zarr"] == version("zarr")
    assert note["versions"]["python"] == platform.python_version()
    assert note["machine"]["cores"] == os.cpu_count()
    pages = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert note["machine"]["memory_nbytes"] == pytest.approx(pages, rel=0.01)
    assert note["gpus"] == []
    assert platform.node() not in json.dumps(note).split('"')


def test_others_leave_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    note_environment()
    assert list(tmp_path.iterdir()) == []


def test_gpus_of_an_earlier_script_stay(tmp_path: Path) -> None:
    found = {**describe_environment(), "gpus": [{"name": "NVIDIA H200"}]}
    (tmp_path / NOTE).write_text(json.dumps(found))
    note_environment(tmp_path)
    assert read_note(tmp_path) == found
    assert [path.name for path in tmp_path.iterdir()] == [NOTE]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"versions": {}}', '{"versions": 1}'])
def test_what_is_no_note_counts_as_none(tmp_path: Path, text: str) -> None:
    assert read_note(tmp_path) is None
    (tmp_path / NOTE).write_text(text)
    assert read_note(tmp_path) is None
    note_environment(tmp_path)
    assert read_note(tmp_path) is not None


def test_a_note_that_cannot_be_left_spoils_nothing(tmp_path: Path) -> None:
    note_environment(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
