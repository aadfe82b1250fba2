"""Choose the session that a bare ``-resume`` takes up: the last that ran tasks for the output.

Nextflow by itself takes the last launch of the folder, also one that only printed its help, was a
preview, or was refused, so that everything is computed again.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from linumpy.launch.arguments import options, value_of

_SESSION = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Past(NamedTuple):
    """A launch of the past, as Nextflow's history has it."""

    time: str
    run_name: str
    session: str
    command: list[str]


class Resumed(NamedTuple):
    """Arguments with the session to resume, and what to print about it."""

    arguments: list[str]
    notes: list[str]


def resolve_resume(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> Resumed:
    """Name the session that a bare ``-resume`` means.

    Parameters
    ----------
    arguments
        Of ``nextflow``, as the user typed them.
    folder
        The one of the launch; ``NXF_CACHE_DIR`` may name another place for Nextflow's cache.

    Returns
    -------
    The arguments, as they are where no launch of this folder ran a task.
    """
    place = next((i for i, name, value in options(arguments) if (name, value) == _BARE), None)
    if place is None:
        return Resumed(list(arguments), [])
    cache = Path(environment.get("NXF_CACHE_DIR") or folder / ".nextflow")
    past = read_history(cache / "history")
    ran = [each for each in past if _ran_tasks(cache, each)]
    if not ran:
        return Resumed(list(arguments), [])
    mine = _runs_into(folder / output_of(arguments, folder))
    found = ([each for each in ran if each.run_name in mine] or ran)[-1]
    notes = []
    if found.session != past[-1].session:
        notes.append(f"-resume takes up the launch of {found.time}, session {found.session}")
    file = value_of(found.command, "-params-file")
    if file is not None and value_of(arguments, "-params-file") is None:
        notes.append(
            f"warning: the launch that is taken up had -params-file {file}, this one has none; "
            "its parameters are not taken over"
        )
    return Resumed([*arguments[: place + 1], found.session, *arguments[place + 1 :]], notes)


_BARE = ("-resume", None)


def read_history(path: Path) -> list[Past]:
    """Return all launches, the last one last; none where there is no history."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        cells = line.split("\t")
        if len(cells) >= 7 and _SESSION.fullmatch(cells[5]):
            found.append(Past(cells[0], cells[2], cells[5], _words(cells[6])))
    return found


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def _ran_tasks(cache: Path, past: Past) -> bool:
    """Whether a launch noted any task in Nextflow's cache."""
    try:
        return (cache / "cache" / past.session / f"index.{past.run_name}").stat().st_size > 0
    except OSError:
        return False


def output_of(arguments: Sequence[str], folder: Path) -> str:
    """Return the output folder that the command line or its file of parameters gives."""
    given = value_of(arguments, "--output")
    file = value_of(arguments, "-params-file")
    if given is None and file is not None:
        given = _output_of_file(folder / file)
    return given or "results"


def _output_of_file(path: Path) -> str | None:
    """Return what a file of parameters, JSON or plain YAML, says of the output."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    try:
        return str(json.loads(text)["output"])
    except (KeyError, TypeError):
        return None
    except ValueError:
        match = re.search(r"""^output\s*:\s*["']?([^"'\n#]+)""", text, re.MULTILINE)
        return match[1].strip() if match else None


def _runs_into(output: Path) -> set[str]:
    """Return the names of the runs that left their record in an output folder."""
    found = set()
    for path in (output / "pipeline_info").glob("run_*.json"):
        try:
            found.add(str(json.loads(path.read_text(encoding="utf-8"))["run_name"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found
