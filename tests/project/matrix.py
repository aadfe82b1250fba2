"""Run the quick tests with each Python, with the oldest and the newest dependencies.

The Pythons are those of pyproject's classifiers that this machine has: on PATH, of pyenv or of uv.
*Oldest* is the lower bound of every run-time dependency in pyproject, *newest* what the package
index has. Each pair gets an environment below ``.cache/matrix``. Standard library only.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ROOT / ".cache" / "matrix"
EXTRAS = ("nextflow", "demo", "remote")
"""Extras whose lower bounds are tested too; those of a GPU need one."""

LEFT_OUT = ("benchmarks", "containers", "faults", "pipeline", "planning", "project", "slurm")
"""Folders of tests that ask about programs, kills and files more than about libraries."""

SHOWN = ("numpy", "scipy", "scikit-image", "zarr", "zarrs", "matplotlib", "SimpleITK", "tifffile")


def project() -> dict:
    """Return the table ``project`` of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def supported_pythons() -> list[str]:
    """Return the versions that pyproject declares, such as ``3.12``."""
    pattern = re.compile(r"Programming Language :: Python :: (3\.\d+)")
    return [found[1] for line in project()["classifiers"] if (found := pattern.fullmatch(line))]


def lower_bounds() -> dict[str, str]:
    """Return the lower bound of each run-time dependency, by name.

    Raises
    ------
    ValueError
        Where a dependency has none.
    """
    table = project()
    lines = list(table["dependencies"])
    for extra in EXTRAS:
        lines += table["optional-dependencies"][extra]
    bounds = {}
    for line in lines:
        found = re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?>=([0-9.]+)", line)
        if not found:
            raise ValueError(f"pyproject.toml: {line!r} has no lower bound (name>=version)")
        bounds[found[1]] = found[2]
    return bounds


def _output(*command: str | Path) -> str:
    """Return what a command prints; nothing where it fails or is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _candidates(version: str) -> Iterator[str]:
    yield from (path for path in (shutil.which(f"python{version}"), sys.executable) if path)
    if pyenv := _output("pyenv", "root"):
        yield from map(str, sorted(Path(pyenv).glob(f"versions/{version}.*/bin/python")))
    if found := _output("uv", "python", "find", "--no-python-downloads", version):
        yield found


def find_python(version: str) -> str | None:
    """Return an interpreter of this version that runs, or None."""
    probe = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    return next(
        (path for path in _candidates(version) if _output(path, "-c", probe) == version), None
    )


def build(python: str, version: str, dependencies: str) -> Path:
    """Make the environment of one pair; return its interpreter."""
    folder = ENVIRONMENTS / f"{version}-{dependencies}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    interpreter = folder / "bin" / "python"
    wanted = f".[{','.join((*EXTRAS, 'test'))}]"
    limits = []
    uv = shutil.which("uv")
    if uv:
        subprocess.run([uv, "venv", "--quiet", "--python", python, folder], check=True)
        install: list[str | Path] = [uv, "pip", "install", "--quiet", "--python", interpreter]
    else:
        subprocess.run([python, "-m", "venv", folder], check=True)
        install = [interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if dependencies == "oldest":
        oldest = folder / "oldest.txt"
        oldest.write_text("".join(f"{name}=={bound}\n" for name, bound in lower_bounds().items()))
        limits = ["--constraint", oldest]
    subprocess.run([*install, "--editable", wanted, *limits], cwd=ROOT, check=True)
    return interpreter


@dataclass(frozen=True)
class Outcome:
    """What one pair of Python and dependencies came to."""

    python: str
    dependencies: str
    result: str
    duration_s: float
    versions: dict[str, str]


def versions_in(interpreter: Path) -> dict[str, str]:
    """Return the Python's version and those of the libraries that are shown."""
    code = (
        "import json, platform, sys\nfrom importlib.metadata import version\n"
        "print(json.dumps({'python': platform.python_version()}"
        " | {name: version(name) for name in sys.argv[1:]}))"
    )
    return json.loads(_output(interpreter, "-c", code, *SHOWN))


def test(interpreter: Path, paths: Sequence[str], jobs: int) -> str:
    """Run the quick tests; return how many passed, failed and were skipped."""
    report = interpreter.parents[1] / "report.xml"
    report.unlink(missing_ok=True)
    chosen = list(paths) or [f"--ignore=tests/{name}" for name in LEFT_OUT]
    spread = ["-n", str(jobs), "--dist", "loadfile"] if jobs > 1 else []
    # PATH as in an activated environment: tests start scripts by their names.
    environment = os.environ | {"PATH": f"{interpreter.parent}{os.pathsep}{os.environ['PATH']}"}
    command = [interpreter, "-m", "pytest", "-q", "-m", "not slow", f"--junitxml={report}"]
    subprocess.run([*command, *spread, *chosen], cwd=ROOT, env=environment, check=False)
    if not report.exists():
        return "no tests ran"
    suite = next(ElementTree.parse(report).getroot().iter("testsuite")).attrib
    skipped, total = int(suite["skipped"]), int(suite["tests"])
    failed = int(suite["failures"]) + int(suite["errors"])
    said = f"{total - failed - skipped} passed, {skipped} skipped"
    return f"**{failed} failed**, {said}" if failed else said


def run(version: str, dependencies: str, paths: Sequence[str], jobs: int) -> Outcome:
    """Build one environment and run the tests in it."""
    start_s = time.monotonic()
    python = find_python(version)
    if python is None:
        return Outcome(version, dependencies, "not tested: no such Python here", 0.0, {})
    print(f"== Python {version}, {dependencies} dependencies ({python})", flush=True)
    try:
        interpreter = build(python, version, dependencies)
    except subprocess.CalledProcessError as error:
        return Outcome(version, dependencies, f"**no environment** ({error.cmd[0]})", 0.0, {})
    result = test(interpreter, paths, jobs)
    return Outcome(
        version, dependencies, result, time.monotonic() - start_s, versions_in(interpreter)
    )


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the outcomes as a table in Markdown."""
    today = datetime.date.today().isoformat()
    head = ["Python", "dependencies", "result", "date", *SHOWN]
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for outcome in outcomes:
        found = outcome.versions
        cells = [found.get("python", outcome.python), outcome.dependencies, outcome.result, today]
        cells += [found.get(name, "") for name in SHOWN]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Run the matrix; return 1 where anything failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*", help="tests to run instead of the quick ones")
    parser.add_argument("--python", action="append", help="a version (repeatable); default: all")
    parser.add_argument(
        "--dependencies", action="append", choices=("oldest", "newest"), help="default: both"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes of pytest")
    options = parser.parse_args()
    outcomes = [
        run(version, dependencies, options.paths, options.jobs)
        for version in options.python or supported_pythons()
        for dependencies in options.dependencies or ("oldest", "newest")
    ]
    print(table(outcomes))
    return any("**" in outcome.result or "no tests" in outcome.result for outcome in outcomes)


if __name__ == "__main__":
    sys.exit(main())
