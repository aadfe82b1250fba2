"""All Nextflow sources pass the parser of strict syntax, and the check can tell."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from linumpy.launcher.maven import class_path
from linumpy.launcher.nextflow import NEXTFLOW, cache_folder, find_java

REPOSITORY = Path(__file__).resolve().parents[2]
PARSER = "io.nextflow:nf-lang:25.04.0"


def lint(*sources: Path) -> tuple[int, list[str]]:
    jars = class_path(PARSER, cache_folder(os.environ))
    # Of what Nextflow itself comes with, its sources may use this.
    nextflow = class_path(NEXTFLOW, cache_folder(os.environ))
    jars = [*jars, *(jar for jar in nextflow if jar.name.startswith("groovy-json-"))]
    done = subprocess.run(
        [
            str(find_java(os.environ)),
            "-XX:TieredStopAtLevel=1",
            "-cp",
            os.pathsep.join(map(str, jars)),
            "groovy.ui.GroovyMain",
            str(Path(__file__).with_name("lint.groovy")),
            *map(str, sources),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def sources() -> list[Path]:
    return [
        *REPOSITORY.glob("*.nf"),
        *REPOSITORY.glob("modules/**/*.nf"),
        *REPOSITORY.glob("workflows/*.nf"),
        *REPOSITORY.glob("*.config"),
        *REPOSITORY.glob("conf/**/*.config"),
    ]


def test_all_sources_pass() -> None:
    found = sources()
    scripts = sum(path.suffix == ".nf" for path in found)
    assert scripts >= 20
    status, lines = lint(*found)
    assert lines == [f"{scripts} scripts, {len(found) - scripts} configs, 0 problems"]
    assert status == 0


def test_no_class_of_nextflow_and_no_thread_is_used() -> None:
    """Seen to fail with `nextflow.Global.session` in a module."""
    for path in REPOSITORY.glob("modules/local/*.nf"):
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"(?<![\w.])nextflow\.\w+|\w*Thread\w*|parallelStream", text) == [], path


PLANTED = {
    "loop.nf": ("workflow {\n  for (i in 1..2) { println i }\n}\n", "loop.nf:2: `for` loops"),
    "import.nf": ("import groovy.json.JsonSlurper\nworkflow { }\n", "import.nf:1: Groovy `import`"),
    "undefined.nf": ("workflow {\n  no_such_process(1)\n}\n", "`no_such_process` is not defined"),
    "statement.nf": ("println 'x'\nworkflow { }\n", "statement.nf:1: Statements cannot be mixed"),
    "unused.nf": ("workflow {\n  def x = 1\n}\n", "unused.nf:2: warning: Variable was declared"),
    "definition.config": ("def x = 1\nprocess.cpus = x\n", "definition.config"),
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, list[str]]:
    folder = tmp_path_factory.mktemp("planted")
    for name, (text, _) in PLANTED.items():
        (folder / name).write_text(text, encoding="utf-8")
    return lint(*(folder / name for name in PLANTED))


@pytest.mark.parametrize("name", PLANTED)
def test_planted_errors_are_found(planted: tuple[int, list[str]], name: str) -> None:
    status, lines = planted
    assert status == 1
    assert any(PLANTED[name][1] in line for line in lines), lines
