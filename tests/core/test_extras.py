import json
import re
import shlex
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from linumpy.core import extras

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# What a page, message, workflow or build step may name besides the project itself and files.
PACKAGES = {"hatchling"}
INSTALL = re.compile(
    r"\b(?:pip|pipx|uv|conda|mamba)(?:['\"])?(?: [^\n`|;&]*?)? (?:install|download|wheel|add)\b"
    r"(?P<what>(?:\\\n|[^\n`|;&])*)"
)
TAKE_A_VALUE = {
    "-c", "--constraint", "-r", "--requirement", "--wheel-dir", "--python", "--target", "--index",
    "--index-url",
}  # fmt: skip
# Not a file, a variable or a placeholder.
REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.-]*(?:[\[=<>~!]|$)")
# The name of the import with an extra is that of another project; or part of our longer name.
OTHER = re.compile(r"(?<![\w./$-])linumpy\[[\w,]+\]")


def named(text):
    """Return the requirements that the text's install commands name, without those of files."""
    names = []
    for command in INSTALL.finditer(text):
        words = re.sub(r"\\\n|['\"]", " ", command["what"]).split()
        value = False
        for word in words:
            if value or word.startswith("-"):
                value = not value and word in TAKE_A_VALUE
            elif REQUIREMENT.match(word):
                names.append(word)
    return names


def tracked_texts():
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listing.returncode:
        pytest.skip("no git checkout")
    for name in listing.stdout.split("\0"):
        path = ROOT / name
        if not name or name == "tests/core/test_extras.py" or not path.is_file():
            continue
        try:
            yield name, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("    pip install 'linumpy[gpu]'\n", ["linumpy[gpu]"]),
        ("run `pip install linumpy` first", ["linumpy"]),
        ("python -m pip install -U linumpy", ["linumpy"]),
        ("uv pip install -c constraints.txt lynumpy", ["lynumpy"]),
        ('"$TOOLS/bin/pip" --python "$PREFIX" install \\\n   --constraint c.txt evil', ["evil"]),
        ("pip install -c constraints.txt -e '.[nextflow,gpu]' /a/linumpy[x] $wheel", []),
    ],
)
def test_the_reader_of_install_commands_sees_what_they_name(text, names):
    assert named(text) == names


def test_no_text_advises_an_install_of_another_project():
    found, texts = [], 0
    for name, text in tracked_texts():
        texts += 1
        found += [(name, match) for match in OTHER.findall(text)]
        found += [
            (name, what)
            for what in named(text)
            if re.split(r"[\[=<>~! ]", what)[0] not in PACKAGES | {PROJECT["name"]}
        ]
    assert texts > 500
    assert found == []


def test_the_project_has_the_name_that_the_advice_gives():
    assert PROJECT["name"] == extras.DISTRIBUTION == "linumpy-soct"


@pytest.fixture
def installed_from(monkeypatch):
    """Return a function that pretends where the installation came from (PEP 610)."""

    def pretend(record):
        text = None if record is None else json.dumps(record)
        found = SimpleNamespace(read_text={"direct_url.json": text}.__getitem__)
        monkeypatch.setattr(metadata, "distribution", {"linumpy-soct": found}.__getitem__)

    return pretend


def typed(advice):
    """Return the words of the commands in an advice."""
    return [
        shlex.split(part) for part in re.findall(r"pip install (?:-e )?(?:'[^']*'|\S+)", advice)
    ]


def test_advice_names_the_clone_that_was_installed(installed_from, tmp_path):
    clone = tmp_path / "my clone"
    clone.mkdir()
    installed_from({"url": clone.as_uri(), "dir_info": {}})
    assert typed(extras.extra_advice("remote")) == [["pip", "install", f"{clone}[remote]"]]
    installed_from({"url": clone.as_uri(), "dir_info": {"editable": True}})
    assert typed(extras.extra_advice("gpu")) == [
        ["pip", "install", "-e", f"{clone}[gpu]"],
        ["pip", "install", "-e", f"{clone}[gpu13]"],
    ]


@pytest.mark.parametrize("record", [None, {"url": "file:///gone/away", "dir_info": {}}])
def test_advice_names_the_distribution_where_nothing_local_is_left(installed_from, record):
    installed_from(record)
    assert typed(extras.extra_advice("demo")) == [["pip", "install", "linumpy-soct[demo]"]]


def test_advice_names_the_repository_that_was_installed(installed_from):
    installed_from({"url": "https://host/a/repo", "vcs_info": {"vcs": "git", "commit_id": "0"}})
    assert typed(extras.extra_advice("demo")) == [
        ["pip", "install", "linumpy-soct[demo] @ git+https://host/a/repo"]
    ]


def test_advice_needs_no_installation(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert extras.extra_advice("demo").endswith("pip install 'linumpy-soct[demo]'")
