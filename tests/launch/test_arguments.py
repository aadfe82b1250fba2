"""What is looked at before Java starts: help, forgotten dashes, and the session to resume."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from linumpy.core.errors import InputError
from linumpy.launch.arguments import asks_for_help, our_schema, refuse_one_dash, value_of
from linumpy.launch.parameters import help_text, problems, read_schema
from linumpy.launch.sessions import resolve_resume
from tests.launch.asking import SCHEMA
from tests.pipeline.conftest import REPOSITORY


@pytest.mark.parametrize(
    ("command", "is_ours"),
    [
        ("run linumpy --help", True),
        ("-log x.log run -resume linumpy", True),
        (f"run {REPOSITORY}/main.nf", True),
        (f"run {REPOSITORY}", True),
        ("run other/main.nf", False),
        ("run nf-core/rnaseq --help", False),
        ("log last -f name", False),
        ("", False),
    ],
)
def test_only_this_workflow_is_looked_at(command: str, is_ours: bool, tmp_path: Path) -> None:
    assert (our_schema(command.split(), tmp_path) == SCHEMA) is is_ours
    assert our_schema(command.split(), tmp_path) in (SCHEMA, None)


def test_forgotten_dashes_are_all_named() -> None:
    """Seen to fail with two of them let through."""
    known = ("input", "output", "slices", "resolution")
    typed = "run linumpy -input RAW -output=out --slices -resume -c resolution -profile test"
    with pytest.raises(InputError) as error:
        refuse_one_dash(typed.split(), known)
    assert str(error.value) == (
        "-input, -output: parameters of the pipeline have two dashes (--input, --output); one dash "
        "is for options of Nextflow"
    )
    refuse_one_dash(["run", "linumpy", "--input", "-input", "-w", "output", "-resume"], known[2:])


def test_one_dash_too_many_is_reported() -> None:
    """Seen to fail with another text."""
    rules = read_schema(str(SCHEMA))
    given = {"input": "raw", "output": "out", "resume": None, "profile": None}
    assert list(problems(given, rules).values()) == [
        "--resume: an option of Nextflow has one dash: -resume",
        "--profile: an option of Nextflow has one dash: -profile",
    ]


def test_values_of_options() -> None:
    typed = [
        "run",
        "linumpy",
        "--output",
        "a",
        "-params-file=p.json",
        "--help",
        "--output",
        "b",
        "-resume",
    ]
    assert value_of(typed, "--output") == "b"
    assert value_of(typed, "-params-file") == "p.json"
    assert value_of(typed, "-resume") is None
    assert asks_for_help(typed)
    assert not asks_for_help(["run", "linumpy", "--help", "false", "--input", "--help=no"])


def test_help_takes_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text is the workflow's own, and nothing is on PATH."""
    monkeypatch.setenv("COLUMNS", "90")
    done = subprocess.run(
        [sys.executable, REPOSITORY / "scripts/linum_nextflow.py", "run", "linumpy", "--help"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == help_text(read_schema(str(SCHEMA))).strip()
    assert list(tmp_path.iterdir()) == []


SESSIONS = [f"{n}{n}{n}{n}{n}{n}{n}{n}-0000-0000-0000-000000000000" for n in range(5)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a launch folder: a trial, a run, a help, a preview, and a refused launch."""
    launches = [
        ("trial", "run linumpy --input RAW --output trial -params-file p.json", 340),
        ("whole", "run linumpy --input RAW --output RESULTS", 1700),
        ("helped", "run linumpy --help", 0),
        ("viewed", "run linumpy --input RAW --output RESULTS -preview", 0),
        ("refused", "run linumpy --input RAW --output trial --resolution 0", None),
    ]
    history = ""
    for session, (name, command, nbytes) in zip(SESSIONS, launches, strict=True):
        history += (
            f"2026-11-24 07:00:00\t1s\t{name}\tOK\t0\t{session}\tlinum_nextflow.py {command}\n"
        )
        if nbytes is not None:
            cache = tmp_path / ".nextflow/cache" / session
            cache.mkdir(parents=True)
            (cache / f"index.{name}").write_bytes(bytes(nbytes))
    (tmp_path / ".nextflow/history").write_text(history)
    for output, name in (("trial", "trial"), ("RESULTS", "whole"), ("RESULTS", "gone")):
        info = tmp_path / output / "pipeline_info"
        info.mkdir(parents=True, exist_ok=True)
        record = {"run_name": name, "session": "of no matter"}
        (info / f"run_{name}.json").write_text(json.dumps(record))
    (tmp_path / "RESULTS/pipeline_info/run_spoilt.json").write_text("{")
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "taken"),
    [
        ("run linumpy --input RAW --output RESULTS -resume", 1),
        ("run linumpy -resume --input RAW --output trial -params-file p.json", 0),
        # Nothing was made there: what the last launch that ran tasks has finished.
        ("run linumpy --input RAW --output new -resume", 1),
        ("run linumpy --input RAW -resume -params-file out.yaml", 0),
        ("run linumpy --input RAW -resume -params-file out.json", 0),
    ],
)
def test_a_bare_resume_takes_the_last_launch_that_ran_tasks(
    folder: Path, typed: str, taken: int
) -> None:
    """Seen to fail where help, preview and refused launches count, and where outputs do not."""
    (folder / "out.yaml").write_text("slices: 1-2\noutput: 'trial'  # small\n")
    (folder / "out.json").write_text('{"slices": "1-2", "output": "trial"}')
    words = typed.split()
    found = resolve_resume(words, folder, {})
    place = words.index("-resume") + 1
    assert found.arguments == [*words[:place], SESSIONS[taken], *words[place:]]
    assert found.notes[0] == (
        f"-resume takes up the launch of 2026-11-24 07:00:00, session {SESSIONS[taken]}"
    )


def test_omitted_parameter_file_is_reported(folder: Path) -> None:
    typed = ["run", "linumpy", "--input", "RAW", "--output", "trial", "-resume"]
    assert resolve_resume(typed, folder, {}).notes[1:] == [
        "warning: the launch that is taken up had -params-file p.json, this one has none; its "
        "parameters are not taken over"
    ]


def test_other_launches_stay_as_they_are(folder: Path, tmp_path: Path) -> None:
    for typed in (
        "run linumpy --input RAW --output RESULTS",
        f"run linumpy -resume {SESSIONS[2]} --input RAW",
        "run linumpy -resume last --input RAW",
    ):
        assert resolve_resume(typed.split(), folder, {}) == (typed.split(), [])
    typed = "run linumpy --input RAW -resume"
    assert resolve_resume(typed.split(), tmp_path / "empty", {}) == (typed.split(), [])
    elsewhere = {"NXF_CACHE_DIR": str(folder / ".nextflow")}
    found = resolve_resume(typed.split(), tmp_path / "empty", elsewhere)
    assert found.arguments[-1] == SESSIONS[1]
