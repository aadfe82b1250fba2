"""The commands of ``__main__.py``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from linumpy.errors import LinumpyError
from linumpy.launch.discover import checked_file, checked_path, find_input, manual_transforms
from linumpy.launch.names import local_path

Answer = dict


def _own_places(asked: dict[str, Any]) -> Answer:
    """Check the names of folders that a run itself lies in and works with."""
    for what, path in asked["places"].items():
        local_path(what, path)
    return {}


def _find(asked: dict[str, Any]) -> Answer:
    _own_places(asked)
    return find_input(asked)


def _path(asked: dict[str, Any]) -> Answer:
    path, value = checked_path(asked["option"], asked["text"], folder=asked["folder"])
    return {"path": str(path), "digest": value}


def _manual(asked: dict[str, Any]) -> Answer:
    folder, value = manual_transforms(asked["text"], asked["ids"])
    return {"path": str(folder), "digest": value}


def _file(asked: dict[str, Any]) -> Answer:
    return {"path": str(checked_file(asked["option"], asked["text"]))}


COMMANDS: dict[str, Callable[[dict[str, Any]], Answer]] = {
    "find": _find,
    "path": _path,
    "manual": _manual,
    "file": _file,
}


def main(command: str, requests: TextIO, answers: TextIO) -> int:
    """Answer one request."""
    asked = json.loads(requests.readline())
    try:
        answer = COMMANDS[command](asked)
    except LinumpyError as error:
        answer = {"error": str(error)}
    except OSError as error:
        place = Path(error.filename) if error.filename else "the launch"
        answer = {"error": f"{place}: {error.strerror}"}
    print(json.dumps(answer), file=answers, flush=True)
    return 0
