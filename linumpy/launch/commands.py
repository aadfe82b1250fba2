"""The commands of ``__main__.py``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import traceback
from collections.abc import Callable
from typing import Any, TextIO

from linumpy.launch.discover import checked_file, checked_path, find_input, manual_transforms
from linumpy.launch.keep import Keeper
from linumpy.launch.names import is_address, local_path
from linumpy.launch.parameters import help_text, problems, read_schema
from linumpy.launch.protocol import Answer, answer, tell
from linumpy.launch.space import goes_straight, needed


def _find(asked: dict[str, Any]) -> Answer:
    """Answer what there is to know before a launch begins.

    ``text`` is to be shown: the help that was asked for, or the plan of a preview. An input
    elsewhere ``is_far``: asked once more, with a listing by Nextflow.
    """
    schema, params = read_schema(asked["schema"]), asked["params"]
    if params["help"]:
        return {"text": help_text(schema)}
    if wrong := problems(params, schema):
        return {"error": "\n".join(wrong)}
    # Folders that a run itself lies in and works with.
    for what, path in asked["places"].items():
        local_path(what, path)
    if is_address(params["input"]) and "listing" not in asked:
        return {"is_far": True}
    found = find_input({**params, **asked})
    found["straight"] = goes_straight(params, found)
    found["needs"] = needed(params, found)
    return _planned(found, asked) if asked["preview"] else found


def _planned(found: Answer, asked: dict[str, Any]) -> Answer:
    """Return what was found, with what a run will take, as ``linum_plan.py`` says it."""
    params, script = asked["params"], shutil.which("linum_plan.py")
    if script is None:
        warning = (
            "no plan: linum_plan.py is not on PATH; it comes with linumpy, which must be installed "
            "where Nextflow is launched"
        )
        return {**found, "warnings": [*found["warnings"], warning]}
    device = [] if params["gpu_memory"] is None else ["--gpu_memory", params["gpu_memory"]]
    done = subprocess.run(
        [script, params["input"], "--params", "-", "--work_dir", asked["work_dir"], *device],
        input=json.dumps(params),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode:
        return {"error": done.stderr.strip()}
    return {**found, "text": done.stderr + done.stdout}


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
            Keeper(requests, answers).run()
        except BaseException:
            traceback.print_exc()
            status = 1
        # Threads that still publish are not waited for.
        os._exit(status)
    asked = json.loads(requests.readline())
    tell(answers, answer(COMMANDS[command], asked))
    return 0
