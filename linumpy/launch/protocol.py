"""How the workflow is answered: JSON, a line each."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TextIO

from linumpy.core.errors import LinumpyError
from linumpy.launch.tiles import BadTilesError

Answer = dict
"""``error`` ends the launch; ``warnings`` are shown. With ``more``, another line follows."""


def answer(action: Callable[[dict[str, Any]], Answer], asked: dict[str, Any]) -> Answer:
    """Return what an action answers, or its error."""
    try:
        return action(asked)
    except BadTilesError as error:
        return {"error": str(error), "warnings": error.details}
    except LinumpyError as error:
        return {"error": str(error)}
    except OSError as error:
        return {"error": f"{error.filename or 'the launch'}: {error.strerror}"}


def tell(answers: TextIO, told: Answer) -> None:
    """Write an answer at once."""
    print(json.dumps(told), file=answers, flush=True)
