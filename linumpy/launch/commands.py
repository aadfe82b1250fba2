"""The commands of ``__main__.py``."""

from __future__ import annotations

import json
import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from linumpy.errors import LinumpyError
from linumpy.launch.claim import Claim
from linumpy.launch.discover import checked_file, checked_path, find_input, manual_transforms
from linumpy.launch.names import local_path
from linumpy.launch.publish import Publisher
from linumpy.launch.tiles import BadTilesError

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
    """Answer one request; of ``keep`` all, until there are no more."""
    if command == "keep":
        status = 0
        try:
            keep(requests, answers)
        except BaseException:
            traceback.print_exc()
            status = 1
        # Threads that still publish are not waited for.
        os._exit(status)
    asked = json.loads(requests.readline())
    _tell(answers, _answer(COMMANDS[command], asked))
    return 0


def keep(requests: TextIO, answers: TextIO) -> None:
    """Keep an output folder for a launch as long as that lives, and write what it asks for there.

    The first request is for the folder (`Claim`). Each of the next names an ``action``: ``write``
    a file, of ``text``, to ``place`` within the folder; ``publish`` in ``mode`` what is linked in a
    folder ``links`` (`Publisher`); ``finish`` that, or ``give_up``, and tell ``problems``. The
    launch's end closes `requests`.
    """
    # Sent to all processes of a terminal or a job. The launch itself may take a while to end.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    kept: list[Claim] = []
    publishers: list[Publisher] = []

    def claim(asked: dict[str, Any]) -> Answer:
        kept.append(Claim(asked))
        return {"warnings": kept[0].warnings}

    def write(asked: dict[str, Any]) -> Answer:
        kept[0].output.write(asked["place"], asked["text"])
        return {}

    def publish(asked: dict[str, Any]) -> Answer:
        publishers.append(Publisher(kept[0].output, Path(asked["links"]), asked["mode"]))
        return {}

    def finish(asked: dict[str, Any]) -> Answer:
        return {"problems": publishers[0].finish(give_up=asked["give_up"])}

    actions = {"write": write, "publish": publish, "finish": finish}
    try:
        for line in requests:
            asked = json.loads(line)
            _tell(answers, _answer(actions[asked["action"]] if kept else claim, asked))
            if not kept:
                return
    finally:
        for claimed in kept:
            claimed.release()


def _answer(action: Callable[[dict[str, Any]], Answer], asked: dict[str, Any]) -> Answer:
    try:
        return action(asked)
    except BadTilesError as error:
        return {"error": str(error), "warnings": error.details}
    except LinumpyError as error:
        return {"error": str(error)}
    except OSError as error:
        return {"error": f"{error.filename or 'the launch'}: {error.strerror}"}


def _tell(answers: TextIO, answer: Answer) -> None:
    print(json.dumps(answer), file=answers, flush=True)
