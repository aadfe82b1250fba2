"""Validate parameters as the user gave them, and write the text of ``--help``."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from linumpy.launch.names import shown
from linumpy.migration import SAME, is_alias, read_table, suggestion

Schema = dict

_WORDS = {
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "string": "text on one line",
}
_TYPES: dict[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
}
_OF_NEXTFLOW = ("resume", "profile", "preview", "stub-run", "params-file", "work-dir", "name")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def read_schema(path: str) -> Schema:
    """Return what ``nextflow_schema.json`` holds."""
    return dict(json.loads(Path(path).read_text(encoding="utf-8")))


def problems(given: Mapping[str, Any], schema: Schema) -> dict[str, str]:
    """Return everything wrong with parameters, a line by name.

    Parameters
    ----------
    given
        Values by name, of the types that the schema gives them where they have one.
    schema
        From `read_schema`.
    """
    groups = schema["$defs"].values()
    known = {name: rule for group in groups for name, rule in group["properties"].items()}
    required = [name for group in groups for name in group.get("required", ())]
    former = read_table()["params"]
    found = {n: f"--{shown(n)}: {_instead(n, known, former)}" for n in given if n not in known}
    for name in required:
        if given.get(name) is None:
            description = known[name]["description"]
            told = description[0].lower() + description[1:]
            found[name] = f"--{name}: missing; expected {told}"
    for name, rule in known.items():
        value = given.get(name)
        if value is not None and not _is_valid(value, rule):
            told = former.get(f"{name} {_text(value)}")
            expected = _expectation(rule) + (f"; {told}" if told else "")
            found[name] = f"--{name} {shown(_text(value))}: expected {expected}"
    return found


def defaults(schema: Schema) -> dict[str, Any]:
    """Return the default of each parameter, None where it has none."""
    groups = schema["$defs"].values()
    return {n: rule.get("default") for group in groups for n, rule in group["properties"].items()}


def _is_valid(value: Any, rule: Mapping[str, Any]) -> bool:
    if type(value) not in _TYPES[rule["type"]]:
        return False
    # A line break would also end Nextflow's own note of the launch, which -resume reads.
    if isinstance(value, str) and _CONTROL.search(value):
        return False
    return (
        ("enum" not in rule or value in rule["enum"])
        and ("pattern" not in rule or bool(re.fullmatch(rule["pattern"], value, re.ASCII)))
        and ("minimum" not in rule or value >= rule["minimum"])
        and ("maximum" not in rule or value <= rule["maximum"])
        and ("exclusiveMinimum" not in rule or value > rule["exclusiveMinimum"])
    )


def _expectation(rule: Mapping[str, Any]) -> str:
    """Return what a parameter takes, in words."""
    if "enum" in rule:
        return f"one of {', '.join(rule['enum'])}"
    if "errorMessage" in rule:
        return str(rule["errorMessage"])
    bounds = {"minimum": "from {}", "exclusiveMinimum": "above {}", "maximum": "to {}"}
    words = [
        text.format(rule[key]) for key, text in {**bounds, "unit": "({})"}.items() if key in rule
    ]
    return " ".join([_WORDS[rule["type"]], *words])


def _instead(name: str, known: Iterable[str], former: Mapping[str, str]) -> str:
    """Return what to type instead of a name that is not known."""
    if name in _OF_NEXTFLOW:
        return f"an option of Nextflow has one dash: -{name}"
    plain = name.replace("-", "_")
    told = former.get(plain, SAME)
    if told != SAME:
        return f"is called {told} here" if is_alias(told) else told
    near = suggestion(f"--{plain.lower()}", [f"--{name}" for name in known])
    return f"there is no such parameter{near}"


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


def help_text(schema: Schema) -> str:
    """Return all parameters for a terminal, as wide as ``COLUMNS`` says."""
    width = min(max(shutil.get_terminal_size((100, 24)).columns, 72), 110)
    groups = schema["$defs"].values()
    indent = max(len(name) for group in groups for name in group["properties"]) + 6
    parts = [
        _wrapped(f"{schema['title']}: {schema['description']}", width, ""),
        "  linum_nextflow.py run linumpy --input FOLDER --output FOLDER [-resume]",
    ]
    for group in groups:
        lines = [
            f"  --{name}".ljust(indent) + _wrapped(_note(rule), width - indent, " " * indent)
            for name, rule in group["properties"].items()
        ]
        parts.append("\n".join([f"{group['title']}: {group['description']}", *lines]))
    return "\n\n".join(parts) + "\n"


def _wrapped(text: str, width: int, indent: str) -> str:
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return f"\n{indent}".join(lines)


def _note(rule: Mapping[str, Any]) -> str:
    takes = f"One of {', '.join(rule['enum'])}. " if "enum" in rule else ""
    kind = ", ".join([rule["type"], *([rule["unit"]] if "unit" in rule else [])])
    default = "" if rule.get("default") is None else f"; default: {_text(rule['default'])}"
    return f"{rule['description']} {takes}[{kind}{default}]"
