"""The matrix of Pythons and dependencies: what it tests is what pyproject declares."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from ruamel.yaml import YAML

from . import matrix

ROOT = Path(__file__).resolve().parents[2]


def test_pythons_are_those_that_pyproject_requires() -> None:
    """Seen to fail without the classifier of 3.11."""
    pythons = matrix.supported_pythons()
    assert pythons == sorted(pythons, key=Version) and len(pythons) >= 3
    allowed = SpecifierSet(matrix.project()["requires-python"])
    oldest = min(map(Version, pythons))
    assert all(version in allowed for version in pythons)
    assert f"3.{oldest.minor - 1}" not in allowed


def test_workflow_tests_the_same_pythons_and_dependencies() -> None:
    """Seen to fail without 3.12."""
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    axes = YAML(typ="safe", pure=True).load(text)["jobs"]["matrix"]["strategy"]["matrix"]
    assert axes == {"python": matrix.supported_pythons(), "dependencies": ["oldest", "newest"]}


def test_pinned_versions_are_within_the_bounds() -> None:
    """Seen to fail with ``numpy>=2.5``."""
    pins = dict(
        line.lower().split("==")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    )
    for name, bound in matrix.lower_bounds().items():
        assert Version(pins[name]) >= Version(bound), name


def test_dependency_without_a_lower_bound_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    table = matrix.project() | {"dependencies": ["numpy<3"]}
    monkeypatch.setattr(matrix, "project", lambda: table)
    with pytest.raises(ValueError, match="'numpy<3' has no lower bound"):
        matrix.lower_bounds()


def test_bounds_keep_extras_and_upper_bounds_out(monkeypatch: pytest.MonkeyPatch) -> None:
    table = matrix.project() | {
        "dependencies": ["zarr>=3.1.6,<4", "jgo[cli]>=3"],
        "optional-dependencies": dict.fromkeys(matrix.EXTRAS, []),
    }
    monkeypatch.setattr(matrix, "project", lambda: table)
    assert matrix.lower_bounds() == {"zarr": "3.1.6", "jgo": "3"}


def test_interpreter_that_does_not_run_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen to fail with the first candidate taken: pyenv's shims may not run."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    shim = tmp_path / f"python{version}"
    shim.write_text("#!/bin/sh\nexit 127\n", encoding="utf-8")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert matrix.find_python(version) == sys.executable
    assert matrix.find_python("3.99") is None


def test_table_has_a_row_for_each_outcome() -> None:
    passed = matrix.Outcome("3.12", "newest", "9 passed, 1 skipped", 3.0, {"python": "3.12.1"})
    missing = matrix.Outcome("3.13", "oldest", "not tested: no such Python here", 0.0, {})
    rows = matrix.table([passed, missing]).splitlines()
    assert len(rows) == 4 and len({row.count("|") for row in rows}) == 1
    assert re.match(r"\| 3\.12\.1 \| newest \| 9 passed, 1 skipped \| \d{4}-\d\d-\d\d \|", rows[2])
    assert rows[3].startswith("| 3.13 | oldest | not tested")


def test_folders_left_out_exist() -> None:
    assert all((ROOT / "tests" / name).is_dir() for name in matrix.LEFT_OUT)
