"""Text of a benchmark's record: stages beside their limits, and where time went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from measure import STEPS

GAP = "-"


def format_record(record: dict[str, Any]) -> str:
    """Return everything that a run of `stages.py` measured, as tables."""
    machine, work = record["machine"], record["work"]
    parts = [
        f"{machine.get('gpu', 'no GPU')}, {machine['cores']} cores ({machine['cpu']}), files on "
        f"{machine['filesystem']}",
        f"{work['n_tiles']} tiles of {' x '.join(map(str, work['tile_shape']))} float32, "
        f"{work['decoded_nbytes'] / 1e9:.2f} GB decoded, {work['stored_nbytes'] / 1e9:.2f} GB "
        f"stored; medians of {record['repeats']}, page cache warm",
        _limits(record),
        _stages(record["stages"]),
        _where(record["stages"]),
    ]
    if record["growth"]:
        parts.append(_growth(record["growth"]))
    if record["plain"]:
        parts.append(_plain(record["plain"]))
    if record["fused_against_chained"]:
        found = record["fused_against_chained"]
        same = "the same bits" if found["same_bits"] else f"differ by up to {found['largest']:.1e}"
        parts.append(f"fused and chained slice: {same}")
    if record["missing"]:
        lines = [f"{row['name']}: {row['reason']}" for row in record["missing"]]
        parts.append("\n".join(["not measured", *lines]))
    return "\n\n".join(parts)


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return aligned columns under a title; the first and the last are aligned to the left."""
    widths = [max(len(row[n]) for row in (header, *rows)) for n in range(len(header))]
    last = len(header) - 1
    lines = [title]
    for row in (header, *rows):
        cells = [
            cell.ljust(width) if n in (0, last) else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def seconds(value: float | None) -> str:
    """Return a time in s, to a hundredth."""
    return GAP if value is None else f"{value:.2f}"


def _megabytes(value: float | None) -> str:
    return GAP if value is None else f"{value / 1e6:.0f}"


def _percent(value: float | None) -> str:
    return GAP if value is None else f"{100 * value:.0f} %"


def _limits(record: dict[str, Any]) -> str:
    rows = [
        (kind, f"{found['gb_per_s']:.2f}", found["name"]) for kind, found in record["best"].items()
    ]
    return table("limits of this machine", ("limit", "GB/s", "reached by"), rows)


def _stages(stages: dict[str, dict[str, Any]]) -> str:
    header = ["stage", "s", "start-up", "beyond", "GB/s", "of limit", "x ideal"]
    header += ["MB", "GPU MB", "limit"]
    rows = []
    for name, found in stages.items():
        bound = found["bound"]
        rows.append(
            (
                name,
                seconds(found["seconds"]),
                seconds(found["start_up_s"]),
                seconds(found["beyond_s"]),
                f"{found['gb_per_s']:.2f}",
                _percent(bound and bound["fraction"]),
                seconds(found["over_ideal"]),
                _megabytes(found["peak_nbytes"]),
                _megabytes(found["device_nbytes"]),
                f"{bound['kind']} {bound['seconds']:.2f} s" if bound else GAP,
            )
        )
    note = (
        "stages as whole processes (start-up: on four tiny tiles; GB/s: decoded bytes in and out "
        "over all the time; of limit:\nthe slowest part at the machine's limit over the time "
        "beyond start-up; x ideal: time over that until the first tile\nand the longest step)"
    )
    return table(note, header, rows)


def _where(stages: dict[str, dict[str, Any]]) -> str:
    noted = {name: found["where"] for name, found in stages.items() if found["where"]}
    if not noted:
        return "where the time went: no stage wrote a time line"
    steps = [step for step in STEPS if any(step in where for where in noted.values())]
    rows = [
        (name, *(_step(where.get(step)) for step in steps), "") for name, where in noted.items()
    ]
    title = (
        "where the time went (s in which any thread was at it / in which no other step ran; on the "
        "CPU reading\nincludes decoding, writing encoding)"
    )
    return table(title, ("stage", *steps, ""), rows)


def _step(found: dict[str, float] | None) -> str:
    return GAP if found is None else f"{found['covered_s']:.2f}/{found['alone_s']:.2f}"


def _growth(growth: dict[str, Any]) -> str:
    counts = growth["n_tiles"]
    header = ("stage", *(f"{n} tiles" for n in counts), *("growth" for _ in counts[1:]), "GPU MB")
    rows = []
    for name, found in growth["stages"].items():
        memory = " ".join(_megabytes(value) for value in found["device_nbytes"])
        factors = [GAP if f is None else f"{f:.2f}" for f in found["factors"]]
        rows.append((name, *map(seconds, found["seconds"]), *factors, memory))
    title = "growth (s; and the time beyond start-up over that of half as many tiles)"
    return table(title, header, rows)


def _plain(plain: dict[str, dict[str, Any]]) -> str:
    header = ("stage", "plain s", "linumpy s", "times", "plain MB", "linumpy MB", "memory", "note")
    rows = []
    for name, found in plain.items():
        note = ""
        if found["learning_s"]:
            note = f"{found['speed_without_learning']:.2f} times, had the models been given"
        rows.append(
            (
                name,
                seconds(found["seconds"]),
                seconds(found["linumpy_seconds"]),
                f"{found['speed']:.2f}",
                _megabytes(found["peak_nbytes"]),
                _megabytes(found["linumpy_peak_nbytes"]),
                f"{found['memory']:.2f}",
                note,
            )
        )
    return table("beside the plain implementation", header, rows)
