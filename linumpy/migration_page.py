"""Write the page ``docs/migration.md`` from ``linumpy/migration.json``.

Run ``python -m linumpy.migration_page docs/migration.md`` after a change of the table.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from linumpy.migration import SAME, is_alias, read_table
from linumpy.store.atomic import write_text

_INTRODUCTION = """\
<!-- Made from linumpy/migration.json by linumpy.migration_page; edit the table instead. -->

# Coming from another pipeline

Commands, flags and parameters of the most used pipeline of serial-section OCT, and what to type
here. Old flags of the same meaning are accepted, also under their old names, which `--help` does
not show. Those that mean something else, or nothing, are an error that says the same as this page.

Commands with hyphens (`linum-aip`) run the script of that name (`linum_aip.py`). Where there is no
such script, they print what to use instead. Volumes keep their names and are read as they are:
[formats.md](formats.md) says what is expected of mosaic grids of other programs.

`--use_gpu` without a GPU is an error, not a warning: nothing falls back to the CPU by itself.

Profiles `conservative`, `aggressive` and `minimal` chose how pairs of slices were trusted. Here
every pair is weighed by its confidence, and there is nothing to choose.
"""


def migration_page(table: Mapping[str, Any]) -> str:
    """Return the page as Markdown."""
    scripts = table["scripts"]
    parts = [_INTRODUCTION, _numbers(table), "## Scripts\n", "Of every script:\n"]
    parts.append(_flags(table["every_script"]))
    for name in sorted(scripts):
        entry = scripts[name]
        parts.append(f"### {name}\n")
        if "instead" in entry:
            parts.append(f"No such script here. Instead: {_code(entry['instead'])}\n")
        elif "runs" in entry:
            parts.append(f"Runs `{entry['runs']}.py`, with its flags.\n")
        if entry.get("flags"):
            parts.append(_flags(entry["flags"]))
    parts += ["## Parameters of the workflow\n", _parameters(table["params"])]
    return "\n".join(parts)


def count(rows: Mapping[str, Any]) -> dict[str, int]:
    """Return how many rows there are, and how many are taken as they are, renamed, or done else."""
    meanings = [meaning for key, meaning in rows.items() if " " not in key]
    same = sum(meaning == SAME for meaning in meanings)
    taken = sum(
        meaning != SAME and (is_alias(meaning) or meaning == "" or meaning.startswith("$"))
        for meaning in meanings
    )
    return {
        "all": len(meanings),
        "same": same,
        "renamed": taken,
        "instead": len(meanings) - same - taken,
    }


def _numbers(table: Mapping[str, Any]) -> str:
    """Return a table of counts: flags of scripts, and parameters of the workflow."""
    total = dict.fromkeys(("all", "same", "renamed", "instead"), 0)
    for entry in [{"flags": table["every_script"]}, *table["scripts"].values()]:
        for key, value in count(entry.get("flags", {})).items():
            total[key] += value
    rows = {"flags of scripts": total, "parameters of the workflow": count(table["params"])}
    lines = [
        "| | known | taken as they are | same, other name here | error that says what to type |",
        "| --- | --- | --- | --- | --- |",
        *(f"| {name} | " + " | ".join(map(str, n.values())) + " |" for name, n in rows.items()),
    ]
    return "\n".join([*lines, ""])


def _flags(rows: Mapping[str, Any]) -> str:
    lines = ["| flag | here |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| `{key}` | {_here(rows[key])} |" for key in rows), ""])


def _parameters(rows: Mapping[str, Any]) -> str:
    lines = ["| parameter | here |", "| --- | --- |"]
    for name, meaning in rows.items():
        here = f"error: is called `{meaning}`" if is_alias(meaning) else _here(meaning)
        lines.append(f"| `{name}` | {here} |")
    return "\n".join([*lines, ""])


def _here(meaning: Any) -> str:
    if isinstance(meaning, dict):
        return f"taken; `{meaning['to']}`, values joined to one: `1{meaning['join']}2`"
    if meaning == SAME:
        return "the same"
    if meaning == "":
        return "taken; done anyway"
    if meaning.startswith("$"):
        return f"taken; sets `{meaning[1:]}`, -1 for all cores"
    return f"taken; `{meaning}`" if is_alias(meaning) else _code(meaning)


def _code(text: str) -> str:
    """Set the words of a command line as code."""
    word = (
        r"(?<![\w`])(--?[\w-]+(?:=[^\s,;]+)?|\w*_[\w.]*\w|\w+\.(?:json|csv|png|html|gz|npz))(?!\w)"
    )
    return re.sub(word, r"`\1`", text).replace("|", "\\|").replace("*", "\\*")


def main(argv: Sequence[str] | None = None) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description="Write docs/migration.md from the table.")
    parser.add_argument("page", type=Path)
    args = parser.parse_args(argv)
    write_text(args.page, migration_page(read_table()), overwrite=True)


if __name__ == "__main__":
    main()
