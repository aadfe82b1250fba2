"""How tasks are put into containers: engines that only note their arguments stand for real ones."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from .conftest import REPOSITORY, Launcher

# A process that can use a GPU, and one that cannot. Each says what it got.
PIPELINE = """
process capable {
    label 'gpu'
    input:
    path folder
    stdin
    output:
    path 'said'
    script:
    'env > said; cat >> said'
}

process plain {
    input:
    path folder
    output:
    path 'said'
    script:
    'env > said'
}

workflow {
    def folder = file(params.input)
    capable(folder, 'from standard input')
    plain(folder)
}
"""

# Notes its arguments and runs the command, which is all that follows the image's name.
ENGINE = """#!/usr/bin/env python3
import json, os, pathlib, sys
with open(pathlib.Path(__file__).parent / "calls", "a") as file:
    file.write(json.dumps(sys.argv) + "\\n")
if sys.argv[1] in ("run", "exec"):
    for name, value in list(os.environ.items()):
        if name.startswith("APPTAINERENV_"):
            os.environ[name.removeprefix("APPTAINERENV_")] = value
    command = sys.argv[sys.argv.index("/bin/bash"):]
    os.execv(command[0], command)
"""

IMAGES = {
    "docker": "linumpy:{}",
    "podman": "lab/linumpy:7",
    "apptainer": "{launch}/linumpy_{}.sif",
}
GPU = {
    "docker": ["--gpus", "all"],
    "podman": ["--device", "nvidia.com/gpu=all"],
    "apptainer": ["--nv"],
}


@dataclass(frozen=True)
class Containers:
    """Arguments of the engine, and the environment in the container, by process."""

    arguments: dict[str, list[str]]
    environment: dict[str, dict[str, str]]
    launch: Path
    leases: Path


Launch = Callable[..., Containers]


@pytest.fixture(scope="module")
def launch(make_launcher: Callable[[str, Path], Launcher], tmp_path_factory) -> Launch:  # type: ignore[no-untyped-def]
    def run(profile: str, *arguments: str) -> Containers:
        engine = profile.split(",")[0]
        folder = tmp_path_factory.mktemp(engine)
        (folder / "main.nf").write_text(PIPELINE, encoding="utf-8")
        (folder / "engines").mkdir()
        program = folder / "engines" / engine
        program.write_text(ENGINE, encoding="utf-8")
        program.chmod(0o755)
        # The input's folder lies elsewhere than its name says.
        (folder / "disk" / "acquisition").mkdir(parents=True)
        (folder / "input").symlink_to(folder / "disk" / "acquisition")
        launcher = make_launcher(engine, folder)
        done = launcher(
            *("-c", REPOSITORY / "nextflow.config", "run", folder / "main.nf"),
            *("-profile", profile, "--input", folder / "input", "--output", folder / "output"),
            *arguments,
            PATH=f"{program.parent}{os.pathsep}{os.environ['PATH']}",
            HOME=str(folder / "home"),
            NXF_HOME=os.environ.get("NXF_HOME", str(Path.home() / ".nextflow")),
            XDG_CACHE_HOME=os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
            LINUMPY_LEASE_DIR=str(folder / "leases"),
            CUDA_VISIBLE_DEVICES="1",
        )
        assert done.status == 0, done.text
        assert "undefined" not in done.text
        found: dict[str, list[str]] = {}
        said: dict[str, dict[str, str]] = {}
        for line in (folder / "engines" / "calls").read_text(encoding="utf-8").splitlines():
            call = json.loads(line)[1:]
            if call[0] not in ("run", "exec"):
                continue
            work = Path(next(filter(None, (re.search(r"/\S+/work/../\w{30}", a) for a in call)))[0])
            header = (work / ".command.run").read_text(encoding="utf-8")
            name = re.search("### name: '(\\w+)'", header)[1]  # type: ignore[index]
            found[name] = call
            text = (work / "said").read_text(encoding="utf-8")
            said[name] = dict(re.findall(r"^(\w+)=(.*)$", text, flags=re.MULTILINE))
            assert ("from standard input" in text) is (name == "capable")
        return Containers(found, said, launcher.folder, folder / "leases")

    return run


def has(arguments: list[str], *wanted: str) -> bool:
    """Whether arguments stand there one after the other."""
    return f" {shlex.join(wanted)} " in f" {shlex.join(arguments)} "


@pytest.mark.parametrize("engine", IMAGES)
def test_gpus_and_leases_are_for_tasks_that_can_use_them(launch: Launch, engine: str) -> None:
    image_given = ["--container_image", "lab/linumpy:7"] if engine == "podman" else []
    ran = launch(f"{engine},gpu", "--container_mounts", "/srv/disk1,/srv/disk2", *image_given)
    assert set(ran.arguments) == {"capable", "plain"}
    image = IMAGES[engine].format("cuda", launch=ran.launch)
    mount = "-v" if engine in ("docker", "podman") else "-B"
    leases = str(ran.leases)
    for name, arguments in ran.arguments.items():
        capable = name == "capable"
        assert has(arguments, image, "/bin/bash"), arguments
        assert has(arguments, *GPU[engine]) is capable
        shared = [leases, f"{leases}:{leases}"][mount == "-v"]
        assert has(arguments, mount, shared) is capable
        for disk in ("/srv/disk1", "/srv/disk2"):
            assert has(arguments, mount, f"{disk}:{disk}:ro")
        if engine == "podman":
            # Root of a container that another user started is that user.
            assert has(arguments, "--user", "0:0")
        environment = ran.environment[name]
        assert environment["LINUMPY_LEASE_DIR"] == leases
        assert environment["CUDA_VISIBLE_DEVICES"] == "1"
        assert environment["OMP_NUM_THREADS"] == "1"
        assert environment["MPLCONFIGDIR"].endswith("/.matplotlib")
        # Where the input really is can be seen.
        mounts = [a for a in arguments if a.startswith("/") and ":ro" not in a and a != image]
        real = ran.leases.parent / "disk" / "acquisition"
        assert any(real.is_relative_to(m.split(":")[0]) for m in mounts), mounts
    assert ran.leases.stat().st_mode & 0o777 == 0o700
    cache = Path(ran.environment["capable"]["CUPY_CACHE_DIR"])
    assert cache == ran.leases.parent / "home" / ".cupy" / "kernel_cache" and cache.is_dir()


def test_without_a_gpu_nothing_of_one_is_passed(launch: Launch) -> None:
    ran = launch("docker")
    for arguments in ran.arguments.values():
        assert has(arguments, "linumpy:cpu", "/bin/bash")
        assert not any("gpu" in a or "lease" in a.lower() for a in arguments if a[0] == "-")
        assert has(arguments, "-u", f"{os.getuid()}:{os.getgid()}")
        assert "--no-healthcheck" in arguments
    assert not ran.leases.exists()


def test_singularity_is_set_up_like_apptainer(
    make_launcher: Callable[[str, Path], Launcher], tmp_path: Path
) -> None:
    done = make_launcher("singularity", tmp_path)(
        "config", "-flat", "-profile", "singularity,gpu", REPOSITORY
    )
    lines = done.text.splitlines()
    assert "singularity.enabled = true" in lines
    assert "apptainer.enabled = true" not in lines
    settings = [{x.split(".", 1)[1] for x in lines if x.startswith(f"{name}.")}
                for name in ("singularity", "apptainer")]  # fmt: skip
    assert settings[0] - settings[1] == {"enabled = true"}
    assert any(re.fullmatch("process.container = '/.*/linumpy_cuda.sif'", line) for line in lines)


def test_all_engines_pass_the_same_variables_on() -> None:
    lists = [
        line
        for name in ("docker", "podman", "apptainer")
        for line in (REPOSITORY / "conf" / f"{name}.config").read_text("utf-8").splitlines()
        if "envWhitelist" in line
    ]
    assert len(lists) == 4
    assert len(set(lists)) == 1


def test_only_processes_that_take_use_gpu_are_labelled() -> None:
    modules = (REPOSITORY / "modules").glob("*.nf")
    texts = {path.stem: path.read_text(encoding="utf-8") for path in modules}
    labelled = {name for name, text in texts.items() if "label 'gpu'" in text}
    assert labelled == {name for name, text in texts.items() if "gpu_flags(params" in text}
    assert len(labelled) > 20
