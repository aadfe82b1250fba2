"""Rows of times and rates that a benchmark measures, and their table."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

COLUMNS = ("what", "cache", "time", "GB/s", "stored GB/s", "of limit", "note")


@dataclass
class Row:
    """One thing measured several times.

    Attributes
    ----------
    name
        What was measured.
    cache
        ``warm`` or ``cold`` page cache; empty where no file is read.
    seconds
        Every repetition, in s; rates are of their median.
    decoded_nbytes
        Bytes of array that came or went each time; 0 where there is no such thing.
    stored_nbytes
        The bytes in files that belong to them; 0 where there are none.
    of_limit
        The rate as a fraction of the machine's limit for it, or None.
    verified
        Whether the result was compared, bit for bit, with the reference.
    note
        What else a reader should know.
    extra
        Further figures.
    """

    name: str
    cache: str
    seconds: list[float]
    decoded_nbytes: int = 0
    stored_nbytes: int = 0
    of_limit: float | None = None
    verified: bool = False
    note: str = ""
    extra: dict[str, float] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """The median time, in s."""
        return statistics.median(self.seconds)

    @property
    def gb_per_s(self) -> float | None:
        """Decoded bytes over time, in 1e9 bytes a second."""
        return self.decoded_nbytes / self.median / 1e9 if self.decoded_nbytes else None

    @property
    def stored_gb_per_s(self) -> float | None:
        """Stored bytes over time, in 1e9 bytes a second."""
        return self.stored_nbytes / self.median / 1e9 if self.stored_nbytes else None

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain values, rates included."""
        return {
            "name": self.name,
            "cache": self.cache,
            "seconds": self.seconds,
            "median_s": self.median,
            "decoded_nbytes": self.decoded_nbytes,
            "stored_nbytes": self.stored_nbytes,
            "gb_per_s": self.gb_per_s,
            "stored_gb_per_s": self.stored_gb_per_s,
            "of_limit": self.of_limit,
            "verified": self.verified,
            "note": self.note,
            **self.extra,
        }


def timed(
    work: Callable[[], Any],
    repeats: int,
    *,
    before: Callable[[], Any] | None = None,
    synchronize: Callable[[], Any] | None = None,
) -> list[float]:
    """Return how long each of `repeats` calls of `work` takes, in s.

    Parameters
    ----------
    work
        What to measure; its result is dropped after the clock has stopped.
    repeats
        Number of calls.
    before
        Called before each, outside of the time.
    synchronize
        Waits for the device; called before the clock starts and before it stops.
    """
    seconds = []
    for _ in range(repeats):
        if before is not None:
            before()
        if synchronize is not None:
            synchronize()
        start = time.perf_counter()
        result = work()
        if synchronize is not None:
            synchronize()
        seconds.append(time.perf_counter() - start)
        del result
    return seconds


def same_bits(result: Any, expected: np.ndarray) -> bool:
    """Whether two host arrays agree in shape, type and every bit, NaNs included."""
    result = np.asarray(result)
    native = result.dtype.newbyteorder("=")
    if result.shape != expected.shape or native != expected.dtype.newbyteorder("="):
        return False
    word = f"u{min(8, native.itemsize)}"

    def words(array: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(array, dtype=native).reshape(-1).view(word)

    return bool(np.array_equal(words(result), words(expected)))


def best(rows: Iterable[Row]) -> Row | None:
    """Return the row with the highest rate, by decoded bytes or else by stored ones; None of none.

    The rows must all state decoded bytes, or all state stored bytes alone.
    """
    return max(rows, key=lambda row: row.gb_per_s or row.stored_gb_per_s or 0.0, default=None)


def format_table(groups: dict[str, list[dict[str, Any]]]) -> str:
    """Return rows as aligned text.

    Parameters
    ----------
    groups
        Rows as `Row.to_json` gives them, by heading.
    """
    cells = {heading: [_cells(row) for row in rows] for heading, rows in groups.items() if rows}
    everything = [COLUMNS, *(row for rows in cells.values() for row in rows)]
    widths = [max(len(row[column]) for row in everything) for column in range(len(COLUMNS) - 1)]

    def line(row: tuple[str, ...]) -> str:
        aligned = [
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        return "  ".join([*aligned, row[-1]]).rstrip()

    lines = [line(COLUMNS)]
    for heading, rows in cells.items():
        lines += ["", heading, *map(line, rows)]
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    def rate(value: float | None) -> str:
        return "" if value is None else f"{value:.2f}"

    of_limit = "" if row["of_limit"] is None else f"{100 * row['of_limit']:.0f} %"
    return (
        row["name"],
        row["cache"],
        format_time(row["median_s"]),
        rate(row["gb_per_s"]),
        rate(row["stored_gb_per_s"]),
        of_limit,
        row["note"],
    )


def format_time(seconds: float) -> str:
    """Return a time in the unit that suits it."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
