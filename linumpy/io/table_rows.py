"""Read rows and cells of CSV tables, bounded: ids, numbers, booleans."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from linumpy.core.errors import InputError
from linumpy.store.untrusted import TABLE_NBYTES, quoted, read_bounded, shown

_TRUE = frozenset({"true", "1", "1.0", "yes", "y", "t"})
_FALSE = frozenset({"false", "0", "0.0", "no", "n", "f"})

LARGEST_ID = 99_999
"""Largest slice id: lists are made of all ids between the first and the last."""

_MOST_ROWS = 100_000
_MOST_COLUMNS = 1000
_LARGEST_NUMBER = 1e15
_IDS_IN_A_MESSAGE = 50


def parse_slice_id(text: str) -> int:
    """Read a slice id such as ``1``, ``1.0`` or ``"01"``.

    Raises
    ------
    ValueError
        When the text is not a whole number from 0 to `LARGEST_ID`.
    """
    number = float(text.strip().strip("'\""))
    if not number.is_integer() or not 0 <= number <= LARGEST_ID:
        raise ValueError(f"{text!r} is not a slice id")
    return int(number)


def parse_ids(text: str) -> tuple[int, ...]:
    """Read a list of slice ids such as ``7,9-12``; empty text gives none.

    Raises
    ------
    InputError
        When a part is neither an id nor a rising range of ids.
    """
    ids: set[int] = set()
    for part in filter(None, (p.strip() for p in text.split(","))):
        low, dash, high = part.partition("-")
        try:
            first = int(low)
            last = int(high) if dash else first
        except ValueError:
            first, last = 1, 0
        if last < first:
            raise InputError(
                f"slice ids {quoted(text)}: {quoted(part)} is neither an id nor a range like 9-12"
            )
        if last > LARGEST_ID:
            raise InputError(
                f"slice ids {quoted(text)}: {quoted(part)}, expected ids up to {LARGEST_ID}"
            )
        ids.update(range(first, last + 1))
    return tuple(sorted(ids))


def read_rows(
    path: Path, required: Sequence[str], optional: Sequence[str] = ()
) -> tuple[list[str], Iterator[tuple[str, dict[str, str]]]]:
    """Return the header and, one at a time, each row's place for messages and its cells as text."""
    try:
        text = read_bounded(path, TABLE_NBYTES).decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such table") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text ({error})") from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise InputError(f"{path}: not a CSV table ({error})") from error
    if len(header) > _MOST_COLUMNS:
        raise InputError(f"{path}: {len(header)} columns, expected at most {_MOST_COLUMNS}")
    missing = [name for name in required if name not in header]
    if missing:
        wanted = ",".join([*required, *optional])
        raise InputError(
            f"{path}: lacks the column {', '.join(missing)}; "
            f"expected a comma-separated header {wanted}"
        )
    repeated = sorted(name for name, times in Counter(header).items() if times > 1)
    if repeated:
        names = ", ".join(map(shown, repeated[:8]))
        raise InputError(f"{path}: column {names} appears twice in the header")
    return header, _rows(path, reader, header)


def _rows(path: Path, reader: Any, header: list[str]) -> Iterator[tuple[str, dict[str, str]]]:
    n_rows = 0
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            where = f"{path}, line {reader.line_num}"
            if len(cells) != len(header):
                raise InputError(
                    f"{where}: {len(cells)} cells, expected {len(header)} as in the header"
                )
            n_rows += 1
            if n_rows > _MOST_ROWS:
                raise InputError(f"{where}: expected at most {_MOST_ROWS} rows")
            yield where, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise InputError(f"{path}: not a CSV table ({error})") from error


def listed_ids(ids: Iterable[int]) -> str:
    """Return ids as text for a message, the first ones of many."""
    texts = [str(slice_id) for slice_id in ids]
    more = len(texts) - _IDS_IN_A_MESSAGE
    return ", ".join(texts[:_IDS_IN_A_MESSAGE]) + (f" and {more} more" if more > 0 else "")


def number_cell(where: str, row: Mapping[str, str], name: str) -> float:
    """Return a finite number; raise `InputError` for anything else."""
    try:
        value = float(row[name])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{where}: {name} is {quoted(row[name])}, expected a finite number")
    if abs(value) > _LARGEST_NUMBER:
        raise InputError(
            f"{where}: {name} is {quoted(row[name])}, expected at most {_LARGEST_NUMBER:g}"
        )
    return value


def id_cell(where: str, row: Mapping[str, str], name: str) -> int:
    """Return a slice id; raise `InputError` for anything else."""
    try:
        return parse_slice_id(row[name])
    except (ValueError, OverflowError):
        raise InputError(f"{where}: {name} is {quoted(row[name])}, expected a slice id") from None


def truth_cell(where: str, row: Mapping[str, str], name: str) -> bool | None:
    """Return a yes or no, None where the cell is empty."""
    text = row[name].strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if text:
        raise InputError(f"{where}: {name} is {quoted(row[name])}, expected true or false")
    return None


def table_text(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as the text of a CSV file."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()
