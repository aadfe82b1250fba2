"""What the launcher says last of a run that failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from linumpy.core.failures import last_words, real_paths, unstaged

ARGUMENTS = ["run", "main.nf", "--input", "raw tiles", "--output", "out"]
COMMAND = "  linum_nextflow.py run main.nf --input 'raw tiles' --output out -resume"


def report(folder: Path, printed: str, status: int = 1) -> str:
    """Return a report like Nextflow's, with what a task printed."""
    name = "reconstruct_3d:learn:learn_models (all slices)"
    return (
        f"Error executing process > '{name}'\n\nCaused by:\n"
        f"  Process `{name}` terminated with an error exit status ({status})\n\n\n"
        "Command executed:\n\n  linum_learn_models.py grids/* \\\n      --output models\n\n"
        f"Command exit status:\n  {status}\n\nCommand output:\n  (empty)\n\nCommand error:\n  …\n\n"
        f"Work dir:\n  {folder}\n\nTip: view the output\f{printed}"
    )


def test_the_scripts_own_error_comes_last_with_what_to_type(tmp_path: Path) -> None:
    printed = "WARNING odd\nlinum_learn_models.py: error: 3 tiles; expected 4"
    assert (last_words(1, report(tmp_path, printed), ARGUMENTS) or "").splitlines() == [
        "error: learn_models (all slices): 3 tiles; expected 4",
        "Next:  correct this, then go on with",
        COMMAND,
    ]
    again = [*ARGUMENTS, "-resume"]
    assert (last_words(1, report(tmp_path, printed), again) or "").splitlines()[-1] == COMMAND


@pytest.mark.parametrize(
    ("printed", "status", "cause"),
    [
        ("Traceback …\n  File …\nKeyError: 'x'\n", 1, "KeyError: 'x'"),
        ("sh: linum_x.py: command not found", 127, "sh: linum_x.py: command not found"),
        ("", 137, "stopped by SIGKILL, as when memory or time runs out"),
        ("INFO half of it", 140, "stopped by SIGUSR2, as when memory or time runs out"),
        (
            "",
            3,
            "Process `reconstruct_3d:learn:learn_models (all slices)` terminated with an "
            "error exit status (3)",
        ),
    ],
)
def test_other_ends_name_the_tasks_folder(
    tmp_path: Path, printed: str, status: int, cause: str
) -> None:
    lines = (last_words(1, report(tmp_path, printed, status), ARGUMENTS) or "").splitlines()
    assert lines[0] == f"error: learn_models (all slices): {cause}"
    assert lines[1].startswith(f"Task:  {tmp_path} ")
    assert lines[-1] == COMMAND


def test_an_error_of_the_workflow_comes_with_all_its_lines() -> None:
    told = "--inptu: there is no such parameter\n--input: missing; expected a folder"
    assert last_words(1, f"{told}\f{told}", ["run", "main.nf", "--inptu", "x"]) == (
        f"error: {told}\nNext:  correct this, then give the same command again"
    )


def test_nothing_is_added_where_nothing_is_known_or_wrong(tmp_path: Path) -> None:
    assert last_words(1, "", ARGUMENTS) is None
    assert last_words(1, "\f", ARGUMENTS) is None
    assert last_words(0, report(tmp_path, "x"), ARGUMENTS) is None


def test_staged_links_are_resolved_in_messages(tmp_path: Path) -> None:
    """Inputs are links in the folder of a task: some below folders, some to links."""
    data = tmp_path / "my data"
    (data / "tiles").mkdir(parents=True)
    (data / "shifts.csv").touch()
    task = tmp_path / "work" / "ab" / "cdef"
    (task / "in").mkdir(parents=True)
    (task / "staged" / "1").mkdir(parents=True)
    (task / "run").mkdir()
    (task / "raw").symlink_to(data / "tiles")
    (task / "in" / "shifts_xy.csv").symlink_to(data / "shifts.csv")
    (task / "staged" / "1" / "item").symlink_to(data / "tiles")
    (task / "run" / "aips").symlink_to(task / "staged" / "1" / "item")
    tiles = f"{data}/tiles"
    for said, expected in {
        "raw/tile_x00/info.txt: empty": f"{tiles}/tile_x00/info.txt: empty",
        "in/shifts_xy.csv, line 3: x": f"{data}/shifts.csv, line 3: x",
        f"{task}/raw: no tiles": f"{tiles}: no tiles",
        "'run/aips/a.png' is empty": f"'{tiles}/a.png' is empty",
        "no raw tiles in raw": f"no raw tiles in {tiles}",
        "write it to in/shifts_xy.csv or give": f"write it to {data}/shifts.csv or give",
        "rawer raw.csv raw-1 my/raw: kept": "rawer raw.csv raw-1 my/raw: kept",
    }.items():
        assert unstaged(said, task) == expected
        # What the record of the launch keeps.
        assert real_paths(said, report(task, said)) == expected
    assert unstaged("raw/x", tmp_path / "gone") == "raw/x"
    assert real_paths("raw/x", "no report of a task") == "raw/x"
