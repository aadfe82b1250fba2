"""Names and values on their way to the shell: rejected by name, or passed as data."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linumpy.core.errors import InputError
from linumpy.launch.discover import find_input, subject_of
from linumpy.launch.names import local_path
from linumpy.launch.parameters import problems
from tests.pipeline.conftest import REPOSITORY, Launch, Launcher, make_launcher, make_raw

__all__ = ["make_launcher"]

SCHEMA: dict[str, Any] = json.loads((REPOSITORY / "nextflow_schema.json").read_text("utf-8"))
PROPERTIES = {
    name: property
    for group in SCHEMA["$defs"].values()
    for name, property in group["properties"].items()
}
SAFE = re.compile(r"[A-Za-z0-9_.,:/@+=-]*")
# Of a line for sbatch, which no shell reads; of a variable that the node knows.
ALSO_SAFE = {"slurm_options": " %[]", "slurm_scratch": "$"}
# Checked as names.
PATHS = {name for name, property in PROPERTIES.items() if "path" in property.get("format", "")}

HOSTILE = [
    "$(touch PWNED)", "`touch PWNED`", "a;touch PWNED", "a\ntouch PWNED", "a\n", "a\rb", "a\tb",
    "a'b", 'a"b', "a|touch PWNED", "a&touch PWNED", "a>PWNED", "a<b", "a\\b", "${IFS}x", "$HOME",
    "-rf", "--params=x", "*", "a?", "[a]", "{a,b}", "~root", "#x", "!x", "a\u2028b", "a\u0085b",
    "\x1b[31m", "\u202etxt", "a\u00a0b",
]  # fmt: skip
NAMES = [name for name in HOSTILE if "/" not in name] + [
    "tile_x00_y00_z01", "tile_x00_y00_z99999999999", "tile_x00_y00_z01\ntouch PWNED",
    "mosaic_grid_3d_z01.ome.zarr", "mosaic_grid_3d_z01.ome.zarr\n", "mosaic_grid$(x)_z01.ome.zarr",
    "mosaic_grid_3d_z01;x.ome.zarr", "sub-01", "sub-01\n", "a ", " a",
    "a b (c) 'd' & é", "a", "models",
]  # fmt: skip
HARMLESS = re.compile(r"(?!-)[\w ._,=@%+()'&:-]+(?<! )")


def scripts_of(path: Path) -> str:
    """Return what a module has the shell run."""
    text = path.read_text(encoding="utf-8")
    return "".join(re.findall(r'"""(.*?)"""', text, re.DOTALL))


MODULES = sorted((REPOSITORY / "modules").glob("*.nf"))
CONFIGS = sorted((REPOSITORY / "conf").rglob("*.config"))


def names_in_commands() -> set[str]:
    """Return the parameters that modules, their flags and configs put into text."""
    found: set[str] = set()
    for path in [*(REPOSITORY / "modules").rglob("*.nf"), *CONFIGS]:
        found |= set(re.findall(r"\b(?:params|given)\.(\w+)", path.read_text(encoding="utf-8")))
    return found & set(PROPERTIES)


def strings_in_commands() -> list[str]:
    return sorted(
        name
        for name in names_in_commands() - PATHS
        if PROPERTIES[name]["type"] == "string" and "enum" not in PROPERTIES[name]
    )


@pytest.fixture(scope="module")
def places(
    tmp_path_factory: pytest.TempPathFactory, make_launcher: Callable[[str, Path], Launcher]
) -> list[list[Any]]:
    """Return what `placed` says to every name, in one launch."""
    folder = tmp_path_factory.mktemp("names")
    launcher = make_launcher("asking", folder)
    asked = {"names": NAMES}
    (folder / "asked.json").write_text(json.dumps(asked), encoding="utf-8")
    launch = launcher(
        *("run", REPOSITORY / "tests" / "faults" / "names.nf", "--asked", folder / "asked.json"),
        *("--answers", folder / "answers.json"),
    )
    assert launch.status == 0, launch.text
    assert not list(launcher.folder.rglob("*PWNED*"))
    return list(json.loads((folder / "answers.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", PROPERTIES)
def test_parameters_accept_safe_characters_only(name: str) -> None:
    """Seen to fail without `_CONTROL` in `_is_valid`."""
    in_commands = names_in_commands()
    property = PROPERTIES[name]
    for text in HOSTILE:
        if found := problems({"input": "raw", "output": "out", name: text}, SCHEMA):
            assert found[name].startswith(f"--{name} "), found
            assert not re.search(r"[\x00-\x1f\x7f]", found[name])
            continue
        assert property["type"] == "string", (name, text)
        assert not re.search(r"[\x00-\x1f\x7f]", text), (name, text)
        if name in in_commands - PATHS:
            assert SAFE.fullmatch(text.translate({ord(c): "" for c in ALSO_SAFE.get(name, "")})), (
                name,
                text,
            )


@pytest.mark.parametrize("name", NAMES)
def test_names_on_paths_are_harmless_or_refused(name: str, tmp_path: Path) -> None:
    """Seen to fail with `is_harmless` always true."""
    (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(name)
    for path in (tmp_path / name, tmp_path / name / "..", tmp_path / "link"):
        if HARMLESS.fullmatch(name):
            local_path("--truth", str(path))
            continue
        with pytest.raises(InputError) as caught:
            local_path("--truth", str(path))
        refused = str(caught.value)
        assert refused.startswith("--truth ") and "rename it" in refused
        assert not re.search(r"[\x00-\x1f\x7f\u202e]", refused)


def test_what_tasks_leave_is_laid_out_by_plain_names_only(places: list[list[Any]]) -> None:
    """Seen to fail without the check of `placed`."""
    assert [name for name, _ in places] == NAMES
    for name, refused in places:
        assert (refused is None) == bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name)), name


@pytest.mark.parametrize("name", NAMES)
def test_ids_and_subject_come_from_whole_names(name: str, tmp_path: Path) -> None:
    """Seen to fail with `$` for the end of a grid's name: a line break after it went through."""
    subject = subject_of(["data", name])
    assert re.fullmatch(PROPERTIES["subject_name"]["pattern"], subject), subject
    (tmp_path / name).mkdir()
    asked = {"input": str(tmp_path)}
    if name == "tile_x00_y00_z01":
        with pytest.raises(InputError, match=r"1 tile in 1 slice \(z01\) cannot be read"):
            find_input(asked)
    elif name.startswith("tile_"):
        with pytest.raises(InputError, match="not the name of a tile; expected tile_x<X>") as error:
            find_input(asked)
        assert not re.search(r"[\x00-\x1f\x7f]", str(error.value))
    elif name == "mosaic_grid_3d_z01.ome.zarr":
        assert find_input(asked)["kind"] == "grids"
    else:
        with pytest.raises(InputError, match="found neither folders tile_x00_y00_z00 nor"):
            find_input(asked)


