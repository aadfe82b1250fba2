"""Declared stages against the workflow's own graph, as ``-with-dag`` writes it.

Flows that no other test launches; `test_stub` compares the graphs of the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from linumpy.planning.plan_params import PlanParams
from linumpy.planning.survey import survey
from linumpy.planning.tasks import run_facts, stages_of

from .conftest import Launcher, make_raw

GIVEN = {"axial_resolution": 1.5, "slicing_interval_mm": 0.25}
FLOWS = {
    "chained, all options": {
        **{"fused": False, "compensate_psf_method": "model_free", "correct_bias_field": True},
        **{"align_to_ras_enabled": True, "atlas": "atlas.nii.gz"},
        **{"diagnostic_mode": True, "export_manual_align": True},
    },
    "2.5d": {"mode": "2.5d"},
    "2.5d, least": {"mode": "2.5d", "fix_illum_enabled": False, "detect_rehoming": False},
}


@pytest.fixture(scope="module")
def launcher(make_launcher: Callable[[str, Path], Launcher], scripts_folder: Path) -> Launcher:
    launcher = make_launcher("graph", scripts_folder)
    make_raw(launcher.folder / "raw", [0, 1, 3])
    (launcher.folder / "atlas.nii.gz").write_bytes(b"")
    return launcher


def read_graph(path: Path) -> dict[str, set[str]]:
    """Return for each process all processes that it comes after, through channels or others."""
    text = path.read_text(encoding="utf-8")
    processes = {
        node: name.split(":")[-1]
        for node, name in re.findall(r'^(v\d+) \[label="([\w:]+)"\]', text, re.M)
    }
    before: dict[str, set[str]] = {}
    for source, target in re.findall(r"(v\d+) -> (v\d+)", text):
        before.setdefault(target, set()).add(source)

    def ancestors(node: str) -> set[str]:
        found, left = set[str](), [node]
        while left:
            new = before.get(left.pop(), set()) - found
            found |= new
            left += new
        return found

    return {
        name: {processes[n] for n in ancestors(node) if n in processes}
        for node, name in processes.items()
    }


def flags(values: Mapping[str, Any]) -> list[str]:
    """Return parameters as options of a launch."""
    return [
        f"--{name}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in values.items()
    ]


def facts_of(raw: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what decides which stages are part of a run on raw tiles."""
    params = PlanParams.from_values(values)
    return run_facts(params.values, survey(raw, params), straight=params.straight)


def check_graph(dot: Path, facts: Mapping[str, Any]) -> None:
    """Compare a graph with the stages that are part of a run, and those before each."""
    declared: dict[str, set[str]] = {}
    for stage in stages_of(facts):
        near = {name for name in stage.after if name in declared}
        declared[stage.name] = near.union(*(declared[name] for name in near))
    workflow = read_graph(dot)
    # In the graph without a task: where no slice failed, and where no grid reaches it.
    idle = {"check_slices"} if facts["fused"] else set()
    idle |= {"stitch_motor_only"} if facts["straight"] else set()
    assert declared.keys() == workflow.keys() - idle
    for name, before in declared.items():
        assert before == workflow[name] - idle, name


@pytest.mark.parametrize("flow", FLOWS)
def test_declared_stages_are_the_workflows_graph(launcher: Launcher, flow: str) -> None:
    values = {**GIVEN, **FLOWS[flow]}
    raw, dot = launcher.folder / "raw", launcher.folder / f"{flow}.dot"
    places = ("--input", raw, "--output", launcher.folder / flow)
    launch = launcher.run(*places, *flags(values), "-preview", "-with-dag", dot)
    assert launch.status == 0, launch.text
    check_graph(dot, facts_of(raw, values))
