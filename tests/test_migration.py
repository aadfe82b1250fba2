"""Flags, commands and parameters of another pipeline: the table, what it is used for, its page."""

import argparse
import json
import os
import re
import runpy
import sys
import tomllib

import pytest

from linumpy import cli, migration
from linumpy.migration import SAME, is_alias, read_table, suggestion, translate
from linumpy.migration_page import count, migration_page

from .conftest import SCRIPTS

ROOT = SCRIPTS.parent
TABLE = read_table()
SCHEMA = json.loads((ROOT / "nextflow_schema.json").read_text(encoding="utf-8"))
PARAMS = {name for group in SCHEMA["$defs"].values() for name in group["properties"]}
OURS = {path.stem for path in SCRIPTS.glob("linum_*.py")}

# Current flags that are an error under their old name, as they meant something else.
MASKED = {("linum_generate_pipeline_report", "--verbose")}


def parser_of(script):
    parser = runpy.run_path(str(SCRIPTS / f"{script}.py"))["build_parser"]()
    parser.prog = f"{script}.py"
    return parser


PARSERS = {}


def options(script):
    """Return the actions of a current script by their flags."""
    if script not in PARSERS:
        PARSERS[script] = parser_of(script)
    return {flag: a for a in PARSERS[script]._actions for flag in a.option_strings}


def rows():
    """Yield current script, old flag and meaning, of all that can be typed for scripts here."""
    for name, entry in TABLE["scripts"].items():
        if "instead" not in entry:
            for flag, meaning in entry.get("flags", {}).items():
                yield entry.get("runs", name), flag, meaning


def texts():
    """Yield where it stands, the script it is about if any, and each text on what to type."""
    for name, entry in TABLE["scripts"].items():
        ours = entry.get("runs", name)
        if "instead" in entry:
            yield name, None, entry["instead"]
        for flag, meaning in entry.get("flags", {}).items():
            if isinstance(meaning, str) and " " in meaning:
                yield f"{name} {flag}", ours if ours in OURS else None, meaning
    for name, meaning in TABLE["params"].items():
        if " " in meaning:
            yield f"params {name}", None, meaning


def test_every_script_of_the_table_exists_or_names_a_replacement():
    for name, entry in TABLE["scripts"].items():
        assert ("instead" in entry) != (entry.get("runs", name) in OURS), name
        assert name not in OURS or "runs" not in entry, name


def test_flags_are_those_of_the_scripts():
    for script, key, meaning in rows():
        known, flag = options(script), key.split()[0]
        if meaning == SAME:
            assert flag in known, (script, flag)
        elif isinstance(meaning, dict):
            assert meaning["to"] in known, (script, flag)
        elif is_alias(meaning):
            assert meaning.partition("=")[0] in known, (script, flag)
            # No old flag is taken with another meaning.
            assert flag not in known, (script, flag)
        else:
            assert flag not in known or (script, flag) in MASKED, (script, flag)


def test_texts_name_scripts_and_flags_that_there_are():
    for where, script, text in texts():
        named = set(re.findall(r"(linum_\w+)\.py", text))
        assert named <= OURS, where
        known = set()
        for each in named | ({script} - {None}):
            known |= set(options(each)) if each != "linum_nextflow" else set()
        if where.startswith("params") or "linum_nextflow" in named or "to the pipeline" in text:
            known |= {f"--{name}" for name in PARAMS}
        flags = set(re.findall(r"(?<![\w-])--[a-zA-Z][\w-]*", text))
        # The text may also name the flag that it is about, and those of benchmarks.
        own = {part for word in where.split() for part in (word, f"--{word}")}
        assert flags - known - own - {"--device"} == set(), where


def values_for(action):
    """Return values that an option takes on the command line."""
    if action.nargs == 0:
        return []
    if action.choices:
        return [str(list(action.choices)[0])]
    return ["3"] if action.type in (int, float, None) else ["7"]


ALIASES = [row for row in rows() if is_alias(row[2]) or isinstance(row[2], dict)]


@pytest.mark.parametrize(("script", "key", "meaning"), ALIASES)
def test_an_old_name_does_what_the_new_one_does(script, key, meaning):
    parser = parser_of(script)
    known, (flag, *value) = options(script), key.split()
    if isinstance(meaning, dict):
        old, new = [flag, "1", "2"], [meaning["to"], meaning["join"].join("12")]
    elif value or "=" in meaning:
        old, new = [flag, *value], meaning.split("=")
    else:
        given = values_for(known[meaning])
        old, new = [flag, *given], [meaning, *given]
        if given:
            assert translate(script, [f"{flag}={given[0]}"]).argv == [f"{meaning}={given[0]}"]
    positional = ["p"] * 5
    typed = translate(script, [*positional, *old])
    assert typed.problems == []
    expected, _ = parser.parse_known_args([*positional, *new, *required(parser, new)])
    found, _ = parser.parse_known_args([*typed.argv, *required(parser, new)])
    assert vars(found) == vars(expected)
    default, _ = parser.parse_known_args([*positional, *required(parser, [])])
    assert vars(found) != vars(default) or value == ["cpu"]


def required(parser, given):
    """Return required flags that are not given."""
    flags = [a.option_strings[0] for a in parser._actions if a.option_strings and a.required]
    return [part for flag in flags if flag not in given for part in (flag, "x")]


