"""Modules are short, alike, and 1:1 with scripts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .conftest import REPOSITORY

MODULES = sorted((REPOSITORY / "modules").glob("*.nf"))
SECTIONS = ["tag ", "label ", "input:", "output:", "script:", "stub:"]
# Nextflow reserves the name of one script.
RENAMED = {"evaluate": "evaluate_run"}


def test_workflows_include_every_module() -> None:
    sources = [REPOSITORY / "main.nf", *(REPOSITORY / "workflows").glob("*.nf")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    included = re.findall(r"^include \{ (\w+) \} from '\.\.?/modules/(\w+)'$", text, re.MULTILINE)
    assert included == [(RENAMED.get(stem, stem), stem) for _, stem in included]
    assert {stem for _, stem in included} == {path.stem for path in MODULES}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_module_runs_the_script_of_its_name(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"^process (\w+) \{$", text, re.MULTILINE) == [
        RENAMED.get(path.stem, path.stem)
    ]
    assert set(re.findall(r"linum_\w+\.py", text)) == {f"linum_{path.stem}.py"}
    assert (REPOSITORY / "scripts" / f"linum_{path.stem}.py").is_file()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_module_has_its_sections_in_order(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    starts = [
        next(i for i, line in enumerate(lines) if line.startswith(f"    {section}"))
        for section in SECTIONS
    ]
    assert starts == sorted(starts)
    assert len(lines) <= 80


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_stub_needs_only_the_shell(path: Path) -> None:
    stub = path.read_text(encoding="utf-8").split("    stub:")[1]
    commands = re.findall(r"^    (\w+)", stub.split('"""')[1], re.MULTILINE)
    assert set(commands) <= {"cp", "mkdir", "touch", "echo"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_module_names_each_parameter(path: Path) -> None:
    """Who is handed all of them runs again when any changes: their values are its task's key."""
    script = path.read_text(encoding="utf-8").split("    script:")[1]
    assert re.findall(r"(?<!--)\bparams\b(?!\.\w)", script) == []
