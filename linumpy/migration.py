"""Translate commands, flags and parameters of the field's most used pipeline.

``migration.json`` holds them all. Of a flag of a script, or a parameter of the workflow, it says:

``same``
    It is accepted here, with this meaning.
``--name`` or ``--name=value``
    It has this name here, and is accepted under the old one too. With ``join``, its values are one.
``$NAME``
    Its number is an environment variable here; -1 leaves that as it is.
nothing
    It requests the default, and is dropped.
other text
    What is done instead, and what to type. The flag is an error that says so.

A key of a flag and a value (``--backend gpu``) is about this value alone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

SAME = "same"
TABLE = Path(__file__).with_name("migration.json")

_CLOSE = 0.75


class Typed(NamedTuple):
    """A command line in today's flags, or what is wrong with it."""

    argv: list[str]
    problems: list[str]


def read_table() -> dict[str, Any]:
    """Return what ``migration.json`` holds."""
    table: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return table


def flags_of(script: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of the old flags of a script, by flag.

    Parameters
    ----------
    script
        Its name without suffix, current or former.
    """
    rows = [entry for name, entry in table["scripts"].items() if entry.get("runs") == script]
    known = [*rows, table["scripts"].get(script, {})]
    return {**table["every_script"], **{k: v for e in known for k, v in e.get("flags", {}).items()}}


def is_alias(meaning: Any) -> bool:
    """Whether an old flag is an alias of a current one."""
    return isinstance(meaning, dict) or (meaning.startswith("-") and " " not in meaning)


def translate(script: str, argv: Sequence[str]) -> Typed:
    """Return a command line with the old flags of a script in today's form.

    What follows ``--`` is left alone, and a script without old flags.
    """
    if not any(part.startswith("-") for part in argv):
        return Typed(list(argv), [])
    known = flags_of(script, read_table())
    parts = list(argv)
    problems: list[str] = []
    done: list[str] = []
    while parts:
        part = parts.pop(0)
        if part == "--":
            return Typed([*done, part, *parts], problems)
        flag, equals, value = part.partition("=")
        given = value if equals else parts[0] if parts else ""
        with_value = f"{flag} {given}"
        meaning = known.get(with_value, known.get(flag, SAME))
        if with_value in known and not equals:
            parts.pop(0)
        if meaning == SAME:
            done.append(part)
        elif isinstance(meaning, dict):
            if not equals:
                parts[:0] = [_joined(parts, meaning["join"])] if parts else []
            done += [meaning["to"] + equals + value]
        elif is_alias(meaning):
            done.append(meaning if with_value in known else meaning + equals + value)
        elif meaning.startswith("$"):
            number = value if equals else parts.pop(0) if parts else ""
            if number.isdecimal() and int(number) > 0:
                os.environ[meaning[1:]] = number
            elif number != "-1":
                problems.append(f"{flag} {number}: expected a number of 1 or more, or -1 for all")
        elif meaning:
            problems.append(f"{with_value if with_value in known else flag}: {meaning}")
    return Typed(done, problems)


def _joined(parts: list[str], separator: str) -> str:
    """Join the values of a flag from the front: the first, and numbers after it."""
    values = [parts.pop(0)]
    while parts and _is_number(parts[0]):
        values.append(parts.pop(0))
    return separator.join(values)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def suggestion(name: str, known: Sequence[str]) -> str:
    """Return a question for the known name that is close to one, or nothing."""
    from difflib import get_close_matches

    near = get_close_matches(name, known, 1, _CLOSE)
    return f"; did you mean {near[0]}?" if near else ""


def main() -> None:
    """Run the script of an old command such as ``linum-aip``, or say what to type instead."""
    import runpy

    command = Path(sys.argv[0])
    name = command.stem.replace("-", "_")
    entry = read_table()["scripts"].get(name, {})
    if "instead" in entry:
        print(f"{command.name}: there is no such script here; {entry['instead']}", file=sys.stderr)
        sys.exit(2)
    script = command.with_name(f"{entry.get('runs', name)}.py")
    sys.argv[0] = str(script)
    runpy.run_path(str(script), run_name="__main__")
