"""Findings of a run that need attention: one a kind, worst first."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, TypeVar

from linumpy.metrics.both_sides import displaced_parts_of, foreign_bodies_of
from linumpy.quality.run import Run
from linumpy.report.collect import SliceRecord, id_ranges
from linumpy.report.kinds import (
    ATTENTION,
    KINDS,
    LOW_CONFIDENCE,
    MANY_LEFT_OUT_SHARE,
    NOTE,
    PROBLEM,
    REMARK_OF_METRIC,
    REMARKS,
    SEVERITIES,
    UNCLEAR_DEPTHS_SHARE,
    Finding,
    Kind,
    metric_kind,
)
from linumpy.report.labels import label
from linumpy.report.pooled_findings import STAGE_LINEAR, of_all_slices
from linumpy.report.tile_findings import of_tiles

T = TypeVar("T")

WORST_NAMED = 8
"""Findings that the terminal names when a run ends, gravest first."""

_NAMED_AT_MOST = 8
_OF_STATUS = {"error": PROBLEM, "warning": ATTENTION}
# Reported by findings of their own, with the slices, pairs or tiles.
_TOLD_ELSEWHERE = frozenset({"held_by_stage_share", "accepted_share", "excluded_share"})
_SAID_ELSEWHERE = re.compile("is left out: |match no other slice|the gap stays empty")
# Uncertainties: stated when a run ends; notes until they reach the second limit.
_UNCERTAINTIES = frozenset(
    {
        *("position_bound", "stretch_bound", "field_bound"),
        *("shift_sigma", "turn_sigma", "unmeasured_steps"),
    }
)
_OF_SLICE = re.compile(r"^slice z\d+:? ")


def find_issues(run: Run, slices: Sequence[SliceRecord]) -> list[Finding]:
    """Collect the findings of a run, gravest first, one a kind.

    Parameters
    ----------
    slices
        From `collect.slice_records`.
    """
    left_out = {s.slice_id for s in slices if s.left_out}
    pooled = of_all_slices(run, left_out)
    # All slices together know it better than each; a slice that is off by more tells its own.
    told = set()
    if any(
        f.kind.title == STAGE_LINEAR
        and SEVERITIES.index(f.severity) <= SEVERITIES.index(_worst(run, left_out))
        for f in pooled
    ):
        told.add("stage_linear")
    found = [
        *_brain(run),
        *_accuracy(run.accuracy or {}),
        *_slices(slices),
        *of_tiles([s for s in slices if s.slice_id not in left_out]),
        *_foreign_bodies(run, left_out),
        *_displaced_parts(run, left_out),
        *_reflections(run, left_out),
        *_slice_pairs(run),
        *_tables(run),
        *_metrics(run, sum(s.n_tiles or 0 for s in slices), left_out, _TOLD_ELSEWHERE | told),
        *pooled,
    ]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def _worst(run: Run, left_out: set[int]) -> str:
    """Return how grave `stage_linear` of the worst slice is; a warning at least."""
    errors = (
        record["metrics"].get("stage_linear", {}).get("status") == "error"
        for (_, slice_id), record in run.metrics.items()
        if slice_id not in left_out
    )
    return PROBLEM if any(errors) else ATTENTION


def summary_of(findings: Sequence[Finding]) -> str:
    """Return how many kinds of findings there are: what the terminal says when a run ends."""
    problems = sum(f.severity == PROBLEM for f in findings)
    others = sum(f.severity == ATTENTION for f in findings)
    parts = [
        f"{n} {word}{'' if n == 1 else 's'}"
        for n, word in ((problems, "problem"), (others, "warning"))
        if n
    ]
    return ", ".join(parts) or "no problems"


def _brain(run: Run) -> list[Finding]:
    return [] if run.brain_path is not None else [Finding(PROBLEM, KINDS["no_brain"], "brain")]


def _accuracy(figures: Mapping[str, Any]) -> list[Finding]:
    missed = {n: f for n, f in figures.items() if f.get("passed") is False}
    if not missed:
        return []
    values = [
        f"{f['value']:.3g} {f['unit']}".rstrip() + f" (target {f['target']:g})"
        for f in missed.values()
    ]
    names = "; ".join(label(name) for name in missed)
    return [Finding(PROBLEM, KINDS["accuracy"], names, len(missed), "; ".join(values))]


def _slices(slices: Sequence[SliceRecord]) -> list[Finding]:
    gaps = [s.slice_id for s in slices if not (s.present or s.left_out or s.gap_is_told)]
    found = []
    if gaps:
        found.append(Finding(PROBLEM, KINDS["no_data"], id_ranges(gaps), len(gaps)))
    found += _by_reason(PROBLEM, "open_gap", slices, _open_gap)
    many = sum(bool(s.left_out) for s in slices) > MANY_LEFT_OUT_SHARE * len(slices)
    severity = PROBLEM if many else ATTENTION
    found += _by_reason(severity, "left_out", slices, lambda s: s.left_out)
    found += _by_reason(
        ATTENTION,
        "interpolated",
        slices,
        lambda s: s.interpolated and f"{_absent(s)}, {s.interpolated}",
    )
    found += _by_reason(ATTENTION, "covered", slices, lambda s: _absent(s) if s.covered else "")
    for kind in ("rehomed", "turned"):
        moved = [s.slice_id for s in slices if getattr(s, kind)]
        if moved:
            found.append(Finding(ATTENTION, KINDS[kind], id_ranges(moved), len(moved)))
    return found


def _open_gap(record: SliceRecord) -> str:
    if record.covered or not record.not_interpolated:
        return ""
    return f"{_absent(record)}, {record.not_interpolated.replace('_', ' ')}"


def _absent(record: SliceRecord) -> str:
    reason = record.exclude_reason.replace("_", " ")
    return f"Left out ({reason})" if reason not in ("", "missing") else "Not among the raw data"


def _by_reason(
    severity: str,
    kind: str,
    slices: Sequence[SliceRecord],
    reason_of: Callable[[SliceRecord], str],
) -> list[Finding]:
    """Return one finding on all slices that have a reason, with the reasons as its value."""
    reasons: dict[str, list[int]] = defaultdict(list)
    for record in slices:
        if reason := reason_of(record):
            reasons[reason].append(record.slice_id)
    if not reasons:
        return []
    ids = sorted(i for members in reasons.values() for i in members)
    several = len(reasons) > 1
    value = "; ".join(
        f"{reason} ({id_ranges(members)})" if several else reason
        for reason, members in reasons.items()
    )
    return [Finding(severity, KINDS[kind], id_ranges(ids), len(ids), value)]


def _foreign_bodies(run: Run, left_out: set[int]) -> list[Finding]:
    bodies = _of_compared(run, left_out, foreign_bodies_of)
    return _by_slice("foreign", {i: _bodies(i, each) for i, each in bodies.items()})


def _displaced_parts(run: Run, left_out: set[int]) -> list[Finding]:
    parts = _of_compared(run, left_out, displaced_parts_of)
    by_um = {i: math.hypot(*each[0]["by_um"]) for i, each in parts.items()}
    return _by_slice(
        "displaced",
        {i: f"{_bodies(i, each)}, displaced by {by_um[i]:.0f} um" for i, each in parts.items()},
    )


def _reflections(run: Run, left_out: set[int]) -> list[Finding]:
    found = {
        slice_id: _bodies(slice_id, bodies)
        for slice_id, crop in sorted(run.crops.items())
        if slice_id not in left_out and (bodies := crop.get("reflections"))
    }
    return _by_slice("reflections", found)


def _of_compared(
    run: Run,
    left_out: set[int],
    told_of: Callable[[Sequence[Mapping[str, Any]], int], list[Mapping[str, Any]]],
) -> dict[int, list[Mapping[str, Any]]]:
    """Return what comparisons of slices tell of each that is kept; slices of which they do."""
    model = run.model("assess_slice_quality") or {"slices": [], "pairs": []}
    ids = (int(s["slice_id"]) for s in model["slices"])
    found = {i: told_of(model["pairs"], i) for i in ids if i not in left_out}
    return {i: each for i, each in found.items() if each}


def _by_slice(kind: str, texts: Mapping[int, str]) -> list[Finding]:
    if not texts:
        return []
    value = _joined(list(texts.values()), "; ")
    return [Finding(ATTENTION, KINDS[kind], id_ranges(texts), len(texts), value)]


def _bodies(slice_id: int, bodies: Sequence[Mapping[str, Any]]) -> str:
    """Return the area of all bodies of a slice, and the place of the largest."""
    area_mm2 = sum(body["area_um2"] for body in bodies) / 1e6
    y, x = (c / 1000 for c in bodies[0]["centre_um"])
    return f"z{slice_id:02d}: {area_mm2:.2g} mm² at {y:.2f}, {x:.2f} mm"


def _slice_pairs(run: Run) -> list[Finding]:
    registration = run.slice_registration
    if registration is None:
        return []
    found = []
    accepted = [pair for pair in registration.pairs if pair["accepted"]]
    matched = {int(pair[end]) for pair in accepted for end in ("fixed_id", "moving_id")}
    alone = [i for i in sorted(registration.offset_um) if i not in matched]
    if alone and len(registration.offset_um) > 1:
        found.append(Finding(PROBLEM, KINDS["alone_slices"], id_ranges(alone), len(alone)))
    neighbours = _neighbours(registration.offset_um, registration.pairs)
    rejected = [p for p in neighbours if not p.get("accepted", True)]
    weak = [p for p in neighbours if p.get("accepted", True) and _confidence(p) < LOW_CONFIDENCE]
    for kind, pairs in (("unmatched", rejected), ("weak", weak)):
        if pairs:
            worst = sorted(pairs, key=_confidence)
            value = f"confidence {_confidence(worst[0]):.2f}"
            if len(worst) > 1:
                value += f" ({_pair_name(worst[0])}) to {_confidence(worst[-1]):.2f}"
            found.append(Finding(ATTENTION, KINDS[kind], _named(pairs), len(pairs), value))
    unclear = [p for p in neighbours if p.get("accepted", True) and p.get("z_measured") is False]
    if len(unclear) > UNCLEAR_DEPTHS_SHARE * len(neighbours):
        value = f"{len(unclear)} of {len(neighbours)} neighbours"
        found.append(Finding(NOTE, KINDS["unclear_depth"], _named(unclear), len(unclear), value))
    return found


def _neighbours(
    offsets: Mapping[int, Any], pairs: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return the pairs of slices with none between them: others are further evidence only."""
    ids = sorted(offsets)
    beside = set(zip(ids, ids[1:], strict=False))
    return [p for p in pairs if (int(p["fixed_id"]), int(p["moving_id"])) in beside]


