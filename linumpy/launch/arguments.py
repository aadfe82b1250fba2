"""Validate arguments of ``nextflow run`` before Java starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from linumpy.core.errors import InputError
from linumpy.launcher.installed_workflow import NAME, first_positional, takes_value, workflow_script

SCHEMA = "nextflow_schema.json"


def our_schema(arguments: Sequence[str], folder: Path) -> Path | None:
    """Return the schema of the workflow that is to run, None where it is none of linumpy.

    Parameters
    ----------
    folder
        The current one.
    """
    script = script_place(arguments)
    if script is None:
        return None
    word = arguments[script]
    path = workflow_script() if word == NAME else folder / word
    schema = (path if path.is_dir() else path.parent) / SCHEMA
    is_ours = schema.is_file() and schema.with_name("nextflow.config").is_file()
    return schema if is_ours and (path.is_dir() or path.name == "main.nf") else None


def script_place(arguments: Sequence[str]) -> int | None:
    """Return the index of the script of ``run``; None where something else is asked."""
    command = first_positional(arguments, 0)
    if command is None or arguments[command] != "run":
        return None
    return first_positional(arguments, command + 1)


def options(arguments: Sequence[str]) -> Iterator[tuple[int, str, str | None]]:
    """Yield index, name with its dashes, and value of each option; None where there is no value."""
    index = 0
    while index < len(arguments):
        option = arguments[index]
        index += 1
        if not option.startswith("-") or option == "-":
            continue
        place, value = index - 1, None
        name, equals, after = option.partition("=")
        if equals:
            value = after
        elif index < len(arguments) and takes_value(option, arguments[index]):
            value = arguments[index]
            index += 1
        yield place, name, value


def value_of(arguments: Sequence[str], name: str) -> str | None:
    """Return the last value that is given for an option."""
    found = [value for _, option, value in options(arguments) if option == name]
    return found[-1] if found else None


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Whether the help of the pipeline is asked for; then nothing else counts."""
    return any(n == "--help" and v in (None, "true") for _, n, v in options(arguments))


def refuse_one_dash(arguments: Sequence[str], parameters: Iterable[str]) -> None:
    """Refuse parameters of the pipeline that are typed like options of Nextflow.

    Raises
    ------
    InputError
        With all of them.
    """
    known = set(parameters) - {"help"}
    wrong = [name for _, name, _ in options(arguments) if name[:2] != "--" and name[1:] in known]
    if wrong:
        raise InputError(
            f"{', '.join(wrong)}: parameters of the pipeline have two dashes "
            f"({', '.join(f'-{name}' for name in wrong)}); one dash is for options of Nextflow"
        )
