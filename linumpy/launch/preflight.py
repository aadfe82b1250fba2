"""Preflight: name all errors of a launch at once, before anything is submitted.

The workflow asks for it (`linumpy.launch.commands`), and so does ``linum_plan.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from linumpy.core.errors import InputError
from linumpy.launch.discover import find_input
from linumpy.launch.parameters import Schema, defaults, problems
from linumpy.launch.problems import Problem, ProblemsError


def preflight(
    params: Mapping[str, Any], schema: Schema, asked: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what the input holds (`find_input`), once parameters and headers are right.

    Of raw tiles all headers and the sizes of all files are read, no sample.

    Parameters
    ----------
    params
        Parameters of the workflow by name.
    asked
        What else `find_input` takes.

    Raises
    ------
    ProblemsError
        With every wrong parameter, and everything wrong with the input.
    """
    wrong = problems(params, schema)
    told = [Problem(text) for text in wrong.values()]
    found: dict[str, Any] = {}
    if "input" not in wrong:
        default = defaults(schema)
        right = {n: default.get(n) if n in wrong else value for n, value in params.items()}
        try:
            found = find_input({**right, **asked})
        except ProblemsError as error:
            told += error.problems
        except InputError as error:
            told.append(Problem(str(error)))
    if told:
        raise ProblemsError(told)
    return found