@pytest.mark.slow
@pytest.mark.parametrize("name", strings_in_commands())
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_no_pattern_lets_a_shell_work(name: str, data: st.DataObject) -> None:
    """Texts made from the pattern itself; seen to fail with that of `slurm_account` widened."""
    pattern = PROPERTIES[name]["pattern"]
    text = data.draw(st.from_regex(re.compile(pattern, re.ASCII), fullmatch=True))
    kept = text.translate({ord(letter): "" for letter in ALSO_SAFE.get(name, "")})
    # Java's end of a pattern is not before a last line break, as Python's is.
    assert SAFE.fullmatch(kept.removesuffix("\n")), text


# What modules may put into a script: ids, the subject, staged files, flags, and words of their own.
CHECKED = {"slice_id", "slice_ids[0]", "slice_ids.join(' ')", "subject", "lay_out('run', places)"}
# The name of a volume that a task left, and what a stub without scripts does.
CHECKED |= {
    "slice_in.name",
    "params.assess_quality_enabled ? '--rating' : '--no-rating'",
    "params.overlap_attenuation_enabled ? '--overlaps' : '--no-overlaps'",
    "given ? 'cp given.csv slice_config.csv' : 'echo slice_id,use > slice_config.csv'",
}
FLAGS = {
    "gpu_flags(params.use_gpu, params.gpu_memory, task)",
    "gpus_flag(params.use_gpu, params.gpu_count, task)",
    "slice_flags(slice_ids, grids, raw, acquisition, task)",
}
OF_EACH = re.compile(r"of_each\(slice_ids, '[\w ./]+'\)")


