"""Findings on tiles: which were damaged, are missing, or match no neighbour."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from linumpy.io.sample_checks import LINES, flag_word
from linumpy.report.collect import SliceRecord
from linumpy.report.kinds import (
    ATTENTION,
    KINDS,
    MIN_ACCEPTED_SHARE,
    PROBLEM,
    Finding,
)
from linumpy.report.pooled_findings import along_one_axis

_NAMED_AT_MOST = 8
_TILES_NAMED = 3
# By findings of their own.
_TOLD_FLAGS = frozenset({"reflection", "shadow", LINES})
# Masked or left out, and lost until the raw file is mended.
_DAMAGED = frozenset({"garbled", "zeros", "contradicts"})


def of_tiles(slices: Sequence[SliceRecord]) -> list[Finding]:
    """Return what is to be said of tiles and their pairs."""
    found = []
    total = sum(s.pairs_total for s in slices)
    accepted = sum(s.pairs_accepted for s in slices)
    if one := along_one_axis(slices):
        found.append(one)
    elif total and accepted < MIN_ACCEPTED_SHARE * total:
        value = f"{accepted} of {total} pairs match"
        found.append(Finding(PROBLEM, KINDS["stage_axes"], "tile pairs", total, value))
    words = {
        word for s in slices for _, flags in s.flags for word in map(flag_word, flags)
    } - _TOLD_FLAGS
    masked, other = words & _DAMAGED, words - _DAMAGED
    for severity, kind, count, value in (
        (ATTENTION, "missing_tiles", lambda s: _named(s.missing_tiles), ""),
        (ATTENTION, "alone", lambda s: _named(s.alone_in_tissue), ""),
        (PROBLEM, "damaged", _tiles_with(masked), ", ".join(sorted(masked))),
        (ATTENTION, "lines", _tiles_with({LINES}), ""),
        (ATTENTION, "flagged", _tiles_with(other), ", ".join(sorted(other))),
    ):
        where, n = _counted(slices, count)
        if n:
            found.append(Finding(severity, KINDS[kind], where, n, value))
    return found


def _named(indices: Iterable[tuple[int, int]]) -> list[str]:
    return [f"({ix}, {iy})" for ix, iy in indices]


def _tiles_with(words: set[str]) -> Callable[[SliceRecord], list[str]]:
    """Return what lists the tiles that have one of these flags."""
    return lambda record: [
        f"({tile.replace(',', ', ')})"
        for tile, flags in record.flags
        if not words.isdisjoint(map(flag_word, flags))
    ]


def _counted(
    slices: Sequence[SliceRecord], listed: Callable[[SliceRecord], list[str]]
) -> tuple[str, int]:
    """Name the slices that have such tiles, and how many or, if few, which; the worst when many."""
    tiles = [(record, named) for record in slices if (named := listed(record))]
    shown = sorted(tiles, key=lambda item: -len(item[1]))[:_NAMED_AT_MOST]
    shown.sort(key=lambda item: item[0].slice_id)
    names = ", ".join(
        f"{record.name}: {' '.join(named) if len(named) <= _TILES_NAMED else len(named)}"
        for record, named in shown
    )
    rest = len(tiles) - len(shown)
    return (
        names + (f" and {rest} more slices" if rest else ""),
        sum(len(named) for _, named in tiles),
    )
