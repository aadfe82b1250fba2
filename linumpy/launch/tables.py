"""A table of slices, looked at before the first task."""

from __future__ import annotations

import csv
from collections.abc import Sequence

from linumpy.errors import InputError

_NO = ("false", "0", "0.0", "no", "n", "f")


def check_config(table: str, text: str, ids: Sequence[int]) -> None:
    """Refuse a table of slices that names one twice, or wants one that the input has not.

    Parameters
    ----------
    table
        Its path, for messages.
    text
        What it holds.
    ids
        Slices of the input.

    Raises
    ------
    InputError
        With the line.
    """
    rows = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines()) if row]
    header = rows[0] if rows else []
    if len(rows) > 1 and "slice_id" not in header:
        raise InputError(f"{table}: no column slice_id; its columns are {', '.join(header)}")
    lines: dict[int, int] = {}
    for line, row in enumerate(rows[1:], 2):
        cells = {name: row[i] if i < len(row) else "" for i, name in enumerate(header)}
        try:
            number = int(float(cells["slice_id"]))
        except (ValueError, OverflowError):
            raise InputError(
                f"{table}, line {line}: slice_id {cells['slice_id']}: expected a number"
            ) from None
        if number in lines:
            raise InputError(
                f"{table}, line {line}: a second row for slice z{number:02d}, after line "
                f"{lines[number]}"
            )
        if number not in ids and cells.get("use", "").lower() not in _NO:
            raise InputError(
                f"{table}, line {line}: slice z{number:02d} is not in the input, whose ids are "
                f"{', '.join(map(str, ids))}"
            )
        lines[number] = line


def left_out(text: str) -> set[int]:
    """Return the slices that a table, which `check_config` took, leaves out."""
    rows = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines()) if row]
    if not rows or "use" not in rows[0]:
        return set()
    number, use = rows[0].index("slice_id"), rows[0].index("use")
    return {int(float(row[number])) for row in rows[1:] if row[use:] and row[use].lower() in _NO}