def _confidence(pair: Mapping[str, Any]) -> float:
    return float(pair.get("confidence") or 0)


def _pair_name(pair: Mapping[str, Any]) -> str:
    return f"z{int(pair['fixed_id']):02d} – z{int(pair['moving_id']):02d}"


def _named(pairs: Sequence[Mapping[str, Any]]) -> str:
    return _joined([_pair_name(pair) for pair in pairs], ", ")


def _joined(texts: Sequence[str], between: str) -> str:
    """Join texts; of many the first ones, and how many more there are."""
    rest = len(texts) - _NAMED_AT_MOST
    return between.join(texts[:_NAMED_AT_MOST]) + (f" and {rest} more" if rest > 0 else "")


def _metrics(run: Run, n_tiles: int, left_out: set[int], skipped: Set[str]) -> list[Finding]:
    """Return which metrics lie beyond their limits, and the stages' remarks, by kind.

    But for those `skipped`, which have findings of their own.
    """
    rows: dict[tuple[str, str], list[tuple[int | None, Mapping[str, Any]]]] = defaultdict(list)
    remarks: dict[tuple[str, Kind], list[tuple[int | None, str]]] = defaultdict(list)
    details: dict[str, str] = {}
    for (step, slice_id), record in run.metrics.items():
        if slice_id in left_out:
            continue
        for name, metric in record["metrics"].items():
            if metric["status"] not in _OF_STATUS or name in skipped:
                continue
            # Learned from all tiles that there are: nothing to do about it.
            if name != "n_tiles" or not 0 < n_tiles <= float(metric["value"]):
                rows[step, name].append((slice_id, metric))
        for status, texts in (("error", record["errors"]), ("warning", record["warnings"])):
            for text in texts:
                if not _SAID_ELSEWHERE.search(text):
                    told = _OF_SLICE.sub("", text)
                    name = _of(REMARK_OF_METRIC, told)
                    if name is not None and (step, name) in rows:
                        details[name] = told
                        continue
                    kind = _of(REMARKS, told) or Kind(
                        _capital(told), "", f"The remark is of {step}."
                    )
                    remarks[_OF_STATUS[status], kind].append((slice_id, told))
    found = [_metric(*key, members, details.get(key[1], "")) for key, members in rows.items()]
    for (severity, kind), members in remarks.items():
        texts = list(dict.fromkeys(told for _, told in members if _capital(told) != kind.title))
        where = _named_slices(i for i, _ in members)
        found.append(Finding(severity, kind, where, len(members), _joined(texts, "; ")))
    return found


