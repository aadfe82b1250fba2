"""Validate a table of slices before the first task."""

from __future__ import annotations

import csv
from collections.abc import Sequence

from linumpy.core.errors import InputError

_NO = ("false", "0", "0.0", "no", "n", "f")


def check_config(table: str, text: str, ids: Sequence[int]) -> set[int]:
    """Refuse a table of slices that names one twice, or wants one that the input has not.

    Parameters
    ----------
    table
        Its path, for messages.
    text
        What it holds.
    ids
        Slices of the input.

    Returns
    -------
    The slices that it leaves out.

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
    unused: set[int] = set()
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
        if cells.get("use", "").lower() in _NO:
            unused.add(number)
        elif number not in ids:
            raise InputError(
                f"{table}, line {line}: slice z{number:02d} is not in the input, whose ids are "
                f"{', '.join(map(str, ids))}"
            )
        lines[number] = line
    return unused
