"""Commands that ``__main__.py`` answers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from linumpy.core.errors import InputError
from linumpy.launch.discover import checked_file, checked_path, manual_transforms
from linumpy.launch.groups import slices_per_task
from linumpy.launch.keep import Keeper
from linumpy.launch.names import is_address, local_path
from linumpy.launch.parameters import help_text, problems, read_schema
from linumpy.launch.places import runs_here
from linumpy.launch.preflight import preflight
from linumpy.launch.problems import Problem, ProblemsError
from linumpy.launch.protocol import Answer, answer, tell
from linumpy.launch.run_progress import note_plan
from linumpy.launch.space import goes_straight, needed


def _find(asked: dict[str, Any]) -> Answer:
    """Answer what there is to know before a launch begins.

    ``text`` is to be shown: the help that was asked for, or the plan of a preview. An input
    elsewhere ``is_far``: asked once more, with a listing by Nextflow.
    """
    schema, params = read_schema(asked["schema"]), asked["params"]
    if params["help"]:
        return {"text": help_text(schema)}
    wrong = [Problem(text) for text in problems(params, schema).values()]
    # Folders that a run itself lies in and works with.
    for what, path in asked["places"].items():
        try:
            local_path(what, path)
        except InputError as error:
            raise ProblemsError([*wrong, Problem(str(error))]) from error
    if is_address(params["input"] or "") and "listing" not in asked:
        if wrong:
            raise ProblemsError(wrong)
        return {"is_far": True}
    found = preflight(params, schema, asked)
    found["straight"] = goes_straight(params, found)
    found["needs"] = needed(params, found)
    found["slices_per_task"] = slices_per_task(params, len(found["ids"]), found["bytes"])
    return _planned(found, asked)


def _planned(found: Answer, asked: dict[str, Any]) -> Answer:
    """Return what was found once the plan (``linum_plan.py``) fits the machine; shown in a preview.

    Raises
    ------
    ProblemsError
        When disks or memory do not suffice. A preview shows that instead, and a resumed run has
        written part of it already.
    """
    is_preview = asked["preview"]
    script = shutil.which("linum_plan.py")
    is_far = is_address(asked["params"]["input"]) or is_address(asked["work_dir"])
    if asked.get("stub") or (is_far and not is_preview):
        return found
    if script is None:
        warning = (
            "no plan: linum_plan.py is not on PATH; it comes with linumpy, which must be installed "
            "where Nextflow is launched"
        )
        return {**found, "warnings": [*found["warnings"], *[warning] * is_preview]}
    with tempfile.TemporaryDirectory(prefix="linumpy-") as folder:
        place = Path(folder, "plan.json")
        done = _run_planner(script, asked, place, found["slices_per_task"])
        if done.returncode:
            said = done.stderr.strip()
            if is_preview:
                return {"error": said}
            return {**found, "warnings": [*found["warnings"], f"no plan: {said}"]}
        plan = json.loads(place.read_text(encoding="utf-8"))
    if is_preview:
        return {**found, "text": done.stderr + done.stdout}
    lacking = [] if asked.get("resume") else plan["disk_problems"]
    here = asked["params"]["gpu_count"] != 0 and runs_here(asked.get("configs") or ())
    if here:
        lacking = [*lacking, *plan["memory_problems"]]
    if lacking and asked["params"]["skip_preflight"]:
        found["warnings"] = [*found["warnings"], *lacking]
    elif lacking:
        raise ProblemsError([Problem(text) for text in lacking])
    if here and asked["params"]["use_gpu"]:
        from linumpy.launch.kernels import compile_missing

        found["warnings"] = [*found["warnings"], *compile_missing()]
    note_plan(plan, asked["params"]["output"])
    return {**found, "needs": None}


def _run_planner(
    script: str, asked: dict[str, Any], place: Path, per_task: int
) -> subprocess.CompletedProcess[str]:
    params = asked["params"]
    device = [] if params["gpu_memory"] is None else ["--gpu_memory", params["gpu_memory"]]
    return subprocess.run(
        [script, params["input"], "--params", "-", "--work_dir", asked["work_dir"], *device]
        + ["--checked", "--json", str(place)],
        # Whole input and machine were looked at; the plan may be of a part.
        input=json.dumps({**params, "slices_per_task": str(per_task)}),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )


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