def _of(table: Mapping[str, T], told: str) -> T | None:
    """Return the entry of the first words that a remark has."""
    return next((entry for words, entry in table.items() if words in told), None)


def _metric(
    step: str, name: str, rows: Sequence[tuple[int | None, Mapping[str, Any]]], detail: str = ""
) -> Finding:
    metric = rows[0][1]
    limits = metric.get("limits")
    falls = limits is not None and limits[1] < limits[0]
    ordered = sorted(rows, key=lambda row: abs(float(row[1]["value"])), reverse=not falls)
    unit = f" {metric['unit']}".rstrip()
    worst, mildest = (float(ordered[n][1]["value"]) for n in (0, -1))
    value = f"{worst:.3g}{unit}"
    if len(rows) > 1:
        value = f"worst {value} ({_named_slices([ordered[0][0]])}), mildest {mildest:.3g}{unit}"
    if detail:
        value += f"; {detail}"
    limit = ""
    if limits is not None:
        words = ("above", "at or below") if falls else ("below", "from")
        limit = f"{words[0]} {limits[0]:g}{unit}; a problem {words[1]} {limits[1]:g}{unit}"
    severity = min((_OF_STATUS[m["status"]] for _, m in rows), key=SEVERITIES.index)
    stated = name in _UNCERTAINTIES
    if stated and severity == ATTENTION:
        severity = NOTE
    kind = metric_kind(step, name, metric["description"], limit)
    return Finding(severity, kind, _named_slices(i for i, _ in rows), len(rows), value, stated)


def _named_slices(ids: Iterable[int | None]) -> str:
    return id_ranges(sorted({i for i in ids if i is not None})) or "all slices"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".")


def _tables(run: Run) -> list[Finding]:
    found = []
    fallback = [
        row
        for row in run.table("z_matches.csv")
        if (row.get("correlation_fallback_used") or "").strip().lower() in ("true", "1")
    ]
    if fallback:
        pairs = [{k: float(row[k]) for k in ("fixed_id", "moving_id")} for row in fallback]
        found.append(Finding(NOTE, KINDS["no_overlap"], _named(pairs), len(pairs)))
    held = set()
    if run.slice_registration is not None:
        held = {int(p["moving_id"]) for p in run.slice_registration.pairs if p["accepted"]}
    unreliable = [
        slice_id
        for row in run.table("shifts_xy.csv")
        if (row.get("reliable") or "1").strip() in ("0", "0.0", "false")
        and (slice_id := int(float(row["moving_id"]))) not in held
    ]
    if unreliable:
        found.append(Finding(NOTE, KINDS["unreliable"], id_ranges(unreliable), len(unreliable)))
    return found
