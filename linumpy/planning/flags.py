"""Parameters of the pipeline as flags of a script."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from linumpy.launch.parameters import read_schema
from linumpy.launcher.installed_workflow import workflow_script
from linumpy.planning.plan_params import DEFAULTS

FOR_THE_INPUT = ("exclude_first_slices", "skip_bad_slices", "skip_preflight")
"""Parameters that decide what of an input counts, beside those that the plan rests on."""


def pipeline_schema() -> dict[str, Any]:
    """Return what the workflow's ``nextflow_schema.json`` holds."""
    return read_schema(str(workflow_script().with_name("nextflow_schema.json")))


def add_pipeline_flags(parser: argparse.ArgumentParser) -> None:
    """Add the parameters that a plan rests on, as the workflow takes them; None when not given."""
    groups = pipeline_schema()["$defs"].values()
    rules = {name: rule for group in groups for name, rule in group["properties"].items()}
    group = parser.add_argument_group("parameters of the pipeline")
    present = {action.dest for action in parser._actions} | {"use_gpu", "gpu_count"}
    for name in [name for name in (*DEFAULTS, *FOR_THE_INPUT) if name not in present]:
        rule = rules[name]
        unit = f" ({rule['unit']})" if "unit" in rule else ""
        options: dict[str, Any] = {"type": _TYPES[rule["type"]]}
        if rule["type"] == "boolean":
            options |= {"nargs": "?", "const": True, "metavar": "true|false"}
        else:
            options["metavar"] = rule["type"].upper()
        text = rule["description"].rstrip(".") + unit
        group.add_argument(f"--{name}", help=text.replace("%", "%%"), **options)


def given_flags(args: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters that the command line gives."""
    names = (*DEFAULTS, *FOR_THE_INPUT)
    return {name: getattr(args, name) for name in names if getattr(args, name, None) is not None}


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected true or false")
    return text == "true"


_TYPES: dict[str, Callable[[str], Any]] = {
    "boolean": _boolean,
    "integer": int,
    "number": float,
    "string": str,
}
