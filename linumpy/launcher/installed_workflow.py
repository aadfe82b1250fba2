"""Locate the workflow that belongs to this installation, and name it for ``nextflow run``.

A wheel holds the workflow as package data (``linumpy/workflow``, see pyproject.toml). In a clone
the files lie beside the package.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from linumpy.core.errors import LinumpyError

NAME = "linumpy"
"""Word for the installed workflow where ``nextflow run`` takes a project or script."""

# Options of Nextflow that take no value. All others with one dash take one, or can.
_FLAGS = {
    "-E", "-ansi", "-bg", "-config-ignore-includes", "-disable-jobs-cancellation", "-h", "-help",
    "-latest", "-offline", "-preview", "-q", "-quiet", "-remote-debug", "-self-update", "-stdin",
    "-stub", "-stub-run", "-v", "-version", "-with-mpi", "-without-conda", "-without-docker",
    "-without-spack",
}  # fmt: skip
_SESSION = re.compile(r"last|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def workflow_script(package: Path | None = None) -> Path:
    """Return the path of ``main.nf``.

    Parameters
    ----------
    package
        Folder of the package; this one's if absent.

    Raises
    ------
    LinumpyError
        When the installation holds no workflow.
    """
    package = package or Path(__file__).resolve().parent.parent
    for folder in (package / "workflow", package.parent):
        if (folder / "main.nf").is_file():
            return folder / "main.nf"
    raise LinumpyError(
        f"{package}: holds no workflow/main.nf; expected a wheel or a clone of linumpy; "
        "install it again, or run the main.nf of a clone"
    )


def name_workflow(arguments: Sequence[str]) -> list[str]:
    """Replace the word ``linumpy`` by the installed workflow in arguments of ``nextflow``.

    Only the script of ``run`` is replaced, whatever files lie in the current folder; values of
    options stay. A folder of that name is reached as ``./linumpy``.
    """
    named = list(arguments)
    command = first_positional(named, 0)
    if command is None or named[command] != "run":
        return named
    script = first_positional(named, command + 1)
    if script is not None and named[script] == NAME:
        named[script] = str(workflow_script())
    return named


def first_positional(arguments: Sequence[str], start: int) -> int | None:
    """Return the index of the first argument that is no option and no option's value."""
    index = start
    while index < len(arguments):
        option = arguments[index]
        if not option.startswith("-") or option == "-":
            return index
        index += 1
        if index < len(arguments) and takes_value(option, arguments[index]):
            index += 1
    return None


def takes_value(option: str, value: str) -> bool:
    """Whether Nextflow reads a word as the value of the option before it."""
    if "=" in option or option in _FLAGS:
        return False
    if option == "-resume":
        return _SESSION.fullmatch(value) is not None
    return not value.startswith("-") or " " in value or re.fullmatch(r"-[\d.]*", value) is not None
