"""Recipes of the images: linters, equal steps in both, nothing missing or superfluous."""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import linumpy

REPOSITORY = Path(__file__).resolve().parents[2]
CONTAINERS = REPOSITORY / "containers"
TOOLS = Path(sys.executable).parent
SCRIPTS = sorted(CONTAINERS.glob("*.sh"))


def read(name: str) -> str:
    return (CONTAINERS / name).read_text(encoding="utf-8")


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )


def test_hadolint_passes(tmp_path: Path) -> None:
    done = run(TOOLS / "hadolint", CONTAINERS / "Dockerfile")
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    wrong = tmp_path / "Dockerfile"
    wrong.write_text("FROM debian\nRUN cd /tmp && apt-get install git\n", encoding="utf-8")
    assert "DL3008" in run(TOOLS / "hadolint", wrong).stdout


def test_shellcheck_passes(tmp_path: Path) -> None:
    assert len(SCRIPTS) >= 4
    assert all(os.access(script, os.X_OK) for script in SCRIPTS)
    done = run(TOOLS / "shellcheck", *SCRIPTS)
    assert (done.returncode, done.stdout) == (0, "")
    wrong = tmp_path / "wrong.sh"
    wrong.write_text("#!/bin/bash\nrm $1\n", encoding="utf-8")
    assert "SC2086" in run(TOOLS / "shellcheck", wrong).stdout


# The Dockerfile: stages with what they stand on and what they do.


def docker_stages() -> dict[str, tuple[str, list[str]]]:
    text = read("Dockerfile").replace("\\\n", " ")
    stages: dict[str, tuple[str, list[str]]] = {}
    for line in text.splitlines():
        if match := re.fullmatch(r"FROM (\S+) AS (\S+)", line):
            stages[match[2]] = (match[1], [])
        elif line and not line.startswith("#") and stages:
            stages[list(stages)[-1]][1].append(" ".join(line.split()))
    return stages


def docker_lines(stage: str) -> list[str]:
    """Return the instructions that make a stage, from its base image on."""
    stages = docker_stages()
    base, lines = stages[stage]
    return (docker_lines(base) if base in stages else []) + lines


def steps(lines: list[str]) -> list[str]:
    return [m[1] for line in lines if (m := re.search(r"bash /\S+/steps\.sh (.*)", line))]


def definition_stages() -> list[dict[str, list[str]]]:
    """Return the sections of the Apptainer definition, by stage; what stands first has no name."""
    found = []
    for stage in re.split(r"(?m)^Bootstrap: ", read("linumpy.def"))[1:]:
        parts = re.split(r"(?m)^%(.*)$", stage)
        sections = {"": parts[0].splitlines()}
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            sections[name.strip()] = [line.strip() for line in body.splitlines() if line.strip()]
        found.append(sections)
    return found


def test_both_recipes_take_the_same_steps() -> None:
    build, runtime = definition_stages()
    first = {"cpu": steps(docker_lines("build-cpu")), "cuda": steps(docker_lines("build-cuda"))}
    assert first["cpu"] == ["system", "tools", "install"]
    assert first["cuda"] == ["system", "tools", 'install "${GPU_EXTRA}"']
    *common, cuda, cpu = steps(build["post"])
    assert [*common, cpu] == first["cpu"]
    assert [*common, cuda.replace("{{ GPU_EXTRA }}", "${GPU_EXTRA}")] == first["cuda"]
    condition = build["post"].index('if [ "{{ TARGET }}" = cuda ]; then')
    assert steps(build["post"][condition + 1 : condition + 2]) == [cuda]
    for target in ("cpu", "cuda"):
        assert steps(docker_lines(target)) == steps(runtime["post"]) == ["system"]
        copied = [line for line in docker_lines(target) if line.startswith("COPY")]
        assert copied == [f"COPY --from=build-{target} /opt/linumpy /opt/linumpy"]
    assert runtime["files from build"] == ["/opt/linumpy /opt/linumpy"]
    # Neither does anything beside the steps.
    runs = [line for _, lines in docker_stages().values() for line in lines if line[:4] == "RUN "]
    assert len(runs) == len(steps(runs)) == 4
    known = set(re.findall(r"(?m)^#   steps\.sh (\w+)", read("steps.sh")))
    assert known == {"system", "tools", "install"}


