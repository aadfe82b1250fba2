import re
import tomllib
from pathlib import Path

import pytest

from linumpy.core.errors import LinumpyError
from linumpy.launcher import nextflow
from linumpy.launcher.installed_workflow import name_workflow, workflow_script

ROOT = Path(__file__).resolve().parents[2]
MAIN = str(ROOT / "main.nf")
SESSION = "0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f"


# An @ is the word that is replaced.
@pytest.mark.parametrize("line", [
    "run @", "run @ --input RAW --output RESULTS", "run -resume @ --input RAW",
    "run @ --input linumpy --output linumpy -profile linumpy linumpy",
    "run -profile test,docker @", "run -profile linumpy @", "run -resume last @",
    f"run -resume {SESSION} @", "run -resume -profile gpu @", "run -stub-run @",
    "run -preview -ansi-log false @", "run -with-report -resume @", "run -name linumpy @",
    "run -process.cpus=4 -e.A=b @", "run --input linumpy @", "run --input=RAW @",
    "run --shift -3.5 @", "run -w work -params-file params.json -qs 4 @",
    "-q -log nextflow.log run @", "-c linumpy -C run run @", "-Dsome=property -bg run @",
])  # fmt: skip
def test_the_script_of_run_is_the_installed_workflow(line):
    expected = line.replace("@", MAIN).split()
    assert name_workflow(line.replace("@", "linumpy").split()) == expected


@pytest.mark.parametrize("line", [
    "", "-v", "run", "run main.nf --input linumpy", "run main.nf linumpy", "run ./linumpy",
    "run linumpy/main.nf", "run linumpy.nf", "run LINUMPY", "run owner/linumpy -r main",
    "run - linumpy", "run -name linumpy", "run --input linumpy", "-log run linumpy",
    "log linumpy", "config linumpy", "clean run linumpy",
])  # fmt: skip
def test_all_other_words_stay(line):
    assert name_workflow(line.split()) == line.split()


def test_arguments_of_the_caller_are_not_changed():
    arguments = ["run", "linumpy"]
    assert name_workflow(arguments) == ["run", MAIN]
    assert arguments == ["run", "linumpy"]


def test_launch_runs_the_workflow(tmp_path, monkeypatch):
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.9\"' >&2\n", encoding="utf-8")
    java.chmod(0o755)
    monkeypatch.setattr(nextflow, "class_path", lambda _coordinates, _cache: [])
    monkeypatch.setattr(nextflow, "find_nextflow", lambda _environment: None)
    command, _environment = nextflow.launch_command(
        ["run", "linumpy", "--input", "a b"], {"PATH": str(tmp_path)}
    )
    assert command[-4:] == ["run", MAIN, "--input", "a b"]


def test_path_is_that_of_the_clone(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "path").write_text("", encoding="utf-8")
    assert script("nextflow", "path").stdout == f"{MAIN}\n"


def test_a_wheel_finds_its_own_workflow_first(tmp_path):
    package = tmp_path / "linumpy"
    (package / "workflow").mkdir(parents=True)
    with pytest.raises(LinumpyError, match=r"linumpy: holds no workflow/main\.nf; expected"):
        workflow_script(package)
    (tmp_path / "main.nf").touch()
    assert workflow_script(package) == tmp_path / "main.nf"
    (package / "workflow" / "main.nf").touch()
    assert workflow_script(package) == package / "workflow" / "main.nf"


def test_the_wheel_holds_all_that_the_workflow_includes():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    held = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert held == {name: f"linumpy/workflow/{name}" for name in held}
    todo, seen = [ROOT / "main.nf", ROOT / "nextflow.config"], set()
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r"""(?:\bfrom|includeConfig) ['"]([^'"$]+)['"]""", text):
            # Settings are named from where the main one lies, scripts from the one that includes.
            here = ROOT if name.startswith("conf/") else path.parent
            todo.append((here / f"{name}{'' if path.suffix == '.config' else '.nf'}").resolve())
        for name in re.findall(r"(?:projectDir|moduleDir)\.resolve\('([^']+)'\)", text):
            seen.add(ROOT / name)
    assert len(seen) > 60
    folders = {*held, "linumpy"}
    missing = [path for path in seen if path.relative_to(ROOT).parts[0] not in folders]
    assert missing == []
    assert all((ROOT / name).exists() for name in held)
