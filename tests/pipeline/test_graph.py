"""Declared stages against the workflow's own graph, as ``-preview -with-dag`` writes it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from linumpy.planning.plan_params import PlanParams
from linumpy.planning.survey import survey
from linumpy.planning.tasks import run_facts, stages_of

from .conftest import Launcher, make_raw

GIVEN = {"axial_resolution": 1.5, "slicing_interval_mm": 0.25}
OFF = (
    *("detect_rehoming", "assess_quality_enabled", "auto_exclude_enabled", "analyze_shifts"),
    *("interpolate_missing_slices", "compensate_psf_enabled", "compensate_attenuation_enabled"),
)
ON = ("correct_bias_field", "align_to_ras_enabled", "diagnostic_mode", "export_manual_align")
# With a stage left out, what follows it comes after what precedes it; with all, each has its place.
FLOWS = {
    "fused, from raw tiles": {"keep_mosaic_grids": False, "diagnostic_mode": True},
    "fused, all options": {
        **dict.fromkeys(ON, True),
        **{"nifti_resolution": 50, "truth": "truth", "manual_transforms_dir": "manual"},
    },
    "chained": {"fused": False},
    "chained, least": {"fused": False, **dict.fromkeys(OFF, False)},
    "chained, all options": {
        **{"fused": False, "atlas": "atlas.nii.gz", "compensate_psf_method": "model_free"},
        **dict.fromkeys(ON, True),
    },
    "2.5d": {"mode": "2.5d"},
    "2.5d, least": {"mode": "2.5d", "fix_illum_enabled": False, "detect_rehoming": False},
}


@pytest.fixture(scope="module")
def launcher(make_launcher: Callable[[str, Path], Launcher], scripts_folder: Path) -> Launcher:
    launcher = make_launcher("graph", scripts_folder)
    make_raw(launcher.folder / "raw", [0, 1, 3])
    for name in ("truth", "manual"):
        (launcher.folder / name).mkdir()
    (launcher.folder / "truth" / "truth.json").write_text("{}")
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


@pytest.mark.parametrize("flow", FLOWS)
def test_declared_stages_are_the_workflows_graph(launcher: Launcher, flow: str) -> None:
    values = {**GIVEN, **FLOWS[flow]}
    dot = launcher.folder / f"{flow}.dot"
    flags = [f"--{name}={str(value).lower()}" for name, value in values.items()]
    output = launcher.folder / flow
    launch = launcher.run(
        *("--input", launcher.folder / "raw", "--output", output, *flags),
        *("-preview", "-with-dag", dot),
    )
    assert launch.status == 0, launch.text
    params = PlanParams.from_values(values)
    facts = run_facts(
        params.values, survey(launcher.folder / "raw", params), straight=params.straight
    )
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