@pytest.mark.parametrize(
    ("script", "line", "expected"),
    [
        ("linum_generate_slice_config", "--from_tiles a b --exclude 1 2 3", "a b --exclude 1,2,3"),
        ("linum_align_to_ras", "--initial-rotation 0 0 90 a", "--ras_initial_rotation|0 0 90|a"),
        ("linum_align_to_ras", "--initial-rotation=90", "--ras_initial_rotation=90"),
        ("linum_register_pairwise", "a --no_rotation", "a --registration_transform=translation"),
        ("linum_correct_bias_field", "a b --backend gpu", "a b --use_gpu"),
        ("linum_correct_bias_field", "a b --backend=cpu", "a b --no-use_gpu"),
        ("linum_crop_tiles", "-- --xmin b", "-- --xmin b"),
        ("linum_merge_slices_into_folders", "--dir raw --dry-run", "raw --dry_run"),
        ("linum_phantom", "--seed 3 out", "--seed 3 out"),
    ],
)
def test_command_lines_are_translated(script, line, expected):
    parts = [p for part in expected.split("|") for p in ([part] if "0 0" in part else part.split())]
    assert translate(script, line.split()) == (parts, [])


def test_a_number_of_processes_is_one_of_threads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert translate("linum_aip", ["a", "--n_processes", "-1", "b"]) == (["a", "b"], [])
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert translate("linum_aip", ["a", "--n_processes", "3", "b"]) == (["a", "b"], [])
    assert translate("linum_export_manual_align", ["--workers=2"]) == ([], [])
    assert os.environ["OMP_NUM_THREADS"] == "2"
    assert "expected a number" in translate("linum_aip", ["--n_processes", "x"]).problems[0]


def failed(parser, argv, capsys):
    with pytest.raises(SystemExit) as end:
        cli.parse(parser, argv)
    assert end.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(("script", "key", "meaning"), [r for r in rows() if r not in ALIASES])
def test_changed_behaviour_is_reported(script, key, meaning, capsys):
    """Seen to fail without the problems of `translate`."""
    if meaning in (SAME, "") or meaning.startswith("$"):
        return
    line = failed(parser_of(script), ["a", "b", *key.split()], capsys)
    assert line == f"{script}.py: error: {key}: {meaning}"


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("--outptu_model", "--output_model"),
        ("--auto_assess_quality", None),
        ("--whatever", None),
        ("--crop_before", None),
    ],
)
def test_only_close_names_are_suggested(typed, near, capsys):
    line = failed(parser_of("linum_crop_3d_mosaic_below_interface"), ["a", "b", typed], capsys)
    end = f"; did you mean {near}?" if near else ""
    assert line.endswith(f"error: unrecognized arguments: {typed}{end}")


def test_the_start_of_a_flag_is_not_the_flag(capsys):
    """An old flag may be a prefix of a current one. Seen to fail with `allow_abbrev`."""
    line = failed(parser_of("linum_aip"), ["a", "b", "--gpu_mem", "1GB"], capsys)
    assert "unrecognized arguments: --gpu_mem 1GB" in line


def test_parameters_are_those_of_the_workflow():
    for key, meaning in TABLE["params"].items():
        name, *value = key.split()
        if meaning == SAME:
            assert name in PARAMS, name
        elif is_alias(meaning):
            assert meaning[2:] in PARAMS and name not in PARAMS, name
        else:
            assert value or name not in PARAMS, name


def test_half_of_the_flags_are_taken_and_all_have_a_row():
    flags = [TABLE["every_script"], *(e.get("flags", {}) for e in TABLE["scripts"].values())]
    totals = [count(part) for part in flags]
    known = sum(n["all"] for n in totals)
    assert known > 200 and len(TABLE["scripts"]) > 80
    assert sum(n["same"] + n["renamed"] for n in totals) >= known / 2
    assert all(meaning is not None for part in flags for meaning in part.values())


def test_the_page_is_up_to_date():
    page = (ROOT / "docs" / "migration.md").read_text(encoding="utf-8")
    assert page == migration_page(TABLE)


def test_every_old_command_is_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {name.replace("_", "-") for name in TABLE["scripts"]}
    assert project["scripts"] == dict.fromkeys(names, "linumpy.migration:main")


def run_command(name, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", [str(SCRIPTS / name), *arguments])
    with pytest.raises(SystemExit) as end:
        migration.main()
    return end.value.code


def test_old_commands_run_scripts_or_name_a_replacement(monkeypatch, capsys):
    assert run_command("linum-fix-illumination-basic", monkeypatch, "--help") == 0
    assert "usage: linum_fix_illumination_3d.py" in capsys.readouterr().out
    assert run_command("linum-stack-slices-3d", monkeypatch, "a", "b") == 2
    assert capsys.readouterr().err == (
        "linum-stack-slices-3d: there is no such script here; "
        "linum_stack_slices_motor.py SLICES SHIFTS BRAIN\n"
    )


def test_suggestions_are_of_what_is_known():
    assert suggestion("--reslution", ["--resolution", "--registration"]) == (
        "; did you mean --resolution?"
    )
    assert suggestion("--auto_assess_quality", ["--atlas_unit"]) == ""
    assert isinstance(parser_of("linum_aip"), argparse.ArgumentParser)