def expressions(text: str) -> Iterator[str]:
    yield from re.findall(r"(?<!\\)\$\{((?:[^{}]|\{[^{}]*\})*)\}", text)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_modules_put_only_checked_values_into_scripts(path: Path) -> None:
    """Seen to fail with a `val` that nothing checks, and with one in a text of a module's own."""
    text = path.read_text(encoding="utf-8")
    inputs = text.split("    input:")[1].split("    output:")[0]
    staged = set(re.findall(r"\bpath\(?\s*\(?(\w+)", inputs))
    values = set(re.findall(r"\bval\(?\s*\(?(\w+)", inputs))
    assert values <= {"slice_id", "slice_ids", "subject", "digest", "digests", "places"} | {
        "already_aligned"
    }
    own = dict(re.findall(r"^    def (\w+) = (.+?)(?=^    (?:def|\"\"\"))", text, re.M | re.S))
    allowed = CHECKED | FLAGS | staged | set(own)
    for expression in expressions(scripts_of(path)):
        if match := re.fullmatch(r"params\.(\w+)", expression):
            assert match[1] in PROPERTIES
        else:
            assert OF_EACH.fullmatch(expression) or expression in allowed, expression
    for definition in own.values():
        for expression in expressions(definition):
            known = re.fullmatch(r"params\.(\w+)", expression)
            assert known or expression in allowed, expression
    # No shell is asked to read a value twice.
    assert not re.search(r"\beval\b|\bsh -c", scripts_of(path))


@pytest.fixture(scope="module")
def refused(
    tmp_path_factory: pytest.TempPathFactory, make_launcher: Callable[[str, Path], Launcher]
) -> tuple[Launch, Path]:
    folder = tmp_path_factory.mktemp("hostile")
    launcher = make_launcher("refused", folder)
    raw = make_raw(launcher.folder / "in $(touch PWNED)\ntouch PWNED" / "raw", [0])
    inside = launcher.folder / "link"
    inside.symlink_to(raw)
    return launcher.run("--input", inside, "--output", "out", "-stub-run"), launcher.folder


def test_launch_with_hostile_folder_is_refused_at_once(refused: tuple[Launch, Path]) -> None:
    """The name is reached through a link; seen to fail without the real path in `safe_place`."""
    launch, folder = refused
    assert launch.status == 1
    assert "a folder or file is called in $(touch PWNED)\\u000atouch PWNED" in launch.text
    assert "Submitted" not in launch.text
    assert not list(folder.glob("PWNED"))
    assert not (folder / "out" / "raw.ome.zarr").exists()


def test_script_takes_hostile_names_as_data(tmp_path: Path) -> None:
    """Straight from the command line; no protection to take out, as no shell is near."""
    raw = tmp_path / "$(touch PWNED)\n; touch PWNED '\""
    make_raw(raw, [0, 1])
    script = REPOSITORY / "scripts" / "linum_generate_slice_config.py"
    done = subprocess.run(
        [sys.executable, str(script), str(raw), str(raw / "*$(touch PWNED).csv")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (raw / "*$(touch PWNED).csv").is_file()
    assert not list(tmp_path.glob("PWNED"))