def test_both_recipes_have_the_same_settings() -> None:
    text = read("Dockerfile")
    arguments = dict(re.findall(r"(?m)^ARG (\w+)=(.*)$", text))
    given = {"TARGET": "cpu"}
    for stage in definition_stages():
        found = dict(line.split("=", 1) for line in stage["arguments"])
        assert stage[""][1] == "From: {{ BASE_IMAGE }}"
        assert all(given.setdefault(name, value) == value for name, value in found.items())
    assert given == {"TARGET": "cpu", **arguments}
    assert arguments["VERSION"] == linumpy.__version__
    # No host: where images come from is set on the machine that builds.
    assert "." not in arguments["BASE_IMAGE"].split("/")[0]

    runtime = definition_stages()[1]
    lines = " ".join(docker_lines("cpu"))
    labels = dict(re.findall(r'(org\.opencontainers\S+)="([^"]*)"', lines))
    assert {"title", "version", "revision", "licenses", "description"} <= {
        name.rsplit(".", 1)[1] for name in labels
    }
    assert labels == {
        name: re.sub(r"\{\{ (\w+) \}\}", r"${\1}", value)
        for name, value in (line.split(maxsplit=1) for line in runtime["labels"])
    }
    for name in ("LANG", "PATH"):
        (value,) = re.findall(rf"\b{name}=(\S+)", lines)
        assert f"export {name}={value}" in runtime["environment"]


@pytest.mark.parametrize(
    ("target", "command"),
    [("cpu", '["linum_gpu_info.py"]'), ("cuda", '["linum_gpu_info.py", "--use_gpu"]')],
)
def test_images_run_without_root_and_look_after_themselves(target: str, command: str) -> None:
    lines = docker_lines(target)
    (user,) = [line.split()[1] for line in lines if line.startswith("USER")]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    (health,) = [line for line in lines if line.startswith("HEALTHCHECK")]
    assert health.endswith(f"CMD {command}")
    # The health check of an Apptainer image is its test.
    assert definition_stages()[1]["test"] == ["linum_gpu_info.py"]


def test_everything_that_an_image_gets_is_pinned() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    assert "extras=remote,tables${1:+,$1}" in read("steps.sh")
    for name in ("remote", "gpu", "gpu13"):
        wanted += extras[name]
    text = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8")
    pinned = {line.split("==")[0].lower() for line in text.splitlines() if "==" in line}
    assert len(wanted) > 15
    assert {re.match(r"[\w-]+", one)[0].lower() for one in wanted} <= pinned  # type: ignore[index]
    assert re.search(r"ARG GPU_EXTRA=(\w+)", read("Dockerfile"))[1] in extras  # type: ignore[index]


# What the engine is sent: .dockerignore, read as its documentation says.


