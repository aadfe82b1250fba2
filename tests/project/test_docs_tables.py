"""Tables of the documentation against the declarations of stages, the schema and the scripts."""

from __future__ import annotations

import json
import re
from pathlib import Path

from linumpy.stage_params.declared import STAGES
from linumpy.stage_params.slices import LEARNED

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "nextflow_schema.json").read_text(encoding="utf-8"))
PROPERTIES = {
    name: prop for group in SCHEMA["$defs"].values() for name, prop in group["properties"].items()
}

NO_SWITCHES = {"mode", "fused", "raw", "straight", "shifts_found", "config_found"}
"""Conditions of stages that choose a flow, or are facts of the input."""

GROUPED = {
    "analyze_registration_transforms",
    "analyze_acquisition_rotation",
    "compare_stitching",
    "stitch_motor_only",
    "stack_motor_only",
}
"""Stages of the row "the other diagnostics"."""


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the only table of a section, without its header."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_scripts_by_task_names_every_script_once() -> None:
    """Seen to fail: `check_atlas` and `gpu_info` were missing."""
    named = [
        name for _, cell in rows("scripts.md", "Scripts by task")
        for name in re.findall(r"`(\w+)`", cell)
    ]  # fmt: skip
    scripts = {path.stem.removeprefix("linum_") for path in (ROOT / "scripts").glob("linum_*.py")}
    # A new learned tile stage need not be named there: CONTRIBUTING.md counts its files.
    assert scripts - {stage.name for stage in LEARNED} <= set(named) <= scripts
    assert len(named) == len(set(named))


def test_switches_have_the_defaults_of_the_schema() -> None:
    """Seen to fail with a default of the page changed."""
    for step, parameters, default in rows("nextflow.md", "Switches"):
        name = next(n for n in re.findall(r"`(\w+)`", parameters))
        value = PROPERTIES[name].get("default")
        if not default:
            continue
        if isinstance(value, str) and value:
            assert default.startswith(f"`{value}`"), step
        else:
            assert re.match(r"o(n|ff)\b", default).group() == ("on" if value else "off"), step


def test_every_declared_switch_is_in_the_table() -> None:
    """Seen to fail without the row of `auto_exclude_slices`."""
    table = rows("nextflow.md", "Switches")
    of_step = {
        name: set(re.findall(r"`(\w+)`", parameters))
        for step, parameters, _ in table
        for name in re.findall(r"\w+", step)
    }
    diagnostics = next(row for row in table if row[0] == "the other diagnostics")
    missing = []
    for stage in STAGES.values():
        switches = set(stage.when) - NO_SWITCHES
        assert switches <= PROPERTIES.keys(), stage.name
        row = of_step.get(stage.name.removesuffix("_run"), set())
        if stage.name in GROUPED:
            row = set(re.findall(r"`(\w+)`", diagnostics[1]))
        if stage.name == "download_allen":
            # It runs when the stage that it serves has no atlas.
            row = row | of_step["align_to_ras"]
        missing += [(stage.name, switch) for switch in sorted(switches - row)]
    assert missing == []


def test_config_declares_the_parameters_of_the_schema() -> None:
    """Seen to fail with a line of `params` removed from nextflow.config."""
    config = (ROOT / "nextflow.config").read_text(encoding="utf-8")
    block = re.search(r"^params \{\n(.*?)^\}", config, re.M | re.S)
    assert block is not None
    found = dict(re.findall(r"^    (\w+) *= *(.+?) *(?://.*)?$", block[1], re.M))
    assert sorted(found) == sorted(PROPERTIES)
    for name, text in found.items():
        default = PROPERTIES[name].get("default")
        expected = "null" if default is None else json.dumps(default)
        if isinstance(default, int | float) and not isinstance(default, bool):
            assert float(text) == default, name
        else:
            assert text.replace("'", '"') == expected, name
