"""Accuracy of decisions on slices: stage glitches, bad and missing slices.

No table states where a stage lost its zero without reporting it: such slices are compared with the
truth by their positions alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from linumpy.io.omezarr import open_image
from linumpy.io.table_rows import parse_slice_id
from linumpy.quality.accuracy_metric import AT_LEAST, AccuracyMetric, make_metric, not_measured
from linumpy.quality.run import Run
from linumpy.quality.truth import TISSUE_CLASS, Truth

F1_TARGET = 1.0

_BY_MACHINE = frozenset(
    {"dim_slice", "low_quality", "no_match_but_neighbours_match", "consecutive_low_z_corr"}
)
_COVERED = "covered_by_neighbour"


def decision_metrics(run: Run, truth: Truth) -> dict[str, AccuracyMetric]:
    """Return how well glitches, bad slices and gaps were dealt with.

    Returns
    -------
    ``rehoming_f1`` and ``bad_slices_found``: F1 of what was marked, 1 when all and nothing else
    was; ``gaps_filled``: share of missing slices between others whose tissue a neighbour shows or
    that were interpolated.
    """
    rows = _decisions(run)
    if not rows:
        reason = "the run has no slice_config.csv"
        return {
            "rehoming_f1": not_measured(reason, "", target=F1_TARGET, comparison=AT_LEAST),
            "bad_slices_found": not_measured(reason, "", target=F1_TARGET, comparison=AT_LEAST),
            "gaps_filled": not_measured(reason, "", comparison=AT_LEAST),
        }
    glitches = {i for i, s in truth.slices.items() if any(s.glitch_mm)}
    mended = {i for i, row in rows.items() if _true(row.get("rehomed"))}
    bad = {i for i, s in truth.slices.items() if s.bad}
    unused = {i for i, row in rows.items() if row.get("use", "").strip().lower() == "false"}
    by_machine = {
        i
        for i, row in rows.items()
        if _true(row.get("auto_excluded")) or row.get("exclude_reason", "") in _BY_MACHINE
    }
    # A bad slice that a person left out is found too; a good one that a person did is no error.
    # Nor is one that has nothing but agarose to show: it matches nothing, and nothing is lost.
    found = (by_machine | (unused & bad)) - _bare(truth, by_machine - bad)
    return {
        "rehoming_f1": _f1(glitches, mended, "the truth has no glitch of the stage"),
        "bad_slices_found": _f1(bad, found, "the truth has no bad slice"),
        "gaps_filled": _gaps(rows, truth),
    }


def _bare(truth: Truth, ids: Iterable[int]) -> set[int]:
    """Return which slices have no tissue between their own cut and the next."""
    known = [truth.slices[i] for i in ids if i in truth.slices]
    if not known or not truth.classes_path.exists():
        return set()
    classes = open_image(truth.classes_path)
    axial_um, n_planes = classes.voxel_um[0], classes.array.shape[0]
    top_um = classes.translation_um[0] - axial_um / 2
    bare = set()
    for each in known:
        ends = np.array([each.face_um, each.face_um + truth.slice_interval_um])
        first, stop = (int(n) for n in np.clip(np.rint((ends - top_um) / axial_um), 0, n_planes))
        if not (np.asarray(classes.array[first:stop]) >= TISSUE_CLASS).any():
            bare.add(each.slice_id)
    return bare


def _decisions(run: Run) -> dict[int, Mapping[str, str]]:
    rows = run.table("slice_config.csv")
    return {parse_slice_id(row["slice_id"]): row for row in rows if row.get("slice_id")}


def _true(cell: str | None) -> bool:
    return (cell or "").strip().lower() == "true"


def _f1(true: set[int], found: Iterable[int], nothing: str) -> AccuracyMetric:
    found = set(found)
    if not true and not found:
        return not_measured(nothing, "", comparison=AT_LEAST)
    hits = len(true & found)
    return make_metric(
        2 * hits / (len(true) + len(found)),
        "",
        len(true | found),
        target=F1_TARGET,
        comparison=AT_LEAST,
        true=sorted(true),
        found=sorted(found),
        missed=sorted(true - found),
        false=sorted(found - true),
    )


def _gaps(rows: Mapping[int, Mapping[str, str]], truth: Truth) -> AccuracyMetric:
    ids = set(truth.slices)
    missing = [i for i in range(min(ids), max(ids) + 1) if i not in ids] if ids else []
    if not missing:
        return not_measured("the truth has no missing slice between others", "")
    became = {}
    for slice_id in missing:
        row = rows.get(slice_id, {})
        reason = row.get("interpolation_fallback_reason", "")
        became[slice_id] = "interpolated" if _true(row.get("interpolated")) else reason or "nothing"
    filled = sum(state in ("interpolated", _COVERED) for state in became.values())
    return make_metric(filled / len(missing), "", len(missing), comparison=AT_LEAST, slices=became)
