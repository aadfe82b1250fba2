"""Write the page ``docs/parameters.md`` from ``nextflow_schema.json``.

Run ``python -m linumpy.parameters_page nextflow_schema.json docs/parameters.md`` after a change
of the schema.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from linumpy.store.atomic import write_text

_INTRODUCTION = """\
<!-- Made from nextflow_schema.json by linumpy.parameters_page; edit the schema instead. -->

# Parameters

Give them on the command line (`--resolution 20`) or in a file (`-params-file params.json`).
Unknown names and values out of bounds are errors. `linum_nextflow.py run linumpy --help` shows
the same in a terminal.
"""


def parameters_page(schema: Mapping[str, Any]) -> str:
    """Return the page as Markdown: one table for each group of parameters."""
    return "\n".join([_INTRODUCTION, *(_group(group) for group in schema["$defs"].values())])


def _group(group: Mapping[str, Any]) -> str:
    rows = [_row(name, prop) for name, prop in group["properties"].items()]
    lines = [
        f"## {group['title']}",
        "",
        group["description"],
        "",
        "| parameter | type | unit | default | takes | what it does |",
        "| --- | --- | --- | --- | --- | --- |",
        *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows),
        "",
    ]
    return "\n".join(lines)


def _row(name: str, prop: Mapping[str, Any]) -> tuple[str, ...]:
    default = prop.get("default")
    return (
        f"`{name}`",
        prop["type"],
        prop.get("unit", ""),
        "" if default is None else f"`{_as_given(default)}`",
        _takes(prop),
        prop["description"],
    )


def _as_given(value: Any) -> str:
    """Return a value as one writes it on the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _takes(prop: Mapping[str, Any]) -> str:
    if "enum" in prop:
        return ", ".join(prop["enum"])
    if "errorMessage" in prop:
        return str(prop["errorMessage"])
    bounds = [
        f"{word} {prop[key]}"
        for key, word in (("minimum", "from"), ("exclusiveMinimum", "above"), ("maximum", "to"))
        if key in prop
    ]
    return " ".join(bounds)


def main(argv: Sequence[str] | None = None) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description="Write docs/parameters.md from the schema.")
    parser.add_argument("schema", type=Path)
    parser.add_argument("page", type=Path)
    args = parser.parse_args(argv)
    schema = json.loads(args.schema.read_text(encoding="utf-8"))
    write_text(args.page, parameters_page(schema))


if __name__ == "__main__":
    main()
