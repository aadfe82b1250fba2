"""Findings of a run that a person should look at, worst first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from linumpy.quality.run import Run
from linumpy.report.collect import SliceRecord, id_ranges
from linumpy.report.labels import label

PROBLEM, ATTENTION, NOTE = "problem", "attention", "note"
SEVERITIES = (PROBLEM, ATTENTION, NOTE)
MIN_ACCEPTED_SHARE = 0.3
LOW_CONFIDENCE = 0.6
WORST_NAMED = 5
"""Problems that are told at the top of the page, and by the terminal when a run ends."""
_NAMED_AT_MOST = 8
_OF_STATUS = {"error": PROBLEM, "warning": ATTENTION}
# Shown with the pairs or tiles themselves.
_TOLD_ELSEWHERE = frozenset({"held_by_stage_share", "accepted_share"})


# Masked or left out, and lost until the raw file is mended.
_DAMAGED = frozenset({"garbled", "zeros", "contradicts"})


@dataclass(frozen=True)
class Finding:
    """One remark: how grave, on what, and what it says."""

    severity: str
    where: str
    text: str


def find_issues(run: Run, slices: Sequence[SliceRecord]) -> list[Finding]:
    """Collect remarks on a run, gravest first.

    Parameters
    ----------
    slices
        From `collect.slice_records`.
    """
    found = [
        *_brain(run),
        *_accuracy(run.accuracy or {}),
        *_slices(slices),
        *_tiles(slices),
        *_slice_pairs(run),
        *_tables(run),
        *_metrics(run),
    ]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def summary_of(findings: Sequence[Finding]) -> str:
    """Return how many findings there are, in words: what the terminal says when a run ends."""
    problems = sum(f.severity == PROBLEM for f in findings)
    others = sum(f.severity == ATTENTION for f in findings)
    parts = [
        f"{n} {word}{'' if n == 1 else 's'}"
        for n, word in ((problems, "problem"), (others, "warning"))
        if n
    ]
    return ", ".join(parts) or "no problems"


def _brain(run: Run) -> list[Finding]:
    if run.brain_path is not None:
        return []
    return [Finding(PROBLEM, "brain", "There is no brain volume in this folder.")]


def _accuracy(figures: Mapping[str, Any]) -> list[Finding]:
    found = []
    for name, figure in figures.items():
        if figure.get("passed") is False:
            text = f"Accuracy target missed: {figure['value']:.3g} {figure['unit']}"
            found.append(Finding(PROBLEM, label(name), f"{text}, target {figure['target']:g}."))
    return found


def _slices(slices: Sequence[SliceRecord]) -> list[Finding]:
    found = []
    gaps = [s.slice_id for s in slices if not (s.present or s.left_out or s.gap_is_told)]
    if gaps:
        text = "No data: the brain has a gap here."
        found.append(Finding(PROBLEM, id_ranges(gaps), text))
    for record in slices:
        if record.left_out:
            text = f"Left out of the brain: {record.left_out}."
            found.append(Finding(ATTENTION, record.name, text))
        reason = record.exclude_reason.replace("_", " ")
        absent = f"Left out ({reason})" if reason not in ("", "missing") else "Not there"
        if record.interpolated:
            text = f"{absent}: interpolated from its neighbours ({record.interpolated})."
            found.append(Finding(ATTENTION, record.name, text))
        if record.covered:
            text = f"{absent}; the deeper part of the slice above shows its tissue."
            found.append(Finding(ATTENTION, record.name, text))
        elif record.not_interpolated:
            why = record.not_interpolated.replace("_", " ")
            text = f"{absent}, and its neighbours do not tell what was: {why}."
            found.append(Finding(PROBLEM, record.name, text))
    moved = [s.slice_id for s in slices if s.rehomed]
    if moved:
        text = "The stage told a wrong place, or lost its zero, here; see the drift of slices."
        found.append(Finding(ATTENTION, id_ranges(moved), text))
    return found


def _tiles(slices: Sequence[SliceRecord]) -> list[Finding]:
    found = []
    total = sum(s.pairs_total for s in slices)
    accepted = sum(s.pairs_accepted for s in slices)
    if total and accepted < MIN_ACCEPTED_SHARE * total:
        found.append(
            Finding(
                PROBLEM,
                "tile pairs",
                f"Only {accepted} of {total} pairs match. Check the stage axes "
                "(stage_to_array) and the overlap; see the figure on stage axes.",
            )
        )
    holes = _counted(slices, lambda s: len(s.missing_tiles))
    if holes:
        found.append(Finding(ATTENTION, holes, "Tiles that were not imaged: holes in the slice."))
    alone = _counted(slices, lambda s: s.prior_only)
    if alone:
        text = "Tiles that match no neighbour and stay where the stage put them."
        found.append(Finding(ATTENTION, alone, text))
    damaged = _counted(slices, lambda s: sum(bool(_words(ws) & _DAMAGED) for _, ws in s.flags))
    if damaged:
        words = sorted(set().union(*(_words(ws) for s in slices for _, ws in s.flags)) & _DAMAGED)
        text = (
            f"Tiles masked or left out for what they hold ({', '.join(words)}): see the raw files."
        )
        found.append(Finding(PROBLEM, damaged, text))
    flagged = _counted(slices, lambda s: sum(bool(_words(ws) - _DAMAGED) for _, ws in s.flags))
    if flagged:
        words = sorted(set().union(*(_words(ws) for s in slices for _, ws in s.flags)) - _DAMAGED)
        found.append(Finding(ATTENTION, flagged, f"Tiles with flags: {', '.join(words)}."))
    rejected = _counted(slices, lambda s: s.pairs_total - s.pairs_accepted)
    if rejected:
        text = "Tile pairs rejected: too little in common, or at odds with the others."
        found.append(Finding(NOTE, rejected, text))
    return found


def _words(flags: Sequence[str]) -> set[str]:
    """Return flags without their counts."""
    return {flag.split(":")[0] for flag in flags}


def _counted(slices: Sequence[SliceRecord], count: Callable[[SliceRecord], int]) -> str:
    """Name the slices where something was counted, with the counts; the worst when many."""
    numbers = [(record, count(record)) for record in slices if count(record)]
    if not numbers:
        return ""
    shown = sorted(numbers, key=lambda item: -item[1])[:_NAMED_AT_MOST]
    shown.sort(key=lambda item: item[0].slice_id)
    names = ", ".join(f"{record.name}: {n}" for record, n in shown)
    rest = len(numbers) - len(shown)
    total = sum(n for _, n in numbers)
    return names + (f" and {rest} more slices ({total} in all)" if rest else "")


def _slice_pairs(run: Run) -> list[Finding]:
    registration = run.slice_registration
    if registration is None:
        return []
    found = []
    matched = {
        int(pair[end])
        for pair in registration.pairs
        if pair["accepted"]
        for end in ("fixed_id", "moving_id")
    }
    alone = [f"z{i:02d}" for i in sorted(registration.offset_um) if i not in matched]
    if alone and len(registration.offset_um) > 1:
        text = (
            "Slices that match no other slice and stay where the motors put them. Is the depth "
            "kept (crop_interface_out_depth) larger than the slicing interval?"
        )
        found.append(Finding(PROBLEM, ", ".join(alone), text))
    for pair in registration.pairs:
        where = f"z{int(pair['fixed_id']):02d} – z{int(pair['moving_id']):02d}"
        confidence = float(pair.get("confidence") or 0)
        if not pair.get("accepted", True):
            text = (
                f"Slices could not be matched (confidence {confidence:.2f}): "
                "the motor position is used."
            )
            found.append(Finding(ATTENTION, where, text))
        elif confidence < LOW_CONFIDENCE:
            text = f"Slices match with low confidence ({confidence:.2f})."
            found.append(Finding(ATTENTION, where, text))
        elif pair.get("z_measured") is False:
            text = "Their distance in depth was not clear: the slicing interval is used."
            found.append(Finding(NOTE, where, text))
    return found


def _metrics(run: Run) -> list[Finding]:
    """Tell which figures of stages lie beyond their limits, slices with the same one together."""
    slices: dict[tuple[str, str, str], list[tuple[int | None, float]]] = {}
    found = []
    for (step, slice_id), record in run.metrics.items():
        for name, metric in record["metrics"].items():
            if metric["status"] in _OF_STATUS and name not in _TOLD_ELSEWHERE:
                text = f"{metric['description']} ({step})"
                key = (_OF_STATUS[metric["status"]], text, metric["unit"])
                slices.setdefault(key, []).append((slice_id, float(metric["value"])))
        where = step if slice_id is None else f"z{slice_id:02d}"
        for status, texts in (("error", record["errors"]), ("warning", record["warnings"])):
            found += [Finding(_OF_STATUS[status], where, _sentence(text)) for text in texts]
    for (severity, text, unit), rows in slices.items():
        ids = [i for i, _ in rows if i is not None]
        values = sorted(value for _, value in rows)
        span = f"{values[0]:.3g}" if len(values) == 1 else f"{values[0]:.3g} to {values[-1]:.3g}"
        where = id_ranges(ids) if ids else "all slices"
        found.append(Finding(severity, where, _sentence(f"{text}: {span} {unit}".strip())))
    return found


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:].rstrip(".") + "."


def _tables(run: Run) -> list[Finding]:
    found = []
    for row in run.table("z_matches.csv"):
        if (row.get("correlation_fallback_used") or "").strip().lower() in ("true", "1"):
            where = f"z{int(float(row['fixed_id'])):02d} – z{int(float(row['moving_id'])):02d}"
            found.append(Finding(NOTE, where, "No z overlap was found: the expected one is used."))
    unreliable = [
        int(float(row["moving_id"]))
        for row in run.table("shifts_xy.csv")
        if (row.get("reliable") or "1").strip() in ("0", "0.0", "false")
    ]
    if unreliable:
        text = "The mosaic changed its shape, so that the motor shift is less certain."
        found.append(Finding(NOTE, id_ranges(unreliable), text))
    return found