def is_sent(path: str) -> bool:
    """Whether a file is part of the build's context; of the lines that fit, the last one counts."""
    sent = True
    for line in (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!").strip("/")
        parts = path.split("/")
        # A line that fits a folder fits all that is in it.
        for length in range(1, len(parts) + 1):
            head = parts[:length]
            if pattern.startswith("**/"):
                fits = fnmatch.fnmatchcase(head[-1], pattern.removeprefix("**/"))
            else:
                wanted = pattern.split("/")
                fits = len(wanted) == length and all(map(fnmatch.fnmatchcase, head, wanted))
            if fits:
                sent = line.startswith("!")
    return sent


@pytest.mark.parametrize(
    "path",
    [
        ".git/config", ".git/objects/ab/cdef", ".venv/bin/python", ".whl/x/a.whl", "work/ab/cd/x",
        "demo/results/report.html", ".nextflow/cache/x", ".nextflow.log", ".pytest_cache/v/x",
        ".hypothesis/x", ".mypy_cache/x", "build/lib/x.py", "dist/linumpy.whl", "tests/test_cli.py",
        "linumpy/__pycache__/cli.cpython-311.pyc", "linumpy/gpu/__pycache__/info.pyc",
        "site.config", "pip.conf", ".env", "acquisition/raw/tile_x00_y00_z00/image_00000.bin",
        "docs/index.md", "containers/build.sh", "admin/check_gds.py",
        "shared/notes.md",
    ],
)  # fmt: skip
def test_untracked_files_stay_out_of_the_image(path: str) -> None:
    assert not is_sent(path)


def test_nothing_that_is_needed_is_left_out() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]}
    needed |= set(re.findall(r'"\$SOURCE/([\w./]+)"', read("steps.sh")))
    needed |= {"containers/steps.sh", project["tool"]["hatch"]["version"]["path"]}
    folders = [*wheel["packages"], *wheel["shared-scripts"], *wheel["force-include"]]
    for folder in folders:
        needed |= {
            str(path.relative_to(REPOSITORY))
            for path in (REPOSITORY / folder, *(REPOSITORY / folder).rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts
        }
    assert "constraints.txt" in needed and "linumpy/gpu/kernels.cu" in needed
    assert len(needed) > 150
    assert not {path for path in needed if not is_sent(path)}
    # The definition copies the same.
    build = definition_stages()[0]
    copied = {line.split()[0] for line in build["files"]}
    assert copied == {path for path in needed if path.split("/")[0] not in folders} | set(folders)
    assert all(line.split()[1] in ("/src/", "/src/containers/") for line in build["files"])


# How a machine reaches its packages.


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a made-up machine, with its own pip and apt."""
    programs = tmp_path / "bin"
    programs.mkdir()
    answers = {
        "apt-get": "deb http://mirror/debian bookworm main @Debian\\n"
        "deb http://vendor/tools stable main @Vendor\\n",
        "apt-config": 'Acquire "";\\nAcquire::http::Proxy "http://proxy:3128";\\n',
    }
    for name, answer in answers.items():
        program = programs / name
        program.write_text(f"#!/bin/sh\nprintf '{answer}'\n", encoding="utf-8")
        program.chmod(0o755)
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = http://index/\n", encoding="utf-8")
    (tmp_path / "authority.crt").write_text("a certificate\n", encoding="utf-8")
    return {
        "PATH": f"{programs}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"),
        "PIP_EXTRA_INDEX_URL": "http://user:word@extra/simple",
        "PIP_FIND_LINKS": str(tmp_path),
        "PIP_CERT": str(tmp_path / "authority.crt"),
    }


def test_a_machines_own_ways_are_gathered(machine: dict[str, str], tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    command = ["bash", CONTAINERS / "secrets.sh", secrets]
    done = subprocess.run(command, env=machine, capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""
    found = {path.name: path.read_text(encoding="utf-8") for path in secrets.iterdir()}
    assert found == {
        "pip.conf": "[global]\nindex-url = http://index/\n",
        "pip.env": "PIP_EXTRA_INDEX_URL=http://user:word@extra/simple\n",
        "ca.crt": "a certificate\n",
        "apt.list": "deb http://mirror/debian bookworm main\n",
        "apt.conf": 'Acquire::http::Proxy "http://proxy:3128";\n',
    }
    assert secrets.stat().st_mode & 0o077 == 0


def test_the_build_gets_them_as_secrets_and_the_image_its_labels(
    machine: dict[str, str], tmp_path: Path
) -> None:
    engine = tmp_path / "bin" / "docker"
    engine.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    engine.chmod(0o755)
    command = ["bash", CONTAINERS / "build.sh", "cuda", "--tag", "lab/linumpy:7"]
    done = subprocess.run(
        command, env={**machine, "https_proxy": "http://proxy:3128"}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    arguments = done.stdout.splitlines()
    assert arguments[0] == "build" and arguments[-1] == str(REPOSITORY)
    given = list(zip(arguments, arguments[1:], strict=False))
    assert ("--target", "cuda") in given
    assert ("--tag", "linumpy:cuda") in given and ("--tag", "lab/linumpy:7") in given
    assert ("--build-arg", f"VERSION={linumpy.__version__}") in given
    assert any(re.match("REVISION=([0-9a-f]{40}|unknown)", b) for _, b in given)
    assert ("--build-arg", "https_proxy=http://proxy:3128") in given
    secrets = {
        m[1] for a, b in given if a == "--secret" and (m := re.match(r"id=([\w.]+),src=/", b))
    }
    mounted = set(re.findall(r"type=secret,id=([\w.]+)", read("Dockerfile")))
    assert secrets == mounted == {"pip.conf", "pip.env", "ca.crt", "apt.list", "apt.conf"}
    assert "word@extra" not in done.stdout


def test_wrong_calls_print_the_usage() -> None:
    done = run("bash", CONTAINERS / "steps.sh", "nonsense")
    assert done.returncode == 2 and "expected system, tools or install" in done.stderr
    done = run("bash", CONTAINERS / "build.sh", "gpu")
    assert done.returncode == 2 and "cpu|cuda" in done.stderr
