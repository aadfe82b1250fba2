"""Kernels are compiled at a machine's first launch on a GPU, and at no other."""

import importlib.util
import json
import subprocess
import sys

import pytest

from linumpy.launch import commands, kernels


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with two GPUs and CuPy, whose compiler is only asked; what it was asked."""
    asked = []

    def run(line, **options):
        asked.append(line)
        return subprocess.CompletedProcess(line, 0, "", "")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(kernels, "FOLDER", tmp_path / "compiled")
    monkeypatch.setattr(kernels, "compute_capabilities", lambda: ["90", "89"])
    monkeypatch.setattr(kernels, "missing_bundles", lambda found: sorted(found))
    monkeypatch.setattr(subprocess, "run", run)
    return asked


def test_missing_bundles_are_compiled_once(machine, monkeypatch):
    assert kernels.compile_missing() == []
    assert machine == [[sys.executable, "-m", "linumpy.core.compile_kernels", "--arch", "89,90"]]
    monkeypatch.setattr(kernels, "missing_bundles", lambda found: [])
    assert kernels.compile_missing() == [] and len(machine) == 1


def test_no_cupy_and_no_right_to_write_are_let_be(machine, monkeypatch, tmp_path):
    monkeypatch.setattr(kernels, "FOLDER", tmp_path / "no folder" / "compiled")
    assert kernels.compile_missing() == []
    monkeypatch.setattr(kernels, "FOLDER", tmp_path / "compiled")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert kernels.compile_missing() == [] and machine == []


@pytest.mark.parametrize(
    ("status", "said", "cause"),
    [(0, "kernels are ...: no compiler here", "no compiler here"), (1, "", "status 1")],
)
def test_failure_is_a_warning_with_its_cause(machine, monkeypatch, status, said, cause):
    result = subprocess.CompletedProcess([], status, "", said)
    monkeypatch.setattr(subprocess, "run", lambda line, **options: result)
    (warning,) = kernels.compile_missing()
    assert "compiled by the tasks" in warning and cause in warning


@pytest.mark.parametrize(
    ("params", "executor", "more", "compiles"),
    [
        ({"use_gpu": True}, "local", {}, True),
        ({"use_gpu": False}, "local", {}, False),
        ({"use_gpu": True}, "slurm", {}, False),
        ({"use_gpu": True}, "local", {"stub": True}, False),
        ({"use_gpu": True}, "local", {"preview": True}, False),
    ],
)
def test_launches_that_compute_here_on_a_gpu_compile(monkeypatch, params, executor, more, compiles):
    def plan(script, asked, place, per_task):
        place.write_text(json.dumps({"disk_problems": [], "memory_problems": []}))
        return subprocess.CompletedProcess([], 0, "", "")

    monkeypatch.setenv("NXF_EXECUTOR", executor)
    monkeypatch.setattr(commands.shutil, "which", lambda name: name)
    monkeypatch.setattr(commands, "_run_planner", plan)
    monkeypatch.setattr(commands, "note_plan", lambda plan, output: None)
    monkeypatch.setattr(kernels, "compile_missing", lambda: ["compiled"])
    all_params = {"input": "raw", "output": "out", "gpu_count": 1, "skip_preflight": False}
    asked = {"params": all_params | params, "work_dir": "work", "preview": False, **more}
    found = commands._planned({"warnings": [], "slices_per_task": 1}, asked)
    assert found["warnings"] == ["compiled"] * compiles
