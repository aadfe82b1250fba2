"""The record of a launch whose machine has no linumpy: all of it is in the container."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from linumpy.launcher.nextflow import launch_command

from .conftest import REPOSITORY, Launcher, make_raw

# Notes how it is called. A container is this machine with linumpy's scripts on PATH.
DOCKER = """\
#!/bin/bash
printf '%s\\n' "$*" >> "$FAKE_LOG"
case $1 in
    image) echo 'sha256:0a registry.lab.org/linumpy@sha256:0b' ;;
    run)
        while [[ $# -gt 0 && $1 != linumpy:cpu ]]; do shift; done
        PATH="$FAKE_PATH:$PATH" exec "${@:2}"
        ;;
esac
"""


@pytest.fixture(scope="module")
def output(make_launcher: Callable[[str, Path], Launcher], tmp_path_factory) -> Path:
    tools = tmp_path_factory.mktemp("docker")
    (tools / "docker").write_text(DOCKER, encoding="utf-8")
    (tools / "docker").chmod(0o755)
    launcher = make_launcher("contained", tools)
    raw = make_raw(launcher.folder / "raw", [0, 1])
    main = str(REPOSITORY / "main.nf")
    places = ["--input", str(raw), "--output", str(launcher.folder / "output")]
    command, environment = launch_command(
        ["run", main, *places, "-profile", "docker", "-stub-run"],
        launcher.environment(
            FAKE_LOG=str(tools / "log"), FAKE_PATH=str(Path(sys.executable).parent)
        ),
    )
    # What has linumpy in it is not on this machine's PATH.
    folders = [str(tools), *environment["PATH"].split(os.pathsep)]
    bare = [f for f in folders if not (Path(f) / "linum_write_run_record.py").exists()]
    done = subprocess.run(
        command,
        cwd=launcher.folder,
        env=environment | {"PATH": os.pathsep.join(bare)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "record is not complete" not in done.stdout
    return launcher.folder / "output"


def test_the_container_completes_the_record(output: Path) -> None:
    (path,) = (output / "pipeline_info").glob("run_*.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["status"] == "completed"
    assert {task["status"] for task in record["tasks"]} == {"COMPLETED"}
    assert len(record["tasks"]) == 17
    assert record["container"] == [
        {
            "image": "linumpy:cpu",
            "engine": "docker",
            "id": "sha256:0a",
            "digests": ["registry.lab.org/linumpy@sha256:0b"],
        }
    ]


def test_the_crate_names_the_image(output: Path) -> None:
    graph = json.loads((output / "ro-crate-metadata.json").read_text(encoding="utf-8"))["@graph"]
    (image,) = (entity for entity in graph if entity["@type"] == "ContainerImage")
    assert (image["name"], image["tag"], image["sha256"]) == ("linumpy", "cpu", "0b")
