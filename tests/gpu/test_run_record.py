"""What a task on a GPU notes of it, beside what the driver's own tool says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from linumpy.records.environment import read_note

from . import needs_gpu

ROOT = Path(__file__).resolve().parents[2]


def run_as_task(folder: Path, *arguments: str, **environment: str) -> dict[str, Any]:
    """Run the script that uses all GPUs it sees, as Nextflow would; return its note."""
    script = ROOT / "scripts" / "linum_gpu_info.py"
    command = " ".join(map(str, [sys.executable, script, *arguments]))
    (folder / ".command.sh").write_text(f"{command}\n:\n")
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    subprocess.run(
        ["/bin/bash", "-eu", folder / ".command.sh"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | environment,
        check=True,
    )
    note = read_note(folder)
    assert note is not None
    return note


@needs_gpu
def test_a_task_notes_the_gpu_that_it_was_given(tmp_path: Path) -> None:
    asked = "--query-gpu=uuid,name,driver_version"
    done = subprocess.run(
        ["nvidia-smi", asked, "--format=csv,noheader"], capture_output=True, text=True, check=True
    )
    last = done.stdout.splitlines()[-1].split(", ")
    note = run_as_task(tmp_path, "--use_gpu", CUDA_VISIBLE_DEVICES=last[0])
    (gpu,) = note["gpus"]
    assert [gpu["uuid"], gpu["name"], gpu["driver"]] == last
    assert gpu["memory_nbytes"] > 2**30
    # A driver runs all that is built for its own major version.
    runtime, driver = (gpu[name].split(".") for name in ("cuda_runtime", "cuda_driver"))
    assert len(runtime) == len(driver) == 2
    assert int(runtime[0]) <= int(driver[0])
    assert note["versions"]["cupy"]


def test_where_there_is_no_gpu_a_task_notes_none(tmp_path: Path) -> None:
    assert run_as_task(tmp_path, CUDA_VISIBLE_DEVICES="")["gpus"] == []


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [("GPU-1,GPU-2", ["GPU-1", "GPU-2"]), ("0,1", [None, None]), (None, [None, None])],
)
def test_gpus_are_known_by_the_names_of_the_lease(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, uuids: list[str | None]
) -> None:
    from linumpy.gpu import info
    from linumpy.records.environment import describe_environment

    gpu = {"name": "NVIDIA H200", "memory_nbytes": 1, "compute_capability": "9.0"}
    told = {"driver": "580.1", "cuda_runtime": "12.9", "cuda_driver": "13.0", "gpus": [gpu, gpu]}
    monkeypatch.setattr(info, "gpu_info", lambda: told | {"visible_devices": visible})
    monkeypatch.setitem(sys.modules, "cupy", sys)
    found = describe_environment()["gpus"]
    assert [g["uuid"] for g in found] == uuids
    assert {g["driver"] for g in found} == {"580.1"}
